// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Identity mapping under a unit (ATC'15 §4.1): one leaf for all mappings of a page for one use,
//! and a fallback for what has none.

use crate::suite::{bad_input::refused, rig::*};
use ioatlas_dma::{
    domain::*,
    iova::{AllocKind, AllocatorConfig},
    platform::Authority,
    table::{Format, LeafAttrs},
    translator::Translator,
    units::*,
};
use ioatlas_viommu::{oracle::Property, unit::Injection};

on_wide_machines! {
    identity::each_use_of_a_page_has_its_own_address_and_no_other_permission,
    identity::a_page_stays_until_its_last_unmap,
    identity::buffers_that_overlap_share_what_they_share,
    identity::a_full_count_sends_the_next_to_the_fallback,
    identity::what_has_no_own_address_goes_to_the_fallback,
    identity::what_is_reserved_goes_to_the_fallback,
    identity::no_address_names_one_of_several_mappings,
    identity::widths_without_two_spare_bits_are_refused,
    identity::p1_a_page_that_survives_its_last_unmap,
    identity::p2_a_page_that_survives_the_flush_after_its_last_unmap,
    identity::p6_a_write_in_the_region_of_reads,
    identity::p14_a_page_that_goes_before_its_last_unmap,
}

const READ: AccessKind = AccessKind::Read;
const WRITE: AccessKind = AccessKind::Write;
/// Mappings that ten bits count.
const FULL: usize = 1023;

fn designs<F: Format>() -> Vec<DomainConfig> {
    let identity = |d: &DomainConfig| matches!(d.allocator, AllocatorConfig::Identity(_));
    let all: Vec<_> = by_address::<F>().into_iter().filter(identity).collect();
    assert!(!all.is_empty());
    all
}

