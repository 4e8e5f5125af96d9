// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A binary buddy allocator over blocks of 512 MiB, which come and go.
//!
//! Each block that it has is a tree of *nodes*: halves of halves, down to a page. A node is free,
//! allocated, carved (part of a range that the caller chose, or outside the aperture) or split, and
//! then has two children. Two buddies are never both free: they are joined, at once. A block that
//! is all free is no longer ours.
//!
//! There are nodes only where something is split, so memory follows what is allocated, not the
//! aperture: at most 17 splits, hence 34 nodes, for each allocated range and for each end of a
//! carved one, and a root for each block.

use super::super::{
    lists::{FreeLists, Lists},
    search::{Run, Window},
    slots::*,
    tree::RangeTree,
};
use crate::units::*;
use alloc::vec::Vec;

/// Log2 of the pages of a block: 512 MiB (ATC'15 §3.4).
pub(super) const BLOCK_LG2: u32 = 17;

/// The number of a block: page number / 2^17.
pub(super) fn block_of(first: IovaPage) -> u64 {
    first.0 >> BLOCK_LG2
}

/// The pages of a block.
pub(super) fn block_range(block: u64) -> IovaRange {
    IovaRange::new(IovaPage(block << BLOCK_LG2), PageCount(1 << BLOCK_LG2))
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Free,
    /// A range that we chose, exactly.
    Allocated,
    /// Not ours to allocate.
    Carved,
    /// Into a lower and an upper half.
    Split([Link; 2]),
}

/// With its links, 40 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub(super) first: u64,
    pub(super) lg2: u32,
    pub(super) parent: Link,
    pub(super) state: State,
}

impl Node {
    fn range(&self) -> IovaRange {
        IovaRange::new(IovaPage(self.first), PageCount(1 << self.lg2))
    }
    /// The number of its free list.
    pub(super) fn list(&self) -> Option<u32> {
        (self.state == State::Free).then_some(self.lg2)
    }
}

/// What requests have cost since the beginning, in no unit of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Effort {
    /// Nodes, and free ranges of the tree, looked at to find a place.
    pub looked: u64,
    /// Searches for which lists had to be looked through: requests with limits only.
    pub scans: u64,
    /// Nodes on the ways down to ranges that are taken or given back.
    pub descended: u64,
}

/// Where the buddy's memory goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sizes {
    /// Blocks that it has from the tree, or for good.
    pub blocks: usize,
    /// Nodes of the trees in them.
    pub nodes: usize,
}

pub(super) struct Buddy {
    pub(super) nodes: Slots<Node>,
    pub(super) free: FreeLists,
    /// Numbers of the blocks that we have.
    pub(super) blocks: RangeTree,
    /// Their roots, each at the slot of its block in the tree.
    pub(super) roots: Vec<Link>,
    pub(super) allocated: Count,
    pub(super) carved: Count,
    pub(super) effort: Effort,
}

/// Ranges, and their pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Count {
    pub(super) ranges: usize,
    pub(super) pages: u64,
}

/// The largest naturally aligned pieces of `range`, from the bottom up: at most two of each size.
pub(super) fn pieces(range: IovaRange) -> impl Iterator<Item = (u64, u32)> {
    let (mut first, mut left) = (range.first.0, range.pages.0);
    core::iter::from_fn(move || {
        let lg2 = left.checked_ilog2()?.min(first.trailing_zeros());
        let piece = (first, lg2);
        first = first.wrapping_add(1 << lg2);
        left -= 1 << lg2;
        Some(piece)
    })
}

impl Buddy {
    pub(super) fn new() -> Self {
        Buddy {
            nodes: Slots::new(),
            free: FreeLists::new(),
            blocks: RangeTree::new(),
            roots: Vec::new(),
            allocated: Count::default(),
            carved: Count::default(),
            effort: Effort::default(),
        }
    }

    /// Ranges that are allocated as one node.
    pub(super) fn allocated(&self) -> Count {
        self.allocated
    }
    pub(super) fn sizes(&self) -> Sizes {
        Sizes {
            blocks: self.blocks.len(),
            nodes: self.nodes.len(),
        }
    }
    pub(super) fn has(&self, block: u64) -> bool {
        self.blocks.find(IovaPage(block)).is_some()
    }
    /// The number of one of its blocks from `block` up to but not including `end`.
    pub(super) fn any_of(&self, block: u64, end: u64) -> Option<u64> {
        let at = self.blocks.first_from(IovaPage(block))?;
        Some(self.blocks.range(at).first.0).filter(|number| *number < end)
    }

    /// Receives a block that it has not got, all of it free.
    pub(super) fn add(&mut self, block: u64) {
        let root = self.nodes.add(Node {
            first: block << BLOCK_LG2,
            lg2: BLOCK_LG2,
            parent: NIL,
            state: State::Free,
        });
        self.free.add(&mut self.nodes, BLOCK_LG2, root);
        let at = self
            .blocks
            .insert(IovaRange::new(IovaPage(block), PageCount(1)));
        if self.roots.len() <= at.slot() {
            self.roots.resize(at.slot() + 1, NIL);
        }
        self.roots[at.slot()] = root;
    }

    /// The highest place for `run` in a free node, of the smallest that serve unless
    /// limits want it otherwise.
    pub(super) fn find(&mut self, run: Run, window: Window, whole: Window) -> Option<u64> {
        let instant = run.align_lg2();
        let lists = Lists {
            instant,
            least: run.pages().next_power_of_two().ilog2(),
            end: if window == whole { instant } else { u64::BITS },
        };
        let Effort { looked, scans, .. } = &mut self.effort;
        let found = self.free.find(&self.nodes, lists, scans, |node| {
            *looked += 1;
            let (bottom, top) = (node.first.max(window.floor), node.range().end().0);
            run.highest(bottom, top.min(window.end))
        });
        found.map(|(_, first)| first)
    }

