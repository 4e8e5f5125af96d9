// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#![doc = include_str!("../README.md")]
//!
//! # Layers
//!
//! ```text
//! Bench       runs, phases of them, what they found: Report
//!   session   ioatlas_vhost::server's front end, at the other end of a Socket
//!   ring      split and packed, filled and emptied without a thread of their own
//!   space     where buffers lie for the device, from which misses are answered
//!   ram       memory that the back end maps
//! ```
//!
//! # Words
//!
//! A *run* drives one back end with one [`Config`]; a *phase* of it offers frames for a
//! time, and then waits until none is out. What a back end does wrong ends a run with a
//! [`BenchError`] that says what it was; frames that come back damaged are counted, and the run
//! goes on.
//!
//! # How it works
//! One thread does everything: it takes used buffers, checks what came back, offers more, answers
//! misses, invalidates. A back end's misses so wait for no switch of threads on this side, and
//! whatever happens has one order. It never sleeps; when nothing happens, it yields.
//!
//! A frame is offered only while there is a receive buffer in the ring for it to come back in. So a
//! back end that loses one has lost it itself.
//!
//! # Bounds
//! Every wait ends after [`Config::patience`]: requests and their answers
//! ([`ioatlas_vhost::server::FrontEnd`] shuts the socket down, since `vhost`'s waits for ever),
//! acknowledgements of updates and invalidations (the socket's timeout), used buffers, frames.
//!
//! Not handled: several queue pairs, frames in several receive buffers, indirect descriptors,
//! offloads, being called (the driver polls).
#![forbid(unsafe_code)]

mod config;
mod engine;
mod error;
mod frames;
mod latency;
mod ledger;
mod pool;
mod ram;
mod report;
mod ring;
mod session;
mod space;

pub use config::{
    Answers, Config, ConfigError, Layout, Leaf, Length, Lie, MAX_BATCH, MAX_FRAME, MAX_PAGES,
    MAX_RING, Mapping, Offer, Pace, Placement,
};
pub use error::{BenchError, RingFault};
pub use frames::Damage;
pub use latency::RoundTrips;
pub use report::{Found, Messages, Report, Settings, Trial};
pub use session::Socket;

use engine::Engine;
use ring::{PackedRing, SplitRing};
use session::Session;
use std::os::unix::net::UnixStream;

/// A back end that is being driven.
pub struct Bench {
    driven: Driven,
    config: Config,
    warm: Option<u64>,
}

enum Driven {
    Split(Box<Engine<SplitRing>>),
    Packed(Box<Engine<PackedRing>>),
}

/// Trials of a search, at most: each halves what is uncertain.
const TRIALS: usize = 12;
/// A search ends when it knows the rate to this part of it.
const PRECISION: f64 = 0.01;

impl Bench {
    /// Finds the back end at a socket, and sets the session up.
    ///
    /// # Errors
    /// The configuration cannot be, there is no back end, or it does not play its part.
    pub fn connect(socket: &Socket, config: Config) -> Result<Self, BenchError> {
        config.check()?;
        Self::over(socket.open(config.patience)?, config)
    }

    /// The same with a back end that is connected already.
    ///
    /// # Errors
    /// The same as for [`connect`](Self::connect).
    pub fn over(stream: UnixStream, config: Config) -> Result<Self, BenchError> {
        config.check()?;
        let session = Session::new(stream, &config)?;
        let driven = match config.layout {
            Layout::Split => Driven::Split(Box::new(Engine::new(session, &config)?)),
            Layout::Packed => Driven::Packed(Box::new(Engine::new(session, &config)?)),
        };
        Ok(Bench {
            driven,
            config,
            warm: None,
        })
    }

    fn phase(&mut self, length: Length, pace: Pace) -> Result<Report, BenchError> {
        match &mut self.driven {
            Driven::Split(engine) => engine.phase(length, pace),
            Driven::Packed(engine) => engine.phase(length, pace),
        }
    }

    /// Offers frames and counts what comes back. The first time, the warm-up comes before.
    ///
    /// # Errors
    /// What the back end did wrong.
    pub fn run(&mut self, length: Length, pace: Pace) -> Result<Report, BenchError> {
        let warm = match self.warm {
            Some(lost) => lost,
            None => self.phase(self.config.warm_up, Pace::Full)?.frames_lost,
        };
        self.warm = Some(warm);
        let mut report = self.phase(length, pace)?;
        report.warm_up_lost = warm;
        Ok(report)
    }

    /// Finds the highest rate at which at most `tolerated` of the frames are lost, by halving;
    /// `trial` is how long each rate is tried.
    ///
    /// # Errors
    /// What the back end did wrong, or there is no such rate.
    pub fn search(&mut self, tolerated: f64, trial: Length) -> Result<Found, BenchError> {
        let full = self.run(trial, Pace::Full)?;
        // What can be done at all is known now; a little above it nothing can pass.
        let (mut low, mut high) = (0.0, full.frames_per_second.max(1.0) * 1.1);
        let (mut best, mut tried) = (None, Vec::new());
        while tried.len() < TRIALS && high - low > PRECISION * high {
            let rate = (low + high) / 2.0;
            let report = self.run(trial, Pace::FramesPerSecond(rate))?;
            tried.push(Trial {
                offered_per_second: rate,
                loss: report.loss(),
            });
            if report.loss() <= tolerated {
                (low, best) = (rate, Some(report));
            } else {
                high = rate;
            }
        }
        let best = best.ok_or(BenchError::NoRate {
            least: high,
            tolerated,
        })?;
        Ok(Found {
            tolerated_loss: tolerated,
            best,
            tried,
        })
    }

    /// Stops the queues and hangs up.
    ///
    /// # Errors
    /// The back end does not answer.
    pub fn stop(self) -> Result<(), BenchError> {
        match self.driven {
            Driven::Split(engine) => engine.stop(),
            Driven::Packed(engine) => engine.stop(),
        }
    }
}