fn each<B: Base, F: Format>(run: impl Fn(&Rig<B>, &Dom<B, F>, &DomainConfig)) {
    for design in designs::<F>() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        run(&rig, &domain, &design);
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

/// Pages of a region.
fn quarter<F: Format>() -> u64 {
    F::aperture().pages.0 / 4
}

fn in_fallback<F: Format>(mapping: &Mapping) -> bool {
    mapping.range().end().0 <= quarter::<F>()
}

fn map<B: Base, F: Format>(
    domain: &Dom<B, F>,
    first: u64,
    pages: u64,
    direction: Direction,
) -> Mapping {
    let mapping = domain.map(buffer(first, pages), direction);
    mapping.unwrap_or_else(|error| panic!("P6, P14: a buffer that can be mapped was not: {error}"))
}

pub fn each_use_of_a_page_has_its_own_address_and_no_other_permission<B: Base, F: Format>() {
    each::<B, F>(|rig, domain, _| {
        let uses = [
            (Direction::ToDevice, 1, true, false),
            (Direction::FromDevice, 2, false, true),
            (Direction::Bidirectional, 3, true, true),
        ];
        let mut live: Vec<_> = uses
            .iter()
            .map(|(direction, ..)| Some(map(domain, 0x30, 2, *direction)))
            .collect();
        // each goes, and the others are as they were
        for ended in 0..=uses.len() {
            for (mapping, (_, region, reads, writes)) in live.iter().zip(uses) {
                let Some(mapping) = mapping else { continue };
                let first = IovaPage(region * quarter::<F>() + 0x30);
                assert_eq!(mapping.range().first, first, "P6: of its own region");
                for (at, to) in mapping.range().iter().zip(0x30..) {
                    let reached = rig.access(at, READ);
                    assert_eq!(reached, reads.then_some(PhysPage(to)), "P6, P14");
                    let reached = rig.access(at, WRITE);
                    assert_eq!(reached, writes.then_some(PhysPage(to)), "P6, P14");
                }
            }
            if let Some(mapping) = live.get_mut(ended).and_then(Option::take) {
                domain.unmap(mapping).unwrap();
                domain.domain().flush().unwrap();
            }
        }
        assert_eq!(domain.domain().usage().diverted, 0);
    });
}

pub fn a_page_stays_until_its_last_unmap<B: Base, F: Format>() {
    each::<B, F>(|rig, domain, design| {
        for _ in 0..3 {
            let mut live: Vec<_> = (0..3)
                .map(|_| map(domain, 0x40, 1, Direction::FromDevice))
                .collect();
            let at = live[0].range().first;
            assert!(live.iter().all(|mapping| mapping.range().first == at));
            while let Some(mapping) = live.pop() {
                let reached = rig.access(at, WRITE);
                assert_eq!(reached, Some(PhysPage(0x40)), "P14");
                let ended = domain.unmap(mapping);
                ended.unwrap_or_else(|error| panic!("P14: it was not whole: {error}"));
                // others flush what they like
                let other = map(domain, 0x50, 1, Direction::FromDevice);
                domain.unmap(other).unwrap();
            }
            if is_strict(design) {
                assert_eq!(rig.access(at, WRITE), None, "P1");
            }
            // what may be stale is the same page for the same use: it need not be flushed to be
            // mapped again
            let again = map(domain, 0x40, 1, Direction::FromDevice);
            assert_eq!(again.range().first, at);
            assert_eq!(rig.access(at, WRITE), Some(PhysPage(0x40)), "P14");
            domain.unmap(again).unwrap();
            domain.domain().flush().unwrap();
            assert_eq!(rig.access(at, WRITE), None, "P2: flushed");
        }
    });
}

pub fn buffers_that_overlap_share_what_they_share<B: Base, F: Format>() {
    each::<B, F>(|rig, domain, design| {
        let reach = |range: IovaRange, expected: &[bool]| {
            for ((at, to), there) in range.iter().zip(0x20..).zip(expected) {
                let reached = rig.access(at, READ);
                assert_eq!(reached, there.then_some(PhysPage(to)), "P1, P14: {at}");
            }
        };
        let low = map(domain, 0x20, 4, Direction::ToDevice);
        let high = map(domain, 0x22, 4, Direction::ToDevice);
        let whole = IovaRange::new(low.range().first, PageCount(6));
        assert_eq!(high.range().first.0, whole.first.0 + 2);
        reach(whole, &[true; 6]);
        domain.unmap(low).unwrap();
        if !is_strict(design) {
            domain.domain().flush().unwrap();
        }
        reach(whole, &[false, false, true, true, true, true]);
        let low = map(domain, 0x20, 4, Direction::ToDevice);
        reach(whole, &[true; 6]);
        domain.unmap(high).unwrap();
        if !is_strict(design) {
            domain.domain().flush().unwrap();
        }
        reach(whole, &[true, true, true, true, false, false]);
        domain.unmap(low).unwrap();
        domain.domain().flush().unwrap();
        reach(whole, &[false; 6]);
    });
}

pub fn a_full_count_sends_the_next_to_the_fallback<B: Base, F: Format>() {
    each::<B, F>(|rig, domain, _| {
        let to_device = Direction::ToDevice;
        let mut live: Vec<_> = (0..FULL).map(|_| map(domain, 0x42, 1, to_device)).collect();
        let own = live[0].range().first;
        assert!(live.iter().all(|mapping| mapping.range().first == own));
        assert_eq!(domain.domain().usage().diverted, 0);
        // the pages before the full one are counted, and taken back
        for (first, pages) in [(0x42, 1), (0x40, 4)] {
            let diverted = map(domain, first, pages, to_device);
            assert!(in_fallback::<F>(&diverted), "P6: the count wrapped");
            for (at, to) in diverted.range().iter().zip(first..) {
                assert_eq!(rig.access(at, READ), Some(PhysPage(to)), "P14");
                assert_eq!(rig.access(at, WRITE), None, "P6");
            }
            live.push(diverted);
        }
        assert_eq!(domain.domain().usage().diverted, 2);
        for beside in [own.0 - 2, own.0 - 1, own.0 + 1] {
            let reached = rig.access(IovaPage(beside), READ);
            assert_eq!(reached, None, "P10: page {beside:#x} was not taken back");
        }
        let audit = domain.domain().audit();
        audit.unwrap_or_else(|what| panic!("P10: {what}"));
        // one that goes makes room
        domain.unmap(live.swap_remove(0)).unwrap();
        let one_more = map(domain, 0x42, 1, to_device);
        assert_eq!(one_more.range().first, own);
        live.push(one_more);
        for mapping in live {
            let first = mapping.range().first;
            assert!(rig.access(first, READ).is_some(), "P14");
            domain.unmap(mapping).unwrap();
        }
        domain.domain().flush().unwrap();
        assert_eq!(rig.access(own, READ), None, "P1");
    });
}

pub fn what_has_no_own_address_goes_to_the_fallback<B: Base, F: Format>() {
    each::<B, F>(|rig, domain, _| {
        let in_pieces = [buffer(0x20, 1), buffer(0x22, 1)];
        let in_pieces = domain.map_list(&in_pieces, Direction::ToDevice).unwrap();
        let in_one = [buffer(0x30, 1), buffer(0x31, 1)];
        let in_one = domain.map_list(&in_one, Direction::ToDevice).unwrap();
        assert!(in_fallback::<F>(&in_pieces) && !in_fallback::<F>(&in_one));
        // the last page with an address of its own, and one that has none
        let end = quarter::<F>();
        let last = map(domain, end - 1, 1, Direction::ToDevice);
        let beyond = map(domain, end - 1, 2, Direction::ToDevice);
        assert!(!in_fallback::<F>(&last) && in_fallback::<F>(&beyond));
        let memory = domain.alloc_consistent(ByteCount(2 * GRANULE)).unwrap();
        assert!(memory.iova().page().0 < end);
        assert_eq!(domain.domain().usage().diverted, 3);
        for (mapping, to) in [
            (in_pieces, [0x20, 0x22]),
            (in_one, [0x30, 0x31]),
            (beyond, [end - 1, end]),
        ] {
            for (at, to) in mapping.range().iter().zip(to) {
                assert_eq!(rig.access(at, READ), Some(PhysPage(to)), "P14");
            }
            domain.unmap(mapping).unwrap();
        }
        domain.unmap(last).unwrap();
        domain.free_consistent(memory).unwrap();
    });
}

pub fn what_is_reserved_goes_to_the_fallback<B: Base, F: Format>() {
    each::<B, F>(|rig, domain, _| {
        let reserved = IovaRange::new(IovaPage(quarter::<F>() + 0x30), PageCount(2));
        domain.domain().reserve(reserved).unwrap();
        for (first, pages, own) in [
            (0x2f, 1, true),
            (0x2f, 2, false),
            (0x31, 2, false),
            (0x32, 1, true),
        ] {
            let mapping = map(domain, first, pages, Direction::ToDevice);
            assert_eq!(in_fallback::<F>(&mapping), !own);
            assert!(!mapping.range().overlaps(&reserved));
            let at = mapping.range().first;
            assert_eq!(rig.access(at, READ), Some(PhysPage(first)), "P14");
            domain.unmap(mapping).unwrap();
        }
        // elsewhere the page has its address
        let written = map(domain, 0x30, 1, Direction::FromDevice);
        assert!(!in_fallback::<F>(&written));
        domain.unmap(written).unwrap();
    });
}

pub fn no_address_names_one_of_several_mappings<B: Base, F: Format>() {
    each::<B, F>(|rig, domain, _| {
        let mapping = map(domain, 0x30, 1, Direction::ToDevice);
        let (iova, len, at) = (mapping.iova(), mapping.len(), mapping.range().first);
        let shared = domain.domain().shared().expect("three regions");
        let numbers = [&*mapping.range().to_string(), &*shared.to_string()];
        let error = refused(rig, domain, &numbers, || {
            domain.map_at(iova, buffer(0x99, 1), Direction::ToDevice)
        });
        assert!(matches!(error, MapError::SharedRegion { .. }), "{error}");
        let error = refused(rig, domain, &[&iova.to_string(), &len.to_string()], || {
            domain.domain().unmap_raw(iova, len)
        });
        assert!(matches!(error, UnmapError::NotAMapping { .. }), "{error}");
        let error = refused(rig, domain, &[&iova.to_string()], || {
            domain.domain().into_raw(mapping)
        });
        let UnmapError::SharedLeaves(mapping) = error else {
            panic!("{error}")
        };
        assert_eq!(rig.access(at, READ), Some(PhysPage(0x30)), "as it was");
        domain.unmap(mapping).unwrap();
    });
}

pub fn widths_without_two_spare_bits_are_refused<B: Base, F: Format>() {
    for mut design in designs::<F>() {
        let iova_bits = F::aperture().pages.0.ilog2() + GRANULE_LG2;
        for phys_bits in [iova_bits - 1, iova_bits, 64, u32::MAX] {
            if let AllocatorConfig::Identity(widths) = &mut design.allocator {
                widths.phys_bits = phys_bits;
            }
            let rig = Rig::<B>::new::<F>(64);
            let before = rig.frames_in_use();
            let Err(error) = rig.machine.domain::<F>(design) else {
                panic!("{phys_bits} bits in {iova_bits}")
            };
            let numbers = format!("needs IOVAs of {phys_bits} + 2 bits, and there are {iova_bits}");
            assert!(error.to_string().contains(&numbers), "{error}");
            assert_eq!(rig.frames_in_use(), before);
            rig.end();
        }
    }
}

/// Exactly one violation was seen, of this property, and its text has `words`.
fn bitten<B: Base>(rig: &Rig<B>, property: Property, words: &str) {
    let summary = rig.machine.oracle().summary();
    let [one] = &summary.violations[..] else {
        panic!("not exactly one: {summary}")
    };
    assert_eq!(one.property, property, "{summary}");
    assert!(one.text.contains(words), "{summary}");
}

/// Two mappings of one page, of which one ended; the other is reached still.
fn one_of_two<B: Base, F: Format>(rig: &Rig<B>, domain: &Dom<B, F>) -> (Mapping, IovaPage) {
    let [first, second] = [(); 2].map(|()| map(domain, 0x30, 1, Direction::ToDevice));
    let at = first.range().first;
    assert!(rig.access(at, READ).is_some());
    domain.unmap(first).unwrap();
    domain.domain().flush().unwrap();
    assert!(rig.access(at, READ).is_some());
    rig.assert_clean();
    (second, at)
}

pub fn p1_a_page_that_survives_its_last_unmap<B: Base, F: Format>() {
    for design in designs::<F>().into_iter().filter(is_strict) {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let (last, at) = one_of_two(&rig, &domain);
        rig.machine
            .machine()
            .unit()
            .inject(Injection::LeaveTranslations(1));
        domain.unmap(last).unwrap();
        rig.assert_clean(); // it was not used yet
        assert!(rig.access(at, READ).is_some());
        bitten(&rig, Property::P1, "after the last unmap had returned");
    }
}

pub fn p2_a_page_that_survives_the_flush_after_its_last_unmap<B: Base, F: Format>() {
    for design in designs::<F>().into_iter().filter(is_batched) {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let (last, at) = one_of_two(&rig, &domain);
        domain.unmap(last).unwrap();
        assert!(rig.access(at, READ).is_some());
        rig.assert_clean(); // in the window
        rig.machine
            .machine()
            .unit()
            .inject(Injection::LeaveTranslations(1));
        domain.domain().flush().unwrap();
        assert!(rig.access(at, READ).is_some());
        bitten(
            &rig,
            Property::P2,
            "after the flush that followed the last unmap",
        );
    }
}

pub fn p6_a_write_in_the_region_of_reads<B: Base, F: Format>() {
    for design in designs::<F>() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let read = map(&domain, 0x30, 1, Direction::ToDevice);
        let written = map(&domain, 0x30, 1, Direction::FromDevice);
        let (range, own) = (read.range(), written.range().first);
        // behind the oracle's back it becomes writable
        let inner = domain.domain();
        inner.unmap(read).unwrap();
        inner.flush().unwrap();
        let wider = LeafAttrs::new(Perm::ReadWrite, AllocKind::Shared);
        let run = [PhysRun::new(PhysPage(0x30), range.pages)].into_iter();
        // SAFETY: it is not, which the oracle is to see; this memory is the software unit's alone.
        let by = unsafe { Authority::assume() };
        let installed = inner
            .translator()
            .install(by, inner.platform(), range, run, wider);
        installed.unwrap();
        // that the page may be written elsewhere excuses nothing
        assert!(rig.access(own, WRITE).is_some());
        assert!(rig.access(range.first, READ).is_some());
        rig.assert_clean();
        assert!(rig.access(range.first, WRITE).is_some());
        bitten(&rig, Property::P6, "mapped for Read");
        drop(written);
    }
}

pub fn p14_a_page_that_goes_before_its_last_unmap<B: Base, F: Format>() {
    for design in designs::<F>() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let (last, at) = one_of_two(&rig, &domain);
        domain.domain().unmap(last).unwrap();
        domain.domain().flush().unwrap();
        rig.assert_clean();
        assert!(rig.access(at, READ).is_none());
        bitten(&rig, Property::P14, "although it is mapped");
    }
}
