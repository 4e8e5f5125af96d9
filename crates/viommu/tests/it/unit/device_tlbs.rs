// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Devices with ATS: what they keep, until which invalidation, and why the IOTLB's has to come
//! first.

use crate::unit::rig::*;
use ioatlas_dma::units::*;
use ioatlas_viommu::{
    config::*,
    device::*,
    fault::FaultReason,
    observe::{Access, From},
    queue::Progress,
};
use ioatlas_vtd::registers::{self as offset, Registers};

const ITE: u32 = 1 << 6;
const KEEPER: AtsDevice = AtsDevice {
    source: DEVICE,
    entries: 4,
    answer: Answer::WhenDrained,
    refetch: Refetch::OnDemand,
};

/// Removes 2^`lg2` pages from `page` of a device's TLB.
fn flush_device(source: SourceId, page: u64, lg2: u32) -> [u64; 2] {
    let ones = (1 << lg2.max(1) >> 1) - 1;
    let sized = u64::from(lg2 > 0);
    let low = u64::from(source.0) << 32 | 3;
    [low, (page >> lg2 << lg2 | ones) << 12 | sized]
}

/// `DEVICE` as configured, ATS on, TT = 01b, and page 9 mapped.
fn rig_of(device: AtsDevice, change: impl FnOnce(&mut UnitConfig)) -> Rig {
    let mut config = UnitConfig::new(TOY);
    config.features.device_tlbs = true;
    config.devices = vec![device];
    change(&mut config);
    let rig = Rig::new(&config);
    rig.allow(1);
    rig.unit.switch_ats(DEVICE, Ats::On).unwrap();
    rig.map_here(9, 100);
    rig
}

fn rig() -> Rig {
    rig_of(KEEPER, |_| ())
}

impl Rig {
    /// Sets TT of `DEVICE`.
    fn allow(&self, translation_type: u64) {
        let at = usize::from(DEVICE.0 & 0xff) * 2;
        let entry = self.root << 12 | translation_type << 2 | 1;
        self.poke(self.context_table, at, entry);
    }
    fn unmap(&self, page: u64) {
        self.map(self.root, page, 0, 0);
    }
    /// Descriptors, then a wait; returns whether its status was written.
    fn waited(&self, descriptors: &[[u64; 2]]) -> bool {
        self.poke(self.status, 0, 0);
        self.send(&[descriptors, &[wait(self.status << 12, 7)]].concat());
        self.signalled()
    }
    fn signalled(&self) -> bool {
        self.peek(self.status, 0) == 7
    }
}

fn came(access: &Access) -> (Option<u64>, From) {
    (target(access), access.from)
}

#[test]
fn the_capability_register_says_so_and_the_queue_takes_its_descriptors_only_then() {
    let rig = rig();
    assert_eq!(rig.unit.read64(offset::ECAP) >> 2 & 1, 1);
    rig.send(&[flush_device(DEVICE, 9, 0)]);
    assert!(!rig.queue_error());
    let without = Rig::toy();
    assert_eq!(without.unit.read64(offset::ECAP) >> 2 & 1, 0);
    without.send(&[flush_device(DEVICE, 9, 0)]);
    assert!(without.queue_error());
}

#[test]
fn what_a_device_was_told_it_uses_without_asking() {
    let rig = rig();
    let first = rig.read(9);
    assert_eq!(came(&first), (Some(100), From::Walk));
    let again = rig.write(9);
    assert_eq!(
        (came(&again), again.reads),
        ((Some(100), From::DeviceTlb), 0)
    );
    let held = rig.unit.device_tlb_holds(DEVICE, IovaPage(9));
    assert_eq!(held, Some((PhysPage(100), Perm::ReadWrite)));
    let stats = rig.unit.stats();
    assert_eq!((stats.translation_requests, stats.device_tlb_hits), (1, 1));
    rig.check();
    // of its own it forgets the least recently used
    for page in 10..14 {
        rig.map_here(page, 100 + page);
        rig.read(page);
    }
    assert_eq!(rig.read(9).from, From::Iotlb);
}

#[test]
fn with_ats_off_every_access_is_untranslated() {
    let rig = rig();
    rig.read(9);
    rig.unit.switch_ats(DEVICE, Ats::Off).unwrap();
    assert_eq!(rig.unit.audit().unwrap().device_translations, 0);
    assert_eq!(rig.read(9).from, From::Iotlb);
    rig.unit.switch_ats(DEVICE, Ats::On).unwrap();
    assert_eq!(rig.read(9).from, From::Iotlb, "it has to ask again");
    let other = SourceId(0x0318);
    assert_eq!(rig.unit.switch_ats(other, Ats::On), Err(NotAtsError(other)));
}

