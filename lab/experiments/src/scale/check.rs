// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A check against reality: what a second CPU does to a pair of map and unmap, in the model and on
//! this machine.
//!
//! The same loop on both: a ring of 256 single pages on each CPU, the oldest of which is replaced,
//! nothing else done between, tables under a unit that caches nothing. The number is the time of a
//! pair on two CPUs by that on one; 1 is no contention. The model has its two CPUs on one socket
//! (near) or on two (far); the machine's are where they are while it is measured, which the probe
//! of [`ioatlas_bench::probe`] tells. The model's costs are of another machine and fitted to
//! request-response, and nothing here was looked at when they were.

use super::{
    arguments::ScaleArguments,
    plan::{self, named},
    points::in_parallel,
};
use crate::Answer;
use crate::error::Error;
use crate::progress::{Bar, Progress};
use ioatlas_bench::{Effort, Kind, Mode, Pattern, Sizes, Spec, What, measure};
use ioatlas_dma::{
    design::Design,
    domain::Domain,
    table::fmt::VtdSecond48,
    translator::{Paged, Uncached},
    units::*,
};
use ioatlas_present::{Table, rounded};
use ioatlas_sim::{
    platform::Sim,
    timing::{Cycles, Machine, MachineConfig, Params, Span, Topology},
};
use serde::Serialize;
use std::{sync::Arc, time::Duration};

const RING: usize = 256;
const FRAMES: u64 = 1 << 10;
const HEAP: ByteCount = ByteCount(1 << 26);
/// Magazines and queues fill, and each has been emptied a few times.
const WARM_UP: Cycles = Cycles::from_us(1000);
const MEASURED: Cycles = Cycles::from_us(2000);
/// As `bench --quick` has for rows that are compared.
const EFFORT: Effort = Effort {
    slices: 15,
    patience: Duration::from_secs(2),
    filling: Duration::from_secs(1),
};

/// A design. `ScaleArguments` documents the fields.
#[derive(Debug, Serialize)]
struct Check {
    design: String,
    near: f64,
    far: f64,
    mode: Option<&'static str>,
    predicted: Option<f64>,
    measured: Option<f64>,
    difference_percent: Option<f64>,
    ns_1_thread: Option<f64>,
    ns_2_threads: Option<f64>,
    reason: Option<String>,
}

pub(super) fn run(arguments: &ScaleArguments) -> Answer {
    let show = |all: Vec<Check>| Answer::show(&all, arguments.json, |all| plain(all));
    check(arguments).map(show).into()
}

fn check(arguments: &ScaleArguments) -> Result<Vec<Check>, Error> {
    let designs: Vec<Design> = match arguments.chooses_designs() {
        true => plan::chosen(arguments).collect(),
        false => {
            let shared = [named::STOCK, named::EIOVAR, named::EIOVAR_PERCPU];
            let words = shared.into_iter().chain(named::OURS);
            words.map(plan::design).collect()
        }
    };
    let (params, bar) = (arguments.params(), Bar::default());
    // before anything is measured, so that nothing of ours runs beside it
    let jobs = super::jobs(arguments.jobs);
    let predicted = in_parallel(
        designs.len(),
        jobs,
        |at| predict(designs[at], &params),
        |_| {},
    );
    let mut all = Vec::new();
    for (at, (design, predicted)) in designs.iter().zip(predicted).enumerate() {
        bar.at(&design.to_string(), at, designs.len());
        all.push(beside(*design, predicted?));
    }
    Ok(all)
}

/// What a second CPU on the same socket, and one on another, does to a pair, in the model.
struct Predicted {
    near: f64,
    far: f64,
}

fn predict(design: Design, params: &Params) -> Result<Predicted, Error> {
    let pair = |cpus, cpus_per_socket| {
        let topology = Topology {
            cpus,
            cpus_per_socket,
        };
        simulate(design, topology, params).map_err(|detail| Error::Simulation {
            point: format!("{design}, a ring of {RING}, {cpus} CPUs"),
            detail,
        })
    };
    let one = pair(1, 1)?;
    Ok(Predicted {
        near: pair(2, 2)? / one,
        far: pair(2, 1)? / one,
    })
}

