// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Devices that keep translations of their own: invalidated after the IOTLB, fenced where they do
//! not answer.

use crate::common::{Happened::*, rig::*, *};
use ioatlas_dma::invalidation::{Invalidate, InvalidateError, Scope};
use ioatlas_dma::translator::{AttachError, RemappingUnit};
use ioatlas_dma::units::*;
use ioatlas_vtd::driver::*;
use ioatlas_vtd::{layout::QueueDepth, queue::Ticket};
use std::sync::Arc;

const ID: DomainId = DomainId(5);
const ALL: u64 = 0x7fff_ffff_ffff_f001;

/// A unit that serves device TLBs; NIC has one, four deep.
fn up() -> (Arc<Memory>, Arc<Fake>, Driver) {
    let (host, fake, unit) = up_with(|s| s.ecap |= 4);
    let depth = QueueDepth::from_capability(4);
    unit.declare_device_tlb(NIC, depth).unwrap();
    (host, fake, unit)
}

fn of_nic(high: u64) -> Happened {
    Descriptor(0x20_0004_0003, high)
}

/// Submits and asks until there is an answer.
fn flush(unit: &Driver, domain: DomainId, scope: Scope) -> Result<bool, InvalidateError> {
    answer(unit, unit.submit(domain, scope)?)
}

fn answer(unit: &Driver, ticket: Ticket) -> Result<bool, InvalidateError> {
    let mut answers = std::iter::repeat_with(|| unit.done(ticket)).take(50);
    let last = answers.find(|answer| *answer != Ok(false));
    last.unwrap_or(Ok(false))
}

#[test]
fn a_declared_device_may_keep_translations_and_others_may_not() {
    let (host, fake, unit) = up();
    unit.attach(BY, &*host, NIC, ID, ROOT, 4).unwrap();
    unit.attach(BY, &*host, DISK, ID, ROOT, 4).unwrap();
    assert_eq!(fake.context(0x20).unwrap().0 & 0xf, 0x5, "TT = 01");
    assert_eq!(fake.context(0x28).unwrap().0 & 0xf, 0x1, "TT = 00");
    assert_eq!(fake.log(), []);
}

#[test]
fn only_where_the_unit_serves_them() {
    let (_host, _fake, unit) = up_with(|_| {});
    let declared = unit.declare_device_tlb(NIC, QueueDepth::ONE);
    let ecap = QEMU_ECAP;
    assert_eq!(declared, Err(DeviceTlbError::Unsupported { ecap }));
}

#[test]
fn a_domain_is_flushed_from_the_iotlb_and_then_from_its_devices_in_one_submission() {
    let (host, fake, unit) = up();
    unit.attach(BY, &*host, NIC, ID, ROOT, 4).unwrap();
    unit.attach(BY, &*host, DISK, ID, ROOT, 4).unwrap();
    let two = Scope::leaves(IovaRange::new(IovaPage(0x10), PageCount(2)));
    assert_eq!(flush(&unit, ID, two), Ok(true));
    let log = [Descriptor(0x5_00f2, 0x1_0041), of_nic(0x1_0001)];
    let told = "P1: the device fetches again what the IOTLB still holds";
    assert_eq!(fake.log(), log, "{told}");
    let waits = fake.taken().iter().filter(|d| d.0 & 0xf == 5).count();
    assert_eq!(waits, 1);
    assert_eq!(flush(&unit, DomainId(6), Scope::DOMAIN), Ok(true));
    assert_eq!(fake.log(), [Descriptor(0x6_00e2, 0)], "not its domain");
}

#[test]
fn a_detached_device_is_flushed_itself_and_then_no_more() {
    let (host, fake, unit) = up();
    unit.attach(BY, &*host, NIC, ID, ROOT, 4).unwrap();
    unit.detach(BY, &*host, NIC, ID).unwrap();
    let log = [
        Descriptor(0x20_0005_0031, 0),
        Descriptor(0x5_00e2, 0),
        of_nic(ALL),
    ];
    assert_eq!(fake.log(), log);
    assert_eq!(flush(&unit, ID, Scope::DOMAIN), Ok(true));
    assert_eq!(fake.log(), [Descriptor(0x5_00e2, 0)]);
    unit.attach(BY, &*host, NIC, DomainId(6), ROOT, 4).unwrap();
    assert_eq!(flush(&unit, DomainId(6), Scope::DOMAIN), Ok(true));
    assert_eq!(fake.log(), [Descriptor(0x6_00e2, 0), of_nic(ALL)]);
}

