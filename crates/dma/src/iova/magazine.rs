// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Per-CPU magazines of IOVA ranges over any [`Backing`] (ATC'15 §4.3).
//!
//! # Theory
//!
//! Each size class (1, 2, 4.. pages) has magazines of its own, which hold first pages; the class
//! says how many follow. What is cached stays *in use* in the tree, so allocating from a magazine
//! touches neither tree nor its lock. An allocation looks at loaded, previous and depot, then
//! refills from the tree; a free goes to the magazines of its origin CPU.
//!
//! A refill takes a *run* of adjacent ranges, aligned as a whole, and keeps all but the one asked
//! for. Eight entries of 8 bytes are a cache line of a page table: CPUs that got their pages in
//! such runs do not write to each other's lines. A CPU that finds nothing again takes twice as many
//! the next time (8, 16, 32..), up to a full magazine. So a domain that maps little takes little,
//! and one that maps much visits the tree once in M allocations, as it does once in M frees when
//! the depot is full. Where no place for such a run is left it asks for the shortest one, and then
//! for single ranges.
//!
//! Straight to the tree go ranges beyond the largest class, and fixed ones, which are of any size
//! and place. A request with limits is served from a magazine if what that offers is allowed and
//! lies where it is preferred; else the offer is put back, the tree is asked with the limits, and
//! the request counts as diverted ([`Usage::diverted`]). When the tree is exhausted, or a fixed
//! range is taken, all magazines are drained into it and it is asked once more; so what is cached
//! by other CPUs never fails a request, unless it is on its way between the two at that moment.
//!
//! Invariants ([`IovaAllocator::audit`]): each cached range is in use in the tree under just this
//! size, and cached once.
//!
//! Locking: that of [`crate::magazine`]; the tree is never entered with a lock held, nor pinned.
//!
//! Memory: capped for each CPU, in bytes and in pages; see [`MagazineConfig`]. What lies idle in
//! the depots goes back to the tree by and by ([`IovaAllocator::tick`]).
//!
//! Not handled: keeping the tree's packing when magazines spread ranges over CPUs.

use super::{backing::Refill, *};
use crate::magazine::{self, Overflow, Visits};
use crate::platform::{Atomic64, Ordering};
use alloc::{boxed::Box, format, string::String};
use core::num::NonZeroU64;

/// Magazines over a [`Backing`].
pub struct Magazines<P: Platform> {
    tree: Backing<P>,
    classes: Box<[Class<P>]>,
    config: MagazineConfig,
    /// Requests whose limits no magazine could keep.
    diverted: P::A64,
    /// When idle magazines were last looked for, in ns.
    looked: P::A64,
}

/// Idle magazines of a class that one tick frees, so that a tick is short.
const IDLE_AT_ONCE: usize = 4;

/// The magazines of ranges of one size.
struct Class<P: Platform> {
    pages: PageCount,
    kept: magazine::Magazines<P, IovaPage>,
}

/// Log2 of the smallest power of two that is at least `pages`: how many bits the number of the last
/// page has. 64 where there are no pages.
#[inline]
fn class_lg2(pages: PageCount) -> u32 {
    match NonZeroU64::new(pages.0.wrapping_sub(1)) {
        Some(last) => last.ilog2() + 1,
        None => 0,
    }
}

impl<P: Platform> Class<P> {
    #[inline]
    fn range(&self, first: IovaPage) -> IovaRange {
        IovaRange::new(first, self.pages)
    }
    fn alloc(&self, first: IovaPage) -> IovaAlloc {
        IovaAlloc::new(self.range(first), AllocKind::Dynamic)
    }
    fn kept_pages(&self) -> u64 {
        self.kept.kept() as u64 * self.pages.0
    }
}

impl<P: Platform> Magazines<P> {
    /// Empty magazines over a tree of `aperture`. See [`Backing::new`].
    pub fn new(p: &P, config: MagazineConfig, aperture: IovaRange) -> Self {
        let config = config.limited();
        let class = |(lg2, sizes)| Class {
            pages: PageCount(1u64 << lg2),
            kept: magazine::Magazines::new(p, sizes),
        };
        let sizes = config.class_sizes(p.cpus()).into_iter().enumerate();
        let classes: Box<[Class<P>]> = sizes.map(class).collect();
        Magazines {
            tree: Backing::new(p, config.backing, aperture),
            classes,
            config,
            diverted: P::A64::new(0),
            looked: P::A64::new(0),
        }
    }

