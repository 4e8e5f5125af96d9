// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A region whose pages a design does not choose, though others may take some of them: what is
//! reserved, and how much is allocated.
//!
//! # Theory
//!
//! `identity` and `kmalloc` are told their pages, by a buffer or by a heap, and keep no record of
//! them. So a range that is reserved there goes to a short list: the design looks at each place it
//! is told, and turns to its fallback where the two overlap. Nothing tells whether a range is
//! allocated already; it can be reserved only while nothing in the region is allocated, which is
//! when reserved ranges are known, at the beginning of a domain.
//!
//! Two words decide that between them. Lending *counts, then looks at the list*; keeping off
//! *writes the list, then looks at the count*. All four are sequentially consistent, so that one of
//! the two sees the other, and gives way. The count is of each CPU: lending writes no word that
//! another CPU writes, but reads the list, which hardly ever changes. An allocation that is taken
//! back has been flushed, and its count is a release, so a reserved range is in no cache. One that
//! a failed invalidation quarantines is counted as lent for good, so nothing can be reserved in its
//! region any more.

use super::*;
use crate::platform::{Atomic64, Lock, Ordering, PerCpu};
use alloc::{boxed::Box, format, string::String};

/// How many ranges can be reserved.
pub(super) const MAX: usize = 8;

/// See the module's theory.
pub(super) struct ReservedRanges<P: Platform> {
    region: IovaRange,
    counts: PerCpu<Counts<P>>,
    /// Slots that were ever in use; those beyond need no look.
    used: P::A64,
    slots: Box<[Slot<P>]>,
    writer: P::Lock<()>,
}

/// Pages lent and returned, ever.
struct Counts<P: Platform> {
    lent: P::A64,
    returned: P::A64,
}

/// A range, or none where it has no pages.
struct Slot<P: Platform> {
    first: P::A64,
    pages: P::A64,
}

impl<P: Platform> Slot<P> {
    fn range(&self) -> Option<IovaRange> {
        let pages = PageCount(self.pages.load(Ordering::SeqCst));
        let first = IovaPage(self.first.load(Ordering::SeqCst));
        (pages.0 > 0).then_some(IovaRange::new(first, pages))
    }
}

impl<P: Platform> ReservedRanges<P> {
    /// Nothing is reserved, and nothing allocated.
    pub fn new(p: &P, region: IovaRange) -> Self {
        let zero = || P::A64::new(0);
        let slot = |_| Slot {
            first: zero(),
            pages: zero(),
        };
        ReservedRanges {
            region,
            counts: PerCpu::new(p, || Counts {
                lent: zero(),
                returned: zero(),
            }),
            used: zero(),
            slots: (0..MAX).map(slot).collect(),
            writer: P::Lock::new(()),
        }
    }

    /// Counts `range` as allocated, unless it overlaps what is reserved.
    #[inline]
    pub fn lend(&self, p: &P, range: IovaRange) -> Option<()> {
        p.pinned(|cpu| {
            let counts = self.counts.get(&cpu);
            counts.lent.fetch_add(range.pages.0, Ordering::SeqCst);
            if self.used.load(Ordering::SeqCst) == 0 || self.overlapping(range).is_none() {
                return Some(());
            }
            counts.returned.fetch_add(range.pages.0, Ordering::Release);
            None
        })
    }

    /// Counts `pages` as allocated no more.
    #[inline]
    pub fn take_back(&self, p: &P, pages: PageCount) {
        p.pinned(|cpu| {
            let returned = &self.counts.get(&cpu).returned;
            returned.fetch_add(pages.0, Ordering::Release)
        });
    }

    /// Keeps `wanted`, which lies in the region, off.
    pub fn reserve(&self, wanted: IovaRange) -> Result<IovaAlloc, FixedRangeError> {
        let region = self.region;
        self.writer.with(|()| {
            if let Some(taken) = self.overlapping(wanted) {
                return Err(FixedRangeError::Taken { wanted, taken });
            }
            let Some(nth) = self.slots.iter().position(|slot| slot.range().is_none()) else {
                return Err(FixedRangeError::TooMany {
                    wanted,
                    region,
                    max: MAX,
                });
            };
            let no_record = |allocated| FixedRangeError::NoRecord {
                wanted,
                region,
                allocated,
            };
            let allocated = self.allocated();
            if allocated.0 > 0 {
                // and no call is turned away by a slot that goes again
                return Err(no_record(allocated));
            }
            let slot = &self.slots[nth];
            slot.first.store(wanted.first.0, Ordering::SeqCst);
            slot.pages.store(wanted.pages.0, Ordering::SeqCst);
            let used = self.used.load(Ordering::SeqCst).max(nth as u64 + 1);
            self.used.store(used, Ordering::SeqCst);
            let allocated = self.allocated();
            if allocated.0 > 0 {
                slot.pages.store(0, Ordering::SeqCst);
                return Err(no_record(allocated));
            }
            Ok(IovaAlloc::new(wanted, AllocKind::Fixed))
        })
    }

    /// `range` is reserved no more.
    pub fn free(&self, range: IovaRange) {
        self.writer.with(|()| {
            let slot = self.slots.iter().find(|slot| slot.range() == Some(range));
            debug_assert!(slot.is_some(), "{range} is not reserved");
            slot.into_iter()
                .for_each(|slot| slot.pages.store(0, Ordering::SeqCst));
        });
    }

    /// Pages allocated; while others lend and take back, rather too many than too few.
    pub fn allocated(&self) -> PageCount {
        let sum = |pick: fn(&Counts<P>) -> &P::A64| -> u64 {
            let counts = self.counts.iter().map(|(_, counts)| counts);
            counts.map(|c| pick(c).load(Ordering::SeqCst)).sum()
        };
        // in this order: whatever was returned was lent before
        let returned = sum(|c| &c.returned);
        PageCount(sum(|c| &c.lent).saturating_sub(returned))
    }

    /// How many pages are reserved.
    pub fn kept(&self) -> PageCount {
        PageCount(self.ranges().map(|range| range.pages.0).sum())
    }

    /// The ranges that are reserved.
    pub fn ranges(&self) -> impl Iterator<Item = IovaRange> {
        let used = self.used.load(Ordering::SeqCst) as usize;
        self.slots[..used].iter().filter_map(Slot::range)
    }

    fn overlapping(&self, of: IovaRange) -> Option<IovaRange> {
        self.ranges().find(|kept| kept.overlaps(&of))
    }

    /// Checks that what is reserved lies in the region.
    pub fn audit(&self) -> Result<(), String> {
        match self.ranges().find(|range| !self.region.contains(range)) {
            None => Ok(()),
            Some(range) => Err(format!("{range} is reserved, outside {}", self.region)),
        }
    }
}
