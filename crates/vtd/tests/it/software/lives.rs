// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Everything that a driver of a device does, on every kind of unit. `ci/mutants.sh` prints which
//! of them notices which planted bug.

use crate::software::rig::*;
use ioatlas_dma::{
    table::{Format, fmt::VtdSecond48},
    units::*,
};
use ioatlas_viommu::config::*;
use ioatlas_vtd::layout::QueueDepth;

fn whole_life(name: &str, change: impl FnOnce(&mut UnitConfig)) {
    let rig = Rig::new(change);
    if rig.driver.capabilities().device_tlb() {
        let depth = QueueDepth::from_capability(4);
        rig.driver.declare_device_tlb(NIC, depth).unwrap();
    }
    let (mine, theirs) = (rig.domain(), rig.domain());
    let buffer = |page| PhysRange::page(page);
    let elsewhere = theirs.map(buffer(OTHER), Direction::ToDevice).unwrap();
    for round in 0..3 {
        let at = elsewhere.iova();
        assert_eq!(
            rig.reach(NIC, at),
            None,
            "P8: {name}, not attached, {round}"
        );
        rig.attach(&mine, NIC);
        assert_eq!(
            rig.reach(NIC, at),
            None,
            "P14: {name}, nothing is mapped yet"
        );
        let mapping = mine.map(buffer(OLD), Direction::ToDevice).unwrap();
        let at = mapping.iova();
        let reached = rig.reach(NIC, at);
        assert_eq!(reached, Some(OLD), "P14: {name}, mapped, {round}");
        mine.unmap(mapping).unwrap();
        assert_eq!(rig.reach(NIC, at), None, "P1: {name}, unmapped, {round}");
        let again = mine.map(buffer(OLD), Direction::ToDevice).unwrap();
        let reached = rig.reach(NIC, again.iova());
        assert_eq!(reached, Some(OLD), "P14: {name}, mapped again, {round}");
        whole_table(name, &rig, &mine);
        rig.detach(&mine, NIC);
        let at = again.iova();
        assert_eq!(rig.reach(NIC, at), None, "P1: {name}, detached, {round}");
        rig.attach(&theirs, NIC);
        let reached = rig.reach(NIC, elsewhere.iova());
        assert_eq!(reached, Some(OTHER), "P8: {name}, another domain, {round}");
        rig.detach(&theirs, NIC);
        mine.unmap(again).unwrap();
    }
    theirs.unmap(elsewhere).unwrap();
    mine.close().map_err(|e| e.to_string()).unwrap();
    theirs.close().map_err(|e| e.to_string()).unwrap();
    assert_eq!(rig.soft.stats().queue_errors, 0, "{name}");
    rig.end();
}

/// A table of leaves goes, and another one comes in its place.
fn whole_table(name: &str, rig: &Rig, domain: &TestDomain) {
    let table = ByteCount(VtdSecond48::span(2) * GRANULE);
    let at = Iova(8 * table.0);
    let map = |to: PhysPage, size| {
        let memory = PhysRange::new(to.addr(), size);
        domain.map_at(at, memory, Direction::ToDevice).unwrap()
    };
    for to in [OLD, OTHER] {
        let all = map(OLD, table);
        let reached = rig.reach(NIC, at);
        assert_eq!(reached, Some(OLD), "P14: {name}, a whole table is mapped");
        domain.unmap(all).unwrap();
        assert_eq!(rig.reach(NIC, at), None, "P1: {name}, a whole table");
        let one = map(to, ByteCount(GRANULE));
        let reached = rig.reach(NIC, at);
        assert_eq!(reached, Some(to), "P14: {name}, in a new table");
        domain.unmap(one).unwrap();
        assert_eq!(rig.reach(NIC, at), None, "P1: {name}, a page of it");
    }
}

fn no_walk_caches(config: &mut UnitConfig) {
    config.caches.walk = Vec::new();
}

#[test]
fn a_whole_life_on_a_plain_unit() {
    whole_life("plain", no_walk_caches);
}

