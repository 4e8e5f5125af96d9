// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Whole blocks that are free, in two red-black trees: by address, to join neighbours, and by size,
//! to find a place.
//!
//! *Size* is that of the largest aligned block, as in [`super::super::lists`]: the first range of
//! that size or more serves, so taking and giving back cost a few ways down two trees. Limits that
//! exclude it make the search walk along the addresses.

use super::{
    super::{
        lists::list_of,
        search::{Run, Window},
        tree::{Link, Node, RangeTree},
    },
    buddy::{BLOCK_LG2, Effort, block_of},
};
use crate::{platform::room::Larger, units::*};
use alloc::{format, string::String};

/// For the two trees.
pub(super) type Room = [Option<Larger<Node<()>>>; 2];

pub(super) struct Blocks {
    by_place: RangeTree,
    /// The same blocks, by [`key`].
    by_size: RangeTree,
    free: u64,
}

/// Block numbers have fewer than 48 bits, sizes 6: their pair is a number that sorts as it should.
fn key(lg2: u32, block: u64) -> IovaPage {
    IovaPage(u64::from(lg2) << (u64::BITS - BLOCK_LG2) | block)
}

impl Blocks {
    pub(super) fn new() -> Self {
        Blocks {
            by_place: RangeTree::new(),
            by_size: RangeTree::new(),
            free: 0,
        }
    }

    /// Whether this many free ranges have room.
    #[inline]
    pub(super) fn has_room(&self, ranges: usize) -> bool {
        self.by_place.has_room(ranges) && self.by_size.has_room(ranges)
    }
    /// What is needed to have this many free ranges.
    pub(super) fn short(&self, ranges: usize) -> Room {
        [&self.by_place, &self.by_size].map(|tree| tree.short(ranges))
    }
    /// Grows into what was allocated.
    pub(super) fn enlarge(&mut self, room: &mut Room) {
        for (tree, room) in [&mut self.by_place, &mut self.by_size]
            .into_iter()
            .zip(room)
        {
            tree.enlarge(room);
        }
    }

    pub(super) fn free(&self) -> PageCount {
        PageCount(self.free)
    }

    /// The highest place for `run`, in the smallest range that serves unless
    /// limits want it otherwise.
    pub(super) fn find(
        &self,
        run: Run,
        window: Window,
        whole: Window,
        effort: &mut Effort,
    ) -> Option<u64> {
        let mut room = |range: IovaRange| {
            effort.looked += 1;
            let (bottom, top) = (range.first.0, range.end().0);
            run.highest(bottom.max(window.floor), top.min(window.end))
        };
        let lg2 = run.align_lg2().max(BLOCK_LG2);
        let instant = self.by_size.first_from(key(lg2, 0)).and_then(|at| {
            let block = self.by_size.range(at).first.0 & (key(1, 0).0 - 1);
            self.by_place.find(IovaPage(block << BLOCK_LG2))
        });
        let first = instant.and_then(|at| room(self.by_place.range(at)));
        // no larger block anywhere: none serves, but for limits
        if first.is_some() || (window == whole && lg2 <= run.pages().ilog2().max(BLOCK_LG2)) {
            return first;
        }
        effort.scans += 1;
        let all = core::iter::successors(self.by_place.first(), |at| self.by_place.next(*at));
        all.map(|at| self.by_place.range(at))
            .take_while(|range| range.first.0 < window.end)
            .find_map(room)
    }

    /// Takes whole blocks, which are free. `None` if they are not.
    pub(super) fn take(&mut self, range: IovaRange) -> Option<()> {
        let at = self.by_place.overlapping(range)?;
        let whole = self.by_place.range(at);
        if !whole.contains(&range) {
            return None;
        }
        self.remove(at);
        self.insert(whole.first, range.first);
        self.insert(range.end(), whole.end());
        Some(())
    }

    /// Takes whole blocks back and joins them with their neighbours.
    pub(super) fn give(&mut self, range: IovaRange) {
        let (mut first, mut end) = (range.first, range.end());
        let above = self.by_place.first_from(range.first);
        let below = match above {
            Some(above) => self.by_place.prev(above),
            None => self.by_place.last(),
        };
        for neighbour in [below, above].into_iter().flatten() {
            let here = self.by_place.range(neighbour);
            if here.end() == first || here.first == end {
                self.remove(neighbour);
                (first, end) = (first.min(here.first), end.max(here.end()));
            }
        }
        self.insert(first, end);
    }

    fn insert(&mut self, first: IovaPage, end: IovaPage) {
        let range = IovaRange::new(first, PageCount(end.0 - first.0));
        if range.pages.0 > 0 {
            self.by_place.insert(range);
            self.by_size.insert(key_of(range));
            self.free += range.pages.0;
        }
    }

    fn remove(&mut self, at: Link) {
        let range = self.by_place.range(at);
        self.free -= range.pages.0;
        self.by_place.remove(at);
        if let Some(at) = self.by_size.find(key_of(range).first) {
            self.by_size.remove(at);
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        self.by_place.check()?;
        self.by_size.check()?;
        let (mut free, mut end) = (0, None);
        let all = core::iter::successors(self.by_place.first(), |at| self.by_place.next(*at));
        for range in all.map(|at| self.by_place.range(at)) {
            if end == Some(range.first) || (range.first.0 | range.pages.0) % (1 << BLOCK_LG2) != 0 {
                return Err(format!("{range} is free, after {end:?}"));
            }
            if self.by_size.find(key_of(range).first).is_none() {
                return Err(format!("{range} is not in the tree by size"));
            }
            (free, end) = (free + range.pages.0, Some(range.end()));
        }
        let lens = (self.by_place.len(), self.by_size.len());
        if lens.0 != lens.1 || free != self.free {
            return Err(format!(
                "{free} pages free of {}, in {lens:?} ranges",
                self.free
            ));
        }
        Ok(())
    }
}

/// What stands for a free range in the tree by size.
fn key_of(range: IovaRange) -> IovaRange {
    let lg2 = list_of(range).unwrap_or(0);
    IovaRange::new(key(lg2, block_of(range.first)), PageCount(1))
}
