// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A capture of which only counts are known, no event.
//!
//! What needs events is left out: peaks, what lies beside in a page, what remedies would change.

use super::{
    Capture, CapturedDevice, Counted, Lifetimes, Resolution, Share, Size, Translated, shares,
};
use crate::histograms::{Bucket, DeviceCounts, Histograms, percentile};
use crate::loaded::NAME;
use crate::report::model::Making;
use ioatlas_present::{Figure, Unit, sentence, short};
use std::collections::BTreeMap;

impl Capture {
    /// What was counted but for its costs.
    #[must_use]
    pub fn of_histograms(of: &Histograms) -> Self {
        let device = |(name, counts): (&String, &DeviceCounts)| {
            let (maps, unmaps) = (counts.maps(), counts.unmaps());
            let per_second =
                |count: u64| Some(Figure::counted(count as f64 / of.seconds, Unit::PerSecond));
            CapturedDevice {
                device: short(name, NAME),
                class: None,
                maps: Figure::count(maps),
                unmaps: Figure::count(unmaps),
                maps_per_second: per_second(maps),
                unmaps_per_second: per_second(unmaps),
                busiest_maps_per_second: None,
                bytes_recorded: true,
                mean_bytes: Figure::counted(counts.bytes as f64 / maps.max(1) as f64, Unit::Bytes),
                beside: None,
                peak_live_pages: None,
                lifetimes: lifetimes(&counts.lifetimes),
                full_frames: None,
                sizes: counts.sizes.iter().map(Size::from).collect(),
                tasks: largest(maps, &counts.tasks),
                cpus: largest(maps, &counts.cpus),
                pool: None,
                bouncing: None,
                alh: None,
                anomalies: None,
                remedies: Vec::new(),
                timeline: Vec::new(),
            }
        };
        let sum = |count: fn(&DeviceCounts) -> u64| total(of.devices.values().map(count));
        Self {
            trace: of.label.clone(),
            usable: true,
            time: Some(Figure::time(of.seconds * 1e9)),
            seconds: Some(of.seconds),
            span_s: 0.0,
            cpus: Some(Figure::count(of.cpus() as u64)),
            translated: match sum(|device| device.physical) {
                0 => Translated::Yes,
                physical if physical >= sum(DeviceCounts::maps) => Translated::No,
                _ => Translated::Partly,
            },
            costs: None,
            devices: of.devices.iter().map(device).collect(),
        }
    }
}

impl Making {
    /// How counts were made.
    #[must_use]
    pub fn of_histograms(of: &Histograms) -> Self {
        let mut notes = vec![sentence![
            "counted in the kernel by bpftrace, without a trace of each event; sizes and times are known \
             up to a power of two."
        ]];
        let unmatched = total(of.devices.values().map(|device| device.unmatched));
        if unmatched > 0 {
            notes.push(sentence![
                Figure::count(unmatched),
                " unmaps of what was mapped before, or had no room in the table: their times are not \
                 known.",
            ]);
        }
        let more = |counts: &&DeviceCounts| total(counts.tasks.values().copied()) > counts.maps();
        let wrong = of.devices.values().filter(more).count() as u64;
        if wrong > 0 {
            notes.push(sentence![
                "more maps counted by task than in all, so not by task and CPU: devices ",
                Figure::count(wrong),
                ".",
            ]);
        }
        Self {
            trace: of.label.clone(),
            notes,
            assumptions: 0,
            is_cut: false,
        }
    }
}

/// A file may hold any counts, so their sum need not fit.
fn total(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

fn lifetimes(of: &[Bucket]) -> Option<Lifetimes> {
    let time = |percent| Some(Figure::time(percentile(of, percent)? as f64));
    Some(Lifetimes {
        resolution: Resolution::PowerOfTwo,
        mappings: Figure::count(total(of.iter().map(|bucket| bucket.count))),
        median: time(50)?,
        p90: time(90)?,
        p99: time(99)?,
        longest: time(100)?,
    })
}

impl From<&Bucket> for Size {
    fn from(of: &Bucket) -> Self {
        Self {
            up_to: Figure::counted(of.up_to as f64, Unit::Bytes),
            maps: Figure::count(of.count),
        }
    }
}

/// The largest parts of the maps; nothing where they are more than the maps, so no parts of them.
fn largest<K: ToString>(maps: u64, of: &BTreeMap<K, u64>) -> Vec<Share> {
    let mut parts: Vec<(String, u64)> = of.iter().map(|(key, n)| (key.to_string(), *n)).collect();
    if total(of.values().copied()) > maps {
        return Vec::new();
    }
    parts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    shares(maps, &parts, |(name, _)| short(name, NAME))
}

impl Counted for (String, u64) {
    fn maps(&self) -> u64 {
        self.1
    }
    fn is_known(&self) -> bool {
        true
    }
}
