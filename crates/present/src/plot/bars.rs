// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Bars, lying, so that their names can be long: groups of one bar a series, or one bar of parts.

use super::{CHARACTER, Frame, Scale};
use crate::html::escaped;
use crate::svg::{series, text};
use crate::{Cell, Table};
use std::fmt::Write;

/// Thickness of a bar.
const BAR: f64 = 9.0;
/// Space between two groups.
const GAP: f64 = 8.0;

/// The bars of one colour.
#[derive(Clone, Debug)]
pub struct Series {
    /// What they are of.
    pub name: String,
    /// A number a group, if there is one.
    pub values: Vec<Option<f64>>,
}

/// How the bars of a group lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arrangement {
    /// One below the other, each with its number.
    #[default]
    Beside,
    /// One behind the other: parts of a whole.
    Stacked,
}

/// Groups of bars, each with a bar of every series that has a number for it.
#[derive(Clone, Debug, Default)]
pub struct Bars {
    /// How those of a group lie.
    pub arrangement: Arrangement,
    /// Names of the groups, from the top.
    pub groups: Vec<String>,
    /// One bar in each.
    pub series: Vec<Series>,
}

impl Bars {
    /// Adds the bars of one colour.
    pub fn with(mut self, name: impl Into<String>, values: Vec<Option<f64>>) -> Self {
        self.series.push(Series {
            name: name.into(),
            values,
        });
        self
    }

    /// The largest number; of parts, the largest whole.
    pub fn highest(&self) -> f64 {
        if self.arrangement == Arrangement::Stacked {
            let whole = |nth: usize| -> f64 {
                let parts = self.series.iter().filter_map(|one| one.values.get(nth));
                parts.flatten().sum()
            };
            return (0..self.groups.len()).map(whole).fold(0.0, f64::max);
        }
        let all = self
            .series
            .iter()
            .flat_map(|one| one.values.iter().flatten());
        all.copied().fold(0.0, f64::max)
    }

    fn group(&self) -> f64 {
        self.thick() + GAP
    }

    /// All bars of a group together.
    fn thick(&self) -> f64 {
        match self.arrangement {
            Arrangement::Beside => BAR * self.series.len().max(1) as f64,
            Arrangement::Stacked => 2.0 * BAR,
        }
    }

    /// Where the bar of a group begins with its part `from`, along, and where it ends below.
    pub(super) fn under(&self, top: f64, group: usize, from: usize) -> (f64, f64) {
        let before = match self.arrangement {
            Arrangement::Beside => 0.0,
            Arrangement::Stacked => {
                let parts = self.series.iter().take(from);
                let parts = parts.filter_map(|one| one.values.get(group).copied().flatten());
                parts.sum()
            }
        };
        let below = GAP + self.group() * group as f64 + self.thick();
        (before, top + below)
    }

    pub(super) fn height(&self) -> f64 {
        self.group() * self.groups.len().max(1) as f64 + GAP
    }

    pub(super) fn left(&self) -> f64 {
        let longest = self.groups.iter().map(|name| name.chars().count()).max();
        16.0 + longest.unwrap_or(0) as f64 * CHARACTER
    }
}

pub(super) fn draw(svg: &mut String, frame: &Frame<'_>, top: f64, bars: &Bars) {
    let start = frame.x.1.start;
    for (nth, name) in bars.groups.iter().enumerate() {
        let group = top + GAP + bars.group() * nth as f64;
        let middle = group + bars.thick() / 2.0;
        text(svg, start - 8.0, middle + 4.5, "end", name);
        let mut before = 0.0;
        for (number, one) in bars.series.iter().enumerate() {
            let Some(value) = one.values.get(nth).copied().flatten() else {
                continue;
            };
            let (start, end, up, thick) = match bars.arrangement {
                Arrangement::Beside => (
                    start,
                    frame.across(value),
                    group + BAR * number as f64,
                    BAR - 1.0,
                ),
                Arrangement::Stacked => {
                    let from = frame.across(before);
                    before += value;
                    (from, frame.across(before), group, bars.thick() - 1.0)
                }
            };
            // Writing to a string cannot fail.
            let _ = write!(
                svg,
                "<rect class=\"{}\" x=\"{start:.1}\" y=\"{up:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{}, {}: {value:.1}</title></rect>",
                series(number),
                (end - start).max(0.5),
                thick,
                escaped(name),
                escaped(&one.name)
            );
            if bars.arrangement == Arrangement::Stacked {
                continue;
            }
            let _ = write!(
                svg,
                "<text class=\"value\" x=\"{:.1}\" y=\"{:.1}\">{value:.1}</text>",
                end + 4.0,
                up + BAR - 1.0
            );
        }
    }
}

/// A row for each group, a column for each colour.
pub(super) fn table(x: &Scale, y: &Scale, bars: &Bars) -> Table {
    let mut columns = vec![y.name.clone()];
    let named = |one: &Series| format!("{}: {}", x.name, one.name);
    columns.extend(bars.series.iter().map(named));
    let row = |(nth, name): (usize, &String)| {
        let mut row = vec![Cell::from(name.as_str())];
        row.extend(bars.series.iter().map(|one| {
            let value = one.values.get(nth).copied().flatten();
            value.map_or(Cell::from(""), Cell::Number)
        }));
        row
    };
    Table::of(columns, bars.groups.iter().enumerate().map(row))
}
