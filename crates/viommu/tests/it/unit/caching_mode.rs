// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Caching mode: what is absent stays so until it is flushed, by the domain and the scope that the
//! specification names.

use crate::unit::rig::*;
use ioatlas_dma::units::*;
use ioatlas_viommu::{config::*, fault::FaultReason, observe::From};
use ioatlas_vtd::registers::{self as offset, Registers};

fn config(change: impl FnOnce(&mut UnitConfig)) -> UnitConfig {
    let mut config = UnitConfig::new(TOY);
    config.features.caching_mode = true;
    change(&mut config);
    config
}

fn rig() -> Rig {
    Rig::new(&config(|_| ()))
}

#[test]
fn a_map_that_is_not_flushed_keeps_faulting() {
    for (caching_mode, expected) in [
        (true, (None, From::AbsentEntry)),
        (false, (Some(7), From::Iotlb)),
    ] {
        let rig = Rig::new(&config(|c| c.features.caching_mode = caching_mode));
        assert_eq!(rig.unit.read64(offset::CAP) >> 7 & 1 == 1, caching_mode);
        rig.map_here(8, 6); // the tables are there
        assert_eq!(rig.get(9).0, None);
        rig.map_here(9, 7);
        rig.get(9);
        assert_eq!(rig.get(9), expected);
        rig.send(&[flush_pages(DOMAIN, 9, 0, 1)]);
        assert_eq!(rig.get(9).0, Some(7));
        rig.check();
    }
}

#[test]
fn the_fault_is_that_of_the_access_and_is_recorded_each_time() {
    let rig = rig();
    rig.map_here(8, 6);
    rig.read(9);
    let (kind, level) = (AccessKind::Write, 1);
    assert_eq!(
        fault(&rig.write(9)),
        FaultReason::NotPresent { kind, level }
    );
    assert_eq!(rig.unit.take_faults().records.len(), 2);
    assert_eq!(rig.unit.stats().absent_hits, 1);
}

#[test]
fn an_absent_table_hides_all_below_it_until_a_flush_that_is_not_of_leaves_only() {
    let rig = rig();
    assert_eq!(rig.get(20), (None, From::Walk));
    rig.map_here(24, 7); // another leaf table below the same absent entry of the root
    assert_eq!(rig.get(24), (None, From::AbsentEntry));
    rig.send(&[flush_pages(DOMAIN, 24, 0, 1)]);
    assert_eq!(
        rig.get(24),
        (None, From::AbsentEntry),
        "only leaves were flushed"
    );
    rig.send(&[flush_pages(DOMAIN, 40, 0, 0)]);
    assert_eq!(rig.get(24), (None, From::AbsentEntry), "another table's");
    rig.send(&[flush_pages(DOMAIN, 24, 0, 0)]);
    assert_eq!(rig.get(24).0, Some(7));
}

#[test]
fn where_a_large_leaf_could_stand_a_flush_of_leaves_removes_the_absent_entry() {
    let rig = Rig::new(&config(|c| c.features.largest_leaf = 2));
    rig.map_here(0, 6);
    assert_eq!(rig.get(5), (None, From::Walk));
    rig.map_large(4, 2, 100, RW);
    assert_eq!(rig.get(6).0, None);
    rig.send(&[flush_pages(DOMAIN, 4, 2, 1)]);
    assert_eq!(rig.get(6).0, Some(102));
}

#[test]
fn faulty_entries_are_remembered_too() {
    let rig = rig();
    let (table, index) = rig.map_here(9, 7);
    rig.poke(table, index, 1 << 62 | 7 << 12 | RW);
    let reserved = FaultReason::EntryReserved { level: 1 };
    assert_eq!(fault(&rig.read(9)), reserved);
    rig.poke(table, index, 7 << 12 | RW);
    let again = rig.read(9);
    assert_eq!((fault(&again), again.from), (reserved, From::AbsentEntry));
    rig.send(&[flush_domain(DOMAIN)]);
    assert_eq!(rig.get(9).0, Some(7));
}

/// A device of the same bus that is attached nowhere, and was seen so.
const LATE: SourceId = SourceId(0x0318);

fn late(rig: &Rig) -> Option<u64> {
    target(&rig.unit.access(LATE, IovaPage(9), AccessKind::Read))
}