#[test]
fn the_context_entry_has_to_allow_it() {
    for (tt, reason) in [
        (0, FaultReason::TranslationBlocked),
        (2, FaultReason::TranslationBlocked),
        (3, FaultReason::ContextInvalid),
    ] {
        let rig = rig_of(KEEPER, |c| c.features.pass_through = true);
        rig.read(9);
        rig.allow(tt);
        assert_eq!(
            rig.get(9),
            (Some(100), From::DeviceTlb),
            "the context is cached"
        );
        rig.send(&[flush_context(DOMAIN, DEVICE)]);
        assert_eq!(fault(&rig.read(9)), reason, "by a translation it has");
        assert_eq!(fault(&rig.read(10)), reason, "by a request for one");
        assert_eq!(rig.unit.take_faults().records.len(), 2);
    }
    assert_eq!(FaultReason::TranslationBlocked.code(), 0xd);
}

#[test]
fn a_request_that_finds_nothing_is_answered_and_not_recorded() {
    let rig = rig();
    rig.map(rig.root, 10, 7, READ);
    let (kind, level) = (AccessKind::Read, 1);
    assert_eq!(
        fault(&rig.read(11)),
        FaultReason::NotPresent { kind, level }
    );
    let kind = AccessKind::Write;
    assert_eq!(fault(&rig.write(10)), FaultReason::NotPermitted { kind });
    assert_eq!(rig.unit.take_faults().records, []);
    assert_eq!(rig.unit.audit().unwrap().device_translations, 0);
    rig.map(rig.root, 12, 7, RW | 1 << 11);
    assert_eq!(
        fault(&rig.read(12)),
        FaultReason::EntryReserved { level: 1 }
    );
    assert_eq!(rig.unit.take_faults().records.len(), 1, "that is an error");
}

#[test]
fn rights_that_a_device_holds_are_asked_for_anew_when_they_do_not_suffice() {
    let rig = rig();
    rig.map(rig.root, 10, 7, READ);
    rig.read(10);
    rig.map(rig.root, 10, 7, RW);
    assert_eq!(target(&rig.write(10)), None, "the IOTLB knows no better");
    rig.send(&[flush_pages(DOMAIN, 10, 0, 1)]);
    assert_eq!(came(&rig.write(10)), (Some(7), From::WalkCache(2)));
}

#[test]
fn no_flush_of_the_iotlb_reaches_a_device() {
    let rig = rig();
    rig.read(9);
    rig.unmap(9);
    assert!(rig.waited(&[[0xd2, 0], [0x11, 0]]));
    assert_eq!(
        rig.get(9),
        (Some(100), From::DeviceTlb),
        "the driver's bug shows"
    );
    assert!(rig.waited(&[flush_device(DEVICE, 9, 0)]));
    assert_eq!(rig.get(9).0, None);
}

#[test]
fn a_flush_removes_what_it_names() {
    for (page, lg2, goes) in [
        (9, 0, true),
        (8, 0, false),
        (8, 1, true),
        (10, 1, false),
        (12, 2, false),
        (8, 3, true),
        (0, 3, false),
        (0, 52, true),
    ] {
        let rig = rig();
        rig.read(9);
        rig.send(&[flush_device(DEVICE, page, lg2)]);
        let from = if goes { From::Iotlb } else { From::DeviceTlb };
        assert_eq!(rig.get(9), (Some(100), from), "2^{lg2} pages from {page}");
    }
}

#[test]
fn between_the_flushes_a_device_asks_again_and_the_iotlb_still_knows() {
    let iotlb = flush_pages(DOMAIN, 9, 0, 1);
    let device = flush_device(DEVICE, 9, 0);
    // in either processing: a device that asks at once needs no opening between two steps
    for (order, safe) in [([iotlb, device], true), ([device, iotlb], false)] {
        let eager = AtsDevice {
            refetch: Refetch::AtOnce,
            ..KEEPER
        };
        let rig = rig_of(eager, |_| ());
        rig.read(9);
        rig.unmap(9);
        assert!(rig.waited(&order));
        assert_eq!(rig.get(9).0, if safe { None } else { Some(100) });

        let rig = rig_of(KEEPER, |c| c.processing = Processing::Asynchronous);
        rig.read(9);
        rig.unmap(9);
        assert!(!rig.waited(&order));
        assert_eq!(rig.unit.service(), Progress::Did);
        assert_eq!(rig.get(9).0, Some(100), "one cache is left");
        while rig.unit.service() == Progress::Did {}
        assert!(rig.signalled());
        assert_eq!(rig.get(9).0, if safe { None } else { Some(100) });
    }
}

#[test]
fn a_flush_waits_for_accesses_by_what_the_device_holds() {
    for asked in [false, true] {
        let rig = rig();
        if !asked {
            rig.read(9);
        }
        let mut access = rig.begin(9);
        access.run();
        rig.unmap(9);
        let iotlb = flush_pages(DOMAIN, 9, 0, 1);
        assert!(
            rig.waited(&[iotlb]),
            "what the device does is not the unit's"
        );
        assert!(!rig.waited(&[iotlb, flush_device(DEVICE, 9, 0)]));
        rig.check();
        assert_eq!(target(&access.finish()), Some(100));
        assert!(rig.signalled());
        assert_eq!(rig.get(9).0, None);
        rig.check();
    }
}

