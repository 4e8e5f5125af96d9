// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Heat maps: miss rate against entries and ways, a panel for each trace, strategy, page
//! size and prefetch buffer.

use super::sweep::Row;
use ioatlas_present::html::escaped;
use ioatlas_present::short;
use std::fmt::Write as _;

const CELL_WIDTH: usize = 52;
const CELL_HEIGHT: usize = 26;
/// Room for the numbers of ways, and for the title and the numbers of entries.
const LEFT: usize = 56;
const TOP: usize = 34;
const BOTTOM: usize = 46;
const GAP: usize = 24;
/// A row of panels ends when it is this wide.
const PAGE_WIDTH: usize = 1200;
const TITLE: usize = 60;

const STYLE: &str = "<style>svg{background:#fdfdfb;font:12px system-ui,sans-serif}text{fill:#333c44}\
    .t{font-weight:600}.l{fill:#fff}</style>";

/// A panel: its title and its rows.
type Panel<'a> = (String, Vec<&'a Row>);

/// The drawing as a file.
pub(super) fn file(traces: &[(&str, &[Row])]) -> String {
    let mut panels: Vec<Panel<'_>> = Vec::new();
    for (name, rows) in traces {
        let first = panels.len();
        for row in *rows {
            let name = name.rsplit('/').next().unwrap_or(name);
            let (page, buffer) = (&row.page, row.prefetch_entries);
            let title = format!("{name}: {}, {page}, prefetch buffer {buffer}", row.named);
            match panels[first..]
                .iter_mut()
                .find(|(other, _)| *other == title)
            {
                Some((_, rows)) => rows.push(row),
                None => panels.push((title, vec![row])),
            }
        }
    }
    let (mut body, mut x, mut y, mut tallest, mut widest) = (String::new(), GAP, GAP, 0, 0);
    for panel in &panels {
        let (drawing, width, height) = draw(panel);
        if x > GAP && x + width > PAGE_WIDTH {
            (x, y, tallest) = (GAP, y + tallest + GAP, 0);
        }
        // Writing to a string cannot fail.
        let _ = write!(body, "<g transform=\"translate({x} {y})\">{drawing}</g>");
        x += width + GAP;
        tallest = tallest.max(height);
        widest = widest.max(x);
    }
    let height = y + tallest + GAP;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {widest} {height}\" width=\"{widest}\" \
         height=\"{height}\" role=\"img\"><title>IOTLB miss rate in percent</title>{STYLE}{body}</svg>\n"
    )
}

/// A panel, its width and its height.
fn draw((title, rows): &Panel<'_>) -> (String, usize, usize) {
    let sorted = |value: fn(&Row) -> usize| {
        let mut values: Vec<usize> = rows.iter().map(|row| value(row)).collect();
        values.sort_unstable();
        values.dedup();
        values
    };
    let (entries, ways) = (sorted(|row| row.entries), sorted(|row| row.ways));
    let title = short(title, TITLE);
    // About 7 units a character of a bold title.
    let width = (LEFT + entries.len() * CELL_WIDTH).max(title.chars().count() * 7);
    let height = TOP + ways.len() * CELL_HEIGHT + BOTTOM;
    let mut svg = format!(
        "<text class=\"t\" x=\"0\" y=\"14\">{}</text>",
        escaped(&title)
    );
    let centre = |column: usize| LEFT + column * CELL_WIDTH + CELL_WIDTH / 2;
    // Most ways on top.
    let line = |way: usize| TOP + (ways.len() - 1 - way) * CELL_HEIGHT;
    for (row, count) in ways.iter().enumerate() {
        let y = line(row) + CELL_HEIGHT / 2 + 4;
        let x = LEFT - 6;
        let _ = write!(
            svg,
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"end\">{count}</text>"
        );
    }
    let below = TOP + ways.len() * CELL_HEIGHT + 16;
    for (column, count) in entries.iter().enumerate() {
        let x = centre(column);
        let _ = write!(
            svg,
            "<text x=\"{x}\" y=\"{below}\" text-anchor=\"middle\">{count}</text>"
        );
    }
    let _ = write!(
        svg,
        "<text x=\"{LEFT}\" y=\"{}\">entries; left: ways; cells: % of accesses that miss</text>",
        below + 18
    );
    for row in rows {
        let column = entries.partition_point(|&count| count < row.entries);
        let (x, y) = (
            LEFT + column * CELL_WIDTH,
            line(ways.partition_point(|&count| count < row.ways)),
        );
        let percent = row.outcome.result.miss_rate * 100.0;
        let light = if percent > 45.0 { " class=\"l\"" } else { "" };
        let _ = write!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\" fill=\"{}\"><title>{} entries, {} ways: {} \
             misses</title></rect><text{light} x=\"{}\" y=\"{}\" text-anchor=\"middle\">{percent:.1}</text>",
            CELL_WIDTH - 1,
            CELL_HEIGHT - 1,
            colour(row.outcome.result.miss_rate),
            row.entries,
            row.ways,
            row.outcome.result.misses,
            centre(column),
            y + CELL_HEIGHT / 2 + 4,
        );
    }
    (svg, width, height)
}

/// From pale at no misses to dark red at nothing but misses; the same in every panel.
fn colour(rate: f64) -> String {
    let (pale, dark) = ([253.0, 243.0, 224.0], [128.0, 20.0, 30.0]);
    // The root spreads low rates, where most points are.
    let share = rate.clamp(0.0, 1.0).sqrt();
    let mix = |at: usize| (pale[at] + (dark[at] - pale[at]) * share).round();
    format!("rgb({},{},{})", mix(0), mix(1), mix(2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::Noted;
    use ioatlas_iotlb::Outcome;

    fn row(entries: usize, ways: usize, named: &str, miss_rate: f64) -> Row {
        Row {
            entries,
            ways,
            prefetch_entries: 4,
            page: "4k".into(),
            named: named.into(),
            outcome: Noted {
                result: Outcome {
                    miss_rate,
                    ..Outcome::default()
                },
                notes: Vec::new(),
            },
        }
    }

    #[test]
    fn every_point_has_its_cell_and_every_strategy_its_panel() {
        let rows = [
            row(8, 1, "baseline", 0.5),
            row(16, 1, "baseline", 0.25),
            row(8, 2, "baseline", 0.125),
            row(8, 1, "alh", 0.0),
        ];
        let svg = file(&[("dir/a<b.zst", &rows)]);
        assert_eq!(svg.matches("<rect").count(), 4);
        assert_eq!(svg.matches("class=\"t\"").count(), 2);
        assert!(svg.contains(">50.0<") && svg.contains(">12.5<") && svg.contains(">0.0<"));
        assert!(svg.contains("a&lt;b.zst: alh") && !svg.contains("dir/"));
        assert_eq!(colour(0.0), "rgb(253,243,224)");
        assert_eq!(colour(1.0), "rgb(128,20,30)");
    }
}
