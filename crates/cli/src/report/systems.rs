// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What each system costs and how safe it is: one row a system, or design that no system ships. All
//! come from the registry of the core.
//!
//! The designs are those of the crate `ioatlas-dma`, not the kernels' code. `crate::replay` has the
//! rules of replay. Every trace is replayed twice: once as recorded, for the counts; once with a
//! device that also tries each unmapped page again, so that "no violation" is said of accesses that
//! a fault of the design would let through. A trace without accesses is replayed once, by its maps
//! and unmaps alone. Windows are those of the traces: the most unmaps that
//! an invalidation waited for in the replay, and how long so many take in a trace that has times.
//! Misses are those of the software unit's IOTLB.
//!
//! One row is of a driver that unmaps in bursts, as NAPI and NVMe reap completions: 16 by one call.
//! What that asks of the unit may be several invalidations with one wait; each is charged as if it
//! were waited for alone, so the wait of that row is the most that it can be.
//!
//! Two columns do not depend on the traces: the time a pair is that of this project's code on this
//! machine, on a ring of 256 single pages, without any invalidation. What a CPU waits for these is
//! separate: the invalidations that the design makes a map of the traces, times an assumed wait for
//! one.

use super::timings::Timings;
use crate::error::Error;
use crate::loaded::LoadedTrace;
use crate::progress::Progress;
use crate::replay::{Attempts, Driver, Probe, Replayed, Unmaps, exposure_ns, replay};
use ioatlas_bench::{Effort, Spread};
use ioatlas_dma::design::{self, Design, Shipped};
use ioatlas_dma::domain::{self, PolicyConfig};
use ioatlas_iotlb::Geometry;
use ioatlas_present::{Figure, Unit};
use ioatlas_viommu::config::SetGeometry;
use serde::Serialize;

/// What the rows are to be made with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which designs get a row.
    pub rows: Rows,
    /// Nanoseconds that one invalidation makes the CPU wait; assumed. Times the invalidations of
    /// the traces it is [`SystemRow::wait`].
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
        /// Configured: milliseconds after which the next tick of the caller's timer flushes. Tagged
        /// assumed. None where a flush was started already and lasts as long as the unit takes.
        time_bound: Option<Figure>,
        /// Largest number of unmaps seen between an unmap and its flush, in the replay.
        operations_observed: Figure,
        /// How long so many unmaps take at most, in milliseconds, over the traces that have times;
        /// never more than `time_bound`. `None` if no trace has times.
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
    /// The trace, by its [`LoadedTrace::label`].
    pub trace: String,
    /// Map lines that were replayed.
    pub maps: Figure,
    /// Unmap lines that were replayed.
    pub unmaps: Figure,
    /// Lines of the trace that did not fit and were skipped.
    pub skipped_anomalies: Figure,
    /// Lines of the trace that were skipped because the replay would be too large.
    pub skipped_limits: Figure,
    /// Invalidations that the domains submitted.
    pub invalidations: Figure,
    /// IOTLB misses of the software unit; `None` where accesses were not recorded.
    pub misses: Option<Figure>,
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
    /// Its usual name: `as Linux today`; or, where no system ships it, the design in the words of
    /// `--as`, or the title of its preset; with how it unmaps, where that is not one by one.
    pub name: String,
    /// The system that ships it: `Linux since 4.9`; null for none.
    pub shipped_by: Option<&'static str>,
    /// Allocator, policy and options: `magazine, deferred-percpu`.
    pub design: String,
    /// Where the design is described: `ATC'15 4.3, 5`.
    pub paper_ref: String,
    /// How the driver unmaps.
    pub unmaps: Unmaps,
    /// Wall time of a map and its unmap of one page on one thread, 256 of them outstanding, without
    /// an invalidation, in ns: this project's code on this machine, whatever the traces. The median
    /// of what was measured; `None` where nothing was.
    pub ns_per_pair_1_thread: Option<Figure>,
    /// Its 10th and 90th percentile.
    pub ns_per_pair_1_thread_range: Option<[Figure; 2]>,
    /// The same with two threads at once, in ns of each thread's time. `None` with fewer CPUs than
    /// two, or where two threads never ran at the same time for long enough.
    pub ns_per_pair_2_threads: Option<Figure>,
    /// Its 10th and 90th percentile.
    pub ns_per_pair_2_threads_range: Option<[Figure; 2]>,
    /// What a CPU waits for invalidations a map of the traces, in ns, on top of the measured time:
    /// those that are counted, times what one is assumed to take. `None` where maps and
    /// unmaps go on meanwhile.
    pub wait: Option<Figure>,
    /// Invalidations per 1,000 map lines; counted.
    pub invalidations_per_1k_maps: Figure,
    /// IOTLB misses per 1,000 map lines, over the traces whose accesses were recorded; simulated.
    /// `None` if there are none.
    pub misses_per_1k_maps: Option<Figure>,
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
    /// The name beside the design: the usual one, or a label for designs that no system ships.
    #[must_use]
    pub fn system(&self) -> &str {
        match (self.shipped_by, self.unmaps) {
            (Some(_), _) => &self.name,
            (None, Unmaps::OneByOne) => "(no system)",
            (None, Unmaps::InBursts) => IN_BURSTS,
        }
    }

    /// Time of a pair on one thread as a user feels it, in ns: the measured time and, for each map
    /// of the traces, the wait. `None` where the time was not measured.
    #[must_use]
    pub fn felt_ns_per_pair(&self) -> Option<f64> {
        let time = self.ns_per_pair_1_thread?;
        Some(time.value + self.wait.map_or(0.0, |wait| wait.value))
    }
}

