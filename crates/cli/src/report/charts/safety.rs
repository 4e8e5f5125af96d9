// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Cost against safety of the systems: what a map and unmap takes, and for how long a page stays
//! within reach.

use super::{BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, open};
use crate::report::systems::{Exposure, SystemRow};
use ioatlas_present::Figure;
use ioatlas_present::html::escaped;
use ioatlas_present::svg::{self, Axis, line, round_up, series, text};
use std::fmt::Write;

/// Nanoseconds a pair against the exposure window in milliseconds, a point a system that was
/// measured. A window that lasts as long as the unit takes is drawn as long as one invalidation is
/// assumed to take, `wait_ns`: the software unit is done at once.
pub(in crate::report) fn cost_against_safety(
    title: &str,
    systems: &[SystemRow],
    wait_ns: f64,
) -> String {
    let systems: Vec<(&SystemRow, Figure, f64)> = systems
        .iter()
        .filter_map(|row| Some((row, row.ns_per_pair_1_thread?, row.felt_ns_per_pair()?)))
        .collect();
    /// Height of the band at the bottom that stands for no window at all.
    const BAND: f64 = 56.0;
    /// Height of the band at the top that stands for windows without bound, where there are any.
    const OPEN: f64 = 40.0;
    let window = |row: &SystemRow| match row.exposure {
        Exposure::None => None,
        Exposure::Bounded {
            time_bound: None, ..
        } => Some((wait_ns / 1e6).max(1e-6)),
        Exposure::Bounded {
            time_bound: Some(bound),
            time_observed,
            ..
        } => Some(time_observed.unwrap_or(bound).value.max(1e-6)),
        // no number: drawn in the band at the top
        Exposure::Unbounded { .. } => Some(f64::INFINITY),
    };
    let dearest = systems.iter().fold(1.0, |most, of| of.2.max(most));
    let x = Axis {
        from: 0.0,
        to: round_up(dearest * 1.05),
        start: LEFT,
        end: RIGHT,
    };
    let windows = || {
        systems
            .iter()
            .filter_map(|of| window(of.0))
            .filter(|ms| ms.is_finite())
    };
    let (low, high) = (
        windows().fold(1.0, f64::min),
        windows().fold(10.0, f64::max),
    );
    let unbounded = systems
        .iter()
        .any(|of| window(of.0).is_some_and(f64::is_infinite));
    let top = if unbounded { TOP + OPEN } else { TOP };
    let y = Axis {
        from: low.log10().floor(),
        to: (high * 1.5).log10().ceil(),
        start: BOTTOM - BAND,
        end: top,
    };
    let mut svg = open(title, WIDTH, HEIGHT);
    let _ = write!(
        svg,
        "<rect class=\"band\" x=\"{LEFT}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{BAND}\"/>",
        BOTTOM - BAND,
        RIGHT - LEFT
    );
    text(
        &mut svg,
        LEFT - 6.0,
        BOTTOM - BAND / 2.0 + 4.0,
        "end",
        "none",
    );
    if unbounded {
        let _ = write!(
            svg,
            "<rect class=\"band\" x=\"{LEFT}\" y=\"{TOP:.1}\" width=\"{:.1}\" height=\"{OPEN}\"/>",
            RIGHT - LEFT
        );
        let middle = TOP + OPEN / 2.0 + 4.0;
        text(&mut svg, LEFT - 6.0, middle, "end", "unbounded");
    }
    for exponent in y.from as i32..=y.to as i32 {
        let place = y.at(f64::from(exponent));
        line(&mut svg, "grid", (LEFT, RIGHT), (place, place));
        text(
            &mut svg,
            LEFT - 6.0,
            place + 4.0,
            "end",
            &power_of_ms(exponent),
        );
    }
    for step in 0..=5 {
        let value = x.to * f64::from(step) / 5.0;
        text(
            &mut svg,
            x.at(value),
            BOTTOM + 18.0,
            "middle",
            &format!("{value}"),
        );
    }
    text(
        &mut svg,
        (LEFT + RIGHT) / 2.0,
        HEIGHT - 8.0,
        "middle",
        "ns a map + unmap, wait included",
    );
    let places: Vec<(f64, f64)> = systems
        .iter()
        .map(|(row, _, felt)| {
            let cy = match window(row) {
                None => BOTTOM - BAND / 2.0,
                Some(ms) if ms.is_finite() => y.at(ms.log10()),
                Some(_) => TOP + OPEN / 2.0,
            };
            (x.at(*felt), cy)
        })
        .collect();
    let steps = frontier(&places);
    let _ = write!(
        svg,
        "<polyline class=\"frontier\" points=\"{}\"/>",
        svg::points(steps.iter().copied())
    );
    for ((number, (row, time, _)), (cx, cy)) in systems.iter().enumerate().zip(&places) {
        let beaten = match is_beaten((*cx, *cy), &places) {
            true => " beaten",
            false => "",
        };
        let wait = match row.wait {
            Some(wait) => format!(" + {} wait", wait.with_unit()),
            None => String::new(),
        };
        let _ = write!(
            svg,
            "<circle class=\"{}{beaten}\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"6\"><title>{}: {}{}</title></circle>",
            series(number),
            escaped(&row.name),
            time.with_unit(),
            escaped(&wait)
        );
    }
    // of many, those that a system ships
    const NAMED: usize = 8;
    let name = |(row, ..): &(&SystemRow, Figure, f64)| {
        if systems.len() <= NAMED || row.shipped_by.is_some() {
            row.name.clone()
        } else {
            String::new()
        }
    };
    let names: Vec<String> = systems.iter().map(name).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for (number, label) in labels(&names, &places, &steps).iter().enumerate() {
        let _ = write!(
            svg,
            "<text class=\"name {}\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            series(number),
            label.left,
            label.baseline,
            escaped(names[number])
        );
    }
    svg + "</svg>"
}