#[test]
fn a_whole_life_with_walk_caches() {
    whole_life("walk caches", |_| {});
}

/// A device with ATS, asking again when it must or as soon as it can.
fn with_ats(refetch: Refetch) -> impl Fn(&mut UnitConfig) {
    move |config| {
        no_walk_caches(config);
        config.features.device_tlbs = true;
        config.devices = vec![AtsDevice {
            source: NIC,
            entries: 8,
            answer: Answer::WhenDrained,
            refetch,
        }];
    }
}

#[test]
fn a_whole_life_of_a_device_that_keeps_translations() {
    whole_life("ATS", with_ats(Refetch::OnDemand));
    whole_life("ATS, asynchronous", |c| {
        with_ats(Refetch::OnDemand)(c);
        c.processing = Processing::Asynchronous;
    });
}

#[test]
fn a_whole_life_of_a_device_that_asks_again_at_once() {
    whole_life("ATS, at once", with_ats(Refetch::AtOnce));
    whole_life("ATS, at once, asynchronous", |c| {
        with_ats(Refetch::AtOnce)(c);
        c.processing = Processing::Asynchronous;
    });
}

#[test]
fn a_whole_life_without_a_queue() {
    whole_life("registers", |c| {
        c.registers.interface = InvalidationInterface::Registers;
    });
    whole_life("registers elsewhere", |c| {
        c.registers.interface = InvalidationInterface::Registers;
        c.registers.iotlb_offset = 0x3000;
        c.features.page_selective = None;
    });
}

#[test]
fn a_whole_life_on_a_unit_that_does_its_work_later() {
    whole_life("asynchronous", |c| {
        no_walk_caches(c);
        c.processing = Processing::Asynchronous;
    });
}

/// It has fetched far beyond what it has reported.
#[test]
fn a_whole_life_on_a_unit_that_reports_late() {
    for processing in [Processing::Inline, Processing::Asynchronous] {
        let late = |c: &mut UnitConfig| {
            c.wait_reports = WaitReports::Late;
            c.processing = processing;
        };
        whole_life("late reports", late);
        whole_life("late reports, caching mode", |c| {
            late(c);
            c.features.caching_mode = true;
        });
        for refetch in [Refetch::OnDemand, Refetch::AtOnce] {
            whole_life("late reports, ATS", |c| {
                late(c);
                with_ats(refetch)(c);
            });
        }
    }
}

#[test]
fn a_whole_life_in_caching_mode() {
    whole_life("caching mode", |c| c.features.caching_mode = true);
    whole_life("caching mode without a queue", |c| {
        c.features.caching_mode = true;
        c.registers.interface = InvalidationInterface::Registers;
    });
}

#[test]
fn a_whole_life_with_write_buffers() {
    for buffers in [
        WriteBuffers::FlushedByCommand,
        WriteBuffers::FlushedByInvalidations,
    ] {
        whole_life("write buffers", |c| c.features.write_buffers = buffers);
        whole_life("write buffers, asynchronous", |c| {
            c.features.write_buffers = buffers;
            c.processing = Processing::Asynchronous;
        });
        whole_life("write buffers and caching mode, by registers", |c| {
            c.features.write_buffers = buffers;
            c.features.caching_mode = true;
            c.registers.interface = InvalidationInterface::Registers;
        });
    }
}

#[test]
fn a_whole_life_on_a_unit_whose_root_pointer_flushes() {
    whole_life("ESRTPS", |c| {
        c.registers.root_pointer = RootPointer::LatchesAndFlushes;
    });
    whole_life("ESRTPS, asynchronous", |c| {
        c.registers.root_pointer = RootPointer::LatchesAndFlushes;
        c.processing = Processing::Asynchronous;
    });
}

#[test]
fn a_whole_life_on_a_unit_with_few_capabilities() {
    whole_life("few", |c| {
        c.features.page_selective = None;
        c.features.nd = 0;
        (c.features.drain_reads, c.features.drain_writes) = (false, false);
        c.features.coherent = false;
    });
}
