// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Draws the picture in README: the atlas of one bundled trace as `report` shows it, and what
//! remedies leave of the misses.
//!
//! ```sh
//! cargo run --release -p ioatlas-cli --example picture >docs/report.svg
//! ```
//!
//! It depends on the trace alone, so a test can compare the file with what this draws. The page's
//! own drawing is finer; here cells are larger, so that the file stays small.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ioatlas_cli::output::Target;
use ioatlas_cli::progress::Silent;
use ioatlas_cli::report::systems::Rows;
use ioatlas_cli::report::timings::{Bench, Timings};
use ioatlas_cli::report::verdict::DeviceVerdict;
use ioatlas_cli::report::{Atlas, Report, build, bundled_traces};
use ioatlas_present::{Figure, Unit};
use std::error::Error;
use std::fmt::Write;

/// Cells of the atlas, along and up.
const COLUMNS: usize = 450;
const ROWS: usize = 100;
/// Pixels of a cell's side.
const CELL: usize = 2;
/// Pixels left of the atlas, for the numbers of pages; above it; and of the whole picture.
const LEFT: usize = 78;
const TOP: usize = 82;
const WIDTH: usize = LEFT + COLUMNS * CELL + 22;

/// Where the bars of misses begin, the longest bar, and from one to the next.
const BARS: usize = 330;
const LONGEST: usize = 500;
const STEP: usize = 20;

/// Of the IOTLB that the first remedy is, by the one in the report.
const LARGER: usize = 8;

/// Remedies by the simulator's names, in words.
const REMEDIES: [(&str, &str); 3] = [
    ("sd-alh", "one neighbour of a page prefetched"),
    ("alh", "both neighbours prefetched"),
    ("alh+mpre+8-prefetch", "and when mapped, into 8 entries"),
];

/// What a cell shows, the least important first: class of its path, words, colour of the page's
/// style.
const LAYERS: [(&str, &str, &str); 4] = [
    ("s", "streaming buffer", "#8fa3b0"),
    ("c", "consistent memory (rings)", "#2266aa"),
    ("o", "miss: capacity or conflict", "#ef7d5a"),
    ("m", "miss: first touch", "#d3212d"),
];

/// Bits of a cell in [`Atlas::cells`].
const CONSISTENT: u8 = 1;
const STREAMING: u8 = 1 << 1;
const FIRST_TOUCH: u8 = 1 << 2;
const OTHER_MISS: u8 = 1 << 3;
const MISSES: u8 = 1 << 6;
const SEVERAL: u8 = 1 << 7;

fn main() -> Result<(), Box<dyn Error>> {
    let mut traces = bundled_traces()?;
    traces.variants.clear();
    let page = Target::prepare(&std::env::temp_dir().join("picture.html"))?;
    let none = Rows::Named(Vec::new());
    let timings = Timings::new(&Bench::Now);
    let report = build(&timings, &traces, &none, None, &page, &[], &Silent)?;
    print!("{}", picture(&report)?);
    Ok(())
}

/// The first trace of `report` as SVG.
///
/// # Errors
///
/// The report has no picture, or none that can be read.
pub fn picture(report: &Report) -> Result<String, Box<dyn Error>> {
    let atlas = report.atlases.first().ok_or("no atlas")?;
    let verdict = report.verdicts.first().ok_or("no verdict")?;
    let bars = bars(report, atlas, verdict)?;
    let bottom = TOP + ROWS * CELL;
    let height = bottom + 54 + bars.len() * STEP + 4;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" font-family=\"system-ui, sans-serif\" font-size=\"13\">\n\
         <!-- Drawn by crates/cli/examples/picture.rs, which says how. -->\n<style>\n\
         text {{ fill: #5b6670 }} .h {{ fill: #1d2329; font-weight: 600 }} .e {{ text-anchor: end }}\n"
    );
    for (class, _, colour) in LAYERS {
        writeln!(
            svg,
            "path.{class} {{ stroke: {colour}; fill: none }} rect.{class} {{ fill: {colour} }}"
        )?;
    }
    let paper = format!("width=\"{WIDTH}\" height=\"{height}\" fill=\"#fdfdfb\"");
    writeln!(svg, "</style>\n<rect {paper}/>")?;
    let what = verdict.description.unwrap_or_default();
    let rate = verdict.rate().plain();
    let heading = format!("{} ({what}): {rate} the IOTLB", verdict.trace);
    text(&mut svg, "h", 8, 24, &heading)?;
    let axes =
        "Upwards: the device's pages by I/O virtual address. To the right: its accesses, in order.";
    text(&mut svg, "", 8, 45, axes)?;
    let mut x = 8;
    for (class, words, _) in LAYERS {
        rect(&mut svg, class, x, 57, 9, 9)?;
        text(&mut svg, "", x + 16, 66, words)?;
        x += 40 + words.len() * 7;
    }
    cells(&mut svg, atlas)?;
    let heading = "Misses, simulated: as recorded, and with remedies that the report tries";
    text(&mut svg, "h", 8, bottom + 44, heading)?;
    let most = bars.iter().map(|(_, misses)| misses.value);
    let most = most.fold(1.0, f64::max);
    for (at, (words, misses)) in bars.iter().enumerate() {
        let y = bottom + 54 + at * STEP;
        let long = (misses.value / most * LONGEST as f64).round() as usize;
        text(&mut svg, "e", BARS - 8, y + 13, words)?;
        rect(&mut svg, "m", BARS, y + 2, long, STEP - 6)?;
        text(&mut svg, "", BARS + long + 8, y + 13, &misses.text())?;
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}

