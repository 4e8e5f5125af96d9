// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `ioatlas iotlb --sweep`: many points on a trace, as JSON, CSV and heat maps.

use super::{heat, simulate};
use crate::Answer;
use crate::args::IotlbArguments;
use crate::capture::{Noted, noted_of};
use crate::error::Error;
use crate::info::ByName;
use crate::output::Target;
use crate::progress::{Bar, Part};
use ioatlas_iotlb::{Grid, Outcome, Point, Setup};
use ioatlas_present::{Table, grouped, printable};
use serde::Serialize;
use std::fmt::Write as _;

/// Rows of the table for people; files have all.
const SHOWN: usize = 20;

/// A point and what it gives.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub entries: usize,
    pub ways: usize,
    pub prefetch_entries: usize,
    pub page: String,
    /// As swept over; `strategy` of the outcome has the page size in it.
    #[serde(skip)]
    pub named: String,
    #[serde(flatten)]
    pub outcome: Noted<Outcome>,
}

/// A sweep over one trace.
#[derive(Debug, Serialize)]
struct Sweep {
    points: Vec<Row>,
    /// Points that no IOTLB or strategy can have.
    skipped: usize,
}

pub(super) fn run(arguments: &IotlbArguments, grid: &Grid, setups: &[Setup]) -> Answer {
    sweep(arguments, grid, setups).into()
}

fn sweep(arguments: &IotlbArguments, grid: &Grid, setups: &[Setup]) -> Result<Answer, Error> {
    let (points, skipped) = grid.points(setups)?;
    let prepare = |path: &Option<_>| path.as_deref().map(Target::prepare).transpose();
    let (csv, plot) = (prepare(&arguments.csv)?, prepare(&arguments.plot)?);
    for target in [&csv, &plot].into_iter().flatten() {
        target.is_none_of(&arguments.traces)?;
    }
    let setups: Vec<Setup> = points.iter().map(|point| point.setup.clone()).collect();
    let (mut results, mut errors) = (Vec::new(), Vec::new());
    let bar = Bar::default();
    for (n, path) in arguments.traces.iter().enumerate() {
        let part = Part::of(&bar, n, arguments.traces.len());
        match simulate(path, &arguments.capture, &setups, arguments.jobs(), &part) {
            Ok(outcomes) => {
                let rows = points.iter().zip(outcomes).map(row);
                let points = rows.collect();
                results.push((path.display().to_string(), Sweep { points, skipped }));
            }
            Err(error) => errors.push(error),
        }
    }
    drop(bar);
    if errors.is_empty() {
        if let Some(target) = csv {
            target.replace(|file| file.write_all(self::csv(&results).as_bytes()))?;
        }
        if let Some(target) = plot {
            let traces: Vec<_> = results
                .iter()
                .map(|(name, sweep)| (name.as_str(), sweep.points.as_slice()))
                .collect();
            let drawing = heat::file(&traces);
            target.replace(|file| file.write_all(drawing.as_bytes()))?;
        }
    }
    let text = if arguments.json {
        ByName::new(&results, arguments.traces.len()).json(&mut errors)
    } else {
        plain(&results)
    };
    Ok(Answer { text, errors })
}

fn row((point, outcome): (&Point, Noted<Outcome>)) -> Row {
    Row {
        entries: point.setup.geometry.entries(),
        ways: point.setup.geometry.ways(),
        prefetch_entries: point.setup.buffer_entries(),
        page: point.page.to_string(),
        named: point.strategy.to_string(),
        outcome,
    }
}

fn csv(results: &[(String, Sweep)]) -> String {
    let mut table = Table::new([
        "trace",
        "strategy",
        "page",
        "entries",
        "ways",
        "prefetch_entries",
        "accesses",
        "hits",
        "prefetch_hits",
        "misses",
        "faults",
        "miss_rate",
        "prefetches",
        "useful_prefetches",
        "evictions",
        "invalidations",
        "memory_reads",
        "reads_per_access",
        "prefetch_reads",
    ]);
    for (name, sweep) in results {
        for row in &sweep.points {
            let o = &row.outcome.result;
            table.row([
                name.clone(),
                o.strategy.clone(),
                row.page.clone(),
                row.entries.to_string(),
                row.ways.to_string(),
                row.prefetch_entries.to_string(),
                o.accesses.to_string(),
                o.hits.to_string(),
                o.prefetch_hits.to_string(),
                o.misses.to_string(),
                o.faults.to_string(),
                o.miss_rate.to_string(),
                o.prefetches.to_string(),
                o.useful_prefetches.to_string(),
                o.evictions.to_string(),
                o.invalidations.to_string(),
                o.memory_reads.to_string(),
                o.reads_per_access.to_string(),
                o.prefetch_reads.to_string(),
            ]);
        }
    }
    table.csv()
}

/// The best points of each trace.
fn plain(results: &[(String, Sweep)]) -> String {
    let mut text = String::new();
    for (name, sweep) in results {
        let _ = writeln!(
            text,
            "{}: {} points, {} impossible and skipped; fewest misses first",
            printable(name, 60),
            grouped(sweep.points.len() as u64),
            grouped(sweep.skipped as u64)
        );
        let mut best: Vec<&Row> = sweep.points.iter().collect();
        best.sort_by_key(|row| (row.outcome.result.misses, row.entries, row.ways));
        let mut table = Table::new([
            "strategy",
            "entries",
            "ways",
            "prefetch",
            "misses",
            "miss rate",
        ])
        .aligned("lr");
        for row in best.iter().take(SHOWN) {
            table.row([
                row.outcome.result.strategy.clone(),
                row.entries.to_string(),
                row.ways.to_string(),
                row.prefetch_entries.to_string(),
                grouped(row.outcome.result.misses),
                format!("{:.4}", row.outcome.result.miss_rate),
            ]);
        }
        text += &table.text("  ");
        text += &noted_of(name, best.first().map(|row| &row.outcome));
        if best.len() > SHOWN {
            let _ = writeln!(
                text,
                "  .. {} more; --json or --csv has all",
                best.len() - SHOWN
            );
        }
    }
    text
}
