// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Counts what the calling thread asks of the allocator. A test program that includes this file uses it for all.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: all calls go to the system's allocator unchanged; the counter neither allocates nor has a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        // SAFETY: the caller's promises are those of `System`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        CALLS.set(CALLS.get() + 1);
        // SAFETY: the caller's promises are those of `System`, which gave out `at`.
        unsafe { System.dealloc(at, layout) }
    }
}

/// What the calling thread has asked of the allocator, frees included.
pub fn calls() -> u64 {
    CALLS.get()
}
