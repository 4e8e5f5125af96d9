// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A platform for unit tests, which see what integration tests cannot: one CPU, entered by one
//! thread at a time.
#![allow(clippy::disallowed_types)] // a platform

use super::*;
use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{self, AtomicU64},
};

const WORDS: usize = 512;
static UNIQUE: AtomicU64 = AtomicU64::new(1);

/// One CPU, and frames numbered from 0.
pub(crate) struct OneCpu {
    frames: Box<[[AtomicU64; WORDS]]>,
    free: Mutex<Vec<PhysPage>>,
    inside: Mutex<()>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OneCpu {
    /// With `frames` zeroed frames of memory.
    pub fn new(frames: usize) -> Self {
        let frame = |_| [const { AtomicU64::new(0) }; WORDS];
        OneCpu {
            frames: (0..frames).map(frame).collect(),
            free: Mutex::new((0..frames as u64).rev().map(PhysPage).collect()),
            inside: Mutex::new(()),
        }
    }
}

pub(crate) struct MutexLock<T>(Mutex<T>);

impl<T: Send> Lock<T> for MutexLock<T> {
    fn new(value: T) -> Self {
        MutexLock(Mutex::new(value))
    }
    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut locked(&self.0))
    }
}

// SAFETY: it is reached by the tables' walks alone.
#[allow(unsafe_code)]
unsafe impl DedicatedMemory for OneCpu {}

// SAFETY: frames are zeroed, and in the list or with one owner; the CPU is behind a lock, words and
// fences are the machine's.
#[allow(unsafe_code)]
unsafe impl Platform for OneCpu {
    type A64 = AtomicU64;
    type Lock<T: Send> = MutexLock<T>;

    fn pinned<R>(&self, f: impl FnOnce(Cpu<'_>) -> R) -> R {
        let _inside = locked(&self.inside);
        // SAFETY: we hold the CPU's lock until `f` is done.
        f(unsafe { Cpu::new(CpuIndex(0)) })
    }
    fn cpus(&self) -> usize {
        1
    }
    fn frame_alloc(&self) -> Option<FreshFrame> {
        let page = locked(&self.free).pop()?;
        let words = &self.frames[page.0 as usize];
        words.iter().for_each(|w| w.store(0, Ordering::Relaxed));
        // SAFETY: it was free, is in the list no more, and has just been zeroed.
        Some(unsafe { FreshFrame::new(page) })
    }
    fn frame_free(&self, _: Authority, frame: FreshFrame) {
        locked(&self.free).push(frame.page());
    }
    fn entries<'f>(&'f self, _: Authority, frame: FrameRef<'f>) -> &'f [AtomicU64] {
        &self.frames[frame.page().0 as usize]
    }
    fn fence(&self, order: Ordering) {
        atomic::fence(order)
    }
    fn relax(&self) {
        std::thread::yield_now()
    }
    fn unique(&self) -> u64 {
        UNIQUE.fetch_add(1, Ordering::Relaxed)
    }
}
