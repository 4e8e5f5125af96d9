// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a device did over the time of a capture, and how large its maps are.

use super::{TOP, open};
use crate::report::captures::Size;
use ioatlas_present::Figure;
use ioatlas_present::html::escaped;
use ioatlas_present::svg::{self, Axis, line, round_up, series, text};
use std::fmt::Write;

/// Three stand side by side, and need no more height than to tell a burst from a pause.
const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 170.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = WIDTH - 10.0;
const BOTTOM: f64 = HEIGHT - 46.0;

/// An axis up, from 0 to a round number, with its lines.
fn upright(svg: &mut String, values: impl Iterator<Item = f64>) -> Axis {
    let y = Axis {
        from: 0.0,
        to: round_up(values.fold(1.0, f64::max)),
        start: BOTTOM,
        end: TOP,
    };
    for part in [0.0, 0.5, 1.0] {
        let up = y.at(y.to * part);
        line(svg, "grid", (LEFT, RIGHT), (up, up));
        let value = y.to * part;
        let words = match value.fract() == 0.0 {
            true => ioatlas_present::grouped(value as u64),
            false => format!("{value}"),
        };
        text(svg, LEFT - 6.0, up + 4.0, "end", &words);
    }
    y
}

/// One number over the time of a capture, a step a slot.
pub(in crate::report) fn over_time(title: &str, values: &[f64], seconds: f64) -> String {
    let x = Axis {
        from: 0.0,
        to: values.len().max(1) as f64,
        start: LEFT,
        end: RIGHT,
    };
    let mut svg = open(title, WIDTH, HEIGHT);
    let y = upright(&mut svg, values.iter().copied());
    let time = |part: f64| Figure::time(seconds * 1e9 * part).with_unit();
    let middle = (LEFT + RIGHT) / 2.0;
    text(&mut svg, LEFT, BOTTOM + 20.0, "start", "0");
    text(&mut svg, middle, BOTTOM + 20.0, "middle", &time(0.5));
    text(&mut svg, RIGHT, BOTTOM + 20.0, "end", &time(1.0));
    text(&mut svg, middle, HEIGHT - 6.0, "middle", "time");
    let steps = values.iter().enumerate().flat_map(|(at, value)| {
        let height = y.at(*value);
        [(x.at(at as f64), height), (x.at((at + 1) as f64), height)]
    });
    let _ = write!(
        svg,
        "<polyline class=\"{}\" points=\"{}\"/></svg>",
        series(0),
        svg::points(steps)
    );
    svg
}

/// How many maps there are of each size, a bar a power of two; empty where there is none.
pub(in crate::report) fn size_histogram(title: &str, sizes: &[Size]) -> String {
    let power = |size: &Size| size.up_to.value.log2().round() as i32;
    let (Some(first), Some(last)) = (sizes.first().map(power), sizes.last().map(power)) else {
        return String::new();
    };
    /// A bar is no wider, however few there are.
    const WIDEST: f64 = 48.0;
    /// Bars with their size beneath: of more every second, third ...
    const NAMED: i32 = 5;
    let mut svg = open(title, WIDTH, HEIGHT);
    let y = upright(&mut svg, sizes.iter().map(|size| size.maps.value));
    let bars = last - first + 1;
    let step = ((RIGHT - LEFT) / f64::from(bars)).min(WIDEST);
    let left = |power: i32| LEFT + 4.0 + step * f64::from(power - first);
    for size in sizes {
        let (power, up) = (power(size), y.at(size.maps.value));
        // what is there is seen
        let height = (BOTTOM - up).max(1.0);
        let _ = write!(
            svg,
            "<rect class=\"{}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\"><title>{} maps of up to {}</title></rect>",
            series(0),
            left(power),
            BOTTOM - height,
            (step - 3.0).max(1.0),
            size.maps.text(),
            escaped(&power_of_bytes(power)),
        );
    }
    for power in (first..=last).step_by((bars / NAMED + 1) as usize) {
        let middle = left(power) + step / 2.0;
        text(
            &mut svg,
            middle,
            BOTTOM + 20.0,
            "middle",
            &power_of_bytes(power),
        );
    }
    let middle = (LEFT + RIGHT) / 2.0;
    text(
        &mut svg,
        middle,
        HEIGHT - 6.0,
        "middle",
        "bytes of a map, up to",
    );
    svg + "</svg>"
}

/// 2^`power` bytes in the unit that needs no point.
fn power_of_bytes(power: i32) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = (power / 10).clamp(0, UNITS.len() as i32 - 1);
    let value = 2f64.powi(power - 10 * unit);
    format!("{value} {}", UNITS[unit as usize])
}

#[cfg(test)]
mod tests {
    use super::*;
    use ioatlas_present::Unit;

    #[test]
    fn powers_of_bytes_have_their_unit() {
        let words = [0, 6, 10, 12, 21, 40, 64].map(power_of_bytes);
        let expected = ["1 B", "64 B", "1 KiB", "4 KiB", "2 MiB", "1 TiB", "16 EiB"];
        assert_eq!(words, expected);
    }

    #[test]
    fn a_histogram_has_a_bar_a_size_within_the_plot() {
        let size = |power: i32, maps: u64| Size {
            up_to: Figure::counted(2f64.powi(power), Unit::Bytes),
            maps: Figure::count(maps),
        };
        for sizes in [
            vec![size(12, 1)],
            vec![size(0, 1), size(64, 1 << 60)],
            (0..=64).map(|power| size(power, 7)).collect(),
        ] {
            let svg = size_histogram("t", &sizes);
            assert_eq!(svg.matches("<rect").count(), sizes.len());
            for bar in svg.split("<rect").skip(1) {
                let number = |name: &str| -> f64 {
                    let (_, rest) = bar.split_once(&format!(" {name}=\"")).unwrap();
                    rest.split('"').next().unwrap().parse().unwrap()
                };
                assert!(number("x") + number("width") <= RIGHT + 4.0 && number("y") >= TOP - 0.1);
                assert!((number("y") + number("height") - BOTTOM).abs() < 0.2);
            }
        }
        assert_eq!(size_histogram("t", &[]), "");
    }
}
