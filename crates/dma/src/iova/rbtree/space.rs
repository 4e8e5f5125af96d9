// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the lock protects: the tree, the cached node, and first fit.

use super::tree::{Link, RangeTree};
use crate::units::*;
use alloc::{format, string::String};

/// An aperture and the ranges of it that are in use.
pub(super) struct Space {
    pub(super) aperture: IovaRange,
    tree: RangeTree,
    /// The range given out last, or the next above it that is still in use; `None` for the top of the aperture.
    cached: Option<Link>,
    /// Pages in the tree.
    used: u64,
    /// Nodes that scans have looked at, ever.
    visited: u64,
    /// Ranges given back that were not in use as such. Always 0, unless the caller is broken.
    strays: u64,
}

/// A run of ranges to be found: `count` of `each` pages, side by side.
#[derive(Clone, Copy)]
pub(super) struct Run {
    each: u64,
    count: u64,
    align: u64,
}

impl Run {
    /// `None` where the numbers overflow. `each` is rounded up to a power of two; the run is aligned to its own size,
    /// rounded up likewise, so that each range in it is naturally aligned too.
    pub(super) fn new(each: PageCount, count: u64) -> Option<Run> {
        let each = each.0.checked_next_power_of_two()?;
        let count = count.max(1);
        let align = each.checked_mul(count)?.checked_next_power_of_two()?;
        Some(Run { each, count, align })
    }
    fn pages(&self) -> u64 {
        self.each * self.count
    }
    /// The highest aligned place between `bottom` and `top`.
    fn fit(&self, bottom: u64, top: u64) -> Option<u64> {
        let first = top.checked_sub(self.pages())? & !(self.align - 1);
        (first >= bottom).then_some(first)
    }
}

impl Space {
    pub(super) fn new(aperture: IovaRange) -> Self {
        Space {
            aperture,
            tree: RangeTree::new(),
            cached: None,
            used: 0,
            visited: 0,
            strays: 0,
        }
    }

    /// Finds a place for `run` and takes it, each range as a node of its own.
    pub(super) fn take(&mut self, run: Run) -> Option<IovaRange> {
        // page 0 is for those who ask for it by number: drivers read address 0 as "none"
        let floor = self.aperture.first.0.max(1);
        let top = self.aperture.end().0;
        let first = match self.cached {
            None => self.scan(run, self.tree.last(), top, floor),
            Some(cached) => {
                let here = self.tree.range(cached);
                self.scan(run, self.tree.prev(cached), here.first.0, floor)
                    // nothing below the cached node; what is above it has not been looked at yet
                    .or_else(|| self.scan(run, self.tree.last(), top, here.end().0.max(floor)))
            }
        }?;
        for nth in 0..run.count {
            let first = IovaPage(first + nth * run.each);
            let node = self.tree.insert(IovaRange::new(first, PageCount(run.each)));
            if nth == 0 {
                self.cached = Some(node);
            }
        }
        self.used += run.pages();
        Some(IovaRange::new(IovaPage(first), PageCount(run.pages())))
    }

    /// Looks at each gap between `top` and `floor`, downwards; `below` is the next node under `top`.
    fn scan(&mut self, run: Run, mut below: Option<Link>, mut top: u64, floor: u64) -> Option<u64> {
        while top > floor {
            let node = below.map(|at| self.tree.range(at));
            let bottom = node.map_or(floor, |range| range.end().0.max(floor));
            if let Some(first) = run.fit(bottom, top) {
                return Some(first);
            }
            let range = node?;
            self.visited += 1;
            top = range.first.0;
            below = below.and_then(|at| self.tree.prev(at));
        }
        None
    }

    /// Takes exactly `range`, which lies in the aperture.
    ///
    /// The cached node stays where it is: a scan steps over the new range like over any other.
    pub(super) fn take_exactly(&mut self, range: IovaRange) -> Result<(), IovaRange> {
        if let Some(taken) = self.tree.overlapping(range) {
            return Err(self.tree.range(taken));
        }
        self.tree.insert(range);
        self.used += range.pages.0;
        Ok(())
    }

    /// Gives a range back; at or above the cached node it moves the cache up, past itself.
    pub(super) fn give(&mut self, range: IovaRange) {
        let Some(node) = self
            .tree
            .find(range.first)
            .filter(|at| self.tree.range(*at) == range)
        else {
            self.strays += 1;
            return;
        };
        if let Some(cached) = self.cached
            && range.first >= self.tree.range(cached).first
        {
            self.cached = self.tree.next(node);
        }
        self.tree.remove(node);
        self.used -= range.pages.0;
    }

    /// Whether exactly this range is in use.
    pub(super) fn holds(&self, range: IovaRange) -> bool {
        self.tree
            .find(range.first)
            .is_some_and(|at| self.tree.range(at) == range)
    }

    pub(super) fn used(&self) -> PageCount {
        PageCount(self.used)
    }
    pub(super) fn free(&self) -> PageCount {
        PageCount(self.aperture.pages.0 - self.used)
    }
    pub(super) fn visited(&self) -> u64 {
        self.visited
    }
    pub(super) fn ranges(&self) -> usize {
        self.tree.len()
    }
    pub(super) fn cached(&self) -> Option<IovaRange> {
        self.cached.map(|at| self.tree.range(at))
    }
    /// The ranges in use, downwards.
    pub(super) fn iter(&self) -> impl Iterator<Item = IovaRange> {
        let down = core::iter::successors(self.tree.last(), |at| self.tree.prev(*at));
        down.map(|at| self.tree.range(at))
    }

    pub(super) fn audit(&self) -> Result<(), String> {
        self.tree.check()?;
        let mut used = 0;
        for range in self.iter() {
            if !self.aperture.contains(&range) {
                return Err(format!("{range} is outside the aperture {}", self.aperture));
            }
            used += range.pages.0;
        }
        if used != self.used {
            return Err(format!("{used} pages in the tree, {} counted", self.used));
        }
        if let Some(cached) = self.cached
            && self.tree.find(self.tree.range(cached).first) != Some(cached)
        {
            let range = self.tree.range(cached);
            return Err(format!("the cached node {range} is not in the tree"));
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
