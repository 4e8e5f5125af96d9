// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! An unmap that is started and not finished, watched.
#![allow(clippy::result_large_err)] // the domain's

use super::{Bounds, Watched};
use ioatlas_dma::{
    domain::{InvalidationMode, Mapping, PendingUnmap, UnmapBatchError},
    platform::Platform,
    translator::Translator,
    units::IovaRange,
};

/// `PendingUnmap`, watched: under a strict policy, or in a domain that is strict when it has begun,
/// its mappings are in their unmap until it says
/// that they have ended; under any other, which unmaps at once, until it is there.
#[must_use = "the mappings have ended when this is finished, and only then"]
pub struct WatchedPending<'w, P: Platform, T: Translator<P>> {
    watched: &'w Watched<P, T>,
    pending: Option<PendingUnmap<'w, P, T>>,
    taken: Vec<(IovaRange, u64)>,
    result: Result<usize, UnmapBatchError>,
}

impl<P: Platform, T: Translator<P>> Watched<P, T> {
    /// [`Domain::unmap_start`](ioatlas_dma::domain::Domain::unmap_start), reported to the oracle.
    pub fn unmap_start(
        &self,
        mappings: &mut impl Iterator<Item = Mapping>,
    ) -> WatchedPending<'_, P, T> {
        let mut taken = Vec::new();
        let mut mappings = mappings.inspect(|mapping| taken.push(self.unmap_called(mapping)));
        let pending = Some(self.domain.unmap_start(&mut mappings));
        let mut pending = WatchedPending {
            watched: self,
            pending,
            taken,
            result: Ok(0),
        };
        if self.bounds != Bounds::Strict && self.domain.mode() != Some(InvalidationMode::Strict) {
            pending.end();
        }
        pending
    }
}

impl<P: Platform, T: Translator<P>> WatchedPending<'_, P, T> {
    /// [`PendingUnmap::is_done`]. From when it says yes on, no device may reach the mappings.
    pub fn is_done(&mut self) -> bool {
        let done = self.pending.as_mut().is_none_or(PendingUnmap::is_done);
        if done {
            self.end();
        }
        done
    }

    /// [`PendingUnmap::finish`], reported to the oracle.
    ///
    /// # Errors
    /// Those of [`PendingUnmap::finish`], unchanged.
    pub fn finish(mut self) -> Result<usize, UnmapBatchError> {
        self.end();
        std::mem::replace(&mut self.result, Ok(0))
    }

    fn end(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.result = pending.finish();
            let taken = std::mem::take(&mut self.taken);
            self.watched
                .batch_returned(taken, self.result.as_ref().err());
        }
    }
}

impl<P: Platform, T: Translator<P>> Drop for WatchedPending<'_, P, T> {
    /// By the drop of the one inside, which does not tell what went wrong: so where anything is
    /// quarantined meanwhile nothing is promised. All that it took was the domain's own.
    fn drop(&mut self) {
        let Some(pending) = self.pending.take() else {
            return;
        };
        let quarantined = || self.watched.domain.stats().quarantined;
        let before = quarantined();
        drop(pending);
        let failed = quarantined() != before;
        let mut ledger = self.watched.oracle.ledger();
        for (range, called) in self.taken.drain(..) {
            match failed {
                true => ledger.unmap_failed(self.watched.serial),
                false => ledger.unmap_returned(self.watched.serial, range, called),
            }
        }
    }
}
