// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a capture of maps and unmaps says, and nothing that it cannot say.
//!
//! A kernel's tracers see which buffers are mapped and unmapped, not what a device does between.
//! Misses, their causes and what a larger IOTLB would change follow from accesses, so a trace
//! without accesses of its own gets none of these. It gets what it knows exactly: how many maps a
//! second there are, of how many bytes, for how long, by which task and CPU; what each mode of the
//! kernel costs at that rate; how long a deferred one leaves pages within reach; and how much else
//! lies in the pages that a device can reach.
//!
//! One estimate from assumed accesses stays, since its error is known: what prefetching neighbours
//! saves (see `ioatlas trace info --assumption-error`).

mod costs;
mod histograms;
mod words;

pub use costs::{Costs, Linux, Mode, Pairs, Window};

use super::bouncing::{self, Gain};
use super::remedy::Remedy;
use super::{advice, pool};
use crate::loaded::{LoadedTrace, NAME};
use crate::record::Class;
use ioatlas_iotlb::import::Assume;
use ioatlas_iotlb::{DeviceId, DeviceTraffic, Event, Laboratory, Named, Setup, Slot, Topic, Trace};
use ioatlas_present::{Figure, Unit, short};
use serde::Serialize;
use std::ops::RangeInclusive;

/// By how many points of a hundred at most the saving of `alh` is off on the bundled traces where
/// their accesses are replaced by assumed ones; a test computes it again.
pub const ALH_ERROR_POINTS: f64 = 7.5;

/// Tasks and CPUs that are named, of each device.
const MOST: usize = 8;

/// A trace without accesses of its own.
#[derive(Clone, Debug, Serialize)]
pub struct Capture {
    /// The trace, by its [`LoadedTrace::label`].
    pub trace: String,
    /// Whether the tracer lost no events of it. If it did, no number of it is to be used.
    pub usable: bool,
    /// For how long was recorded, as far as that is known, or else from the first event to the
    /// last; `None` where no time is recorded.
    pub time: Option<Figure>,
    /// The same in seconds.
    #[serde(skip)]
    pub seconds: Option<f64>,
    /// From the first event to the last, in seconds.
    #[serde(skip)]
    pub span_s: f64,
    /// CPUs that mapped or unmapped something; `None` where none is recorded.
    pub cpus: Option<Figure>,
    /// Whether an IOMMU translated, or addresses were assigned while it was imported.
    pub translated: Translated,
    /// What each mode of the kernel costs at this rate; `None` where no time is recorded.
    pub costs: Option<Costs>,
    /// One a device.
    pub devices: Vec<CapturedDevice>,
}

/// Whether an IOMMU translated for the devices of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Translated {
    /// The addresses are an IOMMU's.
    Yes,
    /// Those of some devices are.
    Partly,
    /// All addresses were assigned while the capture was imported.
    No,
}

/// What a capture says of one device.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CapturedDevice {
    /// The device's name in the trace.
    pub device: String,
    /// What it is for, where known.
    pub class: Option<Class>,
    pub maps: Figure,
    pub unmaps: Figure,
    /// `None` where no time is recorded, as all rates.
    pub maps_per_second: Option<Figure>,
    pub unmaps_per_second: Option<Figure>,
    /// Of the busiest of equal parts of the time from the first event to the last.
    pub busiest_maps_per_second: Option<Figure>,
    /// Whether bytes of maps are recorded, and not their pages only.
    pub bytes_recorded: bool,
    /// Bytes of the mean map; of whole pages where no bytes are recorded.
    pub mean_bytes: Figure,
    /// What is within reach besides what was asked for; `None` where no bytes are recorded, or
    /// nothing was translated, so that all memory is within reach.
    pub beside: Option<Beside>,
    /// `None` where only counts are known.
    pub peak_live_pages: Option<Figure>,
    /// From map to unmap of streaming mappings.
    pub lifetimes: Option<Lifetimes>,
    /// Maps by their size, ascending.
    pub sizes: Vec<Size>,
    /// Most first, at most eight.
    pub tasks: Vec<Share>,
    /// Most first, at most eight.
    pub cpus: Vec<Share>,
    /// What a pool of receive buffers that stay mapped would take away; `None` where nothing, or of
    /// a disk.
    pub pool: Option<PoolGain>,
    /// Maps of as many bytes as a frame of an MTU of 1,500 has; `None` where no bytes are recorded,
    /// or of a disk.
    pub full_frames: Option<Figure>,
    /// What bouncing through mapped slots would save of the time in map and unmap under a strict
    /// policy; `None` where nothing is mapped for streaming.
    pub bouncing: Option<Gain>,
    /// What prefetching neighbours (`alh`) changes of the IOTLB's misses, by assumed accesses.
    /// `None` where nothing is accessed.
    pub alh: Option<Estimate>,
    /// Pages mapped over and pages unmapped while not mapped; `None` where only counts are known.
    pub anomalies: Option<Figure>,
    /// What would help, best first.
    pub remedies: Vec<Remedy>,
    /// Maps, unmaps and mapped pages over the time of the trace; on the page only.
    #[serde(skip)]
    pub timeline: Vec<Slot>,
}

