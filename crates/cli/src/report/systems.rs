// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What each system costs and how safe it is: one row a system.
//!
//! Rules of replay: an access moves to the new IOVA plus its offset in the mapping;
//! anomalies are skipped and counted; one CPU; virtual time is the event index and no
//! timer ticks, so only the bound in operations acts. Windows in time come from
//! measured runs with the oracle's clock. Misses are those of the software unit's
//! IOTLB. Costs of `strict` are CPU time; the wait for the invalidation is separate.

use super::figure::{Figure, Unit};
use crate::error::Error;
use crate::loaded::LoadedTrace;
use crate::measure;
use crate::progress::Progress;
use crate::replay::{Replayed, replay};
use ioatlas_dma::domain::{AssignerConfig, DeferredConfig, DomainConfig, PolicyConfig};
use ioatlas_dma::iova::MagazineConfig;
use ioatlas_iotlb::Geometry;
use ioatlas_viommu::config::SetGeometry;
use serde::Serialize;

/// What the rows are to be made with.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Nanoseconds that one invalidation makes the CPU wait; assumed. Goes into
    /// [`SystemRow::wait`] of strict systems.
    pub wait: Figure,
    /// Shape of the software unit's IOTLB.
    pub geometry: Geometry,
}

/// How long a device may still reach a page after its unmap returned.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Exposure {
    /// Strict: not at all.
    None,
    /// Deferred: until the next flush.
    Bounded {
        /// Configured: unmaps until a flush must start. Tagged assumed.
        operations_bound: Figure,
        /// Configured: milliseconds until a flush must start. Tagged assumed.
        time_bound: Figure,
        /// Largest number of unmaps seen between an unmap and its flush, in the replay.
        operations_observed: Figure,
        /// Longest time seen, in milliseconds, in measured runs.
        time_observed: Option<Figure>,
    },
}

/// A system on one trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SystemOnTrace {
    /// [`LoadedTrace::label`].
    pub trace: String,
    /// Maps replayed.
    pub maps: Figure,
    /// Events of the trace that did not fit and were skipped.
    pub skipped_anomalies: Figure,
    /// Invalidations submitted.
    pub invalidations: Figure,
    /// IOTLB misses of the software unit.
    pub misses: Figure,
    /// Peak of page-table memory, in KiB.
    pub table_memory: Figure,
    /// Accesses that the oracle found forbidden; must be 0.
    pub oracle_faults: Figure,
    /// Accesses that the oracle checked.
    pub oracle_checked_accesses: Figure,
}

/// One system, over all traces.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SystemRow {
    /// What people call it: `Linux today`.
    pub name: String,
    /// Assigner and policy: `magazine, deferred-percpu`.
    pub design: String,
    /// Where the design is described: `ATC'15 4.3, 5`.
    pub paper_ref: String,
    /// CPU time of a map and its unmap on one thread, in ns; measured.
    pub ns_per_pair_1_thread: Figure,
    /// The same with two threads at once, in ns of each thread's time; measured.
    pub ns_per_pair_2_threads: Figure,
    /// Wait for invalidations a pair, in ns, on top of the CPU time; assumed; strict only.
    pub wait: Option<Figure>,
    /// Invalidations per 1,000 maps; counted.
    pub invalidations_per_1k_maps: Figure,
    /// IOTLB misses per 1,000 maps; simulated.
    pub misses_per_1k_maps: Figure,
    /// Largest page-table memory over the traces, in KiB; counted.
    pub table_memory: Figure,
    /// How long an unmapped page stays reachable.
    pub exposure: Exposure,
    /// Forbidden accesses that succeeded; counted; must be 0.
    pub oracle_faults: Figure,
    /// Accesses that the oracle checked; counted.
    pub oracle_checked_accesses: Figure,
    /// The counts behind the rates.
    pub per_trace: Vec<SystemOnTrace>,
}

impl SystemRow {
    /// Time of a pair on one thread as a user feels it, in ns: CPU time plus wait.
    #[must_use]
    pub fn felt_ns_per_pair(&self) -> f64 {
        self.ns_per_pair_1_thread.value + self.wait.map_or(0.0, |wait| wait.value)
    }
}

/// A system as people know it, and the design behind it.
struct System {
    name: &'static str,
    assigner: AssignerConfig,
    policy: PolicyConfig,
    paper_ref: &'static str,
}

fn systems() -> [System; 4] {
    let magazine = AssignerConfig::Magazine(MagazineConfig::default());
    let deferred = PolicyConfig::DeferredPerCpu(DeferredConfig::default());
    let system = |name, assigner, policy, paper_ref| System {
        name,
        assigner,
        policy,
        paper_ref,
    };
    let (rbtree, strict) = (AssignerConfig::Rbtree, PolicyConfig::Strict);
    [
        system("Linux today", magazine, deferred, "ATC'15 4.3, 5"),
        system("Linux strict", magazine, strict, "ATC'15 4.3, 3.2"),
        system("rbtree deferred", rbtree, deferred, "ATC'15 3.1, 5"),
        system("rbtree strict", rbtree, strict, "ATC'15 3.1, 3.2"),
    ]
}

