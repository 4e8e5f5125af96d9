// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#![doc = include_str!("../README.md")]
//!
//! # Layers
//!
//! ```text
//! Host        ioatlas_dma's Platform, CopyMemory, ContiguousMemory over what follows
//!   register  a thread is a CPU, with a slot of its own; all others share one
//!   frames    physical memory, of this process or of a file that is mapped shared
//!   copy      how bytes of it are moved
//!   arena     a heap of this process, for designs that ask for one
//! ```
//!
//! # Threads
//!
//! A thread that calls [`register`] owns a slot until it exits; slots are numbered once for the
//! process and given back at thread exit. In a [`Host`] with `n` slots, registered threads use
//! slots 1 to n-1; every other thread (not registered, or registered beyond the last slot) shares
//! slot 0, under its lock. Being pinned is then owning the slot: no other thread enters it. Signal
//! handlers must not enter the core.
//!
//! # Fences, and processes that are sandboxed
//!
//! Where the kernel has `membarrier` (Linux 4.14), a heavy fence is one, and a light fence orders
//! for the compiler only; elsewhere both are full fences. Which it is is decided once, when the
//! [`Host`] is made, since readers cannot be told later. So a seccomp filter must allow
//! `membarrier` for as long as there is a [`Host`], or must be installed before it is made. One
//! that comes between, and lets the call fail, ends the process at the next heavy fence with a
//! sentence on standard error: to go on would be to say that memory is unused which a reader may
//! still be using. A filter that pretends success cannot be found out.
//!
//! Frame `n` of the arena is physical page `n`, from 0; the words start zeroed and untouched, so a
//! large arena costs address space only.
#![allow(clippy::disallowed_types)] // this is a platform

pub mod arena;
pub mod copy;
mod fence;
pub mod frames;
mod heap;
mod lock;
mod memory;
#[cfg(target_arch = "x86_64")]
mod wide;

use arena::{Arena, ArenaError};
pub use fence::full_fence;
use frames::Frames;
use ioatlas_dma::{platform::*, units::*};
pub use lock::HostLock;
use memory::Memory;
use rustix::thread::{MembarrierCommand, membarrier};
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{self, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Words in a frame.
pub const WORDS: usize = 512;

/// A panic elsewhere is reported there; data behind our locks stays usable for the report.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Which slots of the process are taken, lowest first.
static SLOTS: Mutex<Vec<bool>> = Mutex::new(Vec::new());
static UNIQUE: AtomicU64 = AtomicU64::new(1);

/// See [`Platform::unique`]: one sequence for all platforms of this process, those of
/// other crates among them.
pub fn unique() -> u64 {
    UNIQUE.fetch_add(1, Ordering::Relaxed)
}

/// The slot of all threads without one of their own.
const SHARED: usize = 0;

std::thread_local! {
    static SLOT: Cell<usize> = const { Cell::new(SHARED) };
    static TURNS: Cell<u32> = const { Cell::new(0) };
    static OWNED: Owned = const { Owned };
}

/// Its destructor gives the thread's slot back.
struct Owned;

impl Drop for Owned {
    fn drop(&mut self) {
        let slot = SLOT.replace(SHARED);
        if slot != SHARED {
            locked(&SLOTS)[slot - 1] = false;
        }
    }
}

/// Gives the calling thread a slot of its own until it exits. Doing it again changes nothing.
pub fn register() -> CpuIndex {
    if SLOT.get() == SHARED {
        OWNED.with(|_| ()); // so that its destructor runs
        let mut slots = locked(&SLOTS);
        let free = slots.iter().position(|taken| !taken).unwrap_or_else(|| {
            slots.push(false);
            slots.len() - 1
        });
        slots[free] = true;
        SLOT.set(free + 1);
    }
    CpuIndex(SLOT.get())
}

/// How large a [`Host`] is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct HostConfig {
    /// Frames of 4 KiB.
    pub frames: usize,
    /// Slots, the shared one included. At least 1.
    pub slots: usize,
}

ioatlas_dma::setters!(const HostConfig {
    frames: usize,
    slots: usize,
});

impl Default for HostConfig {
    /// 64 MiB, and slots for 15 registered threads.
    fn default() -> Self {
        HostConfig {
            frames: 16 << 10,
            slots: 16,
        }
    }
}

