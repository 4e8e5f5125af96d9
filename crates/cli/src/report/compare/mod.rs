// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What changed from one trace to another, where a report is of exactly two.
//!
//! Two recordings differ in how much was done while they ran, so what is normalised stands first:
//! time and misses by what was mapped. Which way is better is said only where it is clear; more
//! maps a second may be more traffic. A rate or count changes in hundredths of what it was, a share
//! in points. Of a change that does not follow from the traces it is said why, and no number. No
//! change is called significant: one recording of each does not tell its noise.

mod captures;
mod pairing;
pub(super) mod terminal;
mod verdicts;
mod words;

pub use pairing::Matched;

use super::Traces;
use super::model::{Report, Source};
use ioatlas_present::{Figure, Unit};
use serde::Serialize;

/// What changed from the first trace of a report to its second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The first trace, by its [`crate::LoadedTrace::label`].
    pub before: String,
    /// The second one.
    pub after: String,
    /// What to know of all changes.
    pub remarks: Vec<&'static str>,
    /// Of all devices together.
    pub all_devices: Vec<Change>,
    /// Devices that are in both, those with most maps first.
    pub devices: Vec<DeviceChanges>,
    /// Devices of the first trace that none of the second was taken for.
    pub only_before: Vec<String>,
    /// Devices of the second trace that were taken for none of the first.
    pub only_after: Vec<String>,
}

/// What changed of a device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceChanges {
    /// Its name in the first trace.
    pub before: String,
    /// Its name in the second one.
    pub after: String,
    /// Why they were taken for one.
    pub matched: Matched,
    /// The most telling ones first.
    pub changes: Vec<Change>,
}

/// A number before and after.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Change {
    /// What changed.
    pub what: &'static str,
    /// Whether less of it is better; else it depends.
    pub less_is_better: bool,
    /// `None` where it is not known.
    pub before: Option<Figure>,
    /// `None` where it is not known.
    pub after: Option<Figure>,
    /// In hundredths of what it was before, or in points of a share; `None` where that cannot be
    /// told.
    pub change: Option<Figure>,
    /// Why it cannot be told.
    pub untold: Option<&'static str>,
}

const NOISE: &str =
    "One recording each, so noise is not known: record each several times before you rely on it.";
const NO_DEVICE: &str = "No device of the one trace is known to be in the other.";
const KINDS: &str =
    "One of the traces has accesses and the other has none, so they are not compared.";
const COUNTS: &str = "What bpftrace counted is not compared.";

/// Why no change is told of traces that lost events.
const LOST: &str = "events were lost";

impl Comparison {
    /// Of a report of these traces, counts included; `None` unless a user gave two.
    #[must_use]
    pub fn of(report: &Report, traces: &Traces) -> Option<Self> {
        let counted = traces.histograms.iter().map(|counts| &counts.label);
        let labels = traces
            .traces
            .iter()
            .map(|trace| &trace.label)
            .chain(counted);
        let labels: Vec<&String> = labels.collect();
        let [before, after] = labels.as_slice() else {
            return None;
        };
        if report.source != Source::User {
            return None;
        }
        let mut found = Self {
            before: before.to_string(),
            after: after.to_string(),
            remarks: Vec::new(),
            all_devices: Vec::new(),
            devices: Vec::new(),
            only_before: Vec::new(),
            only_after: Vec::new(),
        };
        match report.captures.as_slice() {
            _ if !traces.histograms.is_empty() => found.remarks.push(COUNTS),
            [before, after] => captures::compare(&mut found, [before, after], report.wait.time),
            [] => {
                // one a device, in the order of traces
                let first = traces.traces[0]
                    .trace
                    .devices()
                    .len()
                    .min(report.verdicts.len());
                let (before, after) = report.verdicts.split_at(first);
                verdicts::compare(&mut found, before, after);
            }
            _ => found.remarks.push(KINDS),
        }
        let none_is = [KINDS, COUNTS]
            .iter()
            .any(|why| found.remarks.contains(why));
        if found.devices.is_empty() && !none_is {
            found.remarks.push(NO_DEVICE);
        }
        if found.tells() {
            found.remarks.push(NOISE);
        }
        if !report.usable {
            found.tell_nothing();
        }
        Some(found)
    }

