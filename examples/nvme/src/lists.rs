// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Scatter-gather lists: however many segments a list has, what is asked of the unit's owner is one
//! call for each run of neighbours.

use crate::{
    load::Buffers,
    memory::lend,
    nvme::{NvmeError, controller::Controller},
    policy::Policy,
    verify::VerifyError,
};
use ioatlas_dma::{domain::Domain, translator::Translator, units::*};
use ioatlas_host::Host;
use serde::Serialize;
use std::sync::Arc;

/// Lists that were mapped and unmapped.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[allow(missing_docs)] // its fields say it
pub struct Mapped {
    /// Segments of a list, of a page each.
    pub segments: u64,
    /// How many runs of neighbours they are.
    pub runs: u64,
    pub lists: u64,
    /// The controller was told these numbers before and after them.
    pub notes: [u32; 2],
}

const SEGMENTS: u64 = 16;
const LISTS: u64 = 8;

/// Maps and unmaps lists of 1, 4 and 16 runs; `note` is the last number that
/// the controller was told.
pub fn map<T: Translator<Host>>(
    domain: &Arc<Domain<Host, T>>,
    controller: &mut Controller<T>,
    buffers: &Buffers,
    note: &mut u32,
) -> Result<Vec<Mapped>, VerifyError> {
    let client = Policy::MapUnmap.client(domain)?;
    let first = buffers.whole(0).addr.page();
    let mut all = Vec::new();
    for runs in [1, 4, SEGMENTS] {
        // a page is left out between two runs
        let page = |n: u64| PhysPage(first.0 + n + n / (SEGMENTS / runs));
        let list: Arc<[PhysRange]> = (0..SEGMENTS).map(page).map(PhysRange::page).collect();
        let mapped = Mapped {
            segments: SEGMENTS,
            runs,
            lists: LISTS,
            notes: [*note + 1, *note + 2],
        };
        *note += 2;
        controller.note(mapped.notes[0])?;
        for _ in 0..LISTS {
            buffers.while_lent(|| {
                let mapping = client.map_sg(lend(list.clone()), Direction::FromDevice)?;
                client.unmap(mapping)?;
                Ok::<_, NvmeError>(())
            })?;
        }
        controller.note(mapped.notes[1])?;
        all.push(mapped);
    }
    Ok(all)
}
