// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Combining: CPUs that flush at the same time share one invalidation.
//!
//! # Theory
//!
//! Under `strict` each unmap has its own invalidation, and a unit carries them out one after the
//! other; so with many CPUs each waits for all others. [`Combining`] stands between a domain and
//! its unit and makes of those that come while one is under way *one* for the next turn. It is a
//! unit itself, so neither domain nor policy knows of it.
//!
//! **Slots.** Each CPU has a line with some *slots*, each for one request:
//!
//! ```text
//! free -> claimed -> published -> taken -> free, one generation later: done, or failed
//! ```
//!
//! A request claims one by compare-and-swap, so that a nested interrupt, and a thread that has
//! moved, has one of its own; it writes its pages there, and publishes. The token is slot and
//! generation. A slot that has a later generation than the token's is an invalidation that is done;
//! so a request that is not asked for any more (its caller's patience ran out) costs nothing, and a
//! token that is asked again, however late, never gets a better answer.
//!
//! **Rounds.** One invalidation of the unit is under way at a time, for all slots that it has
//! *taken*. To advance is
//!
//! 1. to ask the unit for the round that is under way, if one is. Not done: that is all. Done, or
//!    failed: so are its slots.
//! 2. where none is under way, to take all that is published, and to submit it, with adjoining
//!    pages as one range.
//!
//! A lock is held to look through slots and to write down what came of it, and not while the unit
//! is asked, let alone waited for. Any number of callers may ask for one round; the first who is
//! told ends it, if it is still the round that was asked for.
//!
//! A request that finds no round under way starts one at once. Of those that wait one is the
//! *leader*, and advances at each look; the others look at their own slot. As nothing may depend on
//! one CPU, a request that was looked for in vain [`CombiningConfig::take_over`] times advances
//! too: where the leader's virtual CPU is not running, where the leader's request is not looked for
//! any more, or where the one who looks is an interrupt handler on top of the leader. A round whose
//! slots have been taken and that is not submitted by then is submitted once more, as one range
//! around all its pages; of two answers the first one ends it. Where none leads, all do.
//!
//! **Why a request's answer proves what it must.** The caller of `submit` has fenced (that is the
//! trait's contract). Its publication is a release, and taking it an acquire, so all that came
//! before that fence is before the submission of the round, which a full fence of its own precedes;
//! the round covers its pages, and reaches walk caches if one of its requests does. So the unit,
//! asked then, is asked later than if the request had gone there itself, and for no less. Its slot
//! becomes free only when the unit has said that this round is done: that is a release, and looking
//! an acquire. A slot is taken once, by one round, and what is published after the slots were
//! looked through is in none of before.
//!
//! **Bounds (P11).** A request waits for the round that is under way, and for its own: two, and
//! [`CombiningConfig::take_over`] looks of its own for each that is left alone. All that is
//! published goes into each round, so none is passed over.
//!
//! **Failures.** A round that fails, or that the unit does not take, fails its requests, and no
//! other; the next one is begun with what was published meanwhile. A waiter that runs out of
//! patience takes nothing with it: the round goes on, and others ask the unit for it. A slot
//! remembers which of its last 63 generations have failed; a token that is older than that, of a
//! slot in which one ever failed, counts as failed.
//!
//! Straight to the unit go: all, on machines of fewer CPUs than
//! [`CombiningConfig::cpus_min`]; requests of another domain than the first one's; of a whole
//! domain, which are of many unmaps already; of several ranges, likewise; and those that find no
//! free slot.
//!
//! Locking: `rounds`, alone. Nothing is allocated.
//!
//! Not handled: several domains of one unit in one round.

mod rounds;
mod slots;
mod unit;

use super::{Caches, Invalidate, InvalidateError, Scope};
use crate::{platform::*, units::*};
use alloc::{boxed::Box, sync::Arc, vec::Vec};
use rounds::{Rounds, Taken};
use slots::{SlotId, Slots, State};

