// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Numbers of a document among ours: hollow, a ring for a number and a box for a range, in the
//! colour of the series that they are of.

use super::{Drawing, Frame};
use crate::html::escaped;
use crate::svg::series;
use crate::{Cell, Table};
use std::fmt::Write;

/// What the key calls them.
pub(super) const KEY: &str = "theirs, where the text has a number";
/// Half of a box that is of one place along.
const HALF: f64 = 6.0;

/// A number of the document, or the range in which it says one is.
#[derive(Clone, Debug)]
pub struct Theirs {
    /// What it is of.
    pub name: String,
    /// Number of the series that it is of; none of several.
    pub series: Option<usize>,
    /// Where it is.
    pub at: At,
}

/// Where a number of the document is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum At {
    /// From and to along, and from and to up; of one number both are the same.
    Place {
        /// Along.
        along: [f64; 2],
        /// Up.
        up: [f64; 2],
    },
    /// Under the bars of a group: as long as these parts of it, from the start of the first.
    Bar {
        /// Number of the group.
        group: usize,
        /// Number of the series with which it begins.
        from: usize,
        /// How long it is.
        length: f64,
    },
    /// Through all groups of bars, from and to along.
    Across([f64; 2]),
}

impl At {
    /// One number at one place.
    #[must_use]
    pub const fn dot(along: f64, up: f64) -> Self {
        At::Place {
            along: [along; 2],
            up: [up; 2],
        }
    }
}

fn class(theirs: &Theirs) -> String {
    let colour = theirs.series.map_or("ink".into(), series);
    format!("theirs {colour}")
}

/// The swatch of the key, at its middle.
pub(super) fn key(svg: &mut String, x: f64, y: f64) {
    ring(svg, "theirs ink", (x, y), "");
}

fn ring(svg: &mut String, class: &str, (x, y): (f64, f64), title: &str) {
    // Writing to a string cannot fail.
    let _ = write!(
        svg,
        "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"6\">{title}</circle>"
    );
}

fn area(
    svg: &mut String,
    class: &str,
    (left, right): (f64, f64),
    (top, bottom): (f64, f64),
    title: &str,
) {
    // Writing to a string cannot fail.
    let _ = write!(
        svg,
        "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\">{title}</rect>",
        (right - left).max(0.0),
        (bottom - top).max(0.0)
    );
}

pub(super) fn draw(
    svg: &mut String,
    frame: &Frame<'_>,
    top: f64,
    drawing: &Drawing,
    all: &[Theirs],
) {
    for theirs in all {
        let class = class(theirs);
        let title = format!(
            "<title>theirs, {}: {}</title>",
            escaped(&theirs.name),
            words(theirs.at)
        );
        match theirs.at {
            At::Place { along, up } => {
                let x = along.map(|value| frame.across(value));
                let y = up.map(|value| frame.up(value));
                if along[0] == along[1] && up[0] == up[1] {
                    ring(svg, &class, (x[0], y[0]), &title);
                } else if up[0] == up[1] {
                    // a level: as thick as a line
                    area(svg, &class, (x[0], x[1]), (y[0] - 1.5, y[0] + 1.5), &title);
                } else {
                    let wide = if x[0] == x[1] { HALF } else { 0.0 };
                    area(
                        svg,
                        &class,
                        (x[0] - wide, x[1] + wide),
                        (y[1], y[0]),
                        &title,
                    );
                }
            }
            At::Bar {
                group,
                from,
                length,
            } => {
                let Drawing::Bars(bars) = drawing else {
                    continue;
                };
                let (start, under) = bars.under(top, group, from);
                let x = (frame.across(start), frame.across(start + length));
                area(svg, &class, x, (under + 1.0, under + 5.0), &title);
            }
            At::Across(along) => {
                let x = along.map(|value| frame.across(value));
                let thin = if along[0] == along[1] { 1.0 } else { 0.0 };
                area(
                    svg,
                    &class,
                    (x[0] - thin, x[1] + thin),
                    (top, frame.bottom),
                    &title,
                );
            }
        }
    }
}

/// One number, or two.
fn span([low, high]: [f64; 2]) -> String {
    if low == high {
        Cell::Number(low).text()
    } else {
        format!(
            "{} to {}",
            Cell::Number(low).text(),
            Cell::Number(high).text()
        )
    }
}

fn words(at: At) -> String {
    match at {
        At::Place { up, .. } => span(up),
        At::Bar { length, .. } => Cell::Number(length).text(),
        At::Across(along) => span(along),
    }
}

/// The columns that they add to the table of a drawing, with `groups` of bars, if it has bars.
pub(super) fn columns(table: &mut Table, groups: usize, all: &[Theirs]) {
    for theirs in all {
        table.columns.push(format!("theirs: {}", theirs.name));
        for (nth, row) in table.rows.iter_mut().enumerate() {
            let here = match theirs.at {
                At::Place {
                    along: [from, to], ..
                } => {
                    matches!(row.first(), Some(Cell::Number(x)) if (from..=to).contains(x))
                }
                At::Bar { group, .. } => group == nth,
                At::Across(_) => nth < groups,
            };
            row.push(if here {
                words(theirs.at).into()
            } else {
                "".into()
            });
        }
    }
}

/// Places along at which a number is given, for rows of a table.
pub(super) fn along(all: &[Theirs]) -> impl Iterator<Item = f64> {
    let places = all.iter().filter_map(|theirs| match theirs.at {
        At::Place { along, .. } => Some(along),
        At::Bar { .. } | At::Across(_) => None,
    });
    places.flatten()
}
