// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Leaves above level 1: what they translate, which of their bits are reserved, how long they are
//! served.

use crate::unit::rig::*;
use ioatlas_dma::units::*;
use ioatlas_viommu::{
    config::*,
    fault::FaultReason,
    observe::{From, Outcome},
    unit::Injection,
};
use ioatlas_vtd::registers::{self as offset, Registers};
use proptest::prelude::*;
use std::{collections::BTreeMap, num::NonZeroU32};

fn offered(geometry: Geometry, largest_leaf: u32) -> UnitConfig {
    let mut config = UnitConfig::new(geometry);
    config.features.largest_leaf = largest_leaf;
    config
}

/// A toy with leaves of 1, 4 and 16 pages.
fn toy() -> Rig {
    Rig::new(&offered(TOY, 3))
}

fn covers(rig: &Rig, page: u64) -> u64 {
    match rig.read(page).outcome {
        Outcome::Translated { leaf, .. } => leaf.0,
        other => panic!("{other}"),
    }
}

#[test]
fn every_page_of_a_leaf_of_every_size_and_width() {
    for geometry in [Geometry::VTD_39, Geometry::VTD_48, Geometry::VTD_57] {
        for level in [2, 3] {
            let rig = Rig::new(&offered(geometry, 3));
            let pages = 1 << (9 * (level - 1));
            let (first, to) = (5 * pages, 9 * pages);
            rig.map_large(first, level, to, RW);
            let walk = rig.read(first + 3);
            let expected = (Some(to + 3), geometry.levels + 3 - level);
            assert_eq!(
                (target(&walk), walk.reads),
                expected,
                "{geometry:?} L{level}"
            );
            for offset in [0, 1, pages / 2 + 7, pages - 1] {
                assert_eq!(rig.get(first + offset), (Some(to + offset), From::Iotlb));
            }
            assert_eq!(covers(&rig, first), pages);
            assert_eq!(
                (rig.get(first - 1).0, rig.get(first + pages).0),
                (None, None)
            );
            assert_eq!(rig.unit.stats().large_hits, 5);
            rig.check();
        }
    }
}

#[test]
fn capabilities_say_which_sizes_there_are() {
    for (largest, sllps) in [(1, 0b00), (2, 0b01), (3, 0b11)] {
        let rig = Rig::new(&offered(Geometry::VTD_48, largest));
        assert_eq!(rig.unit.read64(offset::CAP) >> 34 & 0xf, sllps);
    }
}

#[test]
fn the_size_bit_is_reserved_where_that_size_is_not_offered() {
    for (largest, level) in [(1, 2), (1, 3), (2, 3)] {
        let rig = Rig::new(&offered(Geometry::VTD_48, largest));
        rig.map_large(0, level, 0, RW);
        assert_eq!(fault(&rig.read(0)), FaultReason::EntryReserved { level });
    }
    let rig = Rig::new(&offered(Geometry::VTD_48, 3));
    rig.map_large(0, 4, 0, RW);
    let reserved = FaultReason::EntryReserved { level: 4 };
    assert_eq!(fault(&rig.read(0)), reserved, "no leaves of 512 GiB");
    assert_eq!(fault(&rig.read(0)).code(), 0xc);
}

#[test]
fn a_leaf_that_is_not_aligned_to_its_size_faults() {
    let rig = toy();
    rig.map_large(4, 2, 8 + 1, RW);
    rig.map_large(16, 3, 16 + 4, RW);
    for (page, level) in [(4, 2), (7, 2), (16, 3), (31, 3)] {
        assert_eq!(fault(&rig.read(page)), FaultReason::EntryReserved { level });
    }
    assert_eq!(
        rig.unit.audit().unwrap().translations,
        0,
        "nothing is kept of it"
    );
}

