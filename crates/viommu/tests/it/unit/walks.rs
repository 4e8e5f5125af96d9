// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Translation: levels, caches, reading ahead, eviction.

use crate::unit::rig::*;
use ioatlas_dma::units::*;
use ioatlas_viommu::{
    config::*,
    observe::{From, Outcome, PassThrough},
    walk::Step,
};
use ioatlas_vtd::registers::{self as offset, Registers};
use proptest::prelude::*;
use std::{collections::BTreeMap, num::NonZeroU32};

fn config(geometry: Geometry, change: impl FnOnce(&mut UnitConfig)) -> UnitConfig {
    let mut config = UnitConfig::new(geometry);
    change(&mut config);
    config
}

#[test]
fn a_walk_of_four_levels_then_the_iotlb() {
    let rig = Rig::new(&UnitConfig::new(Geometry::VTD_48));
    let page = 0x8_1234_5678; // another index at each level
    rig.map_here(page, 0xabcd);
    let first = rig.read(page);
    assert_eq!(
        (target(&first), first.from, first.reads),
        (Some(0xabcd), From::Walk, 2 + 4)
    );
    let again = rig.read(page);
    assert_eq!(
        (target(&again), again.from, again.reads),
        (Some(0xabcd), From::Iotlb, 0)
    );
    rig.check();
}

#[test]
fn a_neighbour_starts_at_the_entry_nearest_the_leaf() {
    let rig = Rig::toy();
    for page in [0, 1, 4, 16] {
        rig.map_here(page, 100 + page);
    }
    assert_eq!(rig.get(0), (Some(100), From::Walk));
    let near = rig.read(1);
    assert_eq!(
        (near.from, near.reads),
        (From::WalkCache(2), 1),
        "same leaf table"
    );
    let cousin = rig.read(4);
    assert_eq!((cousin.from, cousin.reads), (From::WalkCache(3), 2));
    let far = rig.read(16);
    assert_eq!(
        (far.from, far.reads),
        (From::Walk, 3),
        "the context is cached"
    );
    rig.check();
}

#[test]
fn the_small_toy_and_disabled_caches_translate_too() {
    let small = Geometry {
        levels: 2,
        entries_lg2: 1,
    };
    let none = config(small, |c| {
        c.caches.context = 0;
        c.caches.iotlb.entries = 0;
        c.caches.walk.clear();
    });
    let rig = Rig::new(&none);
    rig.map_here(3, 7);
    for _ in 0..3 {
        let access = rig.read(3);
        assert_eq!(
            (target(&access), access.from, access.reads),
            (Some(7), From::Walk, 4)
        );
    }
    let census = rig.unit.audit().unwrap();
    assert_eq!(
        (census.contexts, census.translations, census.walk_entries),
        (0, 0, 0)
    );
}

#[test]
fn each_step_reads_one_entry() {
    let rig = Rig::toy();
    rig.map_here(9, 7);
    let mut access = rig.begin(9);
    let mut steps = 1;
    while access.step() == Step::Reading {
        steps += 1;
    }
    assert_eq!(steps, 2 + 3);
    assert_eq!(access.step(), Step::Ready, "more steps change nothing");
    assert_eq!(access.finish().reads, 5);
}

#[test]
fn a_full_set_displaces_the_least_recently_used() {
    let rig = Rig::new(&config(TOY, |c| {
        c.caches.iotlb = SetGeometry {
            entries: 8,
            ways: 2,
        }
    }));
    for page in [1, 5, 9] {
        rig.map_here(page, page + 100); // all of set 1
    }
    rig.read(1);
    rig.read(5);
    rig.read(1);
    rig.read(9); // displaces 5
    assert_eq!(rig.get(1).1, From::Iotlb);
    assert_ne!(rig.get(5).1, From::Iotlb);
    assert_eq!(rig.unit.stats().displaced, 2, "5, then 9");
}

