// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! How long a queue waits for translations, and when it gives up.
//!
//! A queue waits while its first chain, or its ring, is not translated, and no thread waits with
//! it. So it may wait for as long as it takes, as DPDK's and the kernel's do: what is missing is
//! asked for again every [`REPEAT`], and the queue goes on when the answer comes, be that after a
//! paused VMM's minutes. Only where a patience is set does the queue stop when it ends; front ends
//! are known to ignore the error event, and then the guest has to reset the device. A wait that is
//! [`LONG`] is said once.
//!
//! Of patience: the wait begins anew when what is missing first is a page that was not
//! before, as in a ring that is answered page by page. Answers that bring it no further do not
//! extend the wait; nor does a page that comes and goes again, or any beyond [`MOVES`]. It ends at
//! once where there is no front end to ask, or where the answer came and still does not permit the
//! access.
//!
//! A question that has to be sent a second time was answered, or was withdrawn as one that was not
//! answered for long. The latter are counted by the channel; only where that count stood still is
//! the second question a refusal, however slow the front end is.

use crate::queue::Look;
use ioatlas_dma::units::*;
use ioatlas_vhost::{
    Miss, MissCause,
    guest_memory::Fault,
    protocol::misses::{Asked, MissChannel},
};
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

/// After this time without what is missing, it is asked for again: a front end says nothing when an
/// address is not mapped, and the guest may have mapped it since.
const REPEAT: Duration = Duration::from_millis(250);
/// After this time a wait is worth a line in a log.
const LONG: Duration = Duration::from_secs(10);
/// Refusals that are remembered; one beyond them is noticed once the others are gone.
const REMEMBERED: usize = 64;
/// How often a wait begins anew, at most. The largest packed ring has 128 pages, the parts of the
/// largest split one 209.
const MOVES: usize = 1024;

/// How one queue waits, and for what.
#[derive(Debug)]
pub struct Waits {
    /// How long it waits: for ever where there is none.
    patience: Option<Duration>,
    /// What is missing first, and since when nothing moved.
    first: Option<(Miss, Instant)>,
    /// Whether that wait was said to be long.
    told: bool,
    /// Pages that have been missing first since something was ready.
    seen: BTreeSet<u64>,
    /// Whether something is missing, and when it was last asked for again, or first.
    waiting: Option<Instant>,
    /// Asked for once although there is a translation, since that does not permit the access.
    forbidden: Vec<Forbidden>,
    refused: Option<Miss>,
    unasked: Option<Miss>,
}

/// A question for more permission.
#[derive(Clone, Copy, Debug)]
struct Forbidden {
    iova: Iova,
    need: Perm,
    /// How many questions the channel had withdrawn unanswered before this one was sent.
    withdrawn: u64,
}

impl Waits {
    /// Waits no longer than `patience`, if that is given.
    pub fn new(patience: Option<Duration>) -> Self {
        Waits {
            patience,
            first: None,
            told: false,
            seen: BTreeSet::new(),
            waiting: None,
            forbidden: Vec::new(),
            refused: None,
            unasked: None,
        }
    }

    /// Whether something is missing.
    pub fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Whether it is time to ask again; then every question that was not answered
    /// for long is withdrawn.
    pub fn is_overdue(&mut self, misses: &MissChannel) -> bool {
        let overdue = self.waiting.is_some_and(|asked| asked.elapsed() >= REPEAT);
        if overdue {
            self.waiting = Some(Instant::now());
            misses.expire();
        }
        overdue
    }

    /// What a look found.
    pub fn saw(&mut self, look: &Look) {
        let asked = self.waiting.unwrap_or_else(Instant::now);
        self.waiting = look.blocked.map(|_| asked);
        (self.refused, self.unasked) = (None, None);
        match look.blocked {
            Some(miss) if look.ready == 0 => {
                let moved = self.seen.len() < MOVES && self.seen.insert(miss.iova.page().0);
                let since = match self.first {
                    Some((_, since)) if !moved => since,
                    _ => Instant::now(),
                };
                self.first = Some((miss, since));
            }
            _ => {
                self.first = None;
                self.told = false;
                self.seen.clear();
                self.forbidden.clear();
            }
        }
    }

    /// Asks for what is missing; returns what became of the question.
    pub fn ask(&mut self, misses: &MissChannel, miss: &Miss) -> Asked {
        if miss.cause != MissCause::Forbidden {
            let asked = misses.ask(miss);
            if asked == Asked::NoBackChannel {
                self.unasked.get_or_insert(*miss);
            }
            return asked;
        }
        let before = misses.stats().unanswered;
        let asked = misses.ask(miss);
        match asked {
            Asked::NoBackChannel => {
                self.unasked.get_or_insert(*miss);
            }
            Asked::Sent => self.sent_forbidden(miss, before, misses.stats().unanswered),
            Asked::UnderWay | Asked::Later => (),
        }
        asked
    }

