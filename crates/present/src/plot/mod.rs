// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Drawings: lines, dots and bars, each as part of the page, as a file of its own, and as numbers.
//!
//! A drawing names both axes with their units, has a key for its series, and says where its numbers
//! come from. Colours are classes (`s0` to `s5`) that `plot.css` gives, for light and for dark; a
//! file carries them along, with its title, which on the page stands in the caption.

mod axis;
mod bars;
mod dots;
mod lines;
mod theirs;
mod thumbnail;

pub use axis::Scale;
pub use bars::{Arrangement, Bars, Series};
pub use dots::{Dot, Dots};
pub use lines::{Line, Stroke};
pub use theirs::{At, Theirs};

use crate::html::escaped;
use crate::svg::{self, Axis, line, text};
use crate::{Tag, wrapped};
use std::fmt::Write;

/// Width of a drawing in its own units; the page scales it to the width there is.
const WIDTH: f64 = 500.0;
const RIGHT: f64 = WIDTH - 16.0;
/// From the key to the plot, and from the plot down to the end: numbers and name of the axis.
const BELOW: f64 = 48.0;
/// Of a row of the key.
const KEY_ROW: f64 = 20.0;
/// Of a line of the title, in a file, and how many characters it has room for.
const TITLE: f64 = 20.0;
const TITLE_CHARACTERS: usize = 60;
/// Of a character of the font; a little too wide does no harm.
const CHARACTER: f64 = 8.0;

/// Colours and lines, of page and files.
pub const STYLE: &str = include_str!("plot.css");
/// What a file needs besides, for on the page it is the page's.
const ALONE: &str = "svg{--paper:#fdfdfb;--faint:#5b6670;--ink:#1d2329;--line:#d9dde0;--s0:#2266aa;--s1:#c2571a;--s2:#2e8b57;--s3:#7a4fa3;\
    --s4:#8a6d00;--s5:#a8326b;background:var(--paper);font:13px system-ui,sans-serif}\
    @media (prefers-color-scheme:dark){svg{--paper:#14181c;--faint:#9aa7b2;--ink:#e4e8eb;--line:#333b43;--s0:#62a8ea;--s1:#f08a4b;\
    --s2:#5fcf8f;--s3:#b48be0;--s4:#d9bc3f;--s5:#ea72a8}}\
    svg text{fill:var(--faint)}svg .title{fill:var(--ink);font-weight:600}svg .grid{stroke:var(--line)}\
    polyline{fill:none;stroke-width:2}";

/// What is drawn, with its numbers.
#[derive(Clone, Debug)]
pub enum Drawing {
    /// Numbers that belong together.
    Lines(Vec<Line>),
    /// Many single places, as events are.
    Dots(Vec<Dots>),
    /// A few numbers, each with its name.
    Bars(Bars),
}

/// A drawing with its axes and its title.
#[derive(Clone, Debug)]
pub struct Plot {
    /// What follows the stem in the file's name; empty for the drawing whose numbers are a table
    /// that is written besides.
    pub suffix: String,
    /// What it shows, in a few words.
    pub title: String,
    /// Where its numbers come from.
    pub tag: Tag,
    /// The horizontal axis.
    pub x: Scale,
    /// The vertical axis; of bars, the names.
    pub y: Scale,
    /// The lines, dots or bars.
    pub drawing: Drawing,
    /// Numbers of a document among them.
    pub theirs: Vec<Theirs>,
}

/// Where the plot is within the drawing.
struct Frame<'p> {
    x: (&'p Scale, Axis),
    y: (&'p Scale, Axis),
    bottom: f64,
}

impl Frame<'_> {
    /// The place of a number along.
    fn across(&self, value: f64) -> f64 {
        self.x.1.at(self.x.0.place(value))
    }

    /// The place of a number up.
    fn up(&self, value: f64) -> f64 {
        self.y.1.at(self.y.0.place(value))
    }
}

