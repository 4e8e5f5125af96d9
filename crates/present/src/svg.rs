// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What drawings are made of. Colours and fonts are those of the page that a drawing is part of, so
//! that dark mode and printing work.

use crate::html::escaped;
use std::fmt::Write;

/// Colours of series in `page.css`; the seventh series has the first's again, and so a line of its
/// is dotted.
pub const SERIES: usize = 6;

/// Class of the n-th series.
#[must_use]
pub fn series(number: usize) -> String {
    format!("s{}", number % SERIES)
}

/// An axis: numbers to places.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    /// The number at its start.
    pub from: f64,
    /// The number at its end.
    pub to: f64,
    /// The place of its start.
    pub start: f64,
    /// The place of its end.
    pub end: f64,
}

impl Axis {
    /// The place of a number.
    #[must_use]
    pub fn at(&self, value: f64) -> f64 {
        self.start + (value - self.from) / (self.to - self.from) * (self.end - self.start)
    }
}

/// The next of 1, 2, 5, 10, 20, ... at or above `value`.
#[must_use]
pub fn round_up(value: f64) -> f64 {
    let power = 10f64.powf(value.max(1e-9).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .find(|step| step * power >= value * 0.999_999);
    step.unwrap_or(10.0) * power
}

/// Words at a place, on the side of it that `anchor` says: start, middle or end.
pub fn text(svg: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    // Writing to a string cannot fail.
    let _ = write!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>",
        escaped(words)
    );
}

/// A line between two numbers along and two numbers up.
pub fn line(svg: &mut String, class: &str, x: (f64, f64), y: (f64, f64)) {
    let _ = write!(
        svg,
        "<line class=\"{class}\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>",
        x.0, x.1, y.0, y.1
    );
}

/// The places that a polyline goes through, as its attribute has them.
#[must_use]
pub fn points(places: impl IntoIterator<Item = (f64, f64)>) -> String {
    let places = places.into_iter().map(|(x, y)| format!("{x:.1},{y:.1}"));
    places.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers() {
        for (value, end) in [
            (1.0, 1.0),
            (1.1, 2.0),
            (37.0, 50.0),
            (50.0, 50.0),
            (501.0, 1000.0),
        ] {
            assert_eq!(round_up(value), end);
        }
    }
}
