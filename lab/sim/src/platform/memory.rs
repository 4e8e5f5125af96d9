// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The platform itself: frames of simulated memory, pinning and fences.

use super::{
    SimLock, SimWord,
    engine::{self, Mask},
    scheduler::{Subject, YieldPoint},
    slabs::Slabs,
};
use core::panic::Location;
use ioatlas_dma::{
    platform::{
        Authority, Cpu, DedicatedMemory, FrameRef, FreshFrame, Heap, Ordering, PhysMemory, Platform,
    },
    units::{ByteCount, PhysPage},
};
use ioatlas_host::arena::{Arena, ArenaError};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Words of a frame: 4 KiB.
pub const WORDS: usize = 512;

/// How large a simulated machine is.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SimConfig {
    /// Frames of memory, numbered from 1, so that page 0 is never memory.
    pub frames: u64,
    pub cpus: usize,
}

impl Default for SimConfig {
    /// 64 frames and two CPUs.
    fn default() -> Self {
        SimConfig {
            frames: 64,
            cpus: 2,
        }
    }
}

/// A simulated machine. Its virtual CPUs are those of the [`World`](super::World) that runs.
pub struct Sim {
    memory: Box<[Frame]>,
    frames: Mutex<Frames>,
    cpus: usize,
    heap: Option<Box<dyn Heap>>,
}

/// As real ones are, frames are aligned to their size.
#[repr(align(4096))]
struct Frame([SimWord; WORDS]);

struct Frames {
    /// Last in, first out, so that what is freed too early is soon used again.
    free: Vec<PhysPage>,
    used: Box<[bool]>,
    attempts: u64,
    fail_at: Option<u64>,
}

impl Sim {
    /// A machine with zeroed memory.
    pub fn new(config: SimConfig) -> Self {
        let frame = |_| Frame([const { SimWord::zero() }; WORDS]);
        Sim {
            memory: (0..config.frames).map(frame).collect(),
            frames: Mutex::new(Frames {
                free: (1..=config.frames).rev().map(PhysPage).collect(),
                used: vec![false; config.frames as usize].into(),
                attempts: 0,
                fail_at: None,
            }),
            cpus: config.cpus,
            heap: None,
        }
    }
    /// The same with a heap of `arena` bytes. What goes on in it is no point: it is not
    /// the code under test.
    ///
    /// # Errors
    /// The length has no arena, or the system has no room ([`ArenaError`]).
    pub fn with_heap(mut self, arena: ByteCount) -> Result<Self, ArenaError> {
        self.heap = Some(Box::new(Arena::new(arena)?));
        Ok(self)
    }
    /// The same with free blocks kept for each virtual CPU, as real heaps do: what a
    /// CPU gets lies together.
    ///
    /// # Errors
    /// The length has no arena, or the system has no room ([`ArenaError`]).
    pub fn with_slabs(mut self, arena: ByteCount) -> Result<Self, ArenaError> {
        self.heap = Some(Box::new(Slabs::new(Arena::new(arena)?, self.cpus)));
        Ok(self)
    }
    /// Frames that are allocated.
    pub fn frames_in_use(&self) -> usize {
        self.frames().used.iter().filter(|used| **used).count()
    }
    /// Whether `page` is an allocated frame.
    pub fn in_use(&self, page: PhysPage) -> bool {
        slot(page).is_some_and(|slot| self.frames().used.get(slot) == Some(&true))
    }
    /// Frame allocations attempted so far, failures included.
    pub fn frame_alloc_attempts(&self) -> u64 {
        self.frames().attempts
    }
    /// Lets the `nth` attempt from now fail, once; 1 is the next.
    pub fn fail_frame_alloc_at(&self, nth: u64) {
        let mut frames = self.frames();
        frames.fail_at = Some(frames.attempts + nth);
    }

    /// Passes a point that touches nothing, so that what the caller does next is in order
    /// with what others do.
    #[track_caller]
    pub fn turn(&self) {
        engine::point(YieldPoint::Turn, Subject::Nothing, Location::caller());
    }
    /// Where the host has the first frame; the others follow.
    pub fn host_address(&self) -> usize {
        self.memory.as_ptr().addr()
    }

