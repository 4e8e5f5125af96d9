// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Invalidation by CCMD and IOTLB, on a unit without a queue and on one whose queue is off or on.

use crate::unit::rig::*;
use ioatlas_dma::units::*;
use ioatlas_viommu::{config::*, observe::From};

const ICC: u64 = 1 << 63;
const IVT: u64 = 1 << 63;
const DRAIN: u64 = 3 << 48;
const GLOBAL: u64 = 1;
const BY_DOMAIN: u64 = 2;
const BY_DEVICE: u64 = 3;
const BY_PAGES: u64 = 3;

/// Asks, and returns what was granted once it is done.
fn contexts(rig: &Rig, granularity: u64, domain: u16, source: SourceId, mask: u64) -> u64 {
    let (domain, source) = (u64::from(domain), u64::from(source.0));
    let asked = granularity << 61 | mask << 32 | source << 16 | domain;
    rig.set64(reg::CCMD, ICC | asked);
    let now = rig.get64(reg::CCMD);
    assert_eq!(now & !(3 << 59), asked, "ICC drops, the rest stays");
    now >> 59 & 3
}

fn translations(rig: &Rig, granularity: u64, domain: u16, address: u64) -> u64 {
    rig.set64(reg::IVA, address);
    let asked = granularity << 60 | DRAIN | u64::from(domain) << 32;
    rig.set64(reg::IOTLB, IVT | asked);
    let now = rig.get64(reg::IOTLB);
    assert_eq!(now & !(3 << 57), asked, "IVT drops, the rest stays");
    now >> 57 & 3
}

#[test]
fn context_requests_name_all_a_domain_or_devices() {
    let neighbour = SourceId(DEVICE.0 | 1); // another function
    let cases = [
        (GLOBAL, 0, SourceId(0), 0, true),
        (BY_DOMAIN, DOMAIN, SourceId(0), 0, true),
        (BY_DOMAIN, DOMAIN + 1, SourceId(0), 0, false),
        (BY_DEVICE, DOMAIN, DEVICE, 0, true),
        (BY_DEVICE, DOMAIN + 1, DEVICE, 0, false),
        (BY_DEVICE, DOMAIN, neighbour, 0, false),
        (BY_DEVICE, DOMAIN, neighbour, 3, true),
    ];
    for (granularity, domain, source, mask, flushed) in cases {
        let rig = Rig::without_queue(|_| {});
        rig.map_here(0, 100);
        rig.map_here(1, 101);
        rig.read(0);
        let other = rig.frame();
        rig.map(other, 1, 201, RW);
        rig.attach(DEVICE, DOMAIN, other);
        let granted = contexts(&rig, granularity, domain, source, mask);
        assert_eq!(granted, granularity);
        // and the walk caches, which belong to the old tables
        translations(&rig, GLOBAL, 0, 0);
        let to = if flushed { 201 } else { 101 };
        assert_eq!(
            rig.get(1).0,
            Some(to),
            "{granularity} {domain} {source} {mask}"
        );
        rig.check();
    }
}

#[test]
fn iotlb_requests_name_all_a_domain_or_pages() {
    // page 6 is flushed by the first: pages 4 to 7
    let cases = [
        (GLOBAL, 0, 0, true),
        (BY_DOMAIN, DOMAIN, 0, true),
        (BY_DOMAIN, DOMAIN + 1, 0, false),
        (BY_PAGES, DOMAIN, 4 << 12 | 2, true),
        (BY_PAGES, DOMAIN, 4 << 12 | 1, false),
        (BY_PAGES, DOMAIN, 6 << 12, true),
        (BY_PAGES, DOMAIN, 5 << 12, false),
        (BY_PAGES, DOMAIN + 1, 6 << 12, false),
    ];
    for (granularity, domain, address, flushed) in cases {
        let rig = Rig::without_queue(|_| {});
        rig.map_here(6, 100);
        rig.read(6);
        rig.map_here(6, 200);
        assert_eq!(
            translations(&rig, granularity, domain, address),
            granularity
        );
        let to = if flushed { 200 } else { 100 };
        assert_eq!(
            rig.get(6).0,
            Some(to),
            "{granularity} {domain} {address:#x}"
        );
        rig.check();
    }
}

#[test]
fn the_leaf_hint_keeps_walk_caches() {
    for (hint, from) in [(1 << 6, From::WalkCache(2)), (0, From::Walk)] {
        let rig = Rig::without_queue(|_| {});
        rig.map_here(6, 100);
        rig.read(6);
        translations(&rig, BY_PAGES, DOMAIN, 6 << 12 | hint);
        assert_eq!(rig.get(6), (Some(100), from));
    }
}

#[test]
fn what_is_no_request_is_ignored_and_reported_as_0() {
    let rig = Rig::without_queue(|c| c.features.page_selective = Some(2));
    rig.map_here(6, 100);
    rig.read(6);
    assert_eq!(translations(&rig, GLOBAL, 0, 0), GLOBAL);
    rig.read(6);
    rig.map_here(6, 200);
    assert_eq!(translations(&rig, 0, DOMAIN, 0), 0, "reserved granularity");
    assert_eq!(translations(&rig, BY_PAGES, DOMAIN, 3), 0, "beyond MAMV");
    assert_eq!(contexts(&rig, 0, 0, SourceId(0), 0), 0);
    assert_eq!(rig.get(6), (Some(100), From::Iotlb));
    let stats = rig.unit.stats();
    assert_eq!(
        (stats.context_invalidations, stats.global_invalidations),
        (0, 1)
    );
}