impl Plot {
    /// The drawing as part of a page.
    pub fn svg(&self) -> String {
        self.draw("", 0.0)
    }

    /// The drawing as part of a page, so small that only its shape is seen.
    pub fn thumbnail(&self) -> String {
        thumbnail::draw(self)
    }

    /// The drawing as a file.
    pub fn file(&self) -> String {
        let mut title = String::new();
        let full = format!("{} ({})", self.title, self.tag.name());
        let lines = wrapped(&full, TITLE_CHARACTERS, 0, 0);
        let lines: Vec<&str> = lines.lines().collect();
        let above = TITLE * lines.len() as f64 + 8.0;
        // Writing to a string cannot fail.
        let _ = write!(title, "<style>{ALONE}{STYLE}</style>");
        for (nth, line) in lines.iter().enumerate() {
            let _ = write!(
                title,
                "<text class=\"title\" x=\"12\" y=\"{:.0}\">{}</text>",
                TITLE * (nth + 1) as f64 - above,
                escaped(line)
            );
        }
        let svg = self.draw(&title, above);
        let body = svg.strip_prefix("<svg").unwrap_or_default();
        format!("<svg xmlns=\"http://www.w3.org/2000/svg\"{body}\n")
    }

    /// The numbers drawn, as [`Table::csv`](crate::Table::csv) writes them.
    pub fn csv(&self) -> String {
        let (mut table, groups) = match &self.drawing {
            Drawing::Lines(all) => (lines::table(&self.x, all, theirs::along(&self.theirs)), 0),
            Drawing::Dots(all) => (dots::table(&self.x, &self.y, all), 0),
            Drawing::Bars(bars) => (bars::table(&self.x, &self.y, bars), bars.groups.len()),
        };
        theirs::columns(&mut table, groups, &self.theirs);
        table.csv()
    }

    /// `before` comes first within the element, above the drawing, where `above` is left for it.
    fn draw(&self, before: &str, above: f64) -> String {
        let mut names: Vec<&str> = match &self.drawing {
            Drawing::Lines(all) => all.iter().map(|line| line.name.as_str()).collect(),
            Drawing::Dots(all) => all.iter().map(|dots| dots.name.as_str()).collect(),
            Drawing::Bars(bars) => bars.series.iter().map(|one| one.name.as_str()).collect(),
        };
        let ours = names.len();
        if !self.theirs.is_empty() {
            names.push(theirs::KEY);
        }
        let places = key_places(&names);
        let top = 14.0 + KEY_ROW * places.last().map_or(0, |(_, row)| row + 1) as f64;
        let (left, tall) = match &self.drawing {
            Drawing::Bars(bars) => (bars.left(), bars.height()),
            Drawing::Lines(_) | Drawing::Dots(_) => (84.0, 260.0),
        };
        let bottom = top + tall;
        let frame = Frame {
            x: (&self.x, self.x.axis(left, RIGHT - 8.0)),
            y: (&self.y, self.y.axis(bottom, top)),
            bottom,
        };
        let mut svg = format!(
            "<svg viewBox=\"0 {} {WIDTH} {}\" role=\"img\" aria-label=\"{}\">{before}",
            -above,
            bottom + BELOW + above,
            escaped(&self.title)
        );
        for (nth, (name, (x, row))) in names.iter().zip(&places).enumerate() {
            let middle = 12.0 + KEY_ROW * *row as f64;
            if nth == ours {
                theirs::key(&mut svg, x + 7.0, middle);
            } else if nth >= svg::SERIES && matches!(self.drawing, Drawing::Lines(_)) {
                let class = self.class(nth);
                let _ = write!(
                    svg,
                    "<polyline class=\"{class} again\" points=\"{x:.1},{middle:.1} {:.1},{middle:.1}\"/>",
                    x + 14.0
                );
            } else {
                let class = self.class(nth);
                let _ = write!(
                    svg,
                    "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"14\" height=\"6\"/>",
                    middle - 3.0
                );
            }
            text(&mut svg, x + 20.0, middle + 4.5, "start", name);
        }
        self.axes(&mut svg, &frame, left, top);
        match &self.drawing {
            Drawing::Lines(all) => lines::draw(&mut svg, &frame, all),
            Drawing::Dots(all) => dots::draw(&mut svg, &frame, all),
            Drawing::Bars(bars) => bars::draw(&mut svg, &frame, top, bars),
        }
        theirs::draw(&mut svg, &frame, top, &self.drawing, &self.theirs);
        svg + "</svg>"
    }

