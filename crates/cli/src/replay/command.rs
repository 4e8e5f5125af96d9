// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `ioatlas replay`: what traces become under designs.

use super::{Probe, Replayed, exposure_ns, replay};
use crate::args::ReplayArguments;
use crate::capture::{Noted, sentences};
use crate::error::Error;
use crate::info::{ByName, per_trace};
use crate::progress::Progress;
use crate::report::systems::{System, iotlb};
use crate::{Answer, Screen};
use ioatlas_dma::domain::Exposure;
use ioatlas_iotlb::Trace;
use ioatlas_present::{Table, grouped, printable};
use ioatlas_viommu::config::SetGeometry;
use serde::Serialize;

/// A design on a trace. `ReplayArguments` documents the fields, by their names in JSON.
#[derive(Debug, Serialize)]
struct Row {
    system: Option<String>,
    design: String,
    shipped_by: Option<&'static str>,
    maps: u64,
    unmaps: u64,
    invalidations: u64,
    accesses: u64,
    misses: u64,
    miss_rate: f64,
    table_kib: u64,
    exposure: &'static str,
    exposure_unmaps: u64,
    exposure_us: Option<f64>,
    violations: u64,
    #[serde(skip)]
    first_violation: Option<String>,
    anomalies: u64,
    limited: u64,
}

impl Row {
    fn of(trace: &Trace, system: &System, replayed: &Replayed) -> Self {
        let accesses = replayed.oracle.accesses;
        Row {
            system: system.shipped_by.map(|_| system.name.clone()),
            design: system.design().to_string(),
            shipped_by: system.shipped_by,
            maps: replayed.maps,
            unmaps: replayed.unmaps,
            invalidations: replayed.invalidations,
            accesses,
            misses: replayed.misses,
            miss_rate: match accesses {
                0 => 0.0,
                accesses => replayed.misses as f64 / accesses as f64,
            },
            table_kib: replayed.table_kib,
            exposure: match system.design().domain.policy.exposure(1) {
                Exposure::None => "none",
                Exposure::Bounded { .. } => "bounded",
                Exposure::Unbounded => "unbounded",
            },
            exposure_unmaps: replayed.oracle.exposure.unmaps,
            exposure_us: exposure_ns(trace, system.design(), replayed).map(|ns| ns as f64 / 1000.0),
            violations: replayed.oracle.violation_count,
            first_violation: replayed.oracle.violations.first().map(|v| v.text.clone()),
            anomalies: replayed.anomalies,
            limited: replayed.limited,
        }
    }
}

pub(crate) fn run(arguments: &ReplayArguments, screen: &Screen) -> Answer {
    let geometry = match arguments.geometry.geometry() {
        Ok(geometry) => iotlb(geometry),
        Err(error) => return Error::from(error).into(),
    };
    let designs = arguments.designs.rows().designs();
    let systems: Vec<System> = designs.into_iter().map(System::of).collect();
    let mut failed = Vec::new();
    let run = |trace: &Trace, progress: &dyn Progress| {
        let mut rows = Vec::new();
        for (done, system) in systems.iter().enumerate() {
            let what = format!("{} on {}", system.name, trace.name());
            progress.at(&what, done, systems.len());
            match row(trace, system, geometry) {
                Ok(row) => rows.push(Noted::new(trace, row)),
                Err(error) => failed.push(error),
            }
        }
        rows
    };
    let weights = [1, systems.len()];
    let (results, mut errors) = per_trace(&arguments.traces, &arguments.capture, weights, run);
    errors.append(&mut failed);
    errors.extend(
        results
            .iter()
            .flat_map(|(name, rows)| violations(name, rows)),
    );
    let text = if arguments.json {
        ByName::new(&results, arguments.traces.len()).json(&mut errors)
    } else {
        results
            .iter()
            .map(|(name, rows)| plain(name, rows, screen))
            .collect()
    };
    Answer { text, errors }
}

fn row(trace: &Trace, system: &System, geometry: SetGeometry) -> Result<Row, Error> {
    let replayed = replay(trace, system.driver, geometry, Probe::Off);
    let replayed = replayed.map_err(|e| system.failed(format!("{}: {e}", trace.name())))?;
    Ok(Row::of(trace, system, &replayed))
}

fn violations(trace: &str, rows: &[Noted<Row>]) -> Vec<Error> {
    let rows = rows.iter().map(|row| &row.result);
    let violated = rows.filter(|row| row.violations > 0);
    let error = |row: &Row| Error::Violation {
        first: format!(
            "{}: {trace}: {}",
            row.design,
            row.first_violation.as_deref().unwrap_or_default()
        ),
        count: row.violations,
    };
    violated.map(error).collect()
}

fn plain(name: &str, noted: &[Noted<Row>], screen: &Screen) -> String {
    let mut table = Table::new([
        "system",
        "design",
        "maps",
        "unmaps",
        "inval.",
        "accesses",
        "misses",
        "miss rate",
        "tables KiB",
        "exposed: unmaps",
        "violations",
        "skipped",
    ])
    .aligned("llr");
    for Noted { result: row, .. } in noted {
        table.row([
            row.system.clone().unwrap_or_else(|| "(no system)".into()),
            row.design.clone(),
            grouped(row.maps),
            grouped(row.unmaps),
            grouped(row.invalidations),
            grouped(row.accesses),
            grouped(row.misses),
            format!("{:.4}", row.miss_rate),
            grouped(row.table_kib),
            match row.exposure_us {
                Some(us) if row.exposure_unmaps > 0 => format!(
                    "{}: {} ({us:.0} us)",
                    row.exposure,
                    grouped(row.exposure_unmaps)
                ),
                _ => format!("{}: {}", row.exposure, grouped(row.exposure_unmaps)),
            },
            grouped(row.violations),
            grouped(row.anomalies + row.limited),
        ]);
    }
    let mut text = printable(name, 200) + "\n";
    text += &table.fitted("  ", screen.columns(), |text| screen.heading(text));
    if let Some(first) = noted.first() {
        text += &sentences(&first.notes, "  ");
    }
    text
}
