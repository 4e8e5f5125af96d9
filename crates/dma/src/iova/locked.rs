// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! One lock around the ranges of an aperture, as all systems of ATC'15 §3.4 have it.
//!
//! # Theory
//!
//! What the systems differ in is what the lock protects ([`Ranges`]): how a free range is found.
//! All else is here, once: limits are turned into windows to search ([`Search`]), what is kept for
//! reuse is given up before a request fails, failures get their numbers.
//!
//! Page 0 is never allocated, because drivers take address 0 for "none"; [`IovaAllocator::reserve`]
//! gives it to callers that ask for it. Where the aperture has it, it counts as free until then.
//!
//! Locking: one lock, nothing is called with it held, the heap neither: what more ranges need is
//! allocated with the lock open, before they are taken ([`Room`]). Where the heap has nothing, the
//! request fails, and all is as before. How long the lock is held is what the design costs: see
//! there.
//!
//! Not handled: an aperture whose end is not a `u64` (it is cut off).

use super::{
    backing::{Refill, clipped, granted_or_all, inside},
    search::{Run, Search, Window},
    *,
};
use crate::platform::{
    Lock,
    room::{NoMemory, Room},
};
use alloc::{format, string::String};

/// What a lock protects: ranges in use, and a way to find what is free.
pub trait Ranges: Send {
    /// The name of the design.
    const NAME: &'static str;
    /// Memory for more ranges.
    type Room: Room;
    /// Whether there is memory enough to take `what`, and to take it back.
    fn has_room(&self, what: &Taking) -> bool;
    /// What memory there is too little of.
    fn short(&self, what: &Taking) -> Self::Room;
    /// Receives what was allocated, and leaves in its place what is to be dropped.
    fn enlarge(&mut self, room: &mut Self::Room);
    /// Finds a place for `run`, anywhere, and takes it.
    fn take(&mut self, run: Run) -> Option<IovaRange>;
    /// Finds a place for `run`, a single range, in `window`, and takes it. The run may be aligned
    /// to more than its size.
    fn take_within(&mut self, run: Run, window: Window) -> Option<IovaRange>;
    /// Takes exactly `range`, which lies in the aperture, or says what is in the way. Page 0
    /// may be asked for.
    fn take_exactly(&mut self, range: IovaRange) -> Result<(), IovaRange>;
    /// Takes a range back.
    fn give(&mut self, range: IovaRange, kind: AllocKind);
    /// Gives up all that is kept for reuse.
    fn drain(&mut self) -> PageCount {
        PageCount(0)
    }
    /// Whether exactly this range is allocated.
    fn holds(&self, range: IovaRange) -> bool;
    /// Where the pages are.
    fn usage(&self) -> Usage;
    /// Nodes that searches have looked at, ever.
    fn visited(&self) -> u64;
    /// Checks every invariant; the error names what does not hold.
    fn audit(&self) -> Result<(), String>;
    /// What to print of it.
    fn sketch(&self) -> Sketch;
}

/// What is about to be taken.
pub enum Taking {
    /// A run, anywhere.
    Run(Run),
    /// A run within limits.
    Within(Run),
    /// Just this range.
    Exactly(IovaRange),
}

impl Taking {
    /// Into how many ranges it comes.
    #[inline]
    pub fn ranges(&self) -> usize {
        match self {
            Taking::Run(run) | Taking::Within(run) => run.count(),
            Taking::Exactly(_) => 1,
        }
    }
    fn pages(&self) -> PageCount {
        match self {
            Taking::Run(run) | Taking::Within(run) => PageCount(run.pages()),
            Taking::Exactly(range) => range.pages,
        }
    }
}

/// Ranges behind a lock: an allocator.
pub struct Locked<P: Platform, R: Ranges> {
    aperture: IovaRange,
    ranges: P::Lock<R>,
}

