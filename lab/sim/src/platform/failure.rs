// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What ended a run badly, with what is needed to replay and to understand it.

use super::{Schedule, YieldPoint};
use core::{fmt, panic::Location};

/// A run that did not end well. Its `Display` names seed and step, and lists
/// the last points passed.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Debug)]
pub struct Failure {
    /// The schedule that replays it.
    pub schedule: Schedule,
    /// Points passed before the failure.
    pub step: u64,
    pub cause: Cause,
    /// The last points passed, oldest first.
    pub recent: Vec<Event>,
}

/// How a run failed.
#[allow(missing_docs)] // its variants and fields say it
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    #[error("{agent} panicked: {message}")]
    Panicked { agent: String, message: String },
    /// All that live wait for locks.
    #[error("dead-lock: {waiting}")]
    DeadLock {
        /// Which agent waits where.
        waiting: String,
    },
    /// Every agent waits, and no shared word changed.
    #[error("no progress in {turns} turns of waiting: {waiting}")]
    NoProgress {
        /// How many turns, over all agents.
        turns: u64,
        /// Which agent waits where.
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
#[allow(missing_docs)] // its fields say it
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
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
