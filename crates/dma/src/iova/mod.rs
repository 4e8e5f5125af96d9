// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Assigners: who chooses IOVAs.
//!
//! # Theory
//!
//! An assigner hands out disjoint ranges of an aperture. A [`Lease`] is the right to write the leaves of one
//! range: holding it *is* the lock on those table entries. Every lease is a power of two of pages, naturally
//! aligned, so that the size class of a range follows from its page count alone ([`granted`]); the
//! exception is a range that the caller chose ([`Assign::reserve`]), which is exact and marked [`LeaseKind::Fixed`].
//!
//! `identity` shares pages between mappings: its leases are [`LeaseKind::Shared`], and the table counts who holds a leaf.
//!
//! A lease comes back as `Flushed<Lease>` and in no other way, so no IOVA is handed out again before no cache
//! holds it (ATC'15 §5, requirement 1). It goes home to the CPU that unmapped it.
//!
//! Page counts always add up: aperture = free + leased + cached + others ([`Assign::usage`]), where *cached* is what the
//! assigner keeps for fast reuse, and *others* are those of a heap that it shares.
//!
//! Designs are variants of one enum ([`Assigner`]): a design is chosen at run time, and one predicted branch is cheap.

mod alone;
pub mod backing;
pub mod eiovar;
mod error;
pub mod freebsd;
pub mod identity;
mod in_use;
mod kept_off;
pub mod kmalloc;
mod lists;
mod locked;
pub mod macos;
pub mod magazine;
mod magazine_config;
pub mod rbtree;
mod request;
mod run_bounds;
mod search;
mod slots;
mod tree;
pub mod vmem;

use crate::{
    grace::Flushed,
    platform::{Cpu, Platform},
    units::*,
};
use core::{fmt, num::NonZeroU64};

pub use alone::{Alone, Number};
pub use backing::{Backing, BackingConfig};
pub use eiovar::{Eiovar, EiovarConfig};
pub use error::{NoIova, NoIovaCause};
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
/// Two words, so that it travels in registers; the second is never 0, so that a place for one that may be empty has two words as well.
#[derive(PartialEq, Eq)]
#[must_use = "a dropped lease leaks its IOVA range"]
pub struct Lease {
    first: IovaPage,
    /// Pages, and below them the kind, in [`KIND_BITS`] bits. There are fewer than 2^62 pages: no aperture has more.
    pages_and_kind: NonZeroU64,
}

/// Of a lease's second word.
const KIND_BITS: u32 = 2;
/// The most pages that an aperture has, so that a lease of any part of it can be written down: 1,024 times all
/// that 64 bits of address have.
pub(crate) const PAGES_MAX: u64 = u64::MAX >> KIND_BITS;

/// How a range was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaseKind {
    /// By the assigner: a power of two of pages, naturally aligned.
    Assigned = 1,
    /// By the caller: exactly the pages asked for.
    Fixed = 2,
    /// By the buffer's own address (ATC'15 §4.1): others may hold leases of the same pages, so leaves are counted.
    Shared = 3,
}

impl LeaseKind {
    #[inline]
    fn bits(self) -> NonZeroU64 {
        const { assert!(LeaseKind::Shared as u64 >> KIND_BITS == 0) };
        // the second is never used: no kind is 0
        NonZeroU64::new(self as u64).unwrap_or(NonZeroU64::MIN)
    }
}

impl Lease {
    #[inline]
    pub(crate) fn new(range: IovaRange, kind: LeaseKind) -> Self {
        debug_assert!(range.pages.0 <= PAGES_MAX, "{range} is in no aperture");
        Lease {
            first: range.first,
            pages_and_kind: kind.bits() | range.pages.0 << KIND_BITS,
        }
    }
    /// The same once more, for who ends what holds this one, in the same breath.
    #[inline]
    pub(crate) fn again(&self) -> Self {
        Lease { ..*self }
    }
    /// The pages.
    #[inline]
    pub fn range(&self) -> IovaRange {
        IovaRange::new(self.first, self.pages())
    }
    #[inline]
    fn pages(&self) -> PageCount {
        PageCount(self.pages_and_kind.get() >> KIND_BITS)
    }
    /// How many pages are nobody else's while this lease lives: all, or none where it is shared.
    #[inline]
    pub fn owned(&self) -> PageCount {
        match self.kind() {
            LeaseKind::Assigned | LeaseKind::Fixed => self.pages(),
            LeaseKind::Shared => PageCount(0),
        }
    }
    /// How they were chosen.
    #[inline]
    pub fn kind(&self) -> LeaseKind {
        match self.pages_and_kind.get() & ((1 << KIND_BITS) - 1) {
            1 => LeaseKind::Assigned,
            2 => LeaseKind::Fixed,
            _ => LeaseKind::Shared,
        }
    }
    /// Whether it has as many pages, chosen in the same way.
    #[inline]
    pub(crate) fn is_like(&self, other: &Lease) -> bool {
        self.pages_and_kind == other.pages_and_kind
    }
    /// Log2 of its pages, where an assigner chose them: the size class.
    #[inline]
    pub(crate) fn class_lg2(&self) -> Option<u32> {
        (self.kind() == LeaseKind::Assigned).then(|| self.pages().0.trailing_zeros())
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} lease of {}", self.kind(), self.range())
    }
}