impl<P: Platform, R: Ranges> Locked<P, R> {
    /// All of `aperture` is free. What of it lies beyond page number 2^64 - 1 is cut off.
    pub(super) fn over(aperture: IovaRange, ranges: impl FnOnce(IovaRange) -> R) -> Self {
        let aperture = clipped(aperture);
        Locked {
            aperture,
            ranges: P::Lock::new(ranges(aperture)),
        }
    }

    /// All pages that there are.
    pub fn aperture(&self) -> IovaRange {
        self.aperture
    }

    /// How many nodes searches have looked at since the beginning: the price of allocating, in
    /// no unit of time.
    pub fn nodes_visited(&self) -> u64 {
        self.ranges.with(|ranges| ranges.visited())
    }

    /// What `look` sees of the ranges.
    pub(super) fn look<T>(&self, look: impl FnOnce(&R) -> T) -> T {
        self.ranges.with(|ranges| look(ranges))
    }

    /// By `take`, with room for `what`.
    fn with_room<T>(&self, what: &Taking, take: impl Fn(&mut R) -> T) -> Result<T, NoMemory> {
        loop {
            let taken = self.ranges.with_counted(R::visited, |ranges| {
                ranges.has_room(what).then(|| take(ranges))
            });
            match taken {
                Some(taken) => return Ok(taken),
                None => self.enlarge(what)?,
            }
        }
    }

    /// Allocates what the ranges are short of; where there is no memory, what is kept for reuse may
    /// be in the way.
    fn enlarge(&self, what: &Taking) -> Result<(), NoMemory> {
        let mut room = self.ranges.with(|ranges| ranges.short(what));
        match room.allocate() {
            Ok(()) => self.ranges.with(|ranges| ranges.enlarge(&mut room)),
            Err(NoMemory) if self.ranges.with(|ranges| ranges.drain()).0 > 0 => {}
            Err(none) => return Err(none),
        }
        Ok(())
    }

    /// Whatever there is room for and is found at once.
    #[inline]
    fn find_fast(&self, run: Run) -> Option<IovaRange> {
        self.ranges.with_counted(R::visited, |ranges| {
            match ranges.has_room(&Taking::Run(run)) {
                true => ranges.take(run),
                false => None,
            }
        })
    }

    /// By `take`, if need be again after everything kept for reuse was given up; not for what is
    /// larger than the aperture.
    fn find(
        &self,
        what: Taking,
        full: AllocErrorCause,
        take: impl Fn(&mut R) -> Option<IovaRange>,
    ) -> Result<IovaRange, AllocError> {
        let wanted = what.pages();
        if wanted > self.aperture.pages {
            return Err(self.failed(wanted, full));
        }
        let found = self.with_room(&what, |ranges| {
            take(ranges)
                .or_else(|| match ranges.drain() {
                    PageCount(0) => None,
                    _ => take(ranges),
                })
                .ok_or_else(|| ranges.usage())
        });
        match found {
            Ok(Ok(range)) => Ok(range),
            Ok(Err(usage)) => Err(self.failed_at(wanted, full, usage)),
            Err(NoMemory) => Err(self.failed(wanted, AllocErrorCause::NoMemory)),
        }
    }

    #[cold]
    #[inline(never)]
    fn find_otherwise(&self, request: &Request) -> Result<IovaRange, AllocError> {
        let Request { pages, limits, .. } = request;
        if !limits.is_none() {
            return self.find_within(*pages, limits);
        }
        let run = self.run(*pages, 1)?;
        self.find(Taking::Run(run), AllocErrorCause::Full, |ranges| {
            ranges.take(run)
        })
    }

    fn find_within(&self, pages: PageCount, limits: &Limits) -> Result<IovaRange, AllocError> {
        let search = Run::single(pages)
            .ok_or(AllocErrorCause::Full)
            .and_then(|run| Search::new(run, limits, self.aperture));
        let search = search.map_err(|cause| self.failed(granted_or_all(pages), cause))?;
        self.find(Taking::Within(search.run), limits.full(), |ranges| {
            let mut windows = search.windows();
            windows.find_map(|window| ranges.take_within(search.run, window))
        })
    }