#[test]
fn rights_narrow_down_to_a_large_leaf() {
    let rig = toy();
    rig.map_large(4, 2, 100, READ);
    assert_eq!(target(&rig.write(5)), None);
    assert_eq!(rig.get(5).0, Some(101));
    let kind = AccessKind::Write;
    assert_eq!(fault(&rig.write(6)), FaultReason::NotPermitted { kind });
    let above = rig.entry(rig.root, 4, 3);
    rig.poke(above.0, above.1, rig.peek(above.0, above.1) & !READ);
    rig.send(&[flush_domain(DOMAIN)]);
    assert_eq!(rig.get(5).0, None, "neither right is left");
}

#[test]
fn a_stale_leaf_serves_all_its_pages_until_any_of_them_is_flushed() {
    for (flush, goes) in [
        (flush_pages(DOMAIN, 15, 0, 1), false),
        (flush_pages(DOMAIN, 32, 4, 0), false),
        (flush_pages(DOMAIN + 1, 16, 4, 0), false),
        (flush_pages(DOMAIN, 16, 0, 1), true),
        (flush_pages(DOMAIN, 31, 0, 1), true),
        (flush_pages(DOMAIN, 22, 1, 0), true),
        (flush_pages(DOMAIN, 0, 6, 1), true),
        (flush_domain(DOMAIN), true),
        ([0xd2, 0], true),
    ] {
        let rig = toy();
        let (table, index) = rig.map_large(16, 3, 160, RW);
        rig.read(20);
        rig.poke(table, index, 0);
        for page in 16..32 {
            assert_eq!(rig.get(page), (Some(page + 144), From::Iotlb), "stale");
        }
        rig.send(&[flush]);
        for page in 16..32 {
            let expected = if goes { None } else { Some(page + 144) };
            assert_eq!(rig.get(page).0, expected, "{flush:x?}");
        }
        rig.check();
    }
}

#[test]
fn a_leaf_in_an_emptied_tables_place_hides_behind_the_walk_cache() {
    let rig = toy();
    rig.map_here(4, 100);
    rig.read(4);
    let (table, index) = rig.entry(rig.root, 4, 1);
    rig.poke(table, index, 0);
    rig.map_large(4, 2, 200, RW);
    rig.send(&[flush_pages(DOMAIN, 4, 2, 1)]);
    assert_eq!(rig.get(4).0, None, "the old table is still read (P14)");
    rig.send(&[flush_pages(DOMAIN, 4, 2, 0)]);
    assert_eq!(rig.get(4).0, Some(200));
}

#[test]
fn an_access_by_a_large_leaf_is_drained_whichever_of_its_pages_is_flushed() {
    for cached in [false, true] {
        for page in [4, 7] {
            let rig = toy();
            let (table, index) = rig.map_large(4, 2, 100, RW);
            if cached {
                rig.read(6);
            }
            let mut walk = rig.begin(5);
            walk.run();
            rig.poke(table, index, 0);
            rig.send(&[flush_pages(DOMAIN, page, 0, 1), wait(rig.status << 12, 7)]);
            assert_eq!(rig.peek(rig.status, 0), 0, "its data may still move");
            assert_eq!(target(&walk.finish()), Some(101));
            assert_eq!(rig.peek(rig.status, 0), 7);
            assert_eq!(rig.get(5).0, None);
            rig.check();
        }
    }
}

#[test]
fn a_walk_that_may_be_about_to_read_a_large_leaf_is_drained_too() {
    for steps in 0..4 {
        let rig = toy();
        let (table, index) = rig.map_large(4, 2, 100, RW);
        let mut walk = rig.begin(5);
        (0..steps).for_each(|_| {
            walk.step();
        });
        rig.send(&[flush_pages(DOMAIN, 7, 0, 1)]);
        assert_eq!(rig.unit.stats().drained, 1, "after {steps} steps");
        walk.finish();
        rig.poke(table, index, 0);
        assert_eq!(rig.get(7).0, None, "the marked walk filled nothing");
    }
    // where there are no large leaves, another page is another matter
    let rig = Rig::toy();
    rig.map_here(5, 100);
    let mut walk = rig.begin(5);
    walk.step();
    walk.step();
    rig.send(&[flush_pages(DOMAIN, 7, 0, 1)]);
    assert_eq!(rig.unit.stats().drained, 0);
    drop(walk);
}

