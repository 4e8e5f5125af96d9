// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Counters, and the check that nothing is lost.

use super::*;
use crate::{
    iova::{IovaAlloc, Usage},
    policy::Held,
    table::Census,
};
use alloc::{format, string::String};
use core::fmt;

/// Per CPU, so that counting writes no word that another CPU writes.
pub(super) struct Counters<P: Platform>(PerCpu<Words<P>>);

pub(super) struct Words<P: Platform> {
    maps: P::A64,
    unmaps: P::A64,
    pages_mapped: P::A64,
    pages_unmapped: P::A64,
    allocated: P::A64,
    unallocated: P::A64,
}

/// What a domain has done, summed over CPUs; each number may be a little old.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DomainStats {
    /// Maps that succeeded, ever.
    pub maps: u64,
    /// Unmaps, through either interface.
    pub unmaps: u64,
    /// Pages that are mapped now.
    pub live: PageCount,
    /// Pages whose allocations are held by live mappings: `live`, each mapping rounded up to what
    /// was granted. Shared allocations do not count.
    pub allocated: PageCount,
    /// Pages reserved by [`Domain::reserve`].
    pub reserved: PageCount,
    /// Pages of chunks that no piece has: not handed out yet, or unmapped and flushed. Those of a
    /// chunk of which a piece is quarantined stay here for good.
    pub chunks: PageCount,
    /// Frames with the books of chunks.
    pub chunk_frames: u64,
    /// Retired and not flushed yet, also by an unmap that was started and not finished.
    pub retired: Held,
    /// Lost to failed invalidations, for good.
    pub quarantined: Held,
    /// Invalidations that were started.
    pub invalidations: u64,
}

/// A domain at rest: every IOVA page is accounted for, and every translation. (Frames are the
/// platform's to count: those of `census`, those retired and quarantined, and those of consistent
/// memory are all that the domain holds.)
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DomainAudit {
    /// What the tables hold.
    pub census: Census,
    /// Where the IOVA pages are.
    pub usage: Usage,
    /// The counters at that moment.
    pub stats: DomainStats,
}

impl<P: Platform> Counters<P> {
    pub fn new(p: &P) -> Self {
        Counters(PerCpu::new(p, || Words {
            maps: P::A64::new(0),
            unmaps: P::A64::new(0),
            pages_mapped: P::A64::new(0),
            pages_unmapped: P::A64::new(0),
            allocated: P::A64::new(0),
            unallocated: P::A64::new(0),
        }))
    }
    /// Those of this CPU, for as long as it is pinned.
    #[inline]
    pub fn of<'c>(&'c self, cpu: &'c Cpu<'_>) -> Option<&'c Words<P>> {
        self.0.try_get(cpu)
    }
    pub fn mapped(&self, cpu: &Cpu<'_>, pages: PageCount, alloc: &IovaAlloc) {
        self.0.get(cpu).mapped(pages, alloc.owned());
    }
    pub fn unmapped(&self, cpu: &Cpu<'_>, pages: PageCount, owned: PageCount) {
        self.0.get(cpu).unmapped(pages, owned);
    }
    /// So many mappings, which had `pages` together.
    pub fn unmapped_all(&self, cpu: &Cpu<'_>, mappings: u64, pages: PageCount, owned: PageCount) {
        self.0.get(cpu).unmapped_all(mappings, pages, owned);
    }
    fn sum(&self, pick: impl Fn(&Words<P>) -> &P::A64) -> u64 {
        let words = self.0.iter().map(|(_, words)| words);
        words.map(|w| pick(w).load(Ordering::Relaxed)).sum()
    }
}

impl<P: Platform> Words<P> {
    #[inline]
    pub fn mapped(&self, pages: PageCount, owned: PageCount) {
        bump(&self.maps, 1);
        bump(&self.pages_mapped, pages.0);
        bump(&self.allocated, owned.0);
    }
    #[inline]
    pub fn unmapped(&self, pages: PageCount, owned: PageCount) {
        self.unmapped_all(1, pages, owned);
    }
    #[inline]
    fn unmapped_all(&self, mappings: u64, pages: PageCount, owned: PageCount) {
        bump(&self.unmaps, mappings);
        bump(&self.pages_unmapped, pages.0);
        bump(&self.unallocated, owned.0);
    }
}

