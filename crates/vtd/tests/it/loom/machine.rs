// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The core's loom platform with frames of 4 KiB, of which loom watches as few words as a model is
//! about: a word that it watches costs a switch at each access.

use crate::loom::platform::{Loom, LoomLock, Word as Watched};
use ioatlas_dma::{
    platform::{Atomic64, Authority, Cpu, FrameRef, FreshFrame, Ordering, Platform},
    units::PhysAddr,
};
use std::sync::{Mutex, PoisonError};

/// Words of a frame.
const WORDS: usize = 512;

/// A word of memory, or of the driver's own.
pub enum Word {
    /// Weak memory: loom chooses what a load sees.
    Watched(Watched),
    /// For what no order is asked of here: always the newest value.
    Plain(Mutex<u64>),
}

impl Word {
    /// Never held over anything that loom switches at.
    fn plain<R>(word: &Mutex<u64>, f: impl FnOnce(&mut u64) -> R) -> R {
        f(&mut word.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Atomic64 for Word {
    fn new(value: u64) -> Self {
        Word::Watched(Watched::new(value))
    }
    fn load(&self, order: Ordering) -> u64 {
        match self {
            Word::Watched(word) => word.load(order),
            Word::Plain(word) => Word::plain(word, |held| *held),
        }
    }
    fn store(&self, value: u64, order: Ordering) {
        match self {
            Word::Watched(word) => word.store(value, order),
            Word::Plain(word) => Word::plain(word, |held| *held = value),
        }
    }
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        match self {
            Word::Watched(word) => word.swap(value, order),
            Word::Plain(word) => Word::plain(word, |held| std::mem::replace(held, value)),
        }
    }
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        match self {
            Word::Watched(word) => word.fetch_add(value, order),
            Word::Plain(word) => Word::plain(word, |held| {
                std::mem::replace(held, held.wrapping_add(value))
            }),
        }
    }
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        match self {
            Word::Watched(word) => word.compare_exchange(current, new, success, failure),
            Word::Plain(word) => Word::plain(word, |held| match *held == current {
                true => Ok(std::mem::replace(held, new)),
                false => Err(*held),
            }),
        }
    }
}

/// Memory, and what else a platform has.
pub struct Machine {
    loom: Loom,
    frames: Vec<Vec<Word>>,
}

impl Machine {
    /// A frame for each element, handed out in this order: how many of its words, from the first
    /// on, loom watches.
    pub fn new(watched: &[usize]) -> Self {
        let word = |index, watched| match index < watched {
            true => Word::new(0),
            false => Word::Plain(Mutex::new(0)),
        };
        let frame = |watched: &usize| (0..WORDS).map(|index| word(index, *watched)).collect();
        Machine {
            loom: Loom::new(watched.len() as u64),
            frames: watched.iter().map(frame).collect(),
        }
    }
    /// The word at a physical address, as the unit finds it.
    pub fn word(&self, address: PhysAddr) -> &Word {
        let frame = &self.frames[address.page().0 as usize - 1];
        &frame[(address.0 >> 3) as usize % WORDS]
    }
}

#[allow(unsafe_code)] // a promise
// SAFETY: frames are handed out once and never freed; words, locks and fences are loom's.
unsafe impl Platform for Machine {
    type A64 = Word;
    type Lock<T: Send> = LoomLock<T>;

    fn pinned<R>(&self, f: impl FnOnce(Cpu<'_>) -> R) -> R {
        self.loom.pinned(f)
    }
    fn cpus(&self) -> usize {
        self.loom.cpus()
    }
    /// Each frame holds zeroes, and is handed out once.
    fn frame_alloc(&self) -> Option<FreshFrame> {
        self.loom.frame_alloc()
    }
    fn frame_free(&self, _: Authority, _: FreshFrame) {
        panic!("no model frees a frame");
    }
    fn entries<'f>(&'f self, _: Authority, frame: FrameRef<'f>) -> &'f [Word] {
        &self.frames[frame.page().0 as usize - 1]
    }
    fn fence(&self, order: Ordering) {
        self.loom.fence(order)
    }
    fn relax(&self) {
        self.loom.relax()
    }
    fn unique(&self) -> u64 {
        self.loom.unique()
    }
}
