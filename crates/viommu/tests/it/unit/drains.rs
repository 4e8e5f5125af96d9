// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Walks that an invalidation overtakes, stepped by hand.

use crate::unit::rig::*;
use ioatlas_dma::{
    platform::{Ordering, Platform},
    units::*,
};
use ioatlas_host::Host;
use ioatlas_viommu::{
    config::*,
    observe::From,
    unit::Injection,
    walk::{InFlight, Step},
};
use std::sync::OnceLock;

const STATUS: u32 = 0xfeed;

type Walk<'r> = InFlight<'r, Host, Host>;

/// A read of page 9 that has read its leaf; then the leaf is cleared.
fn overtaken(rig: &Rig) -> Walk<'_> {
    let (table, index) = rig.map_here(9, 100);
    let mut walk = rig.begin(9);
    walk.run();
    rig.poke(table, index, 0);
    walk
}

fn signalled(rig: &Rig) -> bool {
    rig.peek(rig.status, 0) as u32 == STATUS
}

fn flush_and_wait(rig: &Rig, flush: [u64; 2]) {
    rig.send(&[flush, wait(rig.status << 12, STATUS)]);
}

#[test]
fn the_wait_comes_after_the_access_that_was_in_flight() {
    for flush in [
        flush_domain(DOMAIN),
        flush_pages(DOMAIN, 9, 0, 1),
        flush_pages(DOMAIN, 8, 2, 0),
    ] {
        let rig = Rig::toy();
        let walk = overtaken(&rig);
        flush_and_wait(&rig, flush);
        assert!(!signalled(&rig), "its data may still move");
        assert_eq!((rig.head(), rig.unit.stats().drained), (0, 1));
        rig.check();
        assert_eq!(target(&walk.finish()), Some(100));
        assert!(
            signalled(&rig),
            "the access that finished went on with the queue"
        );
        assert_eq!(rig.get(9).0, None);
        rig.check();
    }
}

#[test]
fn an_access_that_hit_the_iotlb_is_in_flight_too() {
    let rig = Rig::toy();
    rig.map_here(9, 100);
    rig.read(9);
    let hit = rig.begin(9);
    assert_eq!(hit.next(), Step::Ready);
    flush_and_wait(&rig, flush_pages(DOMAIN, 9, 0, 1));
    assert!(!signalled(&rig));
    assert_eq!(hit.finish().from, From::Iotlb);
    assert!(signalled(&rig));
}

#[test]
fn a_marked_walk_fills_nothing() {
    let rig = Rig::toy();
    let (table, index) = rig.map_here(9, 100);
    let mut walk = rig.begin(9);
    walk.step(); // root entry
    walk.step(); // context entry
    flush_and_wait(&rig, flush_domain(DOMAIN));
    let access = walk.finish();
    rig.poke(table, index, 0);
    assert_eq!(target(&access), Some(100));
    let census = rig.unit.audit().unwrap();
    assert_eq!((census.translations, census.walk_entries), (0, 0));
    assert_eq!(rig.unit.stats().fills_dropped, 3);
    assert_eq!(rig.get(9).0, None);
}

#[test]
fn without_drain_bits_nothing_waits_and_the_overlooked_walk_fills_what_it_read() {
    let rig = Rig::toy();
    let (table, index) = rig.map_here(9, 100);
    let mut walk = rig.begin(9);
    walk.step();
    flush_and_wait(&rig, undrained(flush_domain(DOMAIN)));
    assert!(signalled(&rig));
    let access = walk.finish();
    rig.poke(table, index, 0);
    assert_eq!(target(&access), Some(100));
    assert_eq!(
        rig.get(9),
        (Some(100), From::Iotlb),
        "stale: the driver's bug shows"
    );
}

#[test]
fn reads_and_writes_are_drained_apart() {
    for (bits, read_blocks) in [(0x80, true), (0x40, false)] {
        let rig = Rig::toy();
        let walk = overtaken(&rig);
        let [low, high] = undrained(flush_domain(DOMAIN));
        flush_and_wait(&rig, [low | bits, high]);
        assert_eq!(signalled(&rig), !read_blocks);
        walk.finish();
        assert!(signalled(&rig));
    }
}

#[test]
fn accesses_that_it_does_not_concern_are_not_waited_for() {
    let rig = Rig::toy();
    let walk = overtaken(&rig);
    flush_and_wait(&rig, flush_domain(DOMAIN + 1));
    assert!(signalled(&rig), "another domain");
    rig.poke(rig.status, 0, 0);
    flush_and_wait(&rig, flush_pages(DOMAIN, 8, 0, 0));
    assert!(
        signalled(&rig),
        "another page, and no table is held any more"
    );
    walk.finish();
}

#[test]
fn a_walk_that_holds_a_table_above_the_pages_is_waited_for_unless_leaves_only() {
    for (hint, waits) in [(0, true), (1, false)] {
        let rig = Rig::toy();
        rig.map_here(9, 100);
        let mut walk = rig.begin(9);
        for _ in 0..4 {
            walk.step(); // holds the leaf table of pages 8 to 11
        }
        let leaf_table = PhysPage(rig.peek(rig.peek(rig.root, 0) >> 12, 2) >> 12);
        assert!(rig.unit.holds_pointer_to(leaf_table));
        flush_and_wait(&rig, flush_pages(DOMAIN, 10, 0, hint));
        assert_eq!(!signalled(&rig), waits);
        walk.finish();
        assert!(signalled(&rig));
        assert_eq!(
            rig.unit.holds_pointer_to(leaf_table),
            !waits,
            "by a walk cache"
        );
    }
}

