// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Dots: many events, each at its time and its pages.
//!
//! What falls on the same place of a fine grid is drawn once, so that a trace of any length makes a
//! drawing of bounded size; the numbers written are those drawn.

use super::{Frame, Scale};
use crate::svg::series;
use crate::{Cell, Table};
use std::collections::HashSet;
use std::fmt::Write;

/// Places of the grid along, over the whole width.
const COLUMNS: f64 = 1000.0;
/// Places of the grid up, over the whole height.
const ROWS: f64 = 400.0;

/// Up to this many are drawn large, or they would not be seen.
const FEW: usize = 20;
/// Up to this many are drawn a little larger than others.
const SOME: usize = 400;

/// An event: its time, and the pages it is about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dot {
    /// Its time, on the horizontal axis.
    pub at: f64,
    /// The lowest page, on the vertical axis.
    pub low: f64,
    /// The highest page; of a single one, the lowest as well.
    pub high: f64,
}

/// Events of one kind.
#[derive(Clone, Debug)]
pub struct Dots {
    /// What they are, for key and table.
    pub name: String,
    /// Number of their colour.
    pub colour: usize,
    dots: Vec<Dot>,
}

impl Dots {
    /// Those of `dots` that the grid over `x` and `y` tells apart.
    pub fn new(name: impl Into<String>, colour: usize, dots: &[Dot], x: &Scale, y: &Scale) -> Self {
        let (across, up) = (x.axis(0.0, COLUMNS), y.axis(0.0, ROWS));
        let mut seen = HashSet::new();
        let place = |dot: &Dot| {
            [across.at(dot.at), up.at(dot.low), up.at(dot.high)].map(|place| place.round() as i64)
        };
        let kept = dots.iter().filter(|dot| seen.insert(place(dot)));
        Dots {
            name: name.into(),
            colour,
            dots: kept.copied().collect(),
        }
    }

    /// Where they begin, along and up.
    pub(super) fn places(&self) -> impl Iterator<Item = (f64, f64)> {
        self.dots.iter().map(|dot| (dot.at, dot.low))
    }
}

pub(super) fn draw(svg: &mut String, frame: &Frame<'_>, all: &[Dots]) {
    for dots in all {
        let few = match dots.dots.len() {
            count if count <= FEW => " few",
            count if count <= SOME => " some",
            _ => "",
        };
        // Writing to a string cannot fail.
        let _ = write!(
            svg,
            "<path class=\"dots {}{few}\" d=\"",
            series(dots.colour)
        );
        for dot in &dots.dots {
            let (x, low, high) = (frame.across(dot.at), frame.up(dot.low), frame.up(dot.high));
            // a line of no length has round ends only: a dot
            let _ = write!(svg, "M{x:.1} {low:.1}V{high:.1}");
        }
        svg.push_str("\"/>");
    }
}

/// A row for each dot.
pub(super) fn table(x: &Scale, y: &Scale, all: &[Dots]) -> Table {
    let columns = [
        x.name.clone(),
        format!("{}: first, hexadecimal", y.name),
        "last".into(),
        "series".into(),
    ];
    let page = |value: f64| Cell::from(format!("{:x}", value as u64));
    let rows = all.iter().flat_map(|dots| {
        dots.dots.iter().map(move |dot| {
            vec![
                Cell::Number(dot.at),
                page(dot.low),
                page(dot.high),
                dots.name.as_str().into(),
            ]
        })
    });
    Table::of(columns, rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_told_apart_is_drawn_once() {
        let x = Scale::linear("", 0.0, 1_000_000.0);
        let y = Scale::pages("", 0, 255);
        let dot = |at: u32| Dot {
            at: f64::from(at),
            low: 7.0,
            high: 7.0,
        };
        let many: Vec<Dot> = (0..1_000_000).map(dot).collect();
        let dots = Dots::new("", 0, &many, &x, &y);
        assert!(dots.dots.len() <= 1001, "{}", dots.dots.len());
        let few = [dot(0), dot(5000), dot(5001)];
        assert_eq!(Dots::new("", 0, &few, &x, &y).dots, [few[0], few[1]]);
    }
}
