// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The page's table of systems: what each costs and how safe it is.

use super::{more_traces, not_measured};
use crate::report::{
    model::Report,
    systems::{Exposure, SystemOnTrace, SystemRow},
};
use ioatlas_present::html::{Column, Order, chip, escaped, number, quantity, sentence, wide_table};
use ioatlas_present::{Figure, Tag};
use std::fmt::Write;

/// Rows of the table of traces.
const MAX_DETAILS: usize = 96;

pub(super) fn systems(report: &Report) -> String {
    if report.systems.is_empty() && !report.captures.is_empty() {
        return String::new();
    }
    if report.systems.is_empty() {
        return "<section><h2>Systems</h2><p>None was run.</p></section>\n".into();
    }
    // the same whatever the traces, then what follows from the traces, run again here
    let columns = [
        Column::words("system"),
        Column::words("design"),
        Column::numbers("this machine: time a pair, ns, 1 thread").of(Tag::Measured),
        Column::numbers("this machine: 2 threads, each").of(Tag::Measured),
        Column::numbers("traces: invalidations per 1,000 maps"),
        Column::numbers("traces: wait a map, ns").of(Tag::Assumed),
        Column::numbers("traces: misses per 1,000 maps").of(Tag::Simulated),
        Column::numbers("traces: tables, KiB"),
        Column::numbers("window: unmaps or time").of(Tag::Assumed),
        Column::numbers("traces: window seen"),
    ];
    let rows: String = report.systems.iter().map(system_row).collect();
    let table = wide_table(&columns, Order::Sortable, &rows);
    let sentences = [
        Some(report.wait_sentence()),
        report.oracle_sentence(),
        report.attempts_sentence(),
        report.bouncing.map(|bouncing| bouncing.sentence()),
    ];
    let closing: String = sentences
        .iter()
        .flatten()
        .map(|words| format!("<p>{}</p>", sentence(words)))
        .collect();
    format!(
        "<section><h2>Systems {}</h2>{}{closing}<details><summary>What each design costs, and how safe it is</summary>\
         <p class=\"note\">The designs as implemented here, not the kernels&#39; code; (no system): a design that no system ships; batches of 16: a driver that unmaps \
         16 mappings by one call. \
         Time a pair: wall time of a map and its unmap on this machine, on a ring of 256 single pages, without any invalidation \
         and whatever the traces (in brackets: 10th to 90th percentile). Wait: the invalidations that a map of the traces causes, times what \
         one is assumed to take; - where maps and unmaps go on meanwhile. Of more than 8 designs each is measured for a shorter time; - where it was not measured: fewer than two \
         CPUs, or a machine too busy to run both threads at once. Tables: page-table memory at \
         its peak; a deferred design has more IOVAs retired at any time, hence more tables: compare at equal traffic \
         only.</p>{table}</details>{}{}</section>\n",
        chip(Tag::Counted),
        not_measured(report),
        checks(report),
        each_trace(report),
    )
}

/// What the self-check of the designs found.
fn checks(report: &Report) -> String {
    let columns = [
        Column::words("system"),
        Column::words("design"),
        Column::numbers("unmapped pages tried: blocked"),
        Column::numbers("stale, within the window"),
        Column::numbers("violations"),
        Column::numbers("accesses checked"),
        Column::numbers("lines skipped: anomalies"),
        Column::numbers("limits"),
    ];
    let line = |row: &SystemRow| {
        let figures = [
            row.attempts_blocked,
            row.attempts_stale,
            row.violations,
            row.oracle_checked_accesses,
            row.skipped_anomalies,
            row.skipped_limits,
        ];
        let cells: String = figures.iter().map(|of| cell(&number(of))).collect();
        let (system, design) = (escaped(row.system()), escaped(&row.design));
        format!("<tr><td>{system}</td><td>{design}</td>{cells}</tr>")
    };
    let rows: String = report.systems.iter().map(line).collect();
    format!(
        "<details><summary>What was checked while they ran</summary>{}</details>",
        wide_table(&columns, Order::Fixed, &rows)
    )
}

