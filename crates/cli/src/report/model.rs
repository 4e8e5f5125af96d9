// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The report as data. Terminal, page and JSON are made from it and from nothing else.

use super::atlas::Atlas;
use super::figure::{Figure, Sentence, sentence};
use super::systems::SystemRow;
use super::verdict::DeviceVerdict;
use serde::Serialize;
use std::path::PathBuf;

/// Everything a report says.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was looked at.
    pub source: Source,
    /// Entries of the reference IOTLB.
    pub iotlb_entries: usize,
    /// Ways of the reference IOTLB.
    pub iotlb_ways: usize,
    /// One a device, in the order of traces.
    pub verdicts: Vec<DeviceVerdict>,
    /// The same for the bundled variants.
    pub variants: Vec<DeviceVerdict>,
    /// One a system; empty where none was run.
    pub systems: Vec<SystemRow>,
    /// What the oracle found over all systems; `None` where none was run.
    pub oracle: Option<OracleTotals>,
    /// What one invalidation makes a CPU wait for.
    pub wait: Wait,
    /// Where the numbers come from.
    pub provenance: Provenance,
    /// Pictures of the traces; on the page only.
    #[serde(skip)]
    pub atlases: Vec<Atlas>,
}

/// Whose traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Those in the binary.
    Bundled,
    /// The user's.
    User,
}

/// The wait of a strict policy for one invalidation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Wait {
    /// In nanoseconds.
    pub time: Figure,
    /// Where the time was derived from cycles: how many.
    pub cycles: Option<Figure>,
}

/// Where the numbers come from.
#[derive(Clone, Debug, Serialize)]
pub struct Provenance {
    /// The command line.
    pub command: String,
    /// Version of the program.
    pub version: &'static str,
    /// Commit that the program was built from, or `unknown`.
    pub commit: &'static str,
    /// Model of this machine's CPU, or `unknown`.
    pub cpu: String,
    /// Number of this machine's CPUs.
    pub cpus: usize,
    /// The traces, variants among them.
    pub traces: Vec<TraceOrigin>,
    /// The page's path as given.
    pub page: PathBuf,
}

/// A trace file.
#[derive(Clone, Debug, Serialize)]
pub struct TraceOrigin {
    /// Name of the file, as given by the user.
    pub name: String,
    /// Size of the file as stored.
    pub bytes: u64,
    /// Its SHA-256, hexadecimal.
    pub sha256: String,
    /// Events in it.
    pub events: Figure,
    /// Whether it is a variant of another bundled trace.
    pub is_variant: bool,
}

impl Report {
    /// What the numbers of strict systems assume.
    #[must_use]
    pub fn wait_sentence(&self) -> Sentence {
        match self.wait.cycles {
            Some(cycles) => sentence![
                "+w: wait for one invalidation, ",
                cycles,
                " [rIOMMU] = ",
                self.wait.time,
                " here (assumed; yours: --inv-ns)",
            ],
            None => sentence![
                "+w: wait for one invalidation, ",
                self.wait.time,
                " (assumed, --inv-ns)"
            ],
        }
    }

    /// What the oracle found, if it ran.
    #[must_use]
    pub fn oracle_sentence(&self) -> Option<Sentence> {
        let OracleTotals {
            faults,
            checked_accesses,
        } = self.oracle?;
        Some(sentence![
            faults,
            " forbidden accesses in ",
            checked_accesses,
            " checked (counted)."
        ])
    }
}

/// What the oracle found over all systems.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OracleTotals {
    /// Forbidden accesses that succeeded; must be 0.
    pub faults: Figure,
    /// Accesses checked.
    pub checked_accesses: Figure,
}

impl OracleTotals {
    /// Sums over `systems`; `None` if there are none.
    #[must_use]
    pub fn of(systems: &[SystemRow]) -> Option<Self> {
        let first = systems.first()?;
        let sum = |of: fn(&SystemRow) -> Figure| Figure {
            value: systems.iter().map(|row| of(row).value).sum(),
            ..of(first)
        };
        Some(Self {
            faults: sum(|row| row.oracle_faults),
            checked_accesses: sum(|row| row.oracle_checked_accesses),
        })
    }
}
