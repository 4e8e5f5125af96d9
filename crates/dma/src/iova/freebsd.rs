// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! FreeBSD's way to search: the tree of ranges in use knows how large the gaps below each node are
//! (ATC'15 §3.4, table 1).
//!
//! # Theory
//!
//! The tree is that of `rbtree`, with a summary in each node: where its subtree begins and ends,
//! and the *room* in it, the largest naturally aligned block that some gap between two ranges of
//! the subtree holds. First fit by address goes down from the root: to the left if there is enough
//! room, else to the gap on either side of the node, else to the right. A summary that promises
//! room is kept, so nothing is tried in vain: a search looks at two nodes a level, whatever was
//! freed before. There is no cached node, and nothing that makes a search linear.
//!
//! Addresses are given out from the low end upwards (`rbtree`: from the high end downwards). So a
//! 32-bit preference is met by every request anyway, and a mask only ends the search: if the lowest
//! place is beyond it, there is none below.
//!
//! A place aligned to more than the run's size may exist in gaps whose room is less. It is looked
//! for where there is room for the whole step first, which is logarithmic, and only where that
//! fails in each gap that has room for the run, which may be all of them.
//!
//! Differences to FreeBSD: ranges are powers of two, naturally aligned ([`granted`]), so that
//! magazines can go over them, where FreeBSD gives what is asked for; and room counts aligned
//! blocks, where FreeBSD's tree counts pages and its search goes on where a gap that is long enough
//! cannot hold an aligned range.
//!
//! Invariants ([`IovaAllocator::audit`]): those of the tree, whose summaries are recomputed.
//!
//! Locking: one lock around everything ([`Locked`]), held for work that is logarithmic in the
//! number of ranges, but for the case above and the growth of the slab. A search recurs as deep as
//! the tree is, at most 64 levels.

use super::{
    in_use::InUse,
    locked::{Ranges, Sketch, Taking},
    search::{Run, Window},
    tree::{Augment, Link, Node},
    *,
};
use crate::platform::room::Larger;
use alloc::string::String;

/// FreeBSD's allocator: first fit in a tree that knows its gaps, under one lock.
pub type Freebsd<P> = Locked<P, Gaps>;

/// Ranges in use, in a tree that knows the gaps between them.
pub struct Gaps {
    used: InUse<Summary>,
    /// Nodes whose summaries searches have looked at, ever.
    visited: u64,
}

/// What a node knows of its subtree.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Where the lowest range begins.
    low: u64,
    /// Where the highest range ends.
    high: u64,
    /// The largest of the gaps in between.
    room: Room,
}

/// The largest naturally aligned block in a gap: 0 for none, else 1 + log2 of its pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Room(u8);

impl Room {
    const NONE: Room = Room(0);

    /// For one block of 2^`lg2` pages.
    fn of_block(lg2: u32) -> Self {
        Room(1 + lg2 as u8) // lg2 < 64
    }

    /// Between `bottom` and `top`.
    fn between(bottom: u64, top: u64) -> Self {
        let Some(lg2) = top.checked_sub(bottom).and_then(u64::checked_ilog2) else {
            return Room::NONE;
        };
        let first = bottom.checked_next_multiple_of(1 << lg2);
        let end = first.and_then(|first| first.checked_add(1 << lg2));
        match end {
            Some(end) if end <= top => Room::of_block(lg2),
            // 2^lg2 pages or more, wherever they begin, hold an aligned half of that
            _ => Room(lg2 as u8),
        }
    }
}

impl Augment for Summary {
    fn of(range: IovaRange, left: Option<Self>, right: Option<Self>) -> Self {
        let (first, end) = (range.first.0, range.end().0);
        let (low, below) = left.map_or((first, Room::NONE), |left| {
            (left.low, left.room.max(Room::between(left.high, first)))
        });
        let (high, above) = right.map_or((end, Room::NONE), |right| {
            (right.high, right.room.max(Room::between(end, right.low)))
        });
        Summary {
            low,
            high,
            room: below.max(above),
        }
    }
}

/// What is searched for, and the room without which a subtree is left out.
struct Wanted {
    run: Run,
    window: Window,
    room: Room,
}

