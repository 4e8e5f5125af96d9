// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Allocators: how IOVAs are chosen.
//!
//! # Theory
//!
//! An allocator hands out disjoint ranges of an aperture. An [`IovaAlloc`] is the right to write
//! the leaves of one range: holding it *is* the lock on those table entries. Every allocation is a
//! power of two of pages, naturally aligned, so that the size class of a range follows from its
//! page count alone ([`granted`]); the exception is a range that the caller chose
//! ([`IovaAllocator::reserve`]), which is exact and marked [`AllocKind::Fixed`].
//!
//! `identity` shares pages between mappings: its allocations are [`AllocKind::Shared`], and the
//! table counts the mappings that hold a leaf.
//!
//! A domain hands out parts of an allocation of its own, a *chunk*, too; the parts are
//! [`AllocKind::Piece`], which no allocator makes or takes back (`chunks`).
//!
//! An allocation comes back as `Flushed<IovaAlloc>` and in no other way, so no IOVA is handed out
//! again before no cache holds it (ATC'15 §5, requirement 1). It returns to the CPU that unmapped
//! it.
//!
//! Page counts always add up: aperture = free + allocated + cached + others
//! ([`IovaAllocator::usage`]), where *cached* is what the allocator keeps for fast reuse, and
//! *others* are those of a heap that it shares.
//!
//! Designs are variants of one enum ([`AnyAllocator`]): a design is chosen at run time, and one
//! predicted branch is cheap.

mod alone;
pub mod backing;
pub(crate) mod chains;
mod chunks;
pub mod eiovar;
mod error;
pub mod freebsd;
pub mod identity;
mod in_use;
pub mod kmalloc;
mod lists;
mod locked;
pub mod macos;
pub mod magazine;
mod magazine_config;
pub mod rbtree;
mod request;
mod reserved_ranges;
mod run_bounds;
mod search;
pub(crate) mod slots;
mod tree;
pub mod vmem;

use crate::{
    invalidation::Flushed,
    platform::{Cpu, Platform},
    units::*,
};
use core::{fmt, num::NonZeroU64};

pub use alone::{Alone, Number};
pub use backing::{Backing, BackingConfig};
pub use chunks::MOST_PAGES;
pub(crate) use chunks::{Book, Chunked, NoBook};
pub use eiovar::{Eiovar, EiovarConfig};
pub use error::{AllocError, AllocErrorCause};
pub use freebsd::Freebsd;
pub use identity::{Identity, IdentityConfig};
pub use kmalloc::{Kmalloc, KmallocConfig};
pub use locked::Locked;
pub use macos::MacOs;
pub use magazine::Magazines;
pub use magazine_config::MagazineConfig;
pub use rbtree::Rbtree;
pub use request::{Limits, Request};
pub use vmem::Vmem;

/// The right to write the leaves of one IOVA range. Not `Copy`: there is one for each range.
///
/// Two words, so that it travels in registers; the second is never 0, so that a place for one that
/// may be empty has two words as well.
#[derive(PartialEq, Eq)]
#[must_use = "a dropped allocation leaks its IOVA range"]
pub struct IovaAlloc {
    first: IovaPage,
    /// Pages, and below them the kind, in [`KIND_BITS`] bits. There are fewer than 2^62 pages:
    /// no aperture has more.
    pages_and_kind: NonZeroU64,
}

/// Of an allocation's second word.
const KIND_BITS: u32 = 2;
/// The most pages that an aperture has, so that an allocation of any part of it can be written
/// down: 1,024 times all that 64 bits of address have.
pub(crate) const PAGES_MAX: u64 = u64::MAX >> KIND_BITS;

/// How a range was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocKind {
    /// By the allocator: a power of two of pages, naturally aligned.
    Dynamic = 1,
    /// By the caller: exactly the pages asked for.
    Fixed = 2,
    /// By the buffer's own address (ATC'15 §4.1): others may hold allocations of the same pages,
    /// so leaves are counted.
    Shared = 3,
    /// As some pages of a chunk, which is an allocation that has them all: see `iova::chunks`. It
    /// has one page at least.
    Piece = 0,
}