/// No request leads.
const NOBODY: u64 = 0;
/// No domain has asked yet.
const NONE: u64 = 0;

/// When requests are combined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CombiningConfig {
    /// CPUs of the platform, at least; on a smaller one all requests go straight to the unit.
    pub cpus_min: usize,
    /// Looks in vain after which a request does what the leader should have done: some times what
    /// an invalidation takes. At least 1.
    pub take_over: u64,
}

impl Default for CombiningConfig {
    /// From 16 CPUs on: simulated, sharing loses with four, gains nothing with eight, and is 1.6
    /// times as fast with 16, where a domain's invalidation takes as long as a page's. 64 looks.
    fn default() -> Self {
        CombiningConfig {
            cpus_min: 16,
            take_over: 64,
        }
    }
}

/// A unit in front of another, that makes one invalidation of several. See the module's theory.
pub struct Combining<P: Platform, U: Invalidate> {
    p: Arc<P>,
    unit: U,
    slots: Slots<P>,
    rounds: P::Lock<Rounds<U::Token>>,
    /// The slot of the request that leads, and 1; or [`NOBODY`].
    leader: CachePadded<P::A64>,
    /// The id of the domain whose requests are combined, and 1; or [`NONE`].
    domain: P::A64,
    combines: Combines,
    take_over: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Combines {
    Yes,
    TooFewCpus,
}

/// A request: in a slot, or one of the unit's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CombinedToken<K>(Asked<K>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked<K> {
    Unit(K),
    Slot { id: SlotId, generation: u64 },
}

impl<P: Platform, U: Invalidate> Combining<P, U> {
    /// For one domain, in front of `unit`.
    pub fn new(p: Arc<P>, unit: U, config: CombiningConfig) -> Self {
        let slots = Slots::new(&*p);
        let count = slots.count();
        let combines = match p.cpus() >= config.cpus_min {
            true => Combines::Yes,
            false => Combines::TooFewCpus,
        };
        Combining {
            unit,
            slots,
            rounds: Lock::new(Rounds::new(count)),
            leader: CachePadded(Atomic64::new(NOBODY)),
            domain: Atomic64::new(NONE),
            combines,
            take_over: config.take_over.max(1),
            p,
        }
    }

    /// The unit that is asked.
    pub fn unit(&self) -> &U {
        &self.unit
    }

    /// The next domain that asks is the one whose requests are combined.
    pub(crate) fn forget_domain(&self) {
        self.domain.store(NONE, Ordering::Relaxed);
    }

    /// Publishes a request of one range, if it can be combined.
    fn publish(
        &self,
        domain: DomainId,
        pages: IovaRange,
        caches: Caches,
    ) -> Option<Asked<U::Token>> {
        if self.combines == Combines::TooFewCpus || !self.is_ours(domain) {
            return None;
        }
        let cpu = self.p.pinned(|cpu| cpu.index());
        let (id, generation) = self.slots.publish(cpu, pages, caches)?;
        if self.leader.0.load(Ordering::Relaxed) == NOBODY {
            self.advance(Taker::Leads);
        }
        Some(Asked::Slot { id, generation })
    }

    /// Whether `domain` is that whose requests are combined; the first one that asks is.
    fn is_ours(&self, domain: DomainId) -> bool {
        let ours = u64::from(domain.0) + 1;
        let relaxed = Ordering::Relaxed;
        match self.domain.load(relaxed) {
            NONE => {
                let first = self.domain.compare_exchange(NONE, ours, relaxed, relaxed);
                first.is_ok() || self.domain.load(relaxed) == ours
            }
            domain => domain == ours,
        }
    }

