// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Lines against whole numbers, drawn as the report draws.

use crate::report::charts::{Axis, BOTTOM, HEIGHT, LEFT, RIGHT, TOP};
use crate::report::charts::{line, open, round_up, series, text};
use crate::report::html::escaped;
use std::fmt::Write;

/// Steps of the vertical axis.
const STEPS: u32 = 5;

/// A line.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// What it is of.
    pub name: String,
    /// Its values at 0, 1, 2 ...
    pub values: Vec<f64>,
}

/// A drawing.
#[derive(Clone, Debug)]
pub(crate) struct Plot {
    /// Behind the stem of the exhibit in the file's name; empty for the only one.
    pub suffix: &'static str,
    /// What it shows.
    pub title: String,
    /// What the horizontal axis counts.
    pub across: &'static str,
    /// Its lines.
    pub lines: Vec<Line>,
}

/// Colours of a drawing that stands alone; on a page they are the page's.
const STYLE: &str = "<style>svg{background:#fdfdfb;font:13px system-ui,sans-serif}text{fill:#5b6670}.grid{stroke:#d9dde0}\
    polyline{fill:none;stroke-width:2}.s0{stroke:#26a}.s1{stroke:#c2571a}.s2{stroke:#2e8b57}.s3{stroke:#7a4fa3}\
    .s4{stroke:#8a6d00}.s5{stroke:#a8326b}</style>";

impl Plot {
    /// The drawing as part of a page.
    pub fn svg(&self) -> String {
        let values = || self.lines.iter().flat_map(|line| &line.values).copied();
        let longest = self.lines.iter().map(|line| line.values.len()).max();
        let x = Axis {
            from: 0.0,
            to: longest.unwrap_or(0).saturating_sub(1).max(1) as f64,
            start: LEFT + 8.0,
            end: RIGHT - 8.0,
        };
        let y = Axis {
            from: 0.0,
            to: round_up(values().fold(1.0, f64::max)),
            start: BOTTOM,
            end: TOP,
        };
        let mut svg = open(&self.title);
        for step in 0..=STEPS {
            let share = f64::from(step) / f64::from(STEPS);
            let (up, right) = (y.at(y.to * share), x.at(x.to * share));
            line(&mut svg, "grid", (LEFT, RIGHT), (up, up));
            let label = format!("{}", y.to * share);
            text(&mut svg, LEFT - 6.0, up + 4.0, "end", &label);
            let label = format!("{:.0}", x.to * share);
            text(&mut svg, right, BOTTOM + 18.0, "middle", &label);
        }
        text(
            &mut svg,
            (LEFT + RIGHT) / 2.0,
            HEIGHT - 8.0,
            "middle",
            self.across,
        );
        let mut names: Vec<f64> = Vec::new();
        for (number, line) in self.lines.iter().enumerate() {
            let at = |(nth, value): (usize, &f64)| {
                format!("{:.1},{:.1}", x.at(nth as f64), y.at(*value))
            };
            let points: Vec<String> = line.values.iter().enumerate().map(at).collect();
            // Writing to a string cannot fail.
            let _ = write!(
                svg,
                "<polyline class=\"{}\" points=\"{}\"><title>{}</title></polyline>",
                series(number),
                points.join(" "),
                escaped(&line.name)
            );
            let Some(last) = line.values.last() else {
                continue;
            };
            let height = free(y.at(*last) - 5.0, &names);
            names.push(height);
            text(&mut svg, RIGHT - 10.0, height, "end", &line.name);
            // which line that is, by its colour
            let (from, to, middle) = (RIGHT - 5.0, RIGHT + 9.0, height - 4.0);
            let _ = write!(
                svg,
                "<polyline class=\"{}\" points=\"{from},{middle:.1} {to},{middle:.1}\"/>",
                series(number)
            );
        }
        svg + "</svg>"
    }

    /// The drawing as a file.
    pub fn file(&self) -> String {
        let svg = self.svg();
        let body = svg.strip_prefix("<svg").unwrap_or_default();
        let (attributes, content) = body.split_once('>').unwrap_or_default();
        format!("<svg xmlns=\"http://www.w3.org/2000/svg\"{attributes}>{STYLE}{content}\n")
    }
}

/// The height nearest below `wanted`, upwards, at which no name stands.
fn free(wanted: f64, taken: &[f64]) -> f64 {
    const LINE: f64 = 14.0;
    let mut height = wanted;
    while let Some(other) = taken.iter().find(|at| (*at - height).abs() < LINE) {
        height = other - LINE;
    }
    height
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot() -> Plot {
        let line = |name: &str, slope: f64| Line {
            name: name.into(),
            values: (0..11).map(|n| f64::from(n) * slope).collect(),
        };
        Plot {
            suffix: "",
            title: "a < b".into(),
            across: "repetitions",
            lines: vec![
                line("flat", 0.0),
                line("also flat", 0.0),
                line("steep", 9.0),
            ],
        }
    }

    #[test]
    fn lines_end_where_their_values_are_and_names_do_not_overlap() {
        let svg = plot().svg();
        assert!(svg.contains(&format!("{:.1},{:.1} ", LEFT + 8.0, BOTTOM)));
        // 90 of 100, the axis' end
        let steep = BOTTOM - (BOTTOM - TOP) * 0.9;
        assert!(
            svg.contains(&format!("{:.1},{steep:.1}\"", RIGHT - 8.0)),
            "{svg}"
        );
        assert!((free(100.0, &[100.0, 86.0]) - 72.0).abs() < 1e-9);
        assert!(svg.contains("a &lt; b"));
    }

    #[test]
    fn a_file_has_its_namespace_and_its_colours() {
        let file = plot().file();
        assert!(file.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox="));
        assert!(file.contains("<style>") && file.ends_with("</svg>\n"));
    }
}
