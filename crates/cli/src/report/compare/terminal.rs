// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A comparison on a terminal.

use super::{Change, Comparison};
use crate::report::terminal::MAX_COLUMNS;
use ioatlas_present::{Figure, columns, printable};

/// Columns of a trace's name over its numbers.
const NAME: usize = 14;

/// The comparison in so many lines at most. Where its table is wider than the screen, each row is a
/// sentence, to go on in a line more.
pub(in crate::report) fn lines(comparison: &Comparison, room: usize, width: usize) -> Vec<String> {
    let closing = comparison.closing();
    // the heading, and what names devices that do not fit
    let room = room.saturating_sub(closing.len() + 2);
    let [before, after] = comparison.names(NAME);
    let mut rows = vec![[String::new(), before, after, "change".into(), String::new()]];
    rows.extend(comparison.all_devices.iter().map(row));
    // the name of each device stands over its rows, not in a column
    let mut names: Vec<(usize, String)> = Vec::new();
    let mut left = 0;
    let mut used = comparison.all_devices.len();
    for (at, device) in comparison.devices.iter().enumerate() {
        // of the first one the most telling numbers, if there is no room for all
        let fit = room.saturating_sub(used + 1);
        let whole = device.changes.len();
        if left > 0 || fit == 0 || (fit < whole && at > 0) {
            left += 1;
            continue;
        }
        names.push((rows.len(), device.name()));
        rows.extend(device.changes.iter().take(fit).map(row));
        used += 1 + whole.min(fit);
    }
    let mut lines = columns(
        "lrrrl",
        2,
        &rows.iter().map(|row| row.to_vec()).collect::<Vec<_>>(),
    );
    if lines.iter().any(|line| printable(line, width) != *line) && width < MAX_COLUMNS {
        lines = rows.iter().map(sentence).collect();
    }
    for (at, name) in names.into_iter().rev() {
        lines.insert(at, name);
    }
    if left > 0 {
        lines.push(format!("... {left} more devices: see the page"));
    }
    lines.extend(closing);
    lines
}

/// A row, or the heading, in words.
fn sentence([what, before, after, change, note]: &[String; 5]) -> String {
    let words = match what.as_str() {
        "" => format!("{before}, then {after} ({change}):"),
        what => format!("{what}: {before}, then {after} ({change}) {note}"),
    };
    words.trim_end().into()
}

fn row(change: &Change) -> [String; 5] {
    let shown = |figure: Option<Figure>| figure.map_or("-".into(), |figure| figure.with_unit());
    [
        format!("  {}", change.what),
        shown(change.before),
        shown(change.after),
        shown(change.change),
        match change.tag() {
            Some(tag) => format!("[{}] {}", tag.name(), change.note()),
            None => change.note().into(),
        },
    ]
}