#[test]
fn reading_ahead_stays_within_the_table_and_skips_what_is_absent() {
    let rig = Rig::new(&config(TOY, |c| c.caches.prefetch = 3));
    for page in [1, 3, 4] {
        rig.map_here(page, page + 100);
    }
    let access = rig.read(1);
    assert_eq!(access.reads, 2 + 3 + 2, "pages 2 and 3 too");
    let held = |page| rig.unit.iotlb_holds(DomainId(DOMAIN), IovaPage(page));
    assert_eq!(held(3), Some((PhysPage(103), Perm::ReadWrite)));
    assert_eq!((held(2), held(4)), (None, None));
    assert_eq!(rig.unit.stats().prefetch_reads, 2);
    assert_eq!(rig.unit.take_faults().records, [], "page 2 is no fault");
}

#[test]
fn eviction_at_random_only_costs_and_repeats_from_its_seed() {
    let run = |seed| {
        let rig = Rig::new(&config(TOY, |c| {
            c.caches.eviction = NonZeroU32::new(2).map(|one_in| Eviction { seed, one_in })
        }));
        for page in 0..16 {
            rig.map_here(page, page + 100);
        }
        for n in 0..200 {
            assert_eq!(rig.get(n % 16).0, Some(n % 16 + 100));
        }
        rig.check();
        rig.unit.stats()
    };
    let stats = run(1);
    assert!(stats.evicted > 0 && stats.iotlb_misses > 16, "{stats:?}");
    assert_eq!(run(1), stats);
}

#[test]
fn without_translation_everything_passes_and_says_so() {
    let rig = Rig::toy();
    rig.unit.write32(offset::GCMD, 1 << 26);
    let outcome = rig.write(42).outcome;
    let why = PassThrough::TranslationDisabled;
    assert_eq!(
        outcome,
        Outcome::PassedThrough {
            page: PhysPage(42),
            why
        }
    );
    assert_eq!(rig.unit.stats().passed_through, 1);
}

#[test]
fn a_pass_through_context_where_offered() {
    let rig = Rig::new(&config(TOY, |c| c.features.pass_through = true));
    let at = usize::from(DEVICE.0 & 0xff) * 2;
    rig.poke(rig.context_table, at, 2 << 2 | 1);
    let why = PassThrough::Context;
    let page = PhysPage(999);
    assert_eq!(rig.read(999).outcome, Outcome::PassedThrough { page, why });
}

#[test]
fn domains_do_not_serve_each_other() {
    let rig = Rig::toy();
    let other = SourceId(0x0318);
    let root = rig.frame();
    rig.attach(other, DOMAIN + 1, root);
    rig.map_here(6, 100);
    rig.map(root, 6, 200, RW);
    for _ in 0..2 {
        assert_eq!(rig.get(6).0, Some(100));
        let access = rig.unit.access(other, IovaPage(6), AccessKind::Read);
        assert_eq!(target(&access), Some(200));
    }
}

proptest! {
    /// Whatever the caches and the seed, a unit that is flushed after each change translates as a
    /// map would.
    #[test]
    fn flushed_after_each_change_it_is_a_map(
        (sets, ways, walk, prefetch, seed) in (0..4usize, 1..3usize, 0..3usize, 0..3u32, any::<u64>()),
        ops in prop::collection::vec((0..64u64, 0..4u64, any::<bool>()), 1..60),
    ) {
        let rig = Rig::new(&config(TOY, |c| {
            c.caches.iotlb = SetGeometry { entries: sets * ways, ways };
            c.caches.walk = vec![walk; 2];
            c.caches.prefetch = prefetch;
            c.caches.eviction = NonZeroU32::new(5).map(|one_in| Eviction { seed, one_in });
        }));
        let mut model = BTreeMap::new();
        for (n, (page, rights, write)) in (100..).zip(ops) {
            rig.map_here(page, n);
            rig.map(rig.root, page, n, rights);
            model.insert(page, (n, rights));
            rig.send(&[flush_pages(DOMAIN, page, 0, 1)]);
            for probe in [page, page ^ 1, (page + 1) % 64, page / 2] {
                let need = if write { WRITE } else { READ };
                let want = model.get(&probe).filter(|m| m.1 & need != 0).map(|m| m.0);
                let access = if write { rig.write(probe) } else { rig.read(probe) };
                prop_assert_eq!(target(&access), want);
            }
            prop_assert!(rig.unit.audit().is_ok());
        }
    }
}
