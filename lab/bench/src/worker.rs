// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A subject under a pattern, on one thread, with its types forgotten.

use crate::{
    Failure, Pattern, Sizes, Subject,
    pattern::{Bursts, Draw, Immediate, Mixed, One, Replace, Ring, Sequence},
};

/// One thread's part of a case. Made and used on that thread. Its failures are the subject's.
pub trait Worker {
    /// Brings the subject to where the pattern starts. `go_on` is asked now and then, since
    /// that may take long.
    ///
    /// # Errors
    /// Also where it may not go on.
    fn fill(&mut self, go_on: &mut dyn FnMut() -> bool) -> Result<(), Failure>;
    /// Runs at most `pairs` pairs and returns how many: fewer where another thread
    /// has to come first.
    fn run(&mut self, pairs: u32) -> Result<u32, Failure>;
    /// Gives back all that is outstanding.
    fn finish(&mut self) -> Result<(), Failure>;
}

struct Solo<'s, S: Subject, Q, D> {
    subject: &'s S,
    hand: S::Hand,
    sequence: Q,
    draw: D,
}

impl<S: Subject, Q: Sequence<S::Token>, D: Draw> Worker for Solo<'_, S, Q, D> {
    fn fill(&mut self, go_on: &mut dyn FnMut() -> bool) -> Result<(), Failure> {
        let (subject, hand, draw) = (self.subject, &mut self.hand, &mut self.draw);
        self.sequence.fill(subject, hand, draw, go_on)
    }
    fn run(&mut self, pairs: u32) -> Result<u32, Failure> {
        for _ in 0..pairs {
            self.sequence
                .pair(self.subject, &mut self.hand, &mut self.draw)?;
        }
        Ok(pairs)
    }
    fn finish(&mut self) -> Result<(), Failure> {
        let mut outstanding = self.sequence.outstanding();
        outstanding.try_for_each(|token| self.subject.give(&mut self.hand, token))
    }
}

/// The worker of thread number `thread`, which is the caller. `None` for
/// [`Pattern::ProducerConsumer`], which no thread does alone.
pub fn solo<'s, S: Subject>(
    subject: &'s S,
    thread: usize,
    pattern: Pattern,
    sizes: Sizes,
) -> Option<Box<dyn Worker + 's>> {
    Some(match pattern {
        Pattern::Immediate => sized(subject, thread, Immediate, sizes),
        Pattern::Ring(n) => sized(subject, thread, Ring::new(n), sizes),
        Pattern::Bursts => sized(subject, thread, Bursts::default(), sizes),
        Pattern::Replace(n) => sized(subject, thread, Replace::new(n), sizes),
        Pattern::ProducerConsumer => return None,
    })
}

fn sized<'s, S: Subject>(
    subject: &'s S,
    thread: usize,
    sequence: impl Sequence<S::Token> + 's,
    sizes: Sizes,
) -> Box<dyn Worker + 's> {
    let hand = subject.hand(thread);
    match sizes {
        Sizes::One => Box::new(Solo {
            subject,
            hand,
            sequence,
            draw: One,
        }),
        Sizes::Mixed => Box::new(Solo {
            subject,
            hand,
            sequence,
            draw: Mixed::default(),
        }),
    }
}
