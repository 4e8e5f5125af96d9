// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The mapped pages of all devices, with a bit for each fact that steps need.
//!
//! *Block*: 64 pages that begin at a multiple of 64, one word of bits a fact. A block
//! exists while one of its pages is mapped. Long mappings are kept as runs instead;
//! the first access in a run turns the 64 pages around it into a block. Of any such 64
//! pages, all that are mapped are in a block, or all in runs. So memory follows the mappings and
//! the pages accessed, and not the page counts in the trace.
//!
//! *Slot*: number of a block * 64 + bit: stands for a page until its block goes.

use crate::cache::{Span, Tag};
use crate::runs::Runs;
use crate::step::flag;
use std::collections::BTreeMap;

/// Mappings above this many pages are kept as runs.
const LONG_PAGES: u64 = 1024;

/// Blocks that are found without a search; a power of two.
const RECENT: usize = 1 << 14;

/// No block: more than fit in memory.
const NONE: u32 = u32::MAX;

type Key = (u32, u64);

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    mapped: u64,
    streaming: u64,
    /// Pages that were accessed since they were mapped.
    accessed: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    index: BTreeMap<Key, u32>,
    blocks: Vec<Block>,
    free: Vec<u32>,
    /// Direct-mapped, a shortcut to `index`.
    recent: Vec<(Key, u32)>,
    /// Pages in no block; the value is whether they are streaming.
    long: Vec<Runs<bool>>,
}

/// What is known of a mapped page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    /// [`flag::STREAMING`], `NEXT`, `PREVIOUS`, `FIRST`.
    pub flags: u64,
    pub slot: u64,
}

impl Blocks {
    pub fn new(devices: usize) -> Self {
        Self {
            index: BTreeMap::new(),
            blocks: Vec::new(),
            free: Vec::new(),
            recent: vec![((0, 0), NONE); RECENT],
            long: vec![Runs::default(); devices],
        }
    }

    /// Maps the pages; returns how many were mapped before.
    pub fn map(&mut self, span: Span, streaming: bool) -> u64 {
        if span.last - span.first < LONG_PAGES {
            return self.map_in_blocks(span, streaming);
        }
        // Only whole blocks' worth of pages goes to the run: what is left at the ends may
        // be in a block with other mappings.
        let whole = Span {
            first: span.first.next_multiple_of(64),
            last: (span.last + 1) / 64 * 64 - 1,
            ..span
        };
        let mut replaced = self.unmap(whole);
        self.long[span.device as usize].insert(whole.first, whole.last, streaming);
        if span.first < whole.first {
            let last = whole.first - 1;
            replaced += self.map_in_blocks(Span { last, ..span }, streaming);
        }
        if whole.last < span.last {
            let first = whole.last + 1;
            replaced += self.map_in_blocks(Span { first, ..span }, streaming);
        }
        replaced
    }

    fn map_in_blocks(&mut self, span: Span, streaming: bool) -> u64 {
        let mut replaced = 0;
        for (key, mask) in pieces(span) {
            let at = self.find(key).unwrap_or_else(|| self.create(key));
            let block = &mut self.blocks[at as usize];
            replaced += u64::from((block.mapped & mask).count_ones());
            block.set(mask, streaming);
        }
        replaced
    }

    /// Unmaps the pages; returns how many were mapped.
    pub fn unmap(&mut self, span: Span) -> u64 {
        let Span {
            device,
            first,
            last,
        } = span;
        let mut removed = self.long[device as usize].take(first, last, |_, _, _| {}).0;
        if last - first < LONG_PAGES {
            for (key, mask) in pieces(span) {
                removed += self.clear(key, mask);
            }
        } else {
            let ends = (device, last / 64);
            let from = |key| ((device, key) <= ends).then_some((device, key));
            let mut next = from(first / 64);
            while let Some(start) = next
                && let Some((&key, _)) = self.index.range(start..=ends).next()
            {
                let low = first.max(key.1 * 64) % 64;
                let high = last.min(key.1 * 64 + 63) % 64;
                removed += self.clear(key, mask(low, high));
                next = from(key.1 + 1);
            }
        }
        removed
    }

