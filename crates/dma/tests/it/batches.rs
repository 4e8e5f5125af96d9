// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Batches of unmaps in which something goes wrong that no unit causes.

use crate::bounce::patchy::Rig;
use ioatlas_dma::{
    domain::*, invalidation::InvalidateError, iova::AllocKind, platform::Authority,
    translator::Translator, units::*,
};
use std::panic::{AssertUnwindSafe, catch_unwind};

const PAGE: IovaPage = IovaPage(0x100);

/// So many mappings of a page each, next to each other.
fn mapped(rig: &Rig, count: u64) -> Vec<Mapping> {
    let domain = rig.dma.domain();
    let map = |nth| {
        let at = IovaPage(PAGE.0 + nth).addr();
        let buffer = PhysRange::page(PhysPage(0x1000 + nth));
        domain.map_at(at, buffer, Direction::FromDevice).unwrap()
    };
    (0..count).map(map).collect()
}

/// What became of five mappings, of which the third had lost its translation.
fn with_a_hole(fails: bool) -> (Rig, UnmapBatchError, usize) {
    let rig = Rig::new(PolicyConfig::Strict);
    let domain = rig.dma.domain();
    let mut all = mapped(&rig, 5).into_iter();
    let hole = IovaRange::new(IovaPage(PAGE.0 + 2), PageCount(1));
    // SAFETY: to break the promise is what is tested; nothing is reached or freed by it.
    let authority = unsafe { Authority::assume() };
    let translator = domain.translator();
    translator.clear(authority, &*rig.p, hole, AllocKind::Fixed, |_| ());
    rig.fail(fails);
    let error = domain.unmap_batch(&mut all).unwrap_err();
    rig.fail(false);
    let left = all.len();
    domain.unmap_batch(&mut all).unwrap();
    (rig, error, left)
}

#[test]
fn a_mapping_with_holes_stops_a_batch_and_is_told() {
    let (rig, error, left) = with_a_hole(false);
    assert_eq!((error.ended, error.lost, left), (2, None, 2));
    let hole = IovaRange::new(IovaPage(PAGE.0 + 2), PageCount(1));
    let found = PageCount(0);
    let holes = UnmapError::Holes { range: hole, found };
    assert_eq!(error.stopped, Some(holes), "P10");
    let stats = rig.dma.domain().stats();
    assert_eq!((stats.maps, stats.unmaps), (5, 4));
}

#[test]
fn a_mapping_with_holes_that_was_not_flushed_is_lost_with_its_round() {
    let (rig, error, left) = with_a_hole(true);
    assert_eq!((error.ended, error.stopped, left), (0, None, 2));
    let lost = Lost {
        mappings: 3,
        range: IovaRange::new(PAGE, PageCount(3)),
        cause: InvalidateError::Refused,
    };
    assert_eq!(error.lost, Some(lost), "P1: none of it was flushed");
    let stats = rig.dma.domain().stats();
    assert_eq!(stats.quarantined.pages, PageCount(2), "P10");
}

#[test]
fn an_iterator_that_panics_has_what_it_gave_unmapped() {
    for yields in [1, 30, 64, 70] {
        let rig = Rig::new(PolicyConfig::Strict);
        let domain = rig.dma.domain();
        let mut all = mapped(&rig, 80).into_iter();
        let mut given = 0;
        let mut panics = std::iter::from_fn(|| {
            assert!(given < yields, "the driver's bug");
            given += 1;
            all.next()
        });
        let unmap = AssertUnwindSafe(|| domain.unmap_batch(&mut panics).is_ok());
        assert!(catch_unwind(unmap).is_err(), "{yields}");
        let stats = domain.stats();
        assert_eq!(stats.unmaps, yields, "P10: all are counted");
        assert_eq!(stats.live, PageCount(80 - yields), "P10");
        assert_eq!(stats.invalidations, yields.div_ceil(64), "P1: {yields}");
        // their addresses are free again
        let again = mapped(&rig, yields);
        domain.unmap_batch(&mut again.into_iter()).unwrap();
        domain.unmap_batch(&mut all).unwrap();
        domain.audit().unwrap();
    }
}