/// This process as a platform.
pub struct Host {
    words: Memory,
    free: Mutex<Frames>,
    /// Frames that are never handed out.
    kept: usize,
    slots: usize,
    shared: Mutex<()>,
    asymmetric: bool,
    /// Slots from 1 that are entered without a lock and without a fence.
    quick: usize,
    heap: Option<heap::Caches>,
}

impl Host {
    /// An arena of zeroed frames.
    ///
    /// # Panics
    /// If `config.slots` is 0.
    pub fn new(config: HostConfig) -> Self {
        Self::on(Memory::zeroed(config.frames), PhysPage(0), config.slots)
    }

    /// The first `config.frames` frames of `memory`, mapped shared, are the arena: what a VMM
    /// gives a guest as its memory. Frames below `first` are never handed out; a PC has none from
    /// 640 KiB to 1 MiB.
    ///
    /// # Errors
    /// What the kernel says of the mapping; a file that is too short is refused.
    ///
    /// # Panics
    /// If `config.slots` is 0.
    pub fn on_file(memory: &File, first: PhysPage, config: HostConfig) -> io::Result<Self> {
        let words = Memory::map(memory, config.frames)?;
        Ok(Self::on(words, first, config.slots))
    }

    fn on(words: Memory, first: PhysPage, slots: usize) -> Self {
        assert!(slots > 0, "a host needs at least the shared slot");
        let frames = words.frames().len();
        // a filter may allow the one and not the other
        let asymmetric = membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
            && membarrier(MembarrierCommand::PrivateExpedited).is_ok();
        let kept = frames.min(first.0 as usize);
        let mut free = Frames::new(frames);
        let _ = free.take_run(kept);
        Host {
            free: Mutex::new(free),
            kept,
            words,
            slots,
            shared: Mutex::new(()),
            asymmetric,
            quick: if asymmetric { slots - 1 } else { 0 },
            heap: None,
        }
    }

    /// The same with a heap of `arena` bytes, which cost address space until they are used; by
    /// default there is none.
    ///
    /// # Errors
    /// The length has no arena, or the system has no room ([`ArenaError`]).
    pub fn with_heap(mut self, arena: ByteCount) -> Result<Self, ArenaError> {
        let arena = Arena::new(arena)?;
        self.heap = Some(heap::Caches::new(&self, arena));
        Ok(self)
    }

    /// How many frames the arena has.
    pub fn frames(&self) -> usize {
        self.words.frames().len()
    }

    /// All words, frame after frame.
    #[inline]
    pub fn words(&self, _: Authority) -> &[<Self as Platform>::A64] {
        &self.words
    }

    /// Whether its memory is a file's ([`on_file`](Self::on_file)), and so begins at a page and
    /// never was, nor will be, part of a heap.
    pub fn is_on_file(&self) -> bool {
        self.words.is_on_file()
    }

    /// A full fence on every thread of this process: by `membarrier`, or nothing but one here where
    /// the kernel has none for it, and readers fence themselves.
    ///
    /// Where `membarrier` ceases to work, because a seccomp filter was installed since, the process
    /// ends with a sentence: on its word a device loses memory that readers may still use.
    pub fn heavy_fence(&self) {
        atomic::fence(Ordering::SeqCst);
        if self.asymmetric
            && let Err(why) = membarrier(MembarrierCommand::PrivateExpedited)
        {
            fence::lost(why.into())
        }
    }
    /// The other side of [`heavy_fence`](Self::heavy_fence), for readers that announce themselves
    /// with a plain store: either what they announced before is seen by the CPU that fenced
    /// heavily, or what they read afterwards is what was written before that. Nothing but order for
    /// the compiler where the heavy fence reaches every CPU; a full fence elsewhere.
    #[inline]
    pub fn light_fence(&self) {
        match self.asymmetric {
            true => atomic::compiler_fence(Ordering::SeqCst), // membarrier does the rest
            false => self.fence(Ordering::SeqCst),
        }
    }

    /// Frames allocated and not freed.
    pub fn frames_in_use(&self) -> usize {
        locked(&self.free).in_use() - self.kept
    }

