// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The study as JSON. `BounceArguments` documents the fields.

use ioatlas_bench::{
    bounce::{
        Cell, Policy, Row,
        cells::{Split, change},
        limits::{Point, SLOTS},
        plan::Filter,
        study::{Beside, Study},
    },
    summary::Line,
};
use serde::Serialize;

#[derive(Debug, Serialize)]
struct Object {
    rows: Vec<RowObject>,
    in_flight: Vec<PointObject>,
    bounce21: Vec<BesideObject>,
    summary: Vec<LineObject>,
}

#[derive(Debug, Serialize)]
struct RowObject {
    translator: &'static str,
    policy: &'static str,
    direction: &'static str,
    block_kib: u64,
    depth: usize,
    threads: usize,
    ns_per_operation: Option<f64>,
    ns_p10: Option<f64>,
    ns_p90: Option<f64>,
    gb_per_second: Option<f64>,
    times_never: Option<f64>,
    beyond_copy_ns: Option<f64>,
    copy_ns: Option<f64>,
    map_ms_per_gb: Option<f64>,
    unmap_ms_per_gb: Option<f64>,
    map_change_percent: Option<f64>,
    unmap_change_percent: Option<f64>,
    paced_times_never: Option<f64>,
    bounced_percent: Option<f64>,
    learned_after: Option<usize>,
    behind_better_percent: Option<f64>,
    mode: Option<&'static str>,
    slices: usize,
    reason: Option<String>,
}

/// Bytes a nanosecond of all threads, which is GB/s.
pub(super) fn rate(row: &Row) -> Option<f64> {
    let ns = row.figure.as_ref().ok()?.ns.median;
    Some(row.load.block.bytes().0 as f64 / ns * row.load.threads as f64)
}

/// Change of a part of an operation's time against direct mapping, in percent.
pub(super) fn part_change(cell: &Cell, row: &Row, of: fn(&Split) -> f64) -> Option<f64> {
    let never = cell.of(Policy::Never)?;
    change(of(&row.split?), of(&never.split?))
}

fn row(cell: &Cell, row: &Row) -> RowObject {
    let load = &row.load;
    let figure = row.figure.as_ref().ok();
    let ns = figure.map(|figure| figure.ns);
    let bytes = load.block.bytes().0;
    let per_gb = |of: fn(&Split) -> f64| row.split.map(|split| Split::ms_per_gb(of(&split), bytes));
    RowObject {
        translator: load.preset.name(),
        policy: row.policy.name(),
        direction: load.direction.name(),
        block_kib: load.block.0,
        depth: load.depth,
        threads: load.threads,
        ns_per_operation: ns.map(|ns| ns.median),
        ns_p10: ns.map(|ns| ns.low),
        ns_p90: ns.map(|ns| ns.high),
        gb_per_second: rate(row),
        times_never: row.ratio.map(|ratio| ratio.median),
        beyond_copy_ns: row.beyond_copy.map(|excess| excess.median),
        copy_ns: cell.copy.as_ref().ok().map(|copy| copy.ns.median),
        map_ms_per_gb: per_gb(|split| split.map_ns),
        unmap_ms_per_gb: per_gb(|split| split.unmap_ns),
        map_change_percent: part_change(cell, row, |split| split.map_ns),
        unmap_change_percent: part_change(cell, row, |split| split.unmap_ns),
        paced_times_never: row.paced_ratio,
        bounced_percent: row.bounced_percent,
        learned_after: row.learned_after,
        behind_better_percent: row.by_better.map(|ratio| (ratio.median - 1.0) * 100.0),
        mode: figure.and_then(|f| f.mode).map(|mode| mode.name()),
        slices: figure.map_or(0, |figure| figure.slices.len()),
        reason: row.figure.as_ref().err().map(ToString::to_string),
    }
}

#[derive(Debug, Serialize)]
struct PointObject {
    translator: &'static str,
    policy: &'static str,
    direction: &'static str,
    block_kib: u64,
    depth: usize,
    slots: usize,
    ns_per_operation: Option<f64>,
    by_within: Option<f64>,
    by_never: Option<f64>,
    reason: Option<String>,
}

fn point(point: &Point) -> PointObject {
    PointObject {
        translator: point.load.preset.name(),
        policy: point.policy.name(),
        direction: point.load.direction.name(),
        block_kib: point.load.block.0,
        depth: point.load.depth,
        slots: SLOTS,
        ns_per_operation: point.figure.as_ref().ok().map(|figure| figure.ns.median),
        by_within: point.by_within.map(|ratio| ratio.median),
        by_never: point.by_never.map(|ratio| ratio.median),
        reason: point.figure.as_ref().err().map(ToString::to_string),
    }
}

#[derive(Debug, Serialize)]
struct BesideObject {
    block_kib: u64,
    theirs: f64,
    model: f64,
    measured: Option<f64>,
    model_difference_percent: f64,
    reason: Option<String>,
    their_unmap_change_percent: f64,
    model_unmap_change_percent: f64,
    measured_unmap_change_percent: Option<f64>,
    measured_map_change_percent: Option<f64>,
}

fn beside(beside: &Beside) -> BesideObject {
    let model = &beside.model;
    BesideObject {
        block_kib: model.theirs.block.0 >> 10,
        theirs: model.theirs.ratio,
        model: model.ratio,
        measured: beside.ratio,
        model_difference_percent: model.difference(),
        reason: model.reason(),
        their_unmap_change_percent: model.theirs.unmap_change,
        model_unmap_change_percent: model.unmap_change,
        measured_unmap_change_percent: beside.unmap_change,
        measured_map_change_percent: beside.map_change,
    }
}

#[derive(Debug, Serialize)]
struct LineObject {
    what: String,
    value: Option<f64>,
    unit: &'static str,
    reason: Option<String>,
}

fn line(line: &Line) -> LineObject {
    LineObject {
        what: line.what.clone(),
        value: line.value.as_ref().ok().copied(),
        unit: line.unit.name(),
        reason: line.value.as_ref().err().cloned(),
    }
}

pub(super) fn object(study: &Study, filter: &Filter) -> impl Serialize {
    let rows = study.cells.iter().flat_map(|cell| {
        let shown = cell.rows.iter().filter(|row| filter.shows(row.policy));
        shown.map(|one| row(cell, one))
    });
    let points = study.points.iter().filter(|p| filter.shows(p.policy));
    Object {
        rows: rows.collect(),
        in_flight: points.map(point).collect(),
        bounce21: study.bounce21().iter().map(beside).collect(),
        summary: study.summary().iter().map(line).collect(),
    }
}
