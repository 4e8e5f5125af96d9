// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Where the frames of typed buffers go, and when.

use crate::bounce::patchy::*;
use ioatlas_dma::{dma_api::*, domain::*, units::*};
use std::sync::atomic::Ordering::Relaxed;

#[test]
fn a_buffer_that_no_addresses_hold_takes_no_frame() {
    let rig = Rig::new(PolicyConfig::Strict);
    let client = rig.client(Placement::Never);
    rig.frames_left(2048);
    for len in [1 << 52, (1 << 48) + 1] {
        let none = client.buffer::<ToDevice>(ByteCount(len));
        assert!(none.is_none(), "{len}");
        let left = rig.p.frames_left.load(Relaxed);
        assert_eq!(left, 2048, "{len}: took frames before it was refused");
    }
    let mut narrow = ClientConfig::default();
    narrow.limits.end = Some(IovaPage(4));
    let narrow = rig.dma.client(narrow).unwrap();
    assert!(narrow.buffer::<ToDevice>(ByteCount(5 * GRANULE)).is_none());
    assert_eq!(rig.p.frames_left.load(Relaxed), 2048);
    assert!(narrow.buffer::<ToDevice>(ByteCount(4 * GRANULE)).is_some());
}

/// Those that defer, with the design that each is of.
fn deferred() -> [PolicyConfig; 4] {
    [
        PolicyConfig::DeferredPerCpu(DeferredConfig::default()),
        PolicyConfig::DeferredGlobal(DeferredConfig::default()),
        PolicyConfig::MacOs(MacOsConfig::default()),
        PolicyConfig::Solaris,
    ]
}

/// Half-way: the tables of a leaf table's pages are there, and no more.
fn give_half(rig: &Rig, client: &Dev) -> DmaMapError {
    let buffer: CpuBuffer<_, FromDevice> = client.buffer(ByteCount(1024 * GRANULE)).unwrap();
    rig.frames_left(3);
    let error = client.give(buffer).map(drop).unwrap_err();
    rig.frames_left(u64::MAX);
    error
}

#[test]
fn a_give_that_fails_half_way_frees_its_frames_after_the_flush() {
    let strict = [PolicyConfig::Strict, PolicyConfig::FreeBsd];
    for policy in deferred().into_iter().chain(strict) {
        let rig = Rig::new(policy);
        let used = rig.in_use();
        let client = rig.client(Placement::Never);
        let early = rig.frees_unflushed(|| match give_half(&rig, &client) {
            DmaMapError::Direct(MapError::Install(why)) => {
                assert_eq!(why.done, PageCount(512), "{policy:?}");
            }
            other => panic!("{policy:?}: {other}"),
        });
        assert!(!early, "{policy:?}: the device writes there");
        rig.dma.domain().flush().unwrap();
        assert!(rig.in_use() <= used + 3, "{policy:?}: frames left");
    }
}

#[test]
fn a_give_that_fails_and_is_not_flushed_loses_its_frames() {
    for policy in [PolicyConfig::Strict, PolicyConfig::FreeBsd] {
        let rig = Rig::new(policy);
        let client = rig.client(Placement::Never);
        rig.fail(true);
        let error = give_half(&rig, &client);
        assert!(
            matches!(error, DmaMapError::Direct(MapError::Invalidate(_))),
            "{policy:?}: {error}"
        );
        rig.fail(false);
        rig.dma.domain().flush().unwrap();
        assert!(rig.in_use() >= 1024, "{policy:?}: the device writes there");
        let lost = rig.dma.domain().stats().quarantined.frames;
        assert!(lost >= 1024, "{policy:?}: {lost} are counted");
    }
}