    /// This thread's slot, if it has one of its own and need not fence.
    #[inline]
    fn fast_slot(&self) -> Option<Cpu<'_>> {
        let slot = SLOT.get();
        // one comparison: the shared slot, 0, wraps around
        // SAFETY: the slot is this thread's alone, and its number is below ours. (A nested call is
        // the caller's fault, and does no more than mix up what is kept for this slot.)
        (slot.wrapping_sub(1) < self.quick).then(|| unsafe { Cpu::new(CpuIndex(slot)) })
    }

    /// Of threads that share a slot, and where there is no membarrier.
    #[cold]
    #[inline(never)]
    fn pinned_slowly<R>(&self, f: impl FnOnce(Cpu<'_>) -> R) -> R {
        let slot = SLOT.get();
        if !self.asymmetric {
            atomic::fence(Ordering::SeqCst); // a thread that enters fences itself
        }
        if slot != SHARED && slot < self.slots {
            // SAFETY: as in `fast_slot`.
            return f(unsafe { Cpu::new(CpuIndex(slot)) });
        }
        let _shared = locked(&self.shared);
        // SAFETY: we hold the lock of the threads that share this slot until `f` is done.
        f(unsafe { Cpu::new(CpuIndex(SHARED)) })
    }

    #[inline]
    fn frame(&self, page: PhysPage) -> Option<&[AtomicU64; WORDS]> {
        self.words.frames().get(usize::try_from(page.0).ok()?)
    }
}

// SAFETY: frames are the arena's, in one list or with one owner, and zeroed; slots are a thread's
// own, or behind a lock; words and fences are the machine's, and membarrier, or a fence on each
// side, makes the pair.
unsafe impl Platform for Host {
    type A64 = AtomicU64;
    type Lock<T: Send> = HostLock<T>;

