// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Our own subjects: a whole domain, an allocator alone, a table alone, a bounced operation,
//! mappings by their addresses; a software unit's invalidation, and nothing at all.

mod addressed;
mod allocator;
mod bounced;
mod domain;
mod late;
mod nothing;
mod table;
mod unit;

pub use addressed::Addressed;
pub use allocator::AllocatorAlone;
pub use bounced::Bounced;
pub use domain::Whole;
pub use late::Late;
pub use nothing::Nothing;
pub use table::TableAlone;
pub use unit::{Invalidation, Software, UnderLate, UnderSoftware};

use ioatlas_dma::units::{PageCount, PhysPage};

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
