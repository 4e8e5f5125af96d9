// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What ioatlas asks of a kernel: a lock, frames, and the trait [`Platform`]; for bounce buffers
//! [`CopyMemory`], for arrays that drivers share with devices [`ContiguousMemory`]; besides, a heap
//! for `alloc`.
//!
//! Interrupt handlers unmap, so whatever they may share with what they interrupt is done with
//! interrupts masked: all that is under a lock, and all that is pinned to a CPU. Frames are found
//! by their physical addresses, since memory is mapped one to one.

use crate::machine::without_interrupts;
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use core::{arch::asm, cell::RefCell, hint::spin_loop};
use ioatlas_dma::{platform::*, units::*};

/// Where boot.s has the loader place the image.
const IMAGE: u64 = 1 << 20;
/// What follows the image; every machine that boot.sh starts has memory there. A kernel asks its
/// loader for the map.
const HEAP: usize = 16 << 20;
const HEAP_END: usize = FIRST_FRAME as usize * GRANULE as usize;
const FIRST_FRAME: u64 = 17 << 20 >> 12;
const FRAMES: usize = 15 << 20 >> 12;
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

/// Which frames are taken. A kernel has a faster allocator.
static TAKEN: Masked<[bool; FRAMES]> = Masked::new([false; FRAMES]);

/// Takes frames that adjoin, and zeroes them.
fn take(pages: usize) -> Option<PhysPage> {
    if pages == 0 {
        return None;
    }
    let first = TAKEN.with(|taken| {
        let first = taken.windows(pages).position(|run| !run.contains(&true))?;
        taken[first..first + pages].fill(true);
        Some(first)
    })?;
    let first = PhysPage(FIRST_FRAME + first as u64);
    // SAFETY: memory that had no owner, mapped where it is.
    unsafe { (first.addr().0 as *mut u8).write_bytes(0, pages * GRANULE as usize) };
    Some(first)
}
/// How many are free.
pub fn free_frames() -> usize {
    TAKEN.with(|taken| taken.iter().filter(|taken| !**taken).count())
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
        // SAFETY: it was free, is taken, and has just been zeroed.
        Some(unsafe { FreshFrame::new(take(1)?) })
    }
    fn frame_free(&self, _: Authority, frame: FreshFrame) {
        TAKEN.with(|taken| taken[(frame.page().0 - FIRST_FRAME) as usize] = false);
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

// SAFETY: frames as `Platform` has them, which adjoin; they are mapped where they are.
unsafe impl ContiguousMemory for Kernel {
    fn frames_alloc(&self, pages: PageCount) -> Option<FreshRun> {
        let first = take(pages.0 as usize)?;
        // SAFETY: as in `frame_alloc`.
        Some(unsafe { FreshRun::new(PhysRun::new(first, pages)) })
    }
    fn frames_ptr(&self, run: &FreshRun) -> NonNull<u8> {
        NonNull::new(run.run().first.addr().0 as *mut u8).expect("frames are not at 0")
    }
}

/// Refuses what is not memory of the kernel: its image, its heap, its frames.
fn check(range: PhysRange) -> Result<(), NotMemoryError> {
    let end = (FIRST_FRAME + FRAMES as u64) << GRANULE_LG2;
    let ours = range.addr.0 >= IMAGE && range.end().is_some_and(|at| at.0 <= end);
    ours.then_some(()).ok_or(NotMemoryError(range))
}
/// Moves bytes that a device may change meanwhile.
///
/// # Safety
/// They may be read at `from`, and written at `to`.
unsafe fn copy(from: u64, to: u64, len: u64) {
    // SAFETY: the caller's promise; to the language this is code that it knows nothing of
    unsafe {
        asm!("rep movsb", inout("rcx") len => _, inout("rsi") from => _, inout("rdi") to => _,
            options(nostack, preserves_flags))
    };
}

// SAFETY: ranges that are memory all of them, by instructions that may race with a device.
unsafe impl CopyMemory for Kernel {
    fn is_memory(&self, range: PhysRange) -> bool {
        check(range).is_ok()
    }
    fn copy(&self, _: Authority, from: PhysRange, to: PhysAddr) -> Result<(), NotMemoryError> {
        check(from)?;
        check(PhysRange::new(to, from.len))?;
        // SAFETY: both are memory; whose bytes they are the authority answers for.
        unsafe { copy(from.addr.0, to.0, from.len.0) };
        Ok(())
    }
    fn zero(&self, _: Authority, range: PhysRange) -> Result<(), NotMemoryError> {
        check(range)?;
        let (at, len) = (range.addr.0, range.len.0);
        // SAFETY: as in `copy`.
        unsafe {
            asm!("rep stosb", in("al") 0u8, inout("rcx") len => _, inout("rdi") at => _,
                options(nostack, preserves_flags))
        };
        Ok(())
    }
    fn read(&self, _: Authority, from: PhysAddr, into: &mut [u8]) -> Result<(), NotMemoryError> {
        let len = into.len() as u64;
        check(PhysRange::new(from, ByteCount(len)))?;
        // SAFETY: as in `copy`.
        unsafe { copy(from.0, into.as_mut_ptr() as u64, len) };
        Ok(())
    }
    fn write(&self, _: Authority, from: &[u8], to: PhysAddr) -> Result<(), NotMemoryError> {
        let len = from.len() as u64;
        check(PhysRange::new(to, ByteCount(len)))?;
        // SAFETY: as in `copy`.
        unsafe { copy(from.as_ptr() as u64, to.0, len) };
        Ok(())
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
