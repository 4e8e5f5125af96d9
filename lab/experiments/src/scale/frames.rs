// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! ATC'15 figure 6 on simulated CPUs: page-table frames over repetitions of request-response in one
//! domain.
//!
//! Each repetition is short: rings are filled and taken back, and the background drifts on. What is
//! flat and what grows: [`crate::growth`].

use super::{
    plan::{self, Extent},
    points::in_parallel,
    rows::Row,
};
use crate::error::Error;
use crate::growth::{ALMOST_LINEAR, Growth};
use crate::progress::Progress;
use crate::stated::Kind;
use ioatlas_sim::timing::{
    Cycles, Params, Span, Topology,
    workload::{Driver, Scenario, System, Workload},
};
use serde::Serialize;

const REPETITIONS: usize = 100;
/// As in the paper.
const CPUS: usize = 16;
/// Half as many take a third of the time. Other shapes come of it, so rows say how many there were:
/// magazines, which still grow late on 16, are flat on 8; on 4, kmalloc is not almost linear.
const CPUS_QUICK: usize = 8;
/// Of a repetition, the filling of the rings included. Not long enough that 16 CPUs have taken all
/// that they hold later within the first half of all.
const LENGTH: Cycles = Cycles::from_us(2000);
/// In the paper's order, and then ours.
const DESIGNS: [&str; 5] = [
    "eiovar,deferred-percpu",
    "magazine,deferred-percpu",
    "identity,deferred-percpu",
    "kmalloc,deferred-percpu",
    "magazine,deferred-percpu,reclaim=emptied",
];

/// Names of the results on 16 CPUs, and on fewer.
pub(super) const FLAT: [&str; 2] = [
    "EiovaR and magazine, 16 CPUs, page tables: late growth in 100 repetitions",
    "EiovaR and magazine, 8 CPUs, page tables: late growth in 100 repetitions",
];
const LINEAR: [&str; 2] = [
    "kmalloc, 16 CPUs, page tables: late growth to early in 100 repetitions",
    "kmalloc, 8 CPUs, page tables: late growth to early in 100 repetitions",
];

/// A series. `ScaleArguments` documents the fields.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Frames {
    pub design: &'static str,
    pub cpus: usize,
    /// Before the first repetition and after each.
    pub frames: Vec<u64>,
}

/// Runs the designs of figure 6, on `jobs` threads.
///
/// # Errors
/// The first that could not be run, by name.
pub(crate) fn measure(
    extent: Extent,
    params: &Params,
    seed: u64,
    jobs: usize,
    progress: &dyn Progress,
) -> Result<Vec<Frames>, Error> {
    let cpus = match extent {
        Extent::Full => CPUS,
        Extent::Quick => CPUS_QUICK,
    };
    let mut behind = 0;
    let run = |at: usize| {
        let scenario = Scenario {
            system: System::Design(plan::design(DESIGNS[at])),
            workload: Workload::RequestResponse,
            driver: Driver::default(),
            topology: Topology::of_eights(cpus),
            span: Span::fixed(Cycles(0), LENGTH),
            seed,
        };
        scenario.iterate(params, REPETITIONS)
    };
    let all = in_parallel(DESIGNS.len(), jobs, run, |_| {
        behind += 1;
        progress.at("page tables over repetitions", behind, DESIGNS.len());
    });
    let all = DESIGNS.into_iter().zip(all);
    all.map(|(design, iterations)| {
        let iterations = iterations.map_err(|error| Error::Simulation {
            point: format!("{design}, {REPETITIONS} repetitions, {cpus} CPUs"),
            detail: error.to_string(),
        })?;
        Ok(Frames {
            design,
            cpus,
            frames: iterations.frames.iter().map(|n| *n as u64).collect(),
        })
    })
    .collect()
}

/// The paper's two results.
pub(crate) fn rows(all: &[Frames]) -> Vec<Row> {
    let growth = |allocator: &str| {
        let of = |series: &&Frames| series.design.split(',').next() == Some(allocator);
        all.iter().find(of).map(|series| Growth::of(&series.frames))
    };
    let fewer = all.iter().any(|series| series.cpus < CPUS);
    let row = |names: [&'static str; 2], paper, (low, high), ours, unit, in_range| Row {
        name: names[usize::from(fewer)],
        paper,
        stated: None,
        low,
        high,
        ours,
        ratio: None,
        unit,
        kind: Kind::Predicted,
        in_range,
        section: "6.1, figure 6",
    };
    let mut rows = Vec::new();
    if let (Some(eiovar), Some(magazine)) = (growth("eiovar"), growth("magazine")) {
        let late = |growth: Growth| 100.0 * growth.late as f64 / growth.last.max(1) as f64;
        // one table is forgiven, which may be more
        let forgiven = |growth: Growth| 100.0 / growth.last.max(1) as f64;
        let most = 1f64.max(forgiven(eiovar).max(forgiven(magazine)).ceil());
        rows.push(row(
            FLAT,
            "flat",
            (0.0, most),
            late(eiovar).max(late(magazine)).max(0.0),
            "% of all",
            eiovar.is_flat() && magazine.is_flat(),
        ));
    }
    if let Some(kmalloc) = growth("kmalloc") {
        let steadiness = kmalloc.steadiness().unwrap_or(0.0);
        rows.push(row(
            LINEAR,
            "almost linear",
            (ALMOST_LINEAR, 1.0 / ALMOST_LINEAR),
            steadiness,
            "times",
            (ALMOST_LINEAR..=1.0 / ALMOST_LINEAR).contains(&steadiness),
        ));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_range(eiovar: impl Fn(u64) -> u64, kmalloc: impl Fn(u64) -> u64) -> Vec<bool> {
        let series = |design, of: &dyn Fn(u64) -> u64| Frames {
            design,
            cpus: CPUS,
            frames: (0..=100).map(of).collect(),
        };
        let all = [
            series(DESIGNS[0], &eiovar),
            series(DESIGNS[1], &|_| 20),
            series(DESIGNS[3], &kmalloc),
        ];
        rows(&all).iter().map(|row| row.in_range).collect()
    }

    #[test]
    fn rows_follow_from_the_series() {
        assert_eq!(in_range(|_| 20, |n| 20 + 3 * n), [true, true]);
        assert_eq!(in_range(|n| 20 + n, |_| 20), [false, false]);
        assert_eq!(in_range(|_| 20, |n| 20 + n.min(40)), [true, false]);
        assert!(rows(&[]).is_empty());
    }
}
