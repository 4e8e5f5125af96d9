// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! IOVAs that a general-purpose allocator returns (ATC'15 §4.2): blocks of its arena, and a
//! fallback for what they cannot be.

use crate::suite::{bad_input::refused, rig::*};
use ioatlas_dma::{
    design, domain::*, platform::HeapBlock, platform::Platform, table::Format, units::*,
};

on_wide_machines! {
    heap::a_mapping_has_the_address_of_a_block,
    heap::an_exhausted_arena_recovers,
    heap::a_block_that_a_device_cannot_reach_is_given_back,
    heap::a_chosen_address_waits_for_the_arena,
    heap::what_others_allocate_is_not_given_as_an_iova,
}
on_toy_machines! {
    heap::an_arena_larger_than_the_aperture_is_refused,
}

const READ: AccessKind = AccessKind::Read;

fn kmalloc(design: &DomainConfig) -> bool {
    matches!(design.allocator, AllocatorConfig::Kmalloc(_))
}

fn each<B: Base, F: Format>(run: impl Fn(&Rig<B>, &Dom<B, F>)) {
    let designs: Vec<_> = by_address::<F>().into_iter().filter(kmalloc).collect();
    assert!(!designs.is_empty());
    for design in designs {
        let rig = Rig::<B>::new::<F>(1024);
        let domain = rig.domain::<F>(design);
        run(&rig, &domain);
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

fn map<B: Base, F: Format>(domain: &Dom<B, F>, first: u64, pages: u64) -> Mapping {
    let mapping = domain.map(buffer(first, pages), Direction::ToDevice);
    mapping.expect("the arena has room")
}

pub fn a_mapping_has_the_address_of_a_block<B: Base, F: Format>() {
    each::<B, F>(|rig, domain| {
        let live: Vec<_> = [1, 3, 8, 9, 20]
            .map(|pages| map(domain, 0x1000, pages))
            .into();
        for mapping in live {
            let range = mapping.range();
            let block = range.pages.0.max(HeapBlock::MIN.0).next_power_of_two();
            assert!(range.first.0 > 0 && range.first.0 % block == 0, "{range}");
            assert!(range.end().0 <= ARENA.0, "{range}");
            for (at, to) in range.iter().zip(0x1000..) {
                assert_eq!(rig.access(at, READ), Some(PhysPage(to)), "P14");
                assert_eq!(rig.access(at, AccessKind::Write), None, "P6");
            }
            domain.unmap(mapping).unwrap();
            domain.domain().flush().unwrap();
            for at in range.iter() {
                assert_eq!(rig.access(at, READ), None, "P1");
            }
        }
        assert_eq!(domain.domain().usage().diverted, 0);
    });
}

pub fn an_exhausted_arena_recovers<B: Base, F: Format>() {
    each::<B, F>(|rig, domain| {
        let mut live = Vec::new();
        let full = loop {
            match domain.map(buffer(0x1000, 400), Direction::ToDevice) {
                Ok(mapping) => live.push(mapping),
                Err(full) => break full,
            }
        };
        // blocks of 512 of which the first is not whole
        assert_eq!(live.len() as u64, ARENA.0 / 512 - 1);
        let MapError::NoIova(none) = full else {
            panic!("{full}")
        };
        assert_eq!(none.wanted, PageCount(512));
        assert!(!none.cause.is_final());
        for round in 0..6 {
            refused(rig, domain, &["512 IOVA pages"], || {
                domain.map(buffer(0x1000, 400), Direction::ToDevice)
            });
            let old = live.remove(round % live.len());
            let at = old.range().first;
            assert!(rig.access(at, READ).is_some());
            domain.unmap(old).unwrap();
            let to = 0x2000 + 0x100 * round as u64;
            let new = map(domain, to, 400);
            assert_eq!(new.range().first, at, "the only block there is");
            assert_eq!(rig.access(at, READ), Some(PhysPage(to)), "P3, P14");
            live.push(new);
        }
        live.into_iter().for_each(|m| domain.unmap(m).unwrap());
    });
}

pub fn a_block_that_a_device_cannot_reach_is_given_back<B: Base, F: Format>() {
    each::<B, F>(|rig, domain| {
        let attrs = MapAttrs::default().limits(Limits::NONE.align_lg2(13));
        let inner = domain.domain();
        let heap = || inner.platform().heap().expect("a heap").in_use();
        let before = heap();
        let aligned = inner.map_with(buffer(0x40, 3), Direction::ToDevice, attrs);
        let aligned = aligned.expect("beyond the arena there is room");
        assert_eq!(aligned.range().first.0 % (1 << 13), 0);
        assert!(aligned.range().first.0 >= ARENA.0);
        assert_eq!(heap(), before, "no block is held");
        assert_eq!(inner.usage().diverted, 1);
        let none = Limits::NONE.end(IovaPage(4)); // no block ends below
        let attrs = MapAttrs::default().limits(none);
        refused(rig, domain, &["8 IOVA pages", "below"], || {
            inner.map_with(buffer(0x40, 3), Direction::ToDevice, attrs)
        });
        assert_eq!(heap(), before, "nor by what failed");
        inner.unmap(aligned).unwrap();
    });
}

pub fn a_chosen_address_waits_for_the_arena<B: Base, F: Format>() {
    each::<B, F>(|rig, domain| {
        let at = IovaPage(0x200);
        let chosen = || domain.map_at(at.addr(), buffer(0x60, 2), Direction::ToDevice);
        let lent = map(domain, 0x40, 1);
        let error = refused(rig, domain, &["0x200+2", "8 pages"], chosen);
        assert!(
            matches!(error, MapError::NoReserve(FixedRangeError::NoRecord { .. })),
            "{error}"
        );
        domain.unmap(lent).unwrap();
        let fixed = chosen().expect("nothing of the arena is lent now");
        assert_eq!(rig.access(at, READ), Some(PhysPage(0x60)), "P14");
        // blocks keep off it
        let others: Vec<_> = (0..20).map(|n| map(domain, 0x100 + n, 8)).collect();
        assert!(
            others.iter().all(|m| !m.range().overlaps(&fixed.range())),
            "P3"
        );
        others.into_iter().for_each(|m| domain.unmap(m).unwrap());
        domain.unmap(fixed).unwrap();
    });
}

pub fn what_others_allocate_is_not_given_as_an_iova<B: Base, F: Format>() {
    each::<B, F>(|rig, domain| {
        let heap = domain.domain().platform().heap().expect("a heap");
        let mut held = Vec::new();
        for n in 0..10 {
            let theirs = heap.alloc(ByteCount(16)).expect("room");
            let theirs_too = IovaRange::new(IovaPage(theirs.offset.0), PageCount(theirs.len.0));
            let ours = map(domain, 0x100 + 16 * n, 16);
            assert!(!ours.range().overlaps(&theirs_too));
            assert_eq!(rig.access(theirs_too.first, READ), None, "P9");
            held.push((theirs, ours));
        }
        let usage = domain.domain().usage();
        assert!(usage.others.0 >= 160, "{usage:?}");
        for (theirs, ours) in held {
            domain.unmap(ours).unwrap();
            heap.free(theirs).expect("a block");
        }
    });
}

pub fn an_arena_larger_than_the_aperture_is_refused<B: Base, F: Format>() {
    for design in design::all().map(|design| design.domain).filter(kmalloc) {
        let rig = Rig::<B>::new::<F>(64);
        let before = rig.frames_in_use();
        let Err(error) = rig.machine.domain::<F>(design) else {
            panic!("4096 bytes in 64 pages")
        };
        let numbers = "at most 64 bytes here, and its arena has 4096";
        assert!(error.to_string().contains(numbers), "{error}");
        assert_eq!(rig.frames_in_use(), before);
        rig.end();
    }
}
