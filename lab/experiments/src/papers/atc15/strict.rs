// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Strict that scales: what the paper has no figure of. Its figure 7 goes on here to 64 CPUs, with
//! batches of unmaps, chunks and combining beside strict one by one.

use super::{
    super::{About, Experiment, Parameter, Shown, Statement},
    about,
};
use crate::{
    progress::Progress,
    scale::strict::{LINES, Point, curves, is_drawn},
};
use ioatlas_present::{
    Cell, Tag,
    plot::{At, Drawing, Line, Plot, Scale, Stroke, Theirs},
};

/// What a domain's invalidation costs, by a page's: the two that are drawn.
const COSTS: [u64; 2] = [1, 8];
/// The paper's, "about" which all designs are.
const SIXTH: f64 = 1.0 / 6.0;

pub(super) struct Strict;

/// Progress of this exhibit, from that of points.
struct Words<'a>(&'a dyn Fn(&str));

impl Progress for Words<'_> {
    fn at(&self, what: &str, done: usize, total: usize) {
        (self.0)(&format!("{what}, {done} of {total}"));
    }
}

impl Experiment for Strict {
    type Data = Vec<Point>;
    const ABOUT: About = about(
        "strict that scales",
        "Request-response under strict invalidation, by batches",
        "All designs have about 1/6 of no IOMMU's throughput on 16 cores under strict invalidation (6.1). The paper leaves it there; the other lines are this project's.",
    );

    fn run(&self, progress: &dyn Fn(&str)) -> Result<Vec<Point>, String> {
        curves(&COSTS, &Words(progress))
    }

    /// Figure 7 has the paper's statement.
    fn judge(_: &Vec<Point>) -> Vec<Statement> {
        Vec::new()
    }

    fn show(points: &Vec<Point>) -> Shown {
        let mut columns = vec![("CPUs".to_owned(), None)];
        let series: Vec<(&str, u64)> = COSTS
            .into_iter()
            .flat_map(|cost| drawn().map(move |name| (name, cost)))
            .collect();
        columns.extend(series.iter().map(|(name, cost)| {
            let name = format!("{name}, g = {cost} p: % of no IOMMU");
            (name, Some(Tag::Simulated))
        }));
        let mut counts: Vec<usize> = points.iter().map(|point| point.cpus).collect();
        counts.sort_unstable();
        counts.dedup();
        let row = |cpus: &usize| {
            let mut row = vec![Cell::Number(*cpus as f64)];
            row.extend(series.iter().map(|(name, cost)| {
                let found = find(points, name, *cost, *cpus);
                found.map_or(Cell::from(""), |point| Cell::Number(100.0 * point.relative))
            }));
            row
        };
        let rows: Vec<Vec<Cell>> = counts.iter().map(row).collect();
        Shown {
            plots: COSTS.map(|cost| plot(points, &counts, cost)).into(),
            notes: vec![
                "A batch of k is a server that reaps k completions, two a transaction, and unmaps them by one call: one invalidation and one wait. Its unit's driver is told what an invalidation of a domain costs (g) and of a page (p), and takes the cheaper; IOVAs are scattered but where they are called fresh, or of a chunk, which is one range. Combining makes one invalidation of the requests that come while the unit is at work. p is as long as w, which no source says; d + p + w = 2,127 cycles.".into(),
                "What a domain's invalidation makes devices look up again costs no CPU, so it is not in it. cargo lab scale strict has that, and all lines, three values of p and four of g, with what was expected of each point.".into(),
            ],
            ..Shown::table(columns, rows)
        }
    }

    /// Those of the figures before it.
    fn parameters() -> Vec<Parameter> {
        Vec::new()
    }
}

/// Names of the lines that are drawn.
fn drawn() -> impl Iterator<Item = &'static str> {
    let lines = LINES.iter().filter(|line| is_drawn(line));
    lines.map(|line| line.name)
}

fn find<'p>(points: &'p [Point], line: &str, cost: u64, cpus: usize) -> Option<&'p Point> {
    points.iter().find(|point| {
        (point.line, point.cpus) == (line, cpus) && point.domain_cost.is_none_or(|of| of == cost)
    })
}

fn plot(points: &[Point], counts: &[usize], cost: u64) -> Plot {
    let line = |name: &str| Line {
        name: name.into(),
        stroke: Stroke::Numbers,
        points: counts
            .iter()
            .filter_map(|cpus| {
                let point = find(points, name, cost, *cpus)?;
                Some((*cpus as f64, 100.0 * point.relative))
            })
            .collect(),
    };
    let most = counts.last().copied().unwrap_or(1).max(2);
    Plot {
        suffix: format!("-g{cost}"),
        title: match cost {
            1 => "A domain's invalidation as long as a page's".into(),
            _ => format!("A domain's invalidation {cost} times as long as a page's"),
        },
        tag: Tag::Simulated,
        x: Scale::log2("CPUs", 0, most.ilog2()),
        y: Scale::linear("% of no IOMMU", 0.0, 100.0),
        drawing: Drawing::Lines(drawn().map(line).collect()),
        theirs: vec![Theirs {
            name: "all designs, 16 CPUs".into(),
            series: Some(0),
            at: At::dot(16.0, 100.0 * SIXTH),
        }],
    }
}
