// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A platform that tells the oracle which frames are freed.

use super::Oracle;
use ioatlas_dma::{platform::*, units::*};
use std::sync::{Arc, OnceLock};

/// Says whether a unit holds a pointer to a frame.
type Holds = Box<dyn Fn(PhysPage) -> bool + Send + Sync>;

/// `P`, with every freed frame checked (P4): just before it is free, no walk cache and no walk may point to it.
pub struct WatchedPlatform<P> {
    inner: P,
    oracle: Arc<Oracle>,
    holds: OnceLock<Holds>,
}

impl<P: Platform> WatchedPlatform<P> {
    /// Watches `inner`.
    pub fn new(inner: P, oracle: Arc<Oracle>) -> Self {
        WatchedPlatform {
            inner,
            oracle,
            holds: OnceLock::new(),
        }
    }
    /// The unit exists now, and this asks it. Until then frees are not checked.
    pub fn ask(&self, holds: impl Fn(PhysPage) -> bool + Send + Sync + 'static) {
        let _ = self.holds.set(Box::new(holds)); // the first one stays
    }
    /// The platform underneath.
    pub fn inner(&self) -> &P {
        &self.inner
    }
}

impl<P: Platform> Platform for WatchedPlatform<P> {
    type A64 = P::A64;
    type Lock<T: Send> = P::Lock<T>;
    fn pinned<R>(&self, f: impl FnOnce(Cpu<'_>) -> R) -> R {
        self.inner.pinned(f)
    }
    fn cpus(&self) -> usize {
        self.inner.cpus()
    }
    fn frame_alloc(&self) -> Option<FreshFrame> {
        self.inner.frame_alloc()
    }
    fn frame_free(&self, frame: FreshFrame) {
        if let Some(holds) = self.holds.get() {
            let held = holds(frame.page());
            self.oracle.ledger().frame_freed(frame.page(), held);
        }
        self.inner.frame_free(frame);
    }
    fn entries(&self, frame: &TableFrame) -> &[P::A64] {
        self.inner.entries(frame)
    }
    fn publish(&self, entries: &[P::A64]) {
        self.inner.publish(entries);
    }
    fn fence(&self, order: Ordering) {
        self.inner.fence(order);
    }
    fn heavy_fence(&self) {
        self.inner.heavy_fence();
    }
    fn relax(&self) {
        self.inner.relax();
    }
    fn unique(&self) -> u64 {
        self.inner.unique()
    }
}

impl<P: Platform + PhysMemory<P>> PhysMemory<WatchedPlatform<P>> for WatchedPlatform<P> {
    fn word(&self, page: PhysPage, index: usize) -> Option<&P::A64> {
        self.inner.word(page, index)
    }
}
