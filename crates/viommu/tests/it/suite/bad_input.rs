// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Bad input to map: a typed error with its numbers, nothing changed, nothing lost.

use crate::suite::rig::*;
use ioatlas_dma::{
    domain::*,
    iova::{FixedRangeError, granted},
    platform::Authority,
    table::Format,
    translator::{AttachError, RemappingUnit},
    units::*,
};
use ioatlas_viommu::machine::NOT_COMBINED;
use std::fmt::Display;

on_every_machine! {
    bad_input::a_buffer_of_no_bytes,
    bad_input::a_buffer_past_the_physical_addresses,
    bad_input::a_buffer_up_to_the_last_physical_address_is_good,
    bad_input::a_list_that_cannot_be_contiguous,
    bad_input::a_list_without_or_with_empty_segments,
    bad_input::a_list_longer_than_all_memory,
    bad_input::a_chosen_address_that_cannot_be_had,
    bad_input::consistent_memory_of_no_size_or_a_crooked_one,
    bad_input::consistent_memory_larger_than_memory,
    bad_input::another_domains_mapping_comes_back,
    bad_input::devices_attached_twice_or_never,
    bad_input::more_domains_than_the_unit_has_ids,
    bad_input::two_tables_under_one_domain_id,
}

/// Calls `f`, which must fail, and checks that nothing changed and that the message has `numbers`.
pub fn refused<B: Base, F: Format, T, E: Display>(
    rig: &Rig<B>,
    domain: &Dom<B, F>,
    numbers: &[&str],
    f: impl FnOnce() -> Result<T, E>,
) -> E {
    let state = || {
        let stats = domain.domain().stats();
        let counts = (stats.maps, stats.unmaps, stats.live, stats.allocated);
        (counts, stats.quarantined, rig.frames_in_use())
    };
    let before = state();
    let Err(error) = f() else {
        panic!("it was not refused")
    };
    let text = error.to_string();
    for number in numbers {
        assert!(text.contains(number), "{text:?} lacks {number:?}");
    }
    assert_eq!(state(), before, "{text}");
    domain
        .domain()
        .audit()
        .unwrap_or_else(|e| panic!("{e} after: {text}"));
    rig.assert_clean();
    error
}

