// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What is blocked, why, and how it is recorded.

use crate::unit::rig::*;
use ioatlas_dma::units::*;
use ioatlas_viommu::{
    config::*,
    fault::{FaultReason, FaultRecord},
    observe::From,
};
use ioatlas_vtd::registers::{self as offset, Registers};

const KIND: AccessKind = AccessKind::Read;
const CONTEXT: usize = (DEVICE.0 as usize & 0xff) * 2;

/// The fault of a read of page 27, whose index is (1, 2, 3), after `spoil`.
fn spoiled(spoil: impl FnOnce(&Rig)) -> FaultReason {
    let rig = Rig::toy();
    rig.map_here(27, 100);
    spoil(&rig);
    let access = rig.read(27);
    let reason = fault(&access);
    let records = rig.unit.take_faults().records;
    let record = FaultRecord {
        source: DEVICE,
        page: IovaPage(27),
        kind: KIND,
        reason,
    };
    assert_eq!(records, [record]);
    assert_eq!(rig.unit.stats().faults, 1);
    rig.check();
    reason
}

/// The table that the walk to page 27 reads at `level`, and the index.
fn entry(rig: &Rig, level: u32) -> (u64, usize) {
    let middle = rig.peek(rig.root, 1) >> 12;
    match level {
        3 => (rig.root, 1),
        2 => (middle, 2),
        _ => (rig.peek(middle, 2) >> 12, 3),
    }
}

#[test]
fn an_entry_missing_at_each_level() {
    for level in 1..=3 {
        let reason = spoiled(|rig| {
            let (table, index) = entry(rig, level);
            rig.poke(table, index, 0);
        });
        assert_eq!(reason, FaultReason::NotPresent { kind: KIND, level });
        assert_eq!(reason.code(), 6);
    }
}

#[test]
fn a_reserved_bit_at_each_level() {
    for level in 1..=3 {
        let reason = spoiled(|rig| {
            let (table, index) = entry(rig, level);
            rig.poke(table, index, rig.peek(table, index) | 1 << 62);
        });
        assert_eq!(reason, FaultReason::EntryReserved { level });
    }
    let large = spoiled(|rig| {
        let (table, index) = entry(rig, 2);
        rig.poke(table, index, rig.peek(table, index) | 1 << 7);
    });
    assert_eq!(
        large,
        FaultReason::EntryReserved { level: 2 },
        "no large pages"
    );
}

#[test]
fn a_table_outside_memory_at_each_level() {
    let outside = 1 << 30;
    for level in 1..=3 {
        let reason = spoiled(|rig| match level {
            3 => rig.attach(DEVICE, DOMAIN, outside),
            _ => {
                let (table, index) = entry(rig, level + 1);
                rig.poke(table, index, outside << 12 | RW);
            }
        });
        assert_eq!(reason, FaultReason::TableUnreachable { level });
    }
    let context = spoiled(|rig| rig.poke(rig.root_table, 6, outside << 12 | 1));
    assert_eq!(context, FaultReason::ContextUnreachable);
    let root = spoiled(|rig| {
        rig.unit.write64(offset::RTADDR, outside << 12);
        rig.unit.write32(offset::GCMD, 1 << 31 | 1 << 30 | 1 << 26);
    });
    assert_eq!(root, FaultReason::RootUnreachable);
    let scalable = spoiled(|rig| {
        rig.unit
            .write64(offset::RTADDR, rig.root_table << 12 | 1 << 10);
        rig.unit.write32(offset::GCMD, 1 << 31 | 1 << 30 | 1 << 26);
    });
    assert_eq!(scalable, FaultReason::RootUnreachable, "legacy mode only");
}

#[test]
fn devices_that_are_not_attached() {
    let no_bus = spoiled(|rig| rig.poke(rig.root_table, 6, 0));
    assert_eq!(no_bus, FaultReason::RootNotPresent);
    let no_device = spoiled(|rig| rig.poke(rig.context_table, CONTEXT, 0));
    assert_eq!(no_device, FaultReason::ContextNotPresent);
    let bad_root = spoiled(|rig| rig.poke(rig.root_table, 7, 1));
    assert_eq!(bad_root, FaultReason::RootReserved);
    let bad_context = spoiled(|rig| rig.poke(rig.context_table, CONTEXT + 1, 1 << 40));
    assert_eq!(bad_context, FaultReason::ContextReserved);
    let pass = spoiled(|rig| rig.poke(rig.context_table, CONTEXT, 2 << 2 | 1));
    assert_eq!(
        pass,
        FaultReason::ContextInvalid,
        "pass-through is not offered"
    );
}

