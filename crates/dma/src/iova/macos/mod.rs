// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Mac OS X's allocators: a buddy allocator up to 512 MiB, a red-black tree above, both logarithmic
//! (ATC'15 §3.4, table 1).
//!
//! # Theory
//!
//! The aperture is cut into *blocks* of 512 MiB, 2^17 pages, aligned. The tree (`Blocks`) owns
//! them. A range of more than a block is a whole number of blocks, since allocations are powers of
//! two, aligned: the tree serves it. Any other lies in one block: the buddy allocator (`Buddy`)
//! serves it from a block that it has, or takes one more from the tree. When all of a block is free
//! again, it goes back, at once, and joins its neighbours: so whatever is free serves any size, and
//! a request fails exactly if there is no place for it. The paper says no more than table 1 does;
//! how the two share the aperture is our choice.
//!
//! Blocks that the aperture has only part of, at its ends, are the buddy's for good, the rest
//! *carved* out of them; so is block 0, for page 0 is not allocated. An aperture of less than 512
//! MiB has none but these, and the tree nothing to do.
//!
//! A range that the caller chose ([`IovaAllocator::reserve`]) may begin and end anywhere and be of
//! any length: whole blocks come from the tree, what is left and right of them is carved out of the
//! buddy's, in at most 34 pieces each. Such ranges, and those of more than a block, are kept in a
//! third tree, by which they are found when they come back or are in the way.
//!
//! Cost: one way down the tree of blocks, 17 halvings, as many joins. Requests with an address
//! mask, a preference or more alignment than their size may have to look through the free nodes and
//! free ranges of the tree; these are counted ([`Effort::scans`]).
//!
//! The range is cut from the top of what serves, and whole blocks from the top of theirs, so that
//! low addresses are left to devices that reach no others; but for the ends of the aperture, which
//! the buddy has from the beginning and uses first: as a rule its lowest 512 MiB.
//!
//! A run of several ranges ([`super::backing::Refill::alloc_run`]) has the place of one range of
//! the next power of two; what it does not need of that stays free. Where there is no such place,
//! single ranges may be left.
//!
//! Invariants (`audit`): each page of the aperture is in exactly one of: a free range of the tree,
//! a node of a block, a whole block of a range of the third tree (page 0 apart); no two buddies,
//! nor neighbours in the tree, are both free; no block of the buddy's is all free.
//!
//! Locking: one lock around everything, as in Mac OS X. It is held for as long as said, and the
//! first time that more is in use than ever before, while slots move to where they have room.
//!
//! Not handled: keeping an emptied block for the next request. It costs two ways down the tree
//! where a block comes and goes with every mapping, as it does when a device has one mapping at a
//! time.

mod audit;
mod blocks;
mod buddy;
mod short;

use super::{
    in_use::InUse,
    locked::{Ranges, Sketch, Taking},
    search::{Run, Window},
    *,
};
use alloc::string::String;
use blocks::Blocks;
use buddy::{BLOCK_LG2, Buddy, Given, State, block_of, block_range, pieces};
use short::{Needs, Short};

pub use buddy::{Effort, Sizes};

/// Pages of a block.
const BLOCK: u64 = 1 << BLOCK_LG2;

/// Mac OS X's allocator.
pub type MacOs<P> = Locked<P, TwoSizes>;

impl<P: Platform> MacOs<P> {
    /// All of `aperture` is free. What of it lies beyond page number 2^64 - 1 is cut off.
    pub fn new(aperture: IovaRange) -> Self {
        Locked::over(aperture, TwoSizes::new)
    }

    /// What requests have cost.
    pub fn effort(&self) -> Effort {
        self.look(|both| both.buddy.effort)
    }

    /// Where its memory goes: it must follow what is allocated.
    pub fn sizes(&self) -> Sizes {
        self.look(|both| both.buddy.sizes())
    }
}

/// What the lock protects.
pub struct TwoSizes {
    aperture: IovaRange,
    /// The blocks that lie in the aperture, without block 0 if page 0 does.
    whole_blocks: IovaRange,
    blocks: Blocks,
    buddy: Buddy,
    /// Chosen ranges, and those of more than a block.
    held: InUse,
    /// Ranges given back that were not allocated as such. Always 0, unless the caller is broken.
    strays: u64,
}

