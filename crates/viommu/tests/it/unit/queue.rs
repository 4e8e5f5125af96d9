// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The invalidation queue and the registers.

use crate::unit::rig::*;
use ioatlas_dma::units::*;
use ioatlas_viommu::{
    config::*,
    queue::{DeviceTlbError, Progress},
    unit::{Injection, SoftUnit},
};
use ioatlas_vtd::registers::{self as offset, Registers};

fn asynchronous() -> Rig {
    let mut config = UnitConfig::new(TOY);
    config.processing = Processing::Asynchronous;
    Rig::new(&config)
}

#[test]
fn statuses_land_in_their_half_of_the_word_and_in_order() {
    let rig = Rig::toy();
    rig.poke(rig.status, 3, u64::MAX);
    let at = (rig.status << 12) + 3 * 8;
    rig.send(&[wait(at, 1), wait(at + 4, 2), wait(at, 3)]);
    assert_eq!(rig.peek(rig.status, 3), 2 << 32 | 3);
    assert_eq!((rig.head(), rig.unit.stats().waits), (3, 3));
}

#[test]
fn asynchronous_processing_goes_a_micro_step_at_a_time() {
    let rig = asynchronous();
    let status = || rig.peek(rig.status, 0);
    rig.map_here(0, 100);
    rig.read(0);
    let held = || {
        rig.unit
            .iotlb_holds(DomainId(DOMAIN), IovaPage(0))
            .is_some()
    };
    rig.send(&[
        wait(rig.status << 12, 1),
        flush_domain(DOMAIN),
        wait(rig.status << 12, 2),
    ]);
    let mut seen = vec![(rig.head(), status(), held())];
    while rig.unit.service() == Progress::Did {
        seen.push((rig.head(), status(), held()));
        rig.check();
    }
    assert_eq!(
        seen,
        [
            (0, 0, true),
            (0, 0, true), // fetched the wait
            (1, 1, true),
            (2, 1, false),
            (2, 1, false),
            (3, 2, false),
        ]
    );
    assert_eq!(rig.unit.service(), Progress::Idle);
}

fn late() -> Rig {
    let mut config = UnitConfig::new(TOY);
    config.processing = Processing::Asynchronous;
    config.wait_reports = WaitReports::Late;
    Rig::new(&config)
}

/// The head and the status, before the first step and after each.
fn steps(rig: &Rig) -> Vec<(u64, u64)> {
    let now = || (rig.head(), rig.peek(rig.status, 0));
    let mut seen = vec![now()];
    while rig.unit.service() == Progress::Did {
        seen.push(now());
        rig.check();
    }
    seen
}

#[test]
fn a_unit_that_reports_late_carries_out_first_what_follows() {
    let rig = late();
    rig.map_here(0, 100);
    rig.read(0);
    let status = rig.status << 12;
    rig.send(&[wait(status, 1), flush_domain(DOMAIN), wait(status, 2)]);
    let seen = steps(&rig);
    assert_eq!(seen, [(0, 0), (1, 0), (2, 0), (3, 0), (3, 1), (3, 2)]);
    let held = rig.unit.iotlb_holds(DomainId(DOMAIN), IovaPage(0));
    assert!(held.is_none());
    assert_eq!(rig.unit.stats().waits, 2);
}

#[test]
fn a_unit_that_reports_late_keeps_so_many_reports_at_most() {
    let rig = late();
    let waits: Vec<_> = (1..=40).map(|n| wait(rig.status << 12, n)).collect();
    rig.send(&waits);
    let seen = steps(&rig);
    let ahead = seen.iter().map(|(head, reported)| head - reported);
    assert_eq!(ahead.max(), Some(MAX_UNREPORTED as u64));
    assert!(seen.is_sorted(), "in the order of the queue: {seen:?}");
    assert_eq!(seen.last(), Some(&(40, 40)));
}

#[test]
fn what_was_fetched_before_an_error_is_reported_after_it() {
    let rig = late();
    let status = rig.status << 12;
    rig.send(&[wait(status, 1), [0xf, 0], wait(status, 2)]);
    assert_eq!(rig.unit.service(), Progress::Did);
    assert_eq!(rig.unit.service(), Progress::Did);
    assert!(rig.queue_error());
    assert_eq!(steps(&rig), [(1, 0), (1, 1)]);
}

