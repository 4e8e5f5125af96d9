// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a runner has done.

use crate::{
    cache::{DeviceIotlb, Stats},
    protocol::misses::{MissChannel, MissStats},
};
use ioatlas_dma::units::*;
use std::sync::{Arc, Mutex, PoisonError};

/// What the control thread has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)] // its fields say it
pub struct ControlStats {
    /// Updates that went into the cache, or were there already.
    pub updates: u64,
    /// IOTLB messages that were refused: outside the memory table, malformed, or without IOMMU.
    pub refused: u64,
    /// Invalidations that were acknowledged.
    pub invalidations: u64,
    /// Time from an invalidation's arrival to its acknowledgement: the sum over all.
    pub acknowledging: TimeNs,
    /// The same: the longest.
    pub slowest_acknowledgement: TimeNs,
    pub connections: u64,
}

/// Everything that a runner counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)] // its fields say it
pub struct RunnerStats {
    pub cache: Stats,
    /// Questions to the front end.
    pub misses: MissStats,
    pub control: ControlStats,
}

/// Reads a runner's statistics while it runs.
pub struct Observer<T> {
    cache: Arc<T>,
    misses: Arc<MissChannel>,
    control: Arc<Mutex<ControlStats>>,
}

impl<T> Clone for Observer<T> {
    fn clone(&self) -> Self {
        Observer {
            cache: self.cache.clone(),
            misses: self.misses.clone(),
            control: self.control.clone(),
        }
    }
}

impl<T: DeviceIotlb> Observer<T> {
    pub(super) fn new(
        cache: Arc<T>,
        misses: Arc<MissChannel>,
        control: Arc<Mutex<ControlStats>>,
    ) -> Self {
        Observer {
            cache,
            misses,
            control,
        }
    }

    /// What was done so far.
    pub fn stats(&self) -> RunnerStats {
        let control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        RunnerStats {
            cache: self.cache.stats(),
            misses: self.misses.stats(),
            control: *control,
        }
    }

    /// Checks the cache's structure.
    ///
    /// # Errors
    /// What is wrong with it.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub fn audit(&self) -> Result<crate::cache::Census, String> {
        self.cache.audit()
    }
}
