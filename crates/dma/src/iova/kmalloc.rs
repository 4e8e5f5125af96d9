// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! IOVA-kmalloc: page numbers are addresses that a general-purpose allocator returns (ATC'15 §4.2).
//!
//! # Theory
//!
//! To allocate R bytes, ask the platform's [`Heap`] for a block of ceil(R/4096) *bytes*, and take
//! the addresses of these bytes for page numbers. Blocks are disjoint, so the ranges are; the
//! memory is never touched. It costs a byte a page, eight at least, as much as the page's leaf.
//! What the heap does to scale serves IOVAs too; nothing here is locked.
//!
//! An address is the offset of the block in the heap's arena. The paper has physical addresses: no
//! two of them name the same page as long as they have 36 bits, which it ensures by asking for
//! memory of a low zone (GFP_DMA) of at most 64 GiB. An arena is that zone, counted from its own
//! start, and its size is checked when the allocator is made: at most a byte for each page of the
//! aperture, and 64 GiB. So in 39 bits it is at most 128 MiB. Page 0 is never allocated, for no
//! block is at offset 0.
//!
//! Others allocate from the same heap, so IOVAs spread as memory does, and there may be no end of
//! page tables; that is what the paper found (figure 6).
//!
//! An allocation is as long as its block: what a heap grants follows from the length asked for,
//! [`HeapBlock::rounded`].
//!
//! The caller has no say in where a block lies. So a request with limits is tried, and where they
//! are broken the block is given back and the request served, as fixed ranges are, from the
//! *fallback*: magazines over a tree of the pages beyond the arena. Where the arena has all pages,
//! the fallback has none, and that is refused. A fixed range inside the arena is reserved, and can
//! be had only while the arena has no allocation. A block that overlaps such a range is *parked*,
//! for good, and another asked for, [`PARKED_AT_ONCE`] blocks in all at most; one of more than
//! [`PARKED_MAX`] bytes is given back, and the request goes to the fallback.
//!
//! Blocks are borrowed: what is mapped still when the domain ends goes back to the heap then
//! ([`IovaAllocator::borrowed`]). Parked ones stay where they are, in the way of no other domain
//! that keeps the same range off.
//!
//! Not handled: whether the fallback honours limits is the fallback's matter.

use super::{reserved_ranges::ReservedRanges, *};
use crate::platform::{Atomic64, Heap, HeapBlock, Ordering, PerCpu};
use alloc::{format, string::String};

/// The largest arena in which addresses have 36 bits.
pub const ARENA_MAX: ByteCount = ByteCount(64 << 30);
/// Blocks that one request may park.
pub const PARKED_AT_ONCE: usize = 16;
/// The largest block that is parked: larger ones would take too much of the heap
/// from its other users.
pub const PARKED_MAX: ByteCount = ByteCount(512);

/// Sizes of [`Kmalloc`]. The heap is the platform's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct KmallocConfig {
    /// The sizes of the fallback.
    pub fallback: MagazineConfig,
}

setters!(const KmallocConfig {
    fallback: MagazineConfig,
});

impl KmallocConfig {
    /// The fallback's own.
    pub const DEFAULT: Self = KmallocConfig {
        fallback: MagazineConfig::DEFAULT,
    };
}

impl Default for KmallocConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// See the module's theory.
pub struct Kmalloc<P: Platform> {
    arena: IovaRange,
    allocs: ReservedRanges<P>,
    fallback: Magazines<P>,
    counts: PerCpu<Counts<P>>,
}

struct Counts<P: Platform> {
    diverted: P::A64,
    parked: P::A64,
}

/// Why a block does not serve.
enum Unfit {
    /// The heap has none.
    NoBlock,
    /// The fallback may serve.
    Misplaced,
}

