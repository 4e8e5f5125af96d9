// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Which frames of an arena are free: a bit each, lowest first, so that what is allocated together
//! adjoins, and an arena is touched only as far as it is needed. For platforms of this process.
#![allow(clippy::disallowed_types)] // part of a platform

use crate::{WORDS, copy};
use std::sync::atomic::AtomicU64;

/// Frames by their place in the arena.
pub struct Frames {
    /// A set bit is a frame that is taken.
    taken: Vec<u64>,
    frames: usize,
    /// No word before this one has a free frame.
    from: usize,
    /// Frames from here on were never used, and are zero.
    untouched: usize,
    in_use: usize,
}

/// A run of frames that was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// Its first frame.
    pub first: usize,
    /// As many of its first frames were used before, and hold what they held.
    pub used_before: usize,
}

impl Run {
    /// Zeroes those of its frames in `arena` that were used before.
    pub fn zero(&self, arena: &[[AtomicU64; WORDS]]) {
        let used = arena[self.first..][..self.used_before].as_flattened();
        // SAFETY: so many bytes, which are atomic words.
        unsafe { copy::zero(used.as_ptr().cast_mut().cast(), size_of_val(used)) };
    }
}

impl Frames {
    /// `frames` of them, all free, untouched and zero.
    pub fn new(frames: usize) -> Self {
        let mut taken = vec![0; frames.div_ceil(64)];
        if let Some(last) = taken.last_mut()
            && !frames.is_multiple_of(64)
        {
            *last = u64::MAX << (frames % 64);
        }
        Frames {
            taken,
            frames,
            from: 0,
            untouched: 0,
            in_use: 0,
        }
    }
    /// How many are taken.
    pub fn in_use(&self) -> usize {
        self.in_use
    }

    /// The lowest that is free.
    pub fn take(&mut self) -> Option<Run> {
        let word = (self.from..self.taken.len()).find(|word| self.taken[*word] != u64::MAX);
        self.from = word.unwrap_or(self.taken.len());
        let first = word? * 64 + self.taken[word?].trailing_ones() as usize;
        Some(self.taken_at(first, 1))
    }

    /// As many frames that adjoin, at least one, where there are.
    pub fn take_run(&mut self, frames: usize) -> Option<Run> {
        let mut first = self.from * 64;
        let mut at = first;
        while at < self.frames {
            if at.is_multiple_of(64) && self.taken[at / 64] == u64::MAX {
                at += 64;
                first = at;
                continue;
            }
            at += 1;
            if self.is_taken(at - 1) {
                first = at;
            } else if at - first == frames {
                return Some(self.taken_at(first, frames));
            }
        }
        None
    }

    fn is_taken(&self, frame: usize) -> bool {
        self.taken[frame / 64] >> (frame % 64) & 1 != 0
    }
    fn taken_at(&mut self, first: usize, frames: usize) -> Run {
        for frame in first..first + frames {
            self.taken[frame / 64] |= 1 << (frame % 64);
        }
        let used_before = self.untouched.saturating_sub(first).min(frames);
        self.untouched = self.untouched.max(first + frames);
        self.in_use += frames;
        Run { first, used_before }
    }
    /// Takes back frames, of one run or of several.
    pub fn give(&mut self, first: usize, frames: usize) {
        for frame in first..first + frames {
            debug_assert!(self.is_taken(frame), "frame {frame} was free");
            self.taken[frame / 64] &= !(1 << (frame % 64));
        }
        self.in_use -= frames;
        self.from = self.from.min(first / 64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_frame_comes_first_and_all_of_them_come_once() {
        let mut frames = Frames::new(130);
        for nth in 0..130 {
            assert_eq!(frames.take().map(|run| run.first), Some(nth));
        }
        assert_eq!(frames.take(), None);
        for frame in [129, 3, 64] {
            frames.give(frame, 1);
        }
        for frame in [3, 64, 129] {
            let run = frames.take().unwrap();
            assert_eq!((run.first, run.used_before), (frame, 1));
        }
        assert_eq!((frames.take(), frames.in_use()), (None, 130));
    }

    #[test]
    fn a_run_adjoins_and_says_what_of_it_was_used_before() {
        let mut frames = Frames::new(200);
        let first = frames.take_run(70).unwrap();
        assert_eq!((first.first, first.used_before), (0, 0));
        frames.give(10, 60);
        let over_the_edge = frames.take_run(100).unwrap();
        assert_eq!((over_the_edge.first, over_the_edge.used_before), (10, 60));
        assert_eq!(frames.take_run(91), None);
        assert_eq!(frames.take_run(90).map(|run| run.first), Some(110));
        assert_eq!(frames.in_use(), 200);
    }
}