#[test]
fn a_flush_does_not_wait_for_other_pages_nor_for_other_devices() {
    let rig = rig();
    let other = SourceId(0x0318);
    rig.attach(other, DOMAIN, rig.root);
    rig.read(9);
    let access = rig.begin(9);
    let untranslated = rig.unit.begin(other, IovaPage(9), AccessKind::Read);
    assert!(rig.waited(&[flush_device(DEVICE, 10, 1)]));
    drop(access);
    assert!(rig.waited(&[flush_device(DEVICE, 9, 0)]));
    drop(untranslated);
}

#[test]
fn a_request_that_is_not_answered_yet_is_drained_by_the_iotlb_only() {
    let rig = rig();
    let mut request = rig.begin(9);
    request.step();
    request.step();
    assert!(rig.waited(&[flush_device(DEVICE, 9, 0)]));
    assert!(!rig.waited(&[flush_pages(DOMAIN, 9, 0, 0)]));
    assert_eq!(target(&request.finish()), Some(100));
    assert!(rig.signalled());
    rig.unmap(9);
    assert_eq!(rig.get(9), (Some(100), From::DeviceTlb), "it was answered");
    assert!(rig.waited(&[flush_device(DEVICE, 9, 0)]));
    assert_eq!(rig.get(9).0, None);
}

#[test]
fn a_request_that_reads_ahead_is_drained_until_it_has_read() {
    let rig = rig_of(KEEPER, |c| c.caches.prefetch = 2);
    rig.map_here(10, 200);
    let mut request = rig.begin(9);
    while rig.unit.device_tlb_holds(DEVICE, IovaPage(9)).is_none() {
        request.step();
    }
    assert!(!rig.waited(&[flush_pages(DOMAIN, 10, 0, 1)]));
    rig.unmap(10);
    drop(request);
    assert!(rig.signalled());
    assert_eq!(rig.get(10).0, None);
}

#[test]
fn a_device_that_never_answers_times_out_and_keeps_what_it_has() {
    let mute = AtsDevice {
        answer: Answer::Never,
        ..KEEPER
    };
    for processing in [Processing::Inline, Processing::Asynchronous] {
        let rig = rig_of(mute, |c| c.processing = processing);
        let serve = || while rig.unit.service() == Progress::Did {};
        rig.read(9);
        rig.unmap(9);
        rig.waited(&[flush_pages(DOMAIN, 9, 0, 1), flush_device(DEVICE, 9, 0)]);
        serve();
        assert!(!rig.signalled(), "the wait is given up");
        assert_eq!(rig.unit.read32(offset::FSTS) & ITE, ITE);
        assert_eq!(rig.get(9), (Some(100), From::DeviceTlb));
        rig.unit.write32(offset::FSTS, ITE);
        serve();
        assert!(!rig.signalled(), "and is not made up for");
        rig.waited(&[]);
        serve();
        assert!(rig.signalled(), "the queue goes on");
        rig.check();
    }
}

#[test]
fn a_device_without_ats_does_not_answer_either() {
    let rig = rig();
    rig.unit.switch_ats(DEVICE, Ats::Off).unwrap();
    for source in [DEVICE, SourceId(0x0318)] {
        assert!(!rig.waited(&[flush_device(source, 9, 0)]));
        assert_eq!(rig.unit.read32(offset::FSTS) & ITE, ITE);
        rig.unit.write32(offset::FSTS, ITE);
    }
}

#[test]
fn a_device_that_moved_keeps_the_old_domains_translations() {
    let rig = rig();
    rig.read(9);
    let (root, at) = (rig.frame(), usize::from(DEVICE.0 & 0xff) * 2);
    rig.map(root, 9, 200, RW);
    rig.poke(rig.context_table, at + 1, u64::from(DOMAIN + 1) << 8 | 1);
    rig.poke(rig.context_table, at, root << 12 | 1 << 2 | 1);
    rig.send(&[flush_context(DOMAIN, DEVICE), flush_domain(DOMAIN)]);
    assert_eq!(
        rig.get(9),
        (Some(100), From::DeviceTlb),
        "the driver's bug shows"
    );
    rig.send(&[flush_device(DEVICE, 0, 52)]);
    assert_eq!(rig.get(9).0, Some(200));
}

#[test]
fn a_page_of_a_large_leaf_is_kept_as_a_page() {
    let rig = rig_of(KEEPER, |c| c.features.largest_leaf = 2);
    rig.map_large(16, 2, 160, RW);
    rig.read(17);
    assert_eq!(rig.get(17), (Some(161), From::DeviceTlb));
    assert_eq!(rig.get(18), (Some(162), From::Iotlb));
    rig.check();
}

#[test]
fn devices_that_cannot_be_are_named() {
    let mut config = UnitConfig::new(TOY);
    config.devices = vec![KEEPER, KEEPER];
    let twice = ConfigError::Devices(DeviceError::Twice(DEVICE));
    assert_eq!(config.check(), Err(twice));
    config.devices = vec![AtsDevice {
        entries: 0,
        ..KEEPER
    }];
    let error = config.check().unwrap_err().to_string();
    assert_eq!(
        error,
        "03:02.0: a TLB of 0 entries is not within 1 to 1048576"
    );
}
