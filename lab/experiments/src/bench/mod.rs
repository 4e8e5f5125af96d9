// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `cargo lab bench`: what map and unmap cost here.

pub(crate) mod arguments;
mod bounce;
mod json;
mod latency;
mod table;

use crate::Answer;
use crate::error::Error;
use crate::progress::{Bar, Progress};
use arguments::{BenchArguments, Part};
use ioatlas_bench::{
    plan::{plan, run as measure},
    summary::summary,
};

pub(crate) fn run(arguments: &BenchArguments) -> Answer {
    match &arguments.part {
        Some(Part::Bounce(arguments)) => return bounce::run(arguments),
        Some(Part::Latency(arguments)) => return latency::run(arguments),
        None => {}
    }
    let (extent, filter) = (arguments.extent(), arguments.filter());
    let groups = plan(extent, &filter);
    if groups.is_empty() {
        return Error::NoRows.into();
    }
    let bar = Bar::default();
    let rows = measure(extent, &groups, |spec, done| {
        bar.at(&spec.to_string(), done, groups.len());
    });
    Answer::show(&json::objects(&rows), arguments.json, |_| {
        table::text(&summary(&rows, &filter), &rows)
    })
}