    /// The allocator that refills the magazines.
    pub fn backing(&self) -> &Backing<P> {
        &self.tree
    }

    /// The sizes in use.
    pub fn config(&self) -> MagazineConfig {
        self.config
    }

    /// How often CPUs had to go beyond their magazines, for each size class. A miss is one refill,
    /// of a run where there is place for one.
    pub fn visits(&self) -> impl Iterator<Item = (PageCount, Visits)> {
        let classes = self.classes.iter();
        classes.map(|class| (class.pages, class.kept.visits()))
    }

    /// Bytes of all magazines that there are, whatever is in them.
    pub fn bytes(&self) -> ByteCount {
        ByteCount(self.classes.iter().map(|class| class.kept.bytes().0).sum())
    }

    /// The class that serves `pages`, if they are not too many.
    #[inline]
    fn class(&self, pages: PageCount) -> Option<&Class<P>> {
        self.classes.get(class_lg2(pages) as usize)
    }

    /// The magazines' part of [`AnyAllocator::alloc_fast_with`].
    #[inline(always)]
    pub(super) fn alloc_fast_with<const MOST: usize, R>(
        &self,
        cpu: &Cpu<'_>,
        pages: PageCount,
        serves: impl FnOnce(IovaRange) -> Option<R>,
    ) -> Option<(IovaPage, R)> {
        // what the compiler knows of the class
        let (class, granted) = match MOST {
            0 => {
                let class = self.class(pages)?;
                (class, class.pages)
            }
            most => {
                let class = self.classes.get(most.ilog2() as usize)?;
                (class, PageCount(most as u64))
            }
        };
        let serves = |first| serves(IovaRange::new(first, granted));
        class.kept.take_fast_if(cpu, serves)
    }

    /// The magazines' part of [`AnyAllocator::bring_to_hand`].
    pub(super) fn bring_to_hand(&self, cpu: &Cpu<'_>, pages: PageCount) {
        if let Some(class) = self.class(pages) {
            class.kept.bring_to_hand(cpu);
        }
    }

    /// The class that `alloc` comes from and goes to, if there is one.
    #[inline]
    fn class_of(&self, alloc: &IovaAlloc) -> Option<&Class<P>> {
        self.classes.get(alloc.class_lg2()? as usize)
    }

    /// A range for `pages`, if this CPU has one cached: see [`AnyAllocator::alloc_fast`].
    #[inline]
    pub fn alloc_fast(&self, p: &P, pages: PageCount) -> Option<IovaAlloc> {
        let class = self.class(pages)?;
        let first = p.try_pinned(|cpu| class.kept.take_fast(&cpu))??;
        Some(class.alloc(first))
    }

    /// The slow path: limits, sizes without a class, an exchange of magazines, a refill.
    #[cold]
    #[inline(never)]
    fn alloc_slow(&self, p: &P, request: &Request) -> Result<IovaAlloc, AllocError> {
        let Some(class) = self.class(request.pages) else {
            return self.alloc_single(p, request);
        };
        if !request.limits.is_none() {
            return self.alloc_within(p, class, request);
        }
        if let Some(first) = p.pinned(|cpu| class.kept.take(&cpu)) {
            return Ok(class.alloc(first));
        }
        self.refill(p, class)
            .map_or_else(|| self.alloc_single(p, request), Ok)
    }

    /// One range from a run of the tree; the others are kept for the CPU that this is.
    fn refill(&self, p: &P, class: &Class<P>) -> Option<IovaAlloc> {
        let origin = p.pinned(|cpu| cpu.index());
        let most = class.kept.sizes().magazine_len + 1;
        let shortest = self.config.run.min(most);
        let again = class.kept.misses(origin).saturating_sub(1).min(12); // 2^12 is beyond any magazine
        let longest = (shortest << again).min(most - 1).max(shortest);
        let run = |count: usize| {
            let run = self.tree.alloc_run(class.pages, count as u64).ok()?;
            Some((run.first, count))
        };
        let found = match run(longest) {
            None if longest > shortest => run(shortest),
            found => found,
        };
        let (first, count) = found?;
        // lowest first, so that they are handed out from the highest down, as the tree does
        let nth = |nth: usize| IovaPage(first.0 + nth as u64 * class.pages.0);
        let mut lower = (0..count - 1).map(nth);
        class.kept.fill(origin, &mut lower);
        if lower.len() > 0 {
            // no room: someone has filled this CPU's magazine since we found it empty
            self.tree.free_all(lower.map(|first| class.range(first)));
        }
        Some(class.alloc(nth(count - 1)))
    }