    /// Makes the 2^`lg2` pages from `first`, which are free, a node in that state. `None` if
    /// they are not free.
    pub(super) fn claim(&mut self, (first, lg2): (u64, u32), state: State) -> Option<()> {
        let mut at = self.root(first)?;
        loop {
            self.effort.descended += 1;
            let node = *self.nodes.at(at);
            match node.state {
                State::Free if node.lg2 == lg2 => break,
                State::Split(_) if node.lg2 == lg2 => return None,
                State::Split(halves) => at = halves[half(first, node.lg2)],
                State::Free => self.split(at),
                State::Allocated | State::Carved => return None,
            }
        }
        self.free.remove(&mut self.nodes, lg2, at);
        self.nodes.at_mut(at).state = state;
        let count = self.count(state);
        (count.ranges, count.pages) = (count.ranges + 1, count.pages + (1 << lg2));
        Some(())
    }

    /// Makes the node of just these pages, which is in that state, free and joins it with
    /// its buddy, and so on upwards. `None` if there is none; else whether the block has
    /// left, being all free.
    pub(super) fn give(&mut self, (first, lg2): (u64, u32), state: State) -> Option<Given> {
        let mut at = self
            .node(first, lg2)
            .filter(|at| self.nodes.at(*at).state == state)?;
        self.effort.descended += u64::from(BLOCK_LG2 - lg2);
        let count = self.count(state);
        (count.ranges, count.pages) = (count.ranges - 1, count.pages - (1 << lg2));
        self.nodes.at_mut(at).state = State::Free;
        while let Some(parent) = self.nodes.at(at).parent.some() {
            let State::Split(halves) = self.nodes.at(parent).state else {
                break;
            };
            let buddy = halves[usize::from(halves[0] == at)];
            let Some(list) = self.nodes.at(buddy).list() else {
                break;
            };
            self.free.remove(&mut self.nodes, list, buddy);
            halves.into_iter().for_each(|half| self.nodes.remove(half));
            self.nodes.at_mut(parent).state = State::Free;
            at = parent;
        }
        let node = *self.nodes.at(at);
        if node.parent != NIL {
            self.free.add(&mut self.nodes, node.lg2, at);
            return Some(Given::Kept);
        }
        self.nodes.remove(at);
        let block = block_of(IovaPage(node.first));
        if let Some(at) = self.blocks.find(IovaPage(block)) {
            self.blocks.remove(at);
        }
        Some(Given::Emptied(block))
    }

    /// Whether just these pages are an allocated range.
    pub(super) fn holds(&self, first: u64, lg2: u32) -> bool {
        let node = self.node(first, lg2);
        node.is_some_and(|at| self.nodes.at(at).state == State::Allocated)
    }

    /// A node in the way of `range`, which lies in one block.
    pub(super) fn in_the_way(&self, range: IovaRange) -> Option<IovaRange> {
        let root = self.root(range.first.0)?;
        pieces(range).find_map(|(first, lg2)| {
            let mut at = root;
            loop {
                let node = self.nodes.at(at);
                at = match node.state {
                    State::Free => return None,
                    State::Allocated | State::Carved => return Some(node.range()),
                    State::Split(halves) if node.lg2 > lg2 => halves[half(first, node.lg2)],
                    // all below it is wanted, and not all of it is free
                    State::Split(halves) => {
                        let lower_is_free = self.nodes.at(halves[0]).state == State::Free;
                        halves[usize::from(lower_is_free)]
                    }
                };
            }
        })
    }

    fn split(&mut self, at: Link) {
        let node = *self.nodes.at(at);
        let lg2 = node.lg2 - 1;
        self.free.remove(&mut self.nodes, node.lg2, at);
        let halves = [0, 1 << lg2].map(|offset| {
            let half = self.nodes.add(Node {
                first: node.first + offset,
                lg2,
                parent: at,
                state: State::Free,
            });
            self.free.add(&mut self.nodes, lg2, half);
            half
        });
        self.nodes.at_mut(at).state = State::Split(halves);
    }

    fn root(&self, first: u64) -> Option<Link> {
        let at = self.blocks.find(IovaPage(block_of(IovaPage(first))))?;
        self.roots.get(at.slot()).copied()
    }

    /// The node of just these pages.
    pub(super) fn node(&self, first: u64, lg2: u32) -> Option<Link> {
        let mut at = self.root(first)?;
        while self.nodes.at(at).lg2 > lg2 {
            let State::Split(halves) = self.nodes.at(at).state else {
                return None;
            };
            at = halves[half(first, self.nodes.at(at).lg2)];
        }
        Some(at).filter(|at| self.nodes.at(*at).first == first && self.nodes.at(*at).lg2 == lg2)
    }

    /// What is counted of nodes in that state.
    fn count(&mut self, state: State) -> &mut Count {
        match state {
            State::Allocated => &mut self.allocated,
            _ => &mut self.carved,
        }
    }
}

/// What became of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Given {
    /// Something in it is still in use.
    Kept,
    /// Nothing is, and the block has left.
    Emptied(u64),
}

/// Which half of a node of 2^`lg2` pages has the page `first`.
fn half(first: u64, lg2: u32) -> usize {
    (first >> (lg2 - 1) & 1) as usize
}
