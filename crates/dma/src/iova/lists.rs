// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Free lists by the block that a free range is good for, and the bitmap of those that are not
//! empty.
//!
//! List n has the ranges whose *largest naturally aligned block* has 2^n pages. What is allocated
//! is a power of two, aligned, so any range of the first list from log2 of the size on serves, and
//! where there is none, none fits.

use super::slots::*;
use crate::units::*;

/// One list for each power of two of pages.
const LISTS: usize = 64;

pub(super) struct FreeLists {
    heads: [Link; LISTS],
    /// Bit n: list n is not empty.
    filled: u64,
}

/// Where to look for a place.
#[derive(Clone, Copy)]
pub(super) struct Lists {
    /// The first range of the first list from this on is looked at before all others.
    pub(super) instant: u32,
    /// The first list in which there may be a place.
    pub(super) least: u32,
    /// The first list from which on there is none if that one has none.
    pub(super) end: u32,
}

/// Log2 of the largest naturally aligned block in `range`, page 0 not counted; `None` where
/// there is nothing left.
///
/// A range of 2^n pages or more, but fewer than 2^(n + 1), holds a block of 2^n pages or, wherever
/// it begins, one of 2^(n - 1).
pub(super) fn list_of(range: IovaRange) -> Option<u32> {
    let (first, end) = (range.first.0.max(1), range.end().0);
    let lg2 = end.checked_sub(first)?.checked_ilog2()?;
    let block = 1u64 << lg2;
    let aligned = first.checked_next_multiple_of(block);
    let fits = aligned.is_some_and(|at| at <= end - block);
    Some(if fits { lg2 } else { lg2 - 1 })
}

impl FreeLists {
    pub(super) fn new() -> Self {
        FreeLists {
            heads: [NIL; LISTS],
            filled: 0,
        }
    }

    /// The first thing for which `room` finds a place. `scans` grows where the first one looked at
    /// has none, and there are others.
    pub(super) fn find<T>(
        &self,
        things: &Slots<T>,
        lists: Lists,
        scans: &mut u64,
        mut room: impl FnMut(&T) -> Option<u64>,
    ) -> Option<(Link, u64)> {
        let mut look = |at: Link| room(things.at(at)).map(|first| (at, first));
        let instant = self.first_from(lists.instant);
        if let Some(found) = instant.and_then(&mut look) {
            return Some(found);
        }
        let mut all = self
            .filled(lists.least, lists.end)
            .flat_map(|list| self.list(list, things))
            .filter(|at| Some(*at) != instant)
            .peekable();
        all.peek()?;
        *scans += 1;
        all.find_map(look)
    }

    /// The first thing of the first list from `lg2` on that is not empty: a few
    /// instructions, whatever there is.
    fn first_from(&self, lg2: u32) -> Option<Link> {
        let from = self.filled & u64::MAX.checked_shl(lg2)?;
        self.heads.get(from.trailing_zeros() as usize)?.some()
    }

    /// The numbers of the lists from `lg2` up to but not including `end` that are not empty.
    pub(super) fn filled(&self, lg2: u32, end: u32) -> impl Iterator<Item = u32> + use<> {
        let filled = self.filled;
        (lg2..end.min(LISTS as u32)).filter(move |list| filled >> list & 1 == 1)
    }

    /// The things in one list.
    pub(super) fn list<T>(&self, list: u32, things: &Slots<T>) -> impl Iterator<Item = Link> {
        let head = self.heads[list as usize].some();
        core::iter::successors(head, |at| things.next(*at).some())
    }

    /// Adds a thing at the head of a list: what came back last goes out first.
    pub(super) fn add<T>(&mut self, things: &mut Slots<T>, list: u32, at: Link) {
        let next = core::mem::replace(&mut self.heads[list as usize], at);
        if let Some(next) = next.some() {
            things.set_prev(next, at);
        }
        things.set_next(at, next);
        things.set_prev(at, NIL);
        self.filled |= 1 << list;
    }

    /// Removes a thing from its list.
    pub(super) fn remove<T>(&mut self, things: &mut Slots<T>, list: u32, at: Link) {
        let (prev, next) = (things.prev(at), things.next(at));
        if let Some(next) = next.some() {
            things.set_prev(next, prev);
        }
        match prev.some() {
            Some(prev) => things.set_next(prev, next),
            None => self.heads[list as usize] = next,
        }
        if self.heads[list as usize] == NIL {
            self.filled &= !(1 << list);
        }
    }

    /// How many things there are in lists, if the bitmap says which lists have any, links go both
    /// ways, and each thing is in the list where `origin` says it is; else what is not so.
    pub(super) fn count<T>(
        &self,
        things: &Slots<T>,
        origin: impl Fn(&T) -> Option<u32>,
    ) -> Result<usize, alloc::string::String> {
        let mut count = 0;
        for list in 0..LISTS as u32 {
            if (self.heads[list as usize] != NIL) != (self.filled >> list & 1 == 1) {
                return Err(alloc::format!("the bitmap is wrong about free list {list}"));
            }
            let mut prev = NIL;
            for at in self.list(list, things) {
                count += 1;
                if things.prev(at) != prev
                    || origin(things.at(at)) != Some(list)
                    || count > things.len()
                {
                    return Err(alloc::format!("{at:?} is wrongly in free list {list}"));
                }
                prev = at;
            }
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_list_is_that_of_the_largest_aligned_block(first in 0u64..200, pages in 0u64..200) {
            let end = first + pages;
            let holds = |lg2: &u32| {
                (first.max(1)..end).any(|at| at.is_multiple_of(1 << lg2) && at + (1 << lg2) <= end)
            };
            let range = IovaRange::new(IovaPage(first), PageCount(pages));
            prop_assert_eq!(list_of(range), (0..10).filter(holds).max());
        }
    }

    #[test]
    fn the_end_of_numbers_has_lists_too() {
        let list =
            |first: u64, pages: u64| list_of(IovaRange::new(IovaPage(first), PageCount(pages)));
        assert_eq!(list(1, u64::MAX - 1), Some(62));
        assert_eq!(list(0, u64::MAX), Some(62));
        assert_eq!(list(u64::MAX - 4, 4), Some(1));
        assert_eq!(list(1 << 63, (1 << 63) - 1), Some(62));
        assert_eq!(list(u64::MAX, 0), None);
    }
}