    /// Whether there is any number in it.
    pub(super) fn tells(&self) -> bool {
        !(self.all_devices.is_empty() && self.devices.is_empty())
    }

    fn tell_nothing(&mut self) {
        let of_devices = self
            .devices
            .iter_mut()
            .flat_map(|device| &mut device.changes);
        for change in self.all_devices.iter_mut().chain(of_devices) {
            change.change = None;
            change.untold = Some(LOST);
        }
    }
}

/// How a change is counted.
#[derive(Clone, Copy)]
enum In {
    /// Hundredths of what it was.
    Hundredths,
    /// Points of a share.
    Points,
}

impl Change {
    /// A change in hundredths; `absent` is why a number is not known.
    fn relative(what: &'static str, numbers: [Option<Figure>; 2], absent: &'static str) -> Self {
        Self::counted(In::Hundredths, what, numbers, absent)
    }

    /// A change in points.
    fn points(what: &'static str, numbers: [Option<Figure>; 2], absent: &'static str) -> Self {
        Self::counted(In::Points, what, numbers, absent)
    }

    fn counted(
        unit: In,
        what: &'static str,
        [before, after]: [Option<Figure>; 2],
        absent: &'static str,
    ) -> Self {
        let change = match before.zip(after) {
            None => Err(absent),
            Some((before, after)) => change(unit, before, after),
        };
        Self {
            what,
            less_is_better: false,
            before,
            after,
            change: change.ok(),
            untold: change.err(),
        }
    }

    fn less_is_better(self) -> Self {
        Self {
            less_is_better: true,
            ..self
        }
    }

    /// Of numbers that mean different things, which it says.
    fn untold(self, why: &'static str) -> Self {
        Self {
            change: None,
            untold: Some(why),
            ..self
        }
    }
}

fn change(unit: In, before: Figure, after: Figure) -> Result<Figure, &'static str> {
    let (was, is) = (in_ns(before), in_ns(after));
    let (value, unit) = match unit {
        In::Points => (is - was, Unit::PointsChange),
        In::Hundredths if was == is => (0.0, Unit::PercentChange),
        In::Hundredths if was == 0.0 => return Err("it was 0"),
        In::Hundredths => (100.0 * (is / was - 1.0), Unit::PercentChange),
    };
    Ok(Figure {
        value,
        unit,
        tag: before.tag,
    })
}

/// The value, of a time in nanoseconds: times have the unit that suits each.
fn in_ns(figure: Figure) -> f64 {
    figure.value
        * match figure.unit {
            Unit::Microseconds => 1e3,
            Unit::Milliseconds => 1e6,
            Unit::Seconds => 1e9,
            _ => 1.0,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_of_what_it_was_or_in_points() {
        let count = |value| Some(Figure::counted(value, Unit::Count));
        let rate = |before, after| Change::relative("x", [count(before), count(after)], "why");
        let text = |change: Change| change.change.map(|change| change.with_unit());
        assert_eq!(text(rate(200.0, 300.0)), Some("+50 %".into()));
        assert_eq!(text(rate(200.0, 50.0)), Some("-75 %".into()));
        assert_eq!(text(rate(0.0, 0.0)), Some("0 %".into()));
        assert_eq!(rate(0.0, 1.0).untold, Some("it was 0"));
        let absent = Change::relative("x", [None, count(1.0)], "why");
        assert_eq!((absent.change, absent.untold), (None, Some("why")));
        let times = [Some(Figure::time(8e6)), Some(Figure::time(12e6))];
        assert_eq!(times[0].unwrap().unit, Unit::Microseconds);
        assert_eq!(times[1].unwrap().unit, Unit::Milliseconds);
        assert_eq!(text(Change::relative("x", times, "")), Some("+50 %".into()));
        let share = |value| Some(Figure::counted(value, Unit::Percent));
        let points = |before, after| text(Change::points("x", [share(before), share(after)], ""));
        assert_eq!(points(40.0, 52.0), Some("+12 points".into()));
        assert_eq!(points(40.0, 39.5), Some("-0.5 points".into()));
    }
}