#[test]
fn pages_are_done_for_the_domain_where_that_is_all_there_is() {
    let rig = Rig::without_queue(|c| c.features.page_selective = None);
    rig.map_here(6, 100);
    rig.read(6);
    assert_eq!(translations(&rig, BY_PAGES, DOMAIN, 1 << 12), BY_DOMAIN);
    assert_eq!(rig.get(6).1, From::Walk, "page 6 too");
}

#[test]
fn a_request_triggers_by_its_high_half() {
    let rig = Rig::without_queue(|_| {});
    rig.set32(reg::IOTLB, u32::MAX);
    rig.set32(reg::IOTLB + 4, 1 << 28); // granularity without IVT
    rig.set32(reg::CCMD, 0);
    rig.set32(reg::CCMD + 4, 1 << 29);
    assert_eq!(rig.unit.stats().global_invalidations, 0);
    rig.set32(reg::IOTLB + 4, 1 << 31 | 1 << 28);
    rig.set32(reg::CCMD + 4, 1 << 31 | 1 << 29);
    let stats = rig.unit.stats();
    assert_eq!(
        (stats.global_invalidations, stats.context_invalidations),
        (1, 1)
    );
    // what was granted is read only
    rig.set32(reg::IOTLB + 4, 0);
    rig.set32(reg::CCMD + 4, 0);
    assert_eq!(rig.get64(reg::IOTLB) >> 57 & 3, GLOBAL);
    assert_eq!(rig.get64(reg::CCMD) >> 59 & 3, GLOBAL);
}

#[test]
fn an_iotlb_request_is_done_when_what_it_drains_has_ended() {
    let rig = Rig::without_queue(|_| {});
    rig.map_here(0, 100);
    let walk = rig.begin(0);
    let ask = IVT | GLOBAL << 60;
    rig.set64(reg::IOTLB, ask | DRAIN);
    let busy = || rig.get64(reg::IOTLB) & IVT != 0;
    assert!(busy());
    rig.check();
    let drained = rig.unit.stats().drained;
    rig.set64(reg::IOTLB, ask); // it is not to be asked again
    assert!(busy());
    walk.finish();
    assert!(!busy());
    assert_eq!((drained, rig.unit.stats().global_invalidations), (1, 1));
    assert_eq!(rig.get(0).1, From::Walk, "it filled nothing");
    rig.check();

    let walk = rig.begin(0);
    rig.set64(reg::IOTLB, ask);
    assert!(!busy(), "no drain asked for");
    drop(walk);
    rig.check();
}

#[test]
fn while_the_queue_is_on_requests_are_never_done() {
    let rig = Rig::toy();
    rig.map_here(0, 100);
    rig.read(0);
    rig.set64(reg::CCMD, ICC | GLOBAL << 61);
    rig.set64(reg::IOTLB, IVT | GLOBAL << 60 | DRAIN);
    rig.send(&[wait(rig.status << 12, 1)]);
    assert_eq!(rig.get64(reg::CCMD), ICC | GLOBAL << 61);
    assert_eq!(rig.get64(reg::IOTLB), IVT | GLOBAL << 60 | DRAIN);
    assert_eq!(rig.get(0).1, From::Iotlb);

    rig.set32(reg::GCMD, 1 << 31); // off
    rig.set32(reg::CCMD, 0); // the command bits are 1 still, but not written
    rig.set32(reg::IOTLB, 0);
    assert_eq!(rig.unit.stats().context_invalidations, 0);
    assert_eq!(rig.get(0).1, From::Iotlb);
    assert_eq!(contexts(&rig, GLOBAL, 0, SourceId(0), 0), GLOBAL);
    assert_eq!(translations(&rig, GLOBAL, 0, 0), GLOBAL);
    assert_eq!(rig.get(0).1, From::Walk);
}

#[test]
fn the_queue_waits_for_a_request_that_drains() {
    let rig = Rig::toy();
    rig.set32(reg::GCMD, 1 << 31);
    rig.set64(reg::IQT, 0);
    let walk = rig.begin(0);
    rig.set64(reg::IOTLB, IVT | GLOBAL << 60 | DRAIN);
    rig.set32(reg::GCMD, 1 << 31 | 1 << 26);
    rig.send(&[wait(rig.status << 12, 1)]);
    assert_eq!((rig.head(), rig.peek(rig.status, 0)), (0, 0));
    rig.check();
    drop(walk);
    assert_eq!((rig.head(), rig.peek(rig.status, 0)), (1, 1));
    assert_eq!(rig.get64(reg::IOTLB) & IVT, 0);
    rig.check();
}

#[test]
fn a_request_after_a_root_that_drains_has_its_turn() {
    let rig = Rig::without_queue(|c| c.registers.root_pointer = RootPointer::LatchesAndFlushes);
    let walk = rig.begin(0);
    rig.set32(reg::GCMD, 3 << 30);
    rig.set64(
        reg::IOTLB,
        IVT | BY_DOMAIN << 60 | DRAIN | u64::from(DOMAIN) << 32,
    );
    assert_eq!(rig.get64(reg::IOTLB) & IVT, IVT);
    assert_eq!(rig.unit.stats().domain_invalidations, 0);
    rig.check();
    drop(walk);
    assert_eq!(rig.get64(reg::IOTLB) & IVT, 0);
    assert_eq!(rig.get32(reg::GSTS), 3 << 30);
    assert_eq!(rig.unit.stats().domain_invalidations, 1);
}
