// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The paper's results beside ours.
//!
//! A row's range was set before anything was measured: the paper's value and how far from it we may
//! be. A row out of its range stays, marked.

use super::{
    plan::named,
    points::{Parts, Point},
};
use crate::stated::{Kind, Stated};
use serde::Serialize;

/// A result of the paper beside ours, with the range set for ours.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Row {
    pub name: &'static str,
    /// What the paper says.
    pub paper: &'static str,
    /// The same as a number, if it is one, in the unit of ours.
    pub stated: Option<Stated>,
    pub low: f64,
    pub high: f64,
    pub ours: f64,
    /// Ours over the paper's.
    pub ratio: Option<f64>,
    pub unit: &'static str,
    pub kind: Kind,
    pub in_range: bool,
    /// Where the paper has it.
    pub section: &'static str,
}

const RR: &str = "rr";
const LATENCY: &str = "latency";
const MEMCACHED: &str = "memcached";

/// The points measured, to be looked up.
struct Points<'a>(&'a [Point]);

impl Points<'_> {
    fn at(&self, design: Option<&str>, workload: &str, cpus: usize) -> Option<&Point> {
        self.0.iter().find(|point| {
            point.workload == workload && point.cpus == cpus && point.design.as_deref() == design
        })
    }
    fn relative(&self, design: &str, workload: &str, cpus: usize) -> Option<f64> {
        self.at(Some(design), workload, cpus)
            .map(|point| 100.0 * point.relative)
    }
    /// A part of the cycles of `design`, in percent, on 16 CPUs.
    fn part(&self, design: &str, part: impl Fn(&Parts) -> f64) -> Option<f64> {
        let point = self.at(Some(design), RR, 16)?;
        Some(100.0 * part(&point.cycles))
    }
    fn latency(&self, design: Option<&str>, cpus: usize) -> Option<f64> {
        Some(self.at(design, LATENCY, cpus)?.latency_us)
    }
    /// How much later than without an IOMMU, in microseconds.
    fn later(&self, design: &str, cpus: usize) -> Option<f64> {
        Some(self.latency(Some(design), cpus)? - self.latency(None, cpus)?)
    }
    /// Memcached under `design`, as percent of the wire's rate.
    fn of_wire(&self, design: &str, cpus: usize, wire: f64) -> Option<f64> {
        let point = self.at(Some(design), MEMCACHED, cpus)?;
        Some(100.0 * point.per_second / wire)
    }
}

