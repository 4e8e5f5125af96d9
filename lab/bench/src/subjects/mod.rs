// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Our own subjects: a whole domain, an allocator alone, a table alone, a bounced operation,
//! the same by adapters of other crates, mappings by their addresses; a software unit's
//! invalidation, and nothing at all.

mod adapted;
mod addressed;
mod allocator;
mod bounced;
mod domain;
mod late;
mod nothing;
mod table;
mod unit;

pub use adapted::{StreamingMaps, VirtioShares};
pub use addressed::Addressed;
pub use allocator::AllocatorAlone;
pub use bounced::{Bounced, Slices};
pub use domain::Whole;
pub use late::Late;
pub use nothing::Nothing;
pub use table::TableAlone;
pub use unit::{Invalidation, Software, UnderLate, UnderSoftware};

use crate::Failure;
use ioatlas_dma::{
    design::Design,
    dma_api::{Dma, DmaConfig},
    domain::Domain,
    table::fmt::VtdSecond48,
    translator::{Paged, Uncached},
    units::{PageCount, PhysPage},
};
use ioatlas_host::Host;
use std::sync::Arc;

type Tables = Paged<Host, VtdSecond48, Arc<Uncached<Host>>>;

/// The DMA API over real tables, strict, under a unit that caches nothing.
fn dma_api(platform: Arc<Host>, config: DmaConfig) -> Result<Arc<Dma<Host, Tables>>, Failure> {
    let design = Design::parse("magazine,strict").map_err(Failure::new)?;
    let unit = Arc::new(Uncached::new());
    let tables: Tables = Paged::new(&platform, unit, design.tables).map_err(Failure::new)?;
    let domain = Domain::new(platform, tables, design.domain).map_err(Failure::new)?;
    Ok(Arc::new(Dma::new(Arc::new(domain), config)))
}

/// Pages of memory that a thread's buffers go round, a power of two: drivers use theirs again, and
/// page tables that follow them (`identity`) are finite.
const BUFFERS: u64 = 1 << 16;

/// The buffers of one thread: each begins where the last one ended.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    base: u64,
    next: u64,
}

impl Buffers {
    /// Those of thread number `thread`; no two threads share any.
    pub fn new(thread: usize) -> Self {
        Buffers {
            base: (thread as u64 + 1) << 20,
            next: 0,
        }
    }
    /// The first page of the next one.
    #[inline]
    pub fn next(&mut self, pages: PageCount) -> PhysPage {
        let first = PhysPage(self.base + self.next);
        self.next = (self.next + pages.0) & (BUFFERS - 1);
        first
    }
}
