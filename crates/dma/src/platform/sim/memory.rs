// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The platform itself: frames of simulated memory, pinning and fences.

use super::{
    SimLock, SimWord,
    engine::{self, Mask, Point},
};
use crate::{
    platform::{
        Atomic64, Cpu, FreshFrame, Heap, Ordering, PhysMemory, Platform, TableFrame,
        host::arena::{Arena, NoArena},
    },
    units::{ByteCount, PhysPage},
};
use core::{panic::Location, sync::atomic::AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Words of a frame: 4 KiB.
pub const WORDS: usize = 512;

/// How large a simulated machine is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SimConfig {
    /// Frames of memory, numbered from 1, so that page 0 is never memory.
    pub frames: u64,
    /// Virtual CPUs.
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
    memory: Box<[SimWord]>,
    frames: Mutex<Frames>,
    cpus: usize,
    heap: Option<Arena>,
}

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
        let words = config.frames as usize * WORDS;
        Sim {
            memory: (0..words).map(|_| SimWord::new(0)).collect(),
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
    /// The same with a heap of `arena` bytes. What goes on in it is no point: it is somebody else's code.
    ///
    /// # Errors
    /// [`NoArena`].
    pub fn with_heap(mut self, arena: ByteCount) -> Result<Self, NoArena> {
        self.heap = Some(Arena::new(arena)?);
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

    /// Never held across a point.
    fn frames(&self) -> MutexGuard<'_, Frames> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn words(&self, page: PhysPage) -> Option<&[SimWord]> {
        self.memory.chunks_exact(WORDS).nth(slot(page)?)
    }
}

/// Frames are numbered from 1.
fn slot(page: PhysPage) -> Option<usize> {
    usize::try_from(page.0).ok()?.checked_sub(1)
}

impl Platform for Sim {
    type A64 = SimWord;
    type Lock<T: Send> = SimLock<T>;

    #[track_caller]
    fn pinned<R>(&self, f: impl FnOnce(Cpu<'_>) -> R) -> R {
        let location = Location::caller();
        engine::point(Point::Pin, location);
        let cpu = engine::cpu();
        assert!(cpu.0 < self.cpus, "CPU {} of {}", cpu.0, self.cpus);
        let mask = engine::mask(Mask::Pinned);
        let result = f(Cpu::new(cpu));
        mask.end(Point::Unpin, location);
        result
    }
    fn cpus(&self) -> usize {
        self.cpus
    }
    #[track_caller]
    fn frame_alloc(&self) -> Option<FreshFrame> {
        engine::point(Point::FrameAlloc, Location::caller());
        let mut frames = self.frames();
        frames.attempts += 1;
        if frames.fail_at == Some(frames.attempts) {
            frames.fail_at = None;
            return None;
        }
        let page = frames.free.pop()?;
        frames.used[slot(page)?] = true;
        self.words(page)?.iter().for_each(|word| word.poke(0));
        Some(FreshFrame::new(page))
    }
    #[track_caller]
    fn frame_free(&self, frame: FreshFrame) {
        engine::point(Point::FrameFree, Location::caller());
        let page = frame.page();
        assert!(self.in_use(page), "frame {page} is freed and not in use");
        let mut frames = self.frames();
        if let Some(used) = slot(page).and_then(|slot| frames.used.get_mut(slot)) {
            *used = false;
            frames.free.push(page);
        }
        drop(frames);
        engine::changed();
    }
    fn entries(&self, frame: &TableFrame) -> &[SimWord] {
        self.words(frame.page())
            .unwrap_or_else(|| panic!("frame {} is not of this machine", frame.page()))
    }
    #[track_caller]
    fn fence(&self, _: Ordering) {
        engine::point(Point::Fence, Location::caller());
    }
    #[track_caller]
    fn heavy_fence(&self) {
        engine::point(Point::HeavyFence, Location::caller());
    }
    #[track_caller]
    fn relax(&self) {
        engine::relax(Location::caller());
    }
    fn heap(&self) -> Option<&dyn Heap> {
        self.heap.as_ref().map(|arena| arena as &dyn Heap)
    }
    fn unique(&self) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }
}

impl PhysMemory<Sim> for Sim {
    fn word(&self, page: PhysPage, index: usize) -> Option<&SimWord> {
        self.words(page)?.get(index)
    }
}