impl IovaAlloc {
    #[inline]
    pub(crate) fn new(range: IovaRange, kind: AllocKind) -> Self {
        const { assert!(AllocKind::Shared as u64 >> KIND_BITS == 0) };
        debug_assert!(range.pages.0 <= PAGES_MAX, "{range} is in no aperture");
        let both = kind as u64 | range.pages.0 << KIND_BITS;
        debug_assert!(both != 0, "a piece has pages");
        IovaAlloc {
            first: range.first,
            pages_and_kind: NonZeroU64::new(both).unwrap_or(NonZeroU64::MIN),
        }
    }
    /// The same once more, for code that ends, in the same breath, what holds this one.
    #[inline]
    pub(crate) fn duplicate(&self) -> Self {
        IovaAlloc { ..*self }
    }
    /// The pages of the allocation.
    #[inline]
    pub fn range(&self) -> IovaRange {
        IovaRange::new(self.first, self.pages())
    }
    #[inline]
    fn pages(&self) -> PageCount {
        PageCount(self.pages_and_kind.get() >> KIND_BITS)
    }
    /// How many pages no other allocation has while this one lives: all, or none
    /// where it is shared.
    #[inline]
    pub fn owned(&self) -> PageCount {
        match self.kind() {
            AllocKind::Dynamic | AllocKind::Fixed | AllocKind::Piece => self.pages(),
            AllocKind::Shared => PageCount(0),
        }
    }
    /// How they were chosen.
    #[inline]
    pub fn kind(&self) -> AllocKind {
        match self.pages_and_kind.get() & ((1 << KIND_BITS) - 1) {
            0 => AllocKind::Piece,
            1 => AllocKind::Dynamic,
            2 => AllocKind::Fixed,
            _ => AllocKind::Shared,
        }
    }
    /// Whether it has as many pages, chosen in the same way.
    #[inline]
    pub(crate) fn is_like(&self, other: &IovaAlloc) -> bool {
        self.pages_and_kind == other.pages_and_kind
    }
    /// Log2 of its pages, where an allocator chose them: the size class.
    #[inline]
    pub(crate) fn class_lg2(&self) -> Option<u32> {
        (self.kind() == AllocKind::Dynamic).then(|| self.pages().0.trailing_zeros())
    }
}

impl fmt::Debug for IovaAlloc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} allocation of {}", self.kind(), self.range())
    }
}

/// How many pages an allocator grants for `pages`: the next power of two, held at 2^63,
/// which no aperture has.
#[inline]
pub fn granted(pages: PageCount) -> PageCount {
    PageCount(pages.0.checked_next_power_of_two().unwrap_or(1 << 63))
}

/// A chosen range cannot be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)] // its fields say it
#[non_exhaustive]
pub enum FixedRangeError {
    /// Some page of it is allocated, or unmapped and not yet flushed.
    #[error("IOVA pages {wanted} overlap {taken}, which is in use")]
    Taken {
        wanted: IovaRange,
        /// A range in the way.
        taken: IovaRange,
    },
    /// It is outside the aperture.
    #[error("IOVA pages {wanted} are outside the aperture {aperture}")]
    Outside {
        wanted: IovaRange,
        aperture: IovaRange,
    },
    /// It lies where the design keeps no record of which ranges are allocated, and some are: it can
    /// be had only while none is.
    #[error(
        "IOVA pages {wanted}: {allocated} pages of {region} are allocated, and nothing says which"
    )]
    NoRecord {
        wanted: IovaRange,
        /// The region that it lies in.
        region: IovaRange,
        /// Pages allocated in that region.
        allocated: PageCount,
    },
    /// It lies where the design keeps a few such ranges only.
    #[error("IOVA pages {wanted}: {max} ranges of {region} are kept already")]
    TooMany {
        wanted: IovaRange,
        /// The region that it lies in.
        region: IovaRange,
        /// How many it keeps.
        max: usize,
    },
    /// The heap has no memory to note one more range.
    #[error("IOVA pages {wanted}: no memory to note one more range")]
    NoMemory { wanted: IovaRange },
}

/// Where the pages of an aperture are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// All pages of the aperture.
    pub aperture: PageCount,
    /// Free in the backing structure.
    pub free: PageCount,
    /// Kept for fast reuse.
    pub cached: PageCount,
    /// Allocated: mapped, retired or quarantined. Shared allocations are not counted.
    pub allocated: PageCount,
    /// Not to be had, since the design chooses by a heap whose other users hold them, or by
    /// which they were parked.
    pub others: PageCount,
    /// Pages of shared allocations, each as often as it is allocated. They are no part of the sum.
    pub shared: PageCount,
    /// Requests that the design could not serve itself and sent to its fallback, ever.
    pub diverted: u64,
}

