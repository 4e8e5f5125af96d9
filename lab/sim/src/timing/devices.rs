// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the unit's caches see of a run: devices' accesses, and invalidations.
//!
//! Accesses cost nothing in virtual time and change nothing. They are written down with the
//! invalidations, so that an IOTLB can be simulated on the same run afterwards.

use ioatlas_dma::{
    invalidation::Caches,
    units::{IovaPage, IovaRange},
};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Something that a unit's caches are asked for, or told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheEvent {
    /// A device accessed a page that is mapped.
    Access(IovaPage),
    /// A page-selective invalidation was done.
    Pages(IovaRange, Caches),
    /// A domain-selective invalidation was done.
    Domain,
}

/// Events, as they come.
#[derive(Debug, Default)]
pub struct CacheLog(Mutex<Vec<(u64, CacheEvent)>>);

impl CacheLog {
    pub(crate) fn add(&self, at: u64, event: CacheEvent) {
        self.events().push((at, event));
    }

    /// All events in the order of virtual time; those of one moment as they came.
    #[must_use]
    pub fn take(&self) -> Vec<CacheEvent> {
        let mut events = std::mem::take(&mut *self.events());
        events.sort_by_key(|(at, _)| *at);
        events.into_iter().map(|(_, event)| event).collect()
    }

    fn events(&self) -> MutexGuard<'_, Vec<(u64, CacheEvent)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
