// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Linux 3.17's IOVA allocator: one lock, a tree of ranges in use, top-down first fit (ATC'15 §3.1).
//!
//! # Theory
//!
//! A red-black tree holds the ranges in use, disjoint. To assign, walk its nodes downwards and take the first gap that
//! holds the wanted range, naturally aligned, as high in the gap as it goes. The walk does not begin at the top
//! but at the *cached node*, the range given out last: as long as ranges are given out only, the gap is right below it,
//! and the scan looks at one node. Giving back a range at or above the cached node moves the cache to the next
//! range above, so that the new gap is found.
//!
//! That is where it becomes linear: with n ranges in use, one of them the topmost and small, `release` of that one
//! followed by `assign` of a larger size walks past all n. Rings whose buffers differ in size do this all the time.
//! It is kept, being the baseline to compare with; [`Rbtree::nodes_visited`] counts it. One thing is added: a
//! scan that finds nothing below the cached node looks above it, once, so that [`NoIova`] is never wrong.
//!
//! Page 0 is never assigned, because drivers take address 0 for "none"; [`Assign::reserve`] gives it to those who ask.
//! Where the aperture has it, it counts as free until then.
//!
//! Locking: one lock around everything, nothing is called with it held. It is held for a walk, linear as said, and the first time there
//! are more ranges than ever before, for the growth of the slab.
//!
//! Not handled: an aperture whose end is not a `u64` (it is cut off), and different limits a device.

mod space;
pub(super) mod tree;

use super::{
    backing::{Refill, clipped, granted_or_all, inside},
    *,
};
use crate::platform::Lock;
use alloc::{format, string::String};
use space::{Run, Space};

/// The tree of ranges, under its lock.
pub struct Rbtree<P: Platform> {
    aperture: IovaRange,
    space: P::Lock<Space>,
}

/// How many ranges [`Assign::describe`] prints.
const DESCRIBED: usize = 8;

impl<P: Platform> Rbtree<P> {
    /// All of `aperture` is free. What of it lies beyond page number 2^64 - 1 is cut off.
    pub fn new(aperture: IovaRange) -> Self {
        let aperture = clipped(aperture);
        Rbtree {
            aperture,
            space: P::Lock::new(Space::new(aperture)),
        }
    }

    /// All pages that there are.
    pub fn aperture(&self) -> IovaRange {
        self.aperture
    }

    /// How many nodes scans for a gap have looked at since the beginning: the price of first fit, in no unit of time.
    pub fn nodes_visited(&self) -> u64 {
        self.space.with(|space| space.visited())
    }
}

impl<P: Platform> Assign<P> for Rbtree<P> {
    fn assign(&self, _p: &P, request: &Request) -> Result<Lease, NoIova> {
        let pages = request.pages;
        let range = self.assign_run(pages, 1).map_err(|error| NoIova {
            wanted: granted_or_all(pages),
            ..error
        })?;
        Ok(Lease::new(range, LeaseKind::Assigned))
    }

    fn reserve(&self, _p: &P, wanted: IovaRange) -> Result<Lease, NoReserve> {
        let wanted = inside(self.aperture, wanted)?;
        match self.space.with(|space| space.take_exactly(wanted)) {
            Ok(()) => Ok(Lease::new(wanted, LeaseKind::Fixed)),
            Err(taken) => Err(NoReserve::Taken { wanted, taken }),
        }
    }

    fn release(&self, _p: &P, _home: CpuIndex, lease: Flushed<Lease>) {
        let range = lease.into_inner().range();
        self.space.with(|space| space.give(range));
    }

    /// Nothing is kept.
    fn drain(&self, _p: &P) -> PageCount {
        PageCount(0)
    }

    fn usage(&self, _p: &P) -> Usage {
        let (free, leased) = self.space.with(|space| (space.free(), space.used()));
        Usage {
            aperture: self.aperture.pages,
            free,
            cached: PageCount(0),
            leased,
            diverted: 0,
        }
    }

    fn audit(&self, _p: &P) -> Result<(), String> {
        self.space
            .with(|space| space.audit())
            .map_err(|what| format!("rbtree: {what}"))
    }

