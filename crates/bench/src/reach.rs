// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Which aims are reached, by the rows of a run.
//!
//! An aim is a limit on a figure, or on what a figure has beyond another of the same run. Those on instructions are counted elsewhere (`pairs`, under
//! callgrind): here such a row has its time, beside the fastest peer's or the control's.

use crate::{
    Figure, Kind, Pattern, Row, Sizes, Spec, What, memory,
    peers::Rival,
    plan::{Filter, deferred, magazine, strict},
};
use ioatlas_dma::domain::AssignerConfig;

/// What a value counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Nanoseconds.
    Nanoseconds,
    /// A ratio.
    Times,
    /// KiB.
    Kibibytes,
}

/// Whether an aim is reached.
#[derive(Clone, PartialEq, Debug)]
pub enum Verdict {
    /// It is.
    Reached,
    /// It is not.
    Missed,
    /// It has no limit here.
    Reported,
    /// It could not be told, and why.
    Unmeasured(String),
}

/// One aim.
#[derive(Clone, PartialEq, Debug)]
pub struct Aim {
    /// What is to be small.
    pub what: &'static str,
    /// Ours.
    pub ours: Option<f64>,
    /// What `ours` and `limit` count.
    pub unit: Unit,
    /// The most that it may be.
    pub limit: Option<f64>,
    /// What it is compared with in this run, and its value.
    pub beside: Option<(String, f64, Unit)>,
    /// Whether it is reached.
    pub verdict: Verdict,
}

