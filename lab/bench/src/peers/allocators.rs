// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Range allocators.

use super::{Exclusive, Peer, Rival};
use crate::Failure;
use buddy_system_allocator::FrameAllocator;
use ioatlas_dma::units::PageCount;
use range_alloc::RangeAllocator;
use std::ops::Range;
use vm_allocator::{AddressAllocator, AllocPolicy, RangeInclusive};

/// Pages of the space: what the narrowest of them, of 32 bits, is given comfortably, and the
/// largest pattern fills to less than half.
const PAGES: u32 = 1 << 24;

const fn allocator(
    name: &'static str,
    doc: &'static str,
    make: fn() -> Result<Box<dyn super::Made>, Failure>,
) -> Peer {
    Peer {
        name,
        rival: Rival::Allocator,
        doc,
        make,
    }
}

pub(super) const PEERS: [Peer; 4] = [
    allocator(
        "range-alloc",
        "best fit in a sorted list of free ranges",
        || Ok(Box::new(RangeAllocator::new(0..u64::from(PAGES)))),
    ),
    allocator(
        "offset-allocator",
        "constant-time bins; 32 bits, no alignment, and a maximum of ranges",
        || {
            Ok(Box::new(offset_allocator::Allocator::with_max_allocs(
                PAGES, RANGES,
            )))
        },
    ),
    allocator(
        "buddy_system_allocator",
        "a buddy system with a set of free blocks for each order",
        || {
            let mut buddy = FrameAllocator::<25>::new();
            buddy.add_frame(0, PAGES as usize);
            Ok(Box::new(buddy))
        },
    ),
    allocator(
        "vm-allocator",
        "first fit in an interval tree of all ranges, free or not",
        || {
            // it cannot look below 0 for a place before its first
            let made = AddressAllocator::new(u64::from(PAGES), u64::from(PAGES));
            Ok(Box::new(made.map_err(Failure::new)?))
        },
    ),
];

/// Ranges that `offset-allocator` is made for: those of the largest pattern on two threads,
/// and as many holes.
const RANGES: u32 = 1 << 20;

#[cold]
fn full(pages: PageCount) -> Failure {
    Failure::new(format!("no room for {pages} pages"))
}

impl Exclusive for RangeAllocator<u64> {
    type Token = Range<u64>;
    #[inline]
    fn take(&mut self, pages: PageCount) -> Result<Range<u64>, Failure> {
        let granted = pages.0.next_power_of_two();
        let range = self.allocate_range_aligned(pages.0, granted);
        range.map_err(|_| full(pages))
    }
    #[inline]
    fn give(&mut self, range: Range<u64>) -> Result<(), Failure> {
        self.free_range(range);
        Ok(())
    }
}

impl Exclusive for offset_allocator::Allocator {
    type Token = offset_allocator::Allocation;
    #[inline]
    fn take(&mut self, pages: PageCount) -> Result<Self::Token, Failure> {
        self.allocate(pages.0 as u32).ok_or_else(|| full(pages))
    }
    #[inline]
    fn give(&mut self, allocation: Self::Token) -> Result<(), Failure> {
        self.free(allocation);
        Ok(())
    }
}

impl Exclusive for FrameAllocator<25> {
    type Token = (usize, usize);
    #[inline]
    fn take(&mut self, pages: PageCount) -> Result<(usize, usize), Failure> {
        let pages_wanted = pages.0 as usize;
        let first = self.alloc(pages_wanted).ok_or_else(|| full(pages))?;
        Ok((first, pages_wanted))
    }
    #[inline]
    fn give(&mut self, (first, pages): (usize, usize)) -> Result<(), Failure> {
        self.dealloc(first, pages);
        Ok(())
    }
}

impl Exclusive for AddressAllocator {
    type Token = RangeInclusive;
    #[inline]
    fn take(&mut self, pages: PageCount) -> Result<RangeInclusive, Failure> {
        let granted = pages.0.next_power_of_two();
        let range = self.allocate(pages.0, granted, AllocPolicy::FirstMatch);
        range.map_err(Failure::new)
    }
    #[inline]
    fn give(&mut self, range: RangeInclusive) -> Result<(), Failure> {
        self.free(&range).map_err(Failure::new)
    }
}
