// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Allocators that own an aperture, each behind a lock of its own; magazines can be put over any of
//! them.

use super::*;

/// What magazines need of the allocator below, besides [`IovaAllocator`].
pub trait Refill<P: Platform>: IovaAllocator<P> {
    /// `count` adjacent ranges of [`granted`]`(each)` pages at once; returns all of their pages.
    ///
    /// Each is naturally aligned and is given back on its own; the whole is aligned to its size,
    /// rounded up to a power of two. A `count` of 0 is taken for 1.
    ///
    /// # Errors
    /// [`AllocError`], with the run as what was wanted; single ranges may be left.
    fn alloc_run(&self, each: PageCount, count: u64) -> Result<IovaRange, AllocError>;
    /// Takes flushed ranges back, each as it was allocated.
    fn free_all(&self, ranges: impl Iterator<Item = IovaRange>);
    /// Whether exactly this range is allocated. For audits.
    fn holds(&self, range: IovaRange) -> bool;
}

/// `aperture`, without what of it lies beyond page number 2^64 - 1 or beyond [`PAGES_MAX`] pages.
pub(super) fn clipped(aperture: IovaRange) -> IovaRange {
    let first = aperture.first;
    let pages = PageCount(aperture.pages.0.min(u64::MAX - first.0).min(PAGES_MAX));
    IovaRange::new(first, pages)
}

/// The range as it is, or why it cannot be one of this aperture. An empty one is nowhere.
pub(super) fn inside(aperture: IovaRange, wanted: IovaRange) -> Result<IovaRange, FixedRangeError> {
    let end = wanted.first.0.checked_add(wanted.pages.0);
    if wanted.pages.0 > 0 && end.is_some() && aperture.contains(&wanted) {
        return Ok(wanted);
    }
    Err(FixedRangeError::Outside { wanted, aperture })
}

/// What [`granted`] says, or `pages` themselves where no power of two is as large.
pub(super) fn granted_or_all(pages: PageCount) -> PageCount {
    pages.0.checked_next_power_of_two().map_or(pages, PageCount)
}

/// Which of the allocators that own an aperture, with its sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum BackingConfig {
    /// Linux 3.17's: top-down first fit from a cached node (ATC'15 §3.1).
    #[default]
    Rbtree,
    /// EiovaR: a cache of freed ranges over that (ATC'15 §3.1).
    Eiovar(EiovarConfig),
    /// FreeBSD's: first fit in a tree that knows its gaps (ATC'15 §3.4).
    Freebsd,
    /// Solaris': boundary tags and instant fit, constant time (ATC'15 §3.4).
    Vmem,
    /// Mac OS X's: a buddy allocator up to 512 MiB, a tree above (ATC'15 §3.4).
    MacOs,
}

impl BackingConfig {
    /// `aperture` without `offset` pages at the end where allocating begins, if any page is left.
    pub(super) fn with_offset(&self, aperture: IovaRange, offset: PageCount) -> Option<IovaRange> {
        if offset.0 == 0 {
            return Some(aperture);
        }
        let first = match self {
            BackingConfig::Rbtree | BackingConfig::Eiovar(_) | BackingConfig::Vmem => {
                aperture.first.0
            }
            // counted from the first page that may be allocated
            BackingConfig::Freebsd | BackingConfig::MacOs => {
                aperture.first.0.max(1).checked_add(offset.0)?
            }
        };
        let end = aperture.end().0;
        let end = if first == aperture.first.0 {
            end.checked_sub(offset.0)?
        } else {
            end
        };
        let pages = end.checked_sub(first.max(1))?;
        (pages > 0).then(|| IovaRange::new(IovaPage(first), PageCount(end - first)))
    }

    /// The name used on command lines and in tables.
    pub fn name(&self) -> &'static str {
        match self {
            BackingConfig::Rbtree => "rbtree",
            BackingConfig::Eiovar(_) => "eiovar",
            BackingConfig::Freebsd => "freebsd",
            BackingConfig::Vmem => "vmem",
            BackingConfig::MacOs => "macos",
        }
    }
}

/// One of them, chosen at run time.
#[allow(missing_docs)] // its variants say it
pub enum Backing<P: Platform> {
    Rbtree(Rbtree<P>),
    Eiovar(Eiovar<P>),
    Freebsd(Freebsd<P>),
    Vmem(Vmem<P>),
    MacOs(MacOs<P>),
}

impl<P: Platform> Backing<P> {
    /// An allocator over `aperture`, all of it free.
    pub fn new(_p: &P, config: BackingConfig, aperture: IovaRange) -> Self {
        match config {
            BackingConfig::Rbtree => Backing::Rbtree(Rbtree::new(aperture)),
            BackingConfig::Eiovar(sizes) => Backing::Eiovar(Eiovar::new(sizes, aperture)),
            BackingConfig::Freebsd => Backing::Freebsd(Freebsd::new(aperture)),
            BackingConfig::Vmem => Backing::Vmem(Vmem::new(aperture)),
            BackingConfig::MacOs => Backing::MacOs(MacOs::new(aperture)),
        }
    }

    /// Nodes that searches have looked at: what an allocation costs, without a clock. 0
    /// where nothing is searched.
    pub fn nodes_visited(&self) -> u64 {
        match self {
            Backing::Rbtree(tree) => tree.nodes_visited(),
            Backing::Eiovar(tree) => tree.nodes_visited(),
            Backing::Freebsd(tree) => tree.nodes_visited(),
            Backing::Vmem(arena) => arena.nodes_visited(),
            Backing::MacOs(both) => both.nodes_visited(),
        }
    }
}

macro_rules! dispatch {
    ($self:ident, $a:ident => $e:expr) => {
        match $self {
            Backing::Rbtree($a) => $e,
            Backing::Eiovar($a) => $e,
            Backing::Freebsd($a) => $e,
            Backing::Vmem($a) => $e,
            Backing::MacOs($a) => $e,
        }
    };
}

impl<P: Platform> IovaAllocator<P> for Backing<P> {
    #[inline(always)] // into the slow path, which is all that calls it
    fn alloc(&self, p: &P, request: &Request) -> Result<IovaAlloc, AllocError> {
        dispatch!(self, a => a.alloc(p, request))
    }
    fn granted(&self, pages: PageCount) -> PageCount {
        dispatch!(self, a => IovaAllocator::<P>::granted(a, pages))
    }
    fn reserve(&self, p: &P, range: IovaRange) -> Result<IovaAlloc, FixedRangeError> {
        dispatch!(self, a => a.reserve(p, range))
    }
    #[inline(always)] // as above
    fn free(&self, p: &P, origin: CpuIndex, alloc: Flushed<IovaAlloc>) {
        dispatch!(self, a => a.free(p, origin, alloc))
    }
    fn drain(&self, p: &P) -> PageCount {
        dispatch!(self, a => a.drain(p))
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

impl<P: Platform> Refill<P> for Backing<P> {
    fn alloc_run(&self, each: PageCount, count: u64) -> Result<IovaRange, AllocError> {
        dispatch!(self, a => Refill::<P>::alloc_run(a, each, count))
    }
    fn free_all(&self, ranges: impl Iterator<Item = IovaRange>) {
        dispatch!(self, a => Refill::<P>::free_all(a, ranges))
    }
    fn holds(&self, range: IovaRange) -> bool {
        dispatch!(self, a => Refill::<P>::holds(a, range))
    }
}