/// Of the row whose driver unmaps in bursts.
const IN_BURSTS: &str = "batches of 16";

/// Which designs get a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Rows {
    /// Those that a system ships; and the strict one of Linux, of a driver that unmaps in bursts.
    #[default]
    Systems,
    /// Every allocator with every policy.
    All,
    /// These, in this order.
    Named(Vec<Design>),
}

impl Rows {
    /// More rows are measured for a shorter time each.
    const MANY: usize = 8;

    /// These, or of captures alone, where nothing else was asked for, none: what the modes of the
    /// kernel cost is said at their own rate.
    #[must_use]
    pub fn of_captures(&self) -> Self {
        match self {
            Rows::Systems => Rows::Named(Vec::new()),
            other => other.clone(),
        }
    }

    /// The designs, none twice.
    #[must_use]
    pub fn designs(&self) -> Vec<Design> {
        let mut designs: Vec<Design> = match self {
            Rows::Systems => design::presets().map(|preset| preset.design).collect(),
            // in the order of the default rows, then the others
            Rows::All => Rows::Systems
                .designs()
                .into_iter()
                .chain(design::all())
                .collect(),
            Rows::Named(named) => named.clone(),
        };
        let mut seen = Vec::new();
        designs.retain(|design| {
            let new = !seen.contains(design);
            seen.push(*design);
            new
        });
        designs
    }

    /// What gets a row, with a driver that unmaps in bursts behind the same design one by one.
    pub(crate) fn systems(&self) -> Vec<System> {
        let mut systems: Vec<System> = self.designs().into_iter().map(System::of).collect();
        let strict = systems.iter().position(|system| {
            let policy = system.design().domain.policy;
            system.shipped_by.is_some() && policy == PolicyConfig::Strict
        });
        if let (Rows::Systems, Some(at)) = (self, strict) {
            systems.insert(at + 1, System::in_bursts(systems[at].design()));
        }
        systems
    }

    /// How long to measure each of so many.
    fn effort(rows: usize) -> Effort {
        if rows > Self::MANY {
            Effort::QUICK
        } else {
            Effort::FULL
        }
    }
}

/// A design as people know it.
pub(crate) struct System {
    pub name: String,
    pub driver: Driver,
    pub paper_ref: String,
    pub shipped_by: Option<&'static str>,
}

