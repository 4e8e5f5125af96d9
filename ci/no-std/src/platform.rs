// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The platform of a kernel that has one CPU, a few static frames and no interrupts.
//!
//! A real one masks interrupts in [`Spin::with`] and [`Platform::pinned`], and maps physical memory
//! where [`Platform::entries`] finds it; the rest is as here.

use core::{
    cell::UnsafeCell,
    sync::atomic::{self, AtomicBool, AtomicU64},
};
use ioatlas_dma::{
    platform::{Authority, Cpu, FrameRef, FreshFrame, Lock, Ordering, Platform},
    units::{CpuIndex, PhysPage},
};

/// Frames in all.
const FRAMES: usize = 64;
/// Words of 8 bytes in a frame of 4 KiB.
const WORDS: usize = 512;

static MEMORY: [Frame; FRAMES] = [const { Frame([const { AtomicU64::new(0) }; WORDS]) }; FRAMES];
static TAKEN: [AtomicBool; FRAMES] = [const { AtomicBool::new(false) }; FRAMES];
static UNIQUE: AtomicU64 = AtomicU64::new(1);

#[repr(C, align(4096))]
struct Frame([AtomicU64; WORDS]);

/// A spin lock.
pub struct Spin<T> {
    held: AtomicBool,
    data: UnsafeCell<T>,
}

// SAFETY: `with` is the only way to the data, and one caller at a time is inside.
unsafe impl<T: Send> Sync for Spin<T> {}

impl<T: Send> Lock<T> for Spin<T> {
    fn new(value: T) -> Self {
        Spin {
            held: AtomicBool::new(false),
            data: UnsafeCell::new(value),
        }
    }
    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        while self.held.swap(true, Ordering::Acquire) {
            core::hint::spin_loop();
        }
        // SAFETY: `held` was clear and we set it, so no other has a reference until we clear it
        // below.
        let result = f(unsafe { &mut *self.data.get() });
        self.held.store(false, Ordering::Release);
        result
    }
}

/// The kernel.
pub struct Kernel;

// SAFETY: frames are taken or free, and zeroed; there is one CPU, and nothing interrupts it.
unsafe impl Platform for Kernel {
    type A64 = AtomicU64;
    type Lock<T: Send> = Spin<T>;

    fn pinned<R>(&self, f: impl FnOnce(Cpu<'_>) -> R) -> R {
        // SAFETY: the only CPU, and nothing interrupts it.
        f(unsafe { Cpu::new(CpuIndex(0)) })
    }
    fn cpus(&self) -> usize {
        1
    }
    fn frame_alloc(&self) -> Option<FreshFrame> {
        let free = TAKEN
            .iter()
            .position(|t| !t.swap(true, Ordering::Acquire))?;
        for word in &MEMORY[free].0 {
            word.store(0, Ordering::Relaxed);
        }
        // SAFETY: it was free, is taken, and has just been zeroed.
        Some(unsafe { FreshFrame::new(PhysPage(free as u64)) })
    }
    fn frame_free(&self, _: Authority, frame: FreshFrame) {
        TAKEN[frame.page().0 as usize].store(false, Ordering::Release);
    }
    fn entries<'f>(&'f self, _: Authority, frame: FrameRef<'f>) -> &'f [AtomicU64] {
        &MEMORY[frame.page().0 as usize].0
    }
    fn fence(&self, order: Ordering) {
        atomic::fence(order)
    }
    fn relax(&self) {
        core::hint::spin_loop()
    }
    fn unique(&self) -> u64 {
        UNIQUE.fetch_add(1, Ordering::Relaxed)
    }
}
