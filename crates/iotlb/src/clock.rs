// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the times and CPUs of a trace say (`# at <ns> <cpu>`).
//!
//! A stamp holds for the events up to the next one. Where tracers disagree about the order, times
//! can step back; the whole span is from the earliest to the latest.

use crate::event::Event;
use crate::trace::{Stamp, Trace};
use serde::Serialize;
use std::collections::BTreeSet;

/// The times of a trace from the earliest to the latest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The earliest time, in nanoseconds.
    pub first_ns: u64,
    /// The latest time, in nanoseconds; not below the earliest.
    pub last_ns: u64,
}

impl Span {
    /// How long it is, in seconds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.last_ns.saturating_sub(self.first_ns) as f64 / 1e9
    }
}

/// Rates and spans of a trace whose events have times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ClockInfo {
    /// From the first event to the last, in seconds.
    pub seconds: f64,
    /// CPUs that did something; `None` if none is known.
    pub cpus: Option<usize>,
    /// Map lines with a time, by the second; 0 if no time passes.
    pub maps_per_second: f64,
    /// Unmap lines with a time, by the second; 0 if no time passes.
    pub unmaps_per_second: f64,
}

impl Trace {
    /// The stamp that holds at each event; `None` before the first.
    pub fn stamps_of_events(&self) -> impl Iterator<Item = Option<Stamp>> + '_ {
        let mut stamps = self.stamps.iter().peekable();
        let mut now = None;
        (0..self.events.len()).map(move |index| {
            while let Some(next) = stamps.next_if(|next| next.time.0 <= index) {
                now = Some(next.stamp);
            }
            now
        })
    }

    /// From the earliest stamp to the latest; `None` without stamps.
    #[must_use]
    pub fn span(&self) -> Option<Span> {
        let times = self.stamps.iter().map(|stamped| stamped.stamp.nanoseconds);
        Some(Span {
            first_ns: times.clone().min()?,
            last_ns: times.max()?,
        })
    }

    /// Rates and spans; `None` without stamps.
    #[must_use]
    pub fn clock(&self) -> Option<ClockInfo> {
        let seconds = self.span()?.seconds();
        let (mut maps, mut unmaps) = (0u64, 0u64);
        for (event, stamp) in self.events.iter().zip(self.stamps_of_events()) {
            if stamp.is_some() {
                maps += u64::from(matches!(event, Event::Map { .. }));
                unmaps += u64::from(matches!(event, Event::Unmap { .. }));
            }
        }
        let rate = |count: u64| match seconds > 0.0 {
            true => count as f64 / seconds,
            false => 0.0,
        };
        let cpus: BTreeSet<u32> = self.stamps.iter().filter_map(|s| s.stamp.cpu).collect();
        Some(ClockInfo {
            seconds,
            cpus: Some(cpus.len()).filter(|cpus| *cpus > 0),
            maps_per_second: rate(maps),
            unmaps_per_second: rate(unmaps),
        })
    }

    /// The longest time, in nanoseconds, from an unmap to the `later`-th one after it: how long a
    /// page stays reachable whose invalidation waits for so many unmaps. `None` without stamps.
    #[must_use]
    pub fn longest_wait_of_unmaps(&self, later: u64) -> Option<u64> {
        let later = usize::try_from(later).ok()?;
        let events = self.events.iter().zip(self.stamps_of_events());
        let unmap = |(event, stamp): (&Event, Option<Stamp>)| match event {
            Event::Unmap { .. } => stamp.map(|stamp| stamp.nanoseconds),
            _ => None,
        };
        let times: Vec<u64> = events.filter_map(unmap).collect();
        let ends = times.iter().skip(later);
        let waits = times
            .iter()
            .zip(ends)
            .map(|(begin, end)| end.saturating_sub(*begin));
        waits.max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limits;

    #[test]
    fn stamps_hold_until_the_next() {
        let text = "# ioatlas-trace 1\nM d 1 1 r\n# at 1000000000 0\nM d 2 1 r\nU d 1 1\n# at 3000000000 2\nU d 2 1\n\
                    # at x 0\n# at 4000000000\n";
        let trace = Trace::read("t", text.as_bytes(), Limits::default()).unwrap();
        let cpus: Vec<_> = trace
            .stamps_of_events()
            .map(|stamp| stamp.map(|s| s.cpu.unwrap()))
            .collect();
        assert_eq!(cpus, [None, Some(0), Some(0), Some(2)]);
        let expected = ClockInfo {
            seconds: 2.0,
            cpus: Some(2),
            maps_per_second: 0.5,
            unmaps_per_second: 1.0,
        };
        assert_eq!(trace.clock(), Some(expected));
        assert_eq!(trace.longest_wait_of_unmaps(1), Some(2_000_000_000));
        assert_eq!(
            (
                trace.longest_wait_of_unmaps(0),
                trace.longest_wait_of_unmaps(2)
            ),
            (Some(0), None)
        );
        let without =
            Trace::read("t", "# ioatlas-trace 1\n".as_bytes(), Limits::default()).unwrap();
        assert_eq!(without.clock(), None);
    }
}
