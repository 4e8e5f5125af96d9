// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The report's three views: sizes, agreement on every number, offline.

mod advice;
mod page;
mod readme;
mod views;

use crate::common::{built, rows};
use ioatlas_cli::report::model::OracleTotals;
use ioatlas_cli::report::systems::Rows;
use ioatlas_cli::report::{Report, bundled_traces};
use std::ffi::OsString;
use std::sync::OnceLock;

/// The bundled report with made-up systems.
fn full_report() -> Report {
    let mut report = measured_report();
    report.systems = rows(report.wait.time);
    report.oracle = OracleTotals::of(&report.systems);
    report
}

/// The bundled report as the command makes it; made once, since it takes seconds where the compiler
/// does not optimise.
fn measured_report() -> Report {
    static REPORT: OnceLock<Report> = OnceLock::new();
    REPORT.get_or_init(make_measured_report).clone()
}

fn make_measured_report() -> Report {
    let command = [OsString::from("ioatlas"), OsString::from("report")];
    let traces = bundled_traces().unwrap();
    let mut report = built(&traces, &Rows::Systems, None, &command);
    report.provenance.page = "report.html".into();
    report
}
