// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Solaris' allocator: boundary tags, instant fit, a hash table; constant time (ATC'15 §3.4, table
//! 1; Bonwick and Adams, USENIX ATC 2001, §4).
//!
//! # Theory
//!
//! The aperture is cut into *segments*, free or allocated, in the order of their addresses.
//! Neighbours know each other, two free ones never lie side by side. Free segments are in *free
//! lists*, allocated ones in a hash table by first page.
//!
//! *Instant fit*: the paper's list n has the segments of 2^n pages or more, so that any segment of
//! the first list from log2 of the size on serves, and a bitmap of the lists that are not empty
//! finds it. What we allocation is a power of two, naturally aligned, and a segment of 2^n pages
//! need not hold an aligned block of as many. So list n has the segments whose *largest aligned
//! block* has 2^n pages: 6 pages from page 3 on (3 to 8) hold a block of 4 at page 4, and are in
//! list 2. Then again any segment of the first list from log2 of the size on serves, exactly: one
//! segment is looked at for an allocation, however many there are, and where there is none, none
//! fits. Alignment beyond the size is the same with another list to begin at.
//!
//! A free finds its segment in a hash chain, one long on average, and joins it with at most two
//! neighbours: constant.
//!
//! Three requests are not served by the lists alone and may look at every free segment of some
//! lists ([`Effort::scans`] counts them): those with an address mask or a preference, where the
//! first segment lies elsewhere; those aligned beyond their size, where no larger block is left;
//! runs that are no power of two, where no block of the next power is. A chosen range
//! ([`IovaAllocator::reserve`]) is looked for along the addresses, linearly: drivers do this at
//! start.
//!
//! The range is cut from the top of its segment, so that low addresses are left to devices that
//! reach no others.
//!
//! Page 0 is never allocated: a segment that begins there is good for what is above. See
//! [`Rbtree`].
//!
//! Invariants (`audit`): the segments are the aperture without gaps; no two free neighbours; a free
//! segment is in the list that it belongs to, an allocated one in the hash table, each once; the
//! bitmap says which lists have any.
//!
//! Locking: one lock around everything, as in Solaris. It is held for constant time but for the
//! cases above, and the first time there are more ranges than ever before, while the segments and
//! the hash table move to where they have room.
//!
//! Not handled: the paper's quantum caches (that is what [`Magazines`] are), arenas that import
//! from others, next fit.

mod audit;
mod segments;

use super::{
    chains::Chains,
    lists::{FreeLists, Lists, list_of},
    locked::{Ranges, Sketch, Taking},
    search::{Run, Window},
    slots::{Link, Slot},
    *,
};
use crate::platform::room::Larger;
use alloc::string::String;
use segments::{Segment, Segments, State};

/// Solaris' allocator: boundary tags and instant fit, under one lock.
pub type Vmem<P> = Locked<P, Arena>;

impl<P: Platform> Vmem<P> {
    /// All of `aperture` is free. What of it lies beyond page number 2^64 - 1 is cut off.
    pub fn new(aperture: IovaRange) -> Self {
        Locked::over(aperture, Arena::new)
    }

    /// What requests have cost.
    pub fn effort(&self) -> Effort {
        self.look(|arena| arena.effort)
    }
}

/// What the lock protects.
pub struct Arena {
    aperture: IovaRange,
    segments: Segments,
    free: FreeLists,
    /// Allocated segments, by first page.
    allocated: Chains,
    /// How many pages are allocated.
    used: u64,
    effort: Effort,
    /// Ranges given back that were not allocated as such. Always 0, unless the caller is broken.
    strays: u64,
}

/// What requests have cost since the beginning, in no unit of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Effort {
    /// Segments looked at to find a place.
    pub segments: u64,
    /// Searches that the first segment of the first list did not serve, and that
    /// looked at whole lists.
    pub scans: u64,
    /// Segments looked at in hash chains, for frees.
    pub chained: u64,
    /// Segments passed to find chosen ranges.
    pub passed: u64,
}

impl Arena {
    fn new(aperture: IovaRange) -> Self {
        let mut arena = Arena {
            aperture,
            segments: Segments::new(aperture),
            free: FreeLists::new(),
            allocated: Chains::new(),
            used: 0,
            effort: Effort::default(),
            strays: 0,
        };
        if let Some(whole) = arena.segments.lowest() {
            arena.list(whole);
        }
        arena
    }

    /// How many segments there may be with so many ranges more, and how many of them allocated.
    #[inline]
    fn lens_with(&self, more: usize) -> (usize, usize) {
        // what is left and right of it may be segments too
        let slots = self.segments.slots.len().saturating_add(more);
        (
            slots.saturating_add(1),
            self.allocated.len().saturating_add(more),
        )
    }

    /// A segment with room for `run` in `window`, and the highest place in it.
    fn find(&mut self, run: Run, window: Window) -> Option<(Link, u64)> {
        let instant = run.align_lg2();
        // below that list, a segment may hold a run that is smaller than its alignment; from there
        // on each one holds it, unless the window excludes it
        let whole = window == Window::of(self.aperture);
        let lists = Lists {
            instant,
            least: run.pages().ilog2(),
            end: if whole { instant } else { u64::BITS },
        };
        let (looked, scans) = (&mut self.effort.segments, &mut self.effort.scans);
        self.free
            .find(&self.segments.slots, lists, scans, |segment| {
                *looked += 1;
                let bottom = segment.range.first.0.max(window.floor);
                run.highest(bottom, segment.range.end().0.min(window.end))
            })
    }