impl<P: Platform> Kmalloc<P> {
    /// Takes pages from the platform's heap, or beyond its arena.
    ///
    /// # Errors
    /// [`AllocatorError::NoHeap`]; [`AllocatorError::KmallocAperture`] and
    /// [`AllocatorError::KmallocArena`], if page numbers do not begin at 0 or could collide;
    /// [`AllocatorError::Offset`], if nothing is left for the fallback.
    pub fn new(
        p: &P,
        config: KmallocConfig,
        aperture: IovaRange,
        offset: PageCount,
    ) -> Result<Self, AllocatorError> {
        let arena = p.heap().ok_or(AllocatorError::NoHeap)?.arena();
        if aperture.first.0 != 0 {
            return Err(AllocatorError::KmallocAperture { aperture });
        }
        let limit = ByteCount(aperture.pages.0.min(ARENA_MAX.0));
        if arena > limit {
            return Err(AllocatorError::KmallocArena { arena, limit });
        }
        let beyond = PageCount(aperture.pages.0 - arena.0);
        let beyond = IovaRange::new(IovaPage(arena.0), beyond);
        let left = config.fallback.backing.with_offset(beyond, offset);
        let beyond = left.ok_or(AllocatorError::Offset {
            offset,
            aperture: beyond,
        })?;
        let arena = IovaRange::new(IovaPage(0), PageCount(arena.0));
        Ok(Kmalloc {
            arena,
            allocs: ReservedRanges::new(p, arena),
            fallback: Magazines::new(p, config.fallback, beyond),
            counts: PerCpu::new(p, || Counts {
                diverted: P::A64::new(0),
                parked: P::A64::new(0),
            }),
        })
    }

    /// What serves where the heap does not.
    pub fn fallback(&self) -> &Magazines<P> {
        &self.fallback
    }

    /// Blocks that were parked, ever.
    pub fn parked(&self) -> u64 {
        self.sum(|counts| &counts.parked)
    }

    fn sum(&self, pick: fn(&Counts<P>) -> &P::A64) -> u64 {
        let counts = self.counts.iter().map(|(_, counts)| pick(counts));
        counts.map(|count| count.load(Ordering::Relaxed)).sum()
    }

    fn count(&self, p: &P, pick: fn(&Counts<P>) -> &P::A64) {
        p.pinned(|cpu| pick(self.counts.get(&cpu)).fetch_add(1, Ordering::Relaxed));
    }

    /// A block that keeps the limits and overlaps nothing that is reserved, counted as allocated.
    #[inline]
    fn block(&self, p: &P, request: &Request) -> Result<IovaRange, Unfit> {
        let heap = p.heap().ok_or(Unfit::NoBlock)?;
        let len = ByteCount(request.pages.0);
        for _ in 0..PARKED_AT_ONCE {
            let block = heap.alloc(len).ok_or(Unfit::NoBlock)?;
            let range = pages_of(block);
            if !request.limits.allow(range) {
                give_back(heap, block);
                return Err(Unfit::Misplaced);
            }
            if self.allocs.lend(p, range).is_some() {
                return Ok(range);
            }
            if block.len > PARKED_MAX {
                give_back(heap, block);
                return Err(Unfit::Misplaced);
            }
            self.count(p, |counts| &counts.parked);
        }
        Err(Unfit::Misplaced)
    }

    #[cold]
    fn none(&self, p: &P, request: &Request) -> AllocError {
        let Usage {
            free,
            cached,
            aperture,
            ..
        } = self.usage(p);
        AllocError {
            wanted: self.granted(request.pages),
            free,
            cached,
            aperture,
            // never final: another block may serve
            cause: request.limits.full(),
        }
    }
}

fn pages_of(block: HeapBlock) -> IovaRange {
    IovaRange::new(IovaPage(block.offset.0), PageCount(block.len.0))
}

fn give_back(heap: &dyn Heap, block: HeapBlock) {
    let freed = heap.free(block);
    debug_assert!(freed.is_ok(), "{freed:?}"); // a heap that does not know its own block
}