    /// Looks an accessed page up; `None` if it is not mapped.
    #[inline]
    pub fn access(&mut self, tag: Tag) -> Option<Look> {
        let (key, bit) = ((tag.device, tag.page / 64), tag.page % 64);
        let at = self.find(key)?;
        let block = &mut self.blocks[at as usize];
        let mask = 1 << bit;
        if block.mapped & mask == 0 {
            return None;
        }
        let mut flags = 0;
        let mut flag_if = |condition: bool, flag: u64| flags |= if condition { flag } else { 0 };
        flag_if(block.streaming & mask != 0, flag::STREAMING);
        flag_if(block.accessed & mask == 0, flag::FIRST);
        block.accessed |= mask;
        let mapped = block.mapped;
        let next = if bit < 63 {
            mapped & mask << 1 != 0
        } else {
            self.is_mapped(tag.device, tag.page + 1)
        };
        let previous = match (bit, tag.page) {
            (1.., _) => mapped & mask >> 1 != 0,
            (_, 0) => false,
            (_, page) => self.is_mapped(tag.device, page - 1),
        };
        flag_if(next, flag::NEXT);
        flag_if(previous, flag::PREVIOUS);
        let slot = u64::from(at) * 64 + bit;
        Some(Look { flags, slot })
    }

    /// Whether any page of the span is mapped.
    pub fn overlap(&self, span: Span) -> bool {
        let Span {
            device,
            first,
            last,
        } = span;
        let mut blocks = self.index.range((device, first / 64)..=(device, last / 64));
        let in_block = |(&(_, key), &at): (&Key, &u32)| {
            let from = first.max(key * 64) % 64;
            let to = last.min(key * 64 + 63) % 64;
            self.blocks[at as usize].mapped & mask(from, to) != 0
        };
        self.long[device as usize].overlap(first, last) || blocks.any(in_block)
    }

    fn is_mapped(&mut self, device: u32, page: u64) -> bool {
        match self.lookup((device, page / 64)) {
            Some(at) => self.blocks[at as usize].mapped & 1 << (page % 64) != 0,
            None => self.long[device as usize].get(page).is_some(),
        }
    }

    /// The block, made if a run reaches into it.
    #[inline]
    fn find(&mut self, key: Key) -> Option<u32> {
        self.lookup(key).or_else(|| self.cut_from_run(key))
    }

    fn cut_from_run(&mut self, key: Key) -> Option<u32> {
        let (device, first) = (key.0 as usize, key.1 * 64);
        let last = first + 63;
        if !self.long[device].overlap(first, last) {
            return None;
        }
        let mut block = Block::default();
        self.long[device].take(first, last, |from, to, streaming| {
            block.set(mask(from % 64, to % 64), streaming);
        });
        let at = self.create(key);
        self.blocks[at as usize] = block;
        Some(at)
    }

    #[inline]
    fn lookup(&mut self, key: Key) -> Option<u32> {
        let place = place(key);
        let (recent, at) = self.recent[place];
        if recent == key && at != NONE {
            return Some(at);
        }
        let &at = self.index.get(&key)?;
        self.recent[place] = (key, at);
        Some(at)
    }

    fn create(&mut self, key: Key) -> u32 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.blocks.push(Block::default());
            (self.blocks.len() - 1) as u32
        });
        self.blocks[at as usize] = Block::default();
        self.index.insert(key, at);
        self.recent[place(key)] = (key, at);
        at
    }

    /// Unmaps pages of a block, if there is one; returns how many were mapped.
    fn clear(&mut self, key: Key, mask: u64) -> u64 {
        let Some(at) = self.lookup(key) else {
            return 0;
        };
        let block = &mut self.blocks[at as usize];
        let removed = (block.mapped & mask).count_ones();
        block.mapped &= !mask;
        block.accessed &= !mask;
        if block.mapped == 0 {
            self.index.remove(&key);
            self.free.push(at);
            self.recent[place(key)] = (key, NONE);
        }
        u64::from(removed)
    }
}

