// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Time and work of a whole run, divided over its groups.
//!
//! # Theory
//!
//! *Work* is bounded in advance: a group runs at most [`TRIES`] rounds for each clean slice that it
//! wants, so a plan's slices are at most as many as [`slices_at_most`] says, on any machine.
//!
//! *Time* is bounded by a total. Before each group, what is left of it is divided over the groups
//! that are left, by their weights. A group may take [`TIMES`] its part, since most need less, but
//! half of that at most for filling patterns, and never more than is left. When its time is over it
//! begins nothing any more: what then has too few slices has no figure, and says so. A group that
//! there is no time for is not run at all, and says so too. What the clock does not bound is what
//! is under way when time is over: one slice, or one range of a filling; and making and dropping
//! what a group measures.

use crate::{Effort, slices::Limit};
use std::time::{Duration, Instant};

/// Rounds for each clean slice that is wanted. Half the slices of two threads are of the other mode
/// on a machine that moves its CPUs, and of the rest some are disturbed: more tries than these say
/// that the machine is busy, not how fast anything is.
pub const TRIES: usize = 6;
/// Parts of time that one group may take.
pub const TIMES: u32 = 3;

/// Slices that `contestants` of one group run, at most.
pub fn slices_at_most(contestants: usize, effort: Effort) -> usize {
    contestants * rounds(effort)
}

fn rounds(effort: Effort) -> usize {
    TRIES * effort.slices
}

/// How much time groups of other weights get beside each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Weight(pub u32);

/// What is left for groups yet to come.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    total: Duration,
    weights: u32,
}

impl Budget {
    /// `total` for groups of these weights, in their order.
    pub fn new(total: Duration, weights: impl IntoIterator<Item = Weight>) -> Self {
        let weights = weights.into_iter().map(|weight| weight.0).sum();
        Budget { total, weights }
    }

    /// Time for the next group, when so much is spent; `None` if none is left.
    pub fn next(&mut self, weight: Weight, spent: Duration) -> Option<Duration> {
        let left = self.total.checked_sub(spent).filter(|left| !left.is_zero());
        let part = left.map(|left| left * weight.0 / self.weights.max(1));
        self.weights = self.weights.saturating_sub(weight.0);
        Some((TIMES * part?).min(left?))
    }
}

/// The limit of a group that begins at `now` and wants `effort`, if it may take so much time.
pub fn limit(effort: Effort, now: Instant, time: Duration) -> Limit {
    Limit {
        rounds: rounds(effort),
        filled: Some(now + time / 2),
        over: Some(now + time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOTAL: Duration = Duration::from_secs(100);

    /// Groups that all take what they may; what each took.
    fn greedy(weights: &[u32]) -> Vec<Option<Duration>> {
        let weights: Vec<Weight> = weights.iter().copied().map(Weight).collect();
        let mut budget = Budget::new(TOTAL, weights.iter().copied());
        let mut spent = Duration::ZERO;
        let mut next = |weight: &Weight| {
            let time = budget.next(*weight, spent);
            spent += time.unwrap_or_default();
            time
        };
        weights.iter().map(&mut next).collect()
    }

    #[test]
    fn groups_that_take_all_they_may_end_at_the_total() {
        for weights in [&[1; 50][..], &[9, 1, 1, 4, 1, 2, 8], &[3]] {
            let times = greedy(weights);
            let sum: Duration = times.iter().copied().map(Option::unwrap_or_default).sum();
            assert!(sum <= TOTAL, "{weights:?}: {times:?}");
        }
        // one alone has all of it
        assert_eq!(greedy(&[3]), [Some(TOTAL)]);
    }

    #[test]
    fn time_is_divided_by_weights_and_late_groups_get_what_is_left() {
        let mut budget = Budget::new(TOTAL, [6, 2, 2, 10].map(Weight));
        let at = Duration::from_secs;
        assert_eq!(budget.next(Weight(6), at(0)), Some(at(90)));
        // nearly nothing was needed
        assert_eq!(budget.next(Weight(2), at(2)), Some(at(42)));
        assert_eq!(budget.next(Weight(2), at(94)), Some(at(3)));
        assert_eq!(budget.next(Weight(10), at(94)), Some(at(6)), "what is left");
        let mut over = Budget::new(TOTAL, [1, 1].map(Weight));
        assert_eq!(over.next(Weight(1), at(100)), None);
        assert_eq!(over.next(Weight(1), at(101)), None);
    }
}
