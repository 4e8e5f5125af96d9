// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The address API: what is not exactly one live mapping is refused; what cannot be told apart is
//! shown.

use crate::suite::{bad_input::refused, rig::*};
use ioatlas_dma::{
    domain::{BufferError, UnmapError},
    table::{Format, RawError},
    units::*,
};

on_every_machine! {
    address_api::what_is_not_one_live_mapping_is_refused,
    address_api::a_second_unmap_is_refused,
    address_api::no_bytes_or_addresses_that_wrap_or_lie_outside,
    address_api::other_bytes_of_the_same_pages_are_not_detected,
    address_api::a_second_unmap_after_the_same_pages_were_mapped_again_is_not_detected,
    address_api::a_mapping_whose_token_is_held_is_refused,
}

/// The error of the address API, which has changed nothing.
fn raw_error<B: Base, F: Format>(
    rig: &Rig<B>,
    domain: &Dom<B, F>,
    first: u64,
    pages: u64,
) -> RawError {
    let (iova, len) = (IovaPage(first).addr(), ByteCount(pages * GRANULE));
    let numbers = [&*iova.to_string(), &len.to_string()];
    let error = refused(rig, domain, &numbers, || {
        domain.domain().unmap_raw(iova, len)
    });
    match error {
        UnmapError::NotAMapping { cause, .. } => cause,
        other => panic!("{other}"),
    }
}

pub fn what_is_not_one_live_mapping_is_refused<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        // in two leaf tables of the toy format: pages 3, 4, 5, then page 6; page 2 and 7 are free
        let three = domain.map_at(Iova(0x3000), buffer(0x10, 3), Direction::ToDevice);
        let one = domain.map_at(Iova(0x6000), buffer(0x20, 1), Direction::ToDevice);
        let error = |first, pages| raw_error(&rig, &domain, first, pages);
        let page = IovaPage;
        // a part
        assert_eq!(error(3, 1), RawError::NotLast(page(3)));
        assert_eq!(error(3, 2), RawError::NotLast(page(4)));
        assert_eq!(error(4, 1), RawError::NotFirst(page(4)));
        assert_eq!(error(4, 2), RawError::NotFirst(page(4)));
        assert_eq!(error(5, 1), RawError::NotFirst(page(5)));
        // larger, over what is mapped and what is not
        assert_eq!(error(3, 4), RawError::Several(page(5)));
        assert_eq!(error(6, 2), RawError::Several(page(6)));
        assert_eq!(error(2, 4), RawError::NotMapped(page(2)));
        assert_eq!(error(5, 2), RawError::NotFirst(page(5)));
        // whole, but their tokens are held
        assert_eq!(error(3, 3), RawError::NotGivenUp(page(3)));
        assert_eq!(error(6, 1), RawError::NotGivenUp(page(6)));
        // nothing there, in a table and where there is none
        assert_eq!(error(2, 1), RawError::NotMapped(page(2)));
        assert_eq!(error(7, 2), RawError::NotMapped(page(7)));
        assert_eq!(error(40, 1), RawError::NotMapped(page(40)));
        // all is as it was
        for (at, to) in [(3, 0x10), (4, 0x11), (5, 0x12), (6, 0x20)] {
            let reached = rig.access(page(at), AccessKind::Read);
            assert_eq!(reached, Some(PhysPage(to)));
        }
        domain.unmap_raw(three.unwrap()).unwrap();
        domain.unmap(one.unwrap()).unwrap();
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn a_second_unmap_is_refused<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        for pages in [1, 3] {
            let mapping = domain.map(buffer(0x10, pages), Direction::ToDevice);
            let mapping = mapping.unwrap();
            let first = mapping.range().first;
            domain.unmap_raw(mapping).unwrap();
            let error = raw_error(&rig, &domain, first.0, pages);
            assert_eq!(error, RawError::NotMapped(first));
            // the other interface first
            let mapping = domain.map(buffer(0x10, pages), Direction::ToDevice);
            let mapping = mapping.unwrap();
            let first = mapping.range().first;
            domain.unmap(mapping).unwrap();
            let error = raw_error(&rig, &domain, first.0, pages);
            assert_eq!(error, RawError::NotMapped(first));
        }
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn no_bytes_or_addresses_that_wrap_or_lie_outside<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let raw = |iova, len| {
            refused(&rig, &domain, &[], || {
                domain.domain().unmap_raw(Iova(iova), ByteCount(len))
            })
        };
        for iova in [0, 0x1000, u64::MAX] {
            let empty = UnmapError::Buffer(BufferError::Empty { segment: 0 });
            assert_eq!(raw(iova, 0), empty);
        }
        for (iova, len) in [(u64::MAX, 2), (u64::MAX - 0xfff, 0x1001), (1, u64::MAX)] {
            let error = raw(iova, len);
            let text = error.to_string();
            let (iova, len) = (Iova(iova), ByteCount(len));
            let wraps = BufferError::IovaOverflow { iova, len };
            assert_eq!(error, UnmapError::Buffer(wraps));
            assert!(text.contains(&iova.to_string()), "{text}");
            assert!(text.contains(&len.to_string()), "{text}");
        }
        let aperture = F::aperture();
        let end = aperture.end().addr().0;
        for (iova, len) in [(end, 1), (end - 1, 2), (0, end + 1), (u64::MAX - 0xfff, 1)] {
            let error = raw(iova, len);
            let text = error.to_string();
            let UnmapError::NotAMapping { cause, .. } = error else {
                panic!("{text}")
            };
            let RawError::Outside(wanted, within) = cause else {
                panic!("{text}")
            };
            assert_eq!(
                (wanted.first, within),
                (Iova(iova).page(), aperture),
                "{text}"
            );
            assert!(text.contains(&aperture.to_string()), "{text}");
        }
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn other_bytes_of_the_same_pages_are_not_detected<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.machine.machine().domain::<F>(design).unwrap();
        let part = PhysRange::new(PhysAddr(0x5100), ByteCount(0x200));
        let mapping = domain.map(part, Direction::ToDevice).unwrap();
        // marks are in leaves, so only pages are known: any bytes of just this page will do
        let page = mapping.range().first.addr();
        domain.into_raw(mapping).unwrap();
        domain
            .unmap_raw(Iova(page.0 + 0xffe), ByteCount(2))
            .unwrap();
        assert_eq!(domain.audit().unwrap().census.pages, PageCount(0));
        domain.close().unwrap();
        rig.end();
    }
}