    /// Never held across a point.
    fn frames(&self) -> MutexGuard<'_, Frames> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn words(&self, page: PhysPage) -> Option<&[SimWord]> {
        self.memory.get(slot(page)?).map(|frame| &frame.0[..])
    }
    /// What the simulator itself reads and writes, as hardware.
    pub(crate) fn word_at(&self, page: PhysPage, index: usize) -> Option<&SimWord> {
        self.words(page)?.get(index)
    }
}

/// Frames are numbered from 1.
fn slot(page: PhysPage) -> Option<usize> {
    usize::try_from(page.0).ok()?.checked_sub(1)
}

// SAFETY: it is the machine's alone.
unsafe impl DedicatedMemory for Sim {}

// SAFETY: frames are the machine's, in its list or in use, and zeroed; one agent runs at a time,
// and what it masks stays out.
unsafe impl Platform for Sim {
    type A64 = SimWord;
    type Lock<T: Send> = SimLock<T>;

    #[track_caller]
    fn pinned<R>(&self, f: impl FnOnce(Cpu<'_>) -> R) -> R {
        let location = Location::caller();
        engine::point(YieldPoint::Pin, Subject::Nothing, location);
        let cpu = engine::cpu();
        assert!(cpu.0 < self.cpus, "CPU {} of {}", cpu.0, self.cpus);
        let mask = engine::mask(Mask::Pinned);
        // SAFETY: the mask keeps interrupts of this CPU out until `f` is done, and it is one of
        // ours.
        let result = f(unsafe { Cpu::new(cpu) });
        mask.end(YieldPoint::Unpin, location);
        result
    }
    fn cpus(&self) -> usize {
        self.cpus
    }
    #[track_caller]
    fn frame_alloc(&self) -> Option<FreshFrame> {
        engine::point(YieldPoint::FrameAlloc, Subject::Nothing, Location::caller());
        let mut frames = self.frames();
        frames.attempts += 1;
        if frames.fail_at == Some(frames.attempts) {
            frames.fail_at = None;
            return None;
        }
        let page = frames.free.pop()?;
        frames.used[slot(page)?] = true;
        self.words(page)?.iter().for_each(|word| word.poke(0));
        drop(frames);
        engine::got_frame(page);
        // SAFETY: it was free, is marked as used, and has just been zeroed.
        Some(unsafe { FreshFrame::new(page) })
    }
    #[track_caller]
    fn frame_free(&self, _: Authority, frame: FreshFrame) {
        let page = frame.page();
        engine::point(
            YieldPoint::FrameFree,
            Subject::Frame(page),
            Location::caller(),
        );
        assert!(self.in_use(page), "frame {page} is freed and not in use");
        let mut frames = self.frames();
        if let Some(used) = slot(page).and_then(|slot| frames.used.get_mut(slot)) {
            *used = false;
            frames.free.push(page);
        }
        drop(frames);
        engine::changed();
    }
    fn entries<'f>(&'f self, _: Authority, frame: FrameRef<'f>) -> &'f [SimWord] {
        self.words(frame.page())
            .unwrap_or_else(|| panic!("frame {} is not of this machine", frame.page()))
    }
    #[track_caller]
    fn fence(&self, _: Ordering) {
        engine::point(YieldPoint::Fence, Subject::Nothing, Location::caller());
    }
    #[track_caller]
    fn relax(&self) {
        engine::relax(Location::caller());
    }
    #[track_caller]
    fn heap(&self) -> Option<&dyn Heap> {
        engine::heap_called(Location::caller());
        self.heap.as_deref()
    }
    fn unique(&self) -> u64 {
        ioatlas_host::unique()
    }
}

impl PhysMemory<Sim> for Sim {
    fn word(&self, _: Authority, page: PhysPage, index: usize) -> Option<&SimWord> {
        self.word_at(page, index)
    }
}
