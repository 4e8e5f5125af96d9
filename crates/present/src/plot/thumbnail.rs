// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A drawing so small that only its shape is seen: no words, no numbers, no axes.

use super::{Arrangement, Drawing, Plot};
use crate::svg::{points, series};
use std::collections::HashSet;
use std::fmt::Write;

const WIDTH: f64 = 120.0;
const HEIGHT: f64 = 72.0;
/// Between the drawing and its edge.
const EDGE: f64 = 3.0;

pub(super) fn draw(plot: &Plot) -> String {
    let x = plot.x.axis(EDGE, WIDTH - EDGE);
    let y = plot.y.axis(HEIGHT - EDGE, EDGE);
    let place = |(along, up): (f64, f64)| (x.at(plot.x.place(along)), y.at(plot.y.place(up)));
    let mut svg =
        format!("<svg class=\"thumbnail\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" aria-hidden=\"true\">");
    // Writing to a string cannot fail.
    match &plot.drawing {
        Drawing::Lines(lines) => {
            for (nth, line) in lines.iter().enumerate() {
                let places = points(line.points.iter().copied().map(place));
                let _ = write!(
                    svg,
                    "<polyline class=\"{}\" points=\"{places}\"/>",
                    series(nth)
                );
            }
        }
        Drawing::Dots(all) => {
            for dots in all {
                let places = dots.places().map(place);
                let places: HashSet<(i64, i64)> = places
                    .map(|(x, y)| (x.round() as i64, y.round() as i64))
                    .collect();
                let mut places: Vec<(i64, i64)> = places.into_iter().collect();
                places.sort_unstable();
                let _ = write!(svg, "<path class=\"dots {}\" d=\"", series(dots.colour));
                for (x, y) in places {
                    let _ = write!(svg, "M{x} {y}h0");
                }
                svg.push_str("\"/>");
            }
        }
        Drawing::Bars(bars) => {
            let group = (HEIGHT - 2.0 * EDGE) / bars.groups.len().max(1) as f64;
            let thick = match bars.arrangement {
                Arrangement::Beside => 0.8 * group / bars.series.len().max(1) as f64,
                Arrangement::Stacked => 0.8 * group,
            };
            for nth in 0..bars.groups.len() {
                let mut before = 0.0;
                for (number, one) in bars.series.iter().enumerate() {
                    let Some(value) = one.values.get(nth).copied().flatten() else {
                        continue;
                    };
                    let mut up = EDGE + group * nth as f64;
                    match bars.arrangement {
                        Arrangement::Beside => up += thick * number as f64,
                        Arrangement::Stacked => {}
                    }
                    let (from, to) = (place((before, 0.0)).0, place((before + value, 0.0)).0);
                    if bars.arrangement == Arrangement::Stacked {
                        before += value;
                    }
                    let _ = write!(
                        svg,
                        "<rect class=\"{}\" x=\"{from:.1}\" y=\"{up:.1}\" width=\"{:.1}\" height=\"{thick:.1}\"/>",
                        series(number),
                        (to - from).max(0.3)
                    );
                }
            }
        }
    }
    svg + "</svg>"
}
