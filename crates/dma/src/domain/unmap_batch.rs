// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Unmapping several mappings at once.
//!
//! Under `strict`, and in a domain switched to that, all leaves of up to [`UNMAP_ROUND`] mappings
//! are cleared, then one invalidation of their pages is asked for and waited for, then all is
//! freed: see [`Round`](crate::policy::Round). The other policies unmap one after the other, as
//! they do not wait in each (`deferred-*`, `macos`, `solaris`), or are there to do just that
//! (`freebsd`).
#![allow(clippy::result_large_err)] // they have what comes back, and nothing is allocated to box it

use super::*;
use crate::{
    iova::{AllocKind, IovaAlloc},
    policy::{PendingRound, Round, RoundOutcome, UNMAP_ROUND},
    table::LeafTable,
};

/// A round under way.
pub(super) struct Clearing<'d, P: Platform, T: Translator<P>> {
    domain: &'d Domain<P, T>,
    engine: Engine<'d, P, T::Unit>,
    round: Round,
    cleared: Cleared,
}

/// A round whose mappings are being yielded. Where what yields them panics, it is finished all the
/// same: what is cleared by then is flushed, freed and counted.
struct Guard<'c, 'd, P: Platform, T: Translator<P>>(&'c mut Clearing<'d, P, T>);

/// Mappings that are cleared, and counted together.
pub(super) struct Cleared {
    mappings: u64,
    pages: PageCount,
    owned: PageCount,
    /// The lowest page, and what follows the highest, also of what had holes.
    first: IovaPage,
    end: IovaPage,
}

impl Cleared {
    fn nothing() -> Self {
        Cleared {
            mappings: 0,
            pages: PageCount(0),
            owned: PageCount(0),
            first: IovaPage(u64::MAX),
            end: IovaPage(0),
        }
    }
    #[inline]
    fn add(&mut self, range: IovaRange, owned: PageCount) {
        self.mappings += 1;
        self.pages.0 += range.pages.0;
        self.owned.0 += owned.0;
    }
    #[inline]
    fn cover(&mut self, range: IovaRange) {
        self.first = self.first.min(range.first);
        self.end = self.end.max(range.end());
    }
    pub(super) fn within(&self) -> IovaRange {
        let pages = self.end.0.saturating_sub(self.first.0);
        IovaRange::new(self.first, PageCount(pages))
    }
}

