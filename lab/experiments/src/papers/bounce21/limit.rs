// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Throughput across the pools' limits: the cliff that the author of the series names, as a plot.
//! Measured, in short slices.

use super::{About, Found, Parameter, Statement, Verdict, about, charges};
use crate::papers::{Experiment, Shown};
use ioatlas_bench::{
    Effort,
    bounce::{
        Block, Policy, Preset, Way,
        limits::{DEPTHS, POLICIES, Point, SLOTS, points},
    },
};
use ioatlas_present::{
    Cell, Tag,
    plot::{Drawing, Line, Plot, Scale, Stroke},
};
use ioatlas_sim::timing::params::Origin;
use std::time::Duration;

const EFFORT: Effort = Effort {
    slices: 5,
    patience: Duration::from_millis(300),
    filling: Duration::from_secs(1),
};
/// Over what: there bouncing pays, so there is something to fall from.
const PRESET: Preset = Preset::VfioGuest;
const BLOCK: Block = Block(4);
/// What is left with the most in flight, of what there is within the limits: at least so much.
const KEPT: f64 = 0.6;

/// One policy with so many in flight.
#[derive(Clone, Debug)]
pub(super) struct At {
    policy: Policy,
    in_flight: usize,
    /// Thousands of operations a second; or why there are none.
    rate: Result<f64, String>,
    by_within: Option<f64>,
    by_never: Option<f64>,
}

impl At {
    fn of(point: &Point) -> Self {
        let figure = point.figure.as_ref().map_err(ToString::to_string);
        At {
            policy: point.policy,
            in_flight: point.load.depth,
            rate: figure.map(|figure| 1e6 / figure.ns.median),
            by_within: point.by_within.map(|ratio| ratio.median),
            by_never: point.by_never.map(|ratio| ratio.median),
        }
    }
}

pub(super) struct Limit;

impl Experiment for Limit {
    type Data = Vec<At>;
    const ABOUT: About = about(
        "limits",
        "Throughput with more operations in flight than the pools hold",
        "The author of the series: outside the pools' limits performance can fall off a cliff. Claimed here: with four times as many in flight as there are slots at \
         least 60 % is left.",
    );

    fn run(&self, progress: &dyn Fn(&str)) -> Result<Vec<At>, String> {
        progress(PRESET.name());
        let measured = points(PRESET, BLOCK, Way::Read, &POLICIES, EFFORT);
        Ok(measured.iter().map(At::of).collect())
    }

    fn judge(all: &Vec<At>) -> Vec<Statement> {
        let most = DEPTHS[DEPTHS.len() - 1];
        let beyond = all
            .iter()
            .filter(|at| at.in_flight == most && at.policy != Policy::Never);
        let found = |at: &At| {
            let (verdict, word) = match (&at.rate, at.by_within) {
                (Err(why), _) => (Verdict::Not, format!("fails: {why}")),
                (Ok(_), None) => (Verdict::Not, "too few rounds to tell".into()),
                (Ok(_), Some(kept)) => (
                    Verdict::at_least(kept, KEPT, KEPT / 2.0),
                    format!(
                        "{:.0} % is left, {:.2} times never",
                        kept * 100.0,
                        at.by_never.unwrap_or(f64::NAN)
                    ),
                ),
            };
            Found::new(at.policy.name(), verdict.because(word))
        };
        vec![Statement {
            says: "Outside the pools' limits performance can fall off a cliff, says the author; claimed here: it does not.".into(),
            theirs: "a cliff",
            rule: format!(
                "with {most} in flight over {SLOTS} slots at least {:.0} % is left of what there is with {SLOTS}; weak: half of that",
                KEPT * 100.0
            )
            .into(),
            found: beyond.map(found).collect(),
        }]
    }

    fn parameters() -> Vec<Parameter> {
        let slots = Parameter::new(
            "load: BOUNCE'21, limits",
            "slots of the pools",
            (Cell::count(SLOTS as u64), "slots"),
            Origin::Free,
            "few, so that many times as many can be in flight",
        );
        [slots].into_iter().chain(charges(PRESET)).collect()
    }

