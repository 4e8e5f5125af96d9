// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What to do about a device's misses, in sentences: what can be done today (kernel options,
//! drivers, rings and buffers) apart from what needs code in a kernel or an IOMMU.
//!
//! Every number is a field of the model. A remedy that the numbers cannot speak for is not
//! mentioned, nor one for network cards to a disk, nor the other way round. Of a device that the
//! trace does not say the kind of, such a remedy says for which it is.

use super::model::Report;
use super::savings::{Saving, WALK_CACHES};
use super::systems::{Exposure, SystemRow};
use super::verdict::{DeviceVerdict, LARGER};
use crate::record::Class;
use ioatlas_present::{Figure, Sentence, sentence};

/// What the strategies of WIOSCA'10 are in words, and whether the IOMMU, the kernel or the driver
/// would have to implement them.
const WORDS: [(&str, &str); 8] = [
    (
        "alh",
        "The IOMMU prefetches both neighbours of a page that missed (alh): ",
    ),
    (
        "sd-alh",
        "The IOMMU prefetches the page below one that missed (sd-alh): ",
    ),
    ("mpre", "The driver asks to prefetch what it maps (mpre): "),
    (
        "superpage",
        "Buffers that lie in 2 MiB blocks, mapped as such (superpage; DPDK, SPDK and virtual machines on huge pages have it today, a kernel's drivers need code): ",
    ),
    (
        "eh",
        "The kernel tells the IOMMU which entries to evict first (eh): ",
    ),
    (
        "of",
        "The kernel keeps the rings of devices in different sets (of): ",
    ),
    (
        "descending",
        "Groups of mappings in descending order (descending): ",
    ),
    (
        "opt-ev",
        "Any choice of victims, as no IOMMU can know them (opt-ev), leaves at least ",
    ),
];

/// Ways to lose no time to a device's translations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Advice {
    /// What can be done today.
    pub today: Vec<Sentence>,
    /// What needs code in a kernel or an IOMMU.
    pub needs_code: Vec<Sentence>,
}

impl Advice {
    /// For one device of a report.
    #[must_use]
    pub fn of(report: &Report, verdict: &DeviceVerdict) -> Self {
        let misses = verdict.misses;
        if misses.value == 0.0 {
            return Self::default();
        }
        Self {
            today: today(report, verdict),
            needs_code: needs_code(verdict),
        }
    }

    /// What the systems that were run say of kernel options, whatever the device.
    #[must_use]
    pub fn of_systems(systems: &[SystemRow]) -> Option<Sentence> {
        let named = |name: &str| systems.iter().find(|row| row.name == name);
        let (deferred, strict) = (named("as Linux today")?, named("as Linux strict")?);
        let Exposure::Bounded {
            operations_bound,
            time_bound: Some(time),
            ..
        } = deferred.exposure
        else {
            return None;
        };
        Some(sentence![
            "iommu.strict=0 (deferred invalidation) makes ",
            deferred.invalidations_per_1k_maps,
            " invalidations per 1,000 maps of these traces, iommu.strict=1 ",
            strict.invalidations_per_1k_maps,
            ", at a wait of ",
            deferred.wait?,
            " and of ",
            strict.wait?,
            " a map. Beside it a map and its unmap take ",
            deferred.ns_per_pair_1_thread,
            " and ",
            strict.ns_per_pair_1_thread,
            " in this project's code, on a ring of 256 single pages on this machine; Linux's own code takes other times. In exchange for the \
             shorter wait a device may reach what was unmapped for up to ",
            time,
            " or ",
            operations_bound,
            " unmaps. Misses stay.",
        ])
    }
}

