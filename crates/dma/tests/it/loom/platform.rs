// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The platform: loom's atomics and locks, a few frames of two words.

use ioatlas_dma::{
    platform::{
        Atomic64, Authority, Cpu, DedicatedMemory, FrameRef, FreshFrame, Lock, Ordering,
        PhysMemory, Platform,
    },
    table::fmt::Toy,
    units::{CpuIndex, PhysPage},
};
use loom::sync::{Mutex, atomic};
use std::cell::Cell;

/// The least format with a shared table: two levels of two entries, four pages.
pub type Tiny = Toy<1, 2>;
/// Words of a frame: as few as the models of this file's test need.
const WORDS: usize = crate::loom::FRAME_WORDS;
/// What a frame holds before it is zeroed: as an entry, a pointer to what is no frame.
const GARBAGE: u64 = 0xbad_d00d_b003;

pub struct Word(atomic::AtomicU64);

impl Atomic64 for Word {
    fn new(value: u64) -> Self {
        Word(atomic::AtomicU64::new(value))
    }
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }
    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order)
    }
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.0.swap(value, order)
    }
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_add(value, order)
    }
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.0.compare_exchange(current, new, success, failure)
    }
}

pub struct LoomLock<T>(Mutex<T>);

impl<T: Send> Lock<T> for LoomLock<T> {
    fn new(value: T) -> Self {
        LoomLock(Mutex::new(value))
    }
    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.0.lock().unwrap())
    }
    fn try_with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut held = self.0.try_lock().ok()?;
        Some(f(&mut held))
    }
}

loom::thread_local! {
    static CPU: Cell<usize> = Cell::new(0);
}

/// Starts a thread that is CPU 1; the model's own thread is CPU 0.
pub fn on_cpu_1<R: 'static>(f: impl FnOnce() -> R + 'static) -> loom::thread::JoinHandle<R> {
    on_cpu(1, f)
}

/// The same for any CPU.
pub fn on_cpu<R: 'static>(
    index: usize,
    f: impl FnOnce() -> R + 'static,
) -> loom::thread::JoinHandle<R> {
    loom::thread::spawn(move || {
        CPU.with(|cpu| cpu.set(index));
        f()
    })
}

pub struct Loom {
    frames: Vec<[Word; WORDS]>,
    state: Mutex<Frames>,
    cpus: usize,
}

struct Frames {
    free: Vec<PhysPage>,
    in_use: usize,
    allocated: usize,
}

impl Loom {
    /// Frames 1 to `frames`, and two CPUs.
    pub fn new(frames: u64) -> Self {
        Self::with_cpus(2, frames)
    }
    pub fn with_cpus(cpus: usize, frames: u64) -> Self {
        Loom {
            cpus,
            frames: (0..frames)
                .map(|_| [GARBAGE; WORDS].map(Word::new))
                .collect(),
            state: Mutex::new(Frames {
                free: (1..=frames).rev().map(PhysPage).collect(),
                in_use: 0,
                allocated: 0,
            }),
        }
    }
    pub fn frames_in_use(&self) -> usize {
        self.state.lock().unwrap().in_use
    }
    /// Allocations so far, whether freed since or not.
    pub fn allocated(&self) -> usize {
        self.state.lock().unwrap().allocated
    }
    /// All words, those of frame 1 first.
    #[allow(dead_code)] // models of other crates share this platform
    pub fn all_words(&self) -> &[Word] {
        self.frames.as_flattened()
    }
    fn words(&self, page: PhysPage) -> Option<&[Word; WORDS]> {
        self.frames
            .get(usize::try_from(page.0).ok()?.checked_sub(1)?)
    }
}

#[allow(unsafe_code)] // a promise
// SAFETY: it is words of loom's.
unsafe impl DedicatedMemory for Loom {}

#[allow(unsafe_code)] // a promise
// SAFETY: frames are in its list or with one owner, and zeroed; words, locks and fences are loom's.
unsafe impl Platform for Loom {
    type A64 = Word;
    type Lock<T: Send> = LoomLock<T>;

    fn pinned<R>(&self, f: impl FnOnce(Cpu<'_>) -> R) -> R {
        // SAFETY: each thread of a model is a CPU of its own.
        #[allow(unsafe_code)]
        let cpu = unsafe { Cpu::new(CpuIndex(CPU.with(Cell::get))) };
        f(cpu)
    }
    fn cpus(&self) -> usize {
        self.cpus
    }
    fn frame_alloc(&self) -> Option<FreshFrame> {
        let page = {
            let mut state = self.state.lock().unwrap();
            let page = state.free.pop()?;
            state.in_use += 1;
            state.allocated += 1;
            page
        };
        let words = self.words(page)?;
        words.iter().for_each(|w| w.store(0, Ordering::Relaxed));
        // SAFETY: it was free, is no more, and has just been zeroed.
        #[allow(unsafe_code)]
        let frame = unsafe { FreshFrame::new(page) };
        Some(frame)
    }
    fn frame_free(&self, _: Authority, frame: FreshFrame) {
        let mut state = self.state.lock().unwrap();
        state.in_use -= 1;
        state.free.push(frame.page());
    }
    fn entries<'f>(&'f self, _: Authority, frame: FrameRef<'f>) -> &'f [Word] {
        self.words(frame.page()).expect("a frame of this platform")
    }
    fn fence(&self, order: Ordering) {
        atomic::fence(order)
    }
    fn relax(&self) {
        loom::thread::yield_now()
    }
    fn unique(&self) -> u64 {
        use std::sync::Mutex;
        static NEXT: Mutex<u64> = Mutex::new(0); // loom need not know: nothing is ordered by it
        let mut next = NEXT.lock().unwrap_or_else(|e| e.into_inner());
        *next += 1;
        *next
    }
}

impl PhysMemory<Loom> for Loom {
    fn word(&self, _: Authority, page: PhysPage, index: usize) -> Option<&Word> {
        self.words(page)?.get(index)
    }
}