impl<P: Platform> IovaAllocator<P> for Kmalloc<P> {
    #[inline]
    fn alloc(&self, p: &P, request: &Request) -> Result<IovaAlloc, AllocError> {
        match self.block(p, request) {
            Ok(range) => Ok(IovaAlloc::new(range, AllocKind::Dynamic)),
            Err(Unfit::NoBlock) => Err(self.none(p, request)),
            Err(Unfit::Misplaced) => {
                // as long as a block, so that an allocation follows from its mapping
                let pages = self.granted(request.pages);
                let alloc = self.fallback.alloc(p, &Request { pages, ..*request });
                let alloc = alloc.map_err(|_| self.none(p, request))?;
                self.count(p, |counts| &counts.diverted);
                Ok(alloc)
            }
        }
    }

    fn granted(&self, pages: PageCount) -> PageCount {
        granted(PageCount(pages.0.max(HeapBlock::MIN.0)))
    }

    fn borrowed(&self) -> Option<IovaRange> {
        Some(self.arena)
    }

    fn reserve(&self, p: &P, range: IovaRange) -> Result<IovaAlloc, FixedRangeError> {
        let pages = PageCount(self.arena.pages.0 + self.fallback.usage(p).aperture.0);
        let range = backing::inside(IovaRange::new(IovaPage(0), pages), range)?;
        if self.arena.contains(&range) {
            return self.allocs.reserve(range);
        }
        let alloc = self.fallback.reserve(p, range)?;
        self.count(p, |counts| &counts.diverted);
        Ok(alloc)
    }

    #[inline]
    fn free(&self, p: &P, origin: CpuIndex, alloc: Flushed<IovaAlloc>) {
        let (range, kind) = (alloc.get().range(), alloc.get().kind());
        if range.first >= self.arena.end() {
            return self.fallback.free(p, origin, alloc);
        }
        if kind == AllocKind::Fixed {
            return self.allocs.free(alloc.into_inner().range());
        }
        let range = alloc.into_inner().range();
        if let Some(heap) = p.heap() {
            let block = HeapBlock {
                offset: ByteCount(range.first.0),
                len: ByteCount(range.pages.0),
            };
            give_back(heap, block);
        }
        self.allocs.take_back(p, range.pages);
    }

    fn tick(&self, p: &P, now: TimeNs) {
        self.fallback.tick(p, now)
    }

    fn drain(&self, p: &P) -> PageCount {
        self.fallback.drain(p)
    }

    /// A range that is reserved counts as allocated, and on top of what overlaps it in the heap.
    fn usage(&self, p: &P) -> Usage {
        let fallback = self.fallback.usage(p);
        let in_use = p.heap().map_or(0, |heap| heap.in_use().0);
        let (arena, kept) = (self.arena.pages.0, self.allocs.kept().0);
        let blocks = self.allocs.allocated().0;
        let free = arena.saturating_sub(in_use + kept);
        let allocated = blocks + kept;
        Usage {
            aperture: PageCount(arena + fallback.aperture.0),
            free: PageCount(free + fallback.free.0),
            cached: fallback.cached,
            allocated: PageCount(allocated + fallback.allocated.0),
            others: PageCount(arena.saturating_sub(free + allocated)),
            shared: PageCount(0),
            diverted: self.sum(|counts| &counts.diverted),
        }
    }

    fn audit(&self, p: &P) -> Result<(), String> {
        self.allocs.audit()?;
        let allocated = self.allocs.allocated();
        let in_use = p.heap().map_or(ByteCount(0), |heap| heap.in_use());
        if allocated.0 > in_use.0 {
            return Err(format!(
                "kmalloc: {allocated} pages are allocated, and {in_use} bytes of the heap in use"
            ));
        }
        self.fallback.audit(p)
    }

    fn describe(&self, p: &P, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (arena, allocated) = (self.arena, self.allocs.allocated());
        write!(
            f,
            "kmalloc from an arena of {} bytes: {allocated} pages",
            arena.pages
        )?;
        for range in self.allocs.ranges() {
            write!(f, ", {range} reserved")?;
        }
        write!(f, ", {} blocks parked; else ", self.parked())?;
        self.fallback.describe(p, f)
    }
}
