// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Lines.

use super::{Frame, Scale};
use crate::html::escaped;
use crate::svg::{SERIES, points, series};
use crate::{Cell, Table};
use std::fmt::Write;

/// Up to this many, each number has a mark of its own.
const MARKED: usize = 12;

/// What a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stroke {
    /// Numbers: drawn without gaps, or as dots where the colour is another line's.
    Numbers,
    /// A level to compare numbers with: drawn with gaps.
    Level,
}

/// A series of numbers, drawn as one line.
#[derive(Clone, Debug)]
pub struct Line {
    /// What it is of.
    pub name: String,
    /// Whether it is numbers.
    pub stroke: Stroke,
    /// Its numbers: along and up.
    pub points: Vec<(f64, f64)>,
}

impl Line {
    /// Values at 0, 1, 2 ...
    pub fn counted(name: &str, values: Vec<f64>) -> Self {
        Line {
            name: name.into(),
            stroke: Stroke::Numbers,
            points: values
                .into_iter()
                .enumerate()
                .map(|(nth, value)| (nth as f64, value))
                .collect(),
        }
    }
}

pub(super) fn draw(svg: &mut String, frame: &Frame<'_>, lines: &[Line]) {
    for (number, line) in lines.iter().enumerate() {
        let class = series(number);
        let place = |&(x, y): &(f64, f64)| (frame.across(x), frame.up(y));
        let gaps = match line.stroke {
            Stroke::Numbers if number < SERIES => "",
            Stroke::Numbers => " again",
            Stroke::Level => " level",
        };
        // Writing to a string cannot fail.
        let _ = write!(
            svg,
            "<polyline class=\"{class}{gaps}\" points=\"{}\"><title>{}</title></polyline>",
            points(line.points.iter().map(place)),
            escaped(&line.name)
        );
        if line.points.len() <= MARKED {
            for point in &line.points {
                let (x, y) = place(point);
                let _ = write!(
                    svg,
                    "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>"
                );
            }
        }
    }
}

/// A row for each number along, those of `others` too, a column for each line.
pub(super) fn table(x: &Scale, lines: &[Line], others: impl Iterator<Item = f64>) -> Table {
    let names = lines.iter().map(|line| line.name.clone());
    let columns = [x.name.clone()].into_iter().chain(names);
    let mut along: Vec<f64> = lines
        .iter()
        .flat_map(|line| line.points.iter().map(|point| point.0))
        .chain(others)
        .collect();
    along.sort_by(f64::total_cmp);
    along.dedup();
    let row = |x: &f64| {
        let mut row = vec![Cell::Number(*x)];
        row.extend(lines.iter().map(|line| {
            let found = line.points.binary_search_by(|point| point.0.total_cmp(x));
            found.map_or(Cell::from(""), |at| Cell::Number(line.points[at].1))
        }));
        row
    };
    Table::of(columns, along.iter().map(row))
}