    #[inline]
    fn pinned<R>(&self, f: impl FnOnce(Cpu<'_>) -> R) -> R {
        match self.fast_slot() {
            Some(cpu) => f(cpu),
            None => self.pinned_slowly(f),
        }
    }
    #[inline(always)] // closures of callers are large, and their results better off in registers
    fn try_pinned<R>(&self, f: impl FnOnce(Cpu<'_>) -> R) -> Option<R> {
        self.fast_slot().map(f)
    }
    fn cpus(&self) -> usize {
        self.slots
    }
    fn frame_alloc(&self) -> Option<FreshFrame> {
        let run = locked(&self.free).take()?;
        run.zero(self.words.frames());
        // SAFETY: a frame of the arena that was free, taken and zeroed.
        Some(unsafe { FreshFrame::new(PhysPage(run.first as u64)) })
    }
    fn frame_free(&self, _: Authority, frame: FreshFrame) {
        locked(&self.free).give(frame.page().0 as usize, 1);
    }
    #[inline]
    fn entries<'f>(&'f self, _: Authority, frame: FrameRef<'f>) -> &'f [AtomicU64] {
        &self.words.frames()[frame.page().0 as usize]
    }
    #[inline]
    fn fence(&self, order: Ordering) {
        fence::fence(order)
    }
    fn relax(&self) {
        // what we wait for may need this very core: the unit's thread, or a thread that holds a
        // lock
        let turns = TURNS.get().wrapping_add(1);
        TURNS.set(turns);
        if turns.is_multiple_of(64) {
            std::thread::yield_now();
        } else {
            core::hint::spin_loop();
        }
    }
    fn heap(&self) -> Option<&dyn Heap> {
        self.heap.as_ref().map(|_| self as &dyn Heap)
    }
    fn unique(&self) -> u64 {
        unique()
    }
}

// SAFETY: the arena is atomic words, and there is nothing else.
unsafe impl DedicatedMemory for Host {}

// SAFETY: the arena is atomic words in a row.
unsafe impl ContiguousMemory for Host {
    fn frames_alloc(&self, pages: PageCount) -> Option<FreshRun> {
        let run = locked(&self.free).take_run(usize::try_from(pages.0).ok()?)?;
        run.zero(self.words.frames());
        let run = PhysRun::new(PhysPage(run.first as u64), pages);
        // SAFETY: frames of the arena that were free, taken and zeroed.
        Some(unsafe { FreshRun::new(run) })
    }
    fn frames_ptr(&self, run: &FreshRun) -> NonNull<u8> {
        let from = &self.words.frames()[run.run().first.0 as usize..];
        NonNull::from(from).cast()
    }
}

impl PhysMemory<Host> for Host {
    #[inline]
    fn word(&self, _: Authority, page: PhysPage, index: usize) -> Option<&AtomicU64> {
        self.frame(page)?.get(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::sync::Arc;

    // SAFETY: nothing else uses a test's arena.
    const BY: Authority = unsafe { Authority::assume() };

    #[test]
    fn frames_count_from_zero_come_zeroed_and_run_out() {
        let host = Host::new(HostConfig {
            frames: 3,
            slots: 1,
        });
        let frames: Vec<_> = (0..3).map(|_| host.frame_alloc().unwrap()).collect();
        assert_eq!(frames[0].page(), PhysPage(0));
        assert!(host.frame_alloc().is_none());
        assert_eq!(host.frames_in_use(), 3);
        host.word(BY, PhysPage(1), 7)
            .unwrap()
            .store(9, Ordering::Relaxed);
        for frame in frames {
            host.frame_free(BY, frame);
        }
        assert_eq!(host.frames_in_use(), 0);
        let again: Vec<_> = (0..3)
            .map(|_| host.frame_alloc().unwrap().publish())
            .collect();
        for frame in &again {
            assert!(
                host.entries(BY, frame.by_ref())
                    .iter()
                    .all(|w| w.load(Ordering::Relaxed) == 0)
            );
        }
    }

    #[test]
    fn a_file_is_shared_and_its_first_frames_are_kept() {
        let file = memfd_create("arena", MemfdFlags::CLOEXEC).unwrap();
        let file = File::from(file);
        let config = HostConfig {
            frames: 4,
            slots: 1,
        };
        let on = |first| Host::on_file(&file, PhysPage(first), config);
        assert_eq!(on(2).err().unwrap().kind(), io::ErrorKind::InvalidInput);
        file.set_len(4 << GRANULE_LG2).unwrap();
        let host = on(2).unwrap();
        let frame = host.frame_alloc().unwrap();
        assert_eq!((frame.page(), host.frames_in_use()), (PhysPage(2), 1));
        host.entries(BY, frame.publish().by_ref())[1].store(0x1234, Ordering::Relaxed);
        let mut word = [0; 8];
        let at = (2 << GRANULE_LG2) + 8;
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut word, at).unwrap();
        assert_eq!(u64::from_ne_bytes(word), 0x1234);
        assert!(host.frame_alloc().is_some() && host.frame_alloc().is_none());
    }

    #[test]
    fn memory_ends_where_the_arena_ends() {
        let host = Host::new(HostConfig {
            frames: 2,
            slots: 1,
        });
        assert!(host.word(BY, PhysPage(1), 511).is_some());
        assert!(host.word(BY, PhysPage(1), 512).is_none());
        assert!(host.word(BY, PhysPage(2), 0).is_none());
        assert!(host.word(BY, PhysPage(u64::MAX), 0).is_none());
    }

    #[test]
    fn a_slot_comes_back_at_thread_exit_and_no_two_threads_share_one() {
        let barrier = Arc::new(std::sync::Barrier::new(4));
        let slots = |n: usize| -> Vec<usize> {
            let threads: Vec<_> = (0..n)
                .map(|_| {
                    let barrier = barrier.clone();
                    std::thread::spawn(move || {
                        let slot = register().0;
                        assert_eq!(register().0, slot, "registering twice changes nothing");
                        barrier.wait();
                        slot
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        };
        let mut first = slots(4);
        first.sort();
        first.dedup();
        assert_eq!(first.len(), 4, "four threads, four slots");
        assert!(!first.contains(&SHARED));
    }

    #[test]
    fn threads_beyond_the_last_slot_take_turns_in_the_shared_one() {
        let host = Arc::new(Host::new(HostConfig {
            frames: 0,
            slots: 1,
        }));
        let inside = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (host, inside) = (host.clone(), inside.clone());
                std::thread::spawn(move || {
                    register();
                    for _ in 0..200 {
                        host.pinned(|cpu| {
                            assert_eq!(cpu.index(), CpuIndex(SHARED));
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                            std::thread::yield_now();
                            inside.fetch_sub(1, Ordering::SeqCst);
                        });
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
    }
}
