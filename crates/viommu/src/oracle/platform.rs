// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A platform that tells the oracle which frames are freed.

use super::{
    Oracle,
    forward::{forward_copies_to_inner, forward_to_inner},
};
use ioatlas_dma::{platform::*, units::*};
use std::{
    ptr::NonNull,
    sync::{Arc, OnceLock},
};

/// What of a unit leads to a frame.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Holders {
    /// Whether a walk cache or a walk points to a table there.
    pub pointer: bool,
    /// The pages from which translations lead there.
    pub leaves: Vec<(DomainId, IovaPage)>,
}

/// Says what of a unit leads to a frame.
type Holds = Box<dyn Fn(PhysPage) -> Holders + Send + Sync>;

/// `P`, with every frame checked (P4): just before it is free, and when it is allocated again, no
/// walk cache and no walk may point to it, and no translation may lead there.
pub struct WatchedPlatform<P> {
    inner: P,
    oracle: Arc<Oracle>,
    holds: OnceLock<Holds>,
}

impl<P: Platform> WatchedPlatform<P> {
    /// Watches `inner` for `oracle`.
    pub fn new(inner: P, oracle: Arc<Oracle>) -> Self {
        WatchedPlatform {
            inner,
            oracle,
            holds: OnceLock::new(),
        }
    }
    /// The unit exists now, and this asks it. Until then frees are not checked.
    pub fn ask(&self, holds: impl Fn(PhysPage) -> Holders + Send + Sync + 'static) {
        let _ = self.holds.set(Box::new(holds)); // the first one stays
    }
    fn allocated(&self, page: PhysPage) {
        let held = self.holds.get().map(|holds| holds(page));
        let held = held.unwrap_or_default();
        self.oracle.ledger().frame_allocated(page, &held);
    }
    /// The platform underneath, which is watched.
    pub fn inner(&self) -> &P {
        &self.inner
    }
}

#[allow(unsafe_code)] // a promise
// SAFETY: the one inside does; what is noted changes nothing.
unsafe impl<P: Platform> Platform for WatchedPlatform<P> {
    forward_to_inner!();
    fn frame_alloc(&self) -> Option<FreshFrame> {
        let frame = self.inner.frame_alloc()?;
        self.allocated(frame.page());
        Some(frame)
    }
    fn frame_free(&self, by: Authority, frame: FreshFrame) {
        if let Some(holds) = self.holds.get() {
            let held = holds(frame.page());
            self.oracle.ledger().frame_freed(frame.page(), &held);
        }
        self.inner.frame_free(by, frame);
    }
}

impl<P: Platform + PhysMemory<P>> PhysMemory<WatchedPlatform<P>> for WatchedPlatform<P> {
    fn word(&self, by: Authority, page: PhysPage, index: usize) -> Option<&P::A64> {
        self.inner.word(by, page, index)
    }
}

#[allow(unsafe_code)] // a promise
// SAFETY: the one inside does.
unsafe impl<P: CopyMemory> CopyMemory for WatchedPlatform<P> {
    forward_copies_to_inner!();
}

#[allow(unsafe_code)] // a promise
// SAFETY: the one inside does.
unsafe impl<P: DedicatedMemory> DedicatedMemory for WatchedPlatform<P> {}

#[allow(unsafe_code)] // a promise
// SAFETY: the one inside does.
unsafe impl<P: ContiguousMemory> ContiguousMemory for WatchedPlatform<P> {
    fn frames_alloc(&self, pages: PageCount) -> Option<FreshRun> {
        let run = self.inner.frames_alloc(pages)?;
        run.run().iter().for_each(|page| self.allocated(page));
        Some(run)
    }
    fn frames_ptr(&self, run: &FreshRun) -> NonNull<u8> {
        self.inner.frames_ptr(run)
    }
}
