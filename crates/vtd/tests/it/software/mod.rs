// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The driver and the core's domain on the software unit, whatever it is made of. The unit has its
//! own reading of the specification, so what agrees here was understood twice.

mod batches;
mod lives;
mod rig;
mod take_over;

use crate::common::shut_down;
use ioatlas_dma::{
    invalidation::InvalidateError,
    translator::{AttachError, RemappingUnit},
    units::*,
};
use ioatlas_host::Host;
use ioatlas_viommu::{config::*, observe::Outcome, queue::DeviceTlbError, unit::*};
use ioatlas_vtd::{
    driver::{Live, Unit},
    fault::*,
    layout::InterruptIndex,
    registers::*,
};
use rig::*;
use std::sync::Arc;

const TE: u32 = 1 << 31;
const QIE: u32 = 1 << 26;
const INTERRUPTS: u32 = 0x0380_0000;

/// Firmware has translation and interrupt remapping on, and a queue that it used.
#[test]
fn a_unit_that_firmware_left_in_use_is_taken_over_without_a_window() {
    let host = memory();
    let soft = Soft::new(
        host.clone(),
        &config(|c| c.registers.interrupts = InterruptRemapping::Extended),
    );
    let soft = Arc::new(soft.unwrap());
    let live = Live::TakeOver;
    // what another driver would leave: its own tables and queue, with DISK mapped, and never shut
    // down
    let firmware = {
        let driver = Unit::bring_up(host.clone(), Stepping(soft.clone()), HOST).unwrap();
        Rig {
            host: host.clone(),
            soft: soft.clone(),
            driver: Arc::new(driver),
        }
    };
    let table = 0x5_0000 | 7 | 1 << 11;
    soft.write64(IRTA, table);
    let enabled = soft.read32(GSTS) & GSTS_ENABLES;
    soft.write32(GCMD, enabled | 1 << 24);
    soft.write32(GCMD, enabled | 1 << 25);
    soft.write32(GCMD, enabled | 1 << 25 | 1 << 23);
    let its = firmware.domain();
    its.attach(DISK).unwrap();
    let screen = its.map(PhysRange::page(OLD), Direction::ToDevice).unwrap();
    let at = screen.iova();
    assert_eq!(firmware.reach(DISK, at), Some(OLD));

    let unit = Unit::prepare(host.clone(), Stepping(soft.clone()), HOST.live(live));
    let driver = Arc::new(unit.unwrap());
    let rig = Rig {
        host: host.clone(),
        soft: soft.clone(),
        driver,
    };
    assert_eq!(
        rig.reach(DISK, at),
        Some(OLD),
        "P14: firmware's tables serve"
    );
    rig.driver.reserve_firmware_ids(&read(&host)).unwrap();
    let ours = rig.domain();
    ours.attach(DISK).unwrap();
    let kept = ours
        .map_at(at, PhysRange::page(OLD), Direction::ToDevice)
        .or_else(|_| ours.map(PhysRange::page(OLD), Direction::ToDevice))
        .unwrap();
    assert_eq!(kept.iova(), at, "the same page");
    assert_eq!(rig.reach(DISK, at), Some(OLD));
    rig.driver.activate().unwrap();
    assert_eq!(rig.reach(DISK, at), Some(OLD), "P14: ours do");
    assert_eq!(
        rig.reach(NIC, at),
        None,
        "P8: a device that is not attached is blocked"
    );
    let status = soft.read32(GSTS);
    assert_eq!(status & (TE | QIE | INTERRUPTS), TE | QIE | INTERRUPTS);
    let of = soft.interrupt_table().expect("the table is set");
    assert_eq!((of.table, of.entries_lg2), (PhysPage(0x50), 8));
    rig.driver
        .invalidate_interrupt_entries(InterruptIndex(3), 2)
        .unwrap();
    rig.driver.invalidate_all_interrupt_entries().unwrap();
    assert_eq!(soft.stats().interrupt_invalidations, 2);
    ours.unmap(kept).unwrap();
    assert_eq!(rig.reach(DISK, at), None, "P1: through our queue");
    ours.close().map_err(|e| e.to_string()).unwrap();
    let driver = Arc::into_inner(rig.driver).unwrap();
    shut_down(driver).map_err(|(e, _)| e).unwrap();
    let status = soft.read32(GSTS);
    assert_eq!(status & INTERRUPTS, INTERRUPTS, "interrupts go on");
    std::mem::forget((its, screen, firmware));
}

