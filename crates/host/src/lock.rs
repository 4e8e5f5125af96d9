// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Locks of a process: one byte before the data, so that a lock and what it guards share a cache
//! line.
//!
//! Taking one is an exchange, giving it back a plain store; the standard library's mutex costs
//! three times the instructions, for poisoning and for waiters that sleep. What the core does under
//! a lock is a few loads and stores, so a thread that finds one held spins. The holder may have
//! lost its core, though, perhaps to the very thread that spins: so after a moment each turn lets
//! others run, and after many it sleeps, which lets even a thread of lower priority go on.

use super::{Lock, Ordering};
use core::{cell::UnsafeCell, hint, sync::atomic::AtomicBool};
use std::{thread, time::Duration};

/// Turns that spin, before turns that yield.
const SPINS: u32 = 64;
/// Turns that spin or yield, before turns that sleep.
const YIELDS: u32 = 1024;
/// For how long one sleeps.
const SLEEP: Duration = Duration::from_micros(50);

/// A lock around its data.
pub struct HostLock<T> {
    held: AtomicBool,
    data: UnsafeCell<T>,
}

// SAFETY: `with` alone reaches the data, and lets one thread in at a time; the data goes from
// thread to thread by that.
unsafe impl<T: Send> Sync for HostLock<T> {}

/// Gives the lock back, also when the closure panics: a panic is reported where it happens, and the
/// data stays usable for the report.
struct Held<'l>(&'l AtomicBool);

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl<T> HostLock<T> {
    #[inline]
    fn try_hold(&self) -> Option<Held<'_>> {
        let was_held = self.held.swap(true, Ordering::Acquire);
        (!was_held).then(|| Held(&self.held)) // made only by its holder: to drop one gives the lock back
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) -> Held<'_> {
        let mut turn = 0;
        loop {
            // looks without writing, so that the line stays with the holder
            if !self.held.load(Ordering::Relaxed)
                && let Some(held) = self.try_hold()
            {
                return held;
            }
            match turn {
                ..SPINS => hint::spin_loop(),
                SPINS..YIELDS => thread::yield_now(),
                _ => thread::sleep(SLEEP),
            }
            turn = YIELDS.min(turn + 1);
        }
    }
}

impl<T: Send> Lock<T> for HostLock<T> {
    fn new(value: T) -> Self {
        HostLock {
            held: AtomicBool::new(false),
            data: UnsafeCell::new(value),
        }
    }
    #[inline]
    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let _held = match self.try_hold() {
            Some(held) => held,
            None => self.wait(),
        };
        // SAFETY: this thread took the lock, and gives it back after `f`, when `_held` is dropped.
        // No other reference exists meanwhile: each is made here, and cannot outlive its closure.
        f(unsafe { &mut *self.data.get() })
    }
    #[inline(always)] // fast paths call nothing
    fn try_with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        let _held = self.try_hold()?;
        // SAFETY: as in `with`.
        Some(f(unsafe { &mut *self.data.get() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn one_thread_at_a_time_and_none_is_lost() {
        const EACH: u64 = 20_000;
        let lock = HostLock::new((0u64, 0u64));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        lock.with(|(one, two)| {
                            assert_eq!(one, two, "another thread is inside");
                            *one += 1;
                            hint::spin_loop();
                            *two += 1;
                        });
                    }
                });
            }
        });
        assert_eq!(lock.with(|both| *both), (4 * EACH, 4 * EACH));
    }

    #[test]
    fn a_holder_that_sleeps_is_waited_for() {
        let lock = HostLock::new(0);
        let started = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                lock.with(|value| {
                    started.store(true, Ordering::Release);
                    thread::sleep(20 * SLEEP); // so that the other one gets as far as sleeping too
                    *value = 1;
                });
            });
            while !started.load(Ordering::Acquire) {
                thread::yield_now();
            }
            assert_eq!(lock.with(|value| *value), 1);
        });
    }

    #[test]
    fn a_panic_inside_gives_the_lock_back() {
        let lock = HostLock::new(3);
        let panicked = catch_unwind(AssertUnwindSafe(|| lock.with(|_| panic!("as planned"))));
        assert!(panicked.is_err());
        assert_eq!(lock.with(|value| *value), 3);
    }
}