/// What every allocator does. One test suite runs over all implementations.
pub trait IovaAllocator<P: Platform>: Send + Sync {
    /// A range of [`granted`](Self::granted)`(pages)` pages, within the request's limits.
    ///
    /// # Errors
    /// [`AllocError`]; retired ranges that are not flushed yet may still come back.
    fn alloc(&self, p: &P, request: &Request) -> Result<IovaAlloc, AllocError>;
    /// How many pages an allocation for `pages` has, where the allocator chooses. An allocation
    /// follows from its mapping by this.
    fn granted(&self, pages: PageCount) -> PageCount {
        granted(pages)
    }
    /// The pages among which allocations are shared, if the design shares any.
    fn shared(&self) -> Option<IovaRange> {
        None
    }
    /// The pages whose ranges have another owner, which gets them back when they are freed: also
    /// those that are mapped still when a domain ends.
    fn borrowed(&self) -> Option<IovaRange> {
        None
    }
    /// Allocates exactly `range`, which the caller chose.
    ///
    /// # Errors
    /// [`FixedRangeError`]; ranges kept for reuse do not count as in use.
    fn reserve(&self, p: &P, range: IovaRange) -> Result<IovaAlloc, FixedRangeError>;
    /// Takes a range back, to the caches of CPU `origin`.
    fn free(&self, p: &P, origin: CpuIndex, alloc: Flushed<IovaAlloc>);
    /// Takes back the ranges that `next` has, each to the caches of its CPU, as
    /// [`free`](Self::free) does. Where it has none it is not asked again.
    #[inline]
    fn free_many(&self, p: &P, mut next: impl FnMut() -> Option<(CpuIndex, Flushed<IovaAlloc>)>) {
        while let Some((origin, alloc)) = next() {
            self.free(p, origin, alloc);
        }
    }
    /// Takes back a shared allocation whose pages are all mapped still, by others: nothing has
    /// become free, so there is nothing to flush.
    fn free_shared(&self, _p: &P, alloc: IovaAlloc) {
        debug_assert!(false, "{alloc:?} is not shared here");
    }
    /// Exactly `range`, where nothing of it is allocated but what is kept for reuse, which is given
    /// up for it. Who has that owns all of `range`. `None` also where there is no record of what is
    /// allocated ([`shared`](Self::shared), [`borrowed`](Self::borrowed)).
    fn reserve_idle(&self, p: &P, range: IovaRange) -> Option<IovaAlloc> {
        let without_record = [self.shared(), self.borrowed()];
        if without_record
            .iter()
            .flatten()
            .any(|region| region.overlaps(&range))
        {
            return None;
        }
        self.reserve(p, range).ok()
    }
    /// Gives everything that is kept for reuse back to the backing structure; returns
    /// how much it was.
    fn drain(&self, p: &P) -> PageCount;
    /// Gives back what has lain idle for long: a bounded part of it, the rest in later ticks. May
    /// free memory. `now` never goes back.
    fn tick(&self, _p: &P, _now: TimeNs) {}
    /// Where the pages are. Exact only while no other thread is in the allocator.
    fn usage(&self, p: &P) -> Usage;
    /// Checks every internal invariant; exact only while no other thread is in the allocator.
    ///
    /// # Errors
    /// A sentence that names the first invariant that does not hold.
    fn audit(&self, p: &P) -> Result<(), alloc::string::String>;
    /// Prints the state compactly, for test failures.
    fn describe(&self, p: &P, f: &mut fmt::Formatter<'_>) -> fmt::Result;
}

/// Which allocator, and its sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AllocatorConfig {
    /// One of those that own an aperture, behind its lock.
    Plain(BackingConfig),
    /// Per-CPU magazines over one of them (ATC'15 §4.3).
    Magazine(MagazineConfig),
    /// The buffer's own address and permission (ATC'15 §4.1).
    Identity(IdentityConfig),
    /// Addresses that the platform's heap returns (ATC'15 §4.2).
    Kmalloc(KmallocConfig),
}

impl AllocatorConfig {
    /// Linux 3.17's: one lock, top-down first fit (ATC'15 §3.1).
    pub const RBTREE: Self = AllocatorConfig::Plain(BackingConfig::Rbtree);

    /// The name used on command lines and in tables.
    pub fn name(&self) -> &'static str {
        match self {
            AllocatorConfig::Plain(backing) => backing.name(),
            AllocatorConfig::Magazine(_) => "magazine",
            AllocatorConfig::Identity(_) => "identity",
            AllocatorConfig::Kmalloc(_) => "kmalloc",
        }
    }
}

