// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Numbers that look random and are the same in every run.

/// Distance of the generator's states.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64 (Steele, Lea and Flood, OOPSLA'14): one word of state, and every seed is a good one.
/// No library's: documents print what it made of seeds, and tests count on what schedules find.
pub(crate) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }
    /// Numbers of stream `stream` of a seed.
    pub fn of_stream(seed: u64, stream: u64) -> Self {
        Random(mix(seed.wrapping_add(Random(stream).next())))
    }
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }
    /// A number below `end`, 0 if that is 0; the bias of at most `end` / 2^64 does not matter here.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }
    /// About `mean`: evenly from within a quarter of it to either side.
    pub fn about(&mut self, mean: u64) -> u64 {
        let quarter = mean / 4;
        mean - quarter + self.below(2 * quarter + 1)
    }
}

fn mix(state: u64) -> u64 {
    let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
