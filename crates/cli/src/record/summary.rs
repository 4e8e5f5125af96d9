// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a recording made.

use super::check::Check;
use super::console::Said;
use super::options::{IovaCache, RecordArguments};
use super::plan::{Device, Workload};
use ioatlas_guest::Tree;
use ioatlas_iotlb::TraceInfo;
use ioatlas_iotlb::import::qemu::Counts;
use ioatlas_present::grouped;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use std::fmt;

/// How long the parts took, on this machine.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Seconds {
    pub packages: f64,
    /// The first boot, which tells where functions are.
    pub probe: f64,
    /// The second boot, with the work.
    pub guest: f64,
    /// Reading the trace back, checking, compressing, writing.
    pub checks: f64,
    /// All parts together, and what is between them.
    pub total: f64,
}

/// What of the log is not in the trace.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LeftOut {
    /// Maps of pages onto themselves, for reserved regions.
    pub direct_maps: u64,
    /// Accesses to those pages, too.
    pub direct_accesses: u64,
    /// Dumps that say the same as another.
    pub repeated_dumps: u64,
}

/// The recording, its numbers and its checks.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    file: String,
    bytes: usize,
    sha256: String,
    device: Device,
    workload: Workload,
    iova_cache: IovaCache,
    cpus: u32,
    queues: u32,
    ring: u32,
    mib: u32,
    round_trips: u32,
    depth: u32,
    kernel: String,
    qemu: String,
    packages: Vec<String>,
    maps: u64,
    unmaps: u64,
    accesses: u64,
    left_out: LeftOut,
    checks: Vec<Check>,
    seconds: Seconds,
}

impl Summary {
    #[expect(clippy::too_many_arguments, reason = "it gathers what others made")]
    pub(super) fn new(
        arguments: &RecordArguments,
        qemu: &str,
        said: &Said,
        tree: &Tree,
        counts: &Counts,
        info: &TraceInfo,
        checks: Vec<Check>,
        bytes: &[u8],
        seconds: Seconds,
    ) -> Self {
        let sum = |of: fn(&ioatlas_iotlb::DeviceInfo) -> u64| info.devices.iter().map(of).sum();
        let digest = Sha256::digest(bytes);
        Self {
            file: arguments.output().display().to_string(),
            bytes: bytes.len(),
            sha256: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
            device: arguments.device,
            workload: arguments.workload,
            iova_cache: arguments.iova_cache,
            cpus: arguments.cpus,
            queues: arguments.queues,
            ring: arguments.ring,
            mib: arguments.mib(),
            round_trips: arguments.round_trips,
            depth: arguments.depth,
            kernel: said.kernel.clone(),
            qemu: qemu.into(),
            packages: tree.packages.iter().cloned().collect(),
            maps: sum(|device| device.maps),
            unmaps: sum(|device| device.unmaps),
            accesses: sum(|device| device.accesses),
            left_out: LeftOut {
                direct_maps: counts.direct_maps,
                direct_accesses: counts.direct_accesses,
                repeated_dumps: counts.repeated_dumps,
            },
            checks,
            seconds,
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [maps, unmaps, accesses] = [self.maps, self.unmaps, self.accesses].map(grouped);
        writeln!(
            f,
            "{}: {maps} maps, {unmaps} unmaps, {accesses} accesses",
            self.file
        )?;
        writeln!(f, "Linux {}, {}", self.kernel, self.qemu)?;
        writeln!(f, "{} checks hold:", self.checks.len())?;
        for check in &self.checks {
            writeln!(f, "  {:>9}  {}", grouped(check.found), check.what)?;
        }
        let Seconds {
            packages,
            probe,
            guest,
            checks,
            total,
        } = self.seconds;
        writeln!(
            f,
            "{total:.0} s: packages {packages:.0}, first boot {probe:.0}, work {guest:.0}, checks {checks:.0}"
        )
    }
}
