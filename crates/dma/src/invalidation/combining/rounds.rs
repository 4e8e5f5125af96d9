// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Rounds: how they are counted, and the one that is under way. That is behind a lock, under which
//! the unit is never asked.

use super::*;

/// Failed rounds that are remembered.
const REMEMBERED: usize = 64;
/// Rounds after which all that have failed are forgotten: before numbers come round to them.
const FORGOTTEN: u64 = 1 << (NUMBER - 2);

/// Bits of a round's number: a unit that does one each 100 ns has not used them up in 300 days, and
/// then counts on from 0.
const NUMBER: u32 = 48;
/// Bits of the count of its requests, below the number in one word.
const REQUESTS: u32 = 64 - NUMBER;
/// From so many on a round is full: they come from requests that are not asked for any more, of a
/// unit that does not answer. Room is left for all CPUs to come at once.
pub(super) const FULL: u64 = 1 << (REQUESTS - 1);

/// Whether the round `number` comes after the round `other`.
pub(super) fn is_after(number: u64, other: u64) -> bool {
    (number.wrapping_sub(other) << REQUESTS) as i64 > 0
}

const NUMBER_MASK: u64 = (1 << NUMBER) - 1;

fn after(number: u64) -> u64 {
    (number + 1) & NUMBER_MASK
}

/// The round that is open, and how many requests it has.
pub(super) struct Open<A>(A);

impl<A: Atomic64> Open<A> {
    pub fn new() -> Self {
        Open(A::new(0))
    }
    fn parts(word: u64) -> (u64, u64) {
        (word >> REQUESTS, word & ((1 << REQUESTS) - 1))
    }
    /// Joins: the number of the round, and which of its requests this is.
    pub fn join(&self) -> (u64, u64) {
        Self::parts(self.0.fetch_add(1, Ordering::AcqRel))
    }
    /// Ends it and opens the one after `number`, which it is; how many have joined.
    fn take(&self, number: u64) -> u64 {
        let next = after(number) << REQUESTS;
        Self::parts(self.0.swap(next, Ordering::AcqRel)).1
    }
}

pub(super) struct Rounds<K> {
    /// The one that is under way, or the open one if none is.
    number: u64,
    stage: Stage<K>,
    /// The most requests of a round that is over, and of which that was not said.
    unsaid: u64,
    /// Those that have failed last, and why.
    failed: [Option<(u64, InvalidateError)>; REMEMBERED],
    /// How many have failed.
    failures: usize,
}

#[derive(Clone, Copy)]
enum Stage<K> {
    Open,
    Taken { requests: u64 },
    Submitted { token: K, requests: u64 },
}

/// A round that is to be submitted, or is once more.
#[derive(Clone, Copy)]
pub(super) struct Taken {
    pub number: u64,
    pub requests: u64,
}

/// What is to be done next.
pub(super) enum Next<K> {
    /// To ask the unit for this round.
    Ask(u64, K),
    Submit(Taken),
    Nothing,
}

impl<K: Copy> Rounds<K> {
    pub fn new() -> Self {
        Rounds {
            number: 0,
            stage: Stage::Open,
            unsaid: 0,
            failed: [None; REMEMBERED],
            failures: 0,
        }
    }

    /// What has to be said: all rounds before this one are over, none of which that was not said
    /// had more requests. The caller does so before it lets go of the lock.
    pub fn take_unsaid(&mut self) -> (u64, u64) {
        (self.number, core::mem::take(&mut self.unsaid))
    }

    /// What is to be done next. What has joined the open round is taken, if none is under way.
    pub fn next<A: Atomic64>(&mut self, open: &Open<A>, taker: Taker) -> Next<K> {
        let number = self.number;
        match (self.stage, taker) {
            (Stage::Submitted { token, .. }, _) => Next::Ask(number, token),
            (Stage::Taken { requests }, Taker::TakesOver) => {
                Next::Submit(Taken { number, requests })
            }
            (Stage::Taken { .. }, Taker::Leads) => Next::Nothing,
            (Stage::Open, _) => match open.take(number) {
                0 => {
                    self.number = after(number); // none has to be told
                    Next::Nothing
                }
                requests => {
                    self.stage = Stage::Taken { requests };
                    Next::Submit(Taken { number, requests })
                }
            },
        }
    }

    /// The unit's answer to a submission. The first of several is kept.
    pub fn submit(&mut self, taken: Taken, submitted: Result<K, InvalidateError>) {
        if self.number != taken.number || !matches!(self.stage, Stage::Taken { .. }) {
            return;
        }
        match submitted {
            Ok(token) => {
                let requests = taken.requests;
                self.stage = Stage::Submitted { token, requests };
            }
            Err(why) => self.end(taken.number, Some(why)),
        }
    }

    /// A round is done, or has failed, if it is still the one that is under way.
    pub fn end(&mut self, number: u64, failed: Option<InvalidateError>) {
        if self.number != number {
            return; // another caller was told, too
        }
        if let Stage::Taken { requests } | Stage::Submitted { requests, .. } = self.stage {
            self.unsaid = self.unsaid.max(requests);
        }
        let last = self.last_failed();
        if last.is_some_and(|last| number.wrapping_sub(last) & NUMBER_MASK > FORGOTTEN) {
            self.failed = [None; REMEMBERED];
            self.failures = 0;
        }
        if let Some(why) = failed {
            self.failed[self.failures % REMEMBERED] = Some((number, why));
            self.failures += 1;
        }
        self.number = after(number);
        self.stage = Stage::Open;
    }

    /// The round that has failed last.
    pub fn last_failed(&self) -> Option<u64> {
        let last = self.failures.checked_sub(1)?;
        self.failed[last % REMEMBERED].map(|(number, _)| number)
    }

    /// What became of a round that is over. Of one before all failures that are remembered, it has
    /// failed, if any other is not remembered.
    pub fn answer(&self, number: u64) -> Result<bool, InvalidateError> {
        let mut known = self.failed.iter().flatten();
        if let Some((_, why)) = known.find(|(failed, _)| *failed == number) {
            return Err(*why);
        }
        match self.failed[self.failures % REMEMBERED] {
            Some((oldest, why)) if self.failures > REMEMBERED && is_after(oldest, number) => {
                Err(why)
            }
            _ => Ok(true),
        }
    }
}
