// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! WIOSCA'10's advice as options, under every policy: lists that descend, and domains that begin at
//! different pages.

use crate::suite::rig::*;
use ioatlas_dma::{
    domain::{ListOrder, Offset},
    table::Format,
    units::*,
};

on_every_machine! {
    options::a_descending_list_is_reached_segment_by_segment,
    options::domains_of_a_machine_begin_at_different_pages,
}

pub fn a_descending_list_is_reached_segment_by_segment<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design.order(ListOrder::Descending));
        let list = [
            PhysRange::new(PhysAddr(0x20 * GRANULE + 0x800), ByteCount(0x800)),
            buffer(0x30, 2),
            buffer(0x50, 1),
            PhysRange::new(PhysAddr(0x60 * GRANULE), ByteCount(0x10)),
        ];
        for _ in 0..2 {
            let mapping = domain.map_list(&list, Direction::ToDevice).unwrap();
            let range = mapping.range();
            let segments: Vec<Iova> = mapping.segments(&list).collect();
            assert!(segments.is_sorted_by(|above, below| above > below));
            for (at, segment) in segments.iter().zip(&list) {
                assert_eq!(at.offset(), segment.addr.offset());
                for nth in 0..segment.pages().0 {
                    let page = IovaPage(at.page().0 + nth);
                    let expected = Some(PhysPage(segment.addr.page().0 + nth));
                    assert_eq!(rig.access(page, AccessKind::Read), expected);
                    assert_eq!(rig.access(page, AccessKind::Write), None);
                }
            }
            // now by the token, now by the address
            match domain.domain().stats().unmaps {
                0 => domain.unmap(mapping).unwrap(),
                _ => domain.unmap_raw(mapping).unwrap(),
            }
            domain.domain().flush().unwrap();
            let gone = |page| rig.access(page, AccessKind::Read).is_none();
            assert!(range.iter().all(gone), "{}", name(&design));
        }
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn domains_of_a_machine_begin_at_different_pages<B: Base, F: Format>() {
    for design in designs() {
        for (offset, between) in [(Offset::Fixed(PageCount(16)), 16), (Offset::Coherent, 4)] {
            let rig = Rig::<B>::new::<F>(64);
            let machine = &rig.machine;
            let make = || machine.domain::<F>(design.offset(offset)).unwrap();
            let first = make();
            let ring = first.alloc_consistent(ByteCount(3 * GRANULE)).unwrap();
            let second = make();
            let other = second.alloc_consistent(ByteCount(3 * GRANULE)).unwrap();
            let (ours, theirs) = (ring.iova().page(), other.iova().page());
            assert!(
                ours.0.abs_diff(theirs.0) >= between,
                "WIOSCA'10 4.2: {}: {ours} and {theirs}",
                name(&design)
            );
            first.free_consistent(ring).unwrap();
            second.free_consistent(other).unwrap();
            rig.close(first, &[]);
            rig.close(second, &[]);
            rig.end();
        }
    }
}
