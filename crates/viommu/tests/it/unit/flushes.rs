// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A stale entry is served until the right flush, and only the right flush removes it.

use crate::unit::rig::*;
use ioatlas_dma::units::*;
use ioatlas_viommu::{config::*, observe::From, unit::Injection};

/// Pages 0, 1, 4 and 16 cached, then all moved from 100 + page to 200 + page, tables new too.
fn stale() -> Rig {
    let rig = Rig::toy();
    for page in [0, 1, 4, 16] {
        rig.map_here(page, 100 + page);
        assert_eq!(rig.get(page).0, Some(100 + page));
    }
    for index in 0..4 {
        rig.poke(rig.root, index, 0);
    }
    for page in [0, 1, 4, 16] {
        rig.map_here(page, 200 + page);
        assert_eq!(
            rig.get(page),
            (Some(100 + page), From::Iotlb),
            "not flushed yet"
        );
    }
    rig
}

fn targets(rig: &Rig) -> [Option<u64>; 4] {
    rig.check();
    [0, 1, 4, 16].map(|page| rig.get(page).0)
}

#[test]
fn a_domain_flush_removes_all_of_its_entries() {
    let rig = stale();
    rig.send(&[flush_domain(DOMAIN)]);
    assert_eq!(targets(&rig), [200, 201, 204, 216].map(Some));
    assert_eq!(rig.unit.stats().domain_invalidations, 1);
}

#[test]
fn a_global_flush_does_too() {
    let rig = stale();
    rig.send(&[[0xd2, 0]]);
    assert_eq!(targets(&rig), [200, 201, 204, 216].map(Some));
    assert_eq!(rig.unit.stats().global_invalidations, 1);
}

#[test]
fn a_flush_of_another_domain_removes_nothing() {
    let rig = stale();
    rig.send(&[flush_domain(DOMAIN + 1), flush_pages(DOMAIN + 1, 0, 6, 0)]);
    assert_eq!(targets(&rig), [100, 101, 104, 116].map(Some));
}

#[test]
fn a_page_flush_leaves_other_pages() {
    let rig = stale();
    rig.send(&[flush_pages(DOMAIN, 1, 0, 0)]);
    assert_eq!(targets(&rig), [100, 201, 104, 116].map(Some));
    rig.send(&[flush_pages(DOMAIN, 4, 2, 0)]);
    assert_eq!(targets(&rig), [100, 201, 204, 116].map(Some));
    assert_eq!(rig.unit.stats().page_invalidations, 2);
}

#[test]
fn a_leaf_only_flush_leaves_pointers_to_old_tables() {
    let rig = stale();
    rig.send(&[flush_pages(DOMAIN, 0, 6, 1)]);
    // the old tables still say the old pages, and walk caches still lead there
    assert_eq!(targets(&rig), [100, 101, 104, 116].map(Some));
    assert_eq!(rig.unit.stats().leaf_invalidations, 1);
    rig.send(&[flush_pages(DOMAIN, 0, 6, 0)]);
    assert_eq!(targets(&rig), [200, 201, 204, 216].map(Some));
}

#[test]
fn walk_caches_are_flushed_above_the_named_page_and_elsewhere_kept() {
    let rig = Rig::toy();
    for page in [0, 16] {
        rig.map_here(page, 100 + page);
        rig.read(page);
    }
    let table = |page: u64| PhysPage(rig.peek(rig.root, page as usize / 16) >> 12);
    let (first, second) = (table(0), table(16));
    assert!(rig.unit.holds_pointer_to(first) && rig.unit.holds_pointer_to(second));
    rig.send(&[flush_pages(DOMAIN, 3, 0, 0)]); // below the first, though not a page that was used
    assert!(!rig.unit.holds_pointer_to(first) && rig.unit.holds_pointer_to(second));
    rig.send(&[flush_domain(DOMAIN)]);
    assert!(!rig.unit.holds_pointer_to(second));
}

#[test]
fn moving_a_device_takes_the_context_flush_of_that_device() {
    let rig = Rig::toy();
    let root = rig.frame();
    rig.map_here(0, 100);
    rig.map(root, 0, 200, RW);
    rig.read(0);
    rig.attach(DEVICE, DOMAIN + 1, root);
    let go = |descriptor| {
        rig.send(&[descriptor]);
        rig.get(0).0
    };
    assert_eq!(
        go(flush_domain(DOMAIN)),
        Some(100),
        "contexts are another cache"
    );
    assert_eq!(
        go(flush_context(DOMAIN, SourceId(0x0311))),
        Some(100),
        "another function"
    );
    assert_eq!(
        go(flush_context(DOMAIN + 1, DEVICE)),
        Some(100),
        "the new domain's id"
    );
    assert!(
        rig.unit.holds_pointer_to(PhysPage(rig.root)),
        "by the context entry"
    );
    assert_eq!(go(flush_context(DOMAIN, DEVICE)), Some(200));
    assert!(!rig.unit.holds_pointer_to(PhysPage(rig.root)));
    assert_eq!(rig.unit.stats().context_invalidations, 3);
}

#[test]
fn context_flushes_of_functions_domains_and_everything() {
    for descriptor in [
        [0x0317_0005_0031 | 3 << 48, 0], // functions 0 to 7 of device 03:02
        [0x0005_0021, 0],
        [0x11, 0],
    ] {
        let rig = Rig::toy();
        fault(&rig.read(0));
        assert_eq!(rig.unit.audit().unwrap().contexts, 1);
        rig.send(&[descriptor]);
        assert_eq!(rig.unit.audit().unwrap().contexts, 0, "{descriptor:x?}");
    }
}

#[test]
fn a_flush_wider_than_the_iotlb_has_sets() {
    let mut config = UnitConfig::new(TOY);
    config.caches.iotlb = SetGeometry {
        entries: 6,
        ways: 2,
    };
    let rig = Rig::new(&config);
    for page in [0, 1, 2, 62] {
        rig.map_here(page, 100 + page);
        rig.read(page);
    }
    rig.send(&[flush_pages(DOMAIN, 0, 5, 1)]);
    let held = |page| {
        rig.unit
            .iotlb_holds(DomainId(DOMAIN), IovaPage(page))
            .is_some()
    };
    assert_eq!([0, 1, 2, 62].map(held), [false, false, false, true]);
}

#[test]
fn an_injected_erratum_leaves_entries_behind_once() {
    let rig = stale();
    rig.unit.inject(Injection::LeaveTranslations(1));
    rig.send(&[flush_pages(DOMAIN, 1, 0, 1)]);
    assert_eq!(rig.get(1), (Some(101), From::Iotlb));
    rig.send(&[flush_pages(DOMAIN, 1, 0, 0)]);
    assert_eq!(rig.get(1).0, Some(201));

    let rig = stale();
    rig.unit.inject(Injection::LeaveWalkEntries(1));
    rig.send(&[flush_domain(DOMAIN)]);
    assert_eq!(rig.unit.audit().unwrap().walk_entries, 1);
    assert_eq!(rig.unit.audit().unwrap().translations, 0);
}
