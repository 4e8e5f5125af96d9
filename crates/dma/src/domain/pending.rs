// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Unmapping several mappings without waiting for the unit.
//!
//! # Theory
//!
//! [`Domain::unmap_start`] clears as [`Domain::unmap_batch`] does, asks for the one invalidation
//! and returns what it will free. That P1 holds is the argument of `invalidation::together`: what
//! becomes free by the answer was put together, cleared, before the request; nothing can be added
//! to it after; and the answer that is asked for is that request's. It may be asked for at any
//! later time, by any CPU, after any number of other invalidations.
//!
//! Until [`PendingUnmap::finish`] returns, nothing is said of the mappings: a device may reach
//! their buffers, or not. Nothing may be done with these buffers that must not be while they are
//! mapped. (A [`Client`](crate::dma_api::Client) sees to that: what it starts owns the lists.)
//!
//! What a pending one costs: its IOVAs, whole, and the tables that it detached, which
//! [`DomainStats::retired`] counts; and the domain, which it borrows, so that it cannot be closed.
//! No other unmap, map or flush waits for it, or frees what is its.
#![allow(clippy::result_large_err)] // they have what comes back, and nothing is allocated to box it

use super::{
    unmap_batch::{Clearing, said},
    *,
};
use crate::policy::PendingRound;

/// Mappings whose unmap has begun: see [`Domain::unmap_start`].
///
/// It may be sent to another thread, and finished there; the IOVAs go back to where the CPU that
/// began finds them. Dropping it finishes it, and then nothing is told of what went wrong. One that
/// is forgotten ([`core::mem::forget`]) loses its IOVAs and its tables for good, and frees nothing.
#[must_use = "the mappings have ended when this is finished, and only then"]
pub struct PendingUnmap<'d, P: Platform, T: Translator<P>> {
    domain: &'d Domain<P, T>,
    state: State<<T::Unit as Invalidate>::Token>,
}

#[allow(clippy::large_enum_variant)] // as above
enum State<K> {
    UnderWay {
        round: PendingRound<K>,
        /// The pages of its mappings, from the lowest to the highest.
        within: IovaRange,
        stopped: Option<UnmapError>,
    },
    Over(Result<usize, UnmapBatchError>),
}

