// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `cargo lab bench latency`: what batches are worth under a unit that takes its time.

use crate::Answer;
use clap::Args;
use ioatlas_bench::{
    Effort, Row, Spread,
    latency::{LATENCY, Latency, THREADS, per_second},
};
use ioatlas_present::{Table, rounded};
use serde::Serialize;
use std::time::Duration;

/// Measure strict one by one, strict by batches of 16, and deferred, under a unit that answers 1 us
/// after it has taken a request.
///
/// Two threads share a domain (magazine) on the software unit, whose driver and queue are the real
/// ones; each has a ring of 256 single pages. The unit does its work on the thread that asks, as
/// ever, and says "done" 1 us later by the clock, to one request after the other: there is no
/// thread of the unit, which would take a CPU of those that map. A batch is one request. Figures
/// are medians of slices of about 1 ms in turns; ratios are medians of the same rounds. It takes at
/// most 20 seconds or so, on a busy machine.
///
/// JSON: an object. `latency_ns`; `threads`; `rows`: an array (name, ns_per_pair: of each thread,
/// median, ns_p10, ns_p90, per_second: of all threads, times_strict, times_deferred: the rate by
/// that of strict one by one and of deferred, mode: near, far, slices: how many count, reason: why
/// figures are null, or null); `wanted`: what batches are to be times strict; `reached`: whether
/// they are, or null where it was not measured.
#[derive(Args, Debug)]
pub(crate) struct LatencyArguments {
    /// Fewer slices.
    #[arg(long)]
    pub quick: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `LatencyArguments` documents the fields.
#[derive(Debug, Serialize)]
struct Object {
    latency_ns: u64,
    threads: usize,
    rows: Vec<Line>,
}

#[derive(Debug, Serialize)]
struct Line {
    name: String,
    ns_per_pair: Option<f64>,
    ns_p10: Option<f64>,
    ns_p90: Option<f64>,
    per_second: Option<f64>,
    times_strict: Option<f64>,
    times_deferred: Option<f64>,
    mode: Option<&'static str>,
    slices: usize,
    reason: Option<String>,
}

impl Line {
    fn of(latency: &Latency, name: String, row: &Row) -> Self {
        let figure = row.figure.as_ref().ok();
        let ns = figure.map(|figure| figure.ns);
        let median = |spread: Option<Spread>| spread.map(|spread| spread.median);
        Line {
            name,
            ns_per_pair: median(ns),
            ns_p10: ns.map(|ns| ns.low),
            ns_p90: ns.map(|ns| ns.high),
            per_second: per_second(row),
            times_strict: median(latency.by_strict(row)),
            times_deferred: median(latency.by_deferred(row)),
            mode: figure.and_then(|figure| Some(figure.mode?.name())),
            slices: figure.map_or(0, |figure| figure.slices.len()),
            reason: row.figure.as_ref().err().map(ToString::to_string),
        }
    }
}

pub(super) fn run(arguments: &LatencyArguments) -> Answer {
    let effort = match arguments.quick {
        true => Effort::QUICK,
        false => Effort {
            slices: 61,
            patience: Duration::from_secs(20),
            ..Effort::FULL
        },
    };
    let latency = Latency::measure(effort);
    let rows = latency.rows().into_iter();
    let object = Object {
        latency_ns: u64::try_from(LATENCY.as_nanos()).unwrap_or(u64::MAX),
        threads: THREADS,
        rows: rows
            .map(|(name, row)| Line::of(&latency, name, row))
            .collect(),
    };
    Answer::show(&object, arguments.json, text)
}

fn text(object: &Object) -> String {
    let mut table = Table::new([
        "",
        "ns a pair",
        "p10",
        "p90",
        "million/s",
        "times strict",
        "of deferred",
        "mode",
        "slices",
    ])
    .aligned("lrrrrrrlr");
    for line in &object.rows {
        table.row([
            line.name.clone(),
            rounded(line.ns_per_pair, 1),
            rounded(line.ns_p10, 1),
            rounded(line.ns_p90, 1),
            rounded(line.per_second.map(|rate| rate / 1e6), 2),
            rounded(line.times_strict, 2),
            rounded(line.times_deferred, 2),
            line.mode.unwrap_or("-").into(),
            line.slices.to_string(),
        ]);
    }
    let mut text = format!(
        "{} threads, one serial unit that answers after {} ns; a pair is a map and its unmap\n",
        object.threads, object.latency_ns
    );
    text += &table.text("");
    let reasons = object.rows.iter();
    let reasons = reasons.filter_map(|line| Some((&line.name, line.reason.as_ref()?)));
    reasons.for_each(|(name, why)| text += &format!("{name}: {why}\n"));
    text
}