/// Whether another point is cheaper or safer, and not worse in the other.
fn is_beaten((x, y): (f64, f64), points: &[(f64, f64)]) -> bool {
    // y grows downwards, to what is safer
    let better = |(a, b): &(f64, f64)| *a <= x && *b >= y && (*a < x || *b > y);
    points.iter().any(better)
}

/// The steps between the points that no other is both left of (cheaper) and below (safer).
fn frontier(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut sorted = points.to_vec();
    // Of equal cost the safest first: y grows downwards.
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
    let mut steps: Vec<(f64, f64)> = Vec::new();
    for (x, y) in sorted {
        match steps.last() {
            Some(&(_, safest)) if y <= safest => {}
            Some(&(_, safest)) => steps.extend([(x, safest), (x, y)]),
            None => steps.push((x, y)),
        }
    }
    steps
}

/// 10^`exponent` milliseconds in the unit that needs no point.
fn power_of_ms(exponent: i32) -> String {
    let (unit, exponent) = match exponent {
        0.. => ("ms", exponent),
        -3..0 => ("\u{b5}s", exponent + 3),
        _ => ("ns", exponent + 6),
    };
    format!("{} {unit}", 10f64.powi(exponent))
}

/// Where a name stands.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Label {
    left: f64,
    baseline: f64,
    width: f64,
}

impl Label {
    const HEIGHT: f64 = 14.0;

    fn overlaps(&self, other: &Label) -> bool {
        (self.left < other.left + other.width && other.left < self.left + self.width)
            && (self.baseline - other.baseline).abs() < Self::HEIGHT
    }

    /// Whether a line along or up runs through it.
    fn is_struck(&self, from: (f64, f64), to: (f64, f64)) -> bool {
        let (left, right) = (from.0.min(to.0), from.0.max(to.0));
        let (top, bottom) = (from.1.min(to.1), from.1.max(to.1));
        right > self.left
            && left < self.left + self.width
            && bottom > self.baseline - Self::HEIGHT + 1.0
            && top < self.baseline + 4.0
    }