/// A piece of a range, by what serves it.
enum Part {
    /// The tree: whole blocks.
    Whole(IovaRange),
    /// The buddy: pages of this block.
    Within(u64, IovaRange),
}

impl TwoSizes {
    fn new(aperture: IovaRange) -> Self {
        let Window { floor, end } = Window::of(aperture);
        let top = end & !(BLOCK - 1);
        let bottom = floor
            .checked_next_multiple_of(BLOCK)
            .map_or(top, |at| at.min(top));
        let whole_blocks = IovaRange::new(IovaPage(bottom), PageCount(top - bottom));
        let mut all = TwoSizes {
            aperture,
            whole_blocks,
            blocks: Blocks::new(),
            buddy: Buddy::new(),
            held: InUse::new(aperture),
            strays: 0,
        };
        let pages = PageCount(end.saturating_sub(floor));
        for part in all.parts(IovaRange::new(IovaPage(floor), pages)) {
            match part {
                Part::Whole(range) => all.blocks.give(range),
                Part::Within(block, range) => all.add_part(block, range),
            }
        }
        all
    }

    /// A block for good, of which only `range` is ours.
    fn add_part(&mut self, block: u64, range: IovaRange) {
        let first = block << BLOCK_LG2;
        let below = range.first.0 - first;
        let above = BLOCK - below - range.pages.0;
        self.buddy.add(block);
        let below = IovaRange::new(IovaPage(first), PageCount(below));
        let above = IovaRange::new(range.end(), PageCount(above));
        for piece in pieces(below).chain(pieces(above)) {
            self.claim(piece, State::Carved);
        }
    }

    /// From the bottom up: at most one part in the block where `range` begins, whole blocks, and
    /// one where it ends; with an end of the aperture in a block of its own, one more each. Without
    /// page 0, which no part serves.
    fn parts(&self, range: IovaRange) -> impl Iterator<Item = Part> + use<> {
        let (mut first, end) = (range.first.0.max(1), range.end().0);
        let whole = self.whole_blocks;
        core::iter::from_fn(move || {
            let left = end.checked_sub(first).filter(|left| *left > 0)?;
            let here = IovaPage(first);
            let in_blocks = here >= whole.first && here < whole.end();
            let blocks = left.min(whole.end().0.saturating_sub(first)) & !(BLOCK - 1);
            let range = |pages| IovaRange::new(here, PageCount(pages));
            let part = if in_blocks && first.is_multiple_of(BLOCK) && blocks > 0 {
                Part::Whole(range(blocks))
            } else {
                let in_block = BLOCK - first % BLOCK;
                Part::Within(block_of(here), range(left.min(in_block)))
            };
            let (Part::Whole(range) | Part::Within(_, range)) = &part;
            first = range.end().0;
            Some(part)
        })
    }

    /// The place of a run.
    fn find(&mut self, run: Run, window: Window) -> Option<u64> {
        let whole = Window::of(self.aperture);
        let in_buddy = if run.pages() <= BLOCK {
            self.buddy.find(run, window, whole)
        } else {
            None
        };
        in_buddy.or_else(|| {
            let effort = &mut self.buddy.effort;
            self.blocks.find(run, window, whole, effort)
        })
    }

    /// Takes the range at a place that was found.
    fn take_at(&mut self, range: IovaRange) {
        if range.pages.0 <= BLOCK {
            self.fetch(block_of(range.first));
            let lg2 = range.pages.0.trailing_zeros();
            self.claim((range.first.0, lg2), State::Allocated);
        } else {
            self.take_blocks(range);
            self.strays += u64::from(self.held.take_exactly(range).is_err());
        }
    }

    /// Sees to it that the buddy has that block.
    fn fetch(&mut self, block: u64) {
        if !self.buddy.has(block) {
            self.take_blocks(block_range(block));
            self.buddy.add(block);
        }
    }

    /// The caller knows that they are free; if they are not, the audit will tell.
    fn take_blocks(&mut self, range: IovaRange) {
        self.strays += u64::from(self.blocks.take(range).is_none());
    }

