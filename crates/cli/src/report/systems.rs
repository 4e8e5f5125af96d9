// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What each system costs and how safe it is: one row a system.
//!
//! The designs are those of the crate `ioatlas-dma`, not the kernels' code. `crate::replay` has the rules of replay.
//! Every trace is replayed twice: once as recorded, for the counts; once with a device that also tries each unmapped page
//! again, so that "no violation" is said of accesses that a fault of the design would let through. Windows in time come
//! from measured runs with the oracle's clock. Misses are those of the software unit's IOTLB. The time a pair is without
//! any invalidation; the wait of `strict` for one is assumed, and separate.

use super::figure::{Figure, Unit};
use crate::error::Error;
use crate::loaded::LoadedTrace;
use crate::measure;
use crate::measure::Spread;
use crate::progress::Progress;
use crate::replay::{Probe, Replayed, replay};
use ioatlas_dma::domain::{self, AssignerConfig, DeferredConfig, DomainConfig, PolicyConfig};
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
        /// Configured: milliseconds after which the next tick of the caller's timer flushes. Tagged assumed. None where a flush was started
        /// already and lasts as long as the unit takes.
        time_bound: Option<Figure>,
        /// Largest number of unmaps seen between an unmap and its flush, in the replay.
        operations_observed: Figure,
        /// Longest time seen, in milliseconds, in measured runs.
        time_observed: Option<Figure>,
    },
    /// Until the range happens to be mapped again.
    Unbounded {
        /// Largest number of unmaps seen between an unmap and its flush, or the end, in the replay.
        operations_observed: Figure,
    },
}

/// A system on one trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SystemOnTrace {
    /// [`LoadedTrace::label`].
    pub trace: String,
    /// Map lines replayed.
    pub maps: Figure,
    /// Unmap lines replayed.
    pub unmaps: Figure,
    /// Lines of the trace that did not fit and were skipped.
    pub skipped_anomalies: Figure,
    /// Lines of the trace that were skipped because the replay would be too large.
    pub skipped_limits: Figure,
    /// Invalidations submitted.
    pub invalidations: Figure,
    /// IOTLB misses of the software unit.
    pub misses: Figure,
    /// Peak of page-table memory, in KiB.
    pub table_memory: Figure,
    /// Attempts on unmapped pages that were blocked.
    pub attempts_blocked: Figure,
    /// Attempts on unmapped pages that succeeded within the window.
    pub attempts_stale: Figure,
    /// Violations that the oracle found; must be 0.
    pub violations: Figure,
    /// Accesses that the oracle checked, attempts among them.
    pub oracle_checked_accesses: Figure,
}

/// One system, over all traces.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SystemRow {
    /// What people call it: `as Linux today`.
    pub name: String,
    /// Assigner and policy: `magazine, deferred-percpu`.
    pub design: String,
    /// Where the design is described: `ATC'15 4.3, 5`.
    pub paper_ref: String,
    /// Wall time of a map and its unmap on one thread, without an invalidation, in ns; measured, median.
    pub ns_per_pair_1_thread: Figure,
    /// Its 10th and 90th percentile.
    pub ns_per_pair_1_thread_range: [Figure; 2],
    /// The same with two threads at once, in ns of each thread's time. `None` with fewer CPUs than two, or where
    /// two threads never ran at the same time for long enough.
    pub ns_per_pair_2_threads: Option<Figure>,
    /// Its 10th and 90th percentile.
    pub ns_per_pair_2_threads_range: Option<[Figure; 2]>,
    /// Wait for invalidations a pair, in ns, on top of the measured time; assumed; strict only.
    pub wait: Option<Figure>,
    /// Invalidations per 1,000 map lines; counted.
    pub invalidations_per_1k_maps: Figure,
    /// IOTLB misses per 1,000 map lines; simulated.
    pub misses_per_1k_maps: Figure,
    /// Largest page-table memory over the traces, in KiB; counted.
    pub table_memory: Figure,
    /// How long an unmapped page stays reachable.
    pub exposure: Exposure,
    /// Lines of the traces that did not fit and were skipped; counted.
    pub skipped_anomalies: Figure,
    /// Lines skipped because the replay would be too large; counted.
    pub skipped_limits: Figure,
    /// Attempts on unmapped pages that were blocked; counted.
    pub attempts_blocked: Figure,
    /// Attempts on unmapped pages that succeeded within the window; counted.
    pub attempts_stale: Figure,
    /// Violations of a safety property; counted; must be 0.
    pub violations: Figure,
    /// The first of them in words.
    pub first_violation: Option<String>,
    /// Accesses that the oracle checked, attempts among them; counted.
    pub oracle_checked_accesses: Figure,
    /// The counts behind the rates.
    pub per_trace: Vec<SystemOnTrace>,
}

impl SystemRow {
    /// Time of a pair on one thread as a user feels it, in ns: measured time plus wait.
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
    let (rbtree, strict) = (AssignerConfig::RBTREE, PolicyConfig::Strict);
    [
        system("as Linux today", magazine, deferred, "ATC'15 4.3, 5"),
        system("as Linux strict", magazine, strict, "ATC'15 4.3, 3.2"),
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
            let run = |probe| {
                replay(&loaded.trace, system.design(), iotlb, probe)
                    .map_err(|e| system.failed(format!("{}: {e}", loaded.trace.name())))
            };
            replays.push(OnTrace {
                label: loaded.label.clone(),
                plain: run(Probe::Off)?,
                probed: run(Probe::UnmappedPages)?,
            });
        }
        let what = format!("measuring {}", system.name);
        progress.at(&what, done + traces.len(), steps);
        rows.push(row(system, &replays, options)?);
    }
    Ok(rows)
}