#[test]
fn many_devices_are_all_flushed_after_the_iotlb_and_the_ring_does_not_overflow() {
    for count in [15, 16, 17, 32, 33, 300u16] {
        let (host, fake, unit) = up_with(|s| s.ecap |= 4);
        for device in (1..=count).map(SourceId) {
            unit.declare_device_tlb(device, QueueDepth::ONE).unwrap();
            unit.attach(BY, &*host, device, ID, ROOT, 4).unwrap();
        }
        for _ in 0..3 {
            assert_eq!(flush(&unit, ID, Scope::DOMAIN), Ok(true));
            let log = fake.log();
            assert_eq!(log[0], Descriptor(0x5_00e2, 0));
            let devices = log[1..].iter().map(|h| match h {
                Descriptor(low, ALL) if low & 0xf == 3 => (low >> 32) as u16,
                other => panic!("{other:x?}"),
            });
            assert!(devices.eq(1..=count), "{count}");
        }
    }
}

#[test]
fn a_device_that_does_not_answer_is_fenced_and_the_others_go_on() {
    let (host, fake, unit) = up();
    unit.declare_device_tlb(DISK, QueueDepth::ONE).unwrap();
    unit.attach(BY, &*host, NIC, ID, ROOT, 4).unwrap();
    unit.attach(BY, &*host, DISK, ID, ROOT, 4).unwrap();
    fake.state().silent = vec![NIC.0];
    let device = NIC;
    let error = InvalidateError::DeviceTimedOut { device };
    assert_eq!(flush(&unit, ID, Scope::DOMAIN), Err(error));
    let told = "P1: it goes on with what it did not forget";
    assert!(unit.is_fenced(NIC), "{told}");
    assert!(!unit.is_fenced(DISK));
    assert_eq!(fake.context(0x20).unwrap().0, 0, "blocked");
    assert_eq!(fake.context(0x28).unwrap().0 & 1, 1);
    let log = fake.log();
    let [.., context, iotlb] = log[..] else {
        panic!("{log:x?}")
    };
    assert_eq!(context, Descriptor(0x20_0005_0031, 0), "flushed at once");
    assert_eq!(iotlb, Descriptor(0x5_00e2, 0));
    assert_eq!(unit.incidents().time_outs, 1);
    // it is not asked any more
    assert_eq!(flush(&unit, ID, Scope::DOMAIN), Ok(true));
    let log = [Descriptor(0x5_00e2, 0), Descriptor(0x28_0001_0003, ALL)];
    assert_eq!(fake.log(), log);
}

#[test]
fn a_fenced_device_comes_back_after_detach_and_unfence_only() {
    let (host, fake, unit) = up();
    unit.attach(BY, &*host, NIC, ID, ROOT, 4).unwrap();
    fake.state().silent = vec![NIC.0];
    assert!(flush(&unit, ID, Scope::DOMAIN).is_err());
    let (device, domain) = (NIC, ID);
    let attached = UnfenceError::Attached { device, domain };
    assert_eq!(unit.unfence(NIC), Err(attached));
    fake.log();
    unit.detach(BY, &*host, NIC, ID).unwrap();
    let log = [Descriptor(0x20_0005_0031, 0), Descriptor(0x5_00e2, 0)];
    assert_eq!(fake.log(), log, "it is not asked");
    let fenced = Err(AttachError::Fenced { device });
    assert_eq!(unit.attach(BY, &*host, NIC, DomainId(6), ROOT, 4), fenced);
    assert!(unit.is_fenced(NIC));
    unit.unfence(NIC).unwrap();
    assert_eq!(unit.unfence(NIC), Err(UnfenceError::NotFenced { device }));
    fake.state().silent.clear();
    unit.attach(BY, &*host, NIC, DomainId(6), ROOT, 4).unwrap();
    assert_eq!(fake.context(0x20), Some((0x123_4005, 0x602)));
    assert_eq!(flush(&unit, DomainId(6), Scope::DOMAIN), Ok(true));
    assert!(fake.log().contains(&of_nic(ALL)), "invalidated again");
}