    /// As [`take_blocks`](Self::take_blocks), for a piece of a block.
    fn claim(&mut self, piece: (u64, u32), state: State) {
        self.strays += u64::from(self.buddy.claim(piece, state).is_none());
    }

    fn give_back(&mut self, piece: (u64, u32), state: State) {
        match self.buddy.give(piece, state) {
            Some(Given::Kept) => {}
            Some(Given::Emptied(block)) => self.blocks.give(block_range(block)),
            None => self.strays += 1,
        }
    }

    /// Some allocation that overlaps `range`.
    fn in_the_way(&self, range: IovaRange) -> Option<IovaRange> {
        let tree = self.held.tree();
        if let Some(held) = tree.overlapping(range) {
            return Some(tree.range(held));
        }
        self.parts(range).find_map(|part| match part {
            // a block that the buddy has is not all free
            Part::Whole(blocks) => {
                let block = self
                    .buddy
                    .any_of(block_of(blocks.first), block_of(blocks.end()))?;
                self.buddy.in_the_way(block_range(block))
            }
            Part::Within(_, range) => self.buddy.in_the_way(range),
        })
    }
}

impl Ranges for TwoSizes {
    const NAME: &'static str = "macos";
    type Room = Short;

    #[inline]
    fn has_room(&self, what: &Taking) -> bool {
        Needs::of(self, what).are_met(self)
    }
    fn short(&self, what: &Taking) -> Short {
        Needs::of(self, what).short(self)
    }
    fn enlarge(&mut self, room: &mut Short) {
        room.enlarge(self);
    }

    fn take(&mut self, run: Run) -> Option<IovaRange> {
        self.take_within(run, Window::of(self.aperture))
    }

    fn take_within(&mut self, run: Run, window: Window) -> Option<IovaRange> {
        let first = self.find(run, window)?;
        run.ranges(first).for_each(|range| self.take_at(range));
        Some(run.range(first))
    }

    fn take_exactly(&mut self, range: IovaRange) -> Result<(), IovaRange> {
        if let Some(taken) = self.in_the_way(range) {
            return Err(taken);
        }
        self.held.take_exactly(range)?;
        for part in self.parts(range) {
            match part {
                Part::Whole(blocks) => self.take_blocks(blocks),
                Part::Within(block, range) => {
                    self.fetch(block);
                    pieces(range).for_each(|piece| self.claim(piece, State::Carved));
                }
            }
        }
        Ok(())
    }

    fn give(&mut self, range: IovaRange, kind: AllocKind) {
        if kind == AllocKind::Dynamic && range.pages.0 <= BLOCK {
            let lg2 = range.pages.0.trailing_zeros();
            return self.give_back((range.first.0, lg2), State::Allocated);
        }
        // counted as a stray by itself where there is none
        let Some(held) = self.held.leaving(range) else {
            return;
        };
        self.held.give(held);
        for part in self.parts(range) {
            match part {
                Part::Whole(blocks) => self.blocks.give(blocks),
                Part::Within(_, range) => {
                    pieces(range).for_each(|piece| self.give_back(piece, State::Carved));
                }
            }
        }
    }

    fn holds(&self, range: IovaRange) -> bool {
        let lg2 = range.pages.0.trailing_zeros();
        self.held.holds(range)
            || range.pages.0.is_power_of_two()
                && lg2 <= BLOCK_LG2
                && self.buddy.holds(range.first.0, lg2)
    }

    fn usage(&self) -> Usage {
        let allocated = self.held.usage().allocated.0 + self.buddy.allocated().pages;
        Usage {
            aperture: self.aperture.pages,
            free: PageCount(self.aperture.pages.0 - allocated),
            allocated: PageCount(allocated),
            ..Usage::default()
        }
    }

    fn visited(&self) -> u64 {
        self.buddy.effort.looked + self.buddy.effort.descended
    }

    fn audit(&self) -> Result<(), String> {
        self.check()
    }

    fn sketch(&self) -> Sketch {
        let tree = self.held.tree();
        let up = core::iter::successors(tree.first(), |at| tree.next(*at));
        let ranges = tree.len() + self.buddy.allocated().ranges;
        let shown = up.map(|at| tree.range(at));
        Sketch::of(ranges, "chosen and large ones from the bottom", shown)
    }
}
