// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Measures points, several at a time, and puts each beside the one without an IOMMU.

use super::plan::Planned;
use crate::error::Error;
use crate::progress::Progress;
use ioatlas_sim::timing::{
    Account, Category, Cycles, DOUBLINGS, LineRun, Params, Span, Topology, Way,
    params::HZ,
    workload::{Driver, Outcome, Scenario, System, Workload},
};
use serde::Serialize;
use std::sync::{Mutex, PoisonError, mpsc};

/// Before anything is counted.
const WARM_UP: Cycles = Cycles::from_us(1000);
/// What is counted at the least.
const MEASURED: Cycles = Cycles::from_us(2000);
/// The longest that is counted.
pub(super) const LONGEST_MS: u64 = 1000 * (MEASURED.0 << DOUBLINGS) / HZ;
/// How well a point's throughput is to be known.
pub(super) const PRECISION: f64 = 0.01;
/// How many lines a point names.
const HOTTEST: usize = 10;

/// Parts of all cycles: the bars of ATC'15 figure 2.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Parts {
    /// IOVA allocation without its lock.
    pub iova: f64,
    /// Waiting for the allocator's lock.
    pub iova_lock: f64,
    /// Invalidation without its lock; waits for the unit are in it.
    pub invalidation: f64,
    /// Waiting for locks of invalidation.
    pub invalidation_lock: f64,
    /// Page tables, with waiting for their locks.
    pub tables: f64,
    /// The rest of mapping and unmapping.
    pub other: f64,
    /// Outside of the mapping code.
    pub outside: f64,
}

impl Parts {
    pub fn of(account: &Account) -> Self {
        let total = account.total().max(1) as f64;
        let lock = |category| account.get(category, Way::Lock) as f64 / total;
        let rest = |category| account.of(category) as f64 / total - lock(category);
        Parts {
            iova: rest(Category::Iova),
            iova_lock: lock(Category::Iova),
            invalidation: rest(Category::Invalidation),
            invalidation_lock: lock(Category::Invalidation),
            tables: rest(Category::Tables) + lock(Category::Tables),
            other: rest(Category::Other) + lock(Category::Other),
            outside: rest(Category::Outside) + lock(Category::Outside),
        }
    }
}

/// A line, as shown.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct HotLine {
    pub name: String,
    /// Transfers of the line an operation.
    pub transfers: f64,
    /// Cycles an operation that went into its transfers, waiting for others' included.
    pub cycles: f64,
}

/// A point. `ScaleArguments` documents the fields, by their names in JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Point {
    pub system: String,
    pub design: Option<String>,
    pub workload: &'static str,
    pub cpus: usize,
    pub per_second: f64,
    /// To the point without an IOMMU.
    pub relative: f64,
    pub latency_us: f64,
    pub uncertainty: f64,
    pub transfers: f64,
    pub table_frames: usize,
    pub cycles: Parts,
    pub lines: Vec<HotLine>,
}

impl Point {
    fn of(planned: &Planned, outcome: &Outcome) -> Self {
        let run = &outcome.run;
        let operations = run.operations().max(1) as f64;
        let line = |line: &LineRun| HotLine {
            name: line.name.clone(),
            transfers: line.transfers() as f64 / operations,
            cycles: (line.moved.0 + line.queued.0) as f64 / operations,
        };
        let design = match planned.system {
            System::NoIommu => None,
            System::Design(design) => Some(design),
        };
        Point {
            system: match design {
                None => "no IOMMU".into(),
                Some(design) => match design.preset() {
                    Some(preset) => preset.title.into(),
                    None => design.to_string(),
                },
            },
            design: design.map(|design| design.to_string()),
            workload: workload_name(planned.workload),
            cpus: planned.cpus,
            per_second: run.throughput(),
            relative: 1.0,
            latency_us: outcome.latency.seconds() * 1e6,
            uncertainty: run.uncertainty(),
            transfers: run.transfers_per_operation(),
            table_frames: outcome.frames,
            cycles: Parts::of(&run.account()),
            lines: run.hottest(HOTTEST).iter().map(line).collect(),
        }
    }
}

pub(crate) fn workload_name(workload: Workload) -> &'static str {
    let mut all = Workload::ALL.iter();
    all.find(|(other, _)| *other == workload)
        .map_or("?", |(_, name)| name)
}

/// The scenario of a planned point.
pub(crate) fn scenario(planned: &Planned, seed: u64) -> Scenario {
    Scenario {
        system: planned.system,
        workload: planned.workload,
        driver: Driver::default(),
        topology: Topology::of_eights(planned.cpus),
        span: Span::to_one_percent(WARM_UP, MEASURED),
        seed,
    }
}

/// Does `work` for each of `0..count` on `jobs` threads; results come in the order of `0..count`,
/// whichever thread did them.
pub(crate) fn in_parallel<T: Send>(
    count: usize,
    jobs: usize,
    work: impl Fn(usize) -> T + Sync,
    mut done: impl FnMut(usize),
) -> Vec<T> {
    let (next, results) = (Mutex::new(0..count), Mutex::new(Vec::new()));
    results
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .resize_with(count, || None);
    std::thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        for _ in 0..jobs.min(count) {
            let tell = tell.clone();
            let (next, results, work) = (&next, &results, &work);
            scope.spawn(move || {
                loop {
                    let at = next.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some(at) = at else {
                        return;
                    };
                    let result = work(at);
                    results.lock().unwrap_or_else(PoisonError::into_inner)[at] = Some(result);
                    let _ = tell.send(at);
                }
            });
        }
        drop(tell);
        told.iter().for_each(&mut done);
    });
    let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.into_iter().flatten().collect()
}

/// Measures all points of `plan` on `jobs` threads.
///
/// # Errors
/// The first that could not be measured, by name.
pub(crate) fn measure(
    plan: &[Planned],
    params: &Params,
    seed: u64,
    jobs: usize,
    progress: &dyn Progress,
) -> Result<Vec<Point>, Error> {
    let mut behind = 0;
    let outcomes = in_parallel(
        plan.len(),
        jobs,
        |at| scenario(&plan[at], seed).run(params),
        |at| {
            behind += 1;
            let planned = &plan[at];
            let what = format!(
                "{} on {} CPUs",
                workload_name(planned.workload),
                planned.cpus
            );
            progress.at(&what, behind, plan.len());
        },
    );
    let mut points = Vec::new();
    for (planned, outcome) in plan.iter().zip(outcomes) {
        let outcome = outcome.map_err(|error| Error::Simulation {
            point: format!(
                "{:?}, {}, {} CPUs",
                planned.system,
                workload_name(planned.workload),
                planned.cpus
            ),
            detail: error.to_string(),
        })?;
        points.push(Point::of(planned, &outcome));
    }
    let bases: Vec<Option<f64>> = points
        .iter()
        .map(|point| {
            let same = |other: &&Point| {
                other.design.is_none()
                    && other.workload == point.workload
                    && other.cpus == point.cpus
            };
            points.iter().find(same).map(|base| base.per_second)
        })
        .collect();
    for (point, base) in points.iter_mut().zip(bases) {
        point.relative = base.map_or(f64::NAN, |base| point.per_second / base);
    }
    Ok(points)
}
