// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! EiovaR: a cache of recently freed ranges in front of the tree, under the same lock (ATC'15
//! §3.1).
//!
//! # Theory
//!
//! For each size there is a stack of ranges given back. What is in it stays *in use* in the tree,
//! so a free that is kept and an allocation that is served from a stack do not touch the tree, and
//! the tree's linear walk is met only by what no stack can serve. A ring, which gives back the
//! sizes that it asks for, lives on the stacks alone.
//!
//! Everything is behind the tree's one lock, as in the original: an allocation is short, but one
//! CPU at a time makes it. That is what ATC'15 measures as the bottleneck, and what magazines
//! remove.
//!
//! Bounded: a stack that is full passes what is freed on to the tree, and so do sizes beyond the
//! largest class and ranges that the caller chose. When the tree has no place, and when a range
//! that a caller chose is taken, all stacks are emptied into it and it is asked once more; so what
//! is kept never fails a request.
//!
//! A request with limits takes the topmost range of its stack that keeps them, which is a walk of
//! the stack; the tree is asked next.
//!
//! Invariants ([`IovaAllocator::audit`]): each kept range is in use in the tree under just this
//! size, and kept once.
//!
//! Locking: one lock ([`Locked`]), held for a push, a pop, a walk of one stack, what [`rbtree`]
//! says, and for emptying all stacks: `list_len` x `classes` removals from the tree.

use super::{
    locked::{Ranges, Sketch, Taking},
    rbtree::Scan,
    search::{Run, Window},
    *,
};
use alloc::{boxed::Box, format, string::String, vec::Vec};

/// Sizes of [`Eiovar`]. Those beyond the limits named are brought to the nearest one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct EiovarConfig {
    /// Ranges kept of each size; 0 to 65536. Room for them is allocated at the start, 8 bytes each.
    pub list_len: usize,
    /// Sizes that are kept: 1, 2, 4.. pages; 0 to 16.
    pub classes: usize,
}

setters!(const EiovarConfig {
    list_len: usize,
    classes: usize,
});

impl EiovarConfig {
    /// 512 ranges of each size up to 512 pages (2 MiB).
    pub const DEFAULT: Self = EiovarConfig {
        list_len: 512,
        classes: 10,
    };

    fn limited(self) -> Self {
        EiovarConfig {
            list_len: self.list_len.min(1 << 16),
            classes: self.classes.min(16),
        }
    }
}

impl Default for EiovarConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// EiovaR: Linux 3.17's tree, with a cache of freed ranges by size, under one lock.
pub type Eiovar<P> = Locked<P, Kept>;

/// The tree, and stacks of ranges that were given back and stay in use in it.
pub struct Kept {
    tree: Scan,
    /// First pages; by log2 of how many follow.
    stacks: Box<[Vec<IovaPage>]>,
    list_len: usize,
    /// Pages in all stacks.
    pages: u64,
}

impl<P: Platform> Eiovar<P> {
    /// All of `aperture` is free. What of it lies beyond page number 2^64 - 1 is cut off.
    pub fn new(config: EiovarConfig, aperture: IovaRange) -> Self {
        let EiovarConfig { list_len, classes } = config.limited();
        Locked::over(aperture, |aperture| Kept {
            tree: Scan::new(aperture),
            stacks: (0..classes).map(|_| Vec::with_capacity(list_len)).collect(),
            list_len,
            pages: 0,
        })
    }
}

impl Kept {
    /// The stack of ranges of exactly this many pages.
    fn stack(&mut self, pages: PageCount) -> Option<&mut Vec<IovaPage>> {
        let lg2 = pages.0.trailing_zeros() as usize;
        let class = pages.0.is_power_of_two().then_some(lg2)?;
        self.stacks.get_mut(class)
    }

    /// Whether a range for `run` is kept.
    #[inline]
    fn keeps(&self, run: &Run) -> bool {
        let stack = self.stacks.get(run.each().0.trailing_zeros() as usize);
        run.is_single() && stack.is_some_and(|stack| !stack.is_empty())
    }

