// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `cargo lab scale strict`: strict invalidation that scales, line by line.

mod devices;
mod expected;
mod lines;
mod plain;

use super::{
    arguments::SEED,
    jobs,
    plan::CpuCounts,
    points::{Parts, in_parallel},
};
use crate::Answer;
use crate::error::Error;
use crate::progress::{Bar, Progress};
use crate::stated::Stated;
use clap::Args;
use devices::Devices;
use expected::{PAGE_SHARE, STATEMENTS};
use ioatlas_sim::timing::{CacheLog, Params, workload::Outcome};
use lines::{HEAVY, LIGHT, Line, Planned, grid};
use serde::Serialize;
use std::{num::NonZero, sync::Arc};

/// Strict that scales: request-response on 16, 32 and 64 simulated CPUs, one unmap at a time, in
/// batches, from chunks, combined, and deferred, as parts of no IOMMU.
///
/// Two unmaps a transaction. A batch of k is a server that reaps k completions, unmaps them by one
/// call, and then works on what came. An invalidation takes the unit d + p + w = 2,127 cycles;
/// which part of it is the page (p) and how long a domain's takes (g) no source says, so both are
/// varied. "Page by page" the unit's driver never takes a domain's instead of pages; otherwise it
/// is told what both cost, and takes the cheaper. IOVAs are scattered, as where a system has run
/// for long; "fresh" are those of a new domain, most of a batch of which adjoin, page by page.
/// "Chunks of 16": each ring maps into chunks of 16 pages, and ends 16 completions of its own by
/// one call. "Combining": requests of CPUs that come while the unit is at work are one. What is
/// expected of each point was written down before the first run. The same options give the same
/// output, to the byte.
///
/// JSON: an object. `points`: one object each (line, cpus, work: cycles of a transaction outside of
/// the mapping code, page_share: p by p + w, domain_cost: g by p, or null where it is of no
/// consequence, per_second, relative to no IOMMU, uncertainty: half the width of the interval that
/// holds per_second with 95 % confidence, as a part of it, low and high: what was expected of
/// relative, and in_range, null where nothing was, cycles: parts of all cycles (iova, iova_lock,
/// invalidation: waiting for the unit included, invalidation_lock, tables, other, outside),
/// devices: what accesses of devices cost, of an IOTLB of 32 entries (small) and of 4096 (large),
/// in the mean of an access: misses, and reads of page-table entries), those without an IOMMU
/// first; `statements`: what was stated of points with p = w (line, cpus, domain_cost, work,
/// stated, low, high, ours, in_range).
#[derive(Args, Debug)]
pub(crate) struct StrictArguments {
    /// 4 CPUs, one p and two g.
    #[arg(long)]
    pub quick: bool,
    /// These numbers of CPUs instead: 16, or 1-16, or 3,7,11.
    #[arg(long, value_name = "N,M-K", value_parser = CpuCounts::parse, conflicts_with = "quick")]
    pub cpus: Option<CpuCounts>,
    /// Only this line; repeat for several.
    #[arg(long, value_name = "NAME", value_parser = line)]
    pub line: Vec<&'static str>,
    /// Where the workload's variations come from.
    #[arg(long, default_value_t = SEED)]
    pub seed: u64,
    /// Threads to simulate on; all CPUs by default. The output does not depend on it.
    #[arg(long, value_name = "N")]
    pub jobs: Option<NonZero<usize>>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

pub(crate) use lines::{LINES, is_drawn};

/// Everything. `StrictArguments` documents the fields.
#[derive(Debug, Serialize)]
struct Strict {
    points: Vec<Point>,
    statements: Vec<Said>,
}

/// A point. `StrictArguments` documents the fields.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Point {
    pub line: &'static str,
    pub cpus: usize,
    pub work: u64,
    pub page_share: Option<f64>,
    pub domain_cost: Option<u64>,
    pub per_second: f64,
    pub relative: f64,
    pub uncertainty: f64,
    pub low: Option<f64>,
    pub high: Option<f64>,
    pub in_range: Option<bool>,
    pub cycles: Parts,
    pub devices: Option<Devices>,
}

#[derive(Debug, Serialize)]
struct Said {
    line: &'static str,
    cpus: usize,
    domain_cost: u64,
    work: u64,
    stated: f64,
    low: f64,
    high: f64,
    ours: f64,
    in_range: bool,
}

/// What is compared with.
pub(crate) const NO_IOMMU: &str = "no IOMMU";

