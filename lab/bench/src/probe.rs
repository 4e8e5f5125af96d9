// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! How far apart the CPUs of two threads are at the moment.
//!
//! # Theory
//!
//! Two threads pass a cache line back and forth. On a virtual machine the host moves virtual CPUs,
//! and they flip between *near* (two threads of a core, or cores under one cache: 50 to 75 ns for
//! both ways on the machine this was found on) and *far* (300 to 340 ns), every few seconds. What
//! two threads share costs several times as much in one mode as in the other, so a figure of two
//! threads is of one mode.
//!
//! The threshold is the geometric mean of the largest near and the smallest far round trip seen, 75
//! and 300 ns. What counts is the fastest of several batches: an interrupt, or a thread that lost
//! its CPU, makes a batch slower and never faster.

use ioatlas_dma::platform::{Atomic64, CachePadded, Ordering, Platform};
use std::time::{Duration, Instant};

/// Where two CPUs are, as seen from each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// A line goes both ways within [`THRESHOLD`].
    Near,
    /// A line takes longer than that.
    Far,
}

/// Round trips up to this are near.
pub const THRESHOLD: Duration = Duration::from_nanos(150);

impl Mode {
    /// The name used in tables.
    pub fn name(&self) -> &'static str {
        match self {
            Mode::Near => "near",
            Mode::Far => "far",
        }
    }
    /// The one that this is not.
    pub fn other(self) -> Self {
        match self {
            Mode::Near => Mode::Far,
            Mode::Far => Mode::Near,
        }
    }
    /// Of a round trip.
    pub fn of(round_trip: Duration) -> Self {
        if round_trip <= THRESHOLD {
            Mode::Near
        } else {
            Mode::Far
        }
    }
}

/// Batches of a probe that count.
const BATCHES: usize = 4;
/// Round trips of a batch.
const TRIPS: u32 = 64;
/// A batch that takes longer does not count: one of the threads does not run.
const BATCH: Duration = Duration::from_micros(128);
/// Looks at the word between two at the clock.
const LOOKS: u32 = 1 << 6;

/// The line, and what is written on it: balls go there and back, until the server
/// says how it ended.
pub struct PingPong<P: Platform> {
    ping: CachePadded<P::A64>,
    pong: CachePadded<P::A64>,
}

/// Instead of a ball: the probe has its result, and all threads are running now.
const DONE: u64 = 1 << 62;
/// Instead of a ball: it has none.
const GIVEN_UP: u64 = 1 << 63;

impl<P: Platform> Default for PingPong<P> {
    fn default() -> Self {
        PingPong {
            ping: CachePadded(P::A64::new(0)),
            pong: CachePadded(P::A64::new(0)),
        }
    }
}

impl<P: Platform> PingPong<P> {
    /// Before a probe, while no thread is in one.
    pub fn reset(&self) {
        self.ping.0.store(0, Ordering::Relaxed);
        self.pong.0.store(0, Ordering::Relaxed);
    }

    /// The part of thread number `thread`: 0 serves, 1 answers, others wait for the end. It
    /// has a result only while 0 and 1 both run, which is waited for at most `patience`; so
    /// when it returns a result they all begin to run something else at the same time. Only 0
    /// gets to know which.
    pub fn probe(&self, thread: usize, patience: Duration) -> Option<Duration> {
        if thread > 0 {
            self.answer(thread, patience);
            return None;
        }
        let found = self.serve(patience);
        let end = if found.is_some() { DONE } else { GIVEN_UP };
        self.ping.0.store(end, Ordering::Release);
        found
    }

    /// The fastest round trip.
    fn serve(&self, patience: Duration) -> Option<Duration> {
        let begun = Instant::now();
        let mut ball = 0;
        let mut fastest: Option<Duration> = None;
        let mut counting = 0;
        while counting < BATCHES {
            let start = Instant::now();
            for _ in 0..TRIPS {
                ball += 1;
                self.ping.0.store(ball, Ordering::Release);
                for look in 1u32.. {
                    if self.pong.0.load(Ordering::Acquire) == ball {
                        break;
                    }
                    if look.is_multiple_of(LOOKS) && begun.elapsed() > patience {
                        return None;
                    }
                    std::hint::spin_loop();
                }
            }
            let took = start.elapsed();
            if took <= BATCH {
                counting += 1;
                fastest = Some(fastest.map_or(took, |f| f.min(took)));
            }
        }
        fastest.map(|took| took / TRIPS)
    }

    fn answer(&self, thread: usize, patience: Duration) {
        let begun = Instant::now();
        for look in 1u32.. {
            let ball = self.ping.0.load(Ordering::Acquire);
            // the server may have come late, so it is the one to give up first
            if ball >= DONE || look.is_multiple_of(LOOKS) && begun.elapsed() > 2 * patience {
                return;
            }
            if thread == 1 {
                self.pong.0.store(ball, Ordering::Release);
            }
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ioatlas_host::Host;

    #[test]
    fn modes_are_told_apart_by_the_threshold() {
        for (ns, mode) in [
            (0, Mode::Near),
            (75, Mode::Near),
            (150, Mode::Near),
            (151, Mode::Far),
            (340, Mode::Far),
        ] {
            assert_eq!(Mode::of(Duration::from_nanos(ns)), mode, "{ns}");
        }
    }

    #[test]
    fn a_thread_without_an_answer_gives_up() {
        let (words, patience) = (PingPong::<Host>::default(), Duration::from_millis(1));
        assert_eq!(words.probe(1, patience), None, "no thread serves");
        assert_eq!(words.probe(0, patience), None, "the other has left");
    }
}
