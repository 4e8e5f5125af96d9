// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `ioatlas trace info --assumption-error`: how wrong assumed accesses are.
//!
//! A trace with recorded accesses loses them, gets assumed ones, and what each strategy saves of
//! the baseline's misses is compared. The answer is for these traces; on others it cannot be known,
//! which is why they need the assumption.

use crate::Answer;
use crate::args::InfoArguments;
use crate::bundled;
use crate::progress::{Bar, Part};
use ioatlas_iotlb::import::Assume;
use ioatlas_iotlb::{Event, Laboratory, Named, Setup, Trace};
use ioatlas_present::{Table, printable};
use serde::Serialize;

/// The strategies that are compared with the baseline.
pub(crate) const STRATEGIES: [&str; 4] = ["alh", "sd-alh", "mpre", "alh+mpre"];

/// What a strategy saves on a trace: the fraction of the baseline's misses that it avoids.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Row {
    /// Name of the trace.
    pub trace: String,
    pub strategy: &'static str,
    /// By the accesses that were recorded.
    pub saving: f64,
    /// With one access to each streaming page just before its unmap.
    pub saving_at_unmap: f64,
    /// With one just after its map.
    pub saving_at_map: f64,
}

/// The rows of one trace; none if it has no accesses to compare with.
pub(crate) fn rows(trace: &Trace) -> Vec<Row> {
    let access = |event: &Event| matches!(event, Event::Access { .. });
    if !trace.events().iter().any(access) {
        return Vec::new();
    }
    let bare = trace.without_accesses();
    let at_unmap = savings(&bare.clone().with_assumed_accesses(Assume::Unmap));
    let at_map = savings(&bare.with_assumed_accesses(Assume::Map));
    let real = savings(trace);
    let names = STRATEGIES.into_iter().enumerate();
    let row = |(index, strategy)| Row {
        trace: trace.name().into(),
        strategy,
        saving: real[index],
        saving_at_unmap: at_unmap[index],
        saving_at_map: at_map[index],
    };
    names.map(row).collect()
}

/// The saving by each of [`STRATEGIES`]; 0 where nothing misses.
fn savings(trace: &Trace) -> Vec<f64> {
    let laboratory = Laboratory::new(trace);
    let misses = |name: &str| {
        let named: Result<Named, _> = name.parse();
        // all names are of this file, and a test parses them
        named.map_or(0, |named| laboratory.simulate(&Setup::of(named)).misses)
    };
    let baseline = misses("baseline");
    let saving = |name| match baseline {
        0 => 0.0,
        baseline => 1.0 - misses(name) as f64 / baseline as f64,
    };
    STRATEGIES.into_iter().map(saving).collect()
}

pub(crate) fn run(arguments: &InfoArguments) -> Answer {
    let (mut all, mut errors) = (Vec::new(), Vec::new());
    if arguments.traces.is_empty() {
        for sample in bundled::BASE.iter().chain(&bundled::VARIANTS) {
            match sample.load() {
                Ok(loaded) => all.extend(rows(&loaded.trace)),
                Err(error) => errors.push(error),
            }
        }
    }
    let bar = Bar::default();
    for (n, path) in arguments.traces.iter().enumerate() {
        let part = Part::of(&bar, n, arguments.traces.len());
        match arguments.capture.load(path, &part) {
            Ok(trace) => all.extend(rows(&trace)),
            Err(error) => errors.push(error),
        }
    }
    drop(bar);
    let mut answer = Answer::show(&all, arguments.json, |all| plain(all));
    errors.append(&mut answer.errors);
    Answer { errors, ..answer }
}

fn plain(rows: &[Row]) -> String {
    let mut table = Table::new([
        "trace",
        "strategy",
        "saves % of misses",
        "assumed at unmap",
        "points off",
        "assumed at map",
        "points off",
    ])
    .aligned("llr");
    let percent = |fraction: f64| format!("{:.1}", fraction * 100.0);
    let off = |assumed: f64, real: f64| format!("{:+.1}", (assumed - real) * 100.0);
    for row in rows {
        table.row([
            printable(&row.trace, 60),
            row.strategy.into(),
            percent(row.saving),
            percent(row.saving_at_unmap),
            off(row.saving_at_unmap, row.saving),
            percent(row.saving_at_map),
            off(row.saving_at_map, row.saving),
        ]);
    }
    table.text("")
}
