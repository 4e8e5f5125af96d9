// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A round whose last invalidation is asked for and not waited for.
//!
//! Its things are in one place, and nothing else knows of them until they are freed: they are freed
//! by the answer to that invalidation, and by nothing else. Until it is asked for the answer, the
//! IOVAs of its mappings are given to none, and tables that they detached stay frames; so a round
//! that is forgotten loses them. Nothing else waits for it: other rounds, unmaps and maps have
//! invalidations of their own.
//!
//! What all of a domain hold is counted ([`InFlight`]), as retired.
//!
//! Locking: none, as in a [`Round`].

use super::{batch::free_completed, round::ROOM, *};

/// See the module's theory.
#[must_use = "what is never asked for its answer is lost"]
pub(crate) struct PendingRound<K> {
    /// `None` where nothing is to be waited for.
    submitted: Option<Submitted<CpuResource, K, ROOM>>,
    /// Mappings that wait for it.
    mappings: usize,
    outcome: RoundOutcome,
    held: Held,
}

impl<K: Copy + Send> PendingRound<K> {
    /// One of which all is said.
    pub(super) fn over(outcome: RoundOutcome) -> Self {
        PendingRound {
            submitted: None,
            mappings: 0,
            outcome,
            held: Held::default(),
        }
    }

    pub(super) fn start<P: Platform, I: Invalidate<Token = K>>(
        engine: &Engine<'_, P, I>,
        together: Together<CpuResource, ROOM>,
        mappings: usize,
        mut outcome: RoundOutcome,
    ) -> Self {
        let mut held = Held::default();
        together.things().for_each(|what| what.add_to(&mut held));
        let (p, sequence) = (engine.p, engine.sequence);
        match sequence.submit_together(p, engine.unit, engine.id, together) {
            Ok(submitted) => PendingRound {
                submitted: Some(submitted),
                mappings,
                outcome,
                held,
            },
            Err((mut together, failed)) => {
                engine.give_up(together.give_up());
                outcome.lost += mappings;
                outcome.failed = Some(failed);
                Self::over(outcome)
            }
        }
    }

    /// What is neither freed nor quarantined yet.
    pub fn held(&self) -> Held {
        self.held
    }

    /// Whether all is over, by one look at the unit. What is completed has been freed then.
    pub fn is_over<P: Platform, I: Invalidate<Token = K>>(
        &mut self,
        engine: &Engine<'_, P, I>,
    ) -> bool {
        let Some(submitted) = &mut self.submitted else {
            return true;
        };
        let answer = match submitted.poll(engine.unit) {
            Ok(None) => return false,
            Ok(Some(mut flushed)) => {
                free_completed(engine, || flushed.next());
                Ok(())
            }
            Err(failed) => Err(failed),
        };
        self.answered(engine, answer);
        true
    }

    /// Waits until all is over, and says what became of its mappings.
    pub fn finish<P: Platform, I: Invalidate<Token = K>>(
        &mut self,
        engine: &Engine<'_, P, I>,
    ) -> RoundOutcome {
        if let Some(submitted) = &mut self.submitted {
            let answer = match submitted.wait(engine.p, engine.unit, &engine.patience()) {
                Ok(mut flushed) => {
                    free_completed(engine, || flushed.next());
                    Ok(())
                }
                Err(failed) => Err(failed),
            };
            self.answered(engine, answer);
        }
        self.outcome
    }

    fn answered<P: Platform, I: Invalidate<Token = K>>(
        &mut self,
        engine: &Engine<'_, P, I>,
        answer: Result<(), Failed>,
    ) {
        let mappings = core::mem::take(&mut self.mappings);
        match answer {
            Ok(()) => self.outcome.ended += mappings,
            Err(failed) => {
                let things = self.submitted.iter_mut().flat_map(Submitted::give_up);
                engine.give_up(things);
                self.outcome.lost += mappings;
                self.outcome.failed = Some(failed);
            }
        }
        self.submitted = None;
    }
}

/// What the pending rounds of a domain hold.
pub(crate) struct InFlight<P: Platform> {
    pages: P::A64,
    frames: P::A64,
}

impl<P: Platform> InFlight<P> {
    pub fn new() -> Self {
        InFlight {
            pages: P::A64::new(0),
            frames: P::A64::new(0),
        }
    }
    pub fn add(&self, held: Held) {
        self.pages.fetch_add(held.pages.0, Ordering::Relaxed);
        self.frames.fetch_add(held.frames, Ordering::Relaxed);
    }
    /// What was added before.
    pub fn remove(&self, held: Held) {
        let minus = u64::wrapping_neg;
        self.pages.fetch_add(minus(held.pages.0), Ordering::Relaxed);
        self.frames.fetch_add(minus(held.frames), Ordering::Relaxed);
    }
    pub fn held(&self) -> Held {
        Held {
            pages: PageCount(self.pages.load(Ordering::Relaxed)),
            frames: self.frames.load(Ordering::Relaxed),
        }
    }
}
