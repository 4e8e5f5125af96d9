// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Schedules: who goes on at each point, from a seed.
//!
//! Uniform switching finds little: its runs all look alike, finely interleaved, and hardly ever let one CPU get far
//! while another stands still in a bad place. Hence *sticky* schedules, and *preemption-bounded* ones (few bugs need
//! more than two preemptions; CHESS, OSDI'08).

use core::fmt;

/// How the next to run is chosen. The same schedule gives the same run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Schedule {
    /// Each point switches with a probability of 1 in `switch_one_in`.
    Sticky {
        /// Where the choices come from.
        seed: u64,
        /// On average a switch every so many points; 0 counts as 1.
        switch_one_in: u32,
    },
    /// Runs each until it waits or ends, but for `preemptions` switches at points chosen from the seed.
    Bounded {
        /// Where the choices come from.
        seed: u64,
        /// How many switches nobody asked for.
        preemptions: u32,
    },
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Schedule::Sticky {
                seed,
                switch_one_in,
            } => write!(f, "seed {seed} (sticky, 1 in {switch_one_in})"),
            Schedule::Bounded { seed, preemptions } => {
                write!(f, "seed {seed} ({preemptions} preemptions)")
            }
        }
    }
}

/// The choices of one run.
pub(super) struct Chooser {
    random: SplitMix,
    how: How,
}

enum How {
    Sticky {
        one_in: u64,
    },
    /// The points at which to preempt, the next one last.
    Bounded {
        points: Vec<u64>,
    },
}

/// Without an expected length, distances between preemptions are spread over magnitudes up to 2^12 points,
/// so that short and long runs are both cut in the middle now and then.
const DISTANCE_LG2: u64 = 12;

impl Chooser {
    /// The choices of `schedule`, for a run of about `length` points if that is known.
    pub(super) fn new(schedule: Schedule, length: Option<u64>) -> Self {
        match schedule {
            Schedule::Sticky {
                seed,
                switch_one_in,
            } => Chooser {
                random: SplitMix(seed),
                how: How::Sticky {
                    one_in: u64::from(switch_one_in.max(1)),
                },
            },
            Schedule::Bounded { seed, preemptions } => {
                let mut random = SplitMix(seed);
                let mut last = 0;
                let mut points: Vec<u64> = (0..preemptions)
                    .map(|_| match length {
                        Some(n) => 1 + random.below(n.max(1)),
                        None => {
                            let magnitude = random.below(DISTANCE_LG2 + 1);
                            last += 1 + random.below(1 << magnitude);
                            last
                        }
                    })
                    .collect();
                points.sort_unstable_by(|a, b| b.cmp(a));
                Chooser {
                    random,
                    how: How::Bounded { points },
                }
            }
        }
    }

    /// Whether to switch at point `step` though nobody waits.
    pub(super) fn preempts(&mut self, step: u64) -> bool {
        match &mut self.how {
            How::Sticky { one_in } => self.random.below(*one_in) == 0,
            How::Bounded { points } => {
                let due = points.len();
                while points.last().is_some_and(|&at| at <= step) {
                    points.pop();
                }
                points.len() < due
            }
        }
    }

    /// One of `n`, of which there is at least one.
    pub(super) fn pick(&mut self, n: usize) -> usize {
        self.random.below(n as u64) as usize
    }
}

/// SplitMix64 (Steele, Lea, Flood, OOPSLA'14): one word of state, and every seed is a good one.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// Below `n`; the bias of at most n / 2^64 does not matter here.
    fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
}