    #[cold]
    fn failed(&self, wanted: PageCount, cause: AllocErrorCause) -> AllocError {
        let usage = self.ranges.with(|ranges| ranges.usage());
        self.failed_at(wanted, cause, usage)
    }

    fn failed_at(&self, wanted: PageCount, cause: AllocErrorCause, usage: Usage) -> AllocError {
        AllocError {
            wanted,
            free: usage.free,
            cached: usage.cached,
            aperture: self.aperture.pages,
            cause,
        }
    }

    /// A run for which the numbers do not overflow.
    #[inline]
    fn run(&self, each: PageCount, count: u64) -> Result<Run, AllocError> {
        Run::new(each, count).ok_or_else(|| {
            let wanted = granted_or_all(each).0.saturating_mul(count.max(1));
            self.failed(PageCount(wanted), AllocErrorCause::Full)
        })
    }
}

impl<P: Platform, R: Ranges> IovaAllocator<P> for Locked<P, R> {
    #[inline(always)] // all but its first try is out of line
    fn alloc(&self, _p: &P, request: &Request) -> Result<IovaAlloc, AllocError> {
        let single = request.limits.is_none().then(|| Run::single(request.pages));
        let range = match single.flatten().and_then(|run| self.find_fast(run)) {
            Some(range) => range,
            None => self.find_otherwise(request)?,
        };
        Ok(IovaAlloc::new(range, AllocKind::Dynamic))
    }

    fn reserve(&self, _p: &P, wanted: IovaRange) -> Result<IovaAlloc, FixedRangeError> {
        let wanted = inside(self.aperture, wanted)?;
        let taken = self.with_room(&Taking::Exactly(wanted), |ranges| {
            ranges
                .take_exactly(wanted)
                .or_else(|taken| match ranges.drain() {
                    PageCount(0) => Err(taken),
                    _ => ranges.take_exactly(wanted),
                })
        });
        match taken {
            Ok(Ok(())) => Ok(IovaAlloc::new(wanted, AllocKind::Fixed)),
            Ok(Err(taken)) => Err(FixedRangeError::Taken { wanted, taken }),
            Err(NoMemory) => Err(FixedRangeError::NoMemory { wanted }),
        }
    }

    fn free(&self, _p: &P, _home: CpuIndex, alloc: Flushed<IovaAlloc>) {
        let alloc = alloc.into_inner();
        let (range, kind) = (alloc.range(), alloc.kind());
        self.ranges.with(|ranges| ranges.give(range, kind));
    }

    fn drain(&self, _p: &P) -> PageCount {
        self.ranges.with(|ranges| ranges.drain())
    }

    fn usage(&self, _p: &P) -> Usage {
        self.ranges.with(|ranges| ranges.usage())
    }

    fn audit(&self, _p: &P) -> Result<(), String> {
        let found = self.ranges.with(|ranges| ranges.audit());
        found.map_err(|what| format!("{}: {what}", R::NAME))
    }

    fn describe(&self, _p: &P, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // copied out first: printing may allocate, which the lock's contract forbids
        let (sketch, usage) = self.ranges.with(|ranges| (ranges.sketch(), ranges.usage()));
        let (name, aperture, allocated) = (R::NAME, self.aperture, usage.allocated);
        write!(f, "{name} {aperture}: {allocated} pages allocated, ")?;
        write!(f, "{} cached; {sketch}", usage.cached)
    }
}

impl<P: Platform, R: Ranges> Refill<P> for Locked<P, R> {
    fn alloc_run(&self, each: PageCount, count: u64) -> Result<IovaRange, AllocError> {
        let run = self.run(each, count)?;
        self.find(Taking::Run(run), AllocErrorCause::Full, |ranges| {
            ranges.take(run)
        })
    }

    fn free_all(&self, all: impl Iterator<Item = IovaRange>) {
        self.ranges.with(|ranges| {
            all.for_each(|range| ranges.give(range, AllocKind::Dynamic));
        });
    }

    fn holds(&self, range: IovaRange) -> bool {
        self.ranges.with(|ranges| ranges.holds(range))
    }
}