/// How many pages an assigner grants for `pages`: the next power of two, held at 2^63, which no aperture has.
#[inline]
pub fn granted(pages: PageCount) -> PageCount {
    PageCount(pages.0.checked_next_power_of_two().unwrap_or(1 << 63))
}

/// A chosen range cannot be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoReserve {
    /// Some page of it is leased, or unmapped and not yet flushed.
    #[error("IOVA pages {wanted} overlap {taken}, which is in use")]
    Taken {
        /// The range wanted.
        wanted: IovaRange,
        /// A range in the way.
        taken: IovaRange,
    },
    /// It is outside the aperture.
    #[error("IOVA pages {wanted} are outside the aperture {aperture}")]
    Outside {
        /// The range wanted.
        wanted: IovaRange,
        /// The aperture.
        aperture: IovaRange,
    },
    /// It lies where the design keeps no record of which ranges are leased, and some are: it can be had only while none is.
    #[error("IOVA pages {wanted}: {leased} pages of {region} are leased, and nothing says which")]
    NoRecord {
        /// The range wanted.
        wanted: IovaRange,
        /// Where it lies.
        region: IovaRange,
        /// Pages leased there.
        leased: PageCount,
    },
    /// It lies where the design keeps a few such ranges only.
    #[error("IOVA pages {wanted}: {max} ranges of {region} are kept already")]
    TooMany {
        /// The range wanted.
        wanted: IovaRange,
        /// Where it lies.
        region: IovaRange,
        /// How many it keeps.
        max: usize,
    },
}

/// Where the pages of an aperture are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Pages in all.
    pub aperture: PageCount,
    /// Free in the backing structure.
    pub free: PageCount,
    /// Kept for fast reuse.
    pub cached: PageCount,
    /// Leased: mapped, retired or quarantined. Shared leases are not counted.
    pub leased: PageCount,
    /// Not to be had, since the design chooses by a heap whose other users hold them, or by which they were parked.
    pub others: PageCount,
    /// Pages of shared leases, each as often as it is leased. They are no part of the sum.
    pub shared: PageCount,
    /// Requests that the design could not serve itself and sent to its fallback, ever.
    pub diverted: u64,
}