    fn class(&self, nth: usize) -> String {
        match &self.drawing {
            Drawing::Dots(all) => svg::series(all[nth].colour),
            _ => svg::series(nth),
        }
    }

    fn axes(&self, svg: &mut String, frame: &Frame<'_>, left: f64, top: f64) {
        let bottom = frame.bottom;
        for (value, label) in &self.y.ticks {
            let up = frame.up(*value);
            line(svg, "grid", (left, RIGHT), (up, up));
            text(svg, left - 6.0, up + 4.0, "end", label);
        }
        let upright = matches!(self.drawing, Drawing::Bars(_));
        for (value, label) in &self.x.ticks {
            let along = frame.across(*value);
            let from = if upright { top } else { bottom - 4.0 };
            line(svg, "grid", (along, along), (from, bottom));
            text(svg, along, bottom + 18.0, "middle", label);
        }
        line(svg, "grid", (left, RIGHT), (bottom, bottom));
        text(
            svg,
            (left + RIGHT) / 2.0,
            bottom + BELOW - 10.0,
            "middle",
            &self.x.name,
        );
        if !upright {
            let (x, y) = (16.0, (top + bottom) / 2.0);
            let _ = write!(
                svg,
                "<text x=\"{x}\" y=\"{y:.1}\" text-anchor=\"middle\" transform=\"rotate(-90 {x} {y:.1})\">{}</text>",
                escaped(&self.y.name)
            );
        }
    }
}

