// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Words and locks that pass a point at each access.
//!
//! Underneath are the standard library's atomics and mutex, so that both are sound whatever the caller does with threads.

use super::engine::{self, Mask, Point};
use crate::platform::{Atomic64, Lock, Ordering};
use core::{panic::Location, sync::atomic::AtomicU64};
use std::sync::{Mutex, TryLockError};

/// A shared word of the simulation.
pub struct SimWord(AtomicU64);

impl SimWord {
    /// Reads without passing a point, for looking at the state from tests and handlers.
    pub fn peek(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
    /// Writes without passing a point.
    pub(super) fn poke(&self, value: u64) {
        self.0.store(value, Ordering::SeqCst);
    }
}

/// Sequentially consistent, whatever order is asked for.
impl Atomic64 for SimWord {
    fn new(value: u64) -> Self {
        SimWord(AtomicU64::new(value))
    }
    #[track_caller]
    fn load(&self, _: Ordering) -> u64 {
        engine::point(Point::Load, Location::caller());
        self.peek()
    }
    #[track_caller]
    fn store(&self, value: u64, _: Ordering) {
        engine::point(Point::Store, Location::caller());
        tell(self.0.swap(value, Ordering::SeqCst) != value);
    }
    #[track_caller]
    fn swap(&self, value: u64, _: Ordering) -> u64 {
        engine::point(Point::Swap, Location::caller());
        let old = self.0.swap(value, Ordering::SeqCst);
        tell(old != value);
        old
    }
    #[track_caller]
    fn fetch_add(&self, value: u64, _: Ordering) -> u64 {
        engine::point(Point::FetchAdd, Location::caller());
        let old = self.0.fetch_add(value, Ordering::SeqCst);
        tell(value != 0);
        old
    }
    #[track_caller]
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        _: Ordering,
        _: Ordering,
    ) -> Result<u64, u64> {
        engine::point(Point::CompareExchange, Location::caller());
        let all = Ordering::SeqCst;
        let result = self.0.compare_exchange(current, new, all, all);
        tell(result.is_ok() && current != new);
        result
    }
}

fn tell(changed: bool) {
    if changed {
        engine::changed();
    }
}

/// A lock of the simulation: who finds it held lets others go on, interrupts masked as in a spin lock that disables them.
pub struct SimLock<T>(Mutex<T>);

impl<T: Send> Lock<T> for SimLock<T> {
    fn new(value: T) -> Self {
        SimLock(Mutex::new(value))
    }
    #[track_caller]
    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let location = Location::caller();
        engine::point(Point::Acquire, location);
        let mask = engine::mask(Mask::Lock);
        let mut guard = loop {
            match self.0.try_lock() {
                Ok(guard) => break guard,
                // the holder panicked, which ended its run; what it left is for the caller to look at
                Err(TryLockError::Poisoned(guard)) => break guard.into_inner(),
                Err(TryLockError::WouldBlock) if engine::is_seen() => {
                    engine::point(Point::Contend, location);
                }
                Err(TryLockError::WouldBlock) => {
                    panic!(
                        "the lock at {location} is held, and outside a run nobody would release it"
                    )
                }
            }
        };
        let result = f(&mut guard);
        engine::point(Point::Release, location);
        drop(guard);
        mask.end(Point::Release, location);
        result
    }
}
