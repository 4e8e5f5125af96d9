// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What requests look at while they wait: which rounds are over, and how often they have looked.

use super::*;

/// Copies of the word that says which rounds are over.
const COPIES: usize = 8;
/// Requests of a round that look at one copy: a line goes from one CPU to the next, so the last of
/// many would have it late.
const OF_A_COPY: u64 = 8;
/// Counts of looks, of each of two rounds: that under way and the open one have requests that wait.
/// Requests of a round whose places are so far apart share one; no others may, since each look
/// writes it, and would wake the other.
const COUNTS: usize = 64;

/// Bits of a count, below the round that it is of.
const COUNT: u32 = 32;
const COUNT_MASK: u64 = (1 << COUNT) - 1;

pub(super) struct Waiting<A: Atomic64> {
    /// All rounds before this one are over. A copy may be behind others, by some 2^46 rounds at
    /// most, but never as long as a request looks at it whose round is over.
    over: [CachePadded<A>; COPIES],
    looks: Box<[CachePadded<A>]>,
}

impl<A: Atomic64> Waiting<A> {
    pub fn new() -> Self {
        let word = || CachePadded(A::new(0));
        Waiting {
            over: core::array::from_fn(|_| word()),
            looks: (0..2 * COUNTS).map(|_| word()).collect(),
        }
    }

    fn copy(nth: u64) -> usize {
        ((nth / OF_A_COPY) as usize).min(COPIES - 1)
    }

    /// All rounds before this one are over, as the `nth` request of a round sees it; with an
    /// acquire.
    pub fn over(&self, nth: u64) -> u64 {
        self.over[Self::copy(nth)].0.load(Ordering::Acquire)
    }

    /// Says so, with a release, where the first `requests` of rounds look.
    pub fn say(&self, over: u64, requests: u64) {
        for copy in &self.over[..=Self::copy(requests.saturating_sub(1))] {
            if copy.0.load(Ordering::Relaxed) != over {
                copy.0.store(over, Ordering::Release);
            }
        }
    }

    /// Counts a look in vain of the `nth` request of round `number`: how many there were. Requests
    /// of the round that share a count have it together, roughly.
    pub fn has_looked(&self, number: u64, nth: u64) -> u64 {
        let word = &self.looks[number as usize % 2 * COUNTS + nth as usize % COUNTS].0;
        let (now, round) = (word.load(Ordering::Relaxed), number & COUNT_MASK);
        let looks = match now >> COUNT == round {
            true => COUNT_MASK.min((now & COUNT_MASK) + 1),
            false => 1,
        };
        word.store(round << COUNT | looks, Ordering::Relaxed);
        looks
    }
}
