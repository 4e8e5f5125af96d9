// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Dynamic identity mapping: a buffer's own address is its IOVA (ATC'15 §4.1).
//!
//! # Theory
//!
//! Nothing is searched and nothing is locked. The IOVA space is divided by its two top bits, which
//! a physical address does not need:
//!
//! | top bits | region | allocations |
//! |---|---|---|
//! | 00 | fallback | of magazines over a tree, as in any other design |
//! | 01 | buffers that the device reads | [`AllocKind::Shared`] |
//! | 10 | buffers that the device writes | shared |
//! | 11 | buffers for both | shared |
//!
//! So the permission is part of the address: a page that is mapped for reading and for writing has
//! two translations, each revoked with the last mapping of its kind. The bits are those of a VT-d
//! entry. The fallback is the lowest region, so that the interrupt window, and addresses that are
//! reserved or that fit a narrow device, are ordinary there.
//!
//! Two mappings of one page for one use have the same leaf. The table counts them
//! ([`crate::table`]); here a shared allocation is counted as so many pages, and a shared
//! allocation that is freed changes nothing else.
//!
//! To the fallback go, counted in [`Usage::diverted`]: what is not physically contiguous,
//! consistent memory among it; buffers beyond the configured physical width; requests whose limits
//! or preference the buffer's own address breaks; buffers that overlap a range reserved in their
//! region; and, by the domain, mappings whose leaf is counted to the brim.
//!
//! Two spare bits there must be: a 39-bit table serves 37 bits of physical addresses, a 48-bit
//! table 46.
//!
//! Locking: that of the fallback alone. Not handled: page tables are as sparse as buffers are in
//! memory, and are not reclaimed before the domain ends, since a span of a shared region has no
//! owner.

use super::{reserved_ranges::ReservedRanges, *};
use crate::platform::{Atomic64, Ordering, PerCpu};
use alloc::string::String;

/// The widths that identity mapping goes by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct IdentityConfig {
    /// Bits of a physical address; buffers beyond go to the fallback.
    pub phys_bits: u32,
    /// The sizes of the fallback.
    pub fallback: MagazineConfig,
}

setters!(const IdentityConfig {
    phys_bits: u32,
    fallback: MagazineConfig,
});

impl IdentityConfig {
    /// 46 bits, as x86 had them for ATC'15, so that 48-bit IOVAs serve.
    pub const DEFAULT: Self = IdentityConfig {
        phys_bits: 46,
        fallback: MagazineConfig::DEFAULT,
    };
}

impl Default for IdentityConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// See the module's theory.
pub struct Identity<P: Platform> {
    /// Log2 of the pages of a region.
    region_lg2: u32,
    /// Physical pages below this one have an IOVA of their own.
    phys_end: PhysPage,
    fallback: Magazines<P>,
    regions: ReservedRanges<P>,
    diverted: PerCpu<P::A64>,
}

impl<P: Platform> Identity<P> {
    /// All of `aperture` is free, which must be a whole space: from page 0, and a power
    /// of two of pages.
    ///
    /// # Errors
    /// [`AllocatorError::IdentityAperture`] where it is not; [`AllocatorError::IdentityWidth`]
    /// where two bits are not left.
    pub fn new(
        p: &P,
        config: IdentityConfig,
        aperture: IovaRange,
        offset: PageCount,
    ) -> Result<Self, AllocatorError> {
        if aperture.first.0 != 0 || !aperture.pages.0.is_power_of_two() {
            return Err(AllocatorError::IdentityAperture { aperture });
        }
        let (phys_bits, pages_lg2) = (config.phys_bits, aperture.pages.0.trailing_zeros());
        let iova_bits = pages_lg2 + GRANULE_LG2;
        // a page at least, or the regions would be of less
        let needed = phys_bits.max(GRANULE_LG2).checked_add(2);
        if needed.is_none_or(|needed| iova_bits < needed) {
            return Err(AllocatorError::IdentityWidth {
                iova_bits,
                phys_bits,
            });
        }
        let region_lg2 = pages_lg2 - 2;
        let fallback = IovaRange::new(IovaPage(0), PageCount(1 << region_lg2));
        let left = config.fallback.backing.with_offset(fallback, offset);
        let fallback = left.ok_or(AllocatorError::Offset {
            offset,
            aperture: fallback,
        })?;
        Ok(Identity {
            region_lg2,
            phys_end: PhysPage(phys_bits.checked_sub(GRANULE_LG2).map_or(0, |lg2| 1 << lg2)),
            fallback: Magazines::new(p, config.fallback, fallback),
            regions: ReservedRanges::new(p, shared(region_lg2)),
            diverted: PerCpu::new(p, || P::A64::new(0)),
        })
    }

