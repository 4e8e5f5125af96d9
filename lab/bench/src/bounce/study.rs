// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What was measured, what it comes to, and BOUNCE'21's results beside it.

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
use crate::{
    Spread,
    summary::{Line, Unit},
};

/// All that was measured.
#[derive(Clone, Debug, Default)]
pub struct Study {
    /// The cells, one for each load.
    pub cells: Vec<Cell>,
    /// More in flight than there are slots.
    pub points: Vec<Point>,
    /// Lists from a device that is not trusted; or why not.
    pub lists: Option<Result<Lists, String>>,
    /// Memory of pools; or why it is not known.
    pub memory: Option<Result<Memory, String>>,
}

/// BOUNCE'21's row of a size beside the model's and what is measured here, reads of 64 in
/// flight on one thread.
#[derive(Clone, Debug, PartialEq)]
pub struct Beside {
    /// What the model says of it.
    pub model: Prediction,
    /// Measured code over the preset, at the pace of the assumed machine: throughput by
    /// that of direct mapping.
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

    /// What [`Policy::Adaptive`] costs, over all loads: the worst one counts.
    fn learning(&self) -> Vec<Line> {
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
        // one that had not decided by then took all of it, which is no lack of figures
        let measured = rows.iter().filter(|row| row.figure.is_ok());
        let longest = measured.map(|row| row.learned_after.unwrap_or(LEARNING));
        let longest = longest.max();
        vec![
            Line::new(
                name,
                Unit::Percent,
                worst.map(|(behind, _)| behind).ok_or_else(none),
            ),
            Line::new(
                "operations until adaptive had decided, the most",
                Unit::Operations,
                longest.map(|most| most as f64).ok_or_else(none),
            ),
        ]
    }

    /// What it comes to, of all that was measured.
    pub fn summary(&self) -> Vec<Line> {
        let mut lines = Vec::new();
        for direction in Way::ALL {
            let name = direction.name();
            let one = self.overhead(direction, 1);
            let two = self.overhead(direction, 2);
            let ratio = one.clone().and_then(|one| Ok(two? / one));
            lines.push(Line::new(
                format!("always, 4 KiB {name}s, 64 in flight: beyond the copy"),
                Unit::Nanoseconds,
                one,
            ));
            lines.push(Line::new(
                format!("the same, {name}s: on two threads by one"),
                Unit::Times,
                ratio,
            ));
        }
        let worst = self.bounce21().into_iter().map(|beside| beside.map_change);
        let worst: Option<Vec<f64>> = worst.collect();
        let none = || "not all sizes of BOUNCE'21 are among the rows".to_owned();
        let worst = worst.map(|all| all.into_iter().fold(f64::MIN, f64::max));
        lines.push(Line::new(
            "time in map for each GB of reads, bounce21: the smallest change",
            Unit::Percent,
            worst.ok_or_else(none),
        ));
        lines.extend(self.learning());
        let most = DEPTHS[DEPTHS.len() - 1];
        let median = |spread: Option<Spread>| {
            let few = || "too few rounds have both".to_owned();
            Ok(spread.ok_or_else(few)?.median)
        };
        if let Some(lists) = &self.lists {
            let of = |of: fn(&Lists) -> f64| lists.as_ref().map(of).map_err(String::clone);
            lines.push(Line::new(
                "lists of whole pages, 64 KiB, moderate: pools by single use, time in map and unmap",
                Unit::Times,
                of(|lists| lists.ratio.median),
            ));
            lines.push(Line::new(
                format!(
                    "the same with the rest of an operation; theirs {:.2} (2.17 by 2.28 % of a CPU)",
                    Lists::theirs()
                ),
                Unit::Times,
                of(Lists::with_the_rest),
            ));
        }
        if let Some(memory) = &self.memory {
            let kib = |of: fn(&Memory) -> u64| {
                let memory = memory.as_ref().map_err(String::clone)?;
                Ok(of(memory) as f64 / 1024.0)
            };
            lines.push(Line::new(
                "memory of default pools, 64 operations of 64 KiB in flight",
                Unit::Kibibytes,
                kib(|memory| memory.in_flight.0),
            ));
            lines.push(Line::new(
                "the same when idle: slots, chunks, tables and bookkeeping",
                Unit::Kibibytes,
                kib(|memory| memory.idle.0),
            ));
            lines.push(Line::new(
                "of that, bookkeeping",
                Unit::Kibibytes,
                kib(|memory| memory.metadata.0),
            ));
        }
        for policy in Policy::ALL {
            if policy == Policy::Never || self.points.iter().all(|p| p.policy != policy) {
                continue;
            }
            let point = self.point(policy, most);
            lines.push(Line::new(
                format!("{policy}, {most} in flight over {SLOTS} slots, by {SLOTS} in flight"),
                Unit::Times,
                point.clone().and_then(|point| median(point.by_within)),
            ));
            if policy.has_direct_way_out() {
                lines.push(Line::new(
                    format!("the same, {policy}, by never"),
                    Unit::Times,
                    point.and_then(|point| median(point.by_never)),
                ));
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_says_why() {
        let empty = Study::default();
        for line in empty.summary() {
            assert!(line.value.is_err(), "{line:?}");
        }
        for beside in empty.bounce21() {
            assert_eq!((beside.ratio, beside.map_change), (None, None));
            assert!(beside.model.ratio > 0.0);
        }
    }
}