#[test]
fn a_device_that_is_silent_while_it_is_detached_is_fenced_and_detached_at_the_second_try() {
    let (host, fake, unit) = up();
    unit.attach(BY, &*host, NIC, ID, ROOT, 4).unwrap();
    fake.state().silent = vec![NIC.0];
    let device = NIC;
    let cause = InvalidateError::DeviceTimedOut { device };
    let failed = unit.detach(BY, &*host, NIC, ID);
    assert_eq!(failed, Err(AttachError::Invalidate { device, cause }));
    assert!(unit.is_fenced(NIC));
    assert_eq!(unit.detach(BY, &*host, NIC, ID), Ok(()));
    shut_down(unit).unwrap();
    assert_eq!(host.frames_in_use(), 0);
}

#[test]
fn a_device_is_declared_and_withdrawn_while_it_is_detached_alone() {
    let (host, fake, unit) = up();
    unit.attach(BY, &*host, NIC, ID, ROOT, 4).unwrap();
    let (device, domain) = (NIC, ID);
    let attached = Err(DeviceTlbError::Attached { device, domain });
    assert_eq!(unit.declare_device_tlb(NIC, QueueDepth::ONE), attached);
    assert_eq!(unit.withdraw_device_tlb(NIC), attached);
    unit.detach(BY, &*host, NIC, ID).unwrap();
    unit.withdraw_device_tlb(NIC).unwrap();
    unit.attach(BY, &*host, NIC, ID, ROOT, 4).unwrap();
    assert_eq!(fake.context(0x20).unwrap().0 & 0xf, 0x1);
}

#[test]
fn an_attach_that_fails_leaves_no_device_to_be_asked() {
    let host = host(3);
    let fake = Fake::new(&host);
    fake.state().ecap |= 4;
    let unit = bring_up(&host, &fake).unwrap();
    unit.declare_device_tlb(NIC, QueueDepth::ONE).unwrap();
    let failed = unit.attach(BY, &*host, NIC, ID, ROOT, 4);
    assert_eq!(failed, Err(AttachError::NoFrame { bus: 0 }));
    fake.log();
    assert_eq!(flush(&unit, ID, Scope::DOMAIN), Ok(true));
    assert_eq!(fake.log(), [Descriptor(0x5_00e2, 0)]);
    unit.withdraw_device_tlb(NIC).unwrap();
}

/// Otherwise another caller's unmap could be done before the flush that takes the
/// device's context entry away.
#[test]
fn a_fenced_device_is_asked_until_its_flush_is_under_way() {
    let (host, fake, unit) = up_with(|s| (s.ecap, s.cap) = (s.ecap | 4, s.cap | 1 << 4));
    unit.declare_device_tlb(NIC, QueueDepth::ONE).unwrap();
    unit.attach(BY, &*host, NIC, ID, ROOT, 4).unwrap();
    fake.state().silent = vec![NIC.0];
    let ticket = unit.submit(ID, Scope::DOMAIN).unwrap();
    // before any invalidation
    fake.state().slow_buffers = 10 * LIMIT.0 as u32;
    fake.log();
    let device = NIC;
    let error = InvalidateError::DeviceTimedOut { device };
    assert_eq!(answer(&unit, ticket), Err(error));
    assert!(unit.is_fenced(NIC));
    let iotlb = Descriptor(0x5_00e2, 0);
    assert_eq!(fake.log(), [iotlb, Flush], "its context is not flushed");
    let domain = ID;
    let active = Err(DeviceTlbError::Attached { device, domain });
    assert_eq!(unit.withdraw_device_tlb(NIC), active, "P1");
}

#[test]
fn a_second_detach_does_not_end_the_next_attach() {
    let (host, fake, unit) = up();
    let unit = Arc::new(unit);
    unit.attach(BY, &*host, NIC, ID, ROOT, 4).unwrap();
    fake.state().credit = 0;
    let (there, memory, elsewhere) = (unit.clone(), host.clone(), fake.clone());
    host.during_next_wait(move || {
        elsewhere.step(1000);
        there.detach(BY, &*memory, NIC, ID).unwrap();
        let attached = there.attach(BY, &*memory, NIC, DomainId(6), ROOT, 4);
        attached.unwrap();
    });
    unit.detach(BY, &*host, NIC, ID).unwrap();
    fake.log();
    assert_eq!(flush(&unit, DomainId(6), Scope::DOMAIN), Ok(true));
    assert!(fake.log().contains(&of_nic(ALL)), "P1: it is not asked");
}
