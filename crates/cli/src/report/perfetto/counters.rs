// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Counters of a device, bounded in number: a viewer draws some thousand pixels. It draws a counter
//! on from its last number, also over traces that are longer, so each ends with its trace at 0.

use super::Clock;
use super::format::{Name, Thread, Writer};
use serde::Serialize;
use std::io;

/// Parts of the trace's time in which at least one change of a counter is kept.
const GAPS: u64 = 10_000;

/// Equal parts of the trace's time that have a rate each, at most.
const MOST_PARTS: u64 = 500;

/// Events of a trace to a part, at least: fewer would make noise of a rate.
const EVENTS_A_PART: u64 = 20;

/// Mapped pages: each number is true at its time, but of changes in quick succession only the first
/// and the last are there.
pub(super) struct Pages {
    gap_ns: u64,
    /// Time of the latest that was written.
    written: Option<u64>,
    /// The latest that was not.
    waits: Option<(u64, u64)>,
}

impl Pages {
    pub fn new(clock: Clock) -> Self {
        Self {
            gap_ns: clock.end_ns / GAPS,
            written: None,
            waits: None,
        }
    }

    /// There are so many pages now.
    pub fn are(&mut self, writer: &mut Writer, to: Thread, ns: u64, pages: u64) -> io::Result<()> {
        // time may have stepped back
        let latest = self.waits.map(|(ns, _)| ns).or(self.written);
        let ns = latest.map_or(ns, |latest| latest.max(ns));
        let due = |written: u64| ns - written >= self.gap_ns;
        if !self.written.is_none_or(due) {
            self.waits = Some((ns, pages));
            return Ok(());
        }
        self.flush(writer, to)?;
        self.written = Some(ns);
        write(writer, to, ns, pages)
    }

    /// Writes what waits.
    fn flush(&mut self, writer: &mut Writer, to: Thread) -> io::Result<()> {
        match self.waits.take() {
            Some((ns, pages)) => write(writer, to, ns, pages),
            None => Ok(()),
        }
    }

    /// Writes what waits, and that the counter ends with the trace.
    pub fn finish(&mut self, writer: &mut Writer, to: Thread, end_ns: u64) -> io::Result<()> {
        self.flush(writer, to)?;
        write(writer, to, end_ns, 0)
    }
}

fn write(writer: &mut Writer, to: Thread, ns: u64, pages: u64) -> io::Result<()> {
    #[derive(Serialize)]
    struct Args {
        pages: u64,
    }
    writer.at(to, Name::Counter("mapped"), ns, &Args { pages })
}

/// Maps a second, by equal parts of the trace's time.
pub(super) struct Rate {
    part_ns: u64,
    /// The part that is being counted.
    part: u64,
    maps: u64,
}

impl Rate {
    /// `None` where no time is known, or none passes.
    pub fn new(clock: Clock) -> Option<Self> {
        let parts = (clock.events / EVENTS_A_PART).clamp(1, MOST_PARTS);
        (clock.span.is_some() && clock.end_ns > 0).then(|| Self {
            // the last part has the end
            part_ns: (clock.end_ns / parts).saturating_add(1),
            part: 0,
            maps: 0,
        })
    }

    pub fn map(&mut self, writer: &mut Writer, to: Thread, ns: u64) -> io::Result<()> {
        let part = ns / self.part_ns;
        // one of a time that stepped back counts in the latest part
        if part > self.part {
            self.next(writer, to)?;
            if part > self.part {
                self.next(writer, to)?;
            }
            self.part = part;
        }
        self.maps += 1;
        Ok(())
    }

    /// Writes the rate of the part that was counted last, and of what comes after it: none.
    pub fn finish(&mut self, writer: &mut Writer, to: Thread) -> io::Result<()> {
        self.next(writer, to)?;
        self.next(writer, to)
    }

    /// Writes the rate of the part that is being counted, and goes on to the next.
    fn next(&mut self, writer: &mut Writer, to: Thread) -> io::Result<()> {
        #[derive(Serialize)]
        struct Args {
            #[serde(rename = "per second")]
            per_second: f64,
        }
        let per_second = self.maps as f64 * 1e9 / self.part_ns as f64;
        // the last part may end where the clock does
        let begin_ns = self.part.saturating_mul(self.part_ns);
        self.part += 1;
        self.maps = 0;
        writer.at(to, Name::Counter("maps"), begin_ns, &Args { per_second })
    }
}
