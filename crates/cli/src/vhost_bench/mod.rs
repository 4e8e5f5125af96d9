// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `ioatlas vhost-bench`: drives a back end, and prints what came back.

pub(crate) mod arguments;

use crate::Answer;
use crate::progress::Spinner;
use arguments::VhostBenchArguments;
use ioatlas_present::{columns, grouped};
use ioatlas_vhost_bench::{Bench, BenchError, Found, Report};
use serde::Serialize;

/// What was found: one rate, or the highest.
#[derive(Serialize)]
#[serde(untagged)]
enum Outcome {
    Rate(Report),
    Search(Found),
}

impl Outcome {
    fn report(&self) -> &Report {
        match self {
            Outcome::Rate(report) => report,
            Outcome::Search(found) => &found.best,
        }
    }
}

pub(crate) fn run(arguments: &VhostBenchArguments) -> Answer {
    let mut errors = Vec::new();
    let outcome = match drive(arguments) {
        Ok(outcome) => Some(outcome),
        Err(error) => {
            let counted = match &error {
                BenchError::Corrupt { report, .. } => Some(Outcome::Rate(**report)),
                _ => None,
            };
            errors.push(error.into());
            counted
        }
    };
    let show = |outcome| Answer::show(&outcome, arguments.json, plain);
    let mut answer = outcome.map(show).unwrap_or_default();
    answer.errors.append(&mut errors);
    answer
}

fn drive(arguments: &VhostBenchArguments) -> Result<Outcome, BenchError> {
    let _spinner = Spinner::new(match arguments.loss {
        Some(_) => "looking for the highest rate",
        None => "sending frames",
    });
    let mut bench = Bench::connect(&arguments.socket(), arguments.config())?;
    let outcome = match arguments.loss {
        Some(tolerated) => Outcome::Search(bench.search(tolerated, arguments.length())?),
        None => Outcome::Rate(bench.run(arguments.length(), arguments.pace())?),
    };
    bench.stop()?;
    Ok(outcome)
}

fn plain(outcome: &Outcome) -> String {
    let report = outcome.report();
    let (messages, trips) = (&report.messages, &report.round_trips);
    let mut rows = vec![vec![
        "frames a second".to_string(),
        grouped(report.frames_per_second as u64),
    ]];
    let mut row = |name: &str, value: String| rows.push(vec![name.to_string(), value]);
    if let Some(offered) = report.offered_per_second {
        row("offered a second", grouped(offered as u64));
    }
    row("frames sent", grouped(report.frames_sent));
    row("frames returned", grouped(report.frames_returned));
    row("frames corrupt", grouped(report.frames_corrupt));
    let lost = grouped(report.frames_lost);
    let translation = grouped(report.frames_lost_for_translation);
    row(
        "frames lost",
        format!("{lost}, {translation} of them while a translation was asked for"),
    );
    row("frames refused", grouped(report.frames_refused));
    row("loss", format!("{:.4} %", report.loss() * 100.0));
    row(
        "misses",
        format!(
            "{}, {} for what is not mapped",
            grouped(messages.misses),
            grouped(messages.unresolved)
        ),
    );
    row("updates", grouped(messages.updates));
    row("invalidations", grouped(messages.invalidations));
    let us = |ns: u64| ns as f64 / 1000.0;
    row(
        "acknowledged after",
        match trips.count {
            0 => "-".into(),
            _ => format!(
                "{:.1} us (median), {:.1} us (99 of 100), {:.1} us at most",
                us(trips.median_ns),
                us(trips.p99_ns),
                us(trips.max_ns)
            ),
        },
    );
    if report.warm_up_lost > 0 {
        row("lost in the warm-up", grouped(report.warm_up_lost));
    }
    let mut lines = columns("l", 2, &rows);
    if let Outcome::Search(found) = outcome {
        lines.push(String::new());
        lines.push(format!(
            "the highest of {} rates tried at which at most {:.4} % are lost",
            found.tried.len(),
            found.tolerated_loss * 100.0
        ));
    }
    lines.join("\n") + "\n"
}
