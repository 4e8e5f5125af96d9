// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Whatever owns the memory of a list lives for as long as a device may reach it: a unit that fails
//! invalidations, and tokens that are dropped.

#![allow(clippy::disallowed_types)] // a test counts what the platform does

use crate::bounce::patchy::{Patchy, Rig};
use crate::lend;
use ioatlas_dma::{dma_api::*, domain::*, platform::*, units::*};
use std::sync::{Arc, atomic::Ordering::Relaxed};

/// What a driver's list lives in.
struct Owner {
    list: Vec<PhysRange>,
    _alive: Arc<()>,
}

impl AsRef<[PhysRange]> for Owner {
    fn as_ref(&self) -> &[PhysRange] {
        &self.list
    }
}

fn owned(list: &[PhysRange]) -> (Owner, Arc<()>) {
    let alive = Arc::new(());
    let owner = Owner {
        list: list.to_vec(),
        _alive: alive.clone(),
    };
    (owner, alive)
}

/// What an owner is that should live.
const GONE: &str = "its memory is anybody's, and the device may write there";

fn lives(alive: &Arc<()>) -> bool {
    Arc::strong_count(alive) > 1
}

/// Whole granules, and what has edges, each with a placement that maps some of it in its own place.
fn cases(p: &Patchy) -> Vec<(Placement, Vec<PhysRange>)> {
    let mut pages: Vec<_> = (0..3)
        .map(|_| p.frame_alloc().unwrap().page().addr())
        .collect();
    pages.sort_unstable();
    let whole = PhysRange::new(pages[0], ByteCount(GRANULE));
    let edges = PhysRange::new(PhysAddr(pages[0].0 + 8), ByteCount(2 * GRANULE));
    let untrusted = Placement::Untrusted {
        whole_up_to: ByteCount(0),
    };
    vec![
        (Placement::Never, vec![whole]),
        (Placement::Below(ByteCount(1)), vec![whole]),
        (untrusted, vec![whole]),
        (untrusted, vec![edges]),
        (Placement::SingleUse, vec![whole]),
        (Placement::SingleUse, vec![edges, whole]),
    ]
}

#[test]
fn an_owner_outlives_an_unmap_that_was_not_flushed() {
    let rig = Rig::new(PolicyConfig::Strict);
    for (placement, list) in cases(&rig.p) {
        let client = rig.client(placement);
        let (owner, alive) = owned(&list);
        let mapping = client.map_sg(lend(owner), Direction::FromDevice).unwrap();
        rig.fail(true);
        let lost = rig.dma.domain().stats().quarantined.pages;
        match client.unmap(mapping) {
            Err(DmaUnmapError::Direct(UnmapError::Invalidate { .. })) => {}
            Err(other) => panic!("{placement:?}: {other}"),
            Ok(_) => panic!("{placement:?}: unmapped"),
        }
        rig.fail(false);
        assert!(lives(&alive), "P1: {placement:?}: {GONE}");
        let now = rig.dma.domain().stats().quarantined.pages;
        assert!(now > lost, "{placement:?}: not counted");
        // and one that is flushed gives it back
        let (owner, alive) = owned(&list);
        let mapping = client.map_sg(lend(owner), Direction::FromDevice).unwrap();
        drop(client.unmap(mapping));
        assert!(!lives(&alive), "{placement:?}");
    }
}

#[test]
fn an_owner_outlives_a_token_that_is_dropped() {
    let rig = Rig::new(PolicyConfig::Strict);
    for (placement, list) in cases(&rig.p) {
        let (owner, alive) = owned(&list);
        let mapping = rig
            .client(placement)
            .map_sg(lend(owner), Direction::FromDevice);
        drop(mapping.unwrap());
        assert!(lives(&alive), "{placement:?}: it is mapped still");
    }
    // nor with an error that has the token
    let (owner, alive) = owned(&cases(&rig.p)[0].1);
    let mapping = rig.client(Placement::Never);
    let mapping = mapping.map_sg(lend(owner), Direction::FromDevice).unwrap();
    let elsewhere = Rig::new(PolicyConfig::Strict);
    let refused = elsewhere.client(Placement::Never).unmap(mapping);
    assert!(matches!(refused, Err(DmaUnmapError::Foreign(_))));
    drop(refused);
    assert!(lives(&alive), "it is mapped still");
}

#[test]
fn an_owner_outlives_a_map_that_was_undone_and_not_flushed() {
    for fails in [false, true] {
        let rig = Rig::new(PolicyConfig::Strict);
        let page = PhysRange::page(rig.p.frame_alloc().unwrap().page());
        let client = rig.client(Placement::Never);
        rig.frames_left(3); // the tables of 512 pages
        let (owner, alive) = owned(&[page; 1024]);
        rig.fail(fails);
        let refused = client.map_sg(lend(owner), Direction::FromDevice);
        rig.fail(false);
        match refused.map(drop).unwrap_err() {
            DmaMapError::Direct(MapError::Invalidate(_)) => assert!(fails),
            DmaMapError::Direct(MapError::Install(why)) => {
                assert!(!fails && why.done == PageCount(512), "{why}");
            }
            other => panic!("{other}"),
        }
        match fails {
            true => assert!(lives(&alive), "P1: {GONE}"),
            false => assert!(!lives(&alive), "undone, and flushed"),
        }
    }
}

/// A part that cannot be filled is ended, and its frames are free.
#[test]
fn a_part_that_cannot_be_filled_leaves_nothing() {
    let rig = Rig::new(PolicyConfig::Strict);
    let page = rig.p.frame_alloc().unwrap().page().addr();
    let client = rig.client(Placement::SingleUse);
    let list = [
        PhysRange::page(page.page()),
        PhysRange::new(page, ByteCount(100)),
    ];
    let map = || client.map_sg(lend(list), Direction::ToDevice);
    client.unmap(map().unwrap()).unwrap(); // tables, and whatever is kept
    let used = rig.in_use();
    rig.p.no_copies.store(true, Relaxed);
    for _ in 0..3 {
        let refused = map();
        assert!(matches!(refused, Err(DmaMapError::NotMemory(_))));
    }
    assert_eq!(rig.in_use(), used, "P10: frames of maps that failed");
    let stats = rig.dma.domain().stats();
    assert_eq!(stats.live, PageCount(0), "mapped still");
}

/// One part cannot be copied back, and the next cannot be flushed: the latter decides.
#[test]
fn an_owner_outlives_parts_that_fail_in_different_ways() {
    let rig = Rig::new(PolicyConfig::Strict);
    let (_, list) = cases(&rig.p).pop().unwrap();
    let client = rig.client(Placement::SingleUse);
    let (owner, alive) = owned(&list);
    let mapping = client.map_sg(lend(owner), Direction::FromDevice).unwrap();
    // the first part's copy comes before its flush, which succeeds
    rig.p.no_copies.store(true, Relaxed);
    rig.fail_after(1);
    match client.unmap(mapping).map(drop).unwrap_err() {
        DmaUnmapError::Direct(UnmapError::Invalidate { .. }) => {}
        other => panic!("P1: {GONE}: {other}"),
    }
    assert!(lives(&alive), "P1: {GONE}");
}