#[test]
fn an_attach_takes_a_context_flush_of_domain_0() {
    for (flush, goes) in [
        (flush_context(DOMAIN, LATE), false),
        ([u64::from(DOMAIN) << 16 | 0x21, 0], false),
        (flush_context(0, DEVICE), false),
        (flush_domain(0), false),
        (flush_context(0, LATE), true),
        ([0x21, 0], true),
        ([0x11, 0], true),
    ] {
        let rig = rig();
        rig.map_here(9, 7);
        assert_eq!(late(&rig), None);
        rig.attach(LATE, DOMAIN, rig.root);
        assert_eq!(late(&rig), None, "not flushed yet");
        rig.send(&[flush]);
        assert_eq!(late(&rig), goes.then_some(7), "{flush:x?}");
    }
}

#[test]
fn an_absent_root_entry_and_a_faulty_context_entry_are_remembered() {
    let rig = rig();
    rig.map_here(9, 7);
    let other_bus = SourceId(0x0410);
    let read = || rig.unit.access(other_bus, IovaPage(9), AccessKind::Read);
    assert_eq!(fault(&read()), FaultReason::RootNotPresent);
    rig.poke(rig.root_table, 4 * 2, rig.context_table << 12 | 1);
    assert_eq!(fault(&read()), FaultReason::RootNotPresent);
    rig.send(&[flush_context(0, other_bus)]);
    assert_eq!(target(&read()), Some(7));

    rig.attach(LATE, DOMAIN, rig.root);
    let at = usize::from(LATE.0 & 0xff) * 2;
    rig.poke(rig.context_table, at, rig.root << 12 | 1 << 4 | 1);
    assert_eq!(late(&rig), None);
    rig.attach(LATE, DOMAIN, rig.root);
    assert_eq!(late(&rig), None);
    rig.send(&[flush_context(0, LATE)]);
    assert_eq!(late(&rig), Some(7));
}

#[test]
fn a_walk_that_an_invalidation_overtook_remembers_nothing_absent() {
    let rig = rig();
    rig.map_here(8, 6);
    rig.read(8);
    let mut walk = rig.begin(9);
    rig.map_here(9, 7);
    rig.send(&[flush_pages(DOMAIN, 9, 0, 1)]);
    assert_eq!(rig.head(), 0, "it waits for the walk");
    rig.poke(rig.entry(rig.root, 9, 1).0, 1, 0);
    walk.step();
    assert_eq!(target(&walk.finish()), None, "read before the map");
    rig.map_here(9, 7);
    assert_eq!(rig.get(9).0, Some(7));
    // and without a drain it does
    let walk = rig.begin(10);
    rig.send(&[undrained(flush_pages(DOMAIN, 10, 0, 1))]);
    assert_eq!(target(&walk.finish()), None);
    rig.map_here(10, 8);
    assert_eq!(
        rig.get(10),
        (None, From::AbsentEntry),
        "the driver's bug shows"
    );
}

#[test]
fn read_ahead_remembers_what_is_absent_and_eviction_forgets_it() {
    let rig = Rig::new(&config(|c| c.caches.prefetch = 3));
    rig.map_here(8, 6);
    rig.read(8);
    rig.map_here(9, 7);
    assert_eq!(rig.get(9), (None, From::AbsentEntry));
    let rig = Rig::new(&config(|c| {
        let one_in = std::num::NonZeroU32::MIN;
        c.caches.eviction = Some(Eviction { seed: 3, one_in });
    }));
    rig.map_here(8, 6);
    rig.read(9);
    rig.map_here(9, 7);
    assert!(
        (0..100).any(|_| rig.get(9).0 == Some(7)),
        "evicted some day"
    );
}

#[test]
fn asynchronous_processing_keeps_what_is_absent_until_its_turn() {
    use ioatlas_viommu::queue::Progress;
    let rig = Rig::new(&config(|c| c.processing = Processing::Asynchronous));
    rig.map_here(8, 6);
    rig.read(9);
    rig.map_here(9, 7);
    rig.send(&[flush_pages(DOMAIN, 9, 0, 1)]);
    assert_eq!(rig.get(9), (None, From::AbsentEntry));
    assert_eq!(rig.unit.service(), Progress::Did);
    assert_eq!(rig.get(9).0, Some(7));
}
