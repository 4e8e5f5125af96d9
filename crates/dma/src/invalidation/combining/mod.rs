// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Combining: CPUs that flush at the same time share one invalidation.
//!
//! # Theory
//!
//! Under `strict` each unmap has its own invalidation, and a unit carries them out one after the
//! other; so with many CPUs each waits for all others. [`Combining`] stands between a domain and
//! its unit and makes of those that come while one is under way *one* for the next turn. It is a
//! unit itself; domain and policy only say what they do not wait for at once.
//!
//! **Rounds** are numbered. One is *open*, and at most the one before it is *under way* at the
//! unit: as an invalidation for all requests that joined it. A request joins the open round by one
//! addition to a word that has its number and the count of its requests, then writes its pages
//! where its place in the round says, and is done when another word, `over`, has passed the round's
//! number. Of that there are some copies, and its place says at which it looks. So its token is
//! number and place. One that has failed is never done, however late it is asked. A request that is
//! not asked for any more (its caller's patience ran out) costs its place, and if it leads, those
//! of its round the looks until another advances.
//!
//! To advance is
//!
//! 1. to ask the unit for the round that is under way, if one is. Not done: that is all. Done, or
//!    failed: so are its requests.
//! 2. where none is under way, to *take* the open round, if it has requests, which opens the next;
//!    and to submit it, with pages that adjoin as one range, or as the whole domain where it has
//!    more than [`CombiningConfig::ranges_max`] requests, or where one has joined and its pages do
//!    not come to be there. An empty round is taken, too, and over at once.
//!
//! A lock is held to write down what came of it, and not while the unit is asked, let alone waited
//! for. Any number of callers may ask for one round; the first that is told ends it, if it is still
//! the round that was asked for.
//!
//! The first request of a round *leads* it: it advances at each look from when the round is under
//! way, or none is; the one that ends a round takes the next in the same step, so that the unit
//! does not rest. All others look at `over`, which changes once a round. As nothing may depend on
//! one CPU, a request advances, too, at each [`CombiningConfig::take_over`]th of its looks: where
//! the leader's virtual CPU is not running, where its request is not asked for any more, or where
//! the one that looks is an interrupt handler on top of the leader. A round that was taken and is
//! not submitted by then is submitted once more; of two answers the first one ends it. So a look
//! may submit, and wait for room as the unit's `submit` does.
//!
//! **Why a request's answer proves what it must.** The caller of `submit` has fenced (that is the
//! trait's contract). Joining is a release, and taking an acquire, so all that came before that
//! fence is before the submission of the round, which a full fence of its own precedes; the round
//! covers its pages, as they stand in an entry that none but the request has written, or the whole
//! domain; and reaches walk caches if one of its requests does. So the unit, asked then,
//! is asked later than if the request had gone there itself, and for no less. `over` passes a round
//! only when the unit has said that it is done: that is a release, and looking an acquire. The word
//! that is joined is taken as one, so each request is in one round, and in its count.
//!
//! **Bounds (P11).** A request waits for the round that is under way, and for its own: two. Where
//! these are left alone, it submits the first one again, asks the unit for that and submits its
//! own, and asks for that, each after [`CombiningConfig::take_over`] looks of its own: three times
//! that, and each submission waits as many turns for pages that do not come to be there. All that
//! joined goes into the round, so none is passed over. This holds while no CPU is stopped for long
//! that holds the lock `rounds`, for which those that advance spin.
//!
//! Looks are a clock only to what looks all the time. So what does not
//! ([`Invalidate::submit_unattended`]) goes straight to the unit.
//!
//! **Failures.** A round that fails, or that the unit does not take, fails its requests, and no
//! other; the next one is begun with what joined meanwhile. A waiter that runs out of patience
//! takes nothing with it: the round goes on, and others ask the unit for it. The last 64 failed
//! rounds are remembered; a request of a round before those, where more have failed, counts as
//! failed, also one that was told that it is done, if it is asked again (nothing here does so).
//!
//! **Domains.** The requests of one domain are combined, that of the first one that asks, until its
//! id is released; then of the next one that asks. No request of an id is waited for when that is
//! released, as its domain has been flushed. Those that ran out of time may still be in a round,
//! which then is one of the next domain, and has an invalidation too many. The submission of a
//! round reads which domain it is after it was taken. So it finds that of those that are waited
//! for, which was written before they joined, and stays while they wait.
//!
//! Straight to the unit go: all, on machines of fewer CPUs than
//! [`CombiningConfig::cpus_min`]; requests of any other domain; of a whole domain, which are of
//! many unmaps already; of several ranges, likewise; those that nothing waits for at once; and those
//! that come while the open round has 32,768 requests, as it may where a unit does not answer.
//!
//! Locking: `rounds`, alone. Nothing is allocated, and no CPU is pinned.
//!
//! Not handled: several domains of one unit in one round.

