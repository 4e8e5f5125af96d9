// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a read costs under each policy, and how that is told to people.

use crate::{
    load::{self, Buffers, Load},
    nvme::{controller::Controller, namespace::Namespace, queue::*},
    policy::Policy,
    verify::VerifyError,
    window::Idle,
};
use ioatlas_dma::{domain::Domain, translator::Translator, units::*};
use ioatlas_host::Host;
use serde::Serialize;
use std::{fmt, sync::Arc};

/// Policies, sizes and depths of the reads that are measured.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // its fields say it
pub struct Plan {
    pub policies: Vec<Policy>,
    /// Bytes of a read.
    pub sizes: Vec<ByteCount>,
    pub depths: Vec<Depth>,
    /// Reads of a round.
    pub reads: u32,
    /// Rounds, of which the median counts. At least 1.
    pub rounds: usize,
}

/// One policy at one size and depth.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[allow(missing_docs)] // its fields say it
pub struct Cost {
    pub policy: &'static str,
    /// Bytes of a read.
    pub bytes: u64,
    pub depth: u16,
    /// Reads of a round.
    pub reads: u64,
    /// Processor time of a read, of each round.
    pub cpu_ns: Vec<u64>,
    /// Time of a read by the clock, of each round.
    pub wall_ns: Vec<u64>,
    /// Calls of the kernel that map or unmap, in all rounds; none where no kernel has the tables.
    pub calls: Option<u64>,
    /// The controller was told these numbers before and after the rounds.
    pub notes: [u32; 2],
}

impl Cost {
    /// Processor time of a read: the median of the rounds.
    pub fn cpu(&self) -> u64 {
        median(&self.cpu_ns)
    }
    /// Time of a read by the clock.
    pub fn wall(&self) -> u64 {
        median(&self.wall_ns)
    }
}

/// The upper one where two are in the middle; 0 of none.
pub fn median(rounds: &[u64]) -> u64 {
    let mut sorted = rounds.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or(0)
}

/// Carries out `plan`; `note` is the last number that the controller was told.
#[allow(clippy::too_many_arguments)] // each is another thing
pub fn measure<T: Translator<Host>>(
    plan: &Plan,
    domain: &Arc<Domain<Host, T>>,
    controller: &mut Controller<T>,
    queue: &mut QueuePair,
    disk: &Namespace,
    buffers: &Buffers,
    idle: Idle,
    calls: impl Fn() -> Option<u64>,
    note: &mut u32,
) -> Result<Vec<Cost>, VerifyError> {
    let mut costs = Vec::new();
    for size in &plan.sizes {
        for policy in &plan.policies {
            let client = policy.client(domain)?;
            for depth in &plan.depths {
                let mut load = Load {
                    policy: *policy,
                    size: *size,
                    depth: *depth,
                    reads: policy.warm_up().max(2 * u32::from(depth.0)),
                    offset: ByteCount(0),
                    check: None,
                };
                load::run(&load, queue, &client, disk, buffers, idle)?;
                load.reads = plan.reads;
                let mut cost = Cost {
                    policy: policy.name(),
                    bytes: size.0,
                    depth: depth.0,
                    reads: u64::from(plan.reads),
                    cpu_ns: Vec::new(),
                    wall_ns: Vec::new(),
                    calls: None,
                    notes: [*note + 1, *note + 2],
                };
                *note += 2;
                controller.note(cost.notes[0])?;
                let before = calls();
                for _ in 0..plan.rounds.max(1) {
                    let seen = load::run(&load, queue, &client, disk, buffers, idle)?;
                    let reads = seen.reads.max(1);
                    cost.cpu_ns.push(seen.cpu_ns / reads);
                    cost.wall_ns.push(seen.wall_ns / reads);
                }
                cost.calls = calls().zip(before).map(|(after, before)| after - before);
                controller.note(cost.notes[1])?;
                costs.push(cost);
            }
        }
    }
    Ok(costs)
}

/// A table of costs: a line for each size and depth, a column for each policy.
pub struct Table<'c> {
    /// The costs of all cells.
    pub costs: &'c [Cost],
    /// Which of its numbers.
    pub of: fn(&Cost) -> u64,
    /// What they are, in thousands.
    pub unit: &'static str,
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut policies: Vec<&str> = Vec::new();
        let mut rows: Vec<(u64, u16)> = Vec::new();
        for cost in self.costs {
            if !policies.contains(&cost.policy) {
                policies.push(cost.policy);
            }
            if !rows.contains(&(cost.bytes, cost.depth)) {
                rows.push((cost.bytes, cost.depth));
            }
        }
        rows.sort_unstable_by_key(|(bytes, depth)| (*depth, *bytes));
        write!(f, "{:>6} {:>5}", "read", "depth")?;
        policies.iter().try_for_each(|p| write!(f, " {p:>10}"))?;
        writeln!(f, "   {}", self.unit)?;
        for (bytes, depth) in rows {
            write!(f, "{:>5}k {depth:>5}", bytes >> 10)?;
            for policy in &policies {
                let width = policy.len().max(10);
                let is_it = |c: &&Cost| (c.policy, c.bytes, c.depth) == (*policy, bytes, depth);
                match self.costs.iter().find(is_it) {
                    Some(cost) => write!(f, " {:>width$.1}", (self.of)(cost) as f64 / 1000.0)?,
                    None => write!(f, " {:>width$}", "-")?,
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_line_for_each_size_and_depth() {
        let cost = |policy, bytes, depth, cpu| Cost {
            policy,
            bytes,
            depth,
            reads: 1,
            cpu_ns: vec![cpu * 9, cpu, 0],
            wall_ns: vec![],
            calls: None,
            notes: [0, 0],
        };
        let costs = [
            cost("a", 4096, 8, 1500),
            cost("longer than ten", 16384, 8, 20),
            cost("a", 4096, 64, 7),
        ];
        let table = Table {
            costs: &costs,
            of: Cost::cpu,
            unit: "thousand",
        };
        let text = table.to_string();
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        assert_eq!(
            lines,
            [
                "  read depth          a longer than ten   thousand",
                "    4k     8        1.5               -",
                "   16k     8          -             0.0",
                "    4k    64        0.0               -"
            ]
        );
    }
}
