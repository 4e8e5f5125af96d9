// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Summary and rows as tables.

use super::json::Names;
use ioatlas_bench::{
    Row, Unmeasured,
    summary::{Line, Unit},
};
use ioatlas_present::{Table, rounded};

const DASH: &str = "-";

pub(super) fn text(summary: &[Line], rows: &[Row]) -> String {
    let mut lines = Vec::new();
    if !summary.is_empty() {
        lines.push("Summary".to_owned());
        lines.extend(of_summary(summary));
        lines.push(String::new());
    }
    lines.push(
        "Rows: ns a pair (map + unmap), median and 10th to 90th percentile of slices; by a control loop in private memory"
            .to_owned(),
    );
    lines.extend(of_rows(rows));
    lines.extend(reasons(rows));
    lines.join("\n") + "\n"
}

/// A value as it is written, with its unit.
pub(super) fn value(value: f64, unit: Unit) -> String {
    let digits = match unit {
        Unit::Times | Unit::Percent => 2,
        Unit::Nanoseconds | Unit::Kibibytes => 1,
        Unit::Operations => 0,
    };
    format!("{value:.digits$} {}", unit.name())
}

fn of_summary(lines: &[Line]) -> Vec<String> {
    let mut table = Table::new(["", "here", "beside", "ratio", ""]).aligned("lr");
    let dash = || DASH.to_owned();
    for line in lines {
        let here = line.value.as_ref();
        table.row([
            line.what.clone(),
            here.map_or_else(|_| dash(), |here| value(*here, line.unit)),
            line.beside.as_ref().map_or_else(dash, |(name, v, unit)| {
                format!("{name} {}", value(*v, *unit))
            }),
            rounded(line.ratio(), 2),
            here.err().cloned().unwrap_or_default(),
        ]);
    }
    table.lines()
}

fn of_rows(rows: &[Row]) -> Vec<String> {
    let mut table = Table::new([
        "allocator",
        "policy",
        "pattern",
        "sizes",
        "threads",
        "ns",
        "p10",
        "p90",
        "by control",
        "mode",
        "beyond",
    ])
    .aligned("lllrrrrrrlr");
    for row in rows {
        let spec = &row.spec;
        let names = Names::of(&spec.what);
        let figure = row.figure.as_ref().ok();
        let ns = |pick: fn(&ioatlas_bench::Spread) -> f64| {
            rounded(figure.map(|figure| pick(&figure.ns)), 1)
        };
        let policy = match names.kind {
            "software" => "strict, soft unit",
            "table" => "page tables alone",
            "peer" => "(peer)",
            _ => names.policy.unwrap_or(DASH),
        };
        let mode = figure.and_then(|figure| figure.mode);
        table.row([
            names.peer.or(names.allocator).unwrap_or(DASH).into(),
            policy.into(),
            spec.pattern.to_string(),
            spec.sizes.name().into(),
            spec.threads.to_string(),
            ns(|ns| ns.median),
            ns(|ns| ns.low),
            ns(|ns| ns.high),
            rounded(row.control_ratio.map(|ratio| ratio.median), 2),
            mode.map_or(DASH, |mode| mode.name()).into(),
            rounded(row.excess.map(|excess| excess.median), 1),
        ]);
    }
    table.lines()
}

/// Why rows have no figure, one line each. Where the machine was busy or the time was over, one
/// line says how often.
fn reasons(rows: &[Row]) -> Vec<String> {
    let mut lines = Vec::new();
    let (mut busy, mut late) = (0, 0);
    for row in rows {
        match &row.figure {
            Ok(_) => {}
            Err(Unmeasured::Busy { .. }) => busy += 1,
            Err(Unmeasured::Late { .. }) => late += 1,
            Err(why) => lines.push(format!("{}: {why}", row.spec)),
        }
    }
    if busy > 0 {
        lines.push(format!(
            "{busy} rows have no figure, since the machine was too busy with other things: too few of their slices count"
        ));
    }
    if late > 0 {
        lines.push(format!(
            "{late} rows have no figure, since the time for all rows was over before they had enough slices: ask for some of them (`--help`)"
        ));
    }
    if !lines.is_empty() {
        lines.insert(0, String::new());
    }
    lines
}