/// Where the names of the key begin, and in which row, from 0.
fn key_places(names: &[&str]) -> Vec<(f64, usize)> {
    let (mut x, mut row) = (84.0, 0);
    let mut places = Vec::new();
    for name in names {
        let width = 20.0 + name.chars().count() as f64 * CHARACTER + 16.0;
        if x + width > WIDTH && x > 84.0 {
            (x, row) = (84.0, row + 1);
        }
        places.push((x, row));
        x += width;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot() -> Plot {
        let line = |name: &str, slope: f64| {
            Line::counted(name, (0..11).map(|n| f64::from(n) * slope).collect())
        };
        Plot {
            suffix: String::new(),
            title: "a < b".into(),
            tag: Tag::Counted,
            x: Scale::linear("repetitions", 0.0, 10.0),
            y: Scale::linear("tables", 0.0, 90.0),
            drawing: Drawing::Lines(vec![
                line("flat", 0.0),
                line("also flat", 0.0),
                line("steep", 9.0),
            ]),
            theirs: Vec::new(),
        }
    }

    #[test]
    fn a_file_has_namespace_colours_title_source_and_both_axes() {
        let file = plot().file();
        assert!(file.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox="));
        for part in [
            "prefers-color-scheme:dark",
            ">a &lt; b (counted)</text>",
            ">repetitions</text>",
            ">tables</text>",
            ">also flat</text>",
        ] {
            assert!(file.contains(part), "{part} in {file}");
        }
        assert!(file.ends_with("</svg>\n"));
        assert!(
            !plot().svg().contains("class=\"title\""),
            "the page has a caption"
        );
    }

    #[test]
    fn names_of_the_key_do_not_overlap_and_stay_inside() {
        let names = ["a rather long name of a series"; 7];
        let places = key_places(&names);
        let width = 30.0 * CHARACTER + 20.0;
        for (nth, (x, row)) in places.iter().enumerate() {
            assert!(x + width <= WIDTH, "{x}");
            for (other, below) in &places[..nth] {
                assert!(row != below || other + width <= *x, "{other} {x}");
            }
        }
        assert!(places[6].1 > 1);
    }

    #[test]
    fn numbers_of_the_document_are_drawn_named_and_written() {
        let place = |name: &str, at| Theirs {
            name: name.into(),
            series: Some(2),
            at,
        };
        let range = At::Place {
            along: [2.5; 2],
            up: [10.0, 20.0],
        };
        let plot = Plot {
            theirs: vec![place("one", At::dot(10.0, 88.0)), place("range", range)],
            ..plot()
        };
        let svg = plot.svg();
        for part in [
            "<circle class=\"theirs s2\"",
            "<rect class=\"theirs s2\"",
            "<title>theirs, range: 10 to 20</title>",
            theirs::KEY,
        ] {
            assert!(svg.contains(part), "{part} in {svg}");
        }
        let csv = plot.csv();
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(
            lines[0],
            "repetitions,flat,also flat,steep,theirs: one,theirs: range"
        );
        assert!(lines.contains(&"2.50,,,,,10 to 20"), "{csv}");
        assert_eq!(lines[12], "10,0,0,90,88,");
    }

    #[test]
    fn what_is_stated_of_parts_of_a_bar_begins_where_they_do() {
        let bars = Bars {
            arrangement: Arrangement::Stacked,
            groups: vec!["a".into(), "b".into()],
            ..Bars::default()
        };
        let bars = bars
            .with("first", vec![Some(10.0), Some(20.0)])
            .with("second", vec![Some(30.0), Some(40.0)]);
        let plot = Plot {
            x: Scale::linear("%", 0.0, 100.0),
            y: Scale::names("system"),
            drawing: Drawing::Bars(bars),
            theirs: vec![Theirs {
                name: "second of b".into(),
                series: Some(1),
                at: At::Bar {
                    group: 1,
                    from: 1,
                    length: 35.0,
                },
            }],
            ..plot()
        };
        let svg = plot.svg();
        let number = |rect: &str, attribute: &str| -> f64 {
            let (_, after) = rect.split_once(&format!(" {attribute}=\"")).unwrap();
            after.split('"').next().unwrap().parse().unwrap()
        };
        let rects = || svg.split("<rect").skip(1);
        let ours = rects().find(|rect| rect.contains("b, second")).unwrap();
        let theirs = rects().find(|rect| rect.contains("theirs s1")).unwrap();
        assert_eq!(number(ours, "x"), number(theirs, "x"));
        let ratio = number(ours, "width") / number(theirs, "width");
        assert!((ratio - 40.0 / 35.0).abs() < 0.01, "{ratio}");
        assert!(plot.csv().ends_with("b,20,40,35\n"), "{}", plot.csv());
    }

    #[test]
    fn lines_of_one_colour_differ() {
        let line = |nth: usize| Line::counted(&format!("line {nth}"), vec![nth as f64, 0.0]);
        let svg = Plot {
            drawing: Drawing::Lines((0..svg::SERIES + 2).map(line).collect()),
            ..plot()
        }
        .svg();
        // each of the two in the key, and in the drawing
        for class in ["s0 again", "s1 again"] {
            assert_eq!(svg.matches(class).count(), 2, "{svg}");
        }
        assert!(!svg.contains("s2 again"), "{svg}");
        assert_eq!(svg.matches("<polyline").count(), svg::SERIES + 2 + 2);
    }

    #[test]
    fn a_thumbnail_has_the_shape_and_no_words() {
        let small = plot().thumbnail();
        assert_eq!(small.matches("<polyline").count(), 3);
        assert!(
            !small.contains("<text") && !small.contains("<title"),
            "{small}"
        );
    }

    #[test]
    fn the_numbers_drawn_are_the_numbers_written() {
        let csv = plot().csv();
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines[0], "repetitions,flat,also flat,steep");
        assert_eq!(lines[11], "10,0,0,90");
    }
}