mod entries;
mod rounds;
mod unit;
mod waiting;

use super::{Caches, Invalidate, InvalidateError, OnMap, Scope, ranges::Ranges};
use crate::{platform::*, units::*};
use alloc::{boxed::Box, sync::Arc};
use entries::{Entries, RANGES, Read};
use rounds::{FULL, Next, Open, Rounds, Taken, whole};
use waiting::Waiting;

/// In the word of the domain: it has ended, or there was none yet. The id stays, as a request of it
/// that is not asked for any more may still go into a round, and units need not take every id.
const ENDED: u64 = 1 << 16;
/// In the word of a round that failed, or was full, last: there was one.
const KNOWN: u64 = 1 << 63;

/// Of [`CombiningConfig::take_over`]: 16 times that can be counted.
const TAKE_OVER_MAX: u64 = 1 << 24;

/// When requests are combined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CombiningConfig {
    /// CPUs of the platform, at least; on a smaller one all requests go straight to the unit.
    pub cpus_min: usize,
    /// Looks after which a request does what the leader should have done: some times what an
    /// invalidation takes. From 1 to 2^24; beyond that it is that. A domain's wait limit had better
    /// be 16 times that or more: what ran out of time then asks the unit at each look, and so the
    /// second one after the unit has come back finds it so.
    pub take_over: u64,
    /// Requests that are invalidated by their pages, at most, and no more than 8: a round of more
    /// is invalidated as the whole domain, and what each asks for is not looked at. As many as cost
    /// the unit what a domain does.
    pub ranges_max: usize,
}

setters!(const CombiningConfig {
    cpus_min: usize,
    take_over: u64,
    ranges_max: usize,
});

impl CombiningConfig {
    /// From 16 CPUs on; 1,024 looks, which is some ten times what an invalidation takes a busy
    /// unit; 8 ranges, as units' drivers assume that a domain costs as much as those.
    pub const DEFAULT: Self = CombiningConfig {
        cpus_min: 16,
        take_over: 1024,
        ranges_max: RANGES,
    };
}

impl Default for CombiningConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A unit in front of another, that makes one invalidation of several. See the module's theory.
pub struct Combining<P: Platform, U: Invalidate> {
    p: Arc<P>,
    unit: U,
    /// Joined by each request, and taken once a round.
    open: CachePadded<Open<P::A64>>,
    /// What is written once a round, and read at each look.
    waiting: Waiting<P::A64>,
    /// The round that failed last, and [`KNOWN`].
    last_failed: P::A64,
    /// The round that was full last, and [`KNOWN`].
    last_full: P::A64,
    entries: Entries<P>,
    rounds: P::Lock<Rounds<U::Token>>,
    /// The id of the domain whose requests are combined, and above it [`ENDED`].
    domain: P::A64,
    combines: Combines,
    take_over: u64,
    ranges_max: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Combines {
    Yes,
    TooFewCpus,
}

/// A request: in a round, or one of the unit's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CombinedToken<K>(Asked<K>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked<K> {
    Unit(K),
    Round { number: u64, nth: u64 },
}