/// A change that follows from assumed accesses, of which is known how far it is off.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The change.
    pub change: Figure,
    /// Points of a hundred by which it is off at most on the bundled traces.
    pub error: Figure,
}

/// Bytes within a device's reach that a map was not for, since the unit of protection is a page.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Beside {
    /// Maps that leave other bytes of their pages within reach, of those whose bytes are recorded.
    pub maps: Figure,
    /// These bytes, of all that the maps make reachable.
    pub bytes: Figure,
}

/// From map to unmap.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Lifetimes {
    pub resolution: Resolution,
    pub mappings: Figure,
    pub median: Figure,
    /// Nine of ten are shorter.
    pub p90: Figure,
    /// Ninety-nine of a hundred are shorter.
    pub p99: Figure,
    pub longest: Figure,
}

/// How exactly times are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resolution {
    /// As the tracer told them.
    Exact,
    /// They are at most as long as is said, and more than half as long.
    PowerOfTwo,
}

/// Maps of a size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Size {
    /// The largest of them, in bytes; the smallest is more than half of it.
    pub up_to: Figure,
    /// How many there are.
    pub maps: Figure,
}

/// A task's or CPU's part of the maps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Share {
    /// Name of the task, or number of the CPU.
    pub name: String,
    /// Of the maps of the device.
    pub share: Figure,
}

/// What a pool of buffers that stay mapped takes away.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PoolGain {
    /// Pages of the pool: as many as are live at most.
    pub pages: Figure,
    /// Maps that go, and as many unmaps.
    pub maps: Figure,
}

impl Translated {
    fn of(trace: &Trace) -> Self {
        let map = |event: &&Event| matches!(event, Event::Map { .. });
        match trace.noted(Topic::IovasAssigned) {
            0 => Translated::Yes,
            count if count >= trace.events().iter().filter(map).count() as u64 => Translated::No,
            _ => Translated::Partly,
        }
    }
}