impl System {
    pub fn of(design: Design) -> Self {
        let Design { domain, .. } = design;
        let of_parts = || {
            let allocator = design::allocators().find(|a| a.name == domain.allocator.name());
            let policy = design::policies().find(|p| p.name == domain.policy.name());
            let papers: Vec<&str> = allocator
                .map(|a| a.paper)
                .into_iter()
                .chain(policy.map(|p| p.paper))
                .collect();
            papers.join(", ")
        };
        match design.preset() {
            Some(preset) => System {
                name: match preset.shipped {
                    Shipped::By(_) => format!("as {}", preset.title),
                    Shipped::Nowhere => preset.title.into(),
                },
                driver: design.into(),
                paper_ref: preset.paper.into(),
                shipped_by: match preset.shipped {
                    Shipped::By(system) => Some(system),
                    Shipped::Nowhere => None,
                },
            },
            None => System {
                name: design.to_string(),
                driver: design.into(),
                paper_ref: of_parts(),
                shipped_by: None,
            },
        }
    }

    /// The same design, of a driver that unmaps in bursts.
    fn in_bursts(design: Design) -> Self {
        System {
            name: format!("{}, {IN_BURSTS}", design.domain.policy.name()),
            driver: Driver {
                design,
                unmaps: Unmaps::InBursts,
            },
            shipped_by: None,
            ..Self::of(design)
        }
    }

    pub fn design(&self) -> Design {
        self.driver.design
    }

