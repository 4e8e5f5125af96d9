// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The command's arguments, and what their values may be.

use clap::Args;
use serde::Serialize;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// KiB of a CPU's buffer if there is memory: some 200,000 events.
const USUAL_KIB: u64 = 16 << 10;

/// KiB of a CPU's buffer, at least: the kernel has no use for less than two pages.
const LEAST_KIB: u64 = 64;

/// The part of the memory that is available, which the buffers of all CPUs may have together.
const PART_OF_MEMORY: u64 = 4;

/// Record what this machine's drivers map and unmap. Needs root, and Linux 6.12 or later.
///
/// Works with the IOMMU on or off. Before Linux 6.12 there are no dma events: then iommu:map and
/// iommu:unmap are recorded, which do not say of which device, and only with the IOMMU on.
///
/// Tracing goes on in a tracefs instance of its own, instances/ioatlas-PID, which is removed in the
/// end; other tracing is not disturbed. Ctrl-C (or SIGTERM, SIGHUP) ends the capture early and
/// keeps what there is; a second one ends the program at once. The trace has the times, CPUs,
/// addresses and sizes of DMA mappings, the names of devices, and the names of tasks, whoever runs
/// them; no data. A new one is readable by its owner only, who under sudo is the user that called
/// it. `ioatlas trace convert --anonymize` makes one to be shown.
///
/// The trace is written whole or not at all, compressed if its name ends in .zst or .gz; a file of
/// that name is replaced. Until then the compressed text takes as much room again, some 10 to 30
/// bytes an event. A disk that becomes full ends the recording; the trace is of what there is then.
/// Where the buffers were full, events are lost: the summary and the trace say how many.
///
/// JSON: file, bytes, seconds, ended (by: time, signal, disk-full), events (of the kernel), lost,
/// cpus, recorded (dma:* or iommu:map and iommu:unmap), devices[] (asked for; empty: all),
/// buffer_kib (of each CPU), notes[] (what the trace says about its making).
#[derive(Args, Debug)]
pub(crate) struct LiveCaptureArguments {
    /// Where to write the trace.
    #[arg(short, long, value_name = "FILE", default_value = "capture.trace.zst")]
    pub output: PathBuf,
    /// Seconds to record, 0.1 to 3600.
    #[arg(short, long, value_name = "S", default_value = "5", value_parser = seconds)]
    pub seconds: Duration,
    /// Only this device, as in 0000:5e:00.0 (lspci -D), 5e:00.0 or, where it is no PCI device, as
    /// in /sys/bus/*/devices; may be given several times.
    #[arg(long, value_name = "BDF")]
    pub device: Vec<Device>,
    /// KiB of the kernel's buffer for each CPU, 64 to 4194304 [default: 16384, or less where all
    /// CPUs' would take more than a quarter of the free memory].
    #[arg(long, value_name = "KIB", value_parser = clap::value_parser!(u64).range(LEAST_KIB..=4 << 20))]
    pub size: Option<u64>,
    /// Where tracefs is mounted [default: /sys/kernel/tracing or /sys/kernel/debug/tracing].
    #[arg(long, value_name = "DIR")]
    pub tracefs: Option<PathBuf>,
    /// Print shell commands that do the same, and do nothing. Their trace does not have the time
    /// that was recorded: rates are from its first event to its last. Needs no root.
    #[arg(long, conflicts_with = "json")]
    pub print: bool,
    /// Print a shell script that has bpftrace count in the kernel instead, for machines whose rate
    /// is too high for a trace of each event; `report` reads what it prints. Needs no root.
    #[arg(long, conflicts_with_all = ["json", "print", "output", "size", "tracefs"])]
    pub bpftrace: bool,
    /// Print the summary as JSON.
    #[arg(long)]
    pub json: bool,
}

impl LiveCaptureArguments {
    /// KiB of the buffer of each of so many CPUs.
    pub fn kib(&self, cpus: usize) -> u64 {
        let usual = || match available_kib() {
            Some(kib) => usual_kib(kib, cpus),
            None => USUAL_KIB,
        };
        self.size.unwrap_or_else(usual)
    }
}

fn usual_kib(available: u64, cpus: usize) -> u64 {
    let each = available / PART_OF_MEMORY / cpus.max(1) as u64;
    each.clamp(LEAST_KIB, USUAL_KIB)
}

/// KiB of memory that can be had without swapping.
fn available_kib() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse().ok()
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.1..=3600.0).contains(&value) => Ok(Duration::from_secs_f64(value)),
        _ => Err("expected a number of seconds from 0.1 to 3600".into()),
    }
}

/// The name of a device, as events have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Device(String);

impl Device {
    /// The kernel's filter for events of any of these.
    pub fn filter(devices: &[Device]) -> String {
        let one = |device: &Device| format!("device==\"{device}\"");
        devices.iter().map(one).collect::<Vec<_>>().join(" || ")
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // it stands between quotes in a filter, whose length the kernel bounds
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:,@+".contains(c);
        if text.is_empty() || text.len() > 64 || !text.chars().all(plain) {
            return Err("expected the name of a device, as 0000:5e:00.0".into());
        }
        Ok(Self(pci(text).unwrap_or_else(|| text.into())))
    }
}

/// `0000:5e:00.0` in the kernel's spelling, also of `5e:00.0`, which leaves the domain out.
fn pci(text: &str) -> Option<String> {
    let (domain, rest) = text.split_at_checked(text.len().checked_sub(7)?)?;
    let form = |(place, byte): (usize, u8)| match place {
        2 => byte == b':',
        5 => byte == b'.',
        _ => byte.is_ascii_hexdigit(),
    };
    let domain = match domain {
        "" => "0000",
        domain => domain.strip_suffix(':')?,
    };
    let hexadecimal = domain.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_one = hexadecimal && rest.bytes().enumerate().all(form);
    is_one.then(|| format!("{domain}:{rest}").to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_a_domain_is_in_the_first() {
        let named = |text: &str| text.parse::<Device>().map(|device| device.0);
        assert_eq!(named("5E:00.0"), Ok("0000:5e:00.0".into()));
        assert_eq!(named("0001:5E:00.0"), Ok("0001:5e:00.0".into()));
        for whole in ["10000:e1:00.0", "fe300000.mmc", "PNP0A03:00", "5E:00.00"] {
            assert_eq!(named(whole), Ok(whole.into()));
        }
        for bad in ["", "a\"b", "a b", "a\nb", "0000:5e:00.0|"] {
            assert!(named(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn buffers_are_small_where_memory_is() {
        assert_eq!(usual_kib(64 << 20, 16), USUAL_KIB);
        assert_eq!(usual_kib(1 << 20, 64), 4096);
        assert_eq!(usual_kib(1 << 10, 64), LEAST_KIB);
        assert!(available_kib().is_some());
    }

    #[test]
    fn seconds_have_bounds() {
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        for bad in ["0", "0.09", "3600.1", "-1", "NaN", "inf", "5s"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