impl<P: Platform, U: Invalidate> Combining<P, U> {
    /// For one domain at a time, in front of `unit`.
    pub fn new(p: Arc<P>, unit: U, config: CombiningConfig) -> Self {
        let combines = match p.cpus() >= config.cpus_min {
            true => Combines::Yes,
            false => Combines::TooFewCpus,
        };
        Combining {
            unit,
            open: CachePadded(Open::new()),
            waiting: Waiting::new(),
            last_failed: Atomic64::new(0),
            last_full: Atomic64::new(0),
            entries: Entries::new(),
            rounds: Lock::new(Rounds::new()),
            domain: Atomic64::new(ENDED),
            combines,
            take_over: config.take_over.clamp(1, TAKE_OVER_MAX),
            ranges_max: config.ranges_max.min(RANGES) as u64,
            p,
        }
    }

    /// The unit that is asked.
    pub fn unit(&self) -> &U {
        &self.unit
    }

    /// Counts on from round `number`, as after months of work, for tests. It must be after the open
    /// round.
    ///
    /// # Panics
    /// Requests wait.
    #[doc(hidden)]
    pub fn skip_to(&self, number: u64) {
        self.rounds.with(|rounds| {
            rounds.skip_to(&self.open.0, number);
            self.say(rounds);
        });
    }

    /// A domain is about to end: if it is the one whose requests are combined, the next one that
    /// asks is. Its id must not be given again before.
    pub(crate) fn forget_domain(&self, domain: DomainId) {
        if self.combines == Combines::Yes {
            let (ours, relaxed) = (u64::from(domain.0), Ordering::Relaxed);
            // else it is another's
            let _ = self
                .domain
                .compare_exchange(ours, ours | ENDED, relaxed, relaxed);
        }
    }

    /// A request of one range joins the open round, if it can be combined.
    fn join(&self, domain: DomainId, pages: IovaRange, caches: Caches) -> Option<Asked<U::Token>> {
        if self.combines == Combines::TooFewCpus || !self.is_ours(domain) {
            return None;
        }
        if self.is_full() {
            self.advance(Taker::TakesOver); // perhaps none of its requests is asked for any more
            return None;
        }
        let (low, nth) = self.open.0.join();
        let over = self.waiting.over(nth);
        let number = whole(low, over);
        if nth < self.ranges_max {
            self.entries.at(number, nth).fill(number, pages, caches);
        }
        if nth >= FULL {
            self.last_full.store(number | KNOWN, Ordering::Relaxed);
        }
        // where none is under way it goes at once
        if nth == 0 && over == number {
            self.advance(Taker::Leads);
        }
        Some(Asked::Round { number, nth })
    }

    /// Whether `domain` is that whose requests are combined; the first one that asks is.
    fn is_ours(&self, domain: DomainId) -> bool {
        let (ours, relaxed) = (u64::from(domain.0), Ordering::Relaxed);
        let mut now = self.domain.load(relaxed);
        if now & ENDED != 0 {
            let first = self.domain.compare_exchange(now, ours, relaxed, relaxed);
            now = first.map_or_else(|other| other, |_| ours);
        }
        now == ours
    }

    /// Whether the open round has too many requests. Some more may join until that is seen.
    fn is_full(&self) -> bool {
        let relaxed = Ordering::Relaxed;
        let last = self.last_full.load(relaxed);
        if last == 0 || self.waiting.over(0) <= last & !KNOWN {
            return last != 0;
        }
        // it is over; one that was full since says so again at its next request
        let _ = self.last_full.compare_exchange(last, 0, relaxed, relaxed);
        false
    }

    /// Whether the `nth` request of a round is done; if not, moves on what is under way where that
    /// is this one's to do.
    fn look(&self, number: u64, nth: u64) -> Result<bool, InvalidateError> {
        let over = self.waiting.over(nth);
        if over > number {
            return self.answer(number);
        }
        let looks = self.waiting.has_looked(number, nth);
        // what has waited for very long does so at each look: it may look rarely now
        let always = looks > 16 * self.take_over;
        if always || looks.is_multiple_of(self.take_over) {
            self.advance(Taker::TakesOver);
        } else if nth == 0 && over == number {
            self.advance(Taker::Leads);
        } else {
            return Ok(false);
        }
        match self.waiting.over(nth) > number {
            true => self.answer(number),
            false => Ok(false),
        }
    }