    fn show(all: &Vec<At>) -> Shown {
        let columns = [
            ("policy", None),
            ("in flight", None),
            ("thousand operations a second", Some(Tag::Measured)),
            ("by its own within the limits", Some(Tag::Measured)),
            ("by never", Some(Tag::Measured)),
            ("why there is none", None),
        ];
        let number = |value: Option<f64>| value.map_or(Cell::from(""), Cell::Number);
        let row = |at: &At| {
            vec![
                at.policy.name().into(),
                Cell::count(at.in_flight as u64),
                number(at.rate.as_ref().ok().copied()),
                number(at.by_within),
                number(at.by_never),
                at.rate.as_ref().err().cloned().unwrap_or_default().into(),
            ]
        };
        let line = |policy: Policy| {
            let of = all.iter().filter(move |at| at.policy == policy);
            let point = |at: &At| Some((at.in_flight as f64, *at.rate.as_ref().ok()?));
            Line {
                name: policy.name().into(),
                stroke: Stroke::Numbers,
                points: of.filter_map(point).collect(),
            }
        };
        let lines: Vec<Line> = POLICIES.into_iter().map(line).collect();
        let highest = lines.iter().flat_map(|line| &line.points).map(|at| at.1);
        let ends = [DEPTHS[0], DEPTHS[DEPTHS.len() - 1]].map(usize::ilog2);
        Shown {
            plots: vec![Plot {
                suffix: "-throughput".into(),
                title: format!("Throughput across the limit of {SLOTS} slots, reads of 4 KiB"),
                tag: Tag::Measured,
                x: Scale::log2("operations in flight", ends[0], ends[1]),
                y: Scale::linear(
                    "thousand operations a second",
                    0.0,
                    highest.fold(1.0, f64::max),
                ),
                drawing: Drawing::Lines(lines),
                theirs: Vec::new(),
            }],
            notes: vec![format!(
                "Measured here: medians of slices of 1 ms of all of these, in turns, on one thread, over {PRESET} ({}). The pools have one class of {SLOTS} slots, so that what is beyond \
                 has no larger one to go to.",
                PRESET.source()
            )],
            ..Shown::table(columns, all.iter().map(row))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(always: Result<f64, &str>) -> Vec<At> {
        let at = |policy, in_flight, kept: Result<f64, &str>| At {
            policy,
            in_flight,
            rate: kept.map(|kept| 100.0 * kept).map_err(String::from),
            by_within: kept.ok(),
            by_never: kept.ok().map(|kept| 3.0 * kept),
        };
        let mut all: Vec<At> = DEPTHS
            .into_iter()
            .flat_map(|depth| [Policy::Never, Policy::Always].map(|p| at(p, depth, Ok(1.0))))
            .collect();
        all.retain(|at| (at.policy, at.in_flight) != (Policy::Always, 64));
        all.push(at(Policy::Always, 64, always));
        all
    }

    #[test]
    fn the_verdict_is_what_is_left() {
        let found = |always| Limit::judge(&all(always)).remove(0).found.remove(0);
        let verdict = |always| found(always).verdict.unwrap();
        assert_eq!(verdict(Ok(0.6)), Verdict::Reproduced);
        assert_eq!(verdict(Ok(0.3)), Verdict::Weak);
        assert_eq!(verdict(Ok(0.2)), Verdict::Not);
        assert_eq!(verdict(Err("no slot")), Verdict::Not);
        assert_eq!(found(Err("no slot")).reason, "fails: no slot");
    }

    #[test]
    fn what_failed_has_a_row_and_no_point() {
        let shown = Limit::show(&all(Err("no slot")));
        assert_eq!(shown.table.rows.len(), 2 * DEPTHS.len());
        let Drawing::Lines(lines) = &shown.plots[0].drawing else {
            panic!();
        };
        let always = lines.iter().find(|line| line.name == "always").unwrap();
        assert_eq!(always.points.len(), DEPTHS.len() - 1);
        let failed = shown
            .table
            .rows
            .iter()
            .find(|row| row[5].text() == "no slot");
        assert_eq!(failed.unwrap()[2].text(), "");
    }
}
