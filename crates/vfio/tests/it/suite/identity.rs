// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Identity: addresses that follow from the memory's own, counted beside the kernel's tables.

use crate::suite::rig::*;
use ioatlas_dma::{domain::*, units::*};
use ioatlas_vfio::platform::*;

fn rig(kind: Kind) -> Rig {
    Rig::new(kind, DomainConfig::new(identity(), PolicyConfig::Strict))
}

#[test]
fn a_low_arena_is_where_its_addresses_say() {
    for kind in KINDS {
        let rig = rig(kind);
        let buffer = rig.buffer(2);
        let mapping = rig.domain.map(buffer.range(), Direction::ToDevice).unwrap();
        assert_eq!(
            mapping.iova().0,
            1 << 37 | buffer.range().addr.0,
            "{kind:?}"
        );
        rig.domain.unmap(mapping).unwrap();
    }
}

#[test]
fn a_page_goes_with_the_last_that_maps_it_and_no_earlier() {
    for kind in KINDS {
        let rig = rig(kind);
        let buffer = rig.buffer(6);
        let part = |from: u64, pages: u64| {
            buffer
                .part(ByteCount(from << 12), ByteCount(pages << 12))
                .unwrap()
        };
        let map = |from, pages| {
            rig.domain
                .map(part(from, pages), Direction::ToDevice)
                .unwrap()
        };
        let base = 1 << 37 | buffer.range().addr.0;
        let mapped = || -> Vec<u64> {
            let at = |page: &u64| rig.reads(Iova(base + (page << 12))).is_some();
            (0..6).filter(at).collect()
        };
        let (a, b, c) = (map(0, 4), map(2, 4), map(3, 1));
        assert_eq!(rig.calls().held, 6, "{kind:?}: a mapping a page");
        rig.domain.unmap(a).unwrap();
        assert_eq!(
            mapped(),
            [2, 3, 4, 5],
            "P1: no mapping has 0 and 1 any more"
        );
        rig.domain.unmap(b).unwrap();
        assert_eq!(mapped(), [3]);
        let again = map(0, 6);
        rig.domain.unmap(c).unwrap();
        assert_eq!(mapped(), [0, 1, 2, 3, 4, 5]);
        let before = rig.calls().unmaps;
        rig.domain.unmap(again).unwrap();
        assert_eq!(
            (mapped(), rig.calls().unmaps - before),
            (vec![], 1),
            "neighbours go by one"
        );
        assert_eq!(rig.calls().held, 0);
        rig.domain.audit().unwrap();
    }
}

#[test]
fn reading_and_writing_are_revoked_apart() {
    for kind in KINDS {
        let rig = rig(kind);
        let buffer = rig.buffer(1);
        let read = rig.domain.map(buffer.range(), Direction::ToDevice).unwrap();
        let write = rig
            .domain
            .map(buffer.range(), Direction::FromDevice)
            .unwrap();
        let (read_at, write_at) = (read.iova(), write.iova());
        assert_ne!(read_at, write_at);
        rig.domain.unmap(write).unwrap();
        assert_eq!(rig.reach(write_at, AccessKind::Write), None, "{kind:?}");
        assert!(rig.reads(read_at).is_some());
        rig.domain.unmap(read).unwrap();
    }
}

#[test]
fn what_lies_too_high_goes_to_the_fallback() {
    let rig = rig(Kind::Type1);
    let high = UserSpace::new(UserSpaceConfig::default().pages(PageCount(4)));
    let high = std::sync::Arc::new(high.unwrap());
    let buffer = high.buffer(ByteCount(GRANULE)).unwrap();
    assert!(
        buffer.range().addr.0 >= 1 << 37,
        "the kernel maps high by itself"
    );
    let at = ioatlas_vfio::kernel::VirtAddr(buffer.range().addr.0);
    // SAFETY: it lives until the end of the test, as the rig does not.
    unsafe { rig.memory.lend(at, ByteCount(GRANULE)) }.unwrap();
    let mapping = rig.domain.map(buffer.range(), Direction::ToDevice).unwrap();
    assert!(mapping.iova().0 < 1 << 37);
    assert_eq!(rig.reads(mapping.iova()), Some(at.0));
    rig.domain.unmap(mapping).unwrap();
    drop(rig);
}

/// A page that no mapping has any more but that is not flushed yet is taken as it is.
#[test]
fn an_idle_page_is_taken_again_without_a_call() {
    let policies = ioatlas_dma::design::policies();
    let deferred = policies.into_iter().find(|p| p.name == "deferred-percpu");
    let policy = deferred.unwrap().config;
    for kind in KINDS {
        let rig = Rig::new(kind, DomainConfig::new(identity(), policy));
        let buffer = rig.buffer(3);
        let mapping = rig.domain.map(buffer.range(), Direction::ToDevice).unwrap();
        rig.domain.unmap(mapping).unwrap();
        let before = rig.calls();
        let mapping = rig.domain.map(buffer.range(), Direction::ToDevice).unwrap();
        assert_eq!(rig.calls(), before, "{kind:?}");
        rig.domain.flush().unwrap();
        assert!(
            rig.reads(mapping.iova()).is_some(),
            "P14: the flush was not for this one"
        );
        let at = mapping.iova();
        rig.domain.unmap(mapping).unwrap();
        rig.domain.flush().unwrap();
        assert_eq!(rig.reads(at), None);
    }
}
