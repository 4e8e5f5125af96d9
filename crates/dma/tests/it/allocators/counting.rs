// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Counts what the calling thread asks of the allocator, and fails where it is told to. A program
//! that includes this file uses it for all.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static LIVE: Cell<i64> = const { Cell::new(0) };
    static MASKED: Cell<u32> = const { Cell::new(0) };
    static CALLS_MASKED: Cell<u64> = const { Cell::new(0) };
    /// Which allocations fail, counted from the next, and how many have been made.
    static FAILING: Cell<Option<(Failing, u64)>> = const { Cell::new(None) };
}

fn count(bytes: i64) {
    CALLS.set(CALLS.get() + 1);
    LIVE.set(LIVE.get() + bytes);
    CALLS_MASKED.set(CALLS_MASKED.get() + u64::from(MASKED.get() > 0));
}

// SAFETY: all calls go to the system's allocator unchanged; the counters neither allocate nor have
// destructors.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if fails() {
            return std::ptr::null_mut();
        }
        count(layout.size() as i64);
        // SAFETY: the caller's promises are those of `System`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller's promises are those of `System`, which gave out `at`.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Which allocations of a thread fail.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code)] // not every program that includes this file asks
pub enum Failing {
    /// One of them, by its number from 0 on.
    Nth(u64),
    /// That one, and all that follow.
    From(u64),
}

fn fails() -> bool {
    let Some((which, made)) = FAILING.get() else {
        return false;
    };
    if std::thread::panicking() {
        return false; // what a test has to say is said
    }
    FAILING.set(Some((which, made + 1)));
    match which {
        Failing::Nth(nth) => made == nth,
        Failing::From(first) => made >= first,
    }
}

/// Runs `f` while these allocations of the calling thread fail; returns also whether one of them
/// was asked for.
#[allow(dead_code)] // as above
pub fn failing<R>(which: Failing, f: impl FnOnce() -> R) -> (R, bool) {
    FAILING.set(Some((which, 0)));
    let result = f();
    let made = FAILING.take().map_or(0, |(_, made)| made);
    let (Failing::Nth(first) | Failing::From(first)) = which;
    (result, made > first)
}

/// What the calling thread has asked of the allocator, frees included.
#[allow(dead_code)] // as above
pub fn calls() -> u64 {
    CALLS.get()
}

/// Bytes that the calling thread has allocated and not freed.
#[allow(dead_code)] // not every program that includes this file asks
pub fn live_bytes() -> i64 {
    LIVE.get()
}

/// Runs `f` as code that a kernel runs with interrupts masked: under a lock, or pinned.
#[allow(dead_code)] // as above
pub fn masked<R>(f: impl FnOnce() -> R) -> R {
    MASKED.set(MASKED.get() + 1);
    let result = f();
    MASKED.set(MASKED.get() - 1);
    result
}

/// What the calling thread has asked of the allocator within [`masked`].
#[allow(dead_code)] // as above
pub fn calls_masked() -> u64 {
    CALLS_MASKED.get()
}
