// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What `bpftrace` counted in the kernel with the script of `ioatlas capture --bpftrace`.
//!
//! Where too much is mapped for a trace of each event, it can still be counted: maps by device,
//! task and CPU, their sizes and for how long they last as histograms over powers of two. The file
//! is what `bpftrace -f json` prints, a line each of the script's tables, by its name (`@sizes`).
//! The names of a row are one text, `3,0000:5e:00.0,/,dd` for a CPU, a device and a task: of these
//! the device and the task may hold commas, but no device has a `/` in its name.
//!
//! Only `report` reads such a file: there are no events in it.

use crate::error::Error;
use crate::input::{self, Input};
use crate::loaded::{NAME, label};
use ioatlas_iotlb::import::Reopen;
use ioatlas_iotlb::{Limits, TraceError};
use ioatlas_present::{printable, short};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::path::Path;

/// How the script begins to count, with the number of its form.
const BEGINS: &str = "ioatlas-bpftrace 2\n";

/// What stands between a device and a task.
const AFTER_DEVICE: &str = ",/,";

/// Bytes of a file, at most: hundreds of times what one has. Its lines take many times as much in
/// memory.
const MOST_BYTES: u64 = 8 << 20;

/// Bytes from the beginning of a file that tell whether it is one.
const HEAD: u64 = 4096;

/// Nanoseconds of the script's unit of time.
const UNIT_NS: u64 = 64;

/// The name that maps within softirqs have in place of a task's, as in captures.
const SOFTIRQ: &str = "softirq";

/// A file that could not be read as such.
#[derive(Debug, thiserror::Error)]
#[error("{file}:{line}: {fault}")]
pub struct HistogramsError {
    file: String,
    line: usize,
    fault: Fault,
}

/// What is wrong in a line.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("no line of JSON as bpftrace prints it: {0}")]
    Json(serde_json::Error),
    #[error("{0} is not as the script of `ioatlas capture --bpftrace` makes it")]
    Form(String),
    #[error(
        "{0} is of the script of another version of ioatlas; count again with what this version's \
         `ioatlas capture --bpftrace` prints"
    )]
    OtherForm(String),
    #[error("{0} is there twice")]
    Twice(String),
    #[error("more than {0} devices")]
    TooManyDevices(usize),
    #[error("more than {MOST_BYTES} bytes")]
    TooLong,
    #[error(
        "counting had not begun, or its end is missing; let the script end by itself, or by Ctrl-C"
    )]
    NoTime,
    #[error("nothing was counted: no driver mapped or unmapped anything")]
    Nothing,
    #[error(
        "bpftrace printed text; run it as `bpftrace -f json`, as `ioatlas capture --bpftrace` prints it"
    )]
    Text,
}

/// The counts of a machine.
#[derive(Clone, Debug)]
pub struct Histograms {
    /// The file as given by the user.
    pub name: String,
    /// Short name for people: the file name without its endings.
    pub label: String,
    /// SHA-256 of the file, hexadecimal.
    pub sha256: String,
    /// Size of the file, in bytes.
    pub file_bytes: u64,
    /// For how long was counted.
    pub seconds: f64,
    /// By name.
    pub devices: BTreeMap<String, DeviceCounts>,
}

/// The counts of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounts {
    /// Of all maps.
    pub bytes: u64,
    /// Maps by their bytes.
    pub sizes: Vec<Bucket>,
    /// Maps and unmaps of one address by the nanoseconds between.
    pub lifetimes: Vec<Bucket>,
    /// Unmaps whose map was not seen, or found no room in the table.
    pub unmatched: u64,
    /// Maps whose address is one of memory, as no IOMMU translates.
    pub physical: u64,
    /// Maps by task, and those within softirqs.
    pub tasks: BTreeMap<String, u64>,
    /// Maps by CPU.
    pub cpus: BTreeMap<u32, u64>,
}

/// A part of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The largest that it counts; the smallest is more than half of it, or 0.
    pub up_to: u64,
    /// How many there are.
    pub count: u64,
}

/// How many are in all parts.
fn sum(buckets: &[Bucket]) -> u64 {
    let counts = buckets.iter().map(|bucket| bucket.count);
    counts.fold(0, u64::saturating_add)
}

/// The upper end of the part in which so many percent end; `None` without any.
#[must_use]
pub fn percentile(buckets: &[Bucket], percent: u64) -> Option<u64> {
    let all = u128::from(sum(buckets));
    let wanted = (all * u128::from(percent)).div_ceil(100).max(1);
    let mut so_far = 0;
    let reaches = |bucket: &&Bucket| {
        so_far += u128::from(bucket.count);
        so_far >= wanted
    };
    buckets.iter().find(reaches).map(|bucket| bucket.up_to)
}