/// What every assigner does. One test suite runs over all implementations.
pub trait Assign<P: Platform>: Send + Sync {
    /// A range of [`granted`](Self::granted)`(pages)` pages, within the request's limits.
    ///
    /// # Errors
    /// [`NoIova`]; retired ranges that are not flushed yet may still come back.
    fn assign(&self, p: &P, request: &Request) -> Result<Lease, NoIova>;
    /// How many pages a lease for `pages` has, where the assigner chooses. A lease follows from its mapping by this.
    fn granted(&self, pages: PageCount) -> PageCount {
        granted(pages)
    }
    /// The pages among which leases are shared, if the design shares any.
    fn shared(&self) -> Option<IovaRange> {
        None
    }
    /// The pages whose ranges somebody else owns, and gets back when they are released: also those that are mapped still when a domain ends.
    fn borrowed(&self) -> Option<IovaRange> {
        None
    }
    /// Exactly `range`.
    ///
    /// # Errors
    /// [`NoReserve`]; ranges kept for reuse do not count as in use.
    fn reserve(&self, p: &P, range: IovaRange) -> Result<Lease, NoReserve>;
    /// Takes a range back, to the caches of CPU `home`.
    fn release(&self, p: &P, home: CpuIndex, lease: Flushed<Lease>);
    /// Takes back the ranges that `next` has, each to the caches of its CPU, as [`release`](Self::release) does. Where it has none it is not asked again.
    #[inline]
    fn release_many(&self, p: &P, mut next: impl FnMut() -> Option<(CpuIndex, Flushed<Lease>)>) {
        while let Some((home, lease)) = next() {
            self.release(p, home, lease);
        }
    }
    /// Takes back a shared lease whose pages are all mapped still, by others: nothing has become free, so there is nothing to flush.
    fn release_shared(&self, _p: &P, lease: Lease) {
        debug_assert!(false, "{lease:?} is not shared here");
    }
    /// Gives everything that is kept for reuse back to the backing structure; returns how much it was.
    fn drain(&self, p: &P) -> PageCount;
    /// Gives back what has lain idle for long: a bounded part of it, the rest in later ticks. May free memory. `now` never goes back.
    fn tick(&self, _p: &P, _now: TimeNs) {}
    /// Where the pages are. Exact when nobody else is in the assigner.
    fn usage(&self, p: &P) -> Usage;
    /// Checks every internal invariant; exact when nobody else is in the assigner.
    ///
    /// # Errors
    /// A sentence that names the first invariant that does not hold.
    fn audit(&self, p: &P) -> Result<(), alloc::string::String>;
    /// Prints the state compactly, for test failures.
    fn describe(&self, p: &P, f: &mut fmt::Formatter<'_>) -> fmt::Result;
}

/// Which assigner, and its sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AssignerConfig {
    /// One of those that own an aperture, behind its lock.
    Plain(BackingConfig),
    /// Per-CPU magazines over one of them (ATC'15 §4.3).
    Magazine(MagazineConfig),
    /// The buffer's own address and permission (ATC'15 §4.1).
    Identity(IdentityConfig),
    /// Addresses that the platform's heap returns (ATC'15 §4.2).
    Kmalloc(KmallocConfig),
}

impl AssignerConfig {
    /// Linux 3.17's: one lock, top-down first fit (ATC'15 §3.1).
    pub const RBTREE: Self = AssignerConfig::Plain(BackingConfig::Rbtree);

    /// The name used on command lines and in tables.
    pub fn name(&self) -> &'static str {
        match self {
            AssignerConfig::Plain(backing) => backing.name(),
            AssignerConfig::Magazine(_) => "magazine",
            AssignerConfig::Identity(_) => "identity",
            AssignerConfig::Kmalloc(_) => "kmalloc",
        }
    }
}

/// An assigner, chosen at run time.
pub enum Assigner<P: Platform> {
    /// See [`Backing`].
    Plain(Backing<P>),
    /// See [`Magazines`].
    Magazine(Magazines<P>),
    /// See [`Identity`].
    Identity(Identity<P>),
    /// See [`Kmalloc`].
    Kmalloc(Kmalloc<P>),
}

/// Why an assigner cannot be made over an aperture.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoAssigner {
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
        /// The pages given.
        aperture: IovaRange,
    },
    /// Page colouring leaves no page to assign.
    #[error("an offset of {offset} pages leaves nothing of {aperture}")]
    Offset {
        /// The pages left out.
        offset: PageCount,
        /// The pages given.
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
        /// The pages given.
        aperture: IovaRange,
    },
}

impl<P: Platform> Assigner<P> {
    /// An assigner over `aperture`.
    ///
    /// # Errors
    /// [`NoAssigner`], where the design cannot work there.
    pub fn new(p: &P, config: AssignerConfig, aperture: IovaRange) -> Result<Self, NoAssigner> {
        Self::beyond(p, config, aperture, PageCount(0))
    }

    /// The same, but `offset` pages at the end where assigning begins stay unused. Where the design has a fallback, only that heeds it.
    ///
    /// # Errors
    /// [`NoAssigner`]; [`NoAssigner::Offset`] where no page is left.
    pub fn beyond(
        p: &P,
        config: AssignerConfig,
        aperture: IovaRange,
        offset: PageCount,
    ) -> Result<Self, NoAssigner> {
        let left = |backing: BackingConfig| {
            let left = backing.beyond(aperture, offset);
            left.ok_or(NoAssigner::Offset { offset, aperture })
        };
        Ok(match config {
            AssignerConfig::Plain(backing) => {
                Assigner::Plain(Backing::new(p, backing, left(backing)?))
            }
            AssignerConfig::Magazine(sizes) => {
                Assigner::Magazine(Magazines::new(p, sizes, left(sizes.backing)?))
            }
            AssignerConfig::Identity(widths) => {
                Assigner::Identity(Identity::new(p, widths, aperture, offset)?)
            }
            AssignerConfig::Kmalloc(config) => {
                Assigner::Kmalloc(Kmalloc::new(p, config, aperture, offset)?)
            }
        })
    }
}

