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
}

// SAFETY: all calls go to the system's allocator unchanged; the counters neither allocate nor have
// destructors.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        LIVE.set(LIVE.get() + layout.size() as i64);
        // SAFETY: the caller's promises are those of `System`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        CALLS.set(CALLS.get() + 1);
        LIVE.set(LIVE.get() - layout.size() as i64);
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
