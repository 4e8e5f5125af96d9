// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Linux 3.17's IOVA allocator: one lock, a tree of ranges in use, top-down first fit (ATC'15
//! §3.1).
//!
//! # Theory
//!
//! A red-black tree holds the ranges in use, disjoint. To allocate, walk its nodes downwards and
//! take the first gap that holds the wanted range, naturally aligned, as high in the gap as it
//! goes. The walk does not begin at the top but at the *cached node*, the range given out last: as
//! long as ranges are given out only, the gap is right below it, and the scan looks at one node.
//! Giving back a range at or above the cached node moves the cache to the next range above, so that
//! the new gap is found.
//!
//! That is where it becomes linear: with n ranges in use, one of them the topmost and small, `free`
//! of that one followed by `alloc` of a larger size walks past all n. Rings whose buffers differ in
//! size do this all the time. It is kept, being the baseline to compare with;
//! [`Locked::nodes_visited`] counts it. One thing is added: a scan that finds nothing below the
//! cached node looks above it, once, so that [`AllocError`] is never wrong.
//!
//! Runs, for which magazines ask and Linux does not, are looked for from where the highest one may
//! be (`RunBounds`), whatever the cached node is.
//!
//! A request with limits is scanned for from the top of its window, which the tree finds, and
//! leaves the cached node alone: so those of a device with a narrow mask are linear in what is in
//! use below it.
//!
//! Locking: one lock around everything ([`Locked`]). It is held for a walk, linear as said, and the
//! first time there are more ranges than ever before, while the slab moves to where it has room.

use super::{
    in_use::InUse,
    locked::{Ranges, Sketch, Taking},
    run_bounds::RunBounds,
    search::{Run, Window},
    tree::{Link, Node},
    *,
};
use crate::platform::room::Larger;
use alloc::{format, string::String};

/// Linux 3.17's allocator: top-down first fit from a cached node, under one lock.
pub type Rbtree<P> = Locked<P, Scan>;

/// The tree, the cached node, and first fit.
pub struct Scan {
    used: InUse,
    /// The range given out last, or the next above it that is still in use; `None` for the
    /// top of the aperture.
    cached: Option<Link>,
    runs: RunBounds,
    /// Nodes that scans have looked at, ever.
    visited: u64,
}

impl<P: Platform> Rbtree<P> {
    /// All of `aperture` is free. What of it lies beyond page number 2^64 - 1 is cut off.
    pub fn new(aperture: IovaRange) -> Self {
        Locked::over(aperture, Scan::new)
    }
}

impl Scan {
    pub(super) fn new(aperture: IovaRange) -> Self {
        Scan {
            used: InUse::new(aperture),
            cached: None,
            runs: RunBounds::new(),
            visited: 0,
        }
    }

    /// The highest place, for a run; for a single range below the cached node, then above it.
    fn first_fit(&mut self, run: Run) -> Option<u64> {
        let window @ Window { floor, end } = Window::of(self.used.aperture());
        if let Some(bound) = self.runs.begin(run, window) {
            let below = self.used.tree().last_below(IovaPage(bound));
            let first = self.scan(run, below, bound, floor);
            self.runs.found(run, first, window);
            return first;
        }
        let last = self.used.tree().last();
        let Some(cached) = self.cached else {
            return self.scan(run, last, end, floor);
        };
        let here = self.used.tree().range(cached);
        let below = self.used.tree().prev(cached);
        self.scan(run, below, here.first.0, floor)
            // nothing below the cached node; what is above it has not been looked at yet
            .or_else(|| self.scan(run, last, end, here.end().0.max(floor)))
    }

    /// Looks at each gap between `top` and `floor`, downwards; `below` is the next node
    /// that begins under `top`.
    fn scan(&mut self, run: Run, mut below: Option<Link>, mut top: u64, floor: u64) -> Option<u64> {
        while top > floor {
            let node = below.map(|at| self.used.tree().range(at));
            let bottom = node.map_or(floor, |range| range.end().0.max(floor));
            if let Some(first) = run.highest(bottom, top) {
                return Some(first);
            }
            let range = node?;
            self.visited += 1;
            top = range.first.0;
            below = below.and_then(|at| self.used.tree().prev(at));
        }
        None
    }
}

impl Ranges for Scan {
    const NAME: &'static str = "rbtree";
    type Room = Option<Larger<Node<()>>>;