    /// A question for more permission was sent; the channel had withdrawn `before` questions before
    /// that, and `after` when that was done.
    fn sent_forbidden(&mut self, miss: &Miss, before: u64, after: u64) {
        let Miss { iova, need, .. } = *miss;
        let same = |f: &&mut Forbidden| f.iova == iova && f.need == need;
        let room = self.forbidden.len() < REMEMBERED;
        match self.forbidden.iter_mut().find(same) {
            // Nothing was withdrawn since, so this was answered.
            Some(known) if known.withdrawn == after => {
                self.refused.get_or_insert(*miss);
            }
            Some(known) => known.withdrawn = before,
            None if room => self.forbidden.push(Forbidden {
                iova,
                need,
                withdrawn: before,
            }),
            None => (),
        }
    }

    /// What is waited for, once, where that has taken long.
    pub fn long(&mut self) -> Option<Miss> {
        self.long_after(LONG)
    }

    fn long_after(&mut self, long: Duration) -> Option<Miss> {
        let (miss, since) = self.first?;
        if self.told || since.elapsed() < long {
            return None;
        }
        self.told = true;
        Some(miss)
    }

    /// Whether to go on waiting.
    ///
    /// # Errors
    /// Why the queue has to stop.
    pub fn check(&self, misses: &MissChannel) -> Result<(), Fault> {
        let Some((first, since)) = self.first else {
            return Ok(());
        };
        let Miss { iova, need, .. } = first;
        if let Some(miss) = self.unasked {
            return Err(Fault::Unmapped(miss.iova));
        }
        if let Some(miss) = self.refused {
            misses.report_failure(miss.iova, miss.len, miss.need);
            let Miss { iova, need, .. } = miss;
            return Err(Fault::Forbidden { iova, need });
        }
        let waited = since.elapsed();
        if self.patience.is_none_or(|patience| waited < patience) {
            return Ok(());
        }
        misses.expire();
        Err(match first.cause {
            MissCause::Absent => Fault::Unanswered { iova, need, waited },
            MissCause::Forbidden => Fault::Forbidden { iova, need },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocked(page: u64) -> Look {
        Look {
            ready: 0,
            blocked: Some(Miss {
                iova: Iova(page * GRANULE),
                len: ByteCount(GRANULE),
                need: Perm::Read,
                cause: MissCause::Absent,
            }),
        }
    }

    fn since(waits: &mut Waits, look: Look) -> Instant {
        // Two moments that a clock tells apart.
        let before = Instant::now();
        while Instant::now() == before {}
        waits.saw(&look);
        waits.first.expect("it waits").1
    }

    #[test]
    fn a_wait_begins_anew_with_each_page_and_not_with_one_that_comes_and_goes() {
        let mut waits = Waits::new(None);
        let first = since(&mut waits, blocked(7));
        assert_eq!(since(&mut waits, blocked(7)), first, "nothing moved");
        let second = since(&mut waits, blocked(3));
        assert!(second > first, "the ring's next page");
        for page in [7, 3, 7] {
            assert_eq!(since(&mut waits, blocked(page)), second, "no further");
        }
        let ready = Look {
            ready: 1,
            ..blocked(8)
        };
        waits.saw(&ready);
        assert!(waits.first.is_none());
        assert!(since(&mut waits, blocked(7)) > second, "it moved");
    }

    #[test]
    fn a_long_wait_is_told_once_and_a_later_one_again() {
        let mut waits = Waits::new(None);
        assert_eq!(waits.long_after(Duration::ZERO), None, "it does not wait");
        waits.saw(&blocked(7));
        let missing = blocked(7).blocked;
        assert_eq!(waits.long_after(Duration::ZERO), missing);
        waits.saw(&blocked(8));
        assert_eq!(waits.long_after(Duration::ZERO), None, "told already");
        waits.saw(&Look {
            ready: 1,
            ..blocked(8)
        });
        waits.saw(&blocked(8));
        let missing = blocked(8).blocked;
        assert_eq!(waits.long_after(Duration::ZERO), missing, "another wait");
    }

    #[test]
    fn waits_begin_anew_a_bounded_number_of_times() {
        let mut waits = Waits::new(None);
        let mut last = since(&mut waits, blocked(0));
        for page in 1..MOVES as u64 {
            let next = since(&mut waits, blocked(page));
            assert!(next > last, "page {page}");
            last = next;
        }
        for page in 0..8 {
            let next = since(&mut waits, blocked(MOVES as u64 + page));
            assert_eq!(next, last, "time decides");
        }
    }
}
