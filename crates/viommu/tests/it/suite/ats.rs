// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The oracle and devices that keep translations: a driver that does not know of them is caught.
//!
//! The driver attaches without ATS; its context entry is changed here, and device TLBs are flushed
//! by the oracle's own ear.

use crate::BY;
use crate::suite::rig::*;
use ioatlas_dma::{
    domain::*,
    platform::{Atomic64, Ordering, PhysMemory},
    table::Format,
    units::*,
};
use ioatlas_viommu::{
    device::*,
    invalidation::Invalidation,
    observe::{Event, InvalidationId, Moment, Observer},
    oracle::Property,
};
use ioatlas_vtd::registers::{RTADDR, Registers};

on_every_machine! {
    ats::p1_a_device_tlb_that_was_not_flushed,
    ats::p3_a_page_mapped_again_before_the_device_tlb_was_flushed,
    ats::a_flush_of_the_device_tlb_after_the_iotlbs_is_complete,
    ats::exposure_lasts_until_the_device_tlb_is_flushed,
}

/// A machine whose NIC has ATS, switched on.
fn rig<B: Base, F: Format>() -> Rig<B> {
    Rig::with::<F>(64, |config| {
        config.features.device_tlbs = true;
        config.devices = vec![AtsDevice {
            source: NIC,
            entries: 8,
            answer: Answer::WhenDrained,
            refetch: Refetch::OnDemand,
        }];
    })
}

/// A domain whose context entry of the NIC allows translation requests.
fn allowed<B: Base, F: Format>(rig: &Rig<B>, design: DomainConfig) -> Dom<B, F> {
    let domain = rig.domain::<F>(design);
    let unit = rig.machine.machine().unit();
    let memory = rig.machine.machine().platform();
    let word = |table: u64, index: u16| {
        let word = memory.word(BY, PhysPage(table >> 12), usize::from(index) * 2);
        word.expect("a table")
    };
    let contexts = word(unit.read64(RTADDR), NIC.0 >> 8).load(Ordering::SeqCst);
    let entry = word(contexts, NIC.0 & 0xff);
    entry.store(entry.load(Ordering::SeqCst) | 1 << 2, Ordering::SeqCst);
    unit.switch_ats(NIC, Ats::On).expect("a device with ATS");
    domain
}

/// The oracle hears that the NIC's TLB lost `pages`.
fn hear_flush<B: Base>(rig: &Rig<B>, number: u64, pages: IovaRange) {
    let id = InvalidationId(u64::MAX - number);
    let what = Invalidation::DeviceTlb { source: NIC, pages };
    let draining = 0;
    let oracle = rig.machine.oracle();
    oracle.event(Moment(0), &Event::InvalidationBegan { id, what, draining });
    oracle.event(Moment(0), &Event::InvalidationCompleted { id });
}

fn strict() -> DomainConfig {
    let design = designs().into_iter().find(is_strict);
    design.expect("a strict design")
}

fn map_at<B: Base, F: Format>(domain: &Dom<B, F>, page: u64, to: u64) -> Mapping {
    let at = IovaPage(page).addr();
    let mapping = domain.map_at(at, buffer(to, 1), Direction::ToDevice);
    mapping.expect("free")
}

fn violated<B: Base>(rig: &Rig<B>) -> Vec<Property> {
    let summary = rig.machine.oracle().summary();
    summary.violations.iter().map(|v| v.property).collect()
}

pub fn p1_a_device_tlb_that_was_not_flushed<B: Base, F: Format>() {
    let rig = rig::<B, F>();
    let domain = allowed::<B, F>(&rig, strict());
    let mapping = map_at(&domain, 9, 0x10);
    assert!(rig.access(IovaPage(9), AccessKind::Read).is_some());
    domain.unmap(mapping).expect("unmapped");
    rig.assert_clean();
    let reached = rig.access(IovaPage(9), AccessKind::Read);
    assert_eq!(reached, Some(PhysPage(0x10)));
    assert_eq!(violated(&rig), [Property::P1]);
}

pub fn p3_a_page_mapped_again_before_the_device_tlb_was_flushed<B: Base, F: Format>() {
    let rig = rig::<B, F>();
    let domain = allowed::<B, F>(&rig, strict());
    let mapping = map_at(&domain, 9, 0x10);
    domain.unmap(mapping).expect("unmapped");
    rig.assert_clean();
    let _again = map_at(&domain, 9, 0x20);
    assert_eq!(violated(&rig), [Property::P3], "it had not even been read");
}

pub fn a_flush_of_the_device_tlb_after_the_iotlbs_is_complete<B: Base, F: Format>() {
    for (first, pages, complete) in [
        (9, 1, true),
        (8, 2, true),
        (0, 1 << 52, true),
        (10, 2, false),
    ] {
        let rig = rig::<B, F>();
        let domain = allowed::<B, F>(&rig, strict());
        let early = map_at(&domain, 9, 0x10);
        let range = IovaRange::new(IovaPage(first), PageCount(pages));
        hear_flush(&rig, 0, range); // too early to count
        domain.unmap(early).expect("unmapped");
        hear_flush(&rig, 1, range);
        let _again = map_at(&domain, 9, 0x20);
        let expected: &[Property] = if complete { &[] } else { &[Property::P3] };
        assert_eq!(violated(&rig), expected, "{range}");
    }
    // switched off, it is waited for no longer
    let rig = rig::<B, F>();
    let domain = allowed::<B, F>(&rig, strict());
    let mapping = map_at(&domain, 9, 0x10);
    domain.unmap(mapping).expect("unmapped");
    let unit = rig.machine.machine().unit();
    unit.switch_ats(NIC, Ats::Off).expect("a device with ATS");
    let _again = map_at(&domain, 9, 0x20);
    assert_eq!(violated(&rig), []);
}

pub fn exposure_lasts_until_the_device_tlb_is_flushed<B: Base, F: Format>() {
    let design = designs().into_iter().find(is_batched);
    let rig = rig::<B, F>();
    let domain = allowed::<B, F>(&rig, design.expect("a deferred design"));
    let mapping = map_at(&domain, 9, 0x10);
    assert!(rig.access(IovaPage(9), AccessKind::Read).is_some());
    domain.unmap(mapping).expect("unmapped");
    domain.domain().flush().expect("flushed");
    assert!(rig.access(IovaPage(9), AccessKind::Read).is_some());
    rig.assert_clean(); // the IOTLB's flush alone ends no window
    hear_flush(&rig, 0, IovaRange::new(IovaPage(0), PageCount(1 << 52)));
    assert!(rig.access(IovaPage(9), AccessKind::Read).is_some());
    assert_eq!(violated(&rig), [Property::P2], "it was not really flushed");
}
