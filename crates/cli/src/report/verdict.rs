// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What one device suffers from, in numbers and in sentences.

use super::remedy::Remedy;
use super::savings::{Knobs, Saving, Savings};
use crate::error::Error;
use crate::loaded::{LoadedTrace, NAME};
use crate::record::Class;
use ioatlas_iotlb::{DeviceId, DeviceInfo, Geometry, MissCounts, SWEEP_ENTRIES, SweepPoint, sweep};
use ioatlas_present::short;
use ioatlas_present::{Figure, Sentence, Unit, sentence};
use serde::Serialize;

/// How many times the entries the sentence about a larger IOTLB speaks of.
pub(super) const LARGER: usize = 8;

/// Misses of a device in an IOTLB of some size.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SizePoint {
    /// Entries of the IOTLB.
    pub entries: usize,
    pub misses: Figure,
    /// Misses in 100 accesses.
    pub misses_per_100_accesses: Figure,
}

/// The diagnosis of one device of one trace. Devices of a trace share the IOTLB.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceVerdict {
    /// The trace, by its [`LoadedTrace::label`].
    pub trace: String,
    /// The device's name in the trace.
    pub device: String,
    /// Device and workload, where known.
    pub description: Option<&'static str>,
    /// What it is for, where known.
    pub class: Option<Class>,
    /// Map events of the device.
    pub maps: Figure,
    /// Access events of the device.
    pub accesses: Figure,
    /// Largest number of pages mapped at one moment.
    pub peak_live_pages: Figure,
    /// Accesses outside a mapping, pages mapped over, pages unmapped while not mapped.
    pub anomalies: Figure,
    /// Misses in the reference IOTLB.
    pub misses: Figure,
    /// Misses in 100 accesses (faults left out).
    pub misses_per_100_accesses: Figure,
    /// Share of misses that no larger IOTLB removes.
    pub first_touch: Figure,
    /// Share of misses for want of entries.
    pub capacity: Figure,
    /// Share of misses for want of ways.
    pub conflict: Figure,
    /// Change of misses with 8 times the entries; `None` where nothing misses.
    pub larger_iotlb_change: Option<Figure>,
    /// Misses against the size of the IOTLB.
    pub sizes: Vec<SizePoint>,
    /// Misses under each strategy, with the reference IOTLB.
    pub savings: Vec<Saving>,
    /// What knobs would change; the remedies have it.
    #[serde(skip)]
    pub knobs: Knobs,
    /// What would help, best first; empty of variants.
    pub remedies: Vec<Remedy>,
}

/// Diagnoses each device of a trace; `step` is called before each IOTLB size tried.
///
/// # Errors
///
/// [`Error::Geometry`], if no IOTLB of the sizes compared has that many ways.
pub(super) fn verdicts(
    loaded: &LoadedTrace,
    geometry: Geometry,
    savings: &Savings,
    mut step: impl FnMut(),
) -> Result<Vec<DeviceVerdict>, Error> {
    let larger = LARGER * geometry.entries();
    let mut entries = SWEEP_ENTRIES.to_vec();
    entries.extend([geometry.entries(), larger]);
    entries.sort_unstable();
    entries.dedup();
    let mut points = Vec::new();
    for entries in entries {
        step();
        points.extend(sweep(&loaded.trace, &[entries], geometry.ways())?);
    }
    let info = loaded.trace.info();
    let of = |(index, device): (usize, &DeviceInfo)| {
        let counts = |point: &SweepPoint| point.diagnosis.per_device[index];
        let with = |entries: usize| {
            let point = points
                .iter()
                .find(|point| point.geometry.entries() == entries);
            point.map(counts).unwrap_or_default()
        };
        let size = |point: &SweepPoint| SizePoint {
            entries: point.geometry.entries(),
            misses: simulated(counts(point).misses()),
            misses_per_100_accesses: per_100(&counts(point)),
        };
        let sizes = points.iter().map(size).collect();
        let verdict = verdict(
            loaded,
            device,
            with(geometry.entries()),
            with(larger),
            sizes,
        );
        // Devices are numbered in the order in which they are told of.
        let id = DeviceId(index as u32);
        DeviceVerdict {
            savings: savings.of_device(id),
            knobs: savings.knobs(id, verdict.class),
            ..verdict
        }
    };
    Ok(info.devices.iter().enumerate().map(of).collect())
}

