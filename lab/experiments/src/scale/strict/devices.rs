// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What devices pay: an IOTLB and walk caches, simulated on the run that was timed.
//!
//! All devices are in one domain. For each packet a device reads a descriptor, in a page of its own
//! that stays mapped, and reads or writes a buffer, which is mapped for this packet alone. So of
//! the buffers every page is missed once, whatever is invalidated, and of two accesses one; what a
//! domain-selective invalidation adds are the descriptors' pages, the buffers that are in use, and
//! the walk caches.
//!
//! Expected before the first run, of the large IOTLB on 16 CPUs: page by page 0.50 misses and 0.50
//! reads an access. In batches of 16 by domain, 16 packets pass between two invalidations: they
//! come to 12.7 of 32 descriptor pages, so 0.85 to 0.95 misses, and their buffers lie in a dozen
//! leaf tables, so 1.2 to 1.6 reads. In batches of 2 nearly every access misses, with 2 to 3 reads.

use ioatlas_dma::invalidation::Caches;
use ioatlas_iotlb::{
    DeviceId, Geometry, InvalidationHint, Iotlb, IovaPage, PageCount, PageRange, Walks,
};
use ioatlas_sim::timing::CacheEvent;
use serde::Serialize;

/// What accesses cost, with an IOTLB that holds little and with one that holds all.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub(crate) struct Devices {
    pub small: Misses,
    pub large: Misses,
}

/// Of one access, in the mean.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub(crate) struct Misses {
    /// Misses of the IOTLB.
    pub misses: f64,
    /// Page-table entries read.
    pub reads: f64,
}

/// All devices' domain.
const DEVICES: DeviceId = DeviceId(0);

/// Entries and ways. No source gives them for a unit of today; the small one is WIOSCA'10's, in
/// sets of four.
const SMALL: (usize, usize) = (32, 4);
const LARGE: (usize, usize) = (4096, 8);
/// Entries of the walk caches for each level, free parameters as well: enough for the leaf tables
/// that rings lie in.
const WALK_CACHES: [(usize, usize); 3] = [(2, 64), (3, 16), (4, 4)];

impl Devices {
    /// Of what a run's unit saw.
    pub fn of(events: &[CacheEvent]) -> Self {
        Devices {
            small: Misses::of(events, SMALL),
            large: Misses::of(events, LARGE),
        }
    }
}

impl Misses {
    fn of(events: &[CacheEvent], (entries, ways): (usize, usize)) -> Self {
        let geometry = Geometry::new(entries, ways).expect("whole sets");
        let walks = WALK_CACHES
            .iter()
            .try_fold(Walks::default(), |walks, &(level, entries)| {
                walks.with_cache(level, entries)
            });
        let mut iotlb = Iotlb::new(geometry, &walks.expect("levels of four"));
        // caches fill first
        let warm_up = events.len() / 4;
        let (mut accesses, mut misses, mut reads) = (0u64, 0u64, 0u64);
        for (nth, event) in events.iter().enumerate() {
            match *event {
                CacheEvent::Access(page) => {
                    let Some(page) = IovaPage::new(page.0) else {
                        continue;
                    };
                    let read = iotlb.access(DEVICES, page);
                    if nth >= warm_up {
                        accesses += 1;
                        misses += u64::from(read > 0);
                        reads += read;
                    }
                }
                CacheEvent::Pages(range, caches) => {
                    let first = IovaPage::new(range.first.0);
                    let pages =
                        first.and_then(|first| PageRange::new(first, PageCount(range.pages.0)));
                    if let Some(pages) = pages {
                        iotlb.invalidate_pages(DEVICES, pages, hint(caches));
                    }
                }
                CacheEvent::Domain => {
                    iotlb.invalidate_device(DEVICES);
                }
            }
        }
        let each = |count: u64| count as f64 / accesses.max(1) as f64;
        Misses {
            misses: each(misses),
            reads: each(reads),
        }
    }
}

fn hint(caches: Caches) -> InvalidationHint {
    match caches {
        Caches::Leaves => InvalidationHint::LeavesOnly,
        Caches::LeavesAndWalks => InvalidationHint::WalkCachesToo,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ioatlas_dma::units as dma;

    /// Packets of which each has a buffer of its own, and what each is flushed by.
    fn packets(flush: impl Fn(u64) -> CacheEvent) -> Devices {
        let ring = CacheEvent::Access(dma::IovaPage(1 << 20));
        let packet = |nth| {
            [
                ring,
                CacheEvent::Access(dma::IovaPage(nth % 512)),
                flush(nth),
            ]
        };
        let events: Vec<CacheEvent> = (0..4000).flat_map(packet).collect();
        Devices::of(&events)
    }

    #[test]
    fn page_selective_flushes_leave_rings_and_walk_caches() {
        let page = |nth| dma::IovaRange::new(dma::IovaPage(nth % 512), dma::PageCount(1));
        let paid = packets(|nth| CacheEvent::Pages(page(nth), Caches::Leaves));
        let buffers_alone = Misses {
            misses: 0.5,
            reads: 0.5,
        };
        assert_eq!(paid.small, buffers_alone);
        assert_eq!(paid.large, buffers_alone);
    }

    #[test]
    fn a_domain_flush_costs_rings_and_walk_caches_too() {
        let paid = packets(|_| CacheEvent::Domain);
        // four entries for the ring's page, and for the buffer's all but the first, which is the
        // same
        let all = Misses {
            misses: 1.0,
            reads: 3.5,
        };
        assert_eq!(paid.large, all);
    }
}
