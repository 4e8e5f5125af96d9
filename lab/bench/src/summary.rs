// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the rows of a run come to: a figure beside another of the same run.

use crate::{
    Figure, Kind, Pattern, Row, Sizes, Spec, What, memory,
    peers::Rival,
    plan::{Filter, deferred, magazine, strict},
};
use ioatlas_dma::domain::AllocatorConfig;

/// What a value counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // its variants say it
pub enum Unit {
    /// Nanoseconds a pair, or an operation.
    Nanoseconds,
    /// A ratio of two figures.
    Times,
    /// Hundredths; of changes, with a sign.
    Percent,
    Operations,
    /// A subject or a unit that a row can be of.
    Kibibytes,
}

impl Unit {
    /// As in tables and JSON.
    pub fn name(&self) -> &'static str {
        match self {
            Unit::Nanoseconds => "ns",
            Unit::Times => "x",
            Unit::Percent => "%",
            Unit::Operations => "operations",
            Unit::Kibibytes => "KiB",
        }
    }
}

/// One line of a summary.
#[derive(Clone, PartialEq, Debug)]
pub struct Line {
    /// What is looked at.
    pub what: String,
    /// What the value counts.
    pub unit: Unit,
    /// What it came to, or why that is not known.
    pub value: Result<f64, String>,
    /// What it is compared with in this run, and its value.
    pub beside: Option<(String, f64, Unit)>,
}

impl Line {
    /// A line that compares with nothing.
    pub fn new(what: impl Into<String>, unit: Unit, value: Result<f64, String>) -> Self {
        Line {
            what: what.into(),
            unit,
            value,
            beside: None,
        }
    }
    fn beside(self, beside: Option<(String, f64, Unit)>) -> Self {
        Line { beside, ..self }
    }
    /// The value by what it is compared with, where both count the same.
    pub fn ratio(&self) -> Option<f64> {
        let (_, theirs, unit) = self.beside.as_ref()?;
        let value = *self.value.as_ref().ok()?;
        (*unit == self.unit && *theirs > 0.0).then_some(value / theirs)
    }
}

/// Rows found by what they are of.
struct Rows<'r>(&'r [Row]);

impl<'r> Rows<'r> {
    fn find(
        &self,
        what: What,
        pattern: Pattern,
        sizes: Sizes,
        threads: usize,
    ) -> Result<&'r Row, String> {
        let spec = Spec {
            what,
            pattern,
            sizes,
            threads,
        };
        let row = self.0.iter().find(|row| row.spec == spec);
        row.ok_or_else(|| format!("{spec} is not among the rows"))
    }
    fn ring(&self, what: What, sizes: Sizes, threads: usize) -> Result<&'r Row, String> {
        self.find(what, Pattern::Ring(256), sizes, threads)
    }
    /// The fastest peer of an allocator in a ring.
    fn fastest(&self, sizes: Sizes) -> Option<(String, f64, Unit)> {
        let peers = self.0.iter().filter_map(|row| {
            let What::Peer(peer) = row.spec.what else {
                return None;
            };
            let fits = peer.rival == Rival::Allocator
                && (row.spec.pattern, row.spec.sizes, row.spec.threads)
                    == (Pattern::Ring(256), sizes, 1);
            Some((peer.name.to_owned(), median(row).ok()?, Unit::Nanoseconds)).filter(|_| fits)
        });
        peers.min_by(|a, b| a.1.total_cmp(&b.1))
    }
}

fn figure(row: &Row) -> Result<&Figure, String> {
    row.figure.as_ref().map_err(|why| why.to_string())
}

fn median(row: &Row) -> Result<f64, String> {
    Ok(figure(row)?.ns.median)
}

fn control(row: &Row) -> Option<(String, f64, Unit)> {
    let control = row.control.as_ref()?;
    Some(("control".into(), control.ns.median, Unit::Nanoseconds))
}

fn excess(row: &Row) -> Result<f64, String> {
    median(row)?;
    let few = || "too few rounds have both".to_owned();
    Ok(row.excess.ok_or_else(few)?.median)
}