    /// From the tree alone; everything cached goes into it if that is what it takes.
    fn alloc_single(&self, p: &P, request: &Request) -> Result<IovaAlloc, AllocError> {
        self.tree.alloc(p, request).or_else(|error| {
            if error.is_final() {
                return Err(AllocError {
                    cached: PageCount(error.cached.0 + self.cached().0),
                    ..error
                });
            }
            self.drain(p);
            let retried = self.tree.alloc(p, request);
            retried.map_err(|error| AllocError {
                cached: PageCount(error.cached.0 + self.cached().0),
                ..error
            })
        })
    }

    /// From the magazines if what they offer keeps the limits, else from the tree.
    fn alloc_within(
        &self,
        p: &P,
        class: &Class<P>,
        request: &Request,
    ) -> Result<IovaAlloc, AllocError> {
        let offered = p.pinned(|cpu| {
            let first = class.kept.take(&cpu)?;
            Some((first, cpu.index()))
        });
        if let Some((first, cpu)) = offered {
            if request.limits.prefer(class.range(first)) {
                return Ok(class.alloc(first));
            }
            self.keep(class, cpu, first);
        }
        self.diverted.fetch_add(1, Ordering::Relaxed);
        self.alloc_single(p, request)
    }

    fn keep(&self, class: &Class<P>, origin: CpuIndex, first: IovaPage) {
        if let Some(overflow) = class.kept.give(origin, first) {
            self.spill(class, overflow);
        }
    }

    #[cold]
    #[inline(never)]
    fn spill(&self, class: &Class<P>, overflow: Overflow<IovaPage>) {
        let things = overflow.things();
        self.tree.free_all(things.map(|first| class.range(first)));
        class.kept.recycle(overflow);
    }

    /// The slow path: ranges without a class, an exchange of magazines, an overflow.
    #[cold]
    #[inline(never)]
    pub(super) fn free_slow(&self, p: &P, origin: CpuIndex, alloc: Flushed<IovaAlloc>) {
        match self.class_of(alloc.get()) {
            Some(class) => self.keep(class, origin, alloc.into_inner().range().first),
            None => self.tree.free(p, origin, alloc),
        }
    }

    /// Takes back what the loaded magazine of its origin has room for; else it comes back, for the
    /// slow path.
    #[inline]
    pub(super) fn free_fast(
        &self,
        origin: CpuIndex,
        alloc: Flushed<IovaAlloc>,
    ) -> Result<(), Flushed<IovaAlloc>> {
        if let Some(class) = self.class_of(alloc.get())
            && class.kept.give_fast(origin, alloc.get().range().first)
        {
            let _kept = alloc.into_inner();
            return Ok(());
        }
        Err(alloc)
    }

    /// [`IovaAllocator::free_many`], but what has no class goes to `other`.
    #[inline]
    pub(super) fn free_many_with(
        &self,
        mut next: impl FnMut() -> Option<(CpuIndex, Flushed<IovaAlloc>)>,
        mut other: impl FnMut(CpuIndex, Flushed<IovaAlloc>),
    ) {
        let mut ahead = next();
        while let Some((origin, alloc)) = ahead {
            let Some(class) = self.class_of(alloc.get()) else {
                other(origin, alloc);
                ahead = next();
                continue;
            };
            ahead = None;
            let alloc = alloc.into_inner();
            // those that follow and are of the same class and CPU, under the same acquisition
            let over = class.kept.give_while(origin, alloc.range().first, || {
                let (to, flushed) = next()?;
                if to == origin && flushed.get().is_like(&alloc) {
                    return Some(flushed.into_inner().range().first);
                }
                ahead = Some((to, flushed));
                None
            });
            if let Some(first) = over {
                self.keep(class, origin, first);
                ahead = next();
            }
        }
    }

    fn cached(&self) -> PageCount {
        PageCount(self.classes.iter().map(Class::kept_pages).sum())
    }
}

