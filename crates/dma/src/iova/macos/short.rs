// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! How much memory a range may need, until it is given back.
//!
//! Giving back needs memory too: an emptied block is a free range of the tree again. But free
//! ranges that do not join have a block of the buddy's or a held range between them, so there is at
//! most one more of them than of these; room for so many is there before a range is taken.

use super::{
    BLOCK, TwoSizes, blocks,
    buddy::{BLOCK_LG2, Node},
};
use crate::{
    iova::{
        locked::Taking,
        slots::{Link, Slot},
        tree,
    },
    platform::room::{Larger, NoMemory, Room},
};

type Ranges = Option<Larger<tree::Node<()>>>;

/// What there is too little of.
pub struct Short {
    nodes: Option<Larger<Slot<Node>>>,
    blocks: Ranges,
    roots: Option<Larger<Link>>,
    free: blocks::Room,
    held: Ranges,
}

/// How much there may be of everything.
pub struct Needs {
    nodes: usize,
    blocks: usize,
    roots: usize,
    free: usize,
    held: usize,
}

/// Nodes on the way down to an end of a range: two halves of each size.
const WAY: usize = 2 * BLOCK_LG2 as usize;

/// How many nodes, blocks and held ranges `what` may make.
#[inline]
fn made(what: &Taking) -> (usize, usize, usize) {
    match what {
        Taking::Run(run) | Taking::Within(run) if run.each().0 > BLOCK => (0, 0, run.count()),
        // the roots, the way to the run, and halves down to each of its ranges
        Taking::Run(run) | Taking::Within(run) => {
            let blocks = run.pages().div_ceil(BLOCK);
            let blocks = usize::try_from(blocks).unwrap_or(usize::MAX);
            let halves = run.count().saturating_mul(2).saturating_add(WAY);
            (halves.saturating_add(blocks), blocks, 0)
        }
        // at most four parts of blocks, each with a root and two ends
        Taking::Exactly(_) => (4 * (1 + 2 * WAY), 4, 1),
    }
}

impl Needs {
    #[inline]
    pub fn of(all: &TwoSizes, what: &Taking) -> Self {
        let (nodes, blocks, held) = made(what);
        let buddy = &all.buddy;
        let blocks_then = buddy.blocks.len().saturating_add(blocks);
        let held_then = all.held.tree().len().saturating_add(held);
        Needs {
            nodes: buddy.nodes.len().saturating_add(nodes),
            blocks: blocks_then,
            roots: buddy.blocks.slots().saturating_add(blocks),
            free: blocks_then.saturating_add(held_then).saturating_add(1),
            held: held_then,
        }
    }

    #[inline]
    pub fn are_met(&self, all: &TwoSizes) -> bool {
        let buddy = &all.buddy;
        buddy.nodes.has_room(self.nodes)
            && buddy.blocks.has_room(self.blocks)
            && Larger::has(&buddy.roots, self.roots)
            && all.blocks.has_room(self.free)
            && all.held.tree().has_room(self.held)
    }

    pub fn short(&self, all: &TwoSizes) -> Short {
        let buddy = &all.buddy;
        Short {
            nodes: buddy.nodes.short(self.nodes),
            blocks: buddy.blocks.short(self.blocks),
            roots: Larger::of(&buddy.roots, self.roots),
            free: all.blocks.short(self.free),
            held: all.held.tree().short(self.held),
        }
    }
}

impl Short {
    pub fn enlarge(&mut self, all: &mut TwoSizes) {
        let buddy = &mut all.buddy;
        buddy.nodes.enlarge(&mut self.nodes);
        buddy.blocks.enlarge(&mut self.blocks);
        if let Some(roots) = &mut self.roots {
            roots.take_over(&mut buddy.roots);
        }
        all.blocks.enlarge(&mut self.free);
        all.held.enlarge(&mut self.held);
    }
}

impl Room for Short {
    fn allocate(&mut self) -> Result<(), NoMemory> {
        self.nodes.allocate()?;
        self.blocks.allocate()?;
        self.roots.allocate()?;
        self.free.iter_mut().try_for_each(Room::allocate)?;
        self.held.allocate()
    }
}
