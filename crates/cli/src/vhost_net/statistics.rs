// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a back end has done, for people and programs.

use super::arguments::{How, VhostNetArguments};
use ioatlas_present::{Table, columns, grouped};
use ioatlas_vhost::runner::RunnerStats;
use ioatlas_vhost_net::{Mode, PairStats};
use serde::Serialize;
use std::time::Duration;

/// What was asked for.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Shown {
    iotlb: &'static str,
    mode: String,
    wakeup: &'static str,
    queue_pairs: u16,
}

impl Shown {
    pub fn new(arguments: &VhostNetArguments, iotlb: &'static str) -> Self {
        Shown {
            iotlb,
            mode: match &arguments.mode {
                Mode::Loopback => "loopback".into(),
                Mode::MacSwap => "macswap".into(),
                Mode::Tap(name) => format!("tap={name}"),
            },
            wakeup: match arguments.wakeup {
                How::Notify => "notify",
                How::Poll => "poll",
            },
            queue_pairs: arguments.queue_pairs,
        }
    }
}

/// Everything. `VhostNetArguments` documents the fields.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Statistics {
    #[serde(flatten)]
    shown: Shown,
    seconds: f64,
    connections: u64,
    hits: u64,
    misses: u64,
    questions: Questions,
    updates: u64,
    refused_updates: u64,
    runs: u64,
    evictions: u64,
    invalidations: u64,
    acknowledgement_us: Option<Latency>,
    pairs: Vec<Frames>,
}

/// Misses on their way to the front end.
#[derive(Clone, Debug, Serialize)]
struct Questions {
    sent: u64,
    deduplicated: u64,
    postponed: u64,
    unanswered: u64,
    in_flight: u64,
    most_in_flight: u64,
    access_failures: u64,
}

#[derive(Clone, Debug, Serialize)]
struct Latency {
    mean: f64,
    max: f64,
}

/// Frames of one queue pair.
#[derive(Clone, Debug, Serialize)]
struct Frames {
    transmitted: u64,
    received: u64,
    received_bytes: u64,
    too_long: u64,
    too_short: u64,
    tap_dropped: u64,
    hits: u64,
    misses: u64,
    since_miss: u64,
    bursts: u64,
    calls: u64,
    stopped: u64,
}

impl Statistics {
    pub fn new(of: &Shown, elapsed: Duration, runner: &RunnerStats, pairs: &[PairStats]) -> Self {
        let (control, misses) = (&runner.control, &runner.misses);
        let mut sum = PairStats::default();
        pairs.iter().for_each(|pair| sum += *pair);
        let us = |ns: u64| ns as f64 / 1000.0;
        Statistics {
            shown: of.clone(),
            seconds: elapsed.as_secs_f64(),
            connections: control.connections,
            hits: sum.hits,
            misses: sum.missed,
            questions: Questions {
                sent: misses.sent,
                deduplicated: misses.deduplicated,
                postponed: misses.postponed,
                unanswered: misses.unanswered,
                in_flight: misses.in_flight as u64,
                most_in_flight: misses.most_in_flight as u64,
                access_failures: misses.access_failures,
            },
            updates: control.updates,
            refused_updates: control.refused,
            runs: runner.cache.runs,
            evictions: runner.cache.evictions,
            invalidations: control.invalidations,
            acknowledgement_us: (control.invalidations > 0).then(|| Latency {
                mean: us(control.acknowledging.0) / control.invalidations as f64,
                max: us(control.slowest_acknowledgement.0),
            }),
            pairs: pairs.iter().map(Frames::of).collect(),
        }
    }

    /// The line while it runs.
    pub fn since(&self, before: &Statistics) -> String {
        let frames = |all: &Statistics| -> u64 {
            all.pairs
                .iter()
                .map(|pair| pair.transmitted + pair.received)
                .sum()
        };
        let seconds = (self.seconds - before.seconds).max(1e-3);
        let rate = frames(self).saturating_sub(frames(before)) as f64 / seconds;
        format!(
            "{} frames/s, {} frames; {} hits, {} misses, {} in flight, {} evictions",
            grouped(rate as u64),
            grouped(frames(self)),
            grouped(self.hits),
            grouped(self.misses),
            grouped(self.questions.in_flight),
            grouped(self.evictions),
        )
    }

    /// The table at the end.
    pub fn plain(&self) -> String {
        let questions = &self.questions;
        let stopped: u64 = self.pairs.iter().map(|pair| pair.stopped).sum();
        let latency = match &self.acknowledgement_us {
            None => "-".into(),
            Some(latency) => format!("{:.1} us mean, {:.1} us max", latency.mean, latency.max),
        };
        let row = |name: &str, value: String| vec![name.to_string(), value];
        let rows = [
            row("device IOTLB", self.shown.iotlb.into()),
            row("connections", grouped(self.connections)),
            row("hits", grouped(self.hits)),
            row("misses", grouped(self.misses)),
            row(
                "questions",
                format!(
                    "{} sent, {} under way already, {} unanswered",
                    grouped(questions.sent),
                    grouped(questions.deduplicated),
                    grouped(questions.unanswered)
                ),
            ),
            row(
                "in flight",
                format!(
                    "{} now, {} at most",
                    grouped(questions.in_flight),
                    grouped(questions.most_in_flight)
                ),
            ),
            row(
                "updates",
                format!(
                    "{}, {} refused",
                    grouped(self.updates),
                    grouped(self.refused_updates)
                ),
            ),
            row("evictions", grouped(self.evictions)),
            row("invalidations", grouped(self.invalidations)),
            row("acknowledged after", latency),
            row("queues stopped", grouped(stopped)),
        ];
        let mut lines = columns("l", 2, &rows);
        lines.push(String::new());
        let mut table = Table::new([
            "pair",
            "from guest",
            "to guest",
            "bytes",
            "dropped",
            "calls",
        ])
        .aligned("r");
        for (number, pair) in self.pairs.iter().enumerate() {
            let dropped = pair.too_long + pair.too_short + pair.tap_dropped;
            let counts = [
                number as u64,
                pair.transmitted,
                pair.received,
                pair.received_bytes,
                dropped,
                pair.calls,
            ];
            table.row(counts.map(grouped));
        }
        lines.extend(table.lines());
        lines.join("\n") + "\n"
    }
}

impl Frames {
    fn of(pair: &PairStats) -> Self {
        Frames {
            transmitted: pair.transmitted,
            received: pair.received,
            received_bytes: pair.received_bytes,
            too_long: pair.too_long,
            too_short: pair.too_short,
            tap_dropped: pair.tap_dropped,
            hits: pair.hits,
            misses: pair.missed,
            since_miss: pair.since_miss,
            bursts: pair.bursts,
            calls: pair.calls,
            stopped: pair.stopped,
        }
    }
}