impl Capture {
    /// What the trace says but for its costs; `None` if it has accesses of its own.
    #[must_use]
    pub fn of(loaded: &LoadedTrace, wait: Figure) -> Option<Self> {
        if loaded.has_accesses() {
            return None;
        }
        let trace = &loaded.trace;
        let traffic = trace.traffic();
        let span = traffic.span.map(|span| span.seconds());
        let recorded = trace.noted(Topic::Recorded) as f64 / 1e9;
        let seconds = span.map(|span| span.max(recorded));
        let (pools, frames) = (pool::gains(trace), full_frames(trace));
        let translated = Translated::of(trace);
        let alh = match translated {
            Translated::Yes => alh(trace),
            // its error is known where a kernel chose the addresses
            _ => vec![None; trace.devices().len()],
        };
        let bouncing = bouncing::gains(trace, &bouncing::strict(wait));
        let info = trace.info();
        let devices = traffic.devices.iter().zip(trace.devices());
        let device = |(of, id): (&DeviceTraffic, DeviceId)| {
            let class = loaded.class();
            let per_second = |count: u64| match seconds {
                Some(seconds) if seconds > 0.0 => {
                    Some(Figure::counted(count as f64 / seconds, Unit::PerSecond))
                }
                _ => None,
            };
            let anomalies = info.devices[id.index()].anomalies;
            CapturedDevice {
                device: short(trace.device_name(id), NAME),
                class,
                maps: Figure::count(of.maps),
                unmaps: Figure::count(of.unmaps),
                maps_per_second: per_second(of.maps),
                unmaps_per_second: per_second(of.unmaps),
                busiest_maps_per_second: busiest(of, span),
                bytes_recorded: of.bytes.maps > 0,
                mean_bytes: mean_bytes(of),
                beside: Beside::of(of).filter(|_| translated != Translated::No),
                peak_live_pages: Some(Figure::count(of.peak_live_pages.0)),
                lifetimes: of.lifetimes.map(Lifetimes::from),
                sizes: of.sizes.iter().map(Size::from).collect(),
                tasks: shares(of.maps, &of.tasks, |task| match task.task {
                    Some(task) => short(trace.task_name(task), NAME),
                    None => "unknown".into(),
                }),
                cpus: shares(of.maps, &of.cpus, |cpu| cpu.cpu.to_string()),
                full_frames: (of.bytes.maps > 0 && class != Some(Class::Disk))
                    .then(|| Figure::count(frames[id.index()])),
                pool: pools[id.index()].filter(|_| class != Some(Class::Disk)),
                bouncing: bouncing[id.index()],
                alh: alh[id.index()],
                anomalies: Some(Figure::count(
                    anomalies
                        .map_over_mapped_pages
                        .plus(anomalies.unmap_not_mapped_pages)
                        .0,
                )),
                remedies: Vec::new(),
                timeline: of.timeline.clone(),
            }
        };
        Some(Self {
            trace: loaded.label.clone(),
            usable: trace.lost_events() == 0,
            time: seconds.map(|seconds| Figure::time(seconds * 1e9)),
            seconds,
            span_s: span.unwrap_or_default(),
            cpus: trace
                .clock()
                .and_then(|clock| clock.cpus)
                .map(|cpus| Figure::count(cpus as u64)),
            translated,
            costs: None,
            devices: devices.map(device).collect(),
        })
    }

    /// Says of each device what would help; to be called when the costs are known.
    pub(super) fn advise(&mut self) {
        let of = |device| advice::of_captured(self, device);
        let remedies: Vec<_> = self.devices.iter().map(of).collect();
        for (device, remedies) in self.devices.iter_mut().zip(remedies) {
            device.remedies = remedies;
        }
    }

    /// Whether its rate is known, and maps take so little at it that there is no time to gain.
    #[must_use]
    pub fn takes_little(&self) -> bool {
        self.usable && self.costs.as_ref().is_some_and(Costs::are_small)
    }

    /// Maps of all devices.
    #[must_use]
    pub fn maps(&self) -> f64 {
        self.devices.iter().map(|device| device.maps.value).sum()
    }
}

/// Bytes of a map for a frame of an MTU of 1,500, with what drivers add to it.
const FULL_FRAME: RangeInclusive<u64> = 1_400..=1_600;

/// By device, maps of so many bytes.
fn full_frames(trace: &Trace) -> Vec<u64> {
    let mut frames = vec![0; trace.devices().len()];
    for event in trace.events() {
        let is_full = event
            .bytes()
            .is_some_and(|bytes| FULL_FRAME.contains(&bytes));
        frames[event.device().index()] += u64::from(is_full);
    }
    frames
}

fn busiest(of: &DeviceTraffic, span: Option<f64>) -> Option<Figure> {
    let most = of.timeline.iter().map(|slot| slot.maps).max()?;
    let slot = span.filter(|span| *span > 0.0)? / of.timeline.len() as f64;
    Some(Figure::counted(most as f64 / slot, Unit::PerSecond))
}