    fn describe(&self, _p: &P, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // copied out first: printing may allocate, which the lock's contract forbids
        let mut top = [None; DESCRIBED];
        let (used, ranges, cached) = self.space.with(|space| {
            top.iter_mut()
                .zip(space.iter())
                .for_each(|(to, range)| *to = Some(range));
            (space.used(), space.ranges(), space.cached())
        });
        let aperture = self.aperture;
        write!(
            f,
            "rbtree {aperture}: {used} pages in {ranges} ranges, cached node "
        )?;
        match cached {
            Some(range) => write!(f, "{range}")?,
            None => write!(f, "none")?,
        }
        for (nth, range) in top.into_iter().flatten().enumerate() {
            write!(
                f,
                "{}{range}",
                if nth == 0 { "; from the top " } else { " " }
            )?;
        }
        if ranges > DESCRIBED {
            write!(f, " ..")?;
        }
        Ok(())
    }
}

impl<P: Platform> Refill<P> for Rbtree<P> {
    fn assign_run(&self, each: PageCount, count: u64) -> Result<IovaRange, NoIova> {
        let run = Run::new(each, count);
        let found = self.space.with(|space| {
            let place = run.and_then(|run| space.take(run));
            place.ok_or_else(|| space.free())
        });
        found.map_err(|free| NoIova {
            wanted: PageCount(each.0.saturating_mul(count)),
            free,
            cached: PageCount(0),
            aperture: self.aperture.pages,
        })
    }

    fn release_all(&self, ranges: impl Iterator<Item = IovaRange>) {
        self.space
            .with(|space| ranges.for_each(|range| space.give(range)));
    }

    fn holds(&self, range: IovaRange) -> bool {
        self.space.with(|space| space.holds(range))
    }
}

#[cfg(all(test, feature = "host"))]
mod tests {
    use super::*;
    use crate::platform::host::Host;

    fn tree(first: u64, pages: u64) -> Rbtree<Host> {
        Rbtree::new(IovaRange::new(IovaPage(first), PageCount(pages)))
    }

    fn run(tree: &Rbtree<Host>, each: u64, count: u64) -> Option<(u64, u64)> {
        let found = tree.assign_run(PageCount(each), count).ok();
        tree.space.with(|space| space.audit()).unwrap();
        found.map(|range| (range.first.0, range.pages.0))
    }

    #[test]
    fn a_run_is_aligned_as_a_whole_and_comes_back_in_pieces() {
        let tree = tree(3, 125);
        assert_eq!(run(&tree, 1, 1), Some((127, 1)));
        assert_eq!(run(&tree, 1, 8), Some((112, 8)));
        assert_eq!(run(&tree, 3, 8), Some((64, 32)));
        // 3 x 2 pages, aligned to 8
        assert_eq!(run(&tree, 2, 3), Some((56, 6)));
        for nth in 0..8 {
            let range = IovaRange::new(IovaPage(64 + 4 * nth), PageCount(4));
            assert!(tree.holds(range));
            tree.release_all([range].into_iter());
            assert!(!tree.holds(range));
        }
        assert_eq!(run(&tree, 32, 1), Some((64, 32)));
    }

    #[test]
    fn a_run_that_fits_nowhere_takes_nothing() {
        let tree = tree(1, 15);
        assert_eq!(run(&tree, 1, 16), None);
        for (each, count) in [
            (u64::MAX, 1),
            (1 << 40, 1 << 40),
            (1 << 62, 3),
            (1, u64::MAX),
        ] {
            assert_eq!(run(&tree, each, count), None);
        }
        assert_eq!(tree.space.with(|space| space.free()), PageCount(15));
        assert_eq!(run(&tree, 1, 0), Some((15, 1)));
    }

    #[test]
    fn the_audit_names_a_range_that_was_not_in_use() {
        let tree = tree(1, 15);
        assert_eq!(run(&tree, 2, 1), Some((14, 2)));
        tree.release_all([IovaRange::new(IovaPage(14), PageCount(1))].into_iter());
        let what = tree.space.with(|space| space.audit()).unwrap_err();
        assert!(what.contains("1 ranges were given back"), "{what}");
        assert_eq!(tree.space.with(|space| space.used()), PageCount(2));
    }
}