    /// Whether the request in a slot is done; if not, moves on what is under way where that is this
    /// one's to do.
    fn look(&self, id: SlotId, generation: u64) -> Result<bool, InvalidateError> {
        if let Some(answer) = self.answer(id, generation) {
            return answer;
        }
        let looks = self.slots.at(id).has_looked();
        let leader = self.leader.0.load(Ordering::Relaxed);
        // who has waited for very long does so at each look: it may look rarely now
        let always = looks > self.take_over.saturating_mul(16);
        if always || looks.is_multiple_of(self.take_over) {
            self.advance(Taker::TakesOver);
        } else if leader == NOBODY || leader == id.word() {
            self.advance(Taker::Leads);
        } else {
            return Ok(false);
        }
        self.answer(id, generation).unwrap_or(Ok(false))
    }

    /// What became of the request in a slot, if that is known.
    #[inline]
    fn answer(&self, id: SlotId, generation: u64) -> Option<Result<bool, InvalidateError>> {
        match self.slots.at(id).state(generation) {
            State::Waits => None,
            State::Done => Some(Ok(true)),
            State::DoneOrFailed => Some(self.old_answer(id, generation)),
        }
    }

    /// Ends the rounds that the unit is done with, and begins the next one if none is under way.
    fn advance(&self, taker: Taker) {
        for nth in 0..rounds::ROUNDS {
            let Some((token, number)) = self.rounds.with(|rounds| rounds.submitted(nth)) else {
                continue;
            };
            let failed = match self.unit.done(token) {
                Ok(false) => continue,
                Ok(true) => None,
                Err(why) => Some(why),
            };
            self.rounds
                .with(|rounds| rounds.end(nth, number, failed, &self.slots));
        }
        let (leader, taken) = self.rounds.with(|rounds| {
            let left_alone = match taker {
                Taker::TakesOver => rounds.left_alone(),
                Taker::Leads => None,
            };
            match left_alone {
                Some(taken) => (None, Some(taken)),
                None => rounds.take(&self.slots),
            }
        });
        if let Some(leader) = leader {
            self.leader.0.store(leader, Ordering::Relaxed);
        }
        if let Some(taken) = taken {
            self.submit_taken(taken);
        }
    }

    fn submit_taken(&self, mut taken: Taken) {
        // what came before the requests' fences comes before what follows
        self.p.fence(Ordering::SeqCst);
        let domain = DomainId(self.domain.load(Ordering::Relaxed).wrapping_sub(1) as u16);
        merge(&mut taken.pages);
        let one = [taken.around];
        let ranges = match taken.pages.is_empty() {
            true => &one[..], // once more, and whoever does so first has the ranges
            false => &taken.pages,
        };
        let submitted = self.unit.submit_ranges(domain, ranges, taken.caches);
        let failed = submitted.is_err();
        self.rounds
            .with(|rounds| rounds.submit(taken, submitted, &self.slots));
        if failed {
            self.leader.0.store(NOBODY, Ordering::Relaxed);
        }
    }

    #[cold]
    fn old_answer(&self, id: SlotId, generation: u64) -> Result<bool, InvalidateError> {
        self.rounds
            .with(|rounds| match self.slots.at(id).has_failed(generation) {
                false => Ok(true),
                true => Err(rounds.why(id)),
            })
    }
}

/// For what a caller advances.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Taker {
    Leads,
    /// And submits what was taken by another who did not.
    TakesOver,
}

/// In ascending order, with a gap between any two; what overlaps or adjoins becomes one.
fn merge(ranges: &mut Vec<IovaRange>) {
    ranges.sort_unstable_by_key(|range| range.first);
    ranges.dedup_by(|next, range| {
        let joins = next.first <= range.end();
        if joins {
            *range = range.around(next);
        }
        joins
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_merge_where_they_adjoin_and_nowhere_else() {
        let range = |first, pages| IovaRange::new(IovaPage(first), PageCount(pages));
        let mut ranges = [
            range(9, 1),
            range(4, 2),
            range(6, 1),
            range(5, 1),
            range(20, 4),
        ]
        .to_vec();
        merge(&mut ranges);
        assert_eq!(ranges, [range(4, 3), range(9, 1), range(20, 4)], "P1");
        merge(&mut ranges);
        assert_eq!(ranges.len(), 3);
    }
}