impl<P: Platform, T: Translator<P>> Domain<P, T> {
    /// Ends the mappings that `mappings` yields, in their order. When this returns, what
    /// [`unmap`](Self::unmap) promises is true of each; under `strict` that takes one invalidation
    /// for all ([`UNMAP_ROUND`] at most), where a loop over `unmap` would wait for one after the
    /// other. So a driver that reaps completions in bursts unmaps a burst by one call.
    ///
    /// What is mapped at addresses next to each other is invalidated as one range; what is more
    /// than a few ranges to the unit, as the whole domain.
    ///
    /// `mappings` is asked for the next while some are cleared and not flushed: it had better not
    /// take long. Nothing is allocated, and no lock is held; it takes some 4 KiB of stack. May be
    /// called in an interrupt handler, on any CPU.
    ///
    /// # Errors
    /// [`UnmapBatchError`], which says how many have ended. It stops at the first mapping that is
    /// not this domain's, and behind the round of which an invalidation has failed. What it has not
    /// taken then is in `mappings` still, to be unmapped by another call.
    ///
    /// ```
    /// # use ioatlas_dma::{domain::*, platform::*, translator::{Paged, Uncached}, units::*};
    /// # use ioatlas_dma::translator::{TableConfig, VtdSecond48};
    /// # use ioatlas_host::*;
    /// # use std::{collections::VecDeque, sync::Arc};
    /// # let p = Arc::new(Host::new(HostConfig::default().frames(64)));
    /// # let table = Paged::<_, VtdSecond48, _>::new(&p, Uncached::<Host>::new(), TableConfig::default())?;
    /// let domain = Domain::new(p.clone(), table, DomainConfig::default())?; // strict
    /// // a receive ring: the device fills its buffers in order
    /// let buffer = |nth: u64| PhysRange::page(PhysPage(0x100 + nth));
    /// let map = |nth| domain.map(buffer(nth), Direction::FromDevice);
    /// let mut ring: VecDeque<_> = (0..256).map(map).collect::<Result<_, _>>()?;
    ///
    /// // one poll: the device says that it has filled so many
    /// let filled = 32;
    /// let before = domain.stats().invalidations;
    /// domain.unmap_batch(&mut ring.drain(..filled)).expect("the unit answers");
    /// assert_eq!(domain.stats().invalidations, before + 1);
    /// // ... hand the packets on: no device reaches them any more; and refill the ring
    /// ring.push_back(map(256)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn unmap_batch(
        &self,
        mappings: &mut impl Iterator<Item = Mapping>,
    ) -> Result<(), UnmapBatchError> {
        match self.policy.is_strict() {
            true => self.unmap_rounds(mappings),
            false => self.unmap_each(mappings).map(drop),
        }
    }

    /// One after the other; how many have ended.
    pub(super) fn unmap_each(
        &self,
        mappings: impl Iterator<Item = Mapping>,
    ) -> Result<usize, UnmapBatchError> {
        let mut ended = 0;
        for mapping in mappings {
            if let Err(error) = self.unmap(mapping) {
                let lost = Lost::one(&error);
                let stopped = lost.is_none().then_some(error);
                return Err(UnmapBatchError {
                    ended,
                    lost,
                    stopped,
                });
            }
            ended += 1;
        }
        Ok(ended)
    }

    fn unmap_rounds(
        &self,
        mappings: &mut impl Iterator<Item = Mapping>,
    ) -> Result<(), UnmapBatchError> {
        let mut ended = 0;
        loop {
            match self.unmap_round(mappings) {
                Ok(UNMAP_ROUND) => ended += UNMAP_ROUND,
                Ok(_) => return Ok(()), // there were no more
                Err(error) => {
                    return Err(UnmapBatchError {
                        ended: ended + error.ended,
                        ..error
                    });
                }
            }
        }
    }

    /// One round; how many have ended.
    fn unmap_round(
        &self,
        mappings: &mut impl Iterator<Item = Mapping>,
    ) -> Result<usize, UnmapBatchError> {
        let mut clearing = Clearing::new(self);
        let stopped = clearing.clear_all(mappings);
        let outcome = clearing.finish();
        said(outcome, clearing.cleared.within(), stopped)
    }

    /// Without a walk; returns whether. Nothing has changed if not.
    #[inline]
    fn clear_in(&self, range: IovaRange, table: LeafTable) -> bool {
        let p = &*self.platform;
        let leaves = self.translator.leaves_in(OURS, p, range, table);
        leaves.is_some_and(|leaves| match leaves.len() {
            1 => self.translator.clear_known::<1>(OURS, p, leaves),
            _ => self.translator.clear_known::<0>(OURS, p, leaves),
        })
    }
}

/// What is said of a round that is over, whose pages were `within`; how many have ended.
#[inline]
pub(super) fn said(
    outcome: RoundOutcome,
    within: IovaRange,
    stopped: Option<UnmapError>,
) -> Result<usize, UnmapBatchError> {
    let RoundOutcome {
        ended,
        lost,
        failed,
    } = outcome;
    let Some(failed) = failed else {
        return match stopped {
            None => Ok(ended),
            stopped => Err(UnmapBatchError {
                ended,
                lost: None,
                stopped,
            }),
        };
    };
    // what is left of a mapping with holes was not flushed either
    let is_holed = matches!(stopped, Some(UnmapError::Holes { .. }));
    Err(UnmapBatchError {
        ended,
        lost: Some(Lost {
            mappings: lost + usize::from(is_holed),
            range: within,
            cause: failed.cause,
        }),
        stopped: stopped.filter(|_| !is_holed),
    })
}