fn each_trace(report: &Report) -> String {
    let shown = (MAX_DETAILS / report.systems.len()).max(1);
    let columns = [
        Column::words("system"),
        Column::words("trace"),
        Column::numbers("maps"),
        Column::numbers("unmaps"),
        Column::numbers("invalidations"),
        Column::numbers("misses").of(Tag::Simulated),
        Column::numbers("tables, KiB"),
        Column::numbers("anomalies skipped"),
        Column::numbers("limits"),
        Column::numbers("tries on unmapped pages blocked"),
        Column::numbers("stale"),
        Column::numbers("violations"),
        Column::numbers("accesses checked"),
    ];
    let rows = report.systems.iter();
    let rows: String = rows.map(|row| system_details(row, shown)).collect();
    let traces = report.systems.iter().map(|row| row.per_trace.len()).max();
    let rows = rows + &more_traces(traces.unwrap_or(0), shown);
    format!(
        "<details><summary>Each trace</summary>{}</details>",
        wide_table(&columns, Order::Fixed, &rows)
    )
}

fn cell(content: &str) -> String {
    format!("<td class=\"r\">{content}</td>")
}

fn system_row(row: &SystemRow) -> String {
    let (window, seen) = exposure(&row.exposure);
    let cells = [
        timed(row.ns_per_pair_1_thread, row.ns_per_pair_1_thread_range),
        timed(row.ns_per_pair_2_threads, row.ns_per_pair_2_threads_range),
        number(&row.invalidations_per_1k_maps),
        row.wait.as_ref().map_or("-".into(), number),
        row.misses_per_1k_maps.as_ref().map_or("-".into(), number),
        number(&row.table_memory),
        window,
        seen,
    ];
    let cells: String = cells.iter().map(|content| cell(content)).collect();
    format!(
        "<tr><td class=\"w\"{}>{}</td><td class=\"design\">{}<br><span class=\"note\">{}</span></td>{cells}</tr>",
        row.shipped_by
            .map_or(String::new(), |by| format!(" title=\"{}\"", escaped(by))),
        escaped(row.system()),
        escaped(&row.design),
        escaped(&row.paper_ref)
    )
}

/// A median and its range; `-` if there is none.
fn timed(median: Option<Figure>, range: Option<[Figure; 2]>) -> String {
    let (Some(median), Some([low, high])) = (median, range) else {
        return "-".into();
    };
    format!(
        "{}<br><span class=\"note w\">({} to {})</span>",
        number(&median),
        number(&low),
        number(&high)
    )
}

/// The bound of a window, and what was seen of it.
fn exposure(exposure: &Exposure) -> (String, String) {
    let unmaps = |of: &Figure| format!("{} unmaps", number(of));
    match exposure {
        Exposure::None => ("none".into(), "-".into()),
        Exposure::Bounded {
            operations_bound,
            time_bound,
            operations_observed,
            time_observed,
        } => {
            let time = match time_bound {
                Some(time) => format!("{} + 1 tick", quantity(time)),
                None => "what the unit takes".into(),
            };
            let bound = format!("{time}, or {}", unmaps(operations_bound));
            let mut seen = unmaps(operations_observed);
            if let Some(time) = time_observed {
                let _ = write!(seen, "<br>{}", quantity(time));
                if time_bound.is_none() {
                    seen += "<br>(the software unit is done at once)";
                }
            }
            (bound, seen)
        }
        Exposure::Unbounded {
            operations_observed,
        } => ("unbounded".into(), unmaps(operations_observed)),
    }
}

fn system_details(row: &SystemRow, traces: usize) -> String {
    let line = |on: &SystemOnTrace| {
        let figures = [
            Some(on.maps),
            Some(on.unmaps),
            Some(on.invalidations),
            on.misses,
            Some(on.table_memory),
            Some(on.skipped_anomalies),
            Some(on.skipped_limits),
            Some(on.attempts_blocked),
            Some(on.attempts_stale),
            Some(on.violations),
            Some(on.oracle_checked_accesses),
        ];
        let cells: String = figures
            .iter()
            .map(|f| f.as_ref().map_or("-".into(), number))
            .map(|shown| cell(&shown))
            .collect();
        format!(
            "<tr><td>{}</td><td>{}</td>{cells}</tr>",
            escaped(&row.name),
            escaped(&on.trace)
        )
    };
    row.per_trace.iter().take(traces).map(line).collect()
}