impl Block {
    fn set(&mut self, mask: u64, streaming: bool) {
        self.mapped |= mask;
        self.accessed &= !mask;
        if streaming {
            self.streaming |= mask;
        } else {
            self.streaming &= !mask;
        }
    }
}

/// Bits `from` to `to`.
fn mask(from: u64, to: u64) -> u64 {
    u64::MAX >> (63 - to) & u64::MAX << from
}

/// The blocks that a span touches, each with the bits of its pages.
fn pieces(span: Span) -> impl Iterator<Item = (Key, u64)> {
    (span.first / 64..=span.last / 64).map(move |key| {
        let from = span.first.max(key * 64) % 64;
        let to = span.last.min(key * 64 + 63) % 64;
        ((span.device, key), mask(from, to))
    })
}

#[inline]
fn place((device, key): Key) -> usize {
    // Multiplicative hashing: the high bits depend on all below.
    let mixed = (key ^ u64::from(device) << 46).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (64 - RECENT.trailing_zeros())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(first: u64, last: u64) -> Span {
        Span {
            device: 0,
            first,
            last,
        }
    }

    fn look(blocks: &mut Blocks, page: u64) -> Option<u64> {
        let tag = Tag { device: 0, page };
        blocks.access(tag).map(|look| look.flags)
    }

    #[test]
    fn neighbours_are_seen_across_blocks() {
        let mut blocks = Blocks::new(1);
        assert_eq!(blocks.map(span(62, 64), false), 0);
        let (next, previous) = (flag::NEXT, flag::PREVIOUS);
        assert_eq!(look(&mut blocks, 63), Some(flag::FIRST | next | previous));
        assert_eq!(look(&mut blocks, 64), Some(flag::FIRST | previous));
        assert_eq!(look(&mut blocks, 64), Some(previous));
        assert_eq!(look(&mut blocks, 65), None);
        assert_eq!(blocks.unmap(span(63, 63)), 1);
        assert_eq!(look(&mut blocks, 64), Some(0));
        assert_eq!(blocks.map(span(0, 64), true), 2);
        let mapped_over = flag::FIRST | flag::STREAMING | previous;
        assert_eq!(look(&mut blocks, 64), Some(mapped_over));
        assert_eq!(
            look(&mut blocks, 0),
            Some(flag::FIRST | flag::STREAMING | next)
        );
    }

    #[test]
    fn long_mappings_are_runs_until_accessed() {
        let mut blocks = Blocks::new(1);
        let last = (1 << 52) - 1;
        assert_eq!(blocks.map(span(0, last), true), 0);
        assert!(blocks.index.is_empty());
        let inside = flag::FIRST | flag::STREAMING | flag::NEXT | flag::PREVIOUS;
        assert_eq!(look(&mut blocks, 640), Some(inside));
        assert_eq!(look(&mut blocks, 640), Some(inside & !flag::FIRST));
        assert_eq!(look(&mut blocks, last), Some(inside & !flag::NEXT));
        assert_eq!(blocks.index.len(), 2);
        assert_eq!(blocks.map(span(640, 641), false), 2);
        assert_eq!(blocks.unmap(span(641, 641)), 1);
        assert!(blocks.overlap(span(600, 640)) && !blocks.overlap(span(641, 641)));
        assert_eq!(blocks.map(span(600, 1 << 20), false), (1 << 20) - 600);
        // The ends of a long mapping share blocks with others.
        assert_eq!(look(&mut blocks, 599), Some(inside));
        assert_eq!(blocks.map(span(580, 605), true), 26);
        assert_eq!(blocks.unmap(span(0, last)), 1 << 52);
        assert!(blocks.index.is_empty() && !blocks.overlap(span(0, last)));
    }
}
