// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What `cargo lab scale` prints for people: results first, then why those out of range are, then
//! points.

use super::{
    Scale,
    arguments::ScaleArguments,
    points::{LONGEST_MS, PRECISION},
    rows::Row,
};
use ioatlas_present::{Table, grouped, rounded, wrapped};
use ioatlas_sim::timing::params::Origin;

/// More points than this are shown on demand only.
const MOST_POINTS: usize = 100;
/// Columns of a terminal that notes may have.
const WIDTH: usize = 100;
/// Columns of the table of points.
const COLUMNS: usize = 14;

pub(super) fn plain(scale: &Scale, arguments: &ScaleArguments) -> String {
    let mut text = String::new();
    if !scale.rows.is_empty() {
        text += &results(scale);
        text.push('\n');
    }
    match scale.points.len() {
        count if count > MOST_POINTS && !arguments.points && !arguments.lines => {
            text += &format!("{count} points: --points shows them.\n");
        }
        _ => text += &points(scale, arguments),
    }
    let count = |origin| {
        let all = scale.parameters.iter();
        all.filter(|p| p.origin == origin).count()
    };
    text += &format!(
        "\n{} parameters: {} published, {} measured, {} fitted, {} free (--json lists them).\n",
        scale.parameters.len(),
        count(Origin::Published),
        count(Origin::Measured),
        count(Origin::Fitted),
        count(Origin::Free),
    );
    text + &in_range(scale)
}

/// How many results are in range, of those that are evidence; nothing where there are none.
fn in_range(scale: &Scale) -> String {
    let rows = || scale.rows.iter().map(|noted| &noted.row);
    let evidence = rows().filter(|row| row.kind.is_evidence());
    let (all, within) = (
        evidence.clone().count(),
        evidence.filter(|row| row.in_range),
    );
    if all == 0 {
        return String::new();
    }
    format!(
        "{} of {all} predictions in range; {} fitted rows and inputs are no evidence.\n",
        within.count(),
        rows().count() - all
    )
}

fn results(scale: &Scale) -> String {
    let mut table = Table::new([
        "result (ATC'15)",
        "paper",
        "ours",
        "",
        "ours/paper",
        "range",
        "how",
    ])
    .aligned("llrlrl");
    for Row {
        name,
        paper,
        ours,
        ratio,
        unit,
        kind,
        in_range,
        low,
        high,
        ..
    } in scale.rows.iter().map(|noted| &noted.row)
    {
        let range = format!("{low} to {high}");
        let out = if *in_range { "" } else { ", out of it" };
        table.row([
            (*name).into(),
            (*paper).into(),
            format!("{ours:.2}"),
            (*unit).into(),
            rounded(*ratio, 2),
            range + out,
            kind.name().into(),
        ]);
    }
    let mut text = table.text("");
    for noted in &scale.rows {
        if let Some(note) = noted.note {
            let note = format!("{}: {note}", noted.row.name);
            text += &format!("\n{}", wrapped(&note, WIDTH, 0, 2));
        }
    }
    text
}

fn points(scale: &Scale, arguments: &ScaleArguments) -> String {
    let mut table = Table::new([
        "workload",
        "CPUs",
        "system",
        "per second",
        "+-%",
        "relative",
        "latency us",
        "IOVA",
        "lock",
        "inval.",
        "lock",
        "tables",
        "other",
        "transfers",
    ])
    .aligned("lrlr");
    for point in &scale.points {
        let percent = |part: f64| format!("{:.1}", 100.0 * part);
        let cycles = &point.cycles;
        table.row([
            point.workload.into(),
            point.cpus.to_string(),
            point.design.clone().unwrap_or_else(|| point.system.clone()),
            grouped(point.per_second as u64),
            uncertainty(point.uncertainty),
            format!("{:.3}", point.relative),
            format!("{:.1}", point.latency_us),
            percent(cycles.iova),
            percent(cycles.iova_lock),
            percent(cycles.invalidation),
            percent(cycles.invalidation_lock),
            percent(cycles.tables),
            percent(cycles.other),
            format!("{:.2}", point.transfers),
        ]);
        if arguments.lines {
            for line in &point.lines {
                let mut cells = vec![String::new(); COLUMNS];
                cells[2] = format!("  {}", line.name);
                cells[COLUMNS - 2] = format!("{:.0}", line.cycles);
                cells[COLUMNS - 1] = format!("{:.2}", line.transfers);
                table.row(cells);
            }
        }
    }
    let mut text = table.text("");
    if arguments.lines {
        text += "Of lines: cycles of transfers and waits for them, and transfers, an operation.\n";
    }
    let unsure = scale.points.iter().filter(|p| p.uncertainty > PRECISION);
    let unsure = unsure.count();
    if unsure > 0 {
        text += &format!(
            "! {unsure} of {} points are known less well than to 1 % after {LONGEST_MS} simulated milliseconds, the most that is measured.\n",
            scale.points.len()
        );
    }
    text
}

/// In percent, marked where a point is known less well than was asked for.
fn uncertainty(part: f64) -> String {
    let mark = if part > PRECISION { "!" } else { "" };
    format!("{mark}{:.2}", 100.0 * part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_less_well_is_marked() {
        assert_eq!(uncertainty(0.0099), "0.99");
        assert_eq!(uncertainty(0.1223), "!12.23");
    }
}