impl<'d, P: Platform, T: Translator<P>> Clearing<'d, P, T> {
    #[inline]
    pub(super) fn new(domain: &'d Domain<P, T>) -> Self {
        Clearing {
            domain,
            engine: domain.engine(),
            round: Round::new(domain.platform.pinned(|cpu| cpu.index())),
            cleared: Cleared::nothing(),
        }
    }

    /// Clears what `mappings` yields, a round at most; returns at what it stopped, if it did.
    #[inline]
    pub(super) fn clear_all(
        &mut self,
        mappings: &mut impl Iterator<Item = Mapping>,
    ) -> Option<UnmapError> {
        let guard = Guard(self);
        let mut stopped = None;
        for mapping in mappings.take(UNMAP_ROUND) {
            if mapping.key != guard.0.domain.key {
                stopped = Some(UnmapError::Foreign(mapping));
                break;
            }
            if let Err(error) = guard.0.clear(mapping) {
                stopped = Some(error);
                break;
            }
            if guard.0.round.has_failed() {
                break;
            }
        }
        core::mem::forget(guard);
        stopped
    }

    /// Asks for what completes the round, and counts it.
    pub(super) fn start(mut self) -> (PendingRound<<T::Unit as Invalidate>::Token>, IovaRange) {
        self.count();
        let Clearing {
            engine,
            round,
            cleared,
            ..
        } = self;
        (round.start(&engine), cleared.within())
    }

    /// Clears the leaves of a mapping of this domain; what that retires comes into the round.
    #[inline(always)]
    fn clear(&mut self, mapping: Mapping) -> Result<(), UnmapError> {
        let range = mapping.range();
        let owned = mapping.alloc.owned();
        self.cleared.cover(range);
        match mapping.table {
            Some(table) if self.domain.clear_in(range, table) => {
                let Self { round, engine, .. } = self;
                round.end(engine, mapping.alloc, range, Caches::Leaves);
            }
            _ => self.clear_walking(mapping.alloc, range)?,
        }
        self.cleared.add(range, owned);
        Ok(())
    }

    /// As `retire` does for one mapping, and for the reasons that are there.
    #[inline(never)]
    fn clear_walking(&mut self, alloc: IovaAlloc, range: IovaRange) -> Result<(), UnmapError> {
        let Self {
            domain,
            engine,
            round,
            ..
        } = self;
        let p = &*domain.platform;
        let mut caches = Caches::Leaves;
        let cleared = domain
            .translator
            .clear(OURS, p, range, alloc.kind(), |frame| {
                caches = Caches::LeavesAndWalks;
                round.add_frame(engine, frame, range);
            });
        let found = cleared.found;
        if found != range.pages {
            drop(alloc);
            round.also(engine, range);
            return Err(UnmapError::Holes { range, found });
        }
        if alloc.kind() == AllocKind::Shared && cleared.gone.0 == 0 && caches == Caches::Leaves {
            domain.allocator.free_shared(p, alloc);
            round.end_unflushed();
        } else {
            round.end(engine, alloc, range, caches);
        }
        Ok(())
    }

    /// Flushes and frees what is in the round, and counts it.
    fn finish(&mut self) -> RoundOutcome {
        let outcome = self.round.finish(&self.engine);
        self.count();
        outcome
    }

    #[inline]
    fn count(&mut self) {
        let counted = core::mem::take(&mut self.cleared.mappings);
        if counted > 0 {
            let Cleared { pages, owned, .. } = self.cleared;
            let counters = &self.domain.counters;
            let p = &*self.domain.platform;
            p.pinned(|cpu| counters.unmapped_all(&cpu, counted, pages, owned));
        }
    }
}

impl<P: Platform, T: Translator<P>> Drop for Guard<'_, '_, P, T> {
    fn drop(&mut self) {
        self.0.finish();
    }
}
