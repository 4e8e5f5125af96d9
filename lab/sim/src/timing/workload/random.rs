// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Numbers that look random and are the same in every run.

use crate::timing::params::{Cycles, mix};

/// Distance of SplitMix64's states.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

pub(super) struct Random(u64);

impl Random {
    /// Numbers of stream `stream` of a seed.
    pub fn new(seed: u64, stream: u64) -> Self {
        Random(mix(seed.wrapping_add(mix(stream.wrapping_add(STEP)))))
    }
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }
    /// A number below `end`, 0 if that is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }
    /// About `mean`: evenly from within a quarter of it to either side.
    pub fn about(&mut self, mean: u64) -> Cycles {
        let quarter = mean / 4;
        Cycles(mean - quarter + self.below(2 * quarter + 1))
    }
}