impl Wanted {
    /// The lowest place in the gap from `bottom` to `top`.
    fn fit(&self, bottom: u64, top: u64) -> Option<u64> {
        let Window { floor, end } = self.window;
        self.run.lowest(bottom.max(floor), top.min(end))
    }
    /// Whether a gap between two ranges of the subtree may hold a place.
    fn may_be_in(&self, subtree: Summary) -> bool {
        let Window { floor, end } = self.window;
        subtree.room >= self.room && subtree.high > floor && subtree.low < end
    }
}

impl<P: Platform> Freebsd<P> {
    /// All of `aperture` is free. What of it lies beyond page number 2^64 - 1 is cut off.
    pub fn new(aperture: IovaRange) -> Self {
        Locked::over(aperture, |aperture| Gaps {
            used: InUse::new(aperture),
            visited: 0,
        })
    }
}

impl Gaps {
    /// The lowest place in the gaps that have room for a whole step of the alignment, else in any.
    fn find(&mut self, run: Run, window: Window) -> Option<u64> {
        let sure = Room::of_block(run.align_lg2());
        let least = Room::of_block(run.pages().ilog2());
        let wanted = |room| Wanted { run, window, room };
        self.first_fit(&wanted(sure)).or_else(|| {
            (least < sure)
                .then(|| self.first_fit(&wanted(least)))
                .flatten()
        })
    }

    fn first_fit(&mut self, wanted: &Wanted) -> Option<u64> {
        let Window { floor, end } = wanted.window;
        let Some(root) = self.used.tree().root() else {
            return wanted.fit(floor, end);
        };
        let Summary { low, high, .. } = self.used.tree().sum(root);
        wanted
            .fit(floor, low)
            .or_else(|| self.first_fit_below(root, wanted))
            .or_else(|| wanted.fit(high, end))
    }

    /// In a gap between two ranges of the subtree under `at`.
    fn first_fit_below(&mut self, at: Link, wanted: &Wanted) -> Option<u64> {
        self.visited += 1;
        let tree = self.used.tree();
        if !wanted.may_be_in(tree.sum(at)) {
            return None;
        }
        let range = tree.range(at);
        let (left, right) = (tree.left(at), tree.right(at));
        let left = left.map(|at| (at, tree.sum(at).high));
        let right = right.map(|at| (at, tree.sum(at).low));
        let lower = left.and_then(|(at, high)| {
            let found = self.first_fit_below(at, wanted);
            found.or_else(|| wanted.fit(high, range.first.0))
        });
        lower.or_else(|| {
            let (at, low) = right?;
            let found = wanted.fit(range.end().0, low);
            found.or_else(|| self.first_fit_below(at, wanted))
        })
    }
}

impl Ranges for Gaps {
    const NAME: &'static str = "freebsd";
    type Room = Option<Larger<Node<Summary>>>;

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
        self.take_within(run, Window::of(self.used.aperture()))
    }

    fn take_within(&mut self, run: Run, window: Window) -> Option<IovaRange> {
        let first = self.find(run, window)?;
        self.used.take(run, first);
        Some(run.range(first))
    }

    fn take_exactly(&mut self, range: IovaRange) -> Result<(), IovaRange> {
        self.used.take_exactly(range)
    }

    fn give(&mut self, range: IovaRange, _kind: AllocKind) {
        if let Some(node) = self.used.leaving(range) {
            self.used.give(node);
        }
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
        self.used.audit()
    }

    fn sketch(&self) -> Sketch {
        let tree = self.used.tree();
        let up = core::iter::successors(tree.first(), |at| tree.next(*at));
        Sketch::of(tree.len(), "from the bottom", up.map(|at| tree.range(at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn room_is_that_of_the_largest_aligned_block(bottom in 0u64..300, len in 0u64..300) {
            let top = bottom + len;
            let holds = |lg2: &u32| {
                (bottom..top).any(|at| at.is_multiple_of(1 << lg2) && at + (1 << lg2) <= top)
            };
            let largest = (0..10).rev().find(holds);
            let expected = largest.map_or(Room::NONE, Room::of_block);
            prop_assert!(Room::between(bottom, top) == expected);
        }
    }

    #[test]
    fn room_at_the_end_of_numbers_does_not_wrap() {
        assert!(Room::between(u64::MAX - 7, u64::MAX) == Room::of_block(2));
        assert!(Room::between(u64::MAX - 8, u64::MAX) == Room::of_block(2));
        assert!(Room::between(0, u64::MAX) == Room::of_block(63));
        assert!(Room::between(9, 8) == Room::NONE);
    }
}
