// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What ended a run badly, with what is needed to replay and to understand it.

use super::{Schedule, YieldPoint};
use core::{fmt, panic::Location};

/// A run that did not end well. Its `Display` names seed and step, and lists the last points
/// passed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Replays it.
    pub schedule: Schedule,
    /// Points passed before.
    pub step: u64,
    /// What happened.
    pub cause: Cause,
    /// The last points passed, oldest first.
    pub recent: Vec<Event>,
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// An agent panicked.
    #[error("{agent} panicked: {message}")]
    Panicked {
        /// Its name.
        agent: String,
        /// Its words.
        message: String,
    },
    /// All that live wait for locks.
    #[error("dead-lock: {waiting}")]
    DeadLock {
        /// Who waits where.
        waiting: String,
    },
    /// Everybody waits, and no shared word changed.
    #[error("no progress in {turns} turns of waiting: {waiting}")]
    NoProgress {
        /// How many turns, over all agents.
        turns: u64,
        /// Who waits where.
        waiting: String,
    },
    /// More points than allowed.
    #[error("no end after {limit} points")]
    StepLimit {
        /// How many were allowed.
        limit: u64,
    },
}

/// One agent passed one point.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// The agent's name.
    pub agent: String,
    /// What it was about to do.
    pub point: YieldPoint,
    /// Which line does it.
    pub location: &'static Location<'static>,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?} at {}", self.agent, self.point, self.location)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, step {}: {}", self.schedule, self.step, self.cause)?;
        if !self.recent.is_empty() {
            write!(f, "\nlast points:")?;
        }
        self.recent
            .iter()
            .try_for_each(|event| write!(f, "\n  {event}"))
    }
}

impl core::error::Error for Failure {}
