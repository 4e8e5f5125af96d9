// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The life cycle: map, access, unmap, flush, attach, detach, and what is left.

use crate::BY;
use crate::suite::rig::*;
use ioatlas_dma::{
    domain::{AllocatorConfig, DomainConfig, PolicyConfig},
    iova::BackingConfig,
    platform::{Atomic64, Ordering, PhysMemory},
    table::Format,
    units::*,
};
use std::collections::BTreeSet;

on_every_machine! {
    lifecycle::map_reaches_the_buffer_and_unmap_ends_it,
    lifecycle::the_address_keeps_the_offset,
    lifecycle::many_pages_cross_leaf_tables,
    lifecycle::a_list_is_contiguous,
    lifecycle::each_direction_permits_no_more,
    lifecycle::map_at_again_waits_for_the_flush,
    lifecycle::consistent_memory_is_zeroed_shared_and_freed_after_the_flush,
    lifecycle::the_address_api_ends_a_mapping,
    lifecycle::any_cpu_may_unmap,
    lifecycle::a_domain_reports_what_it_did,
    lifecycle::what_is_kept_for_reuse_can_be_given_back,
}

on_every_width! {
    lifecycle::map_reaches_the_buffer_and_unmap_ends_it,
    lifecycle::many_pages_cross_leaf_tables,
    lifecycle::a_list_is_contiguous,
    lifecycle::consistent_memory_is_zeroed_shared_and_freed_after_the_flush,
}

/// Checks that `page` has just been unmapped: gone under strict, gone after a flush otherwise.
fn ends<B: Base, F: Format>(
    rig: &Rig<B>,
    domain: &Dom<B, F>,
    design: &DomainConfig,
    page: IovaPage,
) {
    for kind in [AccessKind::Read, AccessKind::Write] {
        if is_strict(design) {
            assert_eq!(rig.access(page, kind), None, "strict: gone");
        }
        domain.domain().flush().unwrap();
        assert_eq!(rig.access(page, kind), None, "flushed: gone");
    }
}

