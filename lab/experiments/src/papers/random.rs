// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Chance that is the same in every run.

/// Numbers that look random and are the same in every run (xorshift64*). No library's: results that
/// documents print hang on this sequence.
pub(crate) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    /// A number below `end`, which must not be 0.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        high as usize % end
    }
}