/// Cycles of a pair, on each CPU.
fn simulate(design: Design, topology: Topology, params: &Params) -> Result<f64, String> {
    let config = MachineConfig {
        topology,
        frames: FRAMES,
        heap: Some(HEAP),
    };
    let machine = Machine::new(config, params.clone()).map_err(|e| e.to_string())?;
    let p = machine.platform().clone();
    let unit = Arc::new(Uncached::new());
    let tables = Paged::<Sim, VtdSecond48, _>::new(&p, unit, design.tables);
    let tables = tables.map_err(|e| e.to_string())?;
    let domain = Domain::new(p, tables, design.domain).map_err(|e| e.to_string())?;
    let span = Span::fixed(WARM_UP, MEASURED);
    let run = machine.run(span, None, |cpu| {
        let base = (1 << 20) + ((cpu.index().0 as u64) << 10);
        // twice as many buffers as mappings: none is mapped twice at a time
        let map = |nth: usize| {
            let page = PhysPage(base + (nth % (2 * RING)) as u64);
            let mapped = domain.map(PhysRange::page(page), Direction::FromDevice);
            mapped.unwrap_or_else(|why| panic!("no mapping: {why}"))
        };
        let unmap = |mapping| {
            let done = domain.unmap(mapping);
            done.unwrap_or_else(|why| panic!("no unmap: {why}"));
        };
        let mut ring: Vec<_> = (0..RING).map(|nth| Some(map(nth))).collect();
        let mut next = RING;
        while cpu.running() {
            let slot = &mut ring[next % RING];
            slot.take().into_iter().for_each(unmap);
            *slot = Some(map(next));
            next += 1;
            cpu.operation();
        }
        ring.into_iter().flatten().for_each(unmap);
    });
    let run = run.map_err(|e| e.to_string())?;
    let cycles: u64 = run.cpus.iter().map(|cpu| cpu.cycles.0).sum();
    Ok(cycles as f64 / run.operations().max(1) as f64)
}

/// The prediction beside what is measured here.
fn beside(design: Design, Predicted { near, far }: Predicted) -> Check {
    let spec = |threads| Spec {
        what: What::Ours(Kind::Domain(design)),
        pattern: Pattern::Ring(RING),
        sizes: Sizes::One,
        threads,
    };
    // together, so that what disturbs one disturbs the other
    let rows = measure(&[spec(1), spec(2)], EFFORT);
    let figure = |at: usize| rows.get(at).and_then(|row| row.figure.as_ref().ok());
    let (one, two) = (figure(0), figure(1));
    let unmeasured = rows.iter().find_map(|row| row.figure.as_ref().err());
    let measured = two.zip(one).map(|(two, one)| two.ns.median / one.ns.median);
    let mode = two.and_then(|figure| figure.mode);
    let predicted = mode.map(|mode| match mode {
        Mode::Near => near,
        Mode::Far => far,
    });
    Check {
        design: design.to_string(),
        near,
        far,
        mode: mode.as_ref().map(Mode::name),
        predicted,
        measured,
        difference_percent: predicted.zip(measured).map(|(p, m)| 100.0 * (p - m) / m),
        ns_1_thread: one.map(|figure| figure.ns.median),
        ns_2_threads: two.map(|figure| figure.ns.median),
        reason: unmeasured.map(ToString::to_string),
    }
}

fn plain(all: &[Check]) -> String {
    let mut table = Table::new([
        "design",
        "model, near",
        "model, far",
        "here",
        "mode",
        "model by here",
        "ns, 1 thread",
        "2 threads",
    ])
    .aligned("lrrrlr");
    for check in all {
        let percent = |value: f64| format!("{value:+.0} %");
        table.row([
            check.design.clone(),
            rounded(Some(check.near), 2),
            rounded(Some(check.far), 2),
            rounded(check.measured, 2),
            check.mode.unwrap_or("-").into(),
            check.difference_percent.map_or("-".into(), percent),
            rounded(check.ns_1_thread, 0),
            rounded(check.ns_2_threads, 0),
        ]);
    }
    let mut text = table.text("");
    text += "Time of a map and its unmap on two CPUs by that on one, a ring of 256 pages on each. Near: CPUs of one socket or core; far: of two. Model by here: in the mode that was measured.\n";
    for check in all {
        if let Some(reason) = &check.reason {
            text += &format!("{}: not measured: {reason}\n", check.design);
        }
    }
    text
}