fn each_design<B: Base, F: Format>(run: impl Fn(&Rig<B>, &Dom<B, F>)) {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        run(&rig, &domain);
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn bytes(addr: u64, len: u64) -> PhysRange {
    PhysRange::new(PhysAddr(addr), ByteCount(len))
}

pub const END: u64 = 1 << PHYS_BITS;

pub fn a_buffer_of_no_bytes<B: Base, F: Format>() {
    each_design::<B, F>(|rig, domain| {
        let empty = MapError::Buffer(BufferError::Empty { segment: 0 });
        for addr in [0, 0x5000, 0x5001, END - 1, END, u64::MAX] {
            let none = bytes(addr, 0);
            let error = refused(rig, domain, &["segment 0", "length 0"], || {
                domain.map(none, Direction::ToDevice)
            });
            assert_eq!(error, empty);
            let error = refused(rig, domain, &["segment 0"], || {
                domain.map_at(Iova(0x1000), none, Direction::ToDevice)
            });
            assert_eq!(error, empty);
        }
    });
}

pub fn a_buffer_past_the_physical_addresses<B: Base, F: Format>() {
    each_design::<B, F>(|rig, domain| {
        for (addr, len) in [
            (u64::MAX - 4, 0x1000), // wraps
            (u64::MAX, 1),
            (1, u64::MAX),
            (END, 1),
            (END - GRANULE, GRANULE + 1),
            (END - 1, 2),
            (0, END + 1),
        ] {
            let buffer = bytes(addr, len);
            let (from, long) = (format!("{addr:#x}"), len.to_string());
            let numbers = ["segment 0", &from, &long, "2^52"];
            let overflow = MapError::Buffer(BufferError::Overflow { segment: 0, buffer });
            let error = refused(rig, domain, &numbers, || {
                domain.map(buffer, Direction::ToDevice)
            });
            assert_eq!(error, overflow);
            let at = Iova(0x1000 + (addr & (GRANULE - 1)));
            let error = refused(rig, domain, &numbers, || {
                domain.map_at(at, buffer, Direction::ToDevice)
            });
            assert_eq!(error, overflow);
            let error = refused(rig, domain, &numbers, || {
                domain.map_list(&[buffer], Direction::ToDevice)
            });
            assert_eq!(error, overflow);
        }
    });
}

pub fn a_buffer_up_to_the_last_physical_address_is_good<B: Base, F: Format>() {
    each_design::<B, F>(|rig, domain| {
        let mapping = domain
            .map(bytes(END - GRANULE - 1, GRANULE + 1), Direction::ToDevice)
            .unwrap();
        let last = IovaPage(mapping.range().first.0 + 1);
        let to = PhysAddr(END - 1).page();
        assert_eq!(rig.access(last, AccessKind::Read), Some(to));
        domain.unmap(mapping).unwrap();
    });
}

pub fn a_list_that_cannot_be_contiguous<B: Base, F: Format>() {
    each_design::<B, F>(|rig, domain| {
        let begins = [buffer(1, 1), bytes(0x2008, 0x1000 - 8)];
        let ends = [bytes(0x1000, 0x10), buffer(2, 1)];
        let both = [buffer(1, 1), bytes(0x2000, 0xfff), buffer(3, 1)];
        for (list, segment) in [(&begins[..], 1), (&ends[..], 0), (&both[..], 1)] {
            let buffer = list[segment];
            let (named, place) = (format!("segment {segment}"), buffer.to_string());
            let error = refused(rig, domain, &[&named, &place, "inner edge"], || {
                domain.map_list(list, Direction::FromDevice)
            });
            let expected = BufferError::InnerEdge { segment, buffer };
            assert_eq!(error, MapError::Buffer(expected));
        }
        // outer edges may lie anywhere
        let good = [bytes(0x1ff0, 0x10), buffer(2, 1), bytes(0x3000, 1)];
        let mapping = domain.map_list(&good, Direction::FromDevice).unwrap();
        domain.unmap(mapping).unwrap();
    });
}

pub fn a_list_without_or_with_empty_segments<B: Base, F: Format>() {
    each_design::<B, F>(|rig, domain| {
        let error = refused(rig, domain, &["no segments"], || {
            domain.map_list(&[], Direction::ToDevice)
        });
        assert_eq!(error, MapError::Buffer(BufferError::NoSegments));
        let list = [buffer(1, 1), buffer(2, 1), bytes(0x3000, 0)];
        let error = refused(rig, domain, &["segment 2", "length 0"], || {
            domain.map_list(&list, Direction::ToDevice)
        });
        assert_eq!(error, MapError::Buffer(BufferError::Empty { segment: 2 }));
    });
}

pub fn a_list_longer_than_all_memory<B: Base, F: Format>() {
    each_design::<B, F>(|rig, domain| {
        // memory may be named repeatedly, so each segment is good and the sum is not
        let half = bytes(0, END / 2);
        let error = refused(rig, domain, &["segment 2", &half.to_string()], || {
            domain.map_list(&[half, half, half], Direction::ToDevice)
        });
        let expected = BufferError::Overflow {
            segment: 2,
            buffer: half,
        };
        assert_eq!(error, MapError::Buffer(expected));
    });
}

pub fn a_chosen_address_that_cannot_be_had<B: Base, F: Format>() {
    each_design::<B, F>(|rig, domain| {
        let map_at = |iova, buffer| domain.map_at(Iova(iova), buffer, Direction::ToDevice);
        let error = refused(rig, domain, &["0x5010", "0x9000", "low 12 bits"], || {
            map_at(0x5010, buffer(9, 1))
        });
        let (iova, phys) = (Iova(0x5010), PhysAddr(0x9000));
        let misplaced = BufferError::Misplaced { iova, phys };
        assert_eq!(error, MapError::Buffer(misplaced));

        let aperture = F::aperture();
        let end = aperture.end().0;
        for (first, pages) in [
            (end, 1),
            (end - 1, 2),
            (0, end + 1),
            ((1 << 52) - 1, 1), // the last page number that an address has
            ((1 << 52) - 1, 2), // wraps
        ] {
            let wanted = IovaRange::new(IovaPage(first), PageCount(pages));
            let numbers = [&*wanted.to_string(), &aperture.to_string()];
            let flushed = domain.domain().stats().invalidations;
            let error = refused(rig, domain, &numbers, || {
                map_at(wanted.first.addr().0, buffer(0, pages))
            });
            let outside = FixedRangeError::Outside { wanted, aperture };
            assert_eq!(error, MapError::NoReserve(outside));
            assert_eq!(domain.domain().stats().invalidations, flushed);
        }

        let there = map_at(0x6000, buffer(0x10, 3)).unwrap();
        for (first, pages) in [(6, 3), (6, 1), (7, 1), (8, 1), (5, 2), (8, 2), (5, 5)] {
            let wanted = IovaRange::new(IovaPage(first), PageCount(pages));
            let numbers = [&*wanted.to_string(), "0x6+3"];
            let error = refused(rig, domain, &numbers, || {
                map_at(first << GRANULE_LG2, buffer(0x20, pages))
            });
            let taken = there.range();
            assert_eq!(
                error,
                MapError::NoReserve(FixedRangeError::Taken { wanted, taken })
            );
        }
        let to = rig.access(IovaPage(7), AccessKind::Read);
        assert_eq!(to, Some(PhysPage(0x11)), "as it was");
        domain.unmap(there).unwrap();
    });
}

pub fn consistent_memory_of_no_size_or_a_crooked_one<B: Base, F: Format>() {
    each_design::<B, F>(|rig, domain| {
        let error = refused(rig, domain, &["length 0"], || {
            domain.alloc_consistent(ByteCount(0))
        });
        assert_eq!(error, MapError::Buffer(BufferError::Empty { segment: 0 }));
        for len in [1, 4095, 4097, u64::MAX] {
            let len = ByteCount(len);
            let error = refused(rig, domain, &[&len.to_string(), "4096"], || {
                domain.alloc_consistent(len)
            });
            assert_eq!(error, MapError::Buffer(BufferError::NotGranules { len }));
        }
    });
}

pub fn consistent_memory_larger_than_memory<B: Base, F: Format>() {
    each_design::<B, F>(|rig, domain| {
        let done = 64 - rig.frames_in_use() as u64;
        for wanted in [done + 1, 1 << 40, (1 << 52) - 1] {
            let (done, wanted) = (PageCount(done), PageCount(wanted));
            // what no aperture has room for takes no frame at all
            let fits = granted(wanted).0 < F::aperture().pages.0;
            let number = if fits { done } else { granted(wanted) };
            let error = refused(rig, domain, &[&number.to_string()], || {
                domain.alloc_consistent(ByteCount(wanted.0 << GRANULE_LG2))
            });
            match error {
                MapError::NoFrame { .. } if fits => {
                    assert_eq!(error, MapError::NoFrame { done, wanted });
                }
                MapError::NoIova(none) if !fits => assert_eq!(none.wanted, granted(wanted)),
                other => panic!("{other}"),
            }
        }
    });
}

pub fn another_domains_mapping_comes_back<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let other = rig.machine.domain::<F>(design).unwrap();
        let mapping = domain.map(buffer(0x10, 2), Direction::ToDevice).unwrap();
        let at = mapping.range().first;
        // the same pages are mapped there too
        let theirs = other
            .map_at(mapping.iova(), buffer(0x20, 2), Direction::ToDevice)
            .unwrap();
        let iova = mapping.iova().to_string();
        let error = refused(&rig, &other, &[&iova, "another domain"], || {
            other.unmap(mapping)
        });
        let UnmapError::Foreign(mapping) = error else {
            panic!("{error}")
        };
        let to = rig.access(at, AccessKind::Read);
        assert_eq!(to, Some(PhysPage(0x10)), "not unmapped");
        domain.unmap(mapping).unwrap();
        other.unmap(theirs).unwrap();

        let memory = domain.alloc_consistent(ByteCount(GRANULE)).unwrap();
        let (at, page) = (memory.iova(), memory.frames()[0].page());
        let error = refused(&rig, &other, &[&at.to_string(), "another domain"], || {
            other.free_consistent(memory)
        });
        let UnmapError::ForeignMemory(memory) = error else {
            panic!("{error}")
        };
        assert_eq!(rig.access(at.page(), AccessKind::Write), Some(page));
        domain.free_consistent(memory).unwrap();
        rig.close(other, &[]);
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn devices_attached_twice_or_never<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let id = domain.domain().id();
        // unwatched: the oracle would take the refused attach for a change
        let other = rig.machine.unwatched::<F>(design, NOT_COMBINED).unwrap();
        let mapping = domain.map(buffer(0x10, 1), Direction::ToDevice).unwrap();
        let (nic, owner) = (NIC.to_string(), format!("domain {id}"));
        for to in [domain.domain(), &other] {
            let error = refused(&rig, &domain, &[&nic, &owner], || to.attach(NIC));
            let (device, domain) = (NIC, id);
            assert_eq!(error, AttachError::Attached { device, domain });
        }
        let (device, domain_id) = (DISK, other.id());
        let owner = format!("domain {domain_id}");
        let error = refused(&rig, &domain, &[&DISK.to_string(), &owner], || {
            other.detach(device)
        });
        let expected = AttachError::NotAttached {
            device,
            domain: domain_id,
        };
        assert_eq!(error, expected);
        // attached, but elsewhere
        let error = refused(&rig, &domain, &[&nic], || other.detach(NIC));
        assert!(matches!(error, AttachError::NotAttached { .. }), "{error}");
        let to = rig.access(mapping.iova().page(), AccessKind::Read);
        assert_eq!(to, Some(PhysPage(0x10)), "attached as before");
        domain.unmap(mapping).unwrap();
        other.close().unwrap();
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn more_domains_than_the_unit_has_ids<B: Base, F: Format>() {
    let design = designs()[0];
    // ND = 0: 16 ids, of which 0 is not used
    let rig = Rig::<B>::with::<F>(64, |config| config.features.nd = 0);
    let mut all: Vec<_> = (0..15)
        .map(|_| rig.machine.domain::<F>(design).expect("an id"))
        .collect();
    let mut ids: Vec<_> = all.iter().map(|domain| domain.domain().id().0).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 15, "no two have one id: {ids:?}");
    let frames = rig.frames_in_use();
    let Err(error) = rig.machine.domain::<F>(design) else {
        panic!("a sixteenth id")
    };
    assert!(error.to_string().contains("no domain id left"), "{error}");
    assert_eq!(rig.frames_in_use(), frames);
    rig.close(all.pop().unwrap(), &[]);
    all.push(rig.machine.domain::<F>(design).expect("the id came back"));
    all.into_iter().for_each(|domain| rig.close(domain, &[]));
    rig.end();
}

