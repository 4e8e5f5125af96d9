// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The other users of the heap.

use crate::random::Random;
use ioatlas_dma::{
    platform::{Heap, HeapBlock},
    units::ByteCount,
};
use std::collections::VecDeque;

/// Sizes are 8 bytes to 2^this times as many: 4 KiB.
const LARGEST_LG2: u64 = 9;

/// Blocks that are held, and replaced one at a time, the oldest first.
pub(super) struct Background<'a> {
    heap: &'a dyn Heap,
    random: Random,
    held: VecDeque<HeapBlock>,
}

impl<'a> Background<'a> {
    pub fn new(heap: &'a dyn Heap, random: Random, blocks: u64) -> Self {
        let mut background = Background {
            heap,
            random,
            held: VecDeque::new(),
        };
        (0..blocks).for_each(|_| background.grow());
        background
    }
    /// One more is held. A heap that is full is left alone.
    pub fn grow(&mut self) {
        let bytes = ByteCount(8 << self.random.below(LARGEST_LG2 + 1));
        self.held.extend(self.heap.alloc(bytes));
    }
    /// The oldest is given back, and another taken.
    pub fn replace(&mut self) {
        if let Some(oldest) = self.held.pop_front() {
            self.heap.free(oldest).expect("held since it was allocated");
        }
        self.grow();
    }
}