fn mean_bytes(of: &DeviceTraffic) -> Figure {
    let (bytes, maps) = match of.bytes.maps {
        0 => (of.pages.0 as f64 * 4096.0, of.maps),
        maps => (of.bytes.bytes as f64, maps),
    };
    Figure::counted(bytes / (maps.max(1) as f64), Unit::Bytes)
}

impl Beside {
    fn of(of: &DeviceTraffic) -> Option<Self> {
        let bytes = of.bytes;
        let share = |part: f64, whole: f64| Figure::counted(100.0 * part / whole, Unit::Percent);
        (bytes.maps > 0).then(|| Self {
            maps: share(bytes.partial as f64, bytes.maps as f64),
            bytes: share(
                bytes.reachable.saturating_sub(bytes.bytes) as f64,
                bytes.reachable as f64,
            ),
        })
    }
}

impl From<ioatlas_iotlb::Lifetimes> for Lifetimes {
    fn from(of: ioatlas_iotlb::Lifetimes) -> Self {
        let time = |ns: u64| Figure::time(ns as f64);
        Self {
            resolution: Resolution::Exact,
            mappings: Figure::count(of.count),
            median: time(of.median_ns),
            p90: time(of.p90_ns),
            p99: time(of.p99_ns),
            longest: time(of.longest_ns),
        }
    }
}

impl From<&ioatlas_iotlb::SizeCount> for Size {
    fn from(of: &ioatlas_iotlb::SizeCount) -> Self {
        Self {
            up_to: Figure::counted(2f64.powi(of.up_to_bytes_lg2 as i32), Unit::Bytes),
            maps: Figure::count(of.maps),
        }
    }
}

/// The largest parts of `whole`, with their names.
fn shares<T: Counted>(whole: u64, parts: &[T], name: impl Fn(&T) -> String) -> Vec<Share> {
    let share = |part: &T| Share {
        name: name(part),
        share: Figure::counted(
            100.0 * part.maps() as f64 / whole.max(1) as f64,
            Unit::Percent,
        ),
    };
    let known = parts.iter().filter(|part| part.is_known());
    known.take(MOST).map(share).collect()
}

/// A count of maps under some name.
trait Counted {
    fn maps(&self) -> u64;
    fn is_known(&self) -> bool;
}

impl Counted for ioatlas_iotlb::TaskCount {
    fn maps(&self) -> u64 {
        self.maps
    }
    fn is_known(&self) -> bool {
        self.task.is_some()
    }
}

impl Counted for ioatlas_iotlb::CpuCount {
    fn maps(&self) -> u64 {
        self.maps
    }
    fn is_known(&self) -> bool {
        true
    }
}

/// Events from the beginning of a capture that are looked at for an estimate: several times as many
/// as the bundled traces have, on which its error is known.
const ESTIMATED: usize = 1 << 17;

/// By device, what prefetching neighbours changes of the misses.
fn alh(trace: &Trace) -> Vec<Option<Estimate>> {
    let trace = &trace
        .beginning(ESTIMATED)
        .with_assumed_accesses(Assume::Unmap);
    let laboratory = Laboratory::new(trace);
    let misses = |name: &str| {
        let mut misses = vec![0u64; trace.devices().len()];
        // both names are of this file, and a test parses them
        if let Ok(named) = name.parse::<Named>() {
            laboratory.simulate_with(&Setup::of(named), |time, ending| {
                if ending == ioatlas_iotlb::Ending::Miss {
                    misses[trace.events()[time.0].device().index()] += 1;
                }
            });
        }
        misses
    };
    let (before, after) = (misses("baseline"), misses("alh"));
    let change = |(before, after): (&u64, &u64)| {
        let change = 100.0 * (*after as f64 / *before as f64 - 1.0);
        (*before > 0).then_some(Estimate {
            change: Figure::assumed(change, Unit::PercentChange),
            error: Figure::assumed(ALH_ERROR_POINTS, Unit::Points),
        })
    };
    before.iter().zip(&after).map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_strategies_have_a_name() {
        for name in ["baseline", "alh"] {
            assert!(name.parse::<Named>().is_ok());
        }
    }
}
