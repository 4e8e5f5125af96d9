// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What `alloc` and a staticlib ask for: an allocator that never frees, and a panic handler.

use core::{
    alloc::{GlobalAlloc, Layout},
    cell::UnsafeCell,
    sync::atomic::{AtomicUsize, Ordering},
};

/// Bytes of heap.
const HEAP: usize = 4 << 20;

#[repr(C, align(4096))]
struct Bump {
    heap: UnsafeCell<[u8; HEAP]>,
    used: AtomicUsize,
}

// SAFETY: each byte of the heap is given out once, by an atomic update of `used`.
unsafe impl Sync for Bump {}

// SAFETY: blocks lie within the heap, do not overlap, and are aligned: the heap is to 4096, offsets
// are rounded up to the layout's alignment, and more than 4096 is refused.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let place = |used: usize| {
            let start = used.checked_next_multiple_of(layout.align())?;
            let end = start.checked_add(layout.size())?;
            (end <= HEAP && layout.align() <= 4096).then_some((start, end))
        };
        let taken = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                place(used).map(|(_, end)| end)
            });
        match taken.ok().and_then(place) {
            Some((start, _)) => self.heap.get().cast::<u8>().wrapping_add(start),
            None => core::ptr::null_mut(),
        }
    }
    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static ALLOCATOR: Bump = Bump {
    heap: UnsafeCell::new([0; HEAP]),
    used: AtomicUsize::new(0),
};

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