/// An allocator, chosen at run time.
#[allow(missing_docs)] // its variants say it
pub enum AnyAllocator<P: Platform> {
    Plain(Backing<P>),
    Magazine(Magazines<P>),
    Identity(Identity<P>),
    Kmalloc(Kmalloc<P>),
}

/// Why an allocator cannot be made over an aperture.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocatorError {
    /// Identity mapping needs two spare bits (ATC'15 §4.1).
    #[error("identity needs IOVAs of {phys_bits} + 2 bits, and there are {iova_bits}")]
    IdentityWidth {
        /// Bits of an IOVA.
        iova_bits: u32,
        /// Bits of a physical address.
        phys_bits: u32,
    },
    /// Identity mapping divides the whole space of a table by its two top bits.
    #[error("identity needs all IOVA pages of some width, and has {aperture}")]
    IdentityAperture {
        /// The aperture that was given.
        aperture: IovaRange,
    },
    /// Page colouring leaves no page to allocate.
    #[error("an offset of {offset} pages leaves nothing of {aperture}")]
    Offset {
        /// The pages left out.
        offset: PageCount,
        /// The aperture that was given.
        aperture: IovaRange,
    },
    /// The platform has no heap to ask for page numbers (ATC'15 §4.2).
    #[error("kmalloc needs a heap, and the platform has none")]
    NoHeap,
    /// Two addresses of the heap's arena could be one page number (ATC'15 §4.2, IOVA collisions).
    #[error("kmalloc needs a heap of at most {limit} bytes here, and its arena has {arena}")]
    KmallocArena {
        /// Bytes of the arena.
        arena: ByteCount,
        /// Bytes that pages are left for.
        limit: ByteCount,
    },
    /// Page numbers are addresses from 0, so the aperture must begin there.
    #[error("kmalloc needs IOVA pages from 0, and has {aperture}")]
    KmallocAperture {
        /// The aperture that was given.
        aperture: IovaRange,
    },
}

impl<P: Platform> AnyAllocator<P> {
    /// An allocator over `aperture`.
    ///
    /// # Errors
    /// [`AllocatorError`], where the design cannot work there.
    pub fn new(
        p: &P,
        config: AllocatorConfig,
        aperture: IovaRange,
    ) -> Result<Self, AllocatorError> {
        Self::with_offset(p, config, aperture, PageCount(0))
    }

    /// The same, but `offset` pages at the end where allocating begins stay unused. Where the
    /// design has a fallback, only that heeds it.
    ///
    /// # Errors
    /// [`AllocatorError`]; [`AllocatorError::Offset`] where no page is left.
    pub fn with_offset(
        p: &P,
        config: AllocatorConfig,
        aperture: IovaRange,
        offset: PageCount,
    ) -> Result<Self, AllocatorError> {
        let left = |backing: BackingConfig| {
            let left = backing.with_offset(aperture, offset);
            left.ok_or(AllocatorError::Offset { offset, aperture })
        };
        Ok(match config {
            AllocatorConfig::Plain(backing) => {
                AnyAllocator::Plain(Backing::new(p, backing, left(backing)?))
            }
            AllocatorConfig::Magazine(sizes) => {
                AnyAllocator::Magazine(Magazines::new(p, sizes, left(sizes.backing)?))
            }
            AllocatorConfig::Identity(widths) => {
                AnyAllocator::Identity(Identity::new(p, widths, aperture, offset)?)
            }
            AllocatorConfig::Kmalloc(config) => {
                AnyAllocator::Kmalloc(Kmalloc::new(p, config, aperture, offset)?)
            }
        })
    }
}

/// One predicted branch, then the design's own code.
macro_rules! dispatch {
    ($self:ident, $a:ident => $e:expr) => {
        match $self {
            AnyAllocator::Plain($a) => $e,
            AnyAllocator::Magazine($a) => $e,
            AnyAllocator::Identity($a) => $e,
            AnyAllocator::Kmalloc($a) => $e,
        }
    };
}

