// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! One path under every kind of unit: what it can do and what it caches changes nothing that a
//! domain promises.

use crate::suite::rig::*;
use ioatlas_dma::{domain::PolicyConfig, table::Format, units::*};
use ioatlas_viommu::{
    config::{Eviction, SetGeometry, UnitConfig},
    observe::Stats,
};
use std::num::NonZeroU32;

on_every_machine! {
    unit_variants::without_page_selective_invalidation,
    unit_variants::with_small_invalidation_masks,
    unit_variants::without_drains,
    unit_variants::without_snooping,
    unit_variants::without_caches,
    unit_variants::with_caches_of_one_entry,
    unit_variants::with_large_direct_mapped_caches,
    unit_variants::that_evicts_at_every_turn,
    unit_variants::that_reads_ahead,
    unit_variants::that_evicts_and_reads_ahead,
}

/// Maps, accesses, unmaps and maps again, single pages, lists, whole tables and chosen addresses.
fn lifecycle<B: Base, F: Format>(adjust: impl Fn(&mut UnitConfig)) -> Vec<Stats> {
    let mut seen = Vec::new();
    for design in designs() {
        let rig = Rig::<B>::with::<F>(64, &adjust);
        let domain = rig.domain::<F>(design);
        domain.attach(DISK).unwrap();
        let span = span::<F>();
        let reach = |range: IovaRange, first: u64| {
            for (at, to) in range.iter().zip(first..) {
                let source = if to % 2 == 0 { NIC } else { DISK };
                let reached = rig.access_by(source, at, AccessKind::Read);
                assert_eq!(reached, Some(PhysPage(to)));
                assert_eq!(rig.access_by(source, at, AccessKind::Write), None);
            }
        };
        let gone = |range: IovaRange| {
            for at in range.iter() {
                assert_eq!(rig.access(at, AccessKind::Read), None, "{at}");
            }
        };
        for round in 0..4 {
            let base = 0x10_0000 * (round + 1);
            let whole = domain
                .map_at(
                    IovaPage(2 * span).addr(),
                    buffer(base, span),
                    Direction::ToDevice,
                )
                .unwrap();
            let one = domain.map(buffer(base + 0x9000, 1), Direction::ToDevice);
            let three = [buffer(base + 0xa000, 1), buffer(base + 0xa001, 2)];
            let three = domain.map_list(&three, Direction::ToDevice).unwrap();
            let one = one.unwrap();
            for _ in 0..2 {
                reach(whole.range(), base);
                reach(one.range(), base + 0x9000);
                reach(three.range(), base + 0xa000);
            }
            let ranges = [whole.range(), three.range()];
            domain.unmap(whole).unwrap();
            reach(one.range(), base + 0x9000);
            domain.unmap_raw(three).unwrap();
            if is_strict(&design) {
                ranges.into_iter().for_each(gone);
            }
            reach(one.range(), base + 0x9000);
            // where the whole table was, one page: the old table is flushed first
            let again = domain
                .map_at(
                    IovaPage(2 * span + 1).addr(),
                    buffer(base + 0xb000, 1),
                    Direction::ToDevice,
                )
                .unwrap();
            reach(again.range(), base + 0xb000);
            domain.unmap(again).unwrap();
            domain.unmap(one).unwrap();
            domain.domain().flush().unwrap();
            ranges.into_iter().for_each(gone);
        }
        let memory = domain.alloc_consistent(ByteCount(2 * GRANULE)).unwrap();
        let at = memory.iova().page();
        let page = memory.frames()[0].page();
        assert_eq!(rig.access(at, AccessKind::Write), Some(page));
        domain.free_consistent(memory).unwrap();
        domain.domain().flush().unwrap();
        assert_eq!(rig.access(at, AccessKind::Write), None);
        seen.push(rig.machine.machine().unit().stats());
        rig.close(domain, &[NIC, DISK]);
        rig.end();
    }
    seen
}

fn eviction(one_in: u32) -> Option<Eviction> {
    let one_in = NonZeroU32::new(one_in)?;
    Some(Eviction { seed: 7, one_in })
}