    /// What became of a round that is over.
    #[inline]
    fn answer(&self, number: u64) -> Result<bool, InvalidateError> {
        // at least as new as the end of the round, as that was seen with an acquire
        match self.last_failed.load(Ordering::Relaxed) {
            0 => Ok(true),
            failed if number > failed & !KNOWN => Ok(true),
            _ => self.rounds.with(|rounds| rounds.answer(number)),
        }
    }

    /// Ends the round that is under way if the unit is done with it, and begins the next one if
    /// none is.
    fn advance(&self, taker: Taker) {
        let open = &self.open.0;
        let next = self.rounds.with(|rounds| {
            let next = rounds.next(open, taker);
            // what was to say so may have been stopped before it did; an empty round is over
            if taker == Taker::TakesOver || matches!(next, Next::Nothing) {
                self.say(rounds);
            }
            next
        });
        let taken = match next {
            Next::Nothing => return,
            Next::Submit(taken) => taken,
            Next::Ask(number, token) => {
                let failed = match self.unit.done(token) {
                    Ok(false) => return,
                    Ok(true) => None,
                    Err(why) => Some(why),
                };
                let next = self.rounds.with(|rounds| {
                    rounds.end(number, failed);
                    let next = rounds.next(open, taker);
                    // what is to be submitted is sooner, so that the unit does not rest
                    if !matches!(next, Next::Submit(_)) {
                        self.say(rounds);
                    }
                    next
                });
                match next {
                    Next::Submit(taken) => taken,
                    Next::Ask(..) | Next::Nothing => return,
                }
            }
        };
        self.submit_taken(taken);
    }

    /// Says which rounds are over.
    fn say(&self, rounds: &mut Rounds<U::Token>) {
        let failed = rounds.last_failed().map_or(0, |number| number | KNOWN);
        if self.last_failed.load(Ordering::Relaxed) != failed {
            self.last_failed.store(failed, Ordering::Relaxed);
        }
        let (over, requests) = rounds.take_unsaid();
        self.waiting.say(over, requests);
    }

    fn submit_taken(&self, taken: Taken) {
        let wanted = self.ranges(taken);
        let domain = DomainId(self.domain.load(Ordering::Relaxed) as u16);
        // what came before the requests' fences comes before what follows
        self.p.fence(Ordering::SeqCst);
        let submitted = match &wanted {
            Some((ranges, caches)) => self.unit.submit_ranges(domain, ranges.as_slice(), *caches),
            None => self.unit.submit(domain, Scope::DOMAIN),
        };
        self.rounds.with(|rounds| {
            rounds.submit(taken, submitted);
            self.say(rounds);
        });
    }

    /// What the requests of a round ask for; `None` is the whole domain.
    fn ranges(&self, taken: Taken) -> Option<(Ranges<RANGES>, Caches)> {
        let Taken { number, requests } = taken;
        if requests > self.ranges_max {
            return None;
        }
        let (mut ranges, mut all) = (Ranges::new(), Caches::Leaves);
        for nth in 0..requests {
            let entry = self.entries.at(number, nth);
            // one that has joined writes this next, unless it was interrupted
            let mut looks = 0;
            let (range, caches) = loop {
                match entry.read(number) {
                    Read::Asked(range, caches) => break (range, caches),
                    Read::NotYet if looks < self.take_over => self.p.relax(),
                    Read::NotYet | Read::Never => return None,
                }
                looks += 1;
            };
            if !ranges.add(range) {
                return None;
            }
            all = all.max(caches);
        }
        Some((ranges, all))
    }
}

/// For what a caller advances.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Taker {
    Leads,
    /// And submits what was taken by another that did not.
    TakesOver,
}