/// A few words about the ranges, copied out of the lock.
#[derive(Clone, Copy)]
pub struct Sketch {
    /// How many are in use.
    ranges: usize,
    /// Where a scan begins, if not always at the same place.
    cached_node: Option<IovaRange>,
    /// Which of them are shown.
    from: &'static str,
    shown: [Option<IovaRange>; SKETCHED],
}

/// How many ranges are shown.
const SKETCHED: usize = 8;

impl Sketch {
    /// The first few of `all`, the order of which is `from`, of `ranges` in use.
    pub fn of(ranges: usize, from: &'static str, all: impl Iterator<Item = IovaRange>) -> Self {
        let mut shown = [None; SKETCHED];
        let slots = shown.iter_mut().zip(all);
        slots.for_each(|(to, range)| *to = Some(range));
        Sketch {
            ranges,
            cached_node: None,
            from,
            shown,
        }
    }
    /// With where a scan begins.
    pub fn with_cached_node(self, cached_node: Option<IovaRange>) -> Self {
        Sketch {
            cached_node,
            ..self
        }
    }
}

impl fmt::Display for Sketch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ranges", self.ranges)?;
        if let Some(range) = self.cached_node {
            write!(f, ", cached node {range}")?;
        }
        for (nth, range) in self.shown.into_iter().flatten().enumerate() {
            match nth {
                0 => write!(f, "; {} {range}", self.from)?,
                _ => write!(f, " {range}")?,
            }
        }
        if self.ranges > SKETCHED {
            write!(f, " ..")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::one_cpu::OneCpu;

    fn tree(first: u64, pages: u64) -> Rbtree<OneCpu> {
        Rbtree::new(IovaRange::new(IovaPage(first), PageCount(pages)))
    }

    fn run(tree: &Rbtree<OneCpu>, each: u64, count: u64) -> Option<(u64, u64)> {
        let found = tree.alloc_run(PageCount(each), count).ok();
        tree.ranges.with(|ranges| ranges.audit()).unwrap();
        found.map(|range| (range.first.0, range.pages.0))
    }

    #[test]
    fn a_run_is_aligned_as_a_whole_and_comes_back_in_pieces() {
        let tree = tree(3, 125);
        assert_eq!(run(&tree, 1, 1), Some((127, 1)));
        assert_eq!(run(&tree, 1, 8), Some((112, 8)));
        assert_eq!(run(&tree, 3, 8), Some((64, 32)));
        // 3 x 2 pages, aligned to 8
        assert_eq!(run(&tree, 2, 3), Some((56, 6)));
        for nth in 0..8 {
            let range = IovaRange::new(IovaPage(64 + 4 * nth), PageCount(4));
            assert!(tree.holds(range));
            tree.free_all([range].into_iter());
            assert!(!tree.holds(range));
        }
        assert_eq!(run(&tree, 32, 1), Some((64, 32)));
    }

    #[test]
    fn a_run_that_fits_nowhere_takes_nothing() {
        let tree = tree(1, 15);
        assert_eq!(run(&tree, 1, 16), None);
        for (each, count) in [
            (u64::MAX, 1),
            (1 << 40, 1 << 40),
            (1 << 62, 3),
            (1, u64::MAX),
        ] {
            assert_eq!(run(&tree, each, count), None);
        }
        assert_eq!(
            tree.ranges.with(|ranges| ranges.usage().free),
            PageCount(15)
        );
        assert_eq!(run(&tree, 1, 0), Some((15, 1)));
    }

    #[test]
    fn the_audit_names_a_range_that_was_not_in_use() {
        let tree = tree(1, 15);
        assert_eq!(run(&tree, 2, 1), Some((14, 2)));
        tree.free_all([IovaRange::new(IovaPage(14), PageCount(1))].into_iter());
        let what = tree.ranges.with(|ranges| ranges.audit()).unwrap_err();
        assert!(what.contains("1 ranges were given back"), "{what}");
        assert_eq!(
            tree.ranges.with(|ranges| ranges.usage().allocated),
            PageCount(2)
        );
    }
}
