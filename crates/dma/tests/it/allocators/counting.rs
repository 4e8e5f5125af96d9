// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Counts what the calling thread asks of the allocator. A test program that includes this file
//! uses it for all.

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

/// What the calling thread has asked of the allocator, frees included.
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
