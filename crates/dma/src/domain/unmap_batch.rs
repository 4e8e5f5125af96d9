// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Unmapping several mappings at once.
//!
//! Under `strict` all leaves of up to [`UNMAP_ROUND`] mappings are cleared, then one invalidation
//! of their pages is asked for and waited for, then all is freed: see
//! [`Round`](crate::policy::Round). The other policies unmap one after the other, as they do not
//! wait in each (`deferred-*`, `macos`, `solaris`), or are there to do just that (`freebsd`).
#![allow(clippy::result_large_err)] // they have what comes back, and nothing is allocated to box it

use super::*;
use crate::{
    iova::{AllocKind, IovaAlloc},
    policy::{Round, RoundOutcome, UNMAP_ROUND},
    table::LeafTable,
};

/// Mappings that are cleared, and counted together.
struct Cleared {
    mappings: u64,
    pages: PageCount,
    owned: PageCount,
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
        self.first = self.first.min(range.first);
        self.end = self.end.max(range.end());
    }
    /// From the lowest page to the highest.
    fn range(&self) -> IovaRange {
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
    /// # use ioatlas_dma::table::{TableConfig, fmt::VtdSecond48};
    /// # use ioatlas_host::*;
    /// # use std::{collections::VecDeque, sync::Arc};
    /// # let p = Arc::new(Host::new(HostConfig { frames: 64, slots: 1 }));
    /// # let table = Paged::<_, VtdSecond48, _>::new(&*p, Uncached::<Host>::new(), TableConfig::default())?;
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
        match self.policy {
            Policy::Strict => self.unmap_rounds(mappings),
            _ => self.unmap_each(mappings),
        }
    }

    fn unmap_each(
        &self,
        mappings: &mut impl Iterator<Item = Mapping>,
    ) -> Result<(), UnmapBatchError> {
        let mut outcomes = mappings.map(|mapping| self.unmap(mapping)).enumerate();
        outcomes.try_for_each(|(ended, outcome)| {
            outcome.map_err(|error| match error {
                UnmapError::Invalidate { range, cause } => UnmapBatchError {
                    ended,
                    lost: Some(Lost {
                        mappings: 1,
                        range,
                        cause,
                    }),
                    stopped: None,
                },
                stopped => UnmapBatchError {
                    ended,
                    lost: None,
                    stopped: Some(stopped),
                },
            })
        })
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
        let p = &*self.platform;
        let engine = self.engine();
        let mut round = Round::new(p.pinned(|cpu| cpu.index()));
        let mut cleared = Cleared::nothing();
        let mut stopped = None;
        for mapping in mappings.take(UNMAP_ROUND) {
            if mapping.key != self.key {
                stopped = Some(UnmapError::Foreign(mapping));
                break;
            }
            let range = mapping.range();
            let owned = mapping.alloc.owned();
            if let Err(error) = self.clear_into(&mut round, &engine, mapping) {
                stopped = Some(error);
                break;
            }
            cleared.add(range, owned);
            if round.has_failed() {
                break;
            }
        }
        let RoundOutcome {
            ended,
            lost,
            failed,
        } = round.finish(&engine);
        p.pinned(|cpu| {
            let Cleared {
                mappings,
                pages,
                owned,
                ..
            } = cleared;
            self.counters.unmapped_all(&cpu, mappings, pages, owned);
        });
        if failed.is_none() && stopped.is_none() {
            return Ok(ended);
        }
        let lost = failed.map(|failed| Lost {
            mappings: lost,
            range: cleared.range(),
            cause: failed.cause,
        });
        Err(UnmapBatchError {
            ended,
            lost,
            stopped,
        })
    }

    /// Clears the leaves of a mapping of this domain; what that retires comes into `round`.
    #[inline]
    fn clear_into(
        &self,
        round: &mut Round,
        engine: &Engine<'_, P, T::Unit>,
        mapping: Mapping,
    ) -> Result<(), UnmapError> {
        let range = mapping.range();
        match mapping.table {
            Some(table) if self.clear_in(range, table) => {
                round.end(engine, mapping.alloc, range, Caches::Leaves);
                Ok(())
            }
            _ => self.clear_walking(round, engine, mapping.alloc, range),
        }
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

    /// As `retire` does for one mapping, and for the reasons that are there.
    #[inline(never)]
    fn clear_walking(
        &self,
        round: &mut Round,
        engine: &Engine<'_, P, T::Unit>,
        alloc: IovaAlloc,
        range: IovaRange,
    ) -> Result<(), UnmapError> {
        let p = &*self.platform;
        let mut caches = Caches::Leaves;
        let translator = &self.translator;
        let cleared = translator.clear(OURS, p, range, alloc.kind(), |frame| {
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
            self.allocator.free_shared(p, alloc);
            round.end_unflushed();
        } else {
            round.end(engine, alloc, range, caches);
        }
        Ok(())
    }
}
