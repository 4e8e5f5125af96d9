// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Words and locks that pass a point at each access.
//!
//! Underneath are the standard library's atomics and mutex, so that both are sound whatever the
//! caller does with threads.

use super::{
    engine::{self, Mask, Masked},
    scheduler::{LockPlace, Subject, Touch, YieldPoint},
};
use core::{any::type_name, panic::Location, sync::atomic::AtomicU64};
use ioatlas_dma::platform::{Atomic64, Element, Lock, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

/// A shared word of the simulation. It is as large as a real one, so words share cache
/// lines as they would.
#[repr(transparent)]
pub struct SimWord(AtomicU64);

impl SimWord {
    /// A word that holds 0.
    pub(super) const fn zero() -> Self {
        SimWord(AtomicU64::new(0))
    }
    /// Reads without passing a point, for looking at the state from tests and handlers.
    pub fn peek(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
    /// Writes without passing a point: what a device does.
    pub fn poke(&self, value: u64) {
        self.0.store(value, Ordering::SeqCst);
    }
    fn point(&self, point: YieldPoint, location: &'static Location<'static>) {
        let address = core::ptr::from_ref(self).addr();
        engine::point(point, Subject::Word(address), location);
    }
}

/// Sequentially consistent, whatever order is asked for.
impl Atomic64 for SimWord {
    fn new(value: u64) -> Self {
        SimWord(AtomicU64::new(value))
    }
    #[track_caller]
    fn load(&self, _: Ordering) -> u64 {
        self.point(YieldPoint::Load, Location::caller());
        self.peek()
    }
    #[track_caller]
    fn store(&self, value: u64, _: Ordering) {
        self.point(YieldPoint::Store, Location::caller());
        tell(self.0.swap(value, Ordering::SeqCst) != value);
    }
    #[track_caller]
    fn swap(&self, value: u64, _: Ordering) -> u64 {
        self.point(YieldPoint::Swap, Location::caller());
        let old = self.0.swap(value, Ordering::SeqCst);
        tell(old != value);
        old
    }
    #[track_caller]
    fn fetch_add(&self, value: u64, _: Ordering) -> u64 {
        self.point(YieldPoint::FetchAdd, Location::caller());
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
        self.point(YieldPoint::CompareExchange, Location::caller());
        let all = Ordering::SeqCst;
        let result = self.0.compare_exchange(current, new, all, all);
        tell(result.is_ok() && current != new);
        result
    }
    #[track_caller]
    fn touches<'b, T: 'b>(what: impl FnOnce() -> Option<Element<'b, T>>) {
        engine::touched(Location::caller(), || {
            let (block, index) = what()?;
            let begin = index * size_of::<T>();
            Some(Touch {
                block: block.as_ptr().addr(),
                bytes: begin..begin + size_of::<T>(),
                of: type_name::<T>(),
            })
        });
    }
    fn frees<T>(block: &[T]) {
        engine::freed(block.as_ptr().addr());
    }
}

fn tell(changed: bool) {
    if changed {
        engine::changed();
    }
}

/// A lock of the simulation: an agent that finds it held lets others go on, interrupts masked as in
/// a spin lock that disables them.
///
/// It begins a cache line. So everything that holds one does, wherever the host's allocator puts
/// it, and which words share a line is the same in every run. (See the module's theory.)
#[repr(align(64))]
pub struct SimLock<T>(Mutex<T>);

impl<T> SimLock<T> {
    /// Passes a point at the lock; whether it may be had.
    fn point(&self, point: YieldPoint, location: &'static Location<'static>) -> bool {
        let place = LockPlace {
            address: core::ptr::from_ref(self).addr(),
            bytes: size_of::<Self>(),
            data: type_name::<T>(),
        };
        engine::point(point, Subject::Lock(place), location)
    }

    /// The data, if no agent has it.
    fn hold(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            // the holder panicked, which ended its run; what it left is for the caller to look at
            Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits for the data, and runs `f` with it.
    fn enter<R>(&self, location: &'static Location<'static>, f: impl FnOnce(&mut T) -> R) -> R {
        self.point(YieldPoint::Acquire, location);
        let mask = engine::mask(Mask::Lock);
        let guard = loop {
            match self.hold() {
                Some(guard) => break guard,
                None if engine::is_seen() => {
                    self.point(YieldPoint::Contend, location);
                }
                None => {
                    panic!(
                        "the lock at {location} is held, and outside a run nothing would release it"
                    )
                }
            }
        };
        self.inside(guard, mask, location, f)
    }

    /// Runs `f` with the data, then gives the lock back and lets interrupts in.
    fn inside<R>(
        &self,
        mut guard: MutexGuard<'_, T>,
        mask: Masked,
        location: &'static Location<'static>,
        f: impl FnOnce(&mut T) -> R,
    ) -> R {
        let result = f(&mut guard);
        self.point(YieldPoint::Release, location);
        drop(guard);
        mask.end(YieldPoint::Release, location);
        result
    }
}

impl<T: Send> Lock<T> for SimLock<T> {
    fn new(value: T) -> Self {
        SimLock(Mutex::new(value))
    }
    #[track_caller]
    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        self.enter(Location::caller(), f)
    }
    #[track_caller]
    fn try_with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        let location = Location::caller();
        let free = self.point(YieldPoint::TryAcquire, location);
        let mask = engine::mask(Mask::Lock);
        match free.then(|| self.hold()).flatten() {
            Some(guard) => Some(self.inside(guard, mask, location, f)),
            None => {
                mask.end(YieldPoint::Contend, location);
                None
            }
        }
    }
    #[track_caller]
    fn with_counted<R>(&self, visited: impl Fn(&T) -> u64, f: impl FnOnce(&mut T) -> R) -> R {
        self.enter(Location::caller(), |data| {
            let before = visited(data);
            let result = f(data);
            engine::visited(visited(data).saturating_sub(before));
            result
        })
    }
}
