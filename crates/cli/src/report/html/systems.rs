// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The page's table of systems: what each costs and how safe it is.

use super::more_traces;
use crate::report::{
    model::Report,
    systems::{Exposure, SystemOnTrace, SystemRow},
};
use ioatlas_present::html::{chip, escaped, number, quantity, sentence};
use ioatlas_present::{Figure, Tag};
use std::fmt::Write;

/// Rows of the table of traces.
const MAX_DETAILS: usize = 192;

pub(super) fn systems(report: &Report) -> String {
    if report.systems.is_empty() && !report.captures.is_empty() {
        return String::new();
    }
    if report.systems.is_empty() {
        return "<section><h2>Systems</h2><p>None was run.</p></section>\n".into();
    }
    let heading = |name: &str, tag: Tag| {
        let chip = chip(tag);
        format!("<th class=\"r\" aria-sort=\"none\"><button>{name}</button> {chip}</th>")
    };
    let headings = [
        heading("time a pair, ns, 1 thread (this machine)", Tag::Measured),
        heading("2 threads, each", Tag::Measured),
        heading("wait a map, ns", Tag::Assumed),
        heading("invalidations per 1,000 maps", Tag::Counted),
        heading("misses per 1,000 maps", Tag::Simulated),
        heading("tables, KiB", Tag::Counted),
        heading("window: unmaps or time", Tag::Assumed),
        heading("unmapped pages tried: blocked, stale", Tag::Counted),
        heading("violations", Tag::Counted),
        heading("accesses checked", Tag::Counted),
        heading("lines skipped: anomalies, limits", Tag::Counted),
    ]
    .concat();
    let rows: String = report.systems.iter().map(system_row).collect();
    let shown = (MAX_DETAILS / report.systems.len()).max(1);
    let details: String = report
        .systems
        .iter()
        .map(|row| system_details(row, shown))
        .collect();
    let traces = report.systems.iter().map(|row| row.per_trace.len()).max();
    let details = details + &more_traces(traces.unwrap_or(0), shown);
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
        "<section><h2>Systems</h2><p class=\"note\">The designs as implemented here, not the kernels&#39; code; (no system): a design that no system ships. \
         Time a pair: wall time of a map and its unmap on this machine, on a ring of 256 single pages, without any invalidation \
         and whatever the traces (in brackets: 10th to 90th percentile). Wait: the invalidations that a map of the traces causes, times what \
         one is assumed to take; - where maps and unmaps go on meanwhile. Of more than 8 designs each is measured for a shorter time; - where it was not measured: fewer than two \
         CPUs, or a machine too busy to run both threads at once. Tables: page-table memory at \
         its peak; a deferred design has more IOVAs retired at any time, hence more tables: compare at equal traffic \
         only.</p><div class=\"scroll\"><table class=\"sortable\"><thead><tr>\
         <th aria-sort=\"none\"><button>system</button></th><th>design</th>{headings}</tr></thead>\
         <tbody>{rows}</tbody></table></div>{closing}\
         <details><summary>Each trace</summary><p class=\"note\">Misses {0}, all else {1}.</p><div class=\"scroll\"><table><thead><tr><th>system</th>\
         <th>trace</th><th class=\"r\">maps</th><th class=\"r\">unmaps</th><th class=\"r\">invalidations</th><th class=\"r\">misses</th>\
         <th class=\"r\">tables, KiB</th><th class=\"r\">anomalies skipped</th><th class=\"r\">limits</th>\
         <th class=\"r\">tries on unmapped pages blocked</th><th class=\"r\">stale</th>\
         <th class=\"r\">violations</th><th class=\"r\">accesses checked</th></tr></thead><tbody>{details}</tbody></table></div></details></section>\n",
        chip(Tag::Simulated),
        chip(Tag::Counted),
    )
}

fn system_row(row: &SystemRow) -> String {
    let cell = |content: String| format!("<td class=\"r\">{content}</td>");
    let cells = [
        cell(timed(
            Some(row.ns_per_pair_1_thread),
            Some(row.ns_per_pair_1_thread_range),
        )),
        cell(timed(
            row.ns_per_pair_2_threads,
            row.ns_per_pair_2_threads_range,
        )),
        cell(row.wait.as_ref().map_or("-".into(), number)),
        cell(number(&row.invalidations_per_1k_maps)),
        cell(row.misses_per_1k_maps.as_ref().map_or("-".into(), number)),
        cell(number(&row.table_memory)),
        format!("<td class=\"r w\">{}</td>", exposure(&row.exposure)),
        cell(format!(
            "{}, {}",
            number(&row.attempts_blocked),
            number(&row.attempts_stale)
        )),
        cell(number(&row.violations)),
        cell(number(&row.oracle_checked_accesses)),
        cell(skipped(row)),
    ]
    .concat();
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

fn skipped(row: &SystemRow) -> String {
    let (anomalies, limits) = (&row.skipped_anomalies, &row.skipped_limits);
    if anomalies.value + limits.value == 0.0 {
        return "-".into();
    }
    format!("{}, {}", number(anomalies), number(limits))
}

fn exposure(exposure: &Exposure) -> String {
    match exposure {
        Exposure::None => "none".into(),
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
            let mut html = format!(
                "{time}, or {} unmaps<span class=\"note\"><br>seen {} unmaps {}",
                number(operations_bound),
                number(operations_observed),
                chip(operations_observed.tag),
            );
            if let Some(time) = time_observed {
                let _ = write!(html, "<br>seen {} {}", quantity(time), chip(time.tag));
                if time_bound.is_none() {
                    html += "<br>(the software unit is done at once)";
                }
            }
            html + "</span>"
        }
        Exposure::Unbounded {
            operations_observed,
        } => format!(
            "unbounded<span class=\"note\"><br>seen {} unmaps {}</span>",
            number(operations_observed),
            chip(operations_observed.tag),
        ),
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
            .map(|shown| format!("<td class=\"r\">{shown}</td>"))
            .collect();
        format!(
            "<tr><td>{}</td><td>{}</td>{cells}</tr>",
            escaped(&row.name),
            escaped(&on.trace)
        )
    };
    row.per_trace.iter().take(traces).map(line).collect()
}