impl System {
    fn design(&self) -> DomainConfig {
        DomainConfig::new(self.assigner, self.policy)
    }
    fn failed(&self, detail: String) -> Error {
        Error::System {
            system: self.name.into(),
            detail,
        }
    }
}

/// Runs every system on the traces and measures it on this machine.
///
/// # Errors
///
/// [`Error::System`], if a system fails where it must not.
pub fn rows(
    traces: &[LoadedTrace],
    options: &Options,
    progress: &dyn Progress,
) -> Result<Vec<SystemRow>, Error> {
    let systems = systems();
    let steps = systems.len() * (traces.len() + 1);
    let mut rows = Vec::new();
    for (at, system) in systems.iter().enumerate() {
        let done = at * (traces.len() + 1);
        let mut replays = Vec::new();
        for (i, loaded) in traces.iter().enumerate() {
            let what = format!("{} on {}", system.name, loaded.label);
            progress.at(&what, done + i, steps);
            let iotlb = SetGeometry {
                entries: options.geometry.entries(),
                ways: options.geometry.ways(),
            };
            let replayed = replay(&loaded.trace, system.design(), iotlb)
                .map_err(|e| system.failed(format!("{}: {e}", loaded.trace.name())))?;
            replays.push((loaded.label.clone(), replayed));
        }
        let what = format!("measuring {}", system.name);
        progress.at(&what, done + traces.len(), steps);
        rows.push(row(system, &replays, options)?);
    }
    Ok(rows)
}

fn row(
    system: &System,
    replays: &[(String, Replayed)],
    options: &Options,
) -> Result<SystemRow, Error> {
    let design = system.design();
    let measure = |threads| {
        let ns = measure::ns_per_pair(design, threads).map_err(|e| system.failed(e))?;
        Ok::<_, Error>(Figure::measured(ns, Unit::Nanoseconds))
    };
    let sum = |pick: fn(&Replayed) -> u64| replays.iter().map(|(_, r)| pick(r)).sum::<u64>();
    let maps = sum(|r| r.maps);
    let per_1k = |count: u64| {
        if maps == 0 {
            0.0
        } else {
            count as f64 * 1e3 / maps as f64
        }
    };
    let most = |pick: fn(&Replayed) -> u64| replays.iter().map(|(_, r)| pick(r)).max();
    let exposure = match system.policy {
        PolicyConfig::Strict => Exposure::None,
        PolicyConfig::DeferredPerCpu(bounds) => Exposure::Bounded {
            operations_bound: Figure::assumed(f64::from(bounds.batch), Unit::Count),
            time_bound: Figure::assumed(bounds.window.0 as f64 / 1e6, Unit::Milliseconds),
            operations_observed: Figure::count(most(|r| r.oracle.exposure.unmaps).unwrap_or(0)),
            time_observed: measure::exposure_ms(design)
                .map_err(|e| system.failed(e))?
                .map(|ms| Figure::measured(ms, Unit::Milliseconds)),
        },
    };
    Ok(SystemRow {
        name: system.name.into(),
        design: format!("{}, {}", system.assigner.name(), system.policy.name()),
        paper_ref: system.paper_ref.into(),
        ns_per_pair_1_thread: measure(1)?,
        ns_per_pair_2_threads: measure(2)?,
        wait: matches!(system.policy, PolicyConfig::Strict).then_some(options.wait),
        invalidations_per_1k_maps: Figure::counted(per_1k(sum(|r| r.invalidations)), Unit::Per1000),
        misses_per_1k_maps: Figure::simulated(per_1k(sum(|r| r.misses)), Unit::Per1000),
        table_memory: Figure::counted(most(|r| r.table_kib).unwrap_or(0) as f64, Unit::Kibibytes),
        exposure,
        oracle_faults: Figure::count(sum(|r| r.oracle.violation_count)),
        oracle_checked_accesses: Figure::count(sum(|r| r.oracle.accesses)),
        per_trace: replays.iter().map(on_trace).collect(),
    })
}

fn on_trace((trace, replayed): &(String, Replayed)) -> SystemOnTrace {
    SystemOnTrace {
        trace: trace.clone(),
        maps: Figure::count(replayed.maps),
        skipped_anomalies: Figure::count(replayed.skipped),
        invalidations: Figure::count(replayed.invalidations),
        misses: Figure::simulated(replayed.misses as f64, Unit::Count),
        table_memory: Figure::counted(replayed.table_kib as f64, Unit::Kibibytes),
        oracle_faults: Figure::count(replayed.oracle.violation_count),
        oracle_checked_accesses: Figure::count(replayed.oracle.accesses),
    }
}