/// Every way in which a queue goes on, does its work and reports it.
fn queues() -> impl Iterator<Item = (Restart, Processing, WaitReports)> {
    let restarts = [Restart::ErrorCleared, Restart::TailWritten];
    let works = [Processing::Inline, Processing::Asynchronous];
    let reports = [WaitReports::InTurn, WaitReports::Late];
    restarts.into_iter().flat_map(move |restart| {
        let of = move |work| reports.map(|report| (restart, work, report));
        works.into_iter().flat_map(of)
    })
}

#[test]
fn a_refused_descriptor_costs_its_submission_alone_however_the_unit_goes_on() {
    for kind in queues() {
        let rig = Rig::new(|c| (c.registers.restart, c.processing, c.wait_reports) = kind);
        let domain = rig.domain();
        domain.attach(NIC).unwrap();
        let map = |page| {
            domain
                .map(PhysRange::page(page), Direction::ToDevice)
                .unwrap()
        };
        let (first, second) = (map(OLD), map(OTHER));
        rig.soft.inject(Injection::QueueErrors(1));
        let error = domain.unmap(first).unwrap_err().to_string();
        assert!(error.contains("stopped with an error"), "{error}");
        let at = second.iova();
        assert_eq!(rig.reach(NIC, at), Some(OTHER));
        domain.unmap(second).unwrap();
        assert_eq!(rig.reach(NIC, at), None, "P1: after recovery");
        assert_eq!(rig.driver.incidents().queue_errors, 1);
        domain.close().map_err(|e| e.to_string()).unwrap();
        rig.end();
    }
}

/// The unit drops a wait descriptor and stops; the driver that waits for it gets an answer all the
/// same.
#[test]
fn a_dropped_wait_descriptor_hangs_no_caller() {
    for kind in queues() {
        let rig = Rig::new(|c| (c.registers.restart, c.processing, c.wait_reports) = kind);
        let domain = rig.domain();
        let mapping = domain
            .map(PhysRange::page(OLD), Direction::ToDevice)
            .unwrap();
        rig.soft
            .inject_device_tlb_error(DeviceTlbError::TimedOut(NIC));
        // no device was asked, so no submission is to blame
        domain.unmap(mapping).unwrap();
        assert_eq!(rig.driver.incidents().time_outs, 1);
    }
}

#[test]
fn an_answer_to_no_question_is_counted() {
    let rig = Rig::new(|c| c.processing = Processing::Asynchronous);
    let domain = rig.domain();
    let mapping = domain
        .map(PhysRange::page(OLD), Direction::ToDevice)
        .unwrap();
    rig.soft
        .inject_device_tlb_error(DeviceTlbError::BadCompletion(NIC));
    domain.unmap(mapping).unwrap();
    let incidents = rig.driver.incidents();
    assert_eq!(incidents.completion_errors, 1);
    assert_eq!(incidents.last_completion_error, Some(NIC));
}

#[test]
fn a_stray_access_becomes_a_sentence_with_the_history_of_its_page() {
    let rig = Rig::new(|_| {});
    let domain = rig.domain();
    domain.attach(NIC).unwrap();
    let history = History::<Host>::new(64, 4);
    let id = DomainId(1);
    history.attached(NIC, id);
    let mapping = domain
        .map(PhysRange::page(OLD), Direction::ToDevice)
        .unwrap();
    let range = mapping.range();
    history.mapped(id, range, Perm::Read, TimeNs(1_000_000));
    domain.unmap(mapping).unwrap();
    history.unmapped(id, range, TimeNs(2_000_000));
    assert_eq!(rig.reach(NIC, range.first.addr()), None);
    let written = rig.soft.access(DISK, IovaPage(0x77), AccessKind::Write);
    assert!(matches!(written.outcome, Outcome::Fault(_)));
    let (faults, overflow) = rig.driver.faults();
    assert_eq!(overflow, Overflow::None);
    let told: Vec<String> = faults
        .iter()
        .map(|f| f.explain(&history).to_string())
        .collect();
    let first = range.first.addr();
    assert_eq!(
        told,
        [
            format!(
                "device 00:04.0 tried to read page {first}, and was blocked: nothing is mapped there for reading (reason 0x6); \
                 the page was unmapped by the last unmap, at 0.002000 s; it was in a mapping of 4 KiB for reading"
            ),
            "device 00:05.0 tried to write page 0x77000, and was blocked: it is attached to no domain (reason 0x2); \
             the device is not known to be in any domain"
                .to_string(),
        ]
    );
    assert_eq!(rig.driver.faults().0, [], "read once");
}