    /// The topmost kept range for `run` that `fits`.
    fn pop(&mut self, run: Run, fits: impl Fn(IovaRange) -> bool) -> Option<IovaRange> {
        if !run.is_single() {
            return None;
        }
        let stack = self.stack(run.each())?;
        let at = stack.iter().rposition(|first| fits(run.range(first.0)))?;
        let first = stack.remove(at);
        self.pages -= run.pages();
        Some(run.range(first.0))
    }

    fn kept(&self) -> impl Iterator<Item = IovaRange> {
        self.stacks.iter().enumerate().flat_map(|(lg2, stack)| {
            let pages = PageCount(1 << lg2);
            stack.iter().map(move |first| IovaRange::new(*first, pages))
        })
    }
}

impl Ranges for Kept {
    const NAME: &'static str = "eiovar";
    type Room = <Scan as Ranges>::Room;

    #[inline]
    fn has_room(&self, what: &Taking) -> bool {
        match what {
            Taking::Run(run) if self.keeps(run) => true, // and the tree is not asked
            _ => self.tree.has_room(what),
        }
    }
    fn short(&self, what: &Taking) -> Self::Room {
        self.tree.short(what)
    }
    fn enlarge(&mut self, room: &mut Self::Room) {
        self.tree.enlarge(room);
    }

    fn take(&mut self, run: Run) -> Option<IovaRange> {
        self.pop(run, |_| true).or_else(|| self.tree.take(run))
    }

    fn take_within(&mut self, run: Run, window: Window) -> Option<IovaRange> {
        self.pop(run, |range| run.may_be(range, window))
            .or_else(|| self.tree.take_within(run, window))
    }

    fn take_exactly(&mut self, range: IovaRange) -> Result<(), IovaRange> {
        self.tree.take_exactly(range)
    }

    fn give(&mut self, range: IovaRange, kind: AllocKind) {
        let list_len = self.list_len;
        let stack = match kind {
            AllocKind::Dynamic => self.stack(range.pages),
            AllocKind::Fixed | AllocKind::Shared | AllocKind::Piece => None,
        };
        match stack.filter(|stack| stack.len() < list_len) {
            Some(stack) => {
                stack.push(range.first);
                self.pages += range.pages.0;
            }
            None => self.tree.give(range, kind),
        }
    }

    fn drain(&mut self) -> PageCount {
        for (lg2, stack) in self.stacks.iter_mut().enumerate() {
            let pages = PageCount(1 << lg2);
            for first in stack.drain(..) {
                self.tree
                    .give(IovaRange::new(first, pages), AllocKind::Dynamic);
            }
        }
        PageCount(core::mem::take(&mut self.pages))
    }

    fn holds(&self, range: IovaRange) -> bool {
        self.tree.holds(range) && self.kept().all(|kept| kept != range)
    }

    fn usage(&self) -> Usage {
        let tree = self.tree.usage();
        Usage {
            cached: PageCount(self.pages),
            allocated: PageCount(tree.allocated.0.saturating_sub(self.pages)),
            ..tree
        }
    }

    fn visited(&self) -> u64 {
        self.tree.visited()
    }

    fn audit(&self) -> Result<(), String> {
        self.tree.audit()?;
        let mut kept: Vec<_> = self.kept().collect();
        kept.sort_unstable_by_key(|range| range.first);
        if let Some(pair) = kept.windows(2).find(|pair| pair[0].overlaps(&pair[1])) {
            return Err(format!("{} and {} are both kept", pair[0], pair[1]));
        }
        if let Some(range) = kept.iter().find(|range| !self.tree.holds(**range)) {
            return Err(format!("{range} is kept, but not in use in the tree"));
        }
        let pages: u64 = kept.iter().map(|range| range.pages.0).sum();
        if pages != self.pages {
            return Err(format!("{pages} pages are kept, {} counted", self.pages));
        }
        match self.stacks.iter().find(|s| s.len() > self.list_len) {
            Some(stack) => Err(format!("{} ranges in one stack", stack.len())),
            None => Ok(()),
        }
    }

    fn sketch(&self) -> Sketch {
        self.tree.sketch()
    }
}