impl Aim {
    fn new(
        what: &'static str,
        unit: Unit,
        limit: Option<f64>,
        ours: Result<f64, String>,
        beside: Option<(String, f64, Unit)>,
    ) -> Self {
        let verdict = match (&ours, limit) {
            (Err(why), _) => Verdict::Unmeasured(why.clone()),
            (Ok(_), None) => Verdict::Reported,
            (Ok(value), Some(limit)) if *value <= limit => Verdict::Reached,
            (Ok(_), Some(_)) => Verdict::Missed,
        };
        Aim {
            what,
            ours: ours.ok(),
            unit,
            limit,
            beside,
            verdict,
        }
    }
    /// Ours by what it is compared with, where both count the same.
    pub fn ratio(&self) -> Option<f64> {
        let (_, theirs, unit) = self.beside.as_ref()?;
        (*unit == self.unit && *theirs > 0.0).then_some(self.ours? / theirs)
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
    /// The fastest peer of an assigner in a ring.
    fn fastest(&self, sizes: Sizes) -> Option<(String, f64, Unit)> {
        let peers = self.0.iter().filter_map(|row| {
            let What::Peer(peer) = row.spec.what else {
                return None;
            };
            let fits = peer.rival == Rival::Assigner
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

/// Every aim of which `filter` wants the rows.
pub fn aims(rows: &[Row], filter: &Filter) -> Vec<Aim> {
    use Unit::*;
    let rows = Rows(rows);
    let whole = What::Ours(Kind::Domain(deferred()));
    let rbtree = What::Ours(Kind::Assigner(AssignerConfig::RBTREE));
    let wanted = |what, pattern, sizes, threads| {
        filter.permits(&Spec {
            what,
            pattern,
            sizes,
            threads,
        })
    };
    let mut aims = Vec::new();
    let ring = Pattern::Ring(256);
    if wanted(magazine(), ring, Sizes::One, 1) {
        let row = rows.ring(magazine(), Sizes::One, 1);
        aims.push(Aim::new(
            "magazine assigner alone, ring256, 1 page (at most 100 instructions)",
            Nanoseconds,
            None,
            row.and_then(median),
            rows.fastest(Sizes::One),
        ));
    }
    for (sizes, what) in [
        (
            Sizes::One,
            "whole pair, magazine + deferred-percpu, ring256, 1 page (at most 300 instructions)",
        ),
        (
            Sizes::Mixed,
            "the same, mixed sizes (at most 400 instructions)",
        ),
    ] {
        if wanted(whole, ring, sizes, 1) {
            let row = rows.ring(whole, sizes, 1);
            let control = row.as_ref().ok().and_then(|row| control(row));
            aims.push(Aim::new(
                what,
                Nanoseconds,
                None,
                row.and_then(median),
                control,
            ));
        }
    }
    if wanted(whole, ring, Sizes::One, 1) && wanted(whole, ring, Sizes::One, 2) {
        let slower = slowdown(&rows, whole);
        let control = slower.as_ref().ok();
        let control = control.map(|(_, control)| ("control's slowdown".into(), *control, Times));
        aims.push(Aim::new(
            "whole pair, two threads: slowdown by the control's own",
            Times,
            Some(1.15),
            slower.map(|(ours, _)| ours),
            // of another kind: it is in the figure already
            control,
        ));
    }
    if wanted(whole, Pattern::ProducerConsumer, Sizes::One, 2) {
        let row = rows.find(whole, Pattern::ProducerConsumer, Sizes::One, 2);
        let handoff = row.as_ref().ok().and_then(|row| beside("hand-off", row));
        aims.push(Aim::new(
            "whole pair, producer and consumer: beyond the hand-off",
            Nanoseconds,
            Some(40.0),
            row.and_then(excess),
            handoff,
        ));
    }
    if wanted(magazine(), Pattern::Replace(100_000), Sizes::Mixed, 1) {
        let theirs = growth(&rows, rbtree).ok();
        aims.push(Aim::new(
            "magazine assigner alone, replace, mixed: 100,000 outstanding by 1,000",
            Times,
            Some(1.5),
            growth(&rows, magazine()),
            theirs.map(|growth| ("rbtree".into(), growth, Times)),
        ));
    }
    let software = What::Software(strict());
    if wanted(software, ring, Sizes::One, 1) {
        let row = rows.ring(software, Sizes::One, 1);
        let latency = row
            .as_ref()
            .ok()
            .and_then(|row| beside("invalidation", row));
        aims.push(Aim::new(
            "magazine + strict on the software unit: beyond its latency",
            Nanoseconds,
            Some(60.0),
            row.and_then(excess),
            latency,
        ));
    }
    if wanted(whole, Pattern::Ring(1024), Sizes::Mixed, 2) {
        let bytes = memory::per_cpu(deferred()).map_err(|failure| failure.to_string());
        aims.push(Aim::new(
            "magazines of a warm domain, 6 classes, 2 CPUs: for each CPU",
            Kibibytes,
            Some(16.0),
            bytes.map(|bytes| bytes.0 as f64 / 1024.0),
            None,
        ));
    }
    aims
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
    fn aims_are_judged_by_their_limits() {
        let whole = What::Ours(Kind::Domain(deferred()));
        let (ring, replace) = (Pattern::Ring(256), Pattern::Replace);
        let rows = vec![
            row(whole, ring, Sizes::One, 1, 40.0),
            row(whole, ring, Sizes::One, 2, 50.0),
            row(whole, Pattern::ProducerConsumer, Sizes::One, 2, 139.0),
            row(magazine(), replace(1_000), Sizes::Mixed, 1, 20.0),
            row(magazine(), replace(100_000), Sizes::Mixed, 1, 29.0),
        ];
        let judged = aims(&rows, &Filter::default());
        let verdict = |what: &str| {
            let aim = judged.iter().find(|aim| aim.what.contains(what)).unwrap();
            (aim.ours, aim.verdict.clone())
        };
        assert_eq!(verdict("two threads"), (Some(1.25), Verdict::Missed));
        assert_eq!(verdict("producer"), (Some(39.0), Verdict::Reached));
        assert_eq!(verdict("replace"), (Some(1.45), Verdict::Reached));
        assert_eq!(
            verdict("whole pair, magazine"),
            (Some(40.0), Verdict::Reported)
        );
        let strict = verdict("strict");
        assert!(
            matches!(strict, (None, Verdict::Unmeasured(_))),
            "{strict:?}"
        );
    }

    #[test]
    fn what_was_not_measured_is_not_judged() {
        let whole = What::Ours(Kind::Domain(deferred()));
        let mut busy = row(whole, Pattern::ProducerConsumer, Sizes::One, 2, 139.0);
        busy.figure = Err(Unmeasured::Cpus {
            threads: 2,
            cpus: 1,
        });
        let judged = aims(&[busy], &Filter::default());
        let aim = judged
            .iter()
            .find(|aim| aim.what.contains("producer"))
            .unwrap();
        let Verdict::Unmeasured(why) = &aim.verdict else {
            panic!("{aim:?}");
        };
        assert!(why.contains("2 threads"), "{why}");
        assert_eq!(aim.ours, None);
    }

    #[test]
    fn a_filter_leaves_only_its_aims() {
        let filter = Filter {
            patterns: vec![Pattern::ProducerConsumer],
            ..Filter::default()
        };
        let judged = aims(&[], &filter);
        assert_eq!(judged.len(), 1, "{judged:?}");
    }
}