/// One predicted branch, then the design's own code.
macro_rules! dispatch {
    ($self:ident, $a:ident => $e:expr) => {
        match $self {
            Assigner::Plain($a) => $e,
            Assigner::Magazine($a) => $e,
            Assigner::Identity($a) => $e,
            Assigner::Kmalloc($a) => $e,
        }
    };
}

impl<P: Platform> Assigner<P> {
    /// A range for `pages` anywhere, if one is at hand on this CPU; else nothing has happened, and [`Assign::assign`] is to be asked.
    ///
    /// Not one call is made, and the answer fits into two registers. So whoever asks here first and calls
    /// what does all the rest last needs no stack for the short way.
    #[inline]
    pub fn assign_at_hand(&self, p: &P, pages: PageCount) -> Option<Lease> {
        match self {
            Assigner::Magazine(magazines) => magazines.assign_at_hand(p, pages),
            _ => None,
        }
    }

    /// The first page of a lease for `pages` pages that this CPU has at hand, if `serves` makes something of the lease's range; else nothing has happened, and
    /// [`Assign::assign`] is to be asked. The lease is as [`granted`] says; of `MOST` pages, if that
    /// is not 0. `serves` runs under a lock, and with the rights of the lease's holder.
    #[inline(always)] // on the short way of a map, which calls nothing
    pub(crate) fn assign_here<const MOST: usize, R>(
        &self,
        cpu: &Cpu<'_>,
        pages: PageCount,
        serves: impl FnOnce(IovaRange) -> Option<R>,
    ) -> Option<(IovaPage, R)> {
        match self {
            Assigner::Magazine(magazines) => magazines.assign_here::<MOST, R>(cpu, pages, serves),
            _ => None,
        }
    }

    /// Brings a lease for `pages` to this CPU's hand, if there is one that was given back.
    pub(crate) fn bring_to_hand(&self, cpu: &Cpu<'_>, pages: PageCount) {
        if let Assigner::Magazine(magazines) = self {
            magazines.bring_to_hand(cpu, pages);
        }
    }

    #[inline(never)]
    fn assign_otherwise(&self, p: &P, request: &Request) -> Result<Lease, NoIova> {
        dispatch!(self, a => a.assign(p, request))
    }
    #[inline(never)]
    fn release_otherwise(&self, p: &P, home: CpuIndex, lease: Flushed<Lease>) {
        dispatch!(self, a => a.release(p, home, lease))
    }
}

/// The magazines' own paths are short enough to be inlined where they are called; the others are not.
impl<P: Platform> Assign<P> for Assigner<P> {
    #[inline]
    fn assign(&self, p: &P, request: &Request) -> Result<Lease, NoIova> {
        match self {
            Assigner::Magazine(magazines) => magazines.assign(p, request),
            _ => self.assign_otherwise(p, request),
        }
    }
    fn granted(&self, pages: PageCount) -> PageCount {
        dispatch!(self, a => Assign::<P>::granted(a, pages))
    }
    fn shared(&self) -> Option<IovaRange> {
        dispatch!(self, a => Assign::<P>::shared(a))
    }
    fn borrowed(&self) -> Option<IovaRange> {
        dispatch!(self, a => Assign::<P>::borrowed(a))
    }
    fn reserve(&self, p: &P, range: IovaRange) -> Result<Lease, NoReserve> {
        dispatch!(self, a => a.reserve(p, range))
    }
    #[inline]
    fn release(&self, p: &P, home: CpuIndex, lease: Flushed<Lease>) {
        match self {
            Assigner::Magazine(magazines) => magazines.release(p, home, lease),
            _ => self.release_otherwise(p, home, lease),
        }
    }
    #[inline]
    fn release_many(&self, p: &P, next: impl FnMut() -> Option<(CpuIndex, Flushed<Lease>)>) {
        dispatch!(self, a => a.release_many(p, next))
    }
    fn release_shared(&self, p: &P, lease: Lease) {
        dispatch!(self, a => a.release_shared(p, lease))
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