    /// What serves where identity does not.
    pub fn fallback(&self) -> &Magazines<P> {
        &self.fallback
    }

    /// Where `pages` pages from `first` are, by their own address and `perm`.
    #[inline]
    fn own_range(&self, first: PhysPage, pages: PageCount, perm: Perm) -> Option<IovaRange> {
        let end = first.0.checked_add(pages.0)?;
        let region = match perm {
            Perm::Read => 1,
            Perm::Write => 2,
            Perm::ReadWrite => 3,
        };
        let at = IovaPage(region << self.region_lg2 | first.0);
        (end <= self.phys_end.0).then_some(IovaRange::new(at, pages))
    }

    /// The pages of all four regions.
    fn whole(&self) -> IovaRange {
        IovaRange::new(IovaPage(0), PageCount(4 << self.region_lg2))
    }
}

/// The three regions of identity.
fn shared(region_lg2: u32) -> IovaRange {
    IovaRange::new(IovaPage(1 << region_lg2), PageCount(3 << region_lg2))
}

impl<P: Platform> IovaAllocator<P> for Identity<P> {
    #[inline]
    fn alloc(&self, p: &P, request: &Request) -> Result<IovaAlloc, AllocError> {
        let pages = PageCount(request.pages.0.max(1));
        let own = request
            .contiguous
            .and_then(|(first, perm)| self.own_range(first, pages, perm))
            .filter(|range| request.limits.prefer(*range));
        if let Some(range) = own
            && self.regions.lend(p, range).is_some()
        {
            return Ok(IovaAlloc::new(range, AllocKind::Shared));
        }
        let diverted = self.fallback.alloc(
            p,
            &Request {
                contiguous: None,
                ..*request
            },
        )?;
        p.pinned(|cpu| self.diverted.get(&cpu).fetch_add(1, Ordering::Relaxed));
        Ok(diverted)
    }

    fn shared(&self) -> Option<IovaRange> {
        Some(shared(self.region_lg2))
    }

    fn reserve(&self, p: &P, range: IovaRange) -> Result<IovaAlloc, FixedRangeError> {
        let whole = self.whole();
        let range = backing::inside(whole, range)?;
        let shared = shared(self.region_lg2);
        if shared.contains(&range) {
            return self.regions.reserve(range);
        }
        self.fallback.reserve(p, range)
    }

    #[inline]
    fn free(&self, p: &P, origin: CpuIndex, alloc: Flushed<IovaAlloc>) {
        let (range, kind) = (alloc.get().range(), alloc.get().kind());
        match kind {
            AllocKind::Shared => self.regions.take_back(p, range.pages),
            AllocKind::Fixed if range.first.0 >> self.region_lg2 > 0 => {
                self.regions.free(alloc.into_inner().range())
            }
            AllocKind::Fixed | AllocKind::Dynamic | AllocKind::Piece => {
                self.fallback.free(p, origin, alloc)
            }
        }
    }

    fn free_shared(&self, p: &P, alloc: IovaAlloc) {
        debug_assert!(alloc.kind() == AllocKind::Shared, "{alloc:?} is owned");
        self.regions.take_back(p, alloc.range().pages);
    }

    fn tick(&self, p: &P, now: TimeNs) {
        self.fallback.tick(p, now)
    }

    fn drain(&self, p: &P) -> PageCount {
        self.fallback.drain(p)
    }

    /// Of the fallback, and of what is reserved elsewhere: the other regions have no
    /// pages of their own.
    fn usage(&self, p: &P) -> Usage {
        let fallback = self.fallback.usage(p);
        let kept = self.regions.kept().0;
        let diverted = self.diverted.iter();
        Usage {
            aperture: PageCount(fallback.aperture.0 + kept),
            allocated: PageCount(fallback.allocated.0 + kept),
            shared: self.regions.allocated(),
            diverted: diverted
                .map(|(_, count)| count.load(Ordering::Relaxed))
                .sum(),
            ..fallback
        }
    }

    fn audit(&self, p: &P) -> Result<(), String> {
        self.regions.audit()?;
        self.fallback.audit(p)
    }

    fn describe(&self, p: &P, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (allocated, end) = (self.regions.allocated(), self.phys_end);
        write!(
            f,
            "identity below physical page {end}: {allocated} shared pages"
        )?;
        for range in self.regions.ranges() {
            write!(f, ", {range} reserved")?;
        }
        write!(f, "; else ")?;
        self.fallback.describe(p, f)
    }
}
