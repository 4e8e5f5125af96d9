// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Schedules: which agent goes on at each point, from a seed.
//!
//! Uniform switching finds little: its runs all look alike, finely interleaved, and hardly ever let
//! one CPU get far while another stands still in a bad place. Hence *sticky* schedules, and
//! *preemption-bounded* ones (few bugs need more than two preemptions; CHESS, OSDI'08).
//! *Priority-based* schedules (PCT: Burckhardt, Kothari, Musuvathi and Nagarakatte, ASPLOS'10) give
//! each a random priority and always run the first of those that can go on; at a few random points
//! the one that runs goes last. A bug that needs d things in order shows with a probability of 1 in
//! n k^(d-1) at least, for n agents, k points and d - 1 such changes. Here an agent that only ever
//! waits goes last as well, after [`TURNS_TO_WAIT`] turns: two that wake each other would starve
//! the ones that they wait for.

use crate::random::Random;
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
    /// Runs each until it waits or ends, but for `preemptions` switches at points
    /// chosen from the seed.
    Bounded {
        /// Where the choices come from.
        seed: u64,
        /// How many switches no agent asked for.
        preemptions: u32,
    },
    /// Runs the one with the highest priority of those that can go on. Priorities are drawn from
    /// the seed, and so are `changes` points at which the one that runs gets the lowest.
    Priority {
        /// Where the choices come from.
        seed: u64,
        /// How many times the one that runs goes last.
        changes: u32,
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
            Schedule::Priority { seed, changes } => {
                write!(f, "seed {seed} (priorities, {changes} changes)")
            }
        }
    }
}

/// The choices of one run.
pub(super) struct Chooser {
    random: Random,
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
    Priority {
        /// The points at which the one that runs goes last, the next one last.
        points: Vec<u64>,
        ranks: Ranks,
    },
}

#[derive(Default)]
struct Ranks {
    /// By agent; the highest goes first. 0: none was drawn yet.
    of: Vec<u64>,
    /// Turns of waiting, by agent.
    waited: Vec<u32>,
    /// How many went last so far.
    lowered: u64,
}

/// Priorities that are drawn are not below this, and those of agents that went last are.
const DRAWN: u64 = 1 << 63;
/// An agent that has waited for so many turns goes last.
const TURNS_TO_WAIT: u32 = 256;

impl Ranks {
    fn of(&mut self, agent: usize, random: &mut Random) -> u64 {
        if self.of.len() <= agent {
            self.of.resize(agent + 1, 0);
            self.waited.resize(agent + 1, 0);
        }
        let rank = &mut self.of[agent];
        if *rank == 0 {
            *rank = random.next() | DRAWN;
        }
        *rank
    }
    fn lower(&mut self, agent: usize) {
        self.lowered += 1;
        self.of[agent] = DRAWN - self.lowered;
    }
}

/// Without an expected length, distances between preemptions are spread over magnitudes up to 2^12
/// points, so that short and long runs are both cut in the middle now and then.
const DISTANCE_LG2: u64 = 12;

impl Chooser {
    /// The choices of `schedule`, for a run of about `length` points if that is known.
    pub(super) fn new(schedule: Schedule, length: Option<u64>) -> Self {
        match schedule {
            Schedule::Sticky {
                seed,
                switch_one_in,
            } => Chooser {
                random: Random::new(seed),
                how: How::Sticky {
                    one_in: u64::from(switch_one_in.max(1)),
                },
            },
            Schedule::Bounded { seed, preemptions } => {
                let mut random = Random::new(seed);
                let points = points(&mut random, preemptions, length);
                Chooser {
                    random,
                    how: How::Bounded { points },
                }
            }
            Schedule::Priority { seed, changes } => {
                let mut random = Random::new(seed);
                let points = points(&mut random, changes, length);
                let ranks = Ranks::default();
                Chooser {
                    random,
                    how: How::Priority { points, ranks },
                }
            }
        }
    }

    /// Whether to switch from `me` at point `step` though it need not wait. The `others` are those
    /// that can go on.
    pub(super) fn preempts(
        &mut self,
        step: u64,
        me: usize,
        mut others: impl Iterator<Item = usize>,
    ) -> bool {
        let random = &mut self.random;
        match &mut self.how {
            How::Sticky { one_in } => random.below(*one_in) == 0,
            How::Bounded { points } => is_due(points, step),
            How::Priority { points, ranks } => {
                let mut mine = ranks.of(me, random);
                if is_due(points, step) {
                    ranks.lower(me);
                    mine = ranks.of(me, random);
                }
                others.any(|other| ranks.of(other, random) > mine)
            }
        }
    }

    /// Says that `me` waits for another turn.
    pub(super) fn waits(&mut self, me: usize) {
        if let How::Priority { ranks, .. } = &mut self.how {
            ranks.of(me, &mut self.random);
            ranks.waited[me] += 1;
            if ranks.waited[me] == TURNS_TO_WAIT {
                ranks.waited[me] = 0;
                ranks.lower(me);
            }
        }
    }

    /// One of those that can go on, if there is any.
    pub(super) fn pick(&mut self, mut able: impl Iterator<Item = usize> + Clone) -> Option<usize> {
        let random = &mut self.random;
        match &mut self.how {
            How::Priority { ranks, .. } => able.max_by_key(|agent| ranks.of(*agent, random)),
            How::Sticky { .. } | How::Bounded { .. } => match able.clone().count() {
                0 | 1 => able.next(),
                n => able.nth(random.below(n as u64) as usize),
            },
        }
    }
}

/// So many points, the first one last, for a run of about `length` points if that is known.
fn points(random: &mut Random, count: u32, length: Option<u64>) -> Vec<u64> {
    let mut last = 0;
    let mut points: Vec<u64> = (0..count)
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
    points
}

/// Whether one of `points` is due by `step`; those that are go.
fn is_due(points: &mut Vec<u64>, step: u64) -> bool {
    let before = points.len();
    while points.last().is_some_and(|&at| at <= step) {
        points.pop();
    }
    points.len() < before
}
