// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Which aims are reached, by what was measured; and BOUNCE'21's results beside what is measured here.

use super::{
    cells::{Cell, LEARNING, Row, Split, change},
    cost::Preset,
    limits::{DEPTHS, Point, SLOTS},
    lists::Lists,
    load::{Block, Load, Way},
    memory::Memory,
    model::{Machine, Prediction, THEIRS, Theirs},
    policy::Policy,
};
use crate::{Spread, reach::Verdict};

/// A limit.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Limit {
    /// More is a miss.
    AtMost(f64),
    /// Less is a miss.
    AtLeast(f64),
    /// Reported only.
    None,
}

/// What a value counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Nanoseconds an operation.
    Nanoseconds,
    /// A ratio.
    Times,
    /// Hundredths; of changes, with a sign.
    Percent,
    /// Operations.
    Operations,
    /// KiB.
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

/// One aim.
#[derive(Clone, PartialEq, Debug)]
pub struct Aim {
    /// What is looked at.
    pub what: String,
    /// What it counts.
    pub unit: Unit,
    /// What it came to.
    pub value: Option<f64>,
    /// What it may be.
    pub limit: Limit,
    /// Whether it is reached.
    pub verdict: Verdict,
}

impl Aim {
    /// Judged.
    pub fn new(
        what: impl Into<String>,
        unit: Unit,
        limit: Limit,
        value: Result<f64, String>,
    ) -> Self {
        let reached = |reached| match reached {
            true => Verdict::Reached,
            false => Verdict::Missed,
        };
        let verdict = match (&value, limit) {
            (Err(why), _) => Verdict::Unmeasured(why.clone()),
            (Ok(_), Limit::None) => Verdict::Reported,
            (Ok(value), Limit::AtMost(most)) => reached(*value <= most),
            (Ok(value), Limit::AtLeast(least)) => reached(*value >= least),
        };
        Aim {
            what: what.into(),
            unit,
            value: value.ok(),
            limit,
            verdict,
        }
    }
}

/// All that was measured.
#[derive(Clone, Debug, Default)]
pub struct Study {
    /// Loads.
    pub cells: Vec<Cell>,
    /// More in flight than there are slots.
    pub points: Vec<Point>,
    /// Lists from a device that is not trusted; or why not.
    pub lists: Option<Result<Lists, String>>,
    /// Memory of pools; or why it is not known.
    pub memory: Option<Result<Memory, String>>,
}

/// BOUNCE'21's row of a size beside the model's and what is measured here, reads of 64 in flight on one thread.
#[derive(Clone, Debug, PartialEq)]
pub struct Beside {
    /// The model's.
    pub model: Prediction,
    /// Measured code over the preset, at the pace of the assumed machine: throughput by that of direct mapping.
    pub ratio: Option<f64>,
    /// Change of the measured time in unmap, in percent.
    pub unmap_change: Option<f64>,
    /// The same of map.
    pub map_change: Option<f64>,
}

const READS: Load = Load {
    preset: Preset::Bounce21,
    block: Block(4),
    direction: Way::Read,
    depth: 64,
    threads: 1,
};

impl Study {
    /// The row of a policy under a load.
    pub fn row(&self, load: &Load, policy: Policy) -> Result<&Row, String> {
        let rows = self.cells.iter().flat_map(|cell| &cell.rows);
        let row = rows.filter(|row| row.policy == policy);
        let mut row = row.filter(|row| row.load == *load);
        row.next()
            .ok_or_else(|| format!("{load} under {policy} is not among the rows"))
    }

    /// BOUNCE'21's sizes; without measured values where they are not among the rows.
    pub fn bounce21(&self) -> Vec<Beside> {
        let machine = Machine::bounce21();
        let beside = |theirs: Theirs| {
            let load = Load {
                block: Block(theirs.block.0 >> 10),
                ..READS
            };
            let never = self.row(&load, Policy::Never).ok();
            let always = self.row(&load, Policy::Always).ok();
            let split = |row: Option<&Row>| row?.split;
            let change_of = |of: fn(&Split) -> f64| change(of(&split(always)?), of(&split(never)?));
            Beside {
                model: machine.predicted(theirs),
                ratio: always.and_then(|row| row.paced_ratio),
                unmap_change: change_of(|split| split.unmap_ns),
                map_change: change_of(|split| split.map_ns),
            }
        };
        THEIRS.into_iter().map(beside).collect()
    }