/// Domains get their ids from the unit. A caller that makes a table of its own and gives it the id
/// of another domain is refused as long as that one has a device.
pub fn two_tables_under_one_domain_id<B: Base, F: Format>() {
    // on a bus that has its context table
    const OTHER: SourceId = SourceId(NIC.0 + 8);
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let other = rig.machine.domain::<F>(design).unwrap();
        let (ours, theirs) = (domain.domain(), other.domain());
        let mapping = domain.map(buffer(0x10, 1), Direction::ToDevice).unwrap();
        let at = mapping.iova().page();
        let (p, driver) = (ours.platform(), rig.machine.machine().driver());
        let root = theirs.translator().table().root();
        let numbers = [
            &*OTHER.to_string(),
            &ours.id().to_string(),
            &root.to_string(),
        ];
        for _ in 0..2 {
            let error = refused(&rig, &domain, &numbers, || {
                // SAFETY: it is refused.
                let by = unsafe { Authority::assume() };
                driver.attach(by, p, OTHER, ours.id(), root, F::LEVELS)
            });
            let (device, domain) = (OTHER, ours.id());
            let expected = AttachError::IdInUse {
                device,
                domain,
                root,
            };
            assert_eq!(error, expected);
            assert_eq!(rig.access_by(OTHER, at, AccessKind::Read), None, "P8");
        }
        let reached = rig.access(at, AccessKind::Read);
        assert_eq!(reached, Some(PhysPage(0x10)), "as it was");
        // under its own id it may be attached, and so may another device under the first
        other.attach(OTHER).unwrap();
        assert_eq!(rig.access_by(OTHER, at, AccessKind::Read), None, "P8");
        other.detach(OTHER).unwrap();
        domain.attach(OTHER).unwrap();
        let reached = rig.access_by(OTHER, at, AccessKind::Read);
        assert_eq!(reached, Some(PhysPage(0x10)), "P14");
        domain.unmap(mapping).unwrap();
        rig.close(other, &[]);
        rig.close(domain, &[NIC, OTHER]);
        rig.end();
    }
}