/// VT-d 4.1 §6.5.2.11.
#[test]
fn a_time_out_drops_what_was_fetched_and_not_reported() {
    let rig = late();
    rig.send(&[wait(rig.status << 12, 1)]);
    assert_eq!(rig.unit.service(), Progress::Did);
    rig.unit
        .inject_device_tlb_error(DeviceTlbError::TimedOut(DEVICE));
    assert_eq!(steps(&rig), [(1, 0)]);
    assert_eq!(rig.unit.read32(offset::FSTS) & 1 << 6, 1 << 6);
    rig.unit.write32(offset::FSTS, 1 << 6);
    assert_eq!(steps(&rig), [(1, 0)]);
}

#[test]
fn a_drain_blocks_service_until_the_access_has_ended() {
    let rig = asynchronous();
    let walk = rig.begin(0);
    rig.send(&[flush_domain(DOMAIN), wait(rig.status << 12, 1)]);
    assert_eq!(rig.unit.service(), Progress::Did);
    assert_eq!(
        [rig.unit.service(), rig.unit.service()],
        [Progress::Blocked; 2]
    );
    drop(walk);
    assert_eq!(
        (rig.head(), rig.peek(rig.status, 0)),
        (1, 0),
        "the queue did not go on yet"
    );
    while rig.unit.service() == Progress::Did {}
    assert_eq!(rig.peek(rig.status, 0), 1);
}

#[test]
fn the_ring_wraps() {
    let rig = Rig::toy();
    for n in 0..600 {
        rig.send(&[wait(rig.status << 12, n)]);
        assert_eq!(rig.peek(rig.status, 0), u64::from(n));
    }
    assert_eq!(rig.head(), 600 % 256);
    rig.check();
}

#[test]
fn a_ring_of_two_pages() {
    let rig = Rig::toy();
    let ring = rig.frame();
    assert_eq!(rig.frame(), ring + 1, "the arena hands out neighbours");
    rig.unit.write32(offset::GCMD, 1 << 31);
    rig.unit.write64(offset::IQT, 0);
    rig.unit.write64(offset::IQA, ring << 12 | 1);
    rig.unit.write32(offset::GCMD, 1 << 31 | 1 << 26);
    for n in 0..300u64 {
        let [low, high] = wait(rig.status << 12, n as u32);
        rig.poke(ring + n / 256, n as usize % 256 * 2, low);
        rig.poke(ring + n / 256, n as usize % 256 * 2 + 1, high);
    }
    rig.unit.write64(offset::IQT, 300 << 4);
    assert_eq!((rig.head(), rig.peek(rig.status, 0)), (300, 299));
}

#[test]
fn a_descriptor_that_is_none_stops_the_queue_at_it() {
    let rig = Rig::toy();
    rig.send(&[
        wait(rig.status << 12, 1),
        [0xf, 0],
        wait(rig.status << 12, 2),
    ]);
    assert!(rig.queue_error());
    assert_eq!((rig.head(), rig.peek(rig.status, 0)), (1, 1));
    rig.send(&[wait(rig.status << 12, 3)]);
    assert_eq!(rig.peek(rig.status, 0), 1, "it stays stopped");
    // as a driver would: replace it, clear the error, and the rest follows
    let [low, high] = wait(rig.status << 12, 9);
    rig.poke(rig.ring, 2, low);
    rig.poke(rig.ring, 3, high);
    rig.unit.write32(offset::FSTS, 1 << 4);
    assert!(!rig.queue_error());
    assert_eq!((rig.head(), rig.peek(rig.status, 0)), (4, 3));
    assert_eq!(rig.unit.stats().queue_errors, 1);
    rig.check();
}