    pub fn failed(&self, detail: String) -> Error {
        Error::System {
            system: self.name.clone(),
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
    timings: &Timings,
    progress: &dyn Progress,
) -> Result<Vec<SystemRow>, Error> {
    let systems = options.rows.systems();
    let effort = Rows::effort(systems.len());
    let steps = systems.len() * (traces.len() + 1);
    let mut rows = Vec::new();
    for (at, system) in systems.iter().enumerate() {
        let done = at * (traces.len() + 1);
        let mut replays = Vec::new();
        for (i, loaded) in traces.iter().enumerate() {
            let what = format!("{} on {}", system.name, loaded.label);
            progress.at(&what, done + i, steps);
            let run = |probe| {
                replay(&loaded.trace, system.driver, iotlb(options.geometry), probe)
                    .map_err(|e| system.failed(format!("{}: {e}", loaded.trace.name())))
            };
            let has_accesses = loaded.has_accesses();
            let plain = match has_accesses {
                true => run(Probe::Off),
                false => run(Probe::Idle),
            }?;
            replays.push(OnTrace {
                label: loaded.label.clone(),
                has_accesses,
                exposed_ns: exposure_ns(&loaded.trace, system.design(), &plain),
                plain,
                probed: match has_accesses {
                    true => Some(run(Probe::UnmappedPages)?),
                    false => None,
                },
            });
        }
        let what = format!("measuring {}", system.name);
        progress.at(&what, done + traces.len(), steps);
        let times = Times::of(system, timings, effort)?;
        rows.push(row(system, &replays, options, times));
    }
    Ok(rows)
}

/// What a map and its unmap take under a design on one thread, in ns, without an invalidation:
/// measured on this machine, or `None` where it is not to be.
///
/// # Errors
///
/// [`Error::System`], if it fails, which it must not.
pub(super) fn ns_per_pair(design: Design, timings: &Timings) -> Result<Option<Figure>, Error> {
    let spread = alone(&System::of(design), timings, Effort::FULL)?;
    Ok(spread.map(|spread| Figure::measured(spread.median, Unit::Nanoseconds)))
}

/// The time of a pair on one thread; `None` where nothing is to be measured.
fn alone(system: &System, timings: &Timings, effort: Effort) -> Result<Option<Spread>, Error> {
    let timed = timings.pair(system.driver, 1, effort);
    let timed = timed.map_err(|e| system.failed(e.to_string()))?;
    match timed.is_some() || timings.is_off() {
        true => Ok(timed),
        false => Err(system.failed("no slice was measured".into())),
    }
}

/// The times of a pair under a design, where they were measured.
struct Times {
    alone: Option<Spread>,
    /// On two threads at once.
    two: Option<Spread>,
}

impl Times {
    fn of(system: &System, timings: &Timings, effort: Effort) -> Result<Self, Error> {
        let alone = alone(system, timings, effort)?;
        let two = timings.pair(system.driver, 2, effort);
        let two = two.map_err(|e| system.failed(e.to_string()))?;
        Ok(Self { alone, two })
    }
}

/// The software unit's IOTLB of this shape.
pub fn iotlb(geometry: Geometry) -> SetGeometry {
    SetGeometry {
        entries: geometry.entries(),
        ways: geometry.ways(),
    }
}

/// A trace's two replays.
struct OnTrace {
    label: String,
    /// Whether its accesses were recorded, so that misses say something.
    has_accesses: bool,
    /// How long an invalidation was waited for at most, if the trace has times.
    exposed_ns: Option<u64>,
    /// For the counts of traffic.
    plain: Replayed,
    /// With attempts on unmapped pages, for safety; `None` where the device does nothing.
    probed: Option<Replayed>,
}

impl OnTrace {
    fn attempts(&self) -> Attempts {
        self.probed.as_ref().map(|p| p.attempts).unwrap_or_default()
    }

    /// Accesses that the oracle checked, attempts among them.
    fn checked(&self) -> u64 {
        self.probed.as_ref().map_or(0, |p| p.oracle.accesses)
    }

    fn violations(&self) -> u64 {
        let probed = self.probed.as_ref();
        self.plain.oracle.violation_count + probed.map_or(0, |p| p.oracle.violation_count)
    }

    fn first_violation(&self) -> Option<String> {
        let of = |replayed: &Replayed| replayed.oracle.violations.first().cloned();
        let first = of(&self.plain).or_else(|| self.probed.as_ref().and_then(of))?;
        Some(format!(
            "{}: {:?}: {}",
            self.label, first.property, first.text
        ))
    }
}

fn row(system: &System, replays: &[OnTrace], options: &Options, times: Times) -> SystemRow {
    let Driver { design, unmaps } = system.driver;
    let policy = design.domain.policy;
    let ns = |value| Figure::measured(value, Unit::Nanoseconds);
    let range = |spread: Spread| [ns(spread.low), ns(spread.high)];
    let Times { alone, two } = times;
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
    let exposure = match policy.exposure(1) {
        domain::Exposure::None => Exposure::None,
        domain::Exposure::Bounded { operations, time } => Exposure::Bounded {
            operations_bound: Figure::assumed(operations as f64, Unit::Count),
            time_bound: time.map(|ns| Figure::assumed(ns.0 as f64 / 1e6, Unit::Milliseconds)),
            operations_observed,
            time_observed: replays
                .iter()
                .filter_map(|on| on.exposed_ns)
                .max()
                .map(|ns| Figure::counted(ns as f64 / 1e6, Unit::Milliseconds)),
        },
        domain::Exposure::Unbounded => Exposure::Unbounded {
            operations_observed,
        },
    };
    let invalidations_per_1k_maps =
        Figure::counted(per_1k(sum(|on| on.plain.invalidations)), Unit::Per1000);
    SystemRow {
        name: system.name.clone(),
        shipped_by: system.shipped_by,
        design: design.to_string().replace(',', ", "),
        paper_ref: system.paper_ref.clone(),
        unmaps,
        ns_per_pair_1_thread: alone.map(|spread| ns(spread.median)),
        ns_per_pair_1_thread_range: alone.map(range),
        ns_per_pair_2_threads: two.map(|spread| ns(spread.median)),
        ns_per_pair_2_threads_range: two.map(range),
        wait: waits(&policy).then_some(Figure {
            value: options.wait.value * invalidations_per_1k_maps.value / 1e3,
            ..options.wait
        }),
        invalidations_per_1k_maps,
        misses_per_1k_maps: misses_per_1k_maps(replays),
        table_memory: Figure::counted(most(|on| on.plain.table_kib) as f64, Unit::Kibibytes),
        exposure,
        skipped_anomalies: count(|on| on.plain.anomalies),
        skipped_limits: count(|on| on.plain.limited),
        attempts_blocked: count(|on| on.attempts().blocked),
        attempts_stale: count(|on| on.attempts().stale),
        violations: count(OnTrace::violations),
        first_violation: replays.iter().find_map(OnTrace::first_violation),
        oracle_checked_accesses: count(OnTrace::checked),
        per_trace: replays.iter().map(on_trace).collect(),
    }
}

/// Over the traces whose accesses were recorded.
fn misses_per_1k_maps(replays: &[OnTrace]) -> Option<Figure> {
    let recorded = || replays.iter().filter(|on| on.has_accesses);
    recorded().next()?;
    let misses: u64 = recorded().map(|on| on.plain.misses).sum();
    let maps: u64 = recorded().map(|on| on.plain.maps).sum();
    let rate = misses as f64 * 1e3 / maps.max(1) as f64;
    Some(Figure::simulated(rate, Unit::Per1000))
}

/// Whether a CPU waits for the invalidations that it causes. Under `macos` it does not: maps and
/// unmaps go on meanwhile.
fn waits(policy: &PolicyConfig) -> bool {
    !matches!(policy, PolicyConfig::MacOs(_))
}

fn on_trace(on: &OnTrace) -> SystemOnTrace {
    let plain = &on.plain;
    SystemOnTrace {
        trace: on.label.clone(),
        maps: Figure::count(plain.maps),
        unmaps: Figure::count(plain.unmaps),
        skipped_anomalies: Figure::count(plain.anomalies),
        skipped_limits: Figure::count(plain.limited),
        invalidations: Figure::count(plain.invalidations),
        misses: (on.has_accesses).then(|| Figure::simulated(plain.misses as f64, Unit::Count)),
        table_memory: Figure::counted(plain.table_kib as f64, Unit::Kibibytes),
        attempts_blocked: Figure::count(on.attempts().blocked),
        attempts_stale: Figure::count(on.attempts().stale),
        violations: Figure::count(on.violations()),
        oracle_checked_accesses: Figure::count(on.checked()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_from_the_registry_and_none_twice() {
        let names = |rows: &Rows| -> Vec<String> {
            let systems = rows.systems().into_iter();
            systems.map(|system| system.name).collect()
        };
        let mut systems = names(&Rows::Systems);
        let expected = [
            "as Linux 3.17",
            "as Linux today",
            "as Linux strict",
            "strict, batches of 16",
            "as FreeBSD",
            "as Solaris",
            "as Mac OS X",
        ];
        assert_eq!(systems, expected);
        systems.remove(3); // no other design
        let all = names(&Rows::All);
        assert_eq!(
            all.len(),
            design::allocators().len() * design::policies().len()
        );
        assert_eq!(all[..systems.len()], systems);
        let mut unique = all.clone();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), all.len());
        let named = ["linux", "eiovar,strict", "magazine,deferred-percpu"];
        let named = named.map(|words| Design::parse(words).unwrap());
        assert_eq!(
            names(&Rows::Named(named.into())),
            ["as Linux today", "eiovar,strict"]
        );
    }

    #[test]
    fn what_no_system_ships_is_labelled_with_where_its_parts_are_written() {
        let system = System::of(Design::parse("eiovar,macos").unwrap());
        assert_eq!(system.shipped_by, None);
        assert_eq!(system.paper_ref, "ATC'15 3.1, ATC'15 3.4");
        let linux = System::of(Design::parse("linux").unwrap());
        assert_eq!(linux.shipped_by, Some("Linux since 4.9"));
    }
}