    /// Beyond the copy, in nanoseconds.
    fn overhead(&self, direction: Way, threads: usize) -> Result<f64, String> {
        let load = Load {
            preset: Preset::Free,
            direction,
            threads,
            ..READS
        };
        let row = self.row(&load, Policy::Always)?;
        row.figure.as_ref().map_err(ToString::to_string)?;
        let few = || "too few rounds have both".to_owned();
        Ok(row.beyond_copy.ok_or_else(few)?.median)
    }

    fn point(&self, policy: Policy, depth: usize) -> Result<&Point, String> {
        let mut points = self.points.iter();
        let point = points.find(|p| p.policy == policy && p.load.depth == depth);
        let point = point.ok_or_else(|| format!("{policy} with {depth} in flight is not there"))?;
        point.figure.as_ref().map_err(ToString::to_string)?;
        Ok(point)
    }

    /// The aims of [`Policy::Adaptive`], over all loads: the worst one counts.
    fn learning(&self) -> Vec<Aim> {
        let rows = self.cells.iter().flat_map(|cell| &cell.rows);
        let rows: Vec<&Row> = rows.filter(|row| row.policy.learns()).collect();
        if rows.is_empty() {
            return Vec::new();
        }
        let behind = rows.iter().filter_map(|row| {
            let behind = (row.by_better?.median - 1.0) * 100.0;
            Some((behind, row.load))
        });
        let worst = behind.max_by(|a, b| a.0.total_cmp(&b.0));
        let within = rows.iter().filter_map(|row| row.by_better);
        let within = within.filter(|ratio| ratio.median <= 1.05).count();
        let name = match &worst {
            Some((_, load)) => format!(
                "adaptive behind the better of never and always, worst of {} rows ({load}); {within} are within 5 %",
                rows.len()
            ),
            None => "adaptive behind the better of never and always".into(),
        };
        let none = || "no row has both".to_owned();
        // what was measured and had not decided by then is a miss, not a lack of figures
        let measured = rows.iter().filter(|row| row.figure.is_ok());
        let longest = measured.map(|row| row.learned_after.unwrap_or(LEARNING));
        let longest = longest.max();
        vec![
            Aim::new(
                name,
                Unit::Percent,
                Limit::AtMost(5.0),
                worst.map(|(behind, _)| behind).ok_or_else(none),
            ),
            Aim::new(
                "operations until adaptive had decided, the most",
                Unit::Operations,
                Limit::AtMost(1_000.0),
                longest.map(|most| most as f64).ok_or_else(none),
            ),
        ]
    }

