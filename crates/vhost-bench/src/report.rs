// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a run found.

use crate::config::{Answers, Config, Layout, Mapping, Offer, Placement};
use crate::latency::RoundTrips;
use serde::Serialize;

/// How the run was configured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[allow(missing_docs)] // its fields say it
pub struct Settings {
    pub layout: Layout,
    /// Entries of each ring.
    pub ring_size: u16,
    /// What the addresses were.
    pub mapping: Mapping,
    /// How misses were answered.
    pub answers: Answers,
    /// Pages of buffers in each direction.
    pub pages: u32,
    /// Bytes of a frame.
    pub frame_bytes: u16,
    /// Where in their pages buffers began.
    pub placement: Placement,
    /// Whether mergeable receive buffers were asked for.
    pub mergeable: Offer,
    /// Whether the event index was.
    pub event_index: Offer,
}

impl Settings {
    pub(crate) fn of(config: &Config) -> Self {
        Settings {
            layout: config.layout,
            ring_size: config.ring_size,
            mapping: config.mapping,
            answers: config.answers,
            pages: config.pages,
            frame_bytes: config.frame_bytes,
            placement: config.placement,
            mergeable: config.mergeable,
            event_index: config.event_index,
        }
    }
}

/// Messages of the device IOTLB.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Messages {
    /// Misses that the back end sent.
    pub misses: u64,
    /// Of those, for what is not mapped, or not so.
    pub unresolved: u64,
    /// Updates that were sent, each a round trip.
    pub updates: u64,
    /// Invalidations that were sent, each a round trip.
    pub invalidations: u64,
    /// Ranges that had not to be invalidated, since the back end never had them.
    pub skipped: u64,
    /// Access failures that the back end reported.
    pub access_failures: u64,
}

/// A phase that was counted.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[allow(missing_docs)] // its fields say it
pub struct Report {
    pub settings: Settings,
    /// What was offered a second, if that was limited.
    pub offered_per_second: Option<f64>,
    /// How long frames were sent.
    pub seconds: f64,
    /// Of that, how long the generator itself was kept from running, as far as it noticed; no
    /// frames were due then.
    pub paused_seconds: f64,
    /// Frames that came back in that time, a second.
    pub frames_per_second: f64,
    /// Frames that were made available to the back end.
    pub frames_sent: u64,
    /// Frames that came back as they should.
    pub frames_returned: u64,
    /// Buffers that came back with something else in them.
    pub frames_corrupt: u64,
    /// Frames that were sent and did not come back.
    pub frames_lost: u64,
    /// Of those: a miss arrived between sending and missing them, so the back end had to ask
    /// for a translation meanwhile.
    pub frames_lost_for_translation: u64,
    /// Frames that were due, and for which the back end had left no room.
    pub frames_refused: u64,
    pub messages: Messages,
    /// From updates and invalidations to their acknowledgements.
    pub round_trips: RoundTrips,
    /// Kicks that the back end asked for.
    pub kicks: u64,
    /// Frames that were lost in the warm-up, which is not counted otherwise.
    pub warm_up_lost: u64,
}

impl Report {
    /// The part of the frames that were due and did not come back.
    pub fn loss(&self) -> f64 {
        let due = self.frames_sent + self.frames_refused;
        (self.frames_lost + self.frames_refused) as f64 / due.max(1) as f64
    }
}

/// What a search for the highest rate found.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Found {
    /// The part of the frames that might be lost.
    pub tolerated_loss: f64,
    /// The highest rate at which no more was.
    pub best: Report,
    /// Each rate that was tried, in order, and the loss at it.
    pub tried: Vec<Trial>,
}

/// One rate that was tried.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Trial {
    /// How many frames a second.
    pub offered_per_second: f64,
    /// The part that was lost.
    pub loss: f64,
}
