// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The ranges of an aperture that are in use, in a tree, with the books of them; what is free
//! follows.

use super::{
    Usage,
    search::Run,
    tree::{Augment, Link, Node, RangeTree},
};
use crate::{platform::room::Larger, units::*};
use alloc::{format, string::String};

/// An aperture and the ranges of it that are in use.
pub struct InUse<A: Augment = ()> {
    aperture: IovaRange,
    tree: RangeTree<A>,
    /// Pages in the tree.
    pages: u64,
    /// Ranges given back that were not in use as such. Always 0, unless the caller is broken.
    strays: u64,
}

impl<A: Augment> InUse<A> {
    pub fn new(aperture: IovaRange) -> Self {
        InUse {
            aperture,
            tree: RangeTree::new(),
            pages: 0,
            strays: 0,
        }
    }

    pub fn aperture(&self) -> IovaRange {
        self.aperture
    }
    pub fn tree(&self) -> &RangeTree<A> {
        &self.tree
    }
    /// Where the pages are, all ranges being allocated.
    pub fn usage(&self) -> Usage {
        Usage {
            aperture: self.aperture.pages,
            free: PageCount(self.aperture.pages.0 - self.pages),
            allocated: PageCount(self.pages),
            ..Usage::default()
        }
    }

    /// Whether this many ranges more have room.
    #[inline]
    pub fn has_room(&self, more: usize) -> bool {
        self.tree.has_room(self.tree.len().saturating_add(more))
    }
    /// What is needed to take this many ranges more; `None` where they have room.
    pub fn short(&self, more: usize) -> Option<Larger<Node<A>>> {
        self.tree.short(self.tree.len().saturating_add(more))
    }
    /// Grows into what was allocated.
    pub fn enlarge(&mut self, room: &mut Option<Larger<Node<A>>>) {
        self.tree.enlarge(room);
    }

    /// Takes `run` at `first`, which is free, each range as a node of its own; returns the lowest.
    pub fn take(&mut self, run: Run, first: u64) -> Option<Link> {
        let mut lowest = None;
        for range in run.ranges(first) {
            let node = self.tree.insert(range);
            lowest = lowest.or(Some(node));
        }
        self.pages += run.pages();
        lowest
    }

    /// Takes exactly `range`, which lies in the aperture.
    ///
    /// # Errors
    /// A range in the way.
    pub fn take_exactly(&mut self, range: IovaRange) -> Result<(), IovaRange> {
        if let Some(taken) = self.tree.overlapping(range) {
            return Err(self.tree.range(taken));
        }
        self.tree.insert(range);
        self.pages += range.pages.0;
        Ok(())
    }

    /// The node of exactly this range, which is about to be given back; if there is none, that is
    /// noted for the audit.
    pub fn leaving(&mut self, range: IovaRange) -> Option<Link> {
        let node = self.find(range);
        self.strays += u64::from(node.is_none());
        node
    }

    /// Gives back the range at `node`.
    pub fn give(&mut self, node: Link) {
        self.pages -= self.tree.range(node).pages.0;
        self.tree.remove(node);
    }

    /// Whether exactly this range is in use.
    pub fn holds(&self, range: IovaRange) -> bool {
        self.find(range).is_some()
    }

    fn find(&self, range: IovaRange) -> Option<Link> {
        let node = self.tree.find(range.first);
        node.filter(|at| self.tree.range(*at) == range)
    }

    pub fn audit(&self) -> Result<(), String> {
        self.tree.check()?;
        let mut pages = 0;
        let up = core::iter::successors(self.tree.first(), |at| self.tree.next(*at));
        for range in up.map(|at| self.tree.range(at)) {
            if !self.aperture.contains(&range) {
                return Err(format!("{range} is outside the aperture {}", self.aperture));
            }
            pages += range.pages.0;
        }
        if pages != self.pages {
            return Err(format!("{pages} pages in the tree, {} counted", self.pages));
        }
        if self.strays > 0 {
            return Err(format!(
                "{} ranges were given back that were not in use",
                self.strays
            ));
        }
        Ok(())
    }
}