#[test]
fn queues_and_statuses_outside_memory_are_errors() {
    let rig = Rig::toy();
    rig.send(&[wait(1 << 45, 1)]);
    assert!(rig.queue_error());
    assert_eq!(rig.head(), 0);

    for address in [1 << 45, rig.ring << 12 | 1 << 11] {
        let rig = Rig::toy();
        rig.unit.write32(offset::GCMD, 1 << 31);
        rig.unit.write64(offset::IQA, address);
        rig.unit.write32(offset::GCMD, 1 << 31 | 1 << 26);
        rig.send(&[wait(rig.status << 12, 1)]);
        assert!(rig.queue_error(), "{address:#x}");
    }

    let rig = Rig::toy();
    rig.unit.write64(offset::IQT, 256 << 4);
    assert!(rig.queue_error(), "a tail beyond the ring");
}

#[test]
fn an_injected_error_hits_the_next_descriptor() {
    let rig = Rig::toy();
    rig.unit.inject(Injection::QueueErrors(1));
    rig.send(&[wait(rig.status << 12, 1)]);
    assert!(rig.queue_error());
    rig.unit.write32(offset::FSTS, 1 << 4);
    assert_eq!(rig.peek(rig.status, 0), 1, "once");
}

#[test]
fn a_stuck_unit_processes_nothing_until_it_is_no_more() {
    let rig = Rig::toy();
    rig.unit.set_processing(Processing::Stuck);
    rig.send(&[wait(rig.status << 12, 1)]);
    assert_eq!(rig.unit.service(), Progress::Idle);
    assert_eq!((rig.head(), rig.peek(rig.status, 0)), (0, 0));
    assert_eq!(rig.unit.audit().unwrap().queued, 1);
    rig.unit.set_processing(Processing::Inline);
    assert_eq!(rig.peek(rig.status, 0), 1);
}

#[test]
fn switching_the_queue_off_resets_it_even_while_it_drains() {
    let rig = Rig::toy();
    rig.send(&[wait(rig.status << 12 | 8, 1)]);
    let walk = rig.begin(0);
    rig.send(&[flush_domain(DOMAIN), wait(rig.status << 12, 1)]);
    assert_eq!(rig.head(), 1);
    rig.unit.write32(offset::GCMD, 1 << 31);
    assert_eq!(rig.head(), 0);
    rig.check();
    drop(walk);
    rig.check();
    assert_eq!(rig.peek(rig.status, 0), 0, "what was queued is not done");
}

#[test]
fn capabilities_follow_the_configuration() {
    let mut config = UnitConfig::new(Geometry::VTD_48);
    config.features.nd = 3;
    config.features.page_selective = Some(9);
    config.features.drain_writes = false;
    config.fault_records = 8;
    let rig = Rig::new(&config);
    let cap = rig.unit.read64(offset::CAP);
    let field = |low: u32, width: u32| cap >> low & ((1 << width) - 1);
    assert_eq!((field(0, 3), field(8, 5), field(16, 6)), (3, 0b100, 47));
    assert_eq!((field(39, 1), field(40, 8), field(48, 6)), (1, 7, 9));
    assert_eq!((field(54, 1), field(55, 1)), (0, 1));
    assert_eq!(
        (field(4, 1), field(7, 1)),
        (0, 0),
        "no write buffer, no caching mode"
    );
    assert_eq!(rig.unit.read64(offset::ECAP), 0xf << 8 | 0b11);
    assert_eq!(rig.unit.read32(offset::VER), 0x10);
}

#[test]
fn the_root_table_is_the_one_last_latched() {
    let rig = Rig::toy();
    rig.map_here(0, 100);
    rig.unit.write64(offset::RTADDR, 0);
    assert_eq!(rig.get(0).0, Some(100), "written, and not latched");
    assert_eq!(rig.unit.read64(offset::RTADDR), 0);
}

#[test]
fn a_configuration_that_does_not_fit_is_refused() {
    let mut config = UnitConfig::new(TOY);
    config.caches.iotlb.ways = 0;
    let host = Rig::toy().host;
    let error = SoftUnit::<_, _>::new(host, &config)
        .map(|_: SoftUnit<ioatlas_host::Host, _>| ())
        .unwrap_err();
    assert_eq!(
        error,
        ConfigError::Ways {
            entries: 32,
            ways: 0
        }
    );
}