/// A trace's two replays.
struct OnTrace {
    label: String,
    /// For the counts of traffic.
    plain: Replayed,
    /// With attempts on unmapped pages, for safety.
    probed: Replayed,
}

impl OnTrace {
    fn violations(&self) -> u64 {
        self.plain.oracle.violation_count + self.probed.oracle.violation_count
    }

    fn first_violation(&self) -> Option<String> {
        let of = |replayed: &Replayed| replayed.oracle.violations.first().cloned();
        let first = of(&self.plain).or_else(|| of(&self.probed))?;
        Some(format!(
            "{}: {:?}: {}",
            self.label, first.property, first.text
        ))
    }
}

fn row(system: &System, replays: &[OnTrace], options: &Options) -> Result<SystemRow, Error> {
    let design = system.design();
    let measure = |threads| measure::pair_time(design, threads).map_err(|e| system.failed(e));
    let ns = |value| Figure::measured(value, Unit::Nanoseconds);
    let range = |spread: Spread| [ns(spread.low), ns(spread.high)];
    let alone = measure(1)?.ok_or_else(|| system.failed("no slice was measured".into()))?;
    let two = measure(2)?;
    let sum = |pick: fn(&OnTrace) -> u64| replays.iter().map(pick).sum::<u64>();
    let count = |pick: fn(&OnTrace) -> u64| Figure::count(sum(pick));
    let maps = sum(|on| on.plain.maps);
    let per_1k = |count: u64| {
        if maps == 0 {
            0.0
        } else {
            count as f64 * 1e3 / maps as f64
        }
    };
    let most = |pick: fn(&OnTrace) -> u64| replays.iter().map(pick).max().unwrap_or(0);
    let operations_observed = Figure::count(most(|on| on.plain.oracle.exposure.unmaps));
    // the replay and the measured run are of one CPU
    let exposure = match system.policy.exposure(1) {
        domain::Exposure::None => Exposure::None,
        domain::Exposure::Bounded { operations, time } => Exposure::Bounded {
            operations_bound: Figure::assumed(operations as f64, Unit::Count),
            time_bound: time.map(|ns| Figure::assumed(ns.0 as f64 / 1e6, Unit::Milliseconds)),
            operations_observed,
            time_observed: measure::exposure_ms(design)
                .map_err(|e| system.failed(e))?
                .map(|ms| Figure::measured(ms, Unit::Milliseconds)),
        },
        domain::Exposure::Unbounded => Exposure::Unbounded {
            operations_observed,
        },
    };
    Ok(SystemRow {
        name: system.name.into(),
        design: format!("{}, {}", system.assigner.name(), system.policy.name()),
        paper_ref: system.paper_ref.into(),
        ns_per_pair_1_thread: ns(alone.median),
        ns_per_pair_1_thread_range: range(alone),
        ns_per_pair_2_threads: two.map(|spread| ns(spread.median)),
        ns_per_pair_2_threads_range: two.map(range),
        wait: waits(&system.policy).then_some(options.wait),
        invalidations_per_1k_maps: Figure::counted(
            per_1k(sum(|on| on.plain.invalidations)),
            Unit::Per1000,
        ),
        misses_per_1k_maps: Figure::simulated(per_1k(sum(|on| on.plain.misses)), Unit::Per1000),
        table_memory: Figure::counted(most(|on| on.plain.table_kib) as f64, Unit::Kibibytes),
        exposure,
        skipped_anomalies: count(|on| on.plain.anomalies),
        skipped_limits: count(|on| on.plain.limited),
        attempts_blocked: count(|on| on.probed.attempts.blocked),
        attempts_stale: count(|on| on.probed.attempts.stale),
        violations: count(OnTrace::violations),
        first_violation: replays.iter().find_map(OnTrace::first_violation),
        oracle_checked_accesses: count(|on| on.probed.oracle.accesses),
        per_trace: replays.iter().map(on_trace).collect(),
    })
}

/// Whether each pair (of one page, as measured) waits for an invalidation of its own.
fn waits(policy: &PolicyConfig) -> bool {
    matches!(
        policy,
        PolicyConfig::Strict | PolicyConfig::FreeBsd | PolicyConfig::Solaris
    )
}

fn on_trace(on: &OnTrace) -> SystemOnTrace {
    let OnTrace { plain, probed, .. } = on;
    SystemOnTrace {
        trace: on.label.clone(),
        maps: Figure::count(plain.maps),
        unmaps: Figure::count(plain.unmaps),
        skipped_anomalies: Figure::count(plain.anomalies),
        skipped_limits: Figure::count(plain.limited),
        invalidations: Figure::count(plain.invalidations),
        misses: Figure::simulated(plain.misses as f64, Unit::Count),
        table_memory: Figure::counted(plain.table_kib as f64, Unit::Kibibytes),
        attempts_blocked: Figure::count(probed.attempts.blocked),
        attempts_stale: Figure::count(probed.attempts.stale),
        violations: Figure::count(on.violations()),
        oracle_checked_accesses: Figure::count(probed.oracle.accesses),
    }
}