fn today(report: &Report, verdict: &DeviceVerdict) -> Vec<Sentence> {
    let knobs = &verdict.knobs;
    let mut says = Vec::new();
    // of what is not known to be one
    let only = |class| match (verdict.class, class) {
        (Some(_), _) => "",
        (None, Class::Network) => "If it is a network card: ",
        (None, Class::Disk) => "If it is a disk: ",
    };
    if let (Some(pages), Some(maps), Some(misses), Some(change)) = (
        knobs.pool_pages,
        knobs.pool_maps,
        knobs.pool_misses,
        knobs.pool_change,
    ) {
        says.push(sentence![
            only(Class::Network),
            "Receive buffers that stay mapped (a driver with page_pool and PP_FLAG_DMA_MAP): ",
            maps,
            " of ",
            verdict.maps,
            " maps go, with their unmaps, and ",
            misses,
            " misses stay (",
            change,
            "), if it uses the ",
            pages,
            " pages that are live at most again and again. Stale data in them stays within reach of the device.",
        ]);
    }
    if let Some(on_rings) = knobs.consistent_misses {
        says.push(sentence![
            match verdict.class {
                Some(Class::Network) => "Fewer descriptors or queues (ethtool -G and -L)",
                Some(Class::Disk) => "Fewer requests or queues (nr_requests)",
                None => "Fewer descriptors or queues (of a network card ethtool -G and -L, of a disk nr_requests)",
            },
            " can remove at most the ",
            on_rings,
            " misses on consistent pages, of ",
            verdict.misses,
            ".",
        ]);
    }
    match knobs.maps_too_large_for_reuse {
        Some(large) if large.value > 0.0 => says.push(sentence![
            only(Class::Disk),
            "Transfers of at most 128 KiB (max_sectors_kb=128): ",
            large,
            " of ",
            verdict.maps,
            " maps are larger, and Linux keeps no address of these for reuse.",
        ]),
        _ => {}
    }
    if let Some(variant) = report.without_reuse(verdict) {
        says.push(sentence![
            "The kernel's IOVA reuse: with it ",
            verdict.misses_per_100_accesses,
            " of 100 accesses miss, without it ",
            variant.misses_per_100_accesses,
            ".",
        ]);
    }
    says.push(sentence![
        "iommu.passthrough=1 (on x86 also iommu=pt) takes away the ",
        verdict.maps,
        " maps and the ",
        verdict.misses,
        " misses, and all protection from the device with them.",
    ]);
    says
}

fn needs_code(verdict: &DeviceVerdict) -> Vec<Sentence> {
    let mut found: Vec<(f64, Sentence)> = Vec::new();
    let ends =
        |saving: &Saving, change: Figure| sentence![saving.misses, " misses (", change, ")."].0;
    for (name, words) in WORDS {
        let saving = verdict
            .savings
            .iter()
            .find(|saving| saving.strategy == name);
        if let Some((saving, change)) = saving.and_then(|s| Some((s, s.change?))) {
            let mut says = sentence![words];
            says.0.extend(ends(saving, change));
            found.push((saving.misses.value, says));
        }
    }
    let of_few = |saving: &&Saving| saving.strategy.contains('+');
    let best = verdict.savings.iter().filter(of_few);
    let best = best.min_by(|a, b| a.misses.value.total_cmp(&b.misses.value));
    if let Some((best, change)) = best.and_then(|s| Some((s, s.change?))) {
        let mut says = sentence![format!("The best sum of these, {}: ", best.strategy)];
        says.0.extend(ends(best, change));
        found.push((best.misses.value, says));
    }
    if let Some(change) = verdict.larger_iotlb_change {
        let left = verdict.misses.value * (1.0 + change.value / 100.0);
        let says = sentence![
            format!("An IOMMU with {LARGER}x the IOTLB entries: "),
            change,
            " misses."
        ];
        found.push((left, says));
    }
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut says: Vec<Sentence> = found.into_iter().map(|(_, says)| says).collect();
    if let Some(change) = verdict.knobs.walk_reads_change {
        let caches = WALK_CACHES.map(|(level, entries)| format!("{entries} at level {level}"));
        says.push(sentence![
            format!("An IOMMU with walk caches ({}): misses stay, and page-table reads of the whole trace change by ", caches.join(", ")),
            change,
            ".",
        ]);
    }
    says
}