impl<P: Platform> IovaAllocator<P> for Magazines<P> {
    #[inline]
    fn alloc(&self, p: &P, request: &Request) -> Result<IovaAlloc, AllocError> {
        // from here on nothing is called but the slow path, in tail position, so that no register
        // need be saved
        if request.limits.is_none()
            && let Some(class) = self.class(request.pages)
            && let Some(first) = p.try_pinned(|cpu| class.kept.take_fast(&cpu)).flatten()
        {
            return Ok(class.alloc(first));
        }
        // a copy, here: so that a request that is inlined need not be in memory before
        self.alloc_slow(p, &{ *request })
    }

    fn reserve(&self, p: &P, range: IovaRange) -> Result<IovaAlloc, FixedRangeError> {
        self.tree.reserve(p, range).or_else(|error| match error {
            FixedRangeError::Taken { .. } | FixedRangeError::NoMemory { .. } => {
                self.drain(p);
                self.tree.reserve(p, range)
            }
            _ => Err(error),
        })
    }

    fn reserve_idle(&self, p: &P, range: IovaRange) -> Option<IovaAlloc> {
        for class in &self.classes {
            let kept_there = |first: &IovaPage| range.overlaps(&class.range(*first));
            class.kept.send_away(kept_there, |firsts| {
                self.tree.free_all(firsts.map(|first| class.range(first)));
            });
        }
        self.tree.reserve(p, range).ok()
    }

    #[inline]
    fn free(&self, p: &P, origin: CpuIndex, alloc: Flushed<IovaAlloc>) {
        if let Err(alloc) = self.free_fast(origin, alloc) {
            self.free_slow(p, origin, alloc);
        }
    }

    #[inline]
    fn free_many(&self, p: &P, next: impl FnMut() -> Option<(CpuIndex, Flushed<IovaAlloc>)>) {
        self.free_many_with(next, |origin, alloc| self.free_slow(p, origin, alloc));
    }

    fn drain(&self, p: &P) -> PageCount {
        // what the tree keeps itself is counted before what it gets from here
        let mut drained = self.tree.drain(p).0;
        for class in &self.classes {
            class.kept.drain(|firsts| {
                let ranges = firsts.map(|first| class.range(first));
                self.tree
                    .free_all(ranges.inspect(|range| drained += range.pages.0));
            });
        }
        self.tree.drain(p);
        PageCount(drained)
    }

    fn tick(&self, _p: &P, now: TimeNs) {
        // a relaxed load and store: of two ticks at once both may look, and the second then finds
        // little
        let due = self.looked.load(Ordering::Relaxed);
        if now.0 < due.saturating_add(self.config.idle.0) {
            return;
        }
        self.looked.store(now.0, Ordering::Relaxed);
        for class in &self.classes {
            class.kept.shrink_idle(IDLE_AT_ONCE, |firsts| {
                self.tree.free_all(firsts.map(|first| class.range(first)));
            });
        }
    }

    fn usage(&self, p: &P) -> Usage {
        let tree = self.tree.usage(p);
        let cached = self.cached();
        Usage {
            cached: PageCount(cached.0 + tree.cached.0),
            diverted: tree.diverted + self.diverted.load(Ordering::Relaxed),
            // cached ranges are in use as the tree sees it; others may have moved between the two
            // looks
            allocated: PageCount(tree.allocated.0.saturating_sub(cached.0)),
            ..tree
        }
    }

    fn audit(&self, p: &P) -> Result<(), String> {
        self.tree.audit(p)?;
        for class in &self.classes {
            let named = |what: String| format!("magazines of {} pages: {what}", class.pages);
            class.kept.audit().map_err(named)?;
            let mut firsts = class.kept.snapshot();
            firsts.sort_unstable();
            if let Some(pair) = firsts.windows(2).find(|pair| pair[0] == pair[1]) {
                return Err(named(format!("page {} is cached twice", pair[0])));
            }
            for range in firsts.into_iter().map(|first| class.range(first)) {
                if range.first.0 % range.pages.0 != 0 || !self.tree.holds(range) {
                    return Err(named(format!(
                        "{range} is cached, but not in use in the tree"
                    )));
                }
            }
        }
        Ok(())
    }

    fn describe(&self, p: &P, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "magazines of {}, cached", self.config.magazine_len)?;
        for class in self.classes.iter().filter(|class| class.kept.kept() > 0) {
            write!(f, " {}x{}", class.kept.kept(), class.pages)?;
        }
        write!(f, " ({} pages), over ", self.cached())?;
        self.tree.describe(p, f)
    }
}