#[test]
fn each_size_has_its_own_room() {
    let mut config = offered(TOY, 3);
    config.caches.large = vec![1, 0];
    let rig = Rig::new(&config);
    rig.map_large(4, 2, 100, RW);
    rig.map_large(8, 2, 200, RW);
    rig.map_large(16, 3, 160, RW);
    rig.map_here(0, 7);
    for page in [4, 8, 0, 16, 17] {
        rig.read(page);
    }
    assert_eq!(rig.unit.stats().displaced, 1, "8 took the place of 4");
    let from = [9, 0, 18, 5].map(|page| rig.get(page).1);
    let expected = [From::Iotlb, From::Iotlb, From::Walk, From::WalkCache(3)];
    assert_eq!(from, expected, "16 has no room");
    assert_eq!(rig.unit.audit().unwrap().large_leaves, 1);
}

#[test]
fn an_erratum_leaves_a_large_leaf_behind() {
    let rig = toy();
    let (table, index) = rig.map_large(4, 2, 100, RW);
    rig.read(4);
    rig.poke(table, index, 0);
    rig.unit.inject(Injection::LeaveTranslations(1));
    rig.send(&[flush_domain(DOMAIN)]);
    assert_eq!(rig.get(7), (Some(103), From::Iotlb));
    rig.send(&[flush_domain(DOMAIN)]);
    assert_eq!(rig.get(7).0, None);
}

proptest! {
    /// Whatever the caches, a unit flushed after each change translates leaves of all sizes as a
    /// map of pages would.
    #[test]
    fn flushed_after_each_change_it_is_a_map(
        (large, small, prefetch, seed) in (0..3usize, 0..5usize, 0..3u32, any::<u64>()),
        ops in prop::collection::vec((0..64u64, 1..4u32, 0..4u64, any::<bool>()), 1..28),
    ) {
        let mut config = offered(TOY, 3);
        config.caches.large = vec![large; 2];
        config.caches.iotlb = SetGeometry { entries: small, ways: 1 };
        config.caches.prefetch = prefetch;
        config.caches.eviction = NonZeroU32::new(4).map(|one_in| Eviction { seed, one_in });
        let rig = Rig::new(&config);
        let mut model = BTreeMap::new();
        for (n, (page, level, rights, caching)) in (1..).zip(ops) {
            let pages = 1 << (2 * (level - 1));
            let first = page & !(pages - 1);
            // whatever larger leaf is there goes first, then what lies below
            for above in (level + 1..=3).rev() {
                let (table, index) = rig.entry(rig.root, page, above);
                if rig.peek(table, index) & SIZE != 0 {
                    rig.poke(table, index, 0);
                    let span = 1 << (2 * (above - 1));
                    let gone = page & !(span - 1);
                    (gone..gone + span).for_each(|p| { model.remove(&p); });
                }
            }
            let to = n << 6;
            if level == 1 {
                rig.map(rig.root, page, to, rights);
            } else {
                rig.map_large(page, level, to, rights);
            }
            for p in first..first + pages {
                model.insert(p, (to + p - first, rights));
            }
            let mask = 2 * (u64::from(level) - 1);
            rig.send(&[flush_pages(DOMAIN, first, mask.max(4), 0)]);
            for probe in [page, first, first + pages - 1, (page + 5) % 64] {
                let need = if caching { WRITE } else { READ };
                let want = model.get(&probe).filter(|m| m.1 & need != 0).map(|m| m.0);
                let access = if caching { rig.write(probe) } else { rig.read(probe) };
                prop_assert_eq!(target(&access), want, "page {}", probe);
            }
            prop_assert!(rig.unit.audit().is_ok());
        }
    }
}