impl Point {
    fn of(
        planned: &Planned,
        params: &Params,
        (outcome, devices): (&Outcome, Devices),
        base: f64,
    ) -> Self {
        let run = &outcome.run;
        let relative = run.throughput() / base;
        let Planned {
            line, cpus, unit, ..
        } = *planned;
        let expected = line.and_then(|line| expected::range(line, planned, params));
        Point {
            line: line.map_or(NO_IOMMU, |line| line.name),
            cpus,
            work: planned.work,
            page_share: line.map(|_| unit.page_share as f64 / 1000.0),
            domain_cost: line
                .filter(|line| line.asks_for_domains())
                .map(|_| unit.domain_cost),
            per_second: run.throughput(),
            relative,
            uncertainty: run.uncertainty(),
            low: expected.map(|Stated { low, .. }| low),
            high: expected.map(|Stated { high, .. }| high),
            in_range: expected.map(|range| range.has(relative)),
            cycles: Parts::of(&run.account()),
            devices: line.map(|_| devices),
        }
    }
}

/// A line by its name.
fn line(name: &str) -> Result<&'static str, String> {
    let mut names = LINES.iter().map(|line| line.name);
    names.find(|known| *known == name).ok_or_else(|| {
        let names: Vec<_> = LINES.iter().map(|line| line.name).collect();
        format!("no such line; there are: {}", names.join("; "))
    })
}

pub(super) fn run(arguments: &StrictArguments) -> Answer {
    let asked = &arguments.line;
    let wanted = |line: &Line| asked.is_empty() || asked.contains(&line.name);
    let plan = match arguments.quick {
        true => grid(wanted, LIGHT, &[4], &[500], &[1, 8]),
        false => {
            let (cpus, loaded) = match &arguments.cpus {
                None => (&[16, 32, 64][..], &[16, 32][..]),
                Some(counts) => (counts.all(), counts.all()),
            };
            let light = grid(wanted, LIGHT, cpus, &[100, 500, 900], &[1, 2, 4, 8]);
            let heavy = grid(wanted, HEAVY, loaded, &[500], &[1, 8]);
            [light, heavy].concat()
        }
    };
    let jobs = jobs(arguments.jobs);
    let points = measure(&plan, arguments.seed, jobs, &Bar::default());
    let show = |points: Vec<Point>| {
        let statements = said(&points);
        let strict = Strict { points, statements };
        Answer::show(&strict, arguments.json, plain::plain)
    };
    points.map(show).into()
}

/// Every line that is drawn on 1 to 64 CPUs, where p is as long as w, for each g of `costs`, by p.
///
/// # Errors
/// A sentence: a point could not be measured.
pub(crate) fn curves(costs: &[u64], progress: &dyn Progress) -> Result<Vec<Point>, String> {
    let plan = grid(is_drawn, LIGHT, &[1, 2, 4, 8, 16, 32, 64], &[500], costs);
    measure(&plan, SEED, jobs(None), progress).map_err(|error| error.to_string())
}

fn measure(
    plan: &[Planned],
    seed: u64,
    jobs: usize,
    progress: &dyn Progress,
) -> Result<Vec<Point>, Error> {
    let shipped = Params::default();
    let mut behind = 0;
    let all = in_parallel(
        plan.len(),
        jobs,
        |at| {
            let params = plan[at].params(&shipped);
            let log = Arc::new(CacheLog::default());
            let outcome = plan[at].scenario(&params, seed).run_logged(&params, &log);
            (
                params,
                outcome.map(|outcome| (outcome, Devices::of(&log.take()))),
            )
        },
        |at| {
            behind += 1;
            let Planned { line, cpus, .. } = plan[at];
            let name = line.map_or(NO_IOMMU, |line| line.name);
            progress.at(&format!("{name} on {cpus} CPUs"), behind, plan.len());
        },
    );
    let (mut points, mut base) = (Vec::new(), f64::NAN);
    for (planned, (params, outcome)) in plan.iter().zip(all) {
        let (outcome, devices) = outcome.map_err(|error| Error::Simulation {
            point: format!("{planned:?}"),
            detail: error.to_string(),
        })?;
        if planned.line.is_none() {
            base = outcome.run.throughput();
        }
        points.push(Point::of(planned, &params, (&outcome, devices), base));
    }
    Ok(points)
}

/// What was stated of some of these points.
fn said(points: &[Point]) -> Vec<Said> {
    let of = |said: &expected::Statement| {
        let found = points.iter().find(|point| {
            (point.line, point.cpus, point.work) == (said.line, said.cpus, said.work)
                && point.page_share == Some(PAGE_SHARE as f64 / 1000.0)
                && point
                    .domain_cost
                    .is_none_or(|cost| cost == said.domain_cost)
        });
        let ours = found?.relative;
        Some(Said {
            line: said.line,
            cpus: said.cpus,
            domain_cost: said.domain_cost,
            work: said.work,
            stated: said.stated,
            low: said.range.low,
            high: said.range.high,
            ours,
            in_range: said.range.has(ours),
        })
    };
    STATEMENTS.iter().filter_map(of).collect()
}
