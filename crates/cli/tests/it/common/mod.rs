// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Running the program in the test's process, and rows of systems made up for tests
//! of the views.

mod figures;
mod ran;
mod terminal;

#[allow(unused_imports, reason = "not every test binary compares views")]
pub use figures::{figures, page_figures};
pub use ran::Ran;
pub use terminal::terminal;

use ioatlas_cli::output::Target;
use ioatlas_cli::progress::Silent;
use ioatlas_cli::replay::Unmaps;
use ioatlas_cli::report::model::Source;
use ioatlas_cli::report::systems::{Exposure, Rows, SystemOnTrace, SystemRow};
use ioatlas_cli::report::timings::{Bench, Timings};
use ioatlas_cli::report::{Report, Traces, build};
use ioatlas_cli::{LoadedTrace, run};
use ioatlas_present::{Figure, Tag, Unit};
use serde_json::Value;
use std::ffi::OsString;
use std::path::PathBuf;

/// Runs `ioatlas` with these arguments.
pub fn ioatlas(arguments: &[&str]) -> Ran {
    Ran::of("ioatlas", arguments, run)
}

/// What it answers, as JSON.
#[track_caller]
pub fn json(arguments: &[&str]) -> Value {
    ioatlas(arguments).json()
}

/// A report, with times that are measured for it.
#[allow(dead_code, reason = "not every test binary reports")]
pub fn built(traces: &Traces, rows: &Rows, inv_ns: Option<f64>, command: &[OsString]) -> Report {
    let dir = tempfile::tempdir().unwrap();
    let target = Target::prepare(&dir.path().join("report.html")).unwrap();
    let timings = Timings::new(&Bench::Now);
    build(&timings, traces, rows, inv_ns, &target, command, &Silent).unwrap()
}

/// The report of a user's traces.
#[allow(dead_code, reason = "not every test binary reports")]
pub fn report_of(traces: Vec<LoadedTrace>, rows: &Rows, inv_ns: Option<f64>) -> Report {
    let traces = Traces {
        source: Source::User,
        traces,
        variants: Vec::new(),
        histograms: Vec::new(),
    };
    built(&traces, rows, inv_ns, &[])
}

#[allow(dead_code, reason = "not every test binary reads traces")]
pub fn bundled(name: &str) -> String {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../traces");
    dir.join(format!("{name}.trace.zst"))
        .to_str()
        .unwrap()
        .into()
}

/// Six rows whose numbers are all different; made up.
#[allow(dead_code, reason = "not every test binary renders systems")]
pub fn rows(wait: Figure) -> Vec<SystemRow> {
    let designs = [
        ("as Linux 3.17", "rbtree, deferred-global", false),
        ("as Linux today", "magazine, deferred-percpu", false),
        ("as Linux strict", "magazine, strict", true),
        ("as FreeBSD", "freebsd, freebsd", true),
        ("as Mac OS X", "macos, macos", false),
        ("as a strict one", "rbtree, strict", true),
    ];
    designs
        .into_iter()
        .enumerate()
        .map(|(index, (name, design, strict))| {
            let n = index as f64;
            let count = |value: f64| Figure::counted(value + n, Unit::Count);
            let per_1k = |value: f64| Figure::counted((value + n) / 7.0, Unit::Per1000);
            SystemRow {
                name: name.into(),
                shipped_by: Some("a system"),
                design: design.into(),
                paper_ref: "made up".into(),
                unmaps: Unmaps::OneByOne,
                ns_per_pair_1_thread: Some(Figure::measured(151.3 + 90.0 * n, Unit::Nanoseconds)),
                ns_per_pair_1_thread_range: Some(
                    [141.3, 163.9].map(|ns| Figure::measured(ns + 90.0 * n, Unit::Nanoseconds)),
                ),
                ns_per_pair_2_threads: Some(Figure::measured(212.7 + 611.0 * n, Unit::Nanoseconds)),
                ns_per_pair_2_threads_range: Some(
                    [205.1, 260.2].map(|ns| Figure::measured(ns + 611.0 * n, Unit::Nanoseconds)),
                ),
                wait: (name != "as Mac OS X").then_some(Figure {
                    value: wait.value * if strict { 0.97 } else { 0.01 } + n,
                    ..wait
                }),
                invalidations_per_1k_maps: per_1k(if strict { 7000.0 } else { 30.0 }),
                misses_per_1k_maps: Some(Figure {
                    tag: Tag::Simulated,
                    ..per_1k(18_400.0)
                }),
                table_memory: Figure::counted(1228.0 + n, Unit::Kibibytes),
                exposure: if strict {
                    Exposure::None
                } else {
                    Exposure::Bounded {
                        operations_bound: Figure::assumed(250.0, Unit::Count),
                        time_bound: Some(Figure::assumed(10.0, Unit::Milliseconds)),
                        operations_observed: count(247.0),
                        time_observed: Some(Figure::measured(3.3 + n, Unit::Milliseconds)),
                    }
                },
                skipped_anomalies: count(5.0),
                skipped_limits: count(1.0),
                attempts_blocked: count(10_407.0),
                attempts_stale: count(if strict { 0.0 } else { 531.0 }),
                violations: Figure::count(0),
                first_violation: None,
                oracle_checked_accesses: count(115_096.0),
                per_trace: vec![SystemOnTrace {
                    trace: "e1000-stream".into(),
                    maps: count(3438.0),
                    unmaps: count(3002.0),
                    skipped_anomalies: count(0.0),
                    invalidations: count(17.0),
                    misses: Some(Figure::simulated(9500.0 + n, Unit::Count)),
                    table_memory: Figure::counted(12.0 + n, Unit::Kibibytes),
                    skipped_limits: count(2.0),
                    attempts_blocked: count(9_407.0),
                    attempts_stale: count(431.0),
                    violations: Figure::count(0),
                    oracle_checked_accesses: count(35_959.0),
                }],
            }
        })
        .collect()
}