fn verdict(
    loaded: &LoadedTrace,
    device: &DeviceInfo,
    now: MissCounts,
    larger: MissCounts,
    sizes: Vec<SizePoint>,
) -> DeviceVerdict {
    let misses = now.misses();
    let share = |part: u64| Figure::simulated(ratio(part, misses, 100.0), Unit::Percent);
    let change = (larger.misses() as f64 / misses as f64 - 1.0) * 100.0;
    let anomalies = device
        .anomalies
        .map_over_mapped_pages
        .plus(device.anomalies.unmap_not_mapped_pages)
        .0
        .saturating_add(device.anomalies.faults);
    DeviceVerdict {
        trace: loaded.label.clone(),
        device: short(&device.device, NAME),
        description: loaded.description,
        class: loaded.class(),
        maps: Figure::count(device.maps),
        accesses: Figure::count(device.accesses),
        peak_live_pages: Figure::count(device.peak_live_pages.0),
        anomalies: Figure::count(anomalies),
        misses: simulated(misses),
        misses_per_100_accesses: per_100(&now),
        first_touch: share(now.first_touch),
        capacity: share(now.capacity),
        conflict: share(now.conflict),
        larger_iotlb_change: (misses > 0).then_some(Figure::simulated(change, Unit::PercentChange)),
        sizes,
        savings: Vec::new(),
        knobs: Knobs::default(),
        remedies: Vec::new(),
    }
}

fn simulated(count: u64) -> Figure {
    Figure::simulated(count as f64, Unit::Count)
}

fn per_100(counts: &MissCounts) -> Figure {
    let translated = counts.accesses - counts.faults;
    Figure::simulated(ratio(counts.misses(), translated, 100.0), Unit::Per100)
}

/// `part / whole * scale`, 0 if there is no whole.
fn ratio(part: u64, whole: u64, scale: f64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64 * scale
    }
}

impl DeviceVerdict {
    /// How much there was to do. All its numbers are counted.
    #[must_use]
    pub fn workload(&self) -> Sentence {
        let mut workload = sentence![
            self.maps,
            " maps, ",
            self.accesses,
            " accesses, ",
            self.peak_live_pages,
            " pages at peak",
        ];
        if self.anomalies.value > 0.0 {
            workload
                .0
                .extend(sentence![", ", self.anomalies, " anomalies"].0);
        }
        workload
    }

    /// How often it misses. All its numbers are simulated.
    #[must_use]
    pub fn rate(&self) -> Sentence {
        if self.accesses.value == 0.0 {
            return sentence!["no accesses"];
        }
        sentence![self.misses_per_100_accesses, " of 100 accesses miss"]
    }

    /// Why it misses. All its numbers are simulated.
    #[must_use]
    pub fn cause(&self) -> Sentence {
        if self.accesses.value == 0.0 {
            return sentence!["nothing to miss."];
        }
        if self.misses.value == 0.0 {
            return sentence!["no access misses."];
        }
        sentence![
            self.first_touch,
            " of misses are first touches no larger IOTLB removes."
        ]
    }

    /// Rate, cause and what another IOMMU would change, in a line of a terminal. All its numbers
    /// are simulated.
    #[must_use]
    pub fn brief(&self) -> Sentence {
        if self.misses.value == 0.0 {
            return self.rate();
        }
        let mut brief = sentence![
            self.misses_per_100_accesses,
            " of 100 miss, ",
            self.first_touch,
            " first touches. ",
        ];
        if let Some(change) = self.larger_iotlb_change {
            let larger = sentence![format!("{LARGER}x the IOTLB: "), change];
            brief.0.extend(larger.0);
        }
        if let Some(change) = self.saving("alh") {
            let alh = sentence!["; an IOMMU that prefetches (alh): ", change];
            brief.0.extend(alh.0);
        }
        brief
    }

    /// Change of misses by a strategy; `None` where nothing misses, or it was not simulated.
    #[must_use]
    pub fn saving(&self, strategy: &str) -> Option<Figure> {
        let found = self
            .savings
            .iter()
            .find(|saving| saving.strategy == strategy);
        found?.change
    }

    /// What the simplest strategy would save. All its numbers are simulated.
    #[must_use]
    pub fn prefetching(&self) -> Option<Sentence> {
        let change = self.saving("alh")?;
        Some(sentence![
            "An IOMMU that prefetched neighbours (alh) would change misses by ",
            change,
            "."
        ])
    }

    /// What a larger IOTLB would change. All its numbers are simulated.
    #[must_use]
    pub fn remedy(&self) -> Sentence {
        match self.larger_iotlb_change {
            Some(change) => sentence![
                format!("{LARGER}x the IOTLB entries change misses by "),
                change,
                "."
            ],
            None => sentence![format!("{LARGER}x the IOTLB entries: nothing to gain.")],
        }
    }
}
