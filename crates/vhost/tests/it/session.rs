// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A device behind a socket, driven by a front end: with an IOMMU and without.

use crate::common::*;
use ioatlas_dma::units::*;
use vhost::VhostBackend;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn without_an_iommu_addresses_are_guest_physical() {
    log_to_stderr();
    let back = Back::new(patient());
    let mut front = front_end(&back, front_config(WITHOUT));
    let start = front.front_addr(GUEST).0;
    let mut driver = Driver::start(&mut front, 0, |guest| guest - GUEST + start);
    let (from, to) = (GUEST + 0x10_0000, GUEST + 0x20_0000);
    let bytes = pattern(5000);
    let got = driver.invert(&front, (from, from), (to, to), &bytes);
    assert!(got == inverted(&bytes), "payload");
    let stats = back.observer.stats();
    assert_eq!((stats.misses.sent, stats.control.updates), (0, 0));
}

fn with_an_iommu_rings_and_buffers_are_iovas() {
    log_to_stderr();
    let back = Back::new(patient());
    let mut front = front_end(&back, front_config(WITH_IOMMU));
    let mut driver = Driver::by_iova(&mut front, 0);
    let (from, to) = (GUEST + 0x10_0000, GUEST + 0x20_0000);
    map(&front, 0x7000_0000, from, 0x2000, Perm::Read);
    map(&front, 0x9000_0000, to, 0x2000, Perm::Write);
    let bytes = pattern(5000);
    let source = (0x7000_0010, from + 0x10);
    let target = (0x9000_0020, to + 0x20);
    let got = driver.invert(&front, source, target, &bytes);
    assert!(got == inverted(&bytes), "payload");
    let stats = back.observer.stats();
    assert!(stats.misses.sent >= 3, "{stats:?}");
    assert!(back.stopped.lock().unwrap().is_empty());
}

/// As QEMU does when a guest boots again: what was mapped is gone with the device,
/// and is not invalidated.
fn a_queue_that_starts_anew_knows_no_old_translation() {
    log_to_stderr();
    let back = Back::new(patient());
    let mut front = front_end(&back, front_config(WITH_IOMMU));
    let (from, to) = (GUEST + 0x10_0000, GUEST + 0x20_0000);
    for life in [0, 0x1000, 0x2000] {
        let (from, to) = (from + life, to + life);
        let mut driver = Driver::by_iova(&mut front, 0);
        map(&front, 0x7000_0000, from, 0x1000, Perm::Read);
        map(&front, 0x9000_0000, to, 0x1000, Perm::Write);
        let mut bytes = pattern(4000);
        bytes[0] = (life >> 12) as u8;
        let got = driver.invert(&front, (0x7000_0000, from), (0x9000_0000, to), &bytes);
        assert!(got == inverted(&bytes), "payload of the life at {life:#x}");
        front.stop_queue(0).unwrap();
        assert_eq!(back.observer.stats().cache.runs, 0, "after {life:#x}");
    }
}

/// The same where a front end does not stop queues first: features begin a device's life, also
/// where they are those of before.
fn features_that_are_set_again_forget_every_translation() {
    log_to_stderr();
    let back = Back::new(patient());
    let mut front = front_end(&back, front_config(WITH_IOMMU));
    let mut driver = Driver::by_iova(&mut front, 0);
    for life in [0, 0x1000, 0x2000] {
        let (from, to) = (GUEST + 0x10_0000 + life, GUEST + 0x20_0000 + life);
        map(&front, 0x7000_0000, from, 0x1000, Perm::Read);
        map(&front, 0x9000_0000, to, 0x1000, Perm::Write);
        front.frontend().0.set_features(WITH_IOMMU).unwrap();
        let mut bytes = pattern(4000);
        bytes[0] = (life >> 12) as u8;
        let got = driver.invert(&front, (0x7000_0000, from), (0x9000_0000, to), &bytes);
        assert!(got == inverted(&bytes), "payload of the life at {life:#x}");
    }
}

with_every_cache! {
    without_an_iommu_addresses_are_guest_physical,
    with_an_iommu_rings_and_buffers_are_iovas,
    a_queue_that_starts_anew_knows_no_old_translation,
    features_that_are_set_again_forget_every_translation,
}
