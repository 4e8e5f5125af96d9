// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Waiting for answers: how long, and when in vain.
//!
//! A *round* is one look at everything that is wanted. What is missing first in it is what is
//! waited for; patience is for that, and begins anew whenever the first that is missing lies
//! further on than before, in the order in which it is wanted (not of addresses).

use super::{Fault, Patience};
use crate::{
    cache::{Miss, MissCause},
    protocol::misses::{Asked, MissChannel, Waited, Waiting},
};
use ioatlas_dma::units::*;
use std::time::Instant;

/// Where something is among all that is wanted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Position {
    /// The number of its range.
    pub range: usize,
    pub iova: Iova,
}

/// The waits of one access, or of one pretranslation.
pub(super) struct Waits<'c> {
    misses: &'c MissChannel,
    patience: Patience,
    start: Instant,
    until: Instant,
    /// The worst that became of a question of this round.
    asked: Option<Asked>,
    /// The first miss of the last round, where it is, and what is known of its answer.
    front: Option<(Position, Miss, Answered)>,
}

impl<'c> Waits<'c> {
    pub(super) fn new(misses: &'c MissChannel, patience: Patience) -> Self {
        let start = Instant::now();
        Waits {
            misses,
            patience,
            start,
            until: start + patience.answer,
            asked: None,
            front: None,
        }
    }

    /// Begins a round: what is answered from here on counts.
    pub(super) fn begin(&mut self) -> u64 {
        self.asked = None;
        self.misses.answers()
    }

    /// Asks for the first page of a miss. (A question has no length on the wire, and
    /// mostly gets a page.)
    pub(super) fn ask(&mut self, miss: &Miss) -> Asked {
        let asked = self.misses.ask(&question(miss));
        self.asked = match self.asked {
            Some(worst) if worst != Asked::Sent => Some(worst),
            _ => Some(asked),
        };
        asked
    }

    /// Waits for answers, `first` being what is missing first.
    pub(super) fn wait(
        &mut self,
        round: u64,
        at: Position,
        first: &Miss,
        waiting: Waiting,
    ) -> Result<(), Fault> {
        let (iova, need) = (first.iova, first.need);
        let worst = self.asked.expect("a round with a miss asks");
        if let Some((before, front, answered)) = self.front {
            // Something further on is missing first now: that is progress, unless a cache too small
            // goes round in circles.
            if before < at {
                self.until = Instant::now() + self.patience.answer;
            }
            let same = (before, front.cause) == (at, MissCause::Forbidden);
            if same && first.cause == MissCause::Forbidden && answered == Answered::Yes {
                self.misses.withdraw(&question(first));
                self.misses.report_failure(iova, first.len, need);
                return Err(Fault::Forbidden { iova, need });
            }
        }
        match self.misses.wait(round, self.until, waiting, worst) {
            Waited::Answered => {
                let answered = match self.misses.is_under_way(&question(first)) {
                    true => Answered::NotYet,
                    false => Answered::Yes,
                };
                self.front = Some((at, *first, answered));
                self.misses.expire();
                Ok(())
            }
            Waited::GiveUp => {
                self.misses.withdraw(&question(first));
                Err(Fault::Interrupted(iova))
            }
            Waited::NoBackChannel => Err(Fault::Unmapped(iova)),
            Waited::TimedOut => {
                self.misses.withdraw(&question(first));
                Err(Fault::Unanswered {
                    iova,
                    need,
                    waited: self.start.elapsed(),
                })
            }
        }
    }
}

/// Whether the front end has answered what was missing first in a round.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answered {
    Yes,
    NotYet,
}

/// What is asked for a miss: its first page.
fn question(miss: &Miss) -> Miss {
    let page = GRANULE - (miss.iova.0 & (GRANULE - 1));
    Miss {
        len: ByteCount(miss.len.0.min(page)),
        ..*miss
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{os::unix::net::UnixStream, sync::Arc, time::Duration};

    #[test]
    fn progress_is_in_the_order_wanted() {
        let (back, _front) = UnixStream::pair().unwrap();
        let misses = Arc::new(MissChannel::default());
        misses.connect(Some(back.into()));
        let patience = Patience {
            answer: Duration::from_secs(600),
        };
        let mut waits = Waits::new(&misses, patience);
        // wanted in descending order: first the second range is missing, then the first again
        for (range, page, later) in [(0, 9, false), (1, 4, true), (1, 4, false), (0, 9, false)] {
            let miss = Miss {
                iova: Iova(page * GRANULE),
                len: ByteCount(GRANULE),
                need: Perm::Read,
                cause: MissCause::Absent,
            };
            let at = Position {
                range,
                iova: miss.iova,
            };
            let (round, before) = (waits.begin(), waits.until);
            waits.ask(&miss);
            misses.answered(miss.iova, miss.len); // so the wait is over at once
            let waited = waits.wait(round, at, &miss, Waiting::Unpinned);
            assert_eq!(waited, Ok(()));
            assert_eq!(waits.until > before, later, "range {range}");
        }
    }
}
