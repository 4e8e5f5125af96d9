// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! How much memory a range may need, until it is given back.
//!
//! Giving back needs memory too: an emptied block is a free range of the tree again. But free ranges
//! that do not join have a block of the buddy's or a held range between them, so there is at most
//! one more of them than of these; room for so many is there before a range is taken.

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

/// What is needed more, at most.
struct Needs {
    nodes: usize,
    blocks: usize,
    held: usize,
}

/// Nodes on the way down to an end of a range: two halves of each size.
const WAY: usize = 2 * BLOCK_LG2 as usize;

impl Needs {
    fn of(what: &Taking) -> Self {
        match what {
            Taking::Run(run) if run.each().0 > BLOCK => Needs {
                nodes: 0,
                blocks: 0,
                held: run.count(),
            },
            // the roots, the way to the run, and halves down to each of its ranges
            Taking::Run(run) => {
                let blocks = run.pages().div_ceil(BLOCK);
                let blocks = usize::try_from(blocks).unwrap_or(usize::MAX);
                let halves = run.count().saturating_mul(2).saturating_add(WAY);
                Needs {
                    nodes: halves.saturating_add(blocks),
                    blocks,
                    held: 0,
                }
            }
            // at most four parts of blocks, each with a root and two ends
            Taking::Exactly(_) => Needs {
                nodes: 4 * (1 + 2 * WAY),
                blocks: 4,
                held: 1,
            },
        }
    }
}

impl Short {
    #[inline]
    pub fn of(all: &TwoSizes, what: &Taking) -> Option<Self> {
        let needs = Needs::of(what);
        let buddy = &all.buddy;
        let nodes = buddy.nodes.len().saturating_add(needs.nodes);
        let blocks = buddy.blocks.len().saturating_add(needs.blocks);
        let held = all.held.tree().len().saturating_add(needs.held);
        let short = Short {
            nodes: buddy.nodes.short(nodes),
            blocks: buddy.blocks.short(blocks),
            roots: buddy.short_of_roots(needs.blocks),
            free: all
                .blocks
                .short(blocks.saturating_add(held).saturating_add(1)),
            held: all.held.short(needs.held),
        };
        short.is_any().then_some(short)
    }

    fn is_any(&self) -> bool {
        self.nodes.is_some()
            || self.blocks.is_some()
            || self.roots.is_some()
            || self.free.iter().any(Option::is_some)
            || self.held.is_some()
    }

    pub fn enlarge(&mut self, all: &mut TwoSizes) {
        let buddy = &mut all.buddy;
        if let Some(nodes) = &mut self.nodes {
            buddy.nodes.enlarge(nodes);
        }
        if let Some(blocks) = &mut self.blocks {
            buddy.blocks.enlarge(blocks);
        }
        if let Some(roots) = &mut self.roots {
            roots.take_over(&mut buddy.roots);
        }
        all.blocks.enlarge(&mut self.free);
        if let Some(held) = &mut self.held {
            all.held.enlarge(held);
        }
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