    #[inline]
    fn has_room(&self, what: &Taking) -> bool {
        self.used.has_room(what.ranges())
    }
    fn short(&self, what: &Taking) -> Self::Room {
        self.used.short(what.ranges())
    }
    fn enlarge(&mut self, room: &mut Self::Room) {
        self.used.enlarge(room);
    }

    fn take(&mut self, run: Run) -> Option<IovaRange> {
        let first = self.first_fit(run)?;
        self.cached = self.used.take(run, first);
        Some(run.range(first))
    }

    fn take_within(&mut self, run: Run, window: Window) -> Option<IovaRange> {
        let top = self.used.tree().last_below(IovaPage(window.end));
        let first = self.scan(run, top, window.end, window.floor)?;
        self.used.take(run, first);
        Some(run.range(first))
    }

    /// The cached node stays where it is: a scan steps over the new range like over any other.
    fn take_exactly(&mut self, range: IovaRange) -> Result<(), IovaRange> {
        self.used.take_exactly(range)
    }

    /// Giving back at or above the cached node moves the cache up, past the range.
    fn give(&mut self, range: IovaRange, _kind: AllocKind) {
        let Some(node) = self.used.leaving(range) else {
            return;
        };
        if let Some(cached) = self.cached
            && range.first >= self.used.tree().range(cached).first
        {
            self.cached = self.used.tree().next(node);
        }
        if self.runs.any() {
            let tree = self.used.tree();
            let Window { floor, end } = Window::of(self.used.aperture());
            let below = tree.prev(node).map(|at| tree.range(at).end().0);
            let above = tree.next(node).map(|at| tree.range(at).first.0);
            let bottom = below.map_or(floor, |bottom| bottom.max(floor));
            self.runs.gap(bottom, above.unwrap_or(end));
        }
        self.used.give(node);
    }

    fn holds(&self, range: IovaRange) -> bool {
        self.used.holds(range)
    }

    fn usage(&self) -> Usage {
        self.used.usage()
    }

    fn visited(&self) -> u64 {
        self.visited
    }

    fn audit(&self) -> Result<(), String> {
        self.used.audit()?;
        let Some(cached) = self.cached else {
            return Ok(());
        };
        let range = self.used.tree().range(cached);
        if self.used.tree().find(range.first) != Some(cached) {
            return Err(format!("the cached node {range} is not in the tree"));
        }
        Ok(())
    }

    fn sketch(&self) -> Sketch {
        let tree = self.used.tree();
        let down = core::iter::successors(tree.last(), |at| tree.prev(*at));
        let shown = down.map(|at| tree.range(at));
        let cached = self.cached.map(|at| tree.range(at));
        Sketch::of(tree.len(), "from the top", shown).with_cached_node(cached)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The highest place for `run`, by looking at every gap.
    fn highest(tree: &mut Scan, run: Run) -> Option<u64> {
        let Window { floor, end } = Window::of(tree.used.aperture());
        let last = tree.used.tree().last();
        tree.scan(run, last, end, floor)
    }

    proptest! {
        #[test]
        fn a_run_is_found_at_the_highest_place(
            first in 0..3u64,
            steps in prop::collection::vec((0..4u8, 0..4u32, 1..9u64, any::<prop::sample::Index>()), 1..120),
        ) {
            let mut tree = Scan::new(IovaRange::new(IovaPage(first), PageCount(300)));
            let mut held: Vec<IovaRange> = Vec::new();
            for (what, lg2, count, which) in steps {
                match what {
                    0 if !held.is_empty() => {
                        let gone = held.swap_remove(which.index(held.len()));
                        tree.give(gone, AllocKind::Dynamic);
                    }
                    1 => {
                        let exactly = IovaRange::new(IovaPage(which.index(300) as u64), PageCount(count));
                        if tree.used.aperture().contains(&exactly) && tree.take_exactly(exactly).is_ok() {
                            held.push(exactly);
                        }
                    }
                    what => {
                        let run = Run::new(PageCount(1 << lg2), if what == 2 { count } else { 1 }).unwrap();
                        let expected = highest(&mut tree, run);
                        let taken = tree.take(run);
                        if run.is_single() || !run.pages().is_power_of_two() {
                            prop_assert_eq!(taken.is_some(), expected.is_some());
                        } else {
                            prop_assert_eq!(taken.map(|range| range.first.0), expected);
                        }
                        if let Some(range) = taken {
                            held.extend(run.ranges(range.first.0));
                        }
                    }
                }
                prop_assert!(tree.audit().is_ok());
            }
        }
    }
}