fn beside(name: &str, row: &Row) -> Option<(String, f64, Unit)> {
    let figure = row.beside.as_ref()?;
    Some((name.into(), figure.ns.median, Unit::Nanoseconds))
}

/// How much slower two threads are than one; and how much slower the control is, in the same group.
fn slowdown(rows: &Rows<'_>, what: What) -> Result<(f64, f64), String> {
    let (one, two) = (
        rows.ring(what, Sizes::One, 1)?,
        rows.ring(what, Sizes::One, 2)?,
    );
    let by_control = |row: &Row| {
        median(row)?;
        let ratio = row.control_ratio.map(|ratio| ratio.median);
        ratio.ok_or_else(|| "the control has too few slices".to_owned())
    };
    let ours = by_control(two)? / by_control(one)?;
    let times = |row: &Row| row.control.as_ref().map(|figure| figure.ns.median);
    let lost = || "there is no control".to_owned();
    let control = times(two).ok_or_else(lost)? / times(one).ok_or_else(lost)?;
    Ok((ours, control))
}

/// From 1,000 outstanding to 100,000.
fn growth(rows: &Rows<'_>, what: What) -> Result<f64, String> {
    let at = |n| median(rows.find(what, Pattern::Replace(n), Sizes::Mixed, 1)?);
    Ok(at(100_000)? / at(1_000)?)
}

