// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A table alone: ranges follow from the order of the pairs.

use super::Buffers;
use crate::{Failure, Subject, platform::Slots, stack::Stacks};
use ioatlas_dma::{
    iova::AllocKind,
    platform::Authority,
    table::{Format, LeafAttrs, Table, TableConfig},
    units::{IovaRange, PageCount, Perm, PhysRun},
};
use std::sync::Arc;

// SAFETY: no device is attached, and each thread has pages of its own.
#[allow(unsafe_code)]
const BY: Authority = unsafe { Authority::assume() };

/// A table. Pairs are `install` and `clear`.
///
/// A thread has pages of its own ([`Stacks`]).
pub struct TableAlone<P: Slots, F: Format> {
    platform: Arc<P>,
    table: Table<P, F>,
}

impl<P: Slots, F: Format> TableAlone<P, F> {
    /// An empty table of this configuration.
    ///
    /// # Errors
    /// There is no frame for its root.
    pub fn new(platform: Arc<P>, config: TableConfig) -> Result<Self, Failure> {
        let table = Table::new(&*platform, config);
        let table = table.ok_or_else(|| Failure::new("no frame for the root table"))?;
        Ok(TableAlone { platform, table })
    }
}

/// Where a thread installs, and what.
#[derive(Debug)]
pub struct Places {
    free: Stacks,
    buffers: Buffers,
}

impl<P: Slots, F: Format> Subject for TableAlone<P, F> {
    type Token = IovaRange;
    type Hand = Places;

    fn hand(&self, thread: usize) -> Places {
        self.platform.enter();
        Places {
            free: Stacks::of_thread(thread),
            buffers: Buffers::new(thread),
        }
    }
    #[inline]
    fn take(&self, hand: &mut Places, pages: PageCount) -> Result<IovaRange, Failure> {
        let first = hand.free.pop(pages)?;
        let range = IovaRange::new(first, pages);
        let run = PhysRun::new(hand.buffers.next(pages), pages);
        let leaf = LeafAttrs::new(Perm::Write, AllocKind::Dynamic);
        let installed = self
            .table
            .install(BY, &self.platform, range, std::iter::once(run), leaf);
        installed.map_err(Failure::new)?;
        Ok(range)
    }
    #[inline]
    fn give(&self, hand: &mut Places, range: IovaRange) -> Result<(), Failure> {
        let nothing = |_| unreachable!("no range covers all that a table maps");
        let cleared = self
            .table
            .clear(BY, &self.platform, range, AllocKind::Dynamic, nothing);
        if cleared.found != range.pages {
            return Err(Failure::new(format!(
                "{range}: {} pages translated",
                cleared.found
            )));
        }
        hand.free.push(range)
    }
}
