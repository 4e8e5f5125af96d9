// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What is under way: which slots a round has taken, and the unit's token for it. All of it is
//! behind one lock, under which the unit is never asked.

use super::{slots::*, *};

/// Rounds that are remembered: one is under way, and the room of others may be with who submits.
pub(super) const ROUNDS: usize = 4;

pub(super) struct Rounds<K> {
    rounds: [Round<K>; ROUNDS],
    /// Rounds that were ever begun.
    begun: u64,
    /// Why slots have failed last.
    failed: Box<[Option<InvalidateError>]>,
}

struct Round<K> {
    stage: Stage<K>,
    /// Which of those that were ever begun; 0 when it is over.
    number: u64,
    /// The slots that it has taken.
    taken: Vec<SlotId>,
    /// Room for their pages, unless whoever submits them has it.
    pages: Option<Vec<IovaRange>>,
    around: IovaRange,
    caches: Caches,
}

#[derive(Clone, Copy)]
enum Stage<K> {
    Over,
    Taken,
    Submitted(K),
}

/// What is to be submitted.
pub(super) struct Taken {
    nth: usize,
    number: u64,
    /// The pages, in any order; none where they are submitted once more.
    pub pages: Vec<IovaRange>,
    /// A range around them.
    pub around: IovaRange,
    pub caches: Caches,
}

impl<K: Copy> Rounds<K> {
    pub fn new(slots: usize) -> Self {
        Rounds {
            rounds: core::array::from_fn(|_| Round {
                stage: Stage::Over,
                number: 0,
                taken: Vec::with_capacity(slots),
                pages: Some(Vec::with_capacity(slots)),
                around: IovaRange::new(IovaPage(0), PageCount(0)),
                caches: Caches::Leaves,
            }),
            begun: 0,
            failed: (0..slots).map(|_| None).collect(),
        }
    }

    /// What to ask the unit of the `nth`, and its number.
    pub fn submitted(&self, nth: usize) -> Option<(K, u64)> {
        let round = &self.rounds[nth];
        match round.stage {
            Stage::Submitted(token) => Some((token, round.number)),
            Stage::Over | Stage::Taken => None,
        }
    }

    /// Its requests are done, or have failed; if it is still the one with that number.
    pub fn end<P: Platform>(
        &mut self,
        nth: usize,
        number: u64,
        failed: Option<InvalidateError>,
        slots: &Slots<P>,
    ) {
        let round = &mut self.rounds[nth];
        if round.number != number {
            return; // another caller was told, too
        }
        round.stage = Stage::Over;
        round.number = 0;
        for id in round.taken.drain(..) {
            if failed.is_some() {
                self.failed[id.index()] = failed;
            }
            slots.at(id).free(failed.is_some());
        }
    }

    /// Takes all that is published for the next round, if none is under way; first, the slot that
    /// leads from then on, if that changes.
    pub fn take<P: Platform>(&mut self, slots: &Slots<P>) -> (Option<u64>, Option<Taken>) {
        let is_over = |round: &Round<K>| matches!(round.stage, Stage::Over);
        if !self.rounds.iter().all(is_over) {
            return (None, None);
        }
        let with_room = self.rounds.iter().position(|round| round.pages.is_some());
        let Some(nth) = with_room else {
            return (Some(NOBODY), None); // whoever submits one brings it back
        };
        let round = &mut self.rounds[nth];
        let mut pages = round.pages.take().unwrap_or_default();
        pages.clear();
        round.caches = Caches::Leaves;
        for id in slots.ids() {
            if let Some((range, caches)) = slots.at(id).take() {
                round.around = match round.taken.is_empty() {
                    true => range,
                    false => round.around.around(&range),
                };
                round.caches = round.caches.max(caches);
                round.taken.push(id);
                pages.push(range);
            }
        }
        let Some(first) = round.taken.first() else {
            round.pages = Some(pages);
            return (Some(NOBODY), None);
        };
        self.begun += 1;
        round.number = self.begun;
        round.stage = Stage::Taken;
        let taken = Taken {
            nth,
            number: round.number,
            pages,
            around: round.around,
            caches: round.caches,
        };
        (Some(first.word()), Some(taken))
    }

    /// A round that is taken and not submitted, to be submitted once more.
    pub fn left_alone(&self) -> Option<Taken> {
        let taken = |round: &Round<K>| matches!(round.stage, Stage::Taken);
        let nth = self.rounds.iter().position(taken)?;
        let round = &self.rounds[nth];
        Some(Taken {
            nth,
            number: round.number,
            pages: Vec::new(),
            around: round.around,
            caches: round.caches,
        })
    }

    /// The unit's answer to a submission of `taken`. The first of several is kept.
    pub fn submit<P: Platform>(
        &mut self,
        taken: Taken,
        submitted: Result<K, InvalidateError>,
        slots: &Slots<P>,
    ) {
        let Taken {
            nth, number, pages, ..
        } = taken;
        let round = &mut self.rounds[nth];
        if pages.capacity() > 0 {
            round.pages = Some(pages);
        }
        if round.number != number || !matches!(round.stage, Stage::Taken) {
            return;
        }
        match submitted {
            Ok(token) => round.stage = Stage::Submitted(token),
            Err(why) => self.end(nth, number, Some(why), slots),
        }
    }

    pub fn why(&self, id: SlotId) -> InvalidateError {
        self.failed[id.index()].unwrap_or(InvalidateError::OutOfService)
    }
}