pub fn map_reaches_the_buffer_and_unmap_ends_it<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);

        let mapping = domain.map(buffer(0x99, 1), Direction::ToDevice).unwrap();
        let at = mapping.iova().page();
        assert_eq!(rig.access(at, AccessKind::Read), Some(PhysPage(0x99)));
        assert_eq!(rig.access(at, AccessKind::Write), None, "read only");
        domain.unmap(mapping).unwrap();
        assert_eq!(
            rig.access(at, AccessKind::Read).is_some(),
            matches!(afterwards(&design), Afterwards::Batched | Afterwards::Kept),
            "{}: gone where an invalidation was started; else stale in the IOTLB",
            name(&design)
        );
        domain.domain().flush().unwrap();
        assert_eq!(rig.access(at, AccessKind::Read), None);

        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn the_address_keeps_the_offset<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        // the last two cross a granule by one byte, and end just before it
        for (offset, len, pages) in [(0x123, 0x2000, 3), (0xfff, 1, 1), (0xfff, 2, 2), (0, 1, 1)] {
            let addr = PhysAddr(PhysPage(0x40).addr().0 + offset);
            let mapping = domain
                .map(PhysRange::new(addr, ByteCount(len)), Direction::FromDevice)
                .unwrap();
            assert_eq!(mapping.iova().offset(), offset);
            assert_eq!(mapping.len(), ByteCount(len));
            assert_eq!(mapping.range().pages, PageCount(pages));
            assert_eq!(mapping.range().first, mapping.iova().page());
            for (at, to) in mapping.range().iter().zip(0x40..) {
                assert_eq!(rig.access(at, AccessKind::Write), Some(PhysPage(to)));
            }
            let first = mapping.range().first;
            domain.unmap(mapping).unwrap();
            ends(&rig, &domain, &design, first);
        }
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn many_pages_cross_leaf_tables<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let pages = span::<F>() + span::<F>() / 2;
        let mapping = domain
            .map(buffer(0x1000, pages), Direction::Bidirectional)
            .unwrap();
        let range = mapping.range();
        assert_eq!(range.pages, PageCount(pages));
        for (at, to) in range.iter().zip(0x1000..) {
            assert_eq!(rig.access(at, AccessKind::Read), Some(PhysPage(to)));
            assert_eq!(rig.access(at, AccessKind::Write), Some(PhysPage(to)));
        }
        // what was granted beyond the mapping is not mapped
        assert_eq!(rig.access(range.end(), AccessKind::Read), None);
        let audit = domain.domain().audit().unwrap();
        assert_eq!(audit.census.pages, PageCount(pages));
        assert_eq!(
            audit.stats.allocated,
            PageCount(2 * span::<F>()),
            "a power of two"
        );
        domain.unmap(mapping).unwrap();
        if is_strict(&design) {
            for at in range.iter() {
                assert_eq!(rig.access(at, AccessKind::Read), None);
            }
        }
        domain.domain().flush().unwrap();
        for at in range.iter() {
            assert_eq!(rig.access(at, AccessKind::Write), None);
        }
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn a_list_is_contiguous<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let bytes =
            |page: u64, from, len| PhysRange::new(PhysAddr(page * GRANULE + from), ByteCount(len));
        let list = [
            bytes(0x20, 0x800, 0x800), // ends at its granule
            buffer(0x30, 2),
            buffer(0x30, 1), // once more: memory may be named repeatedly
            buffer(0x50, 1),
            bytes(0x60, 0, 0x10),
        ];
        let mapping = domain.map_list(&list, Direction::ToDevice).unwrap();
        let expected = [0x20, 0x30, 0x31, 0x30, 0x50, 0x60];
        assert_eq!(mapping.range().pages, PageCount(6));
        assert_eq!(mapping.iova().offset(), 0x800);
        assert_eq!(mapping.len(), ByteCount(0x800 + 4 * GRANULE + 0x10));
        for (at, to) in mapping.range().iter().zip(expected) {
            assert_eq!(rig.access(at, AccessKind::Read), Some(PhysPage(to)));
            assert_eq!(rig.access(at, AccessKind::Write), None);
        }
        let segments: Vec<Iova> = mapping.segments(&list).collect();
        assert_eq!(segments[0], mapping.iova());
        for (pair, segment) in segments.windows(2).zip(&list) {
            assert_eq!(
                pair[1].0 - pair[0].0,
                segment.len.0,
                "each follows the one before"
            );
        }
        for (at, segment) in segments.iter().zip(&list) {
            assert_eq!(at.offset(), segment.addr.offset());
            let to = rig.access(at.page(), AccessKind::Read);
            assert_eq!(to, Some(segment.addr.page()));
        }
        let first = mapping.range().first;
        domain.unmap(mapping).unwrap();
        ends(&rig, &domain, &design, first);
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn each_direction_permits_no_more<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        for (direction, reads, writes) in [
            (Direction::ToDevice, true, false),
            (Direction::FromDevice, false, true),
            (Direction::Bidirectional, true, true),
        ] {
            let mapping = domain.map(buffer(0x77, 1), direction).unwrap();
            let at = mapping.iova().page();
            // twice: from the tables, then from whatever caches hold
            for _ in 0..2 {
                let read = rig.access(at, AccessKind::Read);
                assert_eq!(read.is_some(), reads, "{direction:?}");
                let write = rig.access(at, AccessKind::Write);
                assert_eq!(write.is_some(), writes, "{direction:?}");
            }
            domain.unmap(mapping).unwrap();
            domain.domain().flush().unwrap();
        }
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn map_at_again_waits_for_the_flush<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        // page 0 as well: it is given only to a caller that asks for it
        for first in [0, 5] {
            let at = IovaPage(first);
            let here = Iova(at.addr().0 + 0x10);
            let three = |page: u64| {
                PhysRange::new(
                    PhysAddr(PhysPage(page).addr().0 + 0x10),
                    ByteCount(3 * GRANULE - 0x10),
                )
            };
            let old = domain
                .map_at(here, three(0x80), Direction::ToDevice)
                .unwrap();
            assert_eq!((old.iova(), old.range().pages), (here, PageCount(3)));
            assert_eq!(rig.access(at, AccessKind::Read), Some(PhysPage(0x80)));
            domain.unmap(old).unwrap();
            let before = domain.domain().stats().invalidations;
            let new = domain
                .map_at(here, three(0x90), Direction::ToDevice)
                .unwrap();
            let flushes = domain.domain().stats().invalidations - before;
            let expected = u64::from(!is_strict(&design));
            assert_eq!(
                flushes, expected,
                "the range was retired: flushed before reuse"
            );
            assert_eq!(rig.access(at, AccessKind::Read), Some(PhysPage(0x90)));
            domain.unmap(new).unwrap();
        }
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn consistent_memory_is_zeroed_shared_and_freed_after_the_flush<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let platform = rig.machine.machine().platform().clone();
        for round in 0..3 {
            let memory = domain.alloc_consistent(ByteCount(3 * GRANULE)).unwrap();
            assert_eq!(memory.len(), ByteCount(3 * GRANULE));
            assert_eq!(memory.iova().offset(), 0);
            let frames: BTreeSet<u64> = memory.frames().iter().map(|f| f.page().0).collect();
            assert_eq!(frames.len(), 3);
            for (i, frame) in memory.frames().iter().enumerate() {
                let words = domain.domain().words(&memory, i);
                assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
                words[7].store(0xfeed + round, Ordering::Relaxed);
                // where the device's accesses go, the word is
                let at = IovaPage(memory.iova().page().0 + i as u64);
                let to = rig.access(at, AccessKind::Read).unwrap();
                assert_eq!(to, frame.page());
                assert_eq!(rig.access(at, AccessKind::Write), Some(to));
                let seen = platform.word(BY, to, 7).unwrap().load(Ordering::Relaxed);
                assert_eq!(seen, 0xfeed + round);
            }
            let (at, with) = (memory.iova().page(), rig.frames_in_use());
            domain.free_consistent(memory).unwrap();
            if holds_frames(&design) {
                assert_eq!(rig.frames_in_use(), with, "still in use until the flush");
                assert_eq!(domain.domain().stats().retired.frames, 3);
            }
            ends(&rig, &domain, &design, at);
            assert_eq!(rig.frames_in_use(), with - 3);
        }
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn the_address_api_ends_a_mapping<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        for pages in [1, 3, span::<F>() + 1] {
            let mapping = domain
                .map(buffer(0x200, pages), Direction::ToDevice)
                .unwrap();
            let at = mapping.range().first;
            assert_eq!(rig.access(at, AccessKind::Read), Some(PhysPage(0x200)));
            domain.unmap_raw(mapping).unwrap();
            ends(&rig, &domain, &design, at);
            let chosen = Iova(2 * GRANULE);
            let fixed = domain.map_at(chosen, buffer(0x300, pages), Direction::ToDevice);
            domain.unmap_raw(fixed.unwrap()).unwrap();
            ends(&rig, &domain, &design, chosen.page());
            domain.domain().audit().unwrap();
        }
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn any_cpu_may_unmap<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        for round in 0..20 {
            let mapping = domain
                .map(buffer(0x400 + round, 1), Direction::ToDevice)
                .unwrap();
            let at = mapping.iova().page();
            let to = rig.access(at, AccessKind::Read);
            assert_eq!(to, Some(PhysPage(0x400 + round)));
            rig.failing()
                .inner()
                .on_another_cpu(|| domain.unmap(mapping).unwrap());
            if is_strict(&design) {
                assert_eq!(rig.access(at, AccessKind::Read), None);
            }
        }
        let stats = domain.domain().stats();
        assert_eq!((stats.maps, stats.unmaps), (20, 20));
        assert_eq!(stats.live, PageCount(0), "counted on two CPUs");
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn a_domain_reports_what_it_did<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let three = domain.map(buffer(0x500, 3), Direction::ToDevice).unwrap();
        let one = domain.map(buffer(0x600, 1), Direction::FromDevice).unwrap();
        let at = one.iova().page();
        domain.unmap(three).unwrap();
        let stats = domain.domain().stats();
        assert_eq!((stats.maps, stats.unmaps), (2, 1));
        assert_eq!((stats.live, stats.allocated), (PageCount(1), PageCount(1)));
        let (held, invalidations) = match (afterwards(&design), design.policy) {
            (_, PolicyConfig::FreeBsd) => (0, 3),
            (Afterwards::Never, _) => (0, 1),
            (Afterwards::Batched, _) => (4, 0),
            (Afterwards::Started, _) => (4, 1),
            (Afterwards::Kept, _) => (4, 2), // one a map
        };
        assert_eq!(stats.retired.pages, PageCount(held), "3 rounded up");
        assert_eq!(stats.invalidations, invalidations);
        assert_eq!(stats.quarantined, Default::default());

        let text = domain.domain().to_string();
        assert!(text.contains("2 maps, 1 unmaps, 1 pages live"), "{text}");
        assert!(text.contains(design.allocator.name()), "{text}");
        let platform = rig.machine.machine().platform();
        let table = domain.domain().translator().table();
        let shown = table.show(platform).to_string();
        assert!(
            shown.contains(&format!("[] {at} -> 0x600 Write")),
            "{shown}"
        );
        domain.unmap(one).unwrap();
        let shown = table.show(platform).to_string();
        assert_eq!(shown.lines().count(), 1, "only the heading: {shown}");
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn what_is_kept_for_reuse_can_be_given_back<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let mapping = domain.map(buffer(0x700, 1), Direction::ToDevice).unwrap();
        domain.unmap(mapping).unwrap();
        domain.domain().flush().unwrap();
        let cached = domain.domain().audit().unwrap().usage.cached;
        let expected = match design.allocator {
            // a run of two was taken from the tree, and both are in the magazine now
            AllocatorConfig::Magazine(_) => 2,
            AllocatorConfig::Plain(BackingConfig::Eiovar(_)) => 1,
            _ => 0,
        };
        assert_eq!(cached, PageCount(expected));
        assert_eq!(domain.domain().shrink(), cached);
        let usage = domain.domain().audit().unwrap().usage;
        assert_eq!((usage.cached, usage.free), (PageCount(0), usage.aperture));
        rig.close(domain, &[NIC]);
        rig.end();
    }
}