/// A plain add: the word is this CPU's, and it is pinned.
#[inline]
fn bump(word: &impl Atomic64, by: u64) {
    word.store(word.load(Ordering::Relaxed) + by, Ordering::Relaxed);
}

impl<P: Platform, T: Translator<P>> Domain<P, T> {
    /// What the domain has done.
    pub fn stats(&self) -> DomainStats {
        let sum = |pick: fn(&Words<P>) -> &P::A64| self.counters.sum(pick);
        // what left is read first, so what comes and goes meanwhile makes the difference larger,
        // not negative
        let difference = |came: fn(&Words<P>) -> &P::A64, left: fn(&Words<P>) -> &P::A64| {
            let left = sum(left);
            PageCount(sum(came).saturating_sub(left))
        };
        DomainStats {
            maps: sum(|w| &w.maps),
            unmaps: sum(|w| &w.unmaps),
            live: difference(|w| &w.pages_mapped, |w| &w.pages_unmapped),
            allocated: difference(|w| &w.allocated, |w| &w.unallocated),
            reserved: self.reserved.pages(),
            chunks: self.allocator.idle(&self.platform),
            chunk_frames: self.allocator.chunk_frames(),
            retired: self.policy.retired().and(self.in_flight.held()),
            quarantined: self.quarantine.held(),
            invalidations: self.sequence.started(),
        }
    }

    /// The pages among which mappings of one buffer share leaves, if the allocator shares any.
    pub fn shared(&self) -> Option<IovaRange> {
        self.allocator.shared()
    }

    /// Bytes of all magazines of IOVA ranges that there are, on all CPUs and in depots; nothing
    /// where the design has none.
    pub fn magazine_bytes(&self) -> ByteCount {
        match &*self.allocator {
            AnyAllocator::Magazine(magazines) => magazines.bytes(),
            _ => ByteCount(0),
        }
    }

    /// Where the IOVA pages are. Exact only while nothing else uses the domain.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub fn usage(&self) -> Usage {
        self.allocator.usage(&self.platform)
    }

    /// Checks every invariant: tables, allocator, and that the IOVA pages mapped + reserved +
    /// idle in chunks + retired + quarantined + cached + free are the whole (P10). Nothing else may
    /// use the domain meanwhile.
    ///
    /// # Errors
    /// A sentence that names the first thing that does not add up.
    pub fn audit(&self) -> Result<DomainAudit, String> {
        let p = &*self.platform;
        self.allocator.audit(p)?;
        let audit = DomainAudit {
            census: self.translator.audit(p, self.allocator.shared())?,
            usage: self.allocator.usage(p),
            stats: self.stats(),
        };
        let DomainAudit {
            census,
            usage,
            stats,
        } = &audit;
        if census.references != stats.live {
            return Err(format!(
                "{} pages have a translation, {} are mapped",
                census.references, stats.live
            ));
        }
        let gone = stats.retired.pages.0 + stats.quarantined.pages.0;
        let owned = stats.allocated.0 + stats.reserved.0 + stats.chunks.0 + gone;
        if usage.allocated.0 != owned {
            return Err(format!(
                "{} IOVA pages are allocated: {} mapped, {} reserved, {} idle in chunks, {} retired, \
                 {} quarantined",
                usage.allocated,
                stats.allocated,
                stats.reserved,
                stats.chunks,
                stats.retired.pages,
                stats.quarantined.pages
            ));
        }
        if usage.free.0 + usage.cached.0 + usage.allocated.0 + usage.others.0 != usage.aperture.0 {
            return Err(format!("IOVA pages do not add up: {usage:?}"));
        }
        Ok(audit)
    }
}

impl<P: Platform, T: Translator<P>> fmt::Display for Domain<P, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = self.stats();
        writeln!(
            f,
            "domain {}: {} maps, {} unmaps, {} pages live, {} retired, {} quarantined, {} invalidations",
            self.id(),
            s.maps,
            s.unmaps,
            s.live,
            s.retired.pages,
            s.quarantined.pages,
            s.invalidations
        )?;
        self.allocator.describe(&self.platform, f)
    }
}
