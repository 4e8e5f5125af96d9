// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Misses against the size of the IOTLB.

use super::{BOTTOM, HEIGHT, LEFT, TOP, WIDTH, open};
use crate::report::verdict::{DeviceVerdict, SizePoint};
use ioatlas_present::html::escaped;
use ioatlas_present::short;
use ioatlas_present::svg::{self, Axis, line, round_up, series, text};
use std::fmt::Write;

/// Lines with a name at their end; of more the page has a key.
pub(in crate::report) const MOST_NAMED: usize = 8;

/// Characters of such a name, and room for them.
const NAME: usize = 18;
const NAME_ROOM: f64 = 170.0;
/// From one name down to the next.
const NAME_HEIGHT: f64 = 17.0;

/// Misses in 100 accesses against the entries of the IOTLB, a line a device; empty where there is
/// nothing to draw.
pub(in crate::report) fn size_curve(title: &str, verdicts: &[DeviceVerdict]) -> String {
    let points = || verdicts.iter().flat_map(|verdict| &verdict.sizes);
    let largest = points()
        .map(|point| point.misses_per_100_accesses.value)
        .fold(1.0, f64::max);
    let entries = || points().map(|point| (point.entries as f64).log2());
    let (from, to) = (
        entries().fold(f64::MAX, f64::min),
        entries().fold(0.0, f64::max),
    );
    if from >= to {
        return String::new();
    }
    let are_named = verdicts.len() <= MOST_NAMED;
    let right = WIDTH - if are_named { NAME_ROOM } else { 24.0 };
    let x = Axis {
        from,
        to,
        start: LEFT + 8.0,
        end: right - 8.0,
    };
    let y = Axis {
        from: 0.0,
        to: round_up(largest),
        start: BOTTOM,
        end: TOP,
    };
    let mut svg = open(title, WIDTH, HEIGHT);
    for step in 0..=5 {
        let value = y.to * f64::from(step) / 5.0;
        let up = y.at(value);
        line(&mut svg, "grid", (LEFT, right), (up, up));
        text(&mut svg, LEFT - 6.0, up + 4.0, "end", &format!("{value}"));
    }
    if let Some(first) = verdicts.first() {
        for point in &first.sizes {
            let place = x.at((point.entries as f64).log2());
            let words = point.entries.to_string();
            text(&mut svg, place, BOTTOM + 20.0, "middle", &words);
        }
    }
    let middle = (LEFT + right) / 2.0;
    text(&mut svg, middle, HEIGHT - 6.0, "middle", "IOTLB entries");
    let mut ends = Vec::new();
    for (number, verdict) in verdicts.iter().enumerate() {
        let class = series(number);
        let place = |point: &SizePoint| {
            (
                x.at((point.entries as f64).log2()),
                y.at(point.misses_per_100_accesses.value),
            )
        };
        let _ = write!(
            svg,
            "<polyline class=\"{class}\" points=\"{}\"/>",
            svg::points(verdict.sizes.iter().map(place))
        );
        for point in &verdict.sizes {
            let (cx, cy) = place(point);
            let _ = write!(
                svg,
                "<circle class=\"{class}\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"3.5\"><title>{} {}: \
                 {} of 100 accesses miss with {} entries</title></circle>",
                escaped(&verdict.trace),
                escaped(&verdict.device),
                point.misses_per_100_accesses.text(),
                point.entries
            );
        }
        ends.push(verdict.sizes.last().map_or(BOTTOM, |point| place(point).1));
    }
    if are_named {
        for ((number, verdict), up) in verdicts.iter().enumerate().zip(apart(&ends)) {
            let class = series(number);
            let _ = write!(
                svg,
                "<text class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                right + 2.0,
                up + 4.5,
                escaped(&name(verdict, verdicts))
            );
        }
    }
    svg + "</svg>"
}

/// A short name that tells a device from the others: its trace, and itself where that has more.
fn name(verdict: &DeviceVerdict, all: &[DeviceVerdict]) -> String {
    let of_trace = all.iter().filter(|other| other.trace == verdict.trace);
    if of_trace.count() < 2 {
        return short(&verdict.trace, NAME);
    }
    let device = short(&verdict.device, NAME - 4);
    let room = NAME - 1 - device.chars().count();
    format!("{} {device}", short(&verdict.trace, room))
}

/// Heights for names, each near its own, that do not overlap.
fn apart(wanted: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|a, b| wanted[*a].total_cmp(&wanted[*b]));
    let mut heights = wanted.to_vec();
    // from the top down, then up again where the lowest would leave the drawing
    let mut free = TOP;
    for at in &order {
        heights[*at] = heights[*at].max(free);
        free = heights[*at] + NAME_HEIGHT;
    }
    let mut free = BOTTOM;
    for at in order.iter().rev() {
        heights[*at] = heights[*at].min(free);
        free = heights[*at] - NAME_HEIGHT;
    }
    heights
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_lines_that_end_together_stand_apart() {
        for wanted in [
            vec![100.0, 101.0, 99.0, 200.0],
            vec![BOTTOM; MOST_NAMED],
            vec![TOP; MOST_NAMED],
            Vec::new(),
        ] {
            let mut heights = apart(&wanted);
            heights.sort_by(f64::total_cmp);
            for pair in heights.windows(2) {
                assert!(pair[1] - pair[0] >= NAME_HEIGHT - 1e-9, "{heights:?}");
            }
            assert!(heights.iter().all(|height| (TOP..=BOTTOM).contains(height)));
        }
    }
}