#[test]
fn another_address_width_than_the_units() {
    let rig = Rig::new(&UnitConfig::new(Geometry::VTD_48));
    rig.map_here(1, 100);
    rig.poke(rig.context_table, CONTEXT + 1, u64::from(DOMAIN) << 8 | 1); // 39 bits
    assert_eq!(fault(&rig.read(1)), FaultReason::ContextInvalid);
}

#[test]
fn beyond_the_aperture() {
    let rig = Rig::toy();
    rig.map_here(0, 100);
    for page in [64, 1 << 20, u64::MAX >> 12, u64::MAX] {
        assert_eq!(fault(&rig.read(page)), FaultReason::BeyondAperture);
    }
    assert_eq!(rig.get(0).0, Some(100), "no page wraps to it");
    rig.check();
}

#[test]
fn permissions_from_memory_and_from_the_iotlb() {
    let rig = Rig::toy();
    rig.map(rig.root, 1, 101, READ);
    rig.map(rig.root, 2, 102, WRITE);
    let (read, write) = (AccessKind::Read, AccessKind::Write);
    assert_eq!(target(&rig.read(1)), Some(101));
    assert_eq!(
        fault(&rig.write(1)),
        FaultReason::NotPermitted { kind: write }
    );
    assert_eq!(
        fault(&rig.read(2)),
        FaultReason::NotPermitted { kind: read }
    );
    assert_eq!(target(&rig.write(2)), Some(102));
    let cached = rig.read(2);
    assert_eq!((fault(&cached).code(), cached.from), (6, From::Iotlb));
    assert_eq!(fault(&rig.write(1)).code(), 5);
}

#[test]
fn rights_narrow_on_the_way_down() {
    let rig = Rig::toy();
    rig.map_here(0, 100);
    rig.poke(rig.root, 0, rig.peek(rig.root, 0) & !WRITE);
    let denied = FaultReason::NotPermitted {
        kind: AccessKind::Write,
    };
    assert_eq!(fault(&rig.write(0)), denied);
    assert_eq!(rig.get(0).0, Some(100));
    let held = rig.unit.iotlb_holds(DomainId(DOMAIN), IovaPage(0));
    assert_eq!(
        held,
        Some((PhysPage(100), Perm::Read)),
        "though the leaf says both"
    );
    rig.map_here(1, 101);
    let from_walk_cache = rig.write(1);
    assert_eq!(
        (fault(&from_walk_cache), from_walk_cache.from),
        (denied, From::WalkCache(2))
    );
}

#[test]
fn the_ring_is_bounded_and_records_nothing_until_its_overflow_is_cleared() {
    let mut config = UnitConfig::new(TOY);
    config.fault_records = 2;
    let rig = Rig::new(&config);
    let status = || rig.unit.read32(offset::FSTS);
    assert_eq!(status(), 0);
    for page in 0..3 {
        fault(&rig.read(page));
        assert_eq!(status(), if page < 2 { 0b10 } else { 0b11 });
    }
    let faults = rig.unit.take_faults();
    let pages: Vec<_> = faults.records.iter().map(|r| r.page.0).collect();
    assert_eq!((pages, faults.overflowed), (vec![0, 1], true));
    for page in 0..3 {
        fault(&rig.read(page));
    }
    rig.unit.write32(offset::FSTS, 1);
    assert_eq!(status(), 0b10, "cleared by writing 1");
    assert_eq!(rig.unit.stats().faults, 6);
}

#[test]
fn a_context_entry_can_silence_faults() {
    let rig = Rig::toy();
    let low = rig.peek(rig.context_table, CONTEXT);
    rig.poke(rig.context_table, CONTEXT, low | 2);
    for _ in 0..2 {
        fault(&rig.read(1)); // the second by the cached context entry
    }
    assert_eq!(rig.unit.take_faults().records, []);
    assert_eq!(rig.unit.stats().faults, 2);
}

#[test]
fn a_fault_is_not_cached() {
    let rig = Rig::toy();
    fault(&rig.read(5));
    rig.map_here(5, 100);
    assert_eq!(
        rig.get(5).0,
        Some(100),
        "as it must be without caching mode"
    );
}