pub fn a_second_unmap_after_the_same_pages_were_mapped_again_is_not_detected<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.machine.machine().domain::<F>(design).unwrap();
        let at = Iova(0x4000);
        let map = |page| {
            let mapping = domain.map_at(at, buffer(page, 2), Direction::ToDevice);
            domain.into_raw(mapping.unwrap()).unwrap()
        };
        let (iova, len) = map(0x10);
        domain.unmap_raw(iova, len).unwrap();
        let live = map(0x20);
        assert_eq!(live, (iova, len), "nothing tells them apart");
        domain.unmap_raw(iova, len).unwrap();
        assert_eq!(domain.audit().unwrap().census.pages, PageCount(0));
        domain.close().unwrap();
        rig.end();
    }
}

pub fn a_mapping_whose_token_is_held_is_refused<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let mapping = domain.map(buffer(0x10, 2), Direction::ToDevice).unwrap();
        let first = mapping.range().first;
        let error = raw_error(&rig, &domain, first.0, 2);
        assert_eq!(error, RawError::NotGivenUp(first));
        domain.unmap(mapping).unwrap();

        let memory = domain.alloc_consistent(ByteCount(2 * GRANULE)).unwrap();
        let first = memory.iova().page();
        let error = raw_error(&rig, &domain, first.0, 2);
        assert_eq!(error, RawError::NotGivenUp(first));
        domain.free_consistent(memory).unwrap();
        rig.close(domain, &[NIC]);
        rig.end();
    }
}