impl<P: Platform, T: Translator<P>> Domain<P, T> {
    /// Begins to end the mappings that `mappings` yields, [`UNMAP_ROUND`] of them at most, and does
    /// not wait for the unit. They have ended when [`PendingUnmap::finish`] says so: until then a
    /// device may reach their buffers, and their addresses are given to none.
    ///
    /// Under `strict` all are cleared, and one invalidation is asked for. (Where they detach more
    /// tables than there is room for, or the unit has no room, that is waited for, within the
    /// domain's bound.) The other policies unmap one after the other, here.
    ///
    /// What goes wrong is told by `finish`, all of it, also where not all was taken: it says how
    /// many have ended, which is not known yet. As with [`unmap_batch`](Self::unmap_batch), what
    /// was not taken is in `mappings` still, and where that panics, what it has yielded is unmapped
    /// and waited for.
    ///
    /// Nothing is allocated, and no lock is held; some 8 KiB of stack are taken. May be called in
    /// an interrupt handler, on any CPU, and finished on another.
    ///
    /// ```
    /// # use ioatlas_dma::{domain::*, platform::*, translator::{Paged, Uncached}, units::*};
    /// # use ioatlas_dma::translator::{TableConfig, VtdSecond48};
    /// # use ioatlas_host::*;
    /// # use std::{collections::VecDeque, sync::Arc};
    /// # let p = Arc::new(Host::new(HostConfig::default().frames(64)));
    /// # let table = Paged::<_, VtdSecond48, _>::new(&p, Uncached::<Host>::new(), TableConfig::default())?;
    /// let domain = Domain::new(p.clone(), table, DomainConfig::default())?; // strict
    /// let buffer = |nth: u64| PhysRange::page(PhysPage(0x100 + nth));
    /// let map = |nth| domain.map(buffer(nth), Direction::FromDevice);
    /// let mut ring: VecDeque<_> = (0..256).map(map).collect::<Result<_, _>>()?;
    ///
    /// // one poll: the device says that it has filled so many
    /// let filled = 32;
    /// let mut pending = domain.unmap_start(&mut ring.drain(..filled));
    /// // while the unit works, refill the ring from other buffers, and tell the device
    /// for nth in 0..filled as u64 {
    ///     ring.push_back(map(256 + nth)?);
    /// }
    /// // it may be asked for without waiting, in the next poll for instance
    /// let _is_done = pending.is_done();
    /// assert_eq!(pending.finish(), Ok(filled));
    /// // hand the packets on: no device reaches them any more
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A domain is not closed while one is pending:
    ///
    /// ```compile_fail,E0505
    /// # use ioatlas_dma::{domain::*, platform::*, translator::{Paged, Uncached}, units::*};
    /// # use ioatlas_dma::translator::{TableConfig, VtdSecond48};
    /// # use ioatlas_host::*;
    /// # use std::sync::Arc;
    /// # let p = Arc::new(Host::new(HostConfig::default().frames(64)));
    /// # let table = Paged::<_, VtdSecond48, _>::new(&p, Uncached::<Host>::new(), TableConfig::default())?;
    /// # let domain = Domain::new(p.clone(), table, DomainConfig::default())?;
    /// let mapping = domain.map(PhysRange::page(PhysPage(0x100)), Direction::FromDevice)?;
    /// let pending = domain.unmap_start(&mut [mapping].into_iter());
    /// domain.close()?;
    /// pending.finish()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn unmap_start(
        &self,
        mappings: &mut impl Iterator<Item = Mapping>,
    ) -> PendingUnmap<'_, P, T> {
        let state = match self.policy.is_strict() {
            true => {
                let mut clearing = Clearing::new(self);
                let stopped = clearing.clear_all(mappings);
                let (round, within) = clearing.start();
                self.in_flight.add(round.held());
                State::UnderWay {
                    round,
                    within,
                    stopped,
                }
            }
            false => State::Over(self.unmap_each(mappings.take(UNMAP_ROUND))),
        };
        PendingUnmap {
            domain: self,
            state,
        }
    }
}

impl<P: Platform, T: Translator<P>> PendingUnmap<'_, P, T> {
    /// Whether [`finish`](Self::finish) would wait for nothing, by one look at the unit. Once it
    /// said yes it always does, and what has ended is free already.
    pub fn is_done(&mut self) -> bool {
        if let State::UnderWay { round, .. } = &mut self.state
            && !round.is_over(&self.domain.engine())
        {
            return false;
        }
        self.settle();
        true
    }

    /// Waits for the unit, as long as the domain's bound says; returns how many mappings have
    /// ended: all that were taken. What [`Domain::unmap`] promises is true of each.
    ///
    /// # Errors
    /// [`UnmapBatchError`], as from [`Domain::unmap_batch`].
    pub fn finish(mut self) -> Result<usize, UnmapBatchError> {
        self.end()
    }

    /// The same, in place. The second time there is nothing to tell.
    pub(crate) fn end(&mut self) -> Result<usize, UnmapBatchError> {
        core::mem::replace(self.settle(), Ok(0))
    }

    /// Waits for what is under way, frees it, and keeps what is to be told.
    fn settle(&mut self) -> &mut Result<usize, UnmapBatchError> {
        if let State::UnderWay {
            round,
            within,
            stopped,
        } = &mut self.state
        {
            let outcome = round.finish(&self.domain.engine());
            self.domain.in_flight.remove(round.held());
            self.state = State::Over(said(outcome, *within, stopped.take()));
        }
        match &mut self.state {
            State::Over(result) => result,
            State::UnderWay { .. } => unreachable!("just replaced"),
        }
    }
}

impl<P: Platform, T: Translator<P>> Drop for PendingUnmap<'_, P, T> {
    fn drop(&mut self) {
        let _ = self.end();
    }
}
