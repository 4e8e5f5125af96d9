// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The command's arguments, and what their values may be.

use super::RecordError;
use super::plan::{Class, Device, Workload};
use clap::{Args, ValueEnum};
use ioatlas_guest::Cache;
use serde::Serialize;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// Record a trace: boots a guest under software emulation and watches a device at work.
///
/// An unmodified Debian kernel and the programs of the workload are fetched as packages (apt-get
/// download) into a cache and unpacked there; nothing is installed. QEMU (qemu-system-x86)
/// must be. The guest boots behind an emulated VT-d unit in strict mode, does its work, and
/// the trace is checked against its own counts; one that does not add up is refused. Progress
/// goes to standard error.
///
/// Network cards (e1000, 2xe1000, virtio-net, 2xvirtio-net) do stream, rr and mix; disks (lsi, ide,
/// nvme, virtio-scsi) do bonnie, dd and fio.
///
/// The trace has lines `# at <ns> <cpu>`: time of the emulating machine since the log's first
/// event, and CPU, of the maps and unmaps that follow. A guest's second takes many of this
/// machine's, and not evenly: order and counts are to be trusted, times are not.
///
/// JSON: file, bytes, sha256, device, workload, iova_cache, cpus, queues, ring, mib,
/// round_trips, depth, kernel, qemu, packages[], maps, unmaps, accesses, left_out
/// (direct_maps, direct_accesses, repeated_dumps), checks[] (what, found, wanted), seconds
/// (packages, probe, guest, checks, total).
#[derive(Args, Debug)]
pub(crate) struct RecordArguments {
    /// What to record.
    #[arg(long, value_enum)]
    pub device: Device,
    /// What the guest does.
    #[arg(long, value_enum)]
    pub workload: Workload,
    /// Where to write the trace; compressed if the name ends in .zst or .gz.
    #[arg(
        short,
        long,
        value_name = "FILE",
        required_unless_present = "fetch_only"
    )]
    pub output: Option<PathBuf>,
    /// The kernel's cache of freed IOVA ranges. Off: five bytes of the guest's kernel are changed,
    /// so that each range comes from the tree, from the top down.
    #[arg(long, value_enum, default_value = "on")]
    pub iova_cache: IovaCache,
    /// Mebibytes to move, each card and direction
    /// [default: 8 for stream and fio, 3 for mix, 24 for bonnie and dd].
    #[arg(long, value_name = "N")]
    pub mib: Option<u32>,
    /// Round trips of rr and mix.
    #[arg(long, value_name = "N", default_value_t = 3000)]
    pub round_trips: u32,
    /// Operations of fio under way at a time, for each queue.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub depth: u32,
    /// CPUs of the guest.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub cpus: u32,
    /// Pairs of queues (virtio-net, virtio-scsi, nvme), with a connection or job for each.
    /// Network cards with several need a network of their own: unshare and ip, and a kernel that
    /// lets users have one.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub queues: u32,
    /// Entries of a receive ring (virtio-net): 256, 512 or 1024. QEMU's transmit rings have 256.
    /// Above 256 QEMU 7.2 faults once more than about 247 packets arrive at a queue, and the
    /// recording is refused: fewer --mib help.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub ring: u32,
    /// Memory of the guest in MiB [default: 512; 192 for bonnie].
    #[arg(long, value_name = "MIB")]
    pub memory: Option<u32>,
    /// Seconds after which a guest that has not ended is killed, and its log kept.
    #[arg(long, value_name = "S", default_value_t = 600)]
    pub timeout: u64,
    /// Directory for packages [default: ioatlas/packages in $XDG_CACHE_HOME, else in ~/.cache].
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// Only fetch the packages, and say which.
    #[arg(long)]
    pub fetch_only: bool,
    /// Keep the temporary directory, with all of QEMU's log, and say where.
    #[arg(long)]
    pub keep: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// The kernel's cache of freed IOVA ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum IovaCache {
    /// As the kernel has it
    On,
    /// Switched off
    Off,
}

impl RecordArguments {
    /// Refuses what cannot be, before anything is done.
    pub fn check(&self) -> Result<(), RecordError> {
        self.workload.on(self.device)?;
        let device = self.device;
        within("--mib", self.mib(), 0..=4096)?;
        if self.mib == Some(0) || !self.mib().is_multiple_of(self.queues.max(1)) {
            let (mib, queues) = (self.mib(), self.queues);
            let detail = format!("{mib} MiB are no equal shares, above 0, of {queues} queues");
            return Err(option("--mib", detail));
        }
        within("--round-trips", self.round_trips, 1..=1_000_000)?;
        within("--depth", self.depth, 1..=1024)?;
        within("--cpus", self.cpus, 1..=64)?;
        within("--queues", self.queues, 1..=self.cpus)?;
        within("--memory", self.memory_mib(), 128..=65_536)?;
        within("--ring", self.ring, 256..=1024)?;
        if !self.ring.is_power_of_two() {
            return Err(option(
                "--ring",
                format!("{} is no power of two", self.ring),
            ));
        }
        if self.queues > 1 && !device.has_queues() {
            return Err(option("--queues", format!("{device} has one pair")));
        }
        if self.ring != 256 && !device.has_rings() {
            return Err(option(
                "--ring",
                format!("{device} has a ring of fixed size"),
            ));
        }
        if self.timeout == 0 {
            return Err(option("--timeout", "0 s are no time".into()));
        }
        Ok(())
    }

    /// Where the trace goes; clap sees to it that there is one where one is made.
    pub fn output(&self) -> &Path {
        self.output.as_deref().unwrap_or(Path::new("-"))
    }

    pub fn mib(&self) -> u32 {
        self.mib.unwrap_or(self.workload.default_mib())
    }

    pub fn memory_mib(&self) -> u32 {
        self.memory.unwrap_or(self.workload.default_memory_mib())
    }

    /// The cache of packages: that of `--cache`, else the user's.
    pub fn cache(&self) -> Result<PathBuf, RecordError> {
        let cache = self.cache.clone().or_else(Cache::default_directory);
        cache.ok_or_else(|| option("--cache", "neither HOME nor XDG_CACHE_HOME is set".into()))
    }

    /// How the trace was made, for the trace.
    pub fn comment(&self, kernel: &str) -> String {
        let amount = match (self.device.class(), self.workload) {
            (_, Workload::Rr) => format!("{} round trips", self.round_trips),
            (_, Workload::Mix) => format!("{} MiB, {} round trips", self.mib(), self.round_trips),
            (Class::Disk, Workload::Fio) => format!("{} MiB, depth {}", self.mib(), self.depth),
            _ => format!("{} MiB", self.mib()),
        };
        let ring = match self.device.has_rings() {
            true => format!(", receive rings of {}", self.ring),
            false => String::new(),
        };
        let cache = match self.iova_cache {
            IovaCache::On => "on",
            IovaCache::Off => "off",
        };
        let (device, workload, cpus, queues) = (self.device, self.workload, self.cpus, self.queues);
        format!(
            "recorded: {device}, {workload}, {amount}; CPUs: {cpus}, queues: {queues}{ring}; Linux {kernel}, strict, IOVA cache {cache}"
        )
    }
}

fn within(name: &'static str, value: u32, range: RangeInclusive<u32>) -> Result<(), RecordError> {
    if range.contains(&value) {
        return Ok(());
    }
    let (least, most) = (range.start(), range.end());
    Err(option(
        name,
        format!("{value} is not from {least} to {most}"),
    ))
}

fn option(option: &'static str, detail: String) -> RecordError {
    RecordError::Option { option, detail }
}