pub fn without_page_selective_invalidation<B: Base, F: Format>() {
    for stats in lifecycle::<B, F>(|config| config.features.page_selective = None) {
        assert_eq!(stats.page_invalidations, 0);
        assert!(stats.domain_invalidations > 0);
    }
}

pub fn with_small_invalidation_masks<B: Base, F: Format>() {
    let seen = lifecycle::<B, F>(|config| config.features.page_selective = Some(0));
    // strict: one page at a time is within the mask, a list and a table are not
    for (stats, design) in seen.into_iter().zip(designs()) {
        assert_eq!(stats.page_invalidations > 0, !is_batched(&design));
        let single = design.policy == PolicyConfig::FreeBsd;
        assert_eq!(stats.domain_invalidations > 0, !single);
    }
    let seen = lifecycle::<B, F>(|config| config.features.page_selective = Some(1));
    for (stats, design) in seen.into_iter().zip(designs()) {
        let single = design.policy == PolicyConfig::FreeBsd;
        assert_eq!(stats.domain_invalidations > 0, !single);
    }
}

pub fn without_drains<B: Base, F: Format>() {
    // no access is in flight while a single thread unmaps, so nothing need be drained
    for (reads, writes) in [(false, true), (true, false), (false, false)] {
        let seen = lifecycle::<B, F>(|config| {
            config.features.drain_reads = reads;
            config.features.drain_writes = writes;
        });
        assert!(seen.iter().all(|stats| stats.drained == 0));
    }
}

pub fn without_snooping<B: Base, F: Format>() {
    lifecycle::<B, F>(|config| config.features.coherent = false);
}

pub fn without_caches<B: Base, F: Format>() {
    let seen = lifecycle::<B, F>(|config| {
        config.caches.context = 0;
        config.caches.walk.clear();
        config.caches.iotlb = SetGeometry {
            entries: 0,
            ways: 0,
        };
    });
    for stats in seen {
        let hits = (stats.iotlb_hits, stats.walk_cache_hits, stats.context_hits);
        assert_eq!(hits, (0, 0, 0));
        assert!(stats.iotlb_misses > 0);
    }
}

pub fn with_caches_of_one_entry<B: Base, F: Format>() {
    let seen = lifecycle::<B, F>(|config| {
        config.caches.context = 1;
        config.caches.walk.fill(1);
        config.caches.iotlb = SetGeometry {
            entries: 1,
            ways: 1,
        };
    });
    for stats in seen {
        assert!(stats.displaced > 0 && stats.iotlb_hits > 0);
    }
}

pub fn with_large_direct_mapped_caches<B: Base, F: Format>() {
    let seen = lifecycle::<B, F>(|config| {
        config.caches.context = 256;
        config.caches.walk.fill(256);
        config.caches.iotlb = SetGeometry {
            entries: 4096,
            ways: 1,
        };
    });
    for stats in seen {
        assert!(stats.iotlb_hits > stats.iotlb_misses / 4, "{stats:?}");
    }
}

pub fn that_evicts_at_every_turn<B: Base, F: Format>() {
    for one_in in [1, 3] {
        for stats in lifecycle::<B, F>(|config| config.caches.eviction = eviction(one_in)) {
            assert!(stats.evicted > 0);
        }
    }
}

pub fn that_reads_ahead<B: Base, F: Format>() {
    for pages in [1, 3, 512] {
        for stats in lifecycle::<B, F>(|config| config.caches.prefetch = pages) {
            assert!(stats.prefetch_reads > 0);
        }
    }
}

pub fn that_evicts_and_reads_ahead<B: Base, F: Format>() {
    let seen = lifecycle::<B, F>(|config| {
        config.caches.prefetch = 8;
        config.caches.eviction = eviction(2);
        config.caches.iotlb = SetGeometry {
            entries: 8,
            ways: 8,
        };
    });
    for stats in seen {
        assert!(stats.prefetch_reads > 0 && stats.evicted > 0);
    }
}