    /// Puts a free segment into the list it belongs to.
    fn list(&mut self, at: Link) {
        if let Some(list) = list_of(self.segments.range(at)) {
            self.free.add(&mut self.segments.slots, list, at);
        }
    }

    /// Takes a free segment, unchanged since, out of its list.
    fn unlist(&mut self, at: Link) {
        if let Some(list) = list_of(self.segments.range(at)) {
            self.free.remove(&mut self.segments.slots, list, at);
        }
    }

    /// Cuts `range` out of the free segment at `at`; what is left and right of it stays free. It is
    /// in no list then.
    fn cut_out(&mut self, at: Link, range: IovaRange) -> Link {
        self.unlist(at);
        let whole = self.segments.range(at);
        if range.end() < whole.end() {
            let above = self.segments.split(at, range.end());
            self.list(above);
        }
        if whole.first == range.first {
            return at;
        }
        let here = self.segments.split(at, range.first);
        self.list(at);
        here
    }

    fn alloc(&mut self, at: Link) {
        self.segments.set(at, State::Allocated);
        self.used += self.segments.range(at).pages.0;
        let first = self.segments.range(at).first.0;
        self.allocated.add(&mut self.segments.slots, first, at);
    }

    /// The lowest allocated segment that overlaps `range`, or the free one that contains it.
    fn at(&mut self, range: IovaRange) -> Result<Link, IovaRange> {
        let mut next = self.segments.lowest();
        while let Some(at) = next {
            self.effort.passed += 1;
            let here = self.segments.range(at);
            let free = self.segments.at(at).state == State::Free;
            if free && here.contains(&range) {
                return Ok(at);
            }
            if !free && here.overlaps(&range) {
                return Err(here);
            }
            next = self.segments.at(at).above.some();
        }
        // not reached: the segments are the aperture, and free ones have allocated neighbours only
        Err(range)
    }
}

impl Ranges for Arena {
    const NAME: &'static str = "vmem";
    type Room = (Option<Larger<Slot<Segment>>>, Option<Larger<Link>>);

    #[inline]
    fn has_room(&self, what: &Taking) -> bool {
        let (slots, allocated) = self.lens_with(what.ranges());
        self.segments.slots.has_room(slots) && self.allocated.has_room(allocated)
    }
    fn short(&self, what: &Taking) -> Self::Room {
        let (slots, allocated) = self.lens_with(what.ranges());
        let slots = self.segments.slots.short(slots);
        (slots, self.allocated.short(allocated))
    }
    fn enlarge(&mut self, (slots, chains): &mut Self::Room) {
        self.segments.slots.enlarge(slots);
        let number = |segment: &Segment| segment.range.first.0;
        self.allocated
            .enlarge(&mut self.segments.slots, chains, number);
    }

    fn take(&mut self, run: Run) -> Option<IovaRange> {
        self.take_within(run, Window::of(self.aperture))
    }

    fn take_within(&mut self, run: Run, window: Window) -> Option<IovaRange> {
        let (at, first) = self.find(run, window)?;
        let range = run.range(first);
        let mut rest = self.cut_out(at, range);
        for each in run.ranges(first) {
            let here = rest;
            if each.end() < range.end() {
                rest = self.segments.split(here, each.end());
            }
            self.alloc(here);
        }
        Some(range)
    }

    fn take_exactly(&mut self, range: IovaRange) -> Result<(), IovaRange> {
        let at = self.at(range)?;
        let here = self.cut_out(at, range);
        self.alloc(here);
        Ok(())
    }

    fn give(&mut self, range: IovaRange, _kind: AllocKind) {
        let looked = &mut self.effort.chained;
        let its = |_, segment: &Segment| {
            *looked += 1;
            segment.range == range
        };
        let slots = &mut self.segments.slots;
        let Some(mut at) = self.allocated.remove(slots, range.first.0, its) else {
            self.strays += 1;
            return;
        };
        self.used -= range.pages.0;
        self.segments.set(at, State::Free);
        let [below, above] = self.segments.free_neighbours(at);
        if let Some(above) = above {
            self.unlist(above);
            self.segments.join(at, above);
        }
        if let Some(below) = below {
            self.unlist(below);
            self.segments.join(below, at);
            at = below;
        }
        self.list(at);
    }

    fn holds(&self, range: IovaRange) -> bool {
        let mut chained = self.allocated.chained(&self.segments.slots, range.first.0);
        chained.any(|at| self.segments.range(at) == range)
    }

    fn usage(&self) -> Usage {
        Usage {
            aperture: self.aperture.pages,
            free: PageCount(self.aperture.pages.0 - self.used),
            allocated: PageCount(self.used),
            ..Usage::default()
        }
    }

    fn visited(&self) -> u64 {
        self.effort.segments
    }

    fn audit(&self) -> Result<(), String> {
        self.check()
    }

    fn sketch(&self) -> Sketch {
        let all = self.segments.iter();
        let allocated = all.filter(|at| self.segments.at(*at).state == State::Allocated);
        let allocated = allocated.map(|at| self.segments.range(at));
        Sketch::of(self.allocated.len(), "from the bottom", allocated)
    }
}