/// What the paper says, in its words and as a number.
type Said = (&'static str, Option<Stated>);

const fn number(words: &'static str, number: f64) -> Said {
    (words, Some(Stated::number(number)))
}

const fn range(words: &'static str, low: f64, high: f64) -> Said {
    (words, Some(Stated::range(low, high)))
}

const fn words(words: &'static str) -> Said {
    (words, None)
}

/// All results that `points` hold enough for. `wire` is the wire's rate, in requests a second.
pub(crate) fn rows(points: &[Point], wire: f64) -> Vec<Row> {
    let points = Points(points);
    let [magazine, identity, kmalloc] = named::OURS;
    let mut rows = Vec::new();
    let mut row = |name, said, (low, high), unit, kind, section, ours: Option<f64>| {
        if let Some(ours) = ours {
            let in_range = (low..=high).contains(&ours);
            let (paper, stated): Said = said;
            rows.push(Row {
                name,
                paper,
                stated,
                low,
                high,
                ours,
                ratio: stated.and_then(|stated| stated.ratio(ours)),
                unit,
                kind,
                in_range,
                section,
            });
        }
    };
    let (rr16, part) = (
        |design| points.relative(design, RR, 16),
        |design, f: fn(&Parts) -> f64| points.part(design, f),
    );
    let lock = part(named::EIOVAR, |p| p.iova_lock);
    let invalidation = part(named::EIOVAR, |p| p.invalidation_lock);
    row(
        "EiovaR, 16 CPUs: wait for the IOVA lock",
        number("31.9 %", 31.9),
        (28.9, 34.9),
        "% of cycles",
        Kind::Fitted,
        "3.1, figure 2",
        lock,
    );
    row(
        "EiovaR, 16 CPUs: wait for the invalidation lock",
        number("21.7 %", 21.7),
        (18.7, 24.7),
        "% of cycles",
        Kind::Fitted,
        "3.2, figure 2",
        invalidation,
    );
    let one = |design| points.relative(design, RR, 1);
    row(
        "magazine, 1 CPU, request-response",
        range("93 to 95 %", 93.0, 95.0),
        (90.0, 98.0),
        "% of no IOMMU",
        Kind::Fitted,
        "6.1, figure 3",
        one(magazine),
    );
    row(
        "identity, 1 CPU, request-response",
        range("93 to 95 %", 93.0, 95.0),
        (90.0, 98.0),
        "% of no IOMMU",
        Kind::Fitted,
        "6.1, figure 3",
        one(identity),
    );
    row(
        "kmalloc, 1 CPU, request-response",
        range("93 to 95 %", 93.0, 95.0),
        (90.0, 98.0),
        "% of no IOMMU",
        Kind::Fitted,
        "6.1, figure 3",
        one(kmalloc),
    );
    row(
        "EiovaR, 1 CPU: latency beyond no IOMMU",
        number("1.2 us", 1.2),
        (0.0, 1.2),
        "us",
        Kind::Predicted,
        "6.1, figure 4",
        points.later(named::EIOVAR, 1),
    );
    let memcached = |design, cpus| points.relative(design, MEMCACHED, cpus);
    row(
        "identity, 1 CPU, memcached",
        number("89 %", 89.0),
        (84.0, 94.0),
        "% of no IOMMU",
        Kind::Predicted,
        "6.1, figure 5",
        memcached(identity, 1),
    );
    row(
        "kmalloc, 1 CPU, memcached",
        number("91 %", 91.0),
        (86.0, 96.0),
        "% of no IOMMU",
        Kind::Predicted,
        "6.1, figure 5",
        memcached(kmalloc, 1),
    );
    row(
        "kmalloc less identity, 1 CPU, memcached",
        number("2 points", 2.0),
        (0.0, 5.0),
        "points",
        Kind::Predicted,
        "6.1, figure 5",
        memcached(kmalloc, 1)
            .zip(memcached(identity, 1))
            .map(|(k, i)| k - i),
    );
    row(
        "stock Linux, 16 CPUs: IOVA allocation",
        number("about 60 %", 60.0),
        (45.0, 75.0),
        "% of cycles",
        Kind::Predicted,
        "3, figure 2",
        part(named::STOCK, |p| p.iova + p.iova_lock),
    );
    let scalable = part(named::EIOVAR_PERCPU, |p| p.iova_lock);
    row(
        "EiovaR with per-core invalidation, 16 CPUs: wait for the IOVA lock",
        number("nearly 70 %", 70.0),
        (60.0, 80.0),
        "% of cycles",
        Kind::Predicted,
        "3.1, figure 2",
        scalable,
    );
    row(
        "the same, to the baseline's",
        number("2.1 times", 2.1),
        (1.7, 2.5),
        "times",
        Kind::Predicted,
        "3.2",
        scalable.zip(lock).map(|(after, before)| after / before),
    );
    row(
        "magazine, 16 CPUs, request-response",
        number("93 %", 93.0),
        (88.0, 98.0),
        "% of no IOMMU",
        Kind::Predicted,
        "6.1, figure 3",
        rr16(magazine),
    );
    row(
        "identity, 16 CPUs, request-response",
        number("93 %", 93.0),
        (88.0, 98.0),
        "% of no IOMMU",
        Kind::Predicted,
        "6.1, figure 3",
        rr16(identity),
    );
    row(
        "kmalloc, 16 CPUs, request-response",
        number("94 %", 94.0),
        (89.0, 99.0),
        "% of no IOMMU",
        Kind::Predicted,
        "6.1, figure 3",
        rr16(kmalloc),
    );
    let best = rr16(magazine).zip(rr16(identity)).map(|(m, i)| m.max(i));
    row(
        "kmalloc less the better of magazine and identity, 16 CPUs, request-response",
        number("1 point", 1.0),
        (0.0, 5.0),
        "points",
        Kind::Predicted,
        "6.1, figure 3",
        rr16(kmalloc).zip(best).map(|(k, best)| k - best),
    );
    row(
        "static identity mapping, 16 CPUs (run as no IOMMU, since it does nothing)",
        number("no IOMMU", 100.0),
        (98.0, 102.0),
        "% of no IOMMU",
        Kind::Input,
        "3, figure 1",
        points.at(None, RR, 16).map(|p| 100.0 * p.relative),
    );
    row(
        "identity, 9 CPUs, memcached",
        number("89.5 %", 89.5),
        (84.5, 94.5),
        "% of no IOMMU",
        Kind::Predicted,
        "6.1, figure 5",
        memcached(identity, 9),
    );
    row(
        "kmalloc, 9 CPUs, memcached",
        number("91.5 %", 91.5),
        (86.5, 96.5),
        "% of no IOMMU",
        Kind::Predicted,
        "6.1, figure 5",
        memcached(kmalloc, 9),
    );
    row(
        "kmalloc less identity, 9 CPUs, memcached",
        number("2 points", 2.0),
        (0.0, 5.0),
        "points",
        Kind::Predicted,
        "6.1, figure 5",
        memcached(kmalloc, 9)
            .zip(memcached(identity, 9))
            .map(|(k, i)| k - i),
    );
    row(
        "EiovaR, 9 CPUs, memcached",
        number("40 %", 40.0),
        (30.0, 50.0),
        "% of the wire",
        Kind::Predicted,
        "6.1, figure 5",
        points.of_wire(named::EIOVAR, 9, wire),
    );
    row(
        "EiovaR, 16 CPUs, memcached",
        number("40 %", 40.0),
        (30.0, 50.0),
        "% of the wire",
        Kind::Predicted,
        "6.1, figure 5",
        points.of_wire(named::EIOVAR, 16, wire),
    );
    row(
        "EiovaR, memcached: where the plateau begins",
        number("9 CPUs", 9.0),
        (6.0, 11.0),
        "CPUs",
        Kind::Predicted,
        "6.1, figure 5",
        plateau(&points),
    );
    for (design, name) in named::STRICT.into_iter().zip([
        "EiovaR, strict, 16 CPUs",
        "magazine, strict, 16 CPUs",
        "identity, strict, 16 CPUs",
        "kmalloc, strict, 16 CPUs",
    ]) {
        let ours = rr16(design).map(|percent| percent / 100.0);
        row(
            name,
            number("1/6", 1.0 / 6.0),
            (0.12, 0.22),
            "of no IOMMU",
            Kind::Predicted,
            "6.1, figure 7",
            ours,
        );
    }
    row(
        "strict, more than 6 CPUs: the best design less the worst",
        words("not evident"),
        (0.0, 10.0),
        "% of the best",
        Kind::Predicted,
        "6.1, figure 7",
        strict_spread(&points),
    );
    row(
        "no IOMMU, 1 CPU: latency",
        number("29 us", 29.0),
        (27.0, 31.0),
        "us",
        Kind::Input,
        "6.1, figure 4",
        points.latency(None, 1),
    );
    let grown = points
        .latency(None, 16)
        .zip(points.latency(None, 1))
        .map(|(many, one)| many - one);
    row(
        "no IOMMU: latency of 16 CPUs less that of 1",
        number("12 us", 12.0),
        (8.0, 16.0),
        "us",
        Kind::Input,
        "6.1, figure 4",
        grown,
    );
    row(
        "EiovaR, 16 CPUs: latency beyond no IOMMU",
        number("10 us", 10.0),
        (6.0, 15.0),
        "us",
        Kind::Predicted,
        "6.1, figure 4",
        points.later(named::EIOVAR, 16),
    );
    for (design, name) in named::OURS.into_iter().zip([
        "magazine, 16 CPUs: latency beyond no IOMMU",
        "identity, 16 CPUs: latency beyond no IOMMU",
        "kmalloc, 16 CPUs: latency beyond no IOMMU",
    ]) {
        row(
            name,
            words("on par"),
            (-1.5, 1.5),
            "us",
            Kind::Predicted,
            "6.1, figure 4",
            points.later(design, 16),
        );
    }
    rows
}

/// The first number of CPUs beyond which memcached's rate under EiovaR never is more than 5 % above
/// the rate on so many.
fn plateau(points: &Points<'_>) -> Option<f64> {
    let mut curve: Vec<(usize, f64)> = points
        .0
        .iter()
        .filter(|p| p.workload == MEMCACHED && p.design.as_deref() == Some(named::EIOVAR))
        .filter(|p| p.cpus <= 16)
        .map(|p| (p.cpus, p.per_second))
        .collect();
    curve.sort_by_key(|(cpus, _)| *cpus);
    if curve.last()?.0 != 16 {
        return None;
    }
    let best = |from: usize| {
        curve[from..]
            .iter()
            .map(|(_, rate)| *rate)
            .fold(0.0, f64::max)
    };
    let begins = (0..curve.len()).find(|at| best(*at) <= 1.05 * curve[*at].1)?;
    Some(curve[begins].0 as f64)
}

/// In percent: the largest over all numbers of CPUs above 6.
fn strict_spread(points: &Points<'_>) -> Option<f64> {
    let counts = points
        .0
        .iter()
        .filter(|p| p.workload == RR && (7..=16).contains(&p.cpus));
    let mut counts: Vec<usize> = counts.map(|p| p.cpus).collect();
    counts.dedup();
    let spread = |cpus: usize| {
        let rates: Option<Vec<f64>> = named::STRICT
            .iter()
            .map(|design| Some(points.at(Some(design), RR, cpus)?.per_second))
            .collect();
        let rates = rates?;
        let best = rates.iter().copied().fold(0.0, f64::max);
        let worst = rates.iter().copied().fold(f64::MAX, f64::min);
        Some(100.0 * (best - worst) / best)
    };
    counts.into_iter().filter_map(spread).reduce(f64::max)
}