#[test]
fn more_faults_than_records_are_told_as_an_overflow() {
    let rig = Rig::new(|_| {});
    for page in 0..300 {
        rig.soft.access(NIC, IovaPage(page), AccessKind::Write);
    }
    let (faults, overflow) = rig.driver.faults();
    let records = rig.driver.capabilities().fault_records() as usize;
    assert_eq!((faults.len(), overflow), (records, Overflow::Lost));
    let pages: Vec<u64> = faults.iter().map(|f| f.page.page().0).collect();
    assert!(pages.is_sorted(), "in order: {pages:?}");
    rig.soft.access(DISK, IovaPage(1), AccessKind::Read);
    let (again, overflow) = rig.driver.faults();
    assert_eq!((again.len(), overflow), (1, Overflow::None));
    assert_eq!(again[0].device, DISK);
}

#[test]
fn a_unit_that_never_completes_is_an_error() {
    let rig = Rig::new(|_| {});
    let domain = rig.domain();
    let mapping = domain
        .map(PhysRange::page(OLD), Direction::ToDevice)
        .unwrap();
    rig.soft.set_processing(Processing::Stuck);
    let turns = LIMIT.0;
    let cause = InvalidateError::TimedOut { turns };
    let error = domain.unmap(mapping).unwrap_err();
    assert!(error.to_string().contains(&cause.to_string()), "{error}");
}

/// The last flush of a domain fails: nothing proves that the unit forgot its translations, so its
/// id names no other domain, however many are asked for, and its tables are no frames again (P4,
/// P8).
#[test]
fn a_domain_whose_last_flush_fails_keeps_its_id_and_its_tables() {
    for kind in queues() {
        let rig = Rig::new(|c| {
            (c.registers.restart, c.processing, c.wait_reports) = kind;
            c.features.nd = 0; // 16 ids, of which 0 is not given
        });
        let domain = rig.domain();
        let id = domain.id();
        rig.attach(&domain, NIC);
        let mapping = domain
            .map(PhysRange::page(OLD), Direction::ToDevice)
            .unwrap();
        assert_eq!(rig.reach(NIC, mapping.iova()), Some(OLD));
        domain.detach(NIC).unwrap();
        let frames = rig.host.frames_in_use();
        rig.soft.inject(Injection::QueueErrors(1));
        let error = domain
            .close()
            .expect_err("its flush is refused")
            .to_string();
        assert!(error.contains("stopped with an error"), "{error}");
        assert_eq!(rig.host.frames_in_use(), frames, "P4: {kind:?}");
        let next = || rig.driver.domain_id(&rig.host);
        let others: Vec<DomainId> = std::iter::from_fn(next).collect();
        assert_eq!(others.len(), 14, "{kind:?}");
        assert!(
            !others.contains(&id),
            "P8: {id:?} is given again ({kind:?})"
        );
    }
}

/// Its context entry was there for a moment, and is the unit's until a flush says otherwise.
#[test]
fn a_device_whose_attach_failed_is_blocked_and_can_be_detached() {
    let rig = Rig::new(|c| c.features.caching_mode = true);
    let domain = rig.domain();
    rig.soft.set_processing(Processing::Stuck);
    let error = domain.attach(NIC).unwrap_err();
    assert!(matches!(error, AttachError::Invalidate { .. }), "{error}");
    rig.soft.set_processing(Processing::Inline);
    let mapping = domain
        .map(PhysRange::page(OLD), Direction::ToDevice)
        .unwrap();
    assert_eq!(rig.reach(NIC, mapping.iova()), None, "blocked");
    domain.detach(NIC).unwrap();
    domain.attach(NIC).unwrap();
    assert_eq!(rig.reach(NIC, mapping.iova()), Some(OLD));
    domain.unmap(mapping).unwrap();
    domain.close().map_err(|e| e.to_string()).unwrap();
    rig.end();
}

#[test]
fn the_largest_leaf_and_what_follows_a_map_are_the_unit_s() {
    let rig = Rig::new(|c| c.features.largest_leaf = 3);
    assert_eq!(rig.driver.largest_leaf(), 3);
    let rig = Rig::new(|c| c.features.largest_leaf = 2);
    assert_eq!(rig.driver.largest_leaf(), 2);
}