#[test]
fn a_walk_whose_domain_is_not_known_yet_may_be_of_any() {
    let rig = Rig::toy();
    rig.map_here(9, 100);
    let walk = rig.begin(9);
    assert!(rig.unit.holds_pointer_to(PhysPage(rig.root_table)));
    flush_and_wait(&rig, flush_domain(77));
    assert!(!signalled(&rig));
    drop(walk);
    assert!(signalled(&rig), "given up is out of flight too");
    assert_eq!((rig.unit.in_flight(), rig.unit.stats().aborted), (0, 1));
}

#[test]
fn a_context_flush_keeps_a_walk_from_caching_what_it_read() {
    let rig = Rig::toy();
    let root = rig.frame();
    rig.map_here(9, 100);
    rig.map(root, 9, 200, RW);
    let mut walk = rig.begin(9);
    walk.step(); // the root entry; the context entry is read below
    rig.attach(DEVICE, DOMAIN + 1, root);
    rig.send(&[flush_context(DOMAIN, DEVICE)]);
    walk.step();
    assert_eq!(rig.unit.audit().unwrap().contexts, 0);
    assert_eq!(target(&walk.finish()), Some(200));
    assert_eq!(rig.unit.stats().fills_dropped, 1);
}

#[test]
fn what_is_read_ahead_is_overtaken_like_the_rest() {
    let mut config = UnitConfig::new(TOY);
    config.caches.prefetch = 1;
    let rig = Rig::new(&config);
    let (table, index) = rig.map_here(9, 109);
    rig.map_here(8, 108);
    let mut walk = rig.begin(8);
    for _ in 0..5 {
        walk.step();
    }
    assert_eq!(walk.next(), Step::Reading, "page 9 is next");
    flush_and_wait(&rig, flush_pages(DOMAIN, 9, 0, 1));
    assert!(!signalled(&rig));
    walk.finish();
    assert!(signalled(&rig));
    rig.poke(table, index, 0);
    assert_eq!(rig.get(8).1, From::Iotlb);
    assert_eq!(rig.get(9).0, None);
}

#[test]
fn one_flush_waits_for_all_of_several() {
    let rig = Rig::toy();
    rig.map_here(9, 100);
    let walks: Vec<_> = (0..3).map(|_| rig.begin(9)).collect();
    assert_eq!(rig.unit.in_flight(), 3);
    flush_and_wait(&rig, flush_domain(DOMAIN));
    let late = rig.begin(9); // after the invalidation: not waited for
    for walk in walks {
        assert!(!signalled(&rig));
        rig.check();
        walk.finish();
    }
    assert!(signalled(&rig));
    drop(late);
    rig.check();
}

#[test]
fn a_unit_that_ignores_the_drain() {
    let rig = Rig::toy();
    let walk = overtaken(&rig);
    rig.unit.inject(Injection::IgnoreDrain(1));
    flush_and_wait(&rig, flush_domain(DOMAIN));
    assert!(signalled(&rig));
    drop(walk);
}

/// Ends the device threads also where the test itself fails.
struct Stop<'a>(&'a OnceLock<()>);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        let _ = self.0.set(());
    }
}

#[test]
fn threads_that_access_while_pages_come_and_go() {
    let rig = Rig::toy();
    let (unit, stop) = (&rig.unit, &OnceLock::new());
    let leaves: Vec<_> = (0..4).map(|page| rig.map_here(page, 100 + page)).collect();
    std::thread::scope(|scope| {
        let _stop = Stop(stop);
        for kind in [AccessKind::Read, AccessKind::Write] {
            scope.spawn(move || {
                for page in (0..4).map(IovaPage).cycle() {
                    let got = target(&unit.access(DEVICE, page, kind));
                    assert!(
                        got.is_none() || got == Some(100 + page.0),
                        "{got:?} for {page}"
                    );
                    if stop.get().is_some() {
                        break;
                    }
                }
            });
        }
        for round in 0..500 {
            let (page, (table, index)) = (round % 4, leaves[round as usize % 4]);
            rig.poke(table, index, 0);
            rig.host.fence(Ordering::SeqCst);
            let status = round as u32 + 1;
            rig.send(&[
                flush_pages(DOMAIN, page, 0, 1),
                wait(rig.status << 12, status),
            ]);
            let mut turns = 0;
            while rig.peek(rig.status, 0) as u32 != status {
                std::thread::yield_now();
                turns += 1;
                assert!(turns < 1 << 26, "round {round} was never signalled");
            }
            assert_eq!(rig.get(page).0, None, "round {round}");
            rig.poke(table, index, (100 + page) << 12 | RW);
            assert_eq!(rig.get(page).0, Some(100 + page));
        }
    });
    rig.check();
    assert_eq!(rig.unit.stats().waits, 500);
}
