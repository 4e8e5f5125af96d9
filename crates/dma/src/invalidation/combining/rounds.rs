// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Rounds: how they are counted, and the one that is under way. That is behind a lock, under which
//! the unit is never asked.

use super::*;

/// Failed rounds that are remembered.
const REMEMBERED: usize = 64;

/// Bits of the count of a round's requests, in one word with as many bits of its number as have
/// room above. Those are used up in some months; see [`whole`].
const REQUESTS: u32 = 16;
/// At each multiple of this number all copies of what is over are brought up to date: often enough
/// for [`whole`].
const ALL_COPIES: u64 = 1 << (64 - REQUESTS - 2);
/// From so many on a round is full: they come from requests that are not asked for any more, of a
/// unit that does not answer. Room is left for all CPUs to come at once.
pub(super) const FULL: u64 = 1 << (REQUESTS - 1);

/// The number of a round of which `low` are the bits that have room in the word of the open one:
/// that one of them which is next to `near`, a number fewer than 2^47 rounds before or after it.
///
/// All else has whole numbers, which are never used up: 2^63 rounds of 100 ns take 29,000 years.
///
/// To a request that joins, `near` is what its copy says is over. That was brought up to date when
/// the last multiple of 2^46 came, or a round later, and the request sees that, as joining acquires
/// what opened its round. (One that is stopped for 2^47 rounds before it reads its copy has a number
/// too high by 2^48, and is never done.)
pub(super) fn whole(low: u64, near: u64) -> u64 {
    let ahead = (low.wrapping_sub(near) << REQUESTS) as i64 >> REQUESTS;
    near.wrapping_add_signed(ahead)
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
    /// Joins: the lower bits of the round's number, and which of its requests this is.
    pub fn join(&self) -> (u64, u64) {
        Self::parts(self.0.fetch_add(1, Ordering::AcqRel))
    }
    /// Ends it and opens that with the number `next`; how many have joined.
    fn take(&self, next: u64) -> u64 {
        Self::parts(self.0.swap(next << REQUESTS, Ordering::AcqRel)).1
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
    failures: u64,
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
            (Stage::Open, _) => match open.take(number + 1) {
                0 => {
                    self.go_to(number + 1); // none has to be told
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
        if let Some(why) = failed {
            self.failed[self.failures as usize % REMEMBERED] = Some((number, why));
            self.failures += 1;
        }
        self.go_to(number + 1);
        self.stage = Stage::Open;
    }

    /// All before `number` are over.
    fn go_to(&mut self, number: u64) {
        if self.number / ALL_COPIES != number / ALL_COPIES {
            self.unsaid = u64::MAX;
        }
        self.number = number;
    }

    /// As if all before `number` were over, where none has requests that are not over.
    pub fn skip_to<A: Atomic64>(&mut self, open: &Open<A>, number: u64) {
        let is_open = matches!(self.stage, Stage::Open);
        assert!(is_open && open.take(number) == 0, "a round has requests");
        self.go_to(number);
    }

    /// The round that has failed last.
    pub fn last_failed(&self) -> Option<u64> {
        let last = self.failures.checked_sub(1)?;
        self.failed[last as usize % REMEMBERED].map(|(number, _)| number)
    }

    /// What became of a round that is over. Of one before all failures that are remembered, it has
    /// failed, if any other is not remembered.
    pub fn answer(&self, number: u64) -> Result<bool, InvalidateError> {
        let mut known = self.failed.iter().flatten();
        if let Some((_, why)) = known.find(|(failed, _)| *failed == number) {
            return Err(*why);
        }
        let some_forgotten = self.failures > REMEMBERED as u64;
        match self.failed[self.failures as usize % REMEMBERED] {
            Some((oldest, why)) if some_forgotten && number < oldest => Err(why),
            _ => Ok(true),
        }
    }
}