impl<P: Platform> AnyAllocator<P> {
    /// A range for `pages` anywhere, if one is cached on this CPU; else nothing has happened, and
    /// [`IovaAllocator::alloc`] is to be asked.
    ///
    /// Not one call is made, and the answer fits into two registers. So a caller that asks here
    /// first, and last calls what does all the rest, needs no stack for the fast path.
    #[inline]
    pub fn alloc_fast(&self, p: &P, pages: PageCount) -> Option<IovaAlloc> {
        match self {
            AnyAllocator::Magazine(magazines) => magazines.alloc_fast(p, pages),
            _ => None,
        }
    }

    /// The first page of an allocation for `pages` pages that this CPU has cached, if `serves`
    /// makes something of the allocation's range; else nothing has happened, and
    /// [`IovaAllocator::alloc`] is to be asked. The allocation is as [`granted`] says; of `MOST`
    /// pages, if that is not 0. `serves` runs under a lock, and with the rights
    /// of the allocation's holder.
    #[inline(always)] // on the fast path of a map, which calls nothing
    pub(crate) fn alloc_fast_with<const MOST: usize, R>(
        &self,
        cpu: &Cpu<'_>,
        pages: PageCount,
        serves: impl FnOnce(IovaRange) -> Option<R>,
    ) -> Option<(IovaPage, R)> {
        match self {
            AnyAllocator::Magazine(magazines) => {
                magazines.alloc_fast_with::<MOST, R>(cpu, pages, serves)
            }
            _ => None,
        }
    }

    /// Brings an allocation for `pages` to this CPU's hand, if there is one that was given back.
    pub(crate) fn bring_to_hand(&self, cpu: &Cpu<'_>, pages: PageCount) {
        if let AnyAllocator::Magazine(magazines) = self {
            magazines.bring_to_hand(cpu, pages);
        }
    }

    #[inline(never)]
    fn alloc_slow(&self, p: &P, request: &Request) -> Result<IovaAlloc, AllocError> {
        dispatch!(self, a => a.alloc(p, request))
    }
    #[inline(never)]
    fn free_slow(&self, p: &P, origin: CpuIndex, alloc: Flushed<IovaAlloc>) {
        dispatch!(self, a => a.free(p, origin, alloc))
    }
}

/// The magazines' own paths are short enough to be inlined where they are called;
/// the others are not.
impl<P: Platform> IovaAllocator<P> for AnyAllocator<P> {
    #[inline]
    fn alloc(&self, p: &P, request: &Request) -> Result<IovaAlloc, AllocError> {
        match self {
            AnyAllocator::Magazine(magazines) => magazines.alloc(p, request),
            _ => self.alloc_slow(p, request),
        }
    }
    fn granted(&self, pages: PageCount) -> PageCount {
        dispatch!(self, a => IovaAllocator::<P>::granted(a, pages))
    }
    fn shared(&self) -> Option<IovaRange> {
        dispatch!(self, a => IovaAllocator::<P>::shared(a))
    }
    fn borrowed(&self) -> Option<IovaRange> {
        dispatch!(self, a => IovaAllocator::<P>::borrowed(a))
    }
    fn reserve(&self, p: &P, range: IovaRange) -> Result<IovaAlloc, FixedRangeError> {
        dispatch!(self, a => a.reserve(p, range))
    }
    fn reserve_idle(&self, p: &P, range: IovaRange) -> Option<IovaAlloc> {
        dispatch!(self, a => a.reserve_idle(p, range))
    }
    #[inline]
    fn free(&self, p: &P, origin: CpuIndex, alloc: Flushed<IovaAlloc>) {
        match self {
            AnyAllocator::Magazine(magazines) => magazines.free(p, origin, alloc),
            _ => self.free_slow(p, origin, alloc),
        }
    }
    #[inline]
    fn free_many(&self, p: &P, next: impl FnMut() -> Option<(CpuIndex, Flushed<IovaAlloc>)>) {
        dispatch!(self, a => a.free_many(p, next))
    }
    fn free_shared(&self, p: &P, alloc: IovaAlloc) {
        dispatch!(self, a => a.free_shared(p, alloc))
    }
    fn drain(&self, p: &P) -> PageCount {
        dispatch!(self, a => a.drain(p))
    }
    fn tick(&self, p: &P, now: TimeNs) {
        dispatch!(self, a => a.tick(p, now))
    }
    fn usage(&self, p: &P) -> Usage {
        dispatch!(self, a => a.usage(p))
    }
    fn audit(&self, p: &P) -> Result<(), alloc::string::String> {
        dispatch!(self, a => a.audit(p))
    }
    fn describe(&self, p: &P, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        dispatch!(self, a => a.describe(p, f))
    }
}