/// Misses of the trace, and what they would be.
fn bars(
    report: &Report,
    atlas: &Atlas,
    verdict: &DeviceVerdict,
) -> Result<Vec<(String, Figure)>, &'static str> {
    let larger = LARGER * report.iotlb_entries;
    let larger = verdict.sizes.iter().find(|size| size.entries == larger);
    let mut bars = vec![
        ("as recorded".to_owned(), verdict.misses),
        (
            format!("an IOTLB of {LARGER} times the size"),
            larger.ok_or("no such size")?.misses,
        ),
    ];
    for (strategy, words) in REMEDIES {
        let at = atlas.combinations.iter().position(|name| name == strategy);
        let misses = atlas.misses[at.ok_or("no such strategy")?] as f64;
        bars.push((words.to_owned(), Figure::simulated(misses, Unit::Count)));
    }
    Ok(bars)
}

fn text(svg: &mut String, class: &str, x: usize, y: usize, words: &str) -> std::fmt::Result {
    let class = match class {
        "" => String::new(),
        class => format!(" class=\"{class}\""),
    };
    writeln!(svg, "<text{class} x=\"{x}\" y=\"{y}\">{words}</text>")
}

fn rect(
    svg: &mut String,
    class: &str,
    x: usize,
    y: usize,
    width: usize,
    height: usize,
) -> std::fmt::Result {
    let size = format!("width=\"{width}\" height=\"{height}\"");
    writeln!(svg, "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" {size}/>")
}

/// The atlas: a path for each layer, pages at the left.
fn cells(svg: &mut String, atlas: &Atlas) -> Result<(), Box<dyn Error>> {
    let grid = grid(atlas)?;
    let (right, bottom) = (LEFT + COLUMNS * CELL, TOP + ROWS * CELL);
    writeln!(
        svg,
        "<path d=\"M{LEFT} {TOP}H{right}V{bottom}H{LEFT}z\" fill=\"none\" stroke=\"#d9dde0\"/>"
    )?;
    let place = format!("translate({LEFT} {TOP}) scale({CELL}) translate(0 .5)");
    writeln!(svg, "<g transform=\"{place}\">")?;
    for (layer, (class, ..)) in LAYERS.iter().enumerate() {
        write!(svg, "<path class=\"{class}\" d=\"")?;
        for (row, cells) in grid.iter().enumerate() {
            let mut at = 0;
            for run in cells.chunk_by(|a, b| a == b) {
                if run[0] == Some(layer) {
                    // Row 0 is the lowest page.
                    write!(svg, "M{at} {}h{}", ROWS - 1 - row, run.len())?;
                }
                at += run.len();
            }
        }
        writeln!(svg, "\"/>")?;
    }
    writeln!(svg, "</g>")?;
    let mut last = usize::MAX;
    for (row, page) in &atlas.ticks {
        let y = bottom - row * ROWS * CELL / atlas.rows;
        if last - y >= 26 {
            last = y;
            text(svg, "e", LEFT - 8, y, page)?;
        }
    }
    let events = Figure::counted(atlas.events as f64, Unit::Count).text();
    text(svg, "e", right, bottom + 18, &format!("{events} events"))?;
    Ok(())
}

/// The layer that each cell shows, by row and column: the most important thing that happened there.
fn grid(atlas: &Atlas) -> Result<Vec<Vec<Option<usize>>>, Box<dyn Error>> {
    let mut grid = vec![vec![None; COLUMNS]; ROWS];
    let bytes = STANDARD.decode(&atlas.cells)?;
    let (mut bytes, mut cell) = (bytes.into_iter(), 0);
    while let Some(distance) = number(&mut bytes) {
        cell += distance;
        let flags = bytes.next().ok_or("a cell without flags")?;
        // Under which strategies it misses, which is not drawn.
        let sets = match flags & (MISSES | SEVERAL) {
            0 => 0,
            MISSES => 1,
            _ => number(&mut bytes).ok_or("a cell without its misses")?,
        };
        for _ in 0..sets {
            number(&mut bytes).ok_or("a cell without its sets")?;
        }
        let bits = [STREAMING, CONSISTENT, OTHER_MISS, FIRST_TOUCH];
        let layer = bits.iter().rposition(|bit| flags & bit != 0);
        let column = cell / atlas.rows * COLUMNS / atlas.columns;
        let row = cell % atlas.rows * ROWS / atlas.rows;
        let shown = &mut grid[row][column];
        *shown = layer.max(*shown);
    }
    Ok(grid)
}

/// Little-endian base 128, as the atlas writes numbers; `None` at the end.
fn number(bytes: &mut impl Iterator<Item = u8>) -> Option<usize> {
    let (mut number, mut shift) = (0, 0);
    loop {
        let byte = bytes.next()?;
        number |= usize::from(byte & 127) << shift;
        if byte < 128 {
            return Some(number);
        }
        shift += 7;
    }
}