    /// Every aim of which something was measured.
    pub fn aims(&self) -> Vec<Aim> {
        let mut aims = Vec::new();
        for direction in Way::ALL {
            let name = direction.name();
            let one = self.overhead(direction, 1);
            let two = self.overhead(direction, 2);
            let ratio = one.clone().and_then(|one| Ok(two? / one));
            aims.push(Aim::new(
                format!("always, 4 KiB {name}s, 64 in flight: beyond the copy"),
                Unit::Nanoseconds,
                Limit::AtMost(40.0),
                one,
            ));
            aims.push(Aim::new(
                format!("the same, {name}s: on two threads by one"),
                Unit::Times,
                Limit::AtMost(1.3),
                ratio,
            ));
        }
        let worst = self.bounce21().into_iter().map(|beside| beside.map_change);
        let worst: Option<Vec<f64>> = worst.collect();
        let none = || "not all sizes of BOUNCE'21 are among the rows".to_owned();
        let worst = worst.map(|all| all.into_iter().fold(f64::MIN, f64::max));
        aims.push(Aim::new(
            "time in map for each GB of reads, bounce21: the smallest change",
            Unit::Percent,
            Limit::AtMost(-99.0),
            worst.ok_or_else(none),
        ));
        aims.extend(self.learning());
        let most = DEPTHS[DEPTHS.len() - 1];
        let median = |spread: Option<Spread>| {
            let few = || "too few rounds have both".to_owned();
            Ok(spread.ok_or_else(few)?.median)
        };
        if let Some(lists) = &self.lists {
            let of = |of: fn(&Lists) -> f64| lists.as_ref().map(of).map_err(String::clone);
            aims.push(Aim::new(
                "lists of whole pages, 64 KiB, moderate: pools by single use, time in map and unmap",
                Unit::Times,
                Limit::AtMost(1.0),
                of(|lists| lists.ratio.median),
            ));
            aims.push(Aim::new(
                format!(
                    "the same with the rest of an operation; theirs {:.2} (2.17 by 2.28 % of a CPU)",
                    Lists::theirs()
                ),
                Unit::Times,
                Limit::None,
                of(Lists::with_the_rest),
            ));
        }
        if let Some(memory) = &self.memory {
            let kib = |of: fn(&Memory) -> u64| {
                let memory = memory.as_ref().map_err(String::clone)?;
                Ok(of(memory) as f64 / 1024.0)
            };
            aims.push(Aim::new(
                "memory of default pools, 64 operations of 64 KiB in flight",
                Unit::Kibibytes,
                Limit::None,
                kib(|memory| memory.in_flight.0),
            ));
            aims.push(Aim::new(
                "the same when idle: slots, chunks, tables and bookkeeping",
                Unit::Kibibytes,
                Limit::AtMost(64.0),
                kib(|memory| memory.idle.0),
            ));
            aims.push(Aim::new(
                "of that, bookkeeping",
                Unit::Kibibytes,
                Limit::None,
                kib(|memory| memory.metadata.0),
            ));
        }
        for policy in Policy::ALL {
            if policy == Policy::Never || self.points.iter().all(|p| p.policy != policy) {
                continue;
            }
            let point = self.point(policy, most);
            aims.push(Aim::new(
                format!("{policy}, {most} in flight over {SLOTS} slots, by {SLOTS} in flight"),
                Unit::Times,
                Limit::AtLeast(0.6),
                point.clone().and_then(|point| median(point.by_within)),
            ));
            if policy.has_direct_way_out() {
                aims.push(Aim::new(
                    format!("the same, {policy}, by never"),
                    Unit::Times,
                    Limit::AtLeast(1.0),
                    point.and_then(|point| median(point.by_never)),
                ));
            }
        }
        aims
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_reached_or_missed_on_their_side() {
        let verdict = |limit, value: f64| Aim::new("x", Unit::Times, limit, Ok(value)).verdict;
        assert_eq!(verdict(Limit::AtMost(40.0), 40.0), Verdict::Reached);
        assert_eq!(verdict(Limit::AtMost(40.0), 40.1), Verdict::Missed);
        assert_eq!(verdict(Limit::AtLeast(0.6), 0.6), Verdict::Reached);
        assert_eq!(verdict(Limit::AtLeast(0.6), 0.59), Verdict::Missed);
        assert_eq!(verdict(Limit::AtLeast(0.6), f64::NAN), Verdict::Missed);
        assert_eq!(verdict(Limit::None, 7.0), Verdict::Reported);
        let busy = Aim::new("x", Unit::Times, Limit::AtMost(1.0), Err("busy".into()));
        assert_eq!(busy.verdict, Verdict::Unmeasured("busy".into()));
        assert_eq!(busy.value, None);
    }

    #[test]
    fn what_was_not_measured_is_not_judged() {
        let empty = Study::default();
        for aim in empty.aims() {
            assert!(matches!(aim.verdict, Verdict::Unmeasured(_)), "{aim:?}");
        }
        for beside in empty.bounce21() {
            assert_eq!((beside.ratio, beside.map_change), (None, None));
            assert!(beside.model.ratio > 0.0);
        }
    }
}