/// Every line of which `filter` wants the rows.
pub fn summary(rows: &[Row], filter: &Filter) -> Vec<Line> {
    use Unit::*;
    let rows = Rows(rows);
    let whole = What::Ours(Kind::Domain(deferred()));
    let rbtree = What::Ours(Kind::Allocator(AllocatorConfig::RBTREE));
    let wanted = |what, pattern, sizes, threads| {
        filter.permits(&Spec {
            what,
            pattern,
            sizes,
            threads,
        })
    };
    let mut lines = Vec::new();
    let ring = Pattern::Ring(256);
    if wanted(magazine(), ring, Sizes::One, 1) {
        let row = rows.ring(magazine(), Sizes::One, 1);
        let what = "magazine allocator alone, ring256, 1 page; the fastest peer";
        let line = Line::new(what, Nanoseconds, row.and_then(median));
        lines.push(line.beside(rows.fastest(Sizes::One)));
    }
    for (sizes, what) in [
        (
            Sizes::One,
            "whole pair, magazine + deferred-percpu, ring256, 1 page",
        ),
        (Sizes::Mixed, "the same, mixed sizes"),
    ] {
        if wanted(whole, ring, sizes, 1) {
            let row = rows.ring(whole, sizes, 1);
            let control = row.as_ref().ok().and_then(|row| control(row));
            lines.push(Line::new(what, Nanoseconds, row.and_then(median)).beside(control));
        }
    }
    if wanted(whole, ring, Sizes::One, 1) && wanted(whole, ring, Sizes::One, 2) {
        let slower = slowdown(&rows, whole);
        let control = slower.as_ref().ok();
        let control = control.map(|(_, control)| ("control's slowdown".into(), *control, Times));
        lines.push(Line {
            what: "whole pair, two threads: slowdown by the control's own".into(),
            unit: Times,
            value: slower.map(|(ours, _)| ours),
            beside: control,
        });
    }
    if wanted(whole, Pattern::ProducerConsumer, Sizes::One, 2) {
        let row = rows.find(whole, Pattern::ProducerConsumer, Sizes::One, 2);
        let handoff = row.as_ref().ok().and_then(|row| beside("hand-off", row));
        let what = "whole pair, producer and consumer: beyond the hand-off";
        lines.push(Line::new(what, Nanoseconds, row.and_then(excess)).beside(handoff));
    }
    if wanted(magazine(), Pattern::Replace(100_000), Sizes::Mixed, 1) {
        let theirs = growth(&rows, rbtree).ok();
        let what = "magazine allocator alone, replace, mixed: 100,000 outstanding by 1,000";
        let line = Line::new(what, Times, growth(&rows, magazine()));
        lines.push(line.beside(theirs.map(|growth| ("rbtree".into(), growth, Times))));
    }
    let software = What::Software(strict());
    if wanted(software, ring, Sizes::One, 1) {
        let row = rows.ring(software, Sizes::One, 1);
        let latency = row
            .as_ref()
            .ok()
            .and_then(|row| beside("invalidation", row));
        let what = "magazine + strict on the software unit: beyond its latency";
        lines.push(Line::new(what, Nanoseconds, row.and_then(excess)).beside(latency));
    }
    if wanted(whole, Pattern::Ring(1024), Sizes::Mixed, 2) {
        let bytes = memory::per_cpu(deferred()).map_err(|failure| failure.to_string());
        let what = "magazines of a warm domain, 6 classes, 2 CPUs: for each CPU";
        lines.push(Line::new(
            what,
            Kibibytes,
            bytes.map(|b| b.0 as f64 / 1024.0),
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Spread, Unmeasured,
        slices::{Quality, Slice},
    };

    fn row(what: What, pattern: Pattern, sizes: Sizes, threads: usize, ns: f64) -> Row {
        let spread = |ns| Spread {
            low: ns,
            median: ns,
            high: ns,
        };
        let slice = |round| Slice {
            round,
            ns,
            quality: Quality::Clean,
            mode: None,
        };
        let figure = |ns| Figure {
            ns: spread(ns),
            mode: None,
            slices: (0..9).map(slice).collect(),
        };
        Row {
            spec: Spec {
                what,
                pattern,
                sizes,
                threads,
            },
            figure: Ok(figure(ns)),
            control: Some(figure(10.0)),
            control_ratio: Some(spread(ns / 10.0)),
            beside: Some(figure(100.0)),
            excess: Some(spread(ns - 100.0)),
        }
    }

    #[test]
    fn a_line_is_of_the_rows_and_beside_what_stands_in_them() {
        let whole = What::Ours(Kind::Domain(deferred()));
        let (ring, replace) = (Pattern::Ring(256), Pattern::Replace);
        let rows = vec![
            row(whole, ring, Sizes::One, 1, 40.0),
            row(whole, ring, Sizes::One, 2, 50.0),
            row(whole, Pattern::ProducerConsumer, Sizes::One, 2, 139.0),
            row(magazine(), replace(1_000), Sizes::Mixed, 1, 20.0),
            row(magazine(), replace(100_000), Sizes::Mixed, 1, 29.0),
        ];
        let lines = summary(&rows, &Filter::default());
        let value = |what: &str| {
            let line = lines.iter().find(|line| line.what.contains(what)).unwrap();
            line.value.clone()
        };
        assert_eq!(value("two threads"), Ok(1.25));
        assert_eq!(value("producer"), Ok(39.0));
        assert_eq!(value("replace"), Ok(1.45));
        assert_eq!(value("whole pair, magazine"), Ok(40.0));
        let why = value("strict").unwrap_err();
        assert!(why.contains("is not among the rows"), "{why}");
        let pair = lines.iter().find(|line| line.what.contains("1 page"));
        assert_eq!(pair.unwrap().ratio(), None, "no peer was measured");
        let whole = lines.iter().find(|line| line.what.starts_with("whole"));
        assert_eq!(whole.unwrap().ratio(), Some(4.0), "by the control");
    }

    #[test]
    fn what_was_not_measured_says_why() {
        let whole = What::Ours(Kind::Domain(deferred()));
        let mut busy = row(whole, Pattern::ProducerConsumer, Sizes::One, 2, 139.0);
        busy.figure = Err(Unmeasured::Cpus {
            threads: 2,
            cpus: 1,
        });
        let lines = summary(&[busy], &Filter::default());
        let producer = lines.iter().find(|line| line.what.contains("producer"));
        let why = producer.unwrap().value.clone().unwrap_err();
        assert!(why.contains("2 threads"), "{why}");
    }

    #[test]
    fn a_filter_leaves_only_its_lines() {
        let filter = Filter {
            patterns: vec![Pattern::ProducerConsumer],
            ..Filter::default()
        };
        let lines = summary(&[], &filter);
        assert_eq!(lines.len(), 1, "{lines:?}");
    }
}
