// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A simulated machine in which code that touches a frame after it was freed fails there.

use crate::suite::rig::Base;
use ioatlas_dma::{platform::*, units::*};
use ioatlas_sim::platform::{Sim, SimWord, inspect};
use std::sync::Arc;

/// What the words of a frame share.
struct Frame {
    /// 0 while the frame is free.
    used: SimWord,
    /// Of the whole machine: counts loads down, and the last one is slow.
    until_slow: Arc<SimWord>,
}

/// Points that a slow load passes: others have the time to end what they do.
const SLOW: usize = 400;

/// A word of memory, and whether its frame is allocated.
pub struct Word {
    word: SimWord,
    /// `None` for a word that is in no frame.
    frame: Option<Arc<Frame>>,
}

impl Word {
    fn of_frame(frame: &Arc<Frame>) -> Self {
        let (word, frame) = (SimWord::new(0), Some(frame.clone()));
        Word { word, frame }
    }
    fn is_slow(&self) -> bool {
        let Some(frame) = &self.frame else {
            return false;
        };
        let left = frame.until_slow.peek();
        let next = left.saturating_sub(1);
        inspect(|| frame.until_slow.store(next, Ordering::Relaxed));
        left == 1
    }
    fn live(&self) -> &SimWord {
        let free = self
            .frame
            .as_ref()
            .is_some_and(|frame| frame.used.peek() == 0);
        assert!(!free, "P4: a frame is accessed after it was freed");
        &self.word
    }
}

impl Atomic64 for Word {
    fn new(value: u64) -> Self {
        let (word, frame) = (SimWord::new(value), None);
        Word { word, frame }
    }
    #[track_caller]
    fn load(&self, order: Ordering) -> u64 {
        for _ in 0..if self.is_slow() { SLOW } else { 1 } {
            self.word.load(order); // others may act here
        }
        inspect(|| self.live().load(order))
    }
    #[track_caller]
    fn store(&self, value: u64, order: Ordering) {
        self.live().store(value, order);
    }
    #[track_caller]
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.live().swap(value, order)
    }
    #[track_caller]
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.live().fetch_add(value, order)
    }
    #[track_caller]
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.live().compare_exchange(current, new, success, failure)
    }
}

/// A simulated machine in which neither a CPU nor the unit may touch a free frame.
pub struct Guarded {
    sim: Sim,
    pub until_slow: Arc<SimWord>,
    frames: Vec<(Arc<Frame>, Vec<Word>)>,
}

impl Guarded {
    fn frame(&self, page: PhysPage) -> Option<&(Arc<Frame>, Vec<Word>)> {
        self.frames.get(usize::try_from(page.0).ok()?)
    }
    fn mark(&self, page: PhysPage, used: u64) {
        if let Some((frame, _)) = self.frame(page) {
            inspect(|| frame.used.store(used, Ordering::Relaxed));
        }
    }
}

// SAFETY: the simulated machine's.
unsafe impl DedicatedMemory for Guarded {}

// SAFETY: the simulated machine's; frames that are free are watched.
unsafe impl Platform for Guarded {
    type A64 = Word;
    type Lock<T: Send> = <Sim as Platform>::Lock<T>;
    #[track_caller]
    fn pinned<R>(&self, f: impl FnOnce(Cpu<'_>) -> R) -> R {
        self.sim.pinned(f)
    }
    fn cpus(&self) -> usize {
        self.sim.cpus()
    }
    fn frame_alloc(&self) -> Option<FreshFrame> {
        let fresh = self.sim.frame_alloc()?;
        let (_, words) = self.frame(fresh.page())?;
        self.mark(fresh.page(), 1);
        inspect(|| words.iter().for_each(|w| w.store(0, Ordering::Relaxed)));
        Some(fresh)
    }
    fn frame_free(&self, by: Authority, frame: FreshFrame) {
        self.mark(frame.page(), 0);
        self.sim.frame_free(by, frame);
    }
    fn entries<'f>(&'f self, _: Authority, frame: FrameRef<'f>) -> &'f [Word] {
        let frame = self.frame(frame.page());
        &frame.expect("a frame of this machine").1
    }
    fn fence(&self, order: Ordering) {
        self.sim.fence(order);
    }
    fn relax(&self) {
        self.sim.relax();
    }
    fn heap(&self) -> Option<&dyn Heap> {
        self.sim.heap()
    }
    fn unique(&self) -> u64 {
        self.sim.unique()
    }
}

impl PhysMemory<Self> for Guarded {
    fn word(&self, _: Authority, page: PhysPage, index: usize) -> Option<&Word> {
        self.frame(page)?.1.get(index)
    }
}

copies_by!(Guarded, sim);

impl Base for Guarded {
    fn make(frames: usize) -> Self {
        let until_slow = Arc::new(SimWord::new(0));
        let frame = |_| {
            let used = SimWord::new(0);
            let until_slow = until_slow.clone();
            let frame = Arc::new(Frame { used, until_slow });
            let words = (0..512).map(|_| Word::of_frame(&frame)).collect();
            (frame, words)
        };
        Guarded {
            sim: Sim::make(frames),
            frames: (0..=frames).map(frame).collect(), // numbered from 1
            until_slow,
        }
    }
    fn frames_in_use(&self) -> usize {
        self.sim.frames_in_use()
    }
    fn on_another_cpu(&self, f: impl FnOnce() + Send) {
        self.sim.on_another_cpu(f);
    }
}
