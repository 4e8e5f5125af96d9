// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A unit without a queue: the same invalidations, by registers, one at a time.

use crate::common::{Happened::*, rig::*, *};
use ioatlas_dma::invalidation::{Invalidate, InvalidateError, Scope};
use ioatlas_dma::translator::{AttachError, RemappingUnit};
use ioatlas_dma::units::*;
use ioatlas_vtd::driver::*;
use ioatlas_vtd::layout::{InterruptIndex, QueueDepth};

/// QEMU's unit, but for the queue.
const NO_QUEUE: u64 = QEMU_ECAP & !2;
/// Global, both registers; DR and DW in bits 49 and 48.
const CONTEXT_GLOBAL: u64 = 1 << 63 | 1 << 61;
const IOTLB_GLOBAL: u64 = 1 << 63 | 1 << 60 | 3 << 48;
/// Of domain 5.
const IOTLB_DOMAIN: u64 = 1 << 63 | 2 << 60 | 3 << 48 | 5 << 32;

fn up() -> (std::sync::Arc<Memory>, std::sync::Arc<Fake>, Driver) {
    up_with(|s| s.ecap = NO_QUEUE)
}

#[test]
fn bring_up_uses_one_frame_and_no_queue_and_flushes_before_translation() {
    let host = host(1);
    let fake = Fake::new(&host);
    fake.state().ecap = NO_QUEUE;
    let unit = bring_up(&host, &fake).unwrap();
    let log = [
        Command(SRTP),
        Ccmd(CONTEXT_GLOBAL),
        Iotlb(IOTLB_GLOBAL, 0),
        Command(TE),
    ];
    assert_eq!(fake.log(), log);
    shut_down(unit).unwrap();
    let log = [Command(0), Ccmd(CONTEXT_GLOBAL), Iotlb(IOTLB_GLOBAL, 0)];
    assert_eq!(fake.log(), log);
    assert_eq!(host.frames_in_use(), 0);
}

#[test]
fn detaching_invalidates_the_device_and_then_the_domain() {
    let (host, fake, unit) = up();
    unit.attach(BY, &*host, FAR, DomainId(5), ROOT, 4).unwrap();
    assert_eq!(fake.log(), []);
    unit.detach(BY, &*host, FAR, DomainId(5)).unwrap();
    let device = 1 << 63 | 3 << 61 | 0x200 << 16 | 5;
    assert_eq!(fake.log(), [Ccmd(device), Iotlb(IOTLB_DOMAIN, 0)]);
}

#[test]
fn pages_are_written_to_the_address_register_first() {
    let (_host, fake, unit) = up();
    let range = IovaRange::new(IovaPage(0x12), PageCount(3));
    let ticket = unit.submit(DomainId(9), Scope::leaves(range)).unwrap();
    assert_eq!(unit.done(ticket), Ok(true));
    let command = 1 << 63 | 3 << 60 | 3 << 48 | 9 << 32;
    // eight pages, leaves only
    assert_eq!(fake.log(), [Iotlb(command, 0x1_0043)]);
}

#[test]
fn one_invalidation_at_a_time_is_in_the_registers_and_all_are_done_in_order() {
    let (_host, fake, unit) = up();
    fake.state().slow_registers = 5;
    let tickets: Vec<_> = (1..20)
        .map(|id| unit.submit(DomainId(id), Scope::DOMAIN).unwrap())
        .collect();
    assert_eq!(unit.done(tickets[18]), Ok(false));
    // the fake insists that no register is written while it is busy
    let done = (0..1000).find(|_| unit.done(tickets[18]) == Ok(true));
    assert!(done.is_some());
    assert!(tickets.iter().all(|t| unit.done(*t) == Ok(true)));
    let ids: Vec<_> = fake.log();
    let want: Vec<_> = (1..20u64)
        .map(|id| Iotlb(IOTLB_DOMAIN & !(0xffff << 32) | id << 32, 0))
        .collect();
    assert_eq!(ids, want);
}

#[test]
fn an_invalidation_that_was_not_carried_out_fails_what_asked_for_it_alone() {
    let (host, fake, unit) = up();
    unit.attach(BY, &*host, NIC, DomainId(5), ROOT, 4).unwrap();
    fake.state().refuses = true;
    let (device, cause) = (NIC, InvalidateError::Refused);
    let error = AttachError::Invalidate { device, cause };
    let told = "P1: caches may serve the device still";
    assert_eq!(
        unit.detach(BY, &*host, NIC, DomainId(5)),
        Err(error),
        "{told}"
    );
    fake.state().refuses = false;
    let ticket = unit.submit(DomainId(1), Scope::DOMAIN).unwrap();
    assert_eq!(unit.done(ticket), Ok(true));
    assert_eq!(unit.detach(BY, &*host, NIC, DomainId(5)), Ok(()));
}

#[test]
fn a_unit_that_never_finishes_is_an_error_after_the_bound() {
    let (host, fake, unit) = up();
    unit.attach(BY, &*host, NIC, DomainId(5), ROOT, 4).unwrap();
    fake.state().slow_registers = u32::MAX;
    let (device, turns) = (NIC, LIMIT.0);
    let cause = InvalidateError::TimedOut { turns };
    let error = AttachError::Invalidate { device, cause };
    assert_eq!(unit.detach(BY, &*host, NIC, DomainId(5)), Err(error));
    let submitted = (0..1000).map(|_| unit.submit(DomainId(1), Scope::DOMAIN));
    let failed = submitted.filter_map(Result::err).next();
    // it has done nothing since the detach ran out of time
    let at_once = InvalidateError::TimedOut { turns: 0 };
    assert_eq!(failed, Some(at_once), "the line is bounded");
}

#[test]
fn several_cpus_share_the_registers() {
    let (_host, fake, unit) = up();
    fake.state().slow_registers = 2;
    std::thread::scope(|scope| {
        for thread in 0..4u16 {
            let unit = &unit;
            scope.spawn(move || {
                for _ in 0..100 {
                    let ticket = unit.submit(DomainId(thread + 1), Scope::DOMAIN).unwrap();
                    while !unit.done(ticket).unwrap() {
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    assert_eq!(fake.log().len(), 400);
}

#[test]
fn what_needs_a_queue_is_refused() {
    // a unit that offers either without a queue is not brought up: see contradictions.rs
    let (_host, _fake, unit) = up();
    let ecap = NO_QUEUE;
    let error = DeviceTlbError::Unsupported { ecap };
    let declared = unit.declare_device_tlb(NIC, QueueDepth::ONE);
    assert_eq!(declared, Err(error));
    let refused = unit.invalidate_interrupt_entries(InterruptIndex(0), 1);
    assert_eq!(refused, Err(InvalidateError::Refused));
}