impl DeviceCounts {
    /// Maps, a list as one.
    #[must_use]
    pub fn maps(&self) -> u64 {
        sum(&self.sizes)
    }

    /// Unmaps.
    #[must_use]
    pub fn unmaps(&self) -> u64 {
        sum(&self.lifetimes).saturating_add(self.unmatched)
    }

    fn map(&mut self, cpu: u32, task: &str, count: u64) {
        for sum in [
            self.tasks.entry(task.into()).or_default(),
            self.cpus.entry(cpu).or_default(),
        ] {
            *sum = sum.saturating_add(count);
        }
    }
}

impl Histograms {
    /// Reads a file if it is one; `None` if not.
    pub(crate) fn open(path: &Path, file: &Input) -> Result<Option<Self>, Error> {
        let name = input::name(path);
        let failed = |source: io::Error| TraceError::Open {
            file: name.clone(),
            source,
        };
        let mut head = Vec::new();
        // what cannot be read is told by what reads traces
        let Ok(beginning) = file.reopen() else {
            return Ok(None);
        };
        if beginning.take(HEAD).read_to_end(&mut head).is_err() {
            return Ok(None);
        }
        let error = |line, fault| {
            let file = name.clone();
            Error::from(HistogramsError { file, line, fault })
        };
        let head = String::from_utf8_lossy(&head);
        if head.starts_with("Attaching ") && head.contains(" probes...\n") {
            return Err(error(1, Fault::Text));
        }
        let is_one = |line: &str| line.starts_with("{\"type\": \"attached_probes\"");
        if !head.lines().any(is_one) {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        let all = file.reopen().map_err(failed)?;
        file.is_last();
        all.take(MOST_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(failed)?;
        if bytes.len() as u64 > MOST_BYTES {
            return Err(error(1, Fault::TooLong));
        }
        let (seconds, devices) =
            counts(&String::from_utf8_lossy(&bytes)).map_err(|(line, fault)| error(line, fault))?;
        let digest = Sha256::digest(&bytes);
        Ok(Some(Self {
            label: short(&label(&name), NAME),
            name,
            sha256: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
            file_bytes: bytes.len() as u64,
            seconds,
            devices,
        }))
    }

    /// The file's name, and the label that stands for it.
    pub(crate) fn naming(&mut self) -> (&str, &mut String) {
        (&self.name, &mut self.label)
    }

    /// CPUs that mapped something.
    #[must_use]
    pub fn cpus(&self) -> usize {
        let cpus = self.devices.values().flat_map(|of| of.cpus.keys());
        cpus.collect::<BTreeSet<_>>().len()
    }
}

/// What the lines say, or which of them says what it must not.
fn counts(text: &str) -> Result<(f64, BTreeMap<String, DeviceCounts>), (usize, Fault)> {
    let mut tables = Tables::default();
    let mut lines = 0;
    for (number, line) in text.lines().enumerate() {
        lines = number + 1;
        // what bpftrace says besides
        if !line.starts_with('{') {
            continue;
        }
        let line = serde_json::from_str(line).map_err(Fault::Json);
        line.and_then(|line| tables.line(line))
            .map_err(|fault| (lines, fault))?;
    }
    let (Some(begin), Some(end)) = (tables.begin, tables.end) else {
        return Err((lines, Fault::NoTime));
    };
    let nanoseconds = end.checked_sub(begin).filter(|time| *time > 0);
    let nanoseconds = nanoseconds.ok_or((lines, Fault::NoTime))?;
    match tables.devices.is_empty() {
        true => Err((lines, Fault::Nothing)),
        false => Ok((nanoseconds as f64 / 1e9, tables.devices)),
    }
}

#[derive(Default)]
struct Tables {
    /// Whether the script said of which form its tables are.
    has_begun: bool,
    begin: Option<u64>,
    end: Option<u64>,
    devices: BTreeMap<String, DeviceCounts>,
    seen: BTreeSet<String>,
}

impl Tables {
    fn line(&mut self, line: Value) -> Result<(), Fault> {
        let kind = line["type"].as_str().unwrap_or_default();
        let data = &line["data"];
        match (kind, data) {
            ("printf", Value::String(text)) if text.starts_with("ioatlas-bpftrace ") => {
                if text != BEGINS {
                    return Err(Fault::OtherForm(printable(text.trim_end(), NAME)));
                }
                self.has_begun = true;
                Ok(())
            }
            ("map" | "hist", Value::Object(_)) if !self.has_begun => Err(Fault::NoTime),
            ("map" | "hist", Value::Object(tables)) => {
                for (name, rows) in tables {
                    if !self.seen.insert(name.clone()) {
                        return Err(Fault::Twice(printable(name, NAME)));
                    }
                    self.table(name, rows)
                        .ok_or_else(|| Fault::Form(printable(name, NAME)))?;
                    let most = Limits::default().devices;
                    if self.devices.len() > most {
                        return Err(Fault::TooManyDevices(most));
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Takes a table of the script; `None` if it does not look as it should. Tables of later forms
    /// are left out.
    fn table(&mut self, name: &str, rows: &Value) -> Option<()> {
        match name {
            "@begin" => self.begin = Some(rows.as_u64()?),
            "@end" => self.end = Some(rows.as_u64()?),
            "@bytes" => self.sums(rows, |device| &mut device.bytes)?,
            "@unmatched" => self.sums(rows, |device| &mut device.unmatched)?,
            "@physical" => self.sums(rows, |device| &mut device.physical)?,
            "@sizes" => {
                // of sizes less 1, so that a whole page is no more than a page
                let largest = |max: u64| max.checked_add(1);
                self.histograms(rows, largest, |device| &mut device.sizes)?;
            }
            "@lifetimes" => {
                let longest = |max: u64| max.checked_add(1)?.checked_mul(UNIT_NS);
                self.histograms(rows, longest, |device| &mut device.lifetimes)?;
            }
            "@tasks" => {
                for (key, count) in rows.as_object()? {
                    let (cpu, names) = cpu_of(key)?;
                    let (device, task) = names.split_once(AFTER_DEVICE)?;
                    self.device(device)?.map(cpu, task, count.as_u64()?);
                }
            }
            "@softirqs" => {
                for (key, count) in rows.as_object()? {
                    let (cpu, device) = cpu_of(key)?;
                    self.device(device)?.map(cpu, SOFTIRQ, count.as_u64()?);
                }
            }
            _ => {}
        }
        Some(())
    }

    fn device(&mut self, name: &str) -> Option<&mut DeviceCounts> {
        let odd = |c: char| c.is_whitespace() || c.is_control() || c == '/';
        if name.is_empty() || name.contains(odd) {
            return None;
        }
        Some(self.devices.entry(name.into()).or_default())
    }

    /// A number a CPU and device.
    fn sums(&mut self, rows: &Value, of: fn(&mut DeviceCounts) -> &mut u64) -> Option<()> {
        for (key, count) in rows.as_object()? {
            let (_, device) = cpu_of(key)?;
            let sum = of(self.device(device)?);
            *sum = sum.saturating_add(count.as_u64()?);
        }
        Some(())
    }

    /// A histogram a device; `largest` is what the largest number of a part stands for.
    fn histograms(
        &mut self,
        rows: &Value,
        largest: impl Fn(u64) -> Option<u64>,
        of: fn(&mut DeviceCounts) -> &mut Vec<Bucket>,
    ) -> Option<()> {
        for (device, parts) in rows.as_object()? {
            let mut buckets = Vec::new();
            for part in parts.as_array()? {
                let part: &Map<String, Value> = part.as_object()?;
                let count = part.get("count")?.as_u64()?;
                // of what is below 0 there is none
                if count > 0 {
                    let up_to = largest(part.get("max")?.as_u64()?)?;
                    buckets.push(Bucket { up_to, count });
                }
            }
            let ascending = buckets.is_sorted_by(|a, b| a.up_to < b.up_to);
            if !ascending {
                return None;
            }
            *of(self.device(device)?) = buckets;
        }
        Some(())
    }
}

/// The CPU of a row, and what else names it.
fn cpu_of(key: &str) -> Option<(u32, &str)> {
    let (cpu, names) = key.split_once(',')?;
    Some((cpu.parse().ok()?, names))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_the_ends_of_their_parts() {
        let bucket = |up_to, count| Bucket { up_to, count };
        let buckets = [bucket(64, 50), bucket(128, 49), bucket(1024, 1)];
        let of = |percent| percentile(&buckets, percent);
        assert_eq!(
            [of(50), of(51), of(99), of(100)],
            [Some(64), Some(128), Some(128), Some(1024)]
        );
        assert_eq!(percentile(&[], 50), None);
        assert_eq!(
            percentile(&[bucket(7, u64::MAX), bucket(9, 1)], 50),
            Some(7)
        );
    }
}
