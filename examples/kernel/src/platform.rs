// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What ioatlas asks of a kernel: a lock, frames, and the trait [`Platform`]; besides, a heap for
//! `alloc`.
//!
//! Interrupt handlers unmap, so whatever they may share with what they interrupt is done with
//! interrupts masked: all that is under a lock, and all that is pinned to a CPU. Frames are found
//! by their physical addresses, since memory is mapped one to one.

use crate::machine::without_interrupts;
use alloc::vec::Vec;
use core::alloc::{GlobalAlloc, Layout};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use core::{arch::asm, cell::RefCell, hint::spin_loop, ptr::null_mut};
use ioatlas_dma::platform::{Authority, Cpu, FrameRef, FreshFrame, Lock, Platform};
use ioatlas_dma::units::{CpuIndex, GRANULE, PhysPage};

/// What follows the image; every machine that boot.sh starts has memory there. A kernel asks its
/// loader for the map.
const HEAP: usize = 16 << 20;
const HEAP_END: usize = FIRST_FRAME as usize * GRANULE as usize;
const FIRST_FRAME: u64 = 17 << 20 >> 12;
const FRAMES_END: u64 = 32 << 20 >> 12;
/// Words of 8 bytes in a frame.
const WORDS: usize = GRANULE as usize / 8;
/// Bytes in a cache line.
const LINE: usize = 64;

/// A lock for one CPU: interrupts are masked while it is held, or a handler could wait for what it
/// interrupted. A kernel with more CPUs takes a spin lock as well, inside. To take it twice is a
/// bug, and a panic.
pub struct Masked<T>(RefCell<T>);

// SAFETY: borrowed by `with` only, in which nothing else runs on the only CPU.
unsafe impl<T: Send> Sync for Masked<T> {}

impl<T> Masked<T> {
    /// A lock that is not held.
    pub const fn new(value: T) -> Self {
        Masked(RefCell::new(value))
    }
}

impl<T: Send> Lock<T> for Masked<T> {
    fn new(value: T) -> Self {
        Masked::new(value)
    }
    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        without_interrupts(|| f(&mut self.0.borrow_mut()))
    }
}

/// Frames that are free; allocation zeroes them.
static FREE: Masked<Vec<PhysPage>> = Masked::new(Vec::new());

/// Makes every frame free. Once.
pub fn add_frames() {
    // their list never grows again, so that no handler allocates for it
    FREE.with(|free| free.extend((FIRST_FRAME..FRAMES_END).map(PhysPage)));
}
/// How many are free.
pub fn free_frames() -> usize {
    FREE.with(|free| free.len())
}

/// The kernel as a platform: one CPU.
pub struct Kernel;

// SAFETY: frames are memory that nothing else uses, in the list or with one owner, and zeroed;
// there is one CPU, which masks interrupts.
unsafe impl Platform for Kernel {
    type A64 = AtomicU64;
    type Lock<T: Send> = Masked<T>;

    fn pinned<R>(&self, f: impl FnOnce(Cpu<'_>) -> R) -> R {
        // SAFETY: the only CPU, without interrupts until `f` is done.
        without_interrupts(|| f(unsafe { Cpu::new(CpuIndex(0)) }))
    }
    fn cpus(&self) -> usize {
        1
    }
    fn frame_alloc(&self) -> Option<FreshFrame> {
        let page = FREE.with(Vec::pop)?;
        // SAFETY: memory that has no owner, mapped where it is.
        unsafe { (page.addr().0 as *mut u8).write_bytes(0, GRANULE as usize) };
        // SAFETY: it was free, is in the list no more, and has just been zeroed.
        Some(unsafe { FreshFrame::new(page) })
    }
    fn frame_free(&self, _: Authority, frame: FreshFrame) {
        FREE.with(|free| free.push(frame.page()));
    }
    fn entries<'f>(&'f self, _: Authority, frame: FrameRef<'f>) -> &'f [AtomicU64] {
        // SAFETY: a frame of ours, mapped where it is; while it is lent it is not freed, and so not
        // zeroed.
        unsafe { &*(frame.page().addr().0 as *const [AtomicU64; WORDS]) }
    }
    fn publish(&self, entries: &[AtomicU64]) {
        // a unit that does not snoop reads memory itself: each line that has an entry goes there
        let words = entries.as_ptr_range();
        for line in (words.start as usize & !(LINE - 1)..words.end as usize).step_by(LINE) {
            // SAFETY: writes back, changes nothing.
            unsafe { asm!("clflush [{}]", in(reg) line, options(nostack)) };
        }
        fence(Ordering::SeqCst);
    }
    fn fence(&self, order: Ordering) {
        fence(order)
    }
    fn relax(&self) {
        spin_loop()
    }
    fn unique(&self) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }
}

/// A heap that never takes back: where it ends by now. A kernel has a better one, with interrupts
/// masked inside or without locks.
struct Heap(AtomicUsize);

#[global_allocator]
static ALLOCATOR: Heap = Heap(AtomicUsize::new(HEAP));

// SAFETY: every byte is given out once, by an atomic addition.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let room = layout.size() + layout.align();
        let start = self.0.fetch_add(room, Ordering::Relaxed);
        let fits = start + room <= HEAP_END;
        let block = start.next_multiple_of(layout.align()) as *mut u8;
        if fits { block } else { null_mut() }
    }
    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}