    fn covers(&self, (x, y): (f64, f64)) -> bool {
        const RADIUS: f64 = 7.0;
        x + RADIUS > self.left
            && x - RADIUS < self.left + self.width
            && y + RADIUS > self.baseline - Self::HEIGHT + 3.0
            && y - RADIUS < self.baseline + 3.0
    }
}

/// A place for each point's name: beside it, else above or below it, the first that
/// meets no earlier name, no point, and none of the lines from step to step.
fn labels(names: &[&str], points: &[(f64, f64)], steps: &[(f64, f64)]) -> Vec<Label> {
    // of the font that a telephone has; a little too wide does no harm
    const CHARACTER: f64 = 7.6;
    let mut placed: Vec<Label> = Vec::new();
    for (name, &(x, y)) in names.iter().zip(points) {
        let width = name.chars().count() as f64 * CHARACTER;
        let at = |left: f64, baseline: f64| Label {
            left: left.clamp(LEFT, (RIGHT - width).max(LEFT)),
            baseline,
            width,
        };
        let mut candidates = vec![at(x + 10.0, y + 4.0), at(x - 10.0 - width, y + 4.0)];
        for step in 0..6 {
            let away = f64::from(step) * Label::HEIGHT;
            for left in [x - width / 2.0, x + 8.0, x - 8.0 - width] {
                candidates.push(at(left, y - 11.0 - away));
                candidates.push(at(left, y + 20.0 + away));
            }
        }
        let free = |label: &&Label| {
            placed.iter().all(|other| !label.overlaps(other))
                && points.iter().all(|&point| !label.covers(point))
                && steps
                    .windows(2)
                    .all(|ends| !label.is_struck(ends[0], ends[1]))
        };
        // With no free place the names overlap, and the table still tells them apart.
        let label = candidates.iter().find(free).unwrap_or(&candidates[0]);
        placed.push(*label);
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frontier_leaves_out_what_another_beats() {
        let cheap = (1.0, 10.0);
        let safe = (5.0, 90.0);
        let beaten = [(2.0, 9.0), (6.0, 90.0), (5.0, 80.0)];
        let points = [&beaten[..], &[safe, cheap]].concat();
        assert_eq!(frontier(&points), [cheap, (5.0, 10.0), safe]);
        assert!(beaten.iter().all(|&point| is_beaten(point, &points)));
        assert!(!is_beaten(cheap, &points) && !is_beaten(safe, &points));
        assert!(!is_beaten(cheap, &[cheap, cheap]), "one like it beats none");
        assert!(frontier(&[]).is_empty());
    }

    #[test]
    fn times_need_no_point() {
        let words = [-6, -4, -3, -1, 0, 2].map(power_of_ms);
        let expected = [
            "1 ns",
            "100 ns",
            "1 \u{b5}s",
            "100 \u{b5}s",
            "1 ms",
            "100 ms",
        ];
        assert_eq!(words, expected);
    }

    #[test]
    fn names_of_close_points_do_not_overlap() {
        let names = [
            "Linux today",
            "rbtree deferred",
            "Linux strict",
            "rbtree strict",
        ];
        for points in [
            [
                (90.0, 100.0),
                (110.0, 100.0),
                (112.0, 100.0),
                (400.0, 100.0),
            ],
            [(500.0, 50.0); 4],
        ] {
            let steps = frontier(&points);
            let labels = labels(&names, &points, &steps);
            for (number, label) in labels.iter().enumerate() {
                assert!(label.left >= LEFT && label.left + label.width <= RIGHT + 1.0);
                for ends in steps.windows(2) {
                    assert!(!label.is_struck(ends[0], ends[1]), "{label:?} {ends:?}");
                }
                for other in &labels[..number] {
                    assert!(!label.overlaps(other), "{label:?} {other:?}");
                }
            }
        }
    }
}
