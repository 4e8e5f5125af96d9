// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What each system costs and how safe it is: one row a system.
//!
//! Rules of replay: an access moves to the new IOVA plus its offset in the mapping;
//! anomalies are skipped and counted; one CPU; virtual time is the event index and no
//! timer ticks, so only the bound in operations acts. Windows in time come from
//! measured runs with the oracle's clock. Misses are those of the software unit's
//! IOTLB. Costs of `strict` are CPU time; the wait for the invalidation is separate.

use super::figure::Figure;
use crate::error::Error;
use crate::loaded::LoadedTrace;
use crate::progress::Progress;
use ioatlas_iotlb::Geometry;
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

/// Runs every system on the traces and measures it on this machine.
///
/// # Errors
///
/// [`Error::System`], if a system fails where it must not.
pub fn rows(
    _traces: &[LoadedTrace],
    _options: &Options,
    _progress: &dyn Progress,
) -> Result<Vec<SystemRow>, Error> {
    Ok(Vec::new())
}
