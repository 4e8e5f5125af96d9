// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The study as tables.

use super::{
    super::table::value,
    json::{part_change, rate},
};
use ioatlas_bench::{
    Unmeasured,
    bounce::{
        Cell, Row,
        cells::Split,
        limits::{Point, SLOTS},
        plan::Filter,
        study::Study,
    },
    summary::Line,
};
use ioatlas_present::{Table, rounded};

const DASH: &str = "-";

/// A change, with its sign.
fn signed(value: Option<f64>) -> String {
    value.map_or_else(|| DASH.into(), |value| format!("{value:+.1}"))
}

pub(super) fn text(study: &Study, filter: &Filter) -> String {
    let mut lines = vec!["Summary".to_owned()];
    lines.extend(summary(&study.summary()));
    lines.push(String::new());
    lines.push(
        "BOUNCE'21 (reads, 64 in flight): times as fast as without; time in unmap and map for each GB, change in %"
            .into(),
    );
    lines.extend(bounce21(study));
    if !study.points.is_empty() {
        lines.push(String::new());
        lines.push(format!(
            "Beyond the pools' limits ({SLOTS} slots): throughput by that of {SLOTS} in flight, and by that of never"
        ));
        let shown = study.points.iter().filter(|p| filter.shows(p.policy));
        lines.extend(points(shown));
    }
    lines.push(String::new());
    lines.push(
        "Rows: ns an operation on each thread, median and 10th to 90th percentile of slices; GB/s of the CPU alone, all threads"
            .into(),
    );
    lines.extend(rows(study, filter));
    lines.extend(reasons(study));
    lines.join("\n") + "\n"
}

fn summary(lines: &[Line]) -> Vec<String> {
    let mut table = Table::new(["", "here", ""]).aligned("lrl");
    for line in lines {
        let here = line.value.as_ref();
        table.row([
            line.what.clone(),
            here.map_or_else(|_| DASH.into(), |here| value(*here, line.unit)),
            here.err().cloned().unwrap_or_default(),
        ]);
    }
    table.lines()
}

fn bounce21(study: &Study) -> Vec<String> {
    let mut table = Table::new([
        "block",
        "theirs",
        "model",
        "code",
        "unmap",
        "model",
        "code",
        "map, code",
        "why",
    ])
    .aligned("rrrrrrrrl");
    for beside in study.bounce21() {
        let model = &beside.model;
        table.row([
            format!("{}k", model.theirs.block.0 >> 10),
            rounded(Some(model.theirs.ratio), 1),
            rounded(Some(model.ratio), 2),
            rounded(beside.ratio, 2),
            signed(Some(model.theirs.unmap_change)),
            signed(Some(model.unmap_change)),
            signed(beside.unmap_change),
            signed(beside.map_change),
            model.reason().unwrap_or_default(),
        ]);
    }
    table.lines()
}

fn points<'p>(points: impl Iterator<Item = &'p Point>) -> Vec<String> {
    let mut table =
        Table::new(["policy", "in flight", "ns", "by within", "by never"]).aligned("lr");
    for point in points {
        let figure = point.figure.as_ref().ok();
        table.row([
            point.policy.to_string(),
            point.load.depth.to_string(),
            rounded(figure.map(|figure| figure.ns.median), 0),
            rounded(point.by_within.map(|ratio| ratio.median), 2),
            rounded(point.by_never.map(|ratio| ratio.median), 2),
        ]);
    }
    table.lines()
}

fn rows(study: &Study, filter: &Filter) -> Vec<String> {
    let mut table = Table::new([
        "translator",
        "policy",
        "way",
        "block",
        "depth",
        "threads",
        "ns",
        "p10",
        "p90",
        "GB/s",
        "by never",
        "beyond copy",
        "map ms/GB",
        "unmap ms/GB",
        "unmap %",
        "bounced %",
    ])
    .aligned("lllr");
    for cell in &study.cells {
        let shown = cell.rows.iter().filter(|row| filter.shows(row.policy));
        shown.for_each(|row| table.row(line(cell, row)));
    }
    table.lines()
}

fn line(cell: &Cell, row: &Row) -> Vec<String> {
    let load = &row.load;
    let ns = row.figure.as_ref().ok().map(|figure| figure.ns);
    let per_gb = |of: fn(&Split) -> f64| {
        let bytes = load.block.bytes().0;
        rounded(
            row.split.map(|split| Split::ms_per_gb(of(&split), bytes)),
            2,
        )
    };
    vec![
        load.preset.to_string(),
        row.policy.to_string(),
        load.direction.name().into(),
        format!("{}k", load.block.0),
        load.depth.to_string(),
        load.threads.to_string(),
        rounded(ns.map(|ns| ns.median), 0),
        rounded(ns.map(|ns| ns.low), 0),
        rounded(ns.map(|ns| ns.high), 0),
        rounded(rate(row), 2),
        rounded(row.ratio.map(|ratio| ratio.median), 2),
        rounded(row.beyond_copy.map(|excess| excess.median), 0),
        per_gb(|split| split.map_ns),
        per_gb(|split| split.unmap_ns),
        signed(part_change(cell, row, |split| split.unmap_ns)),
        rounded(row.bounced_percent, 0),
    ]
}

/// Why rows have no figure, each reason once; of busy machines only how often.
fn reasons(study: &Study) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut busy = 0;
    let rows = study.cells.iter().flat_map(|cell| &cell.rows);
    let rows = rows.map(|row| (row.policy, &row.load, &row.figure));
    let points = study.points.iter().map(|p| (p.policy, &p.load, &p.figure));
    for (policy, load, figure) in rows.chain(points) {
        match figure {
            Ok(_) => {}
            Err(Unmeasured::Busy { .. }) => busy += 1,
            Err(why) => lines.push(format!("{load} under {policy}: {why}")),
        }
    }
    if busy > 0 {
        lines.push(format!(
            "{busy} rows have no figure, since the machine was too busy with other things: too few of their slices count"
        ));
    }
    if !lines.is_empty() {
        lines.insert(0, String::new());
    }
    lines
}
