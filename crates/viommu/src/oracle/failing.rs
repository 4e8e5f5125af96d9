// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A platform whose n-th frame allocation fails.

use super::forward::{forward_copies_to_inner, forward_to_inner};
use ioatlas_dma::{platform::*, units::*};
use std::{
    ptr::NonNull,
    sync::{Mutex, OnceLock},
};

/// `P`, failing one frame allocation on demand.
pub struct Failing<P> {
    inner: P,
    countdown: Mutex<Option<u64>>,
    hook: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl<P: Platform> Failing<P> {
    /// Wraps `inner`; fails nothing yet.
    pub fn new(inner: P) -> Self {
        Failing {
            inner,
            countdown: Mutex::new(None),
            hook: OnceLock::new(),
        }
    }
    /// The `n`-th allocation from now on (from 0) fails, and only that one.
    pub fn fail_nth(&self, n: u64) {
        *self.countdown() = Some(n);
    }
    /// Whenever an allocation fails, `hook` is called: what a device does just then.
    /// The first hook stays.
    pub fn when_it_fails(&self, hook: impl Fn() + Send + Sync + 'static) {
        let _ = self.hook.set(Box::new(hook));
    }
    /// Whether that allocation is still to come; it is forgotten then.
    pub fn disarm(&self) -> bool {
        self.countdown().take().is_some()
    }
    /// The platform underneath, which allocates.
    pub fn inner(&self) -> &P {
        &self.inner
    }
    /// Counts an allocation, of one frame or of a run.
    fn allow(&self) -> Option<()> {
        let mut countdown = self.countdown();
        match *countdown {
            Some(0) => {
                *countdown = None;
                drop(countdown);
                if let Some(hook) = self.hook.get() {
                    hook();
                }
                return None;
            }
            Some(left) => *countdown = Some(left - 1),
            None => {}
        }
        Some(())
    }
    fn countdown(&self) -> std::sync::MutexGuard<'_, Option<u64>> {
        self.countdown
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[allow(unsafe_code)] // a promise
// SAFETY: the one inside does; a frame that is refused was never taken.
unsafe impl<P: Platform> Platform for Failing<P> {
    forward_to_inner!();
    fn frame_alloc(&self) -> Option<FreshFrame> {
        self.allow()?;
        self.inner.frame_alloc()
    }
    fn frame_free(&self, by: Authority, frame: FreshFrame) {
        self.inner.frame_free(by, frame);
    }
}

impl<P: Platform + PhysMemory<P>> PhysMemory<Failing<P>> for Failing<P> {
    fn word(&self, by: Authority, page: PhysPage, index: usize) -> Option<&P::A64> {
        self.inner.word(by, page, index)
    }
}

#[allow(unsafe_code)] // a promise
// SAFETY: the one inside does.
unsafe impl<P: CopyMemory> CopyMemory for Failing<P> {
    forward_copies_to_inner!();
}

#[allow(unsafe_code)] // a promise
// SAFETY: the one inside does.
unsafe impl<P: DedicatedMemory> DedicatedMemory for Failing<P> {}

#[allow(unsafe_code)] // a promise
// SAFETY: the one inside does; a run that is refused was never taken.
unsafe impl<P: ContiguousMemory> ContiguousMemory for Failing<P> {
    fn frames_alloc(&self, pages: PageCount) -> Option<FreshRun> {
        self.allow()?;
        self.inner.frames_alloc(pages)
    }
    fn frames_ptr(&self, run: &FreshRun) -> NonNull<u8> {
        self.inner.frames_ptr(run)
    }
}
