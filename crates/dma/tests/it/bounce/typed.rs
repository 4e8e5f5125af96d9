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

const LEN: ByteCount = ByteCount(GRANULE);

/// Those that defer, with the design that each is of.
fn deferred() -> [PolicyConfig; 4] {
    [
        PolicyConfig::DeferredPerCpu(DeferredConfig::default()),
        PolicyConfig::DeferredGlobal(DeferredConfig::default()),
        PolicyConfig::MacOs(MacOsConfig::default()),
        PolicyConfig::Solaris,
    ]
}

/// A buffer that was given and taken back.
fn taken_back(client: &Dev) -> CpuBuffer<Patchy, FromDevice> {
    let buffer = client.buffer(LEN).unwrap();
    client.take_back(client.give(buffer).unwrap()).unwrap()
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
        assert!(!early, "P4: {policy:?}: free, and the device writes there");
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

#[test]
fn a_dropped_buffers_frames_wait_for_the_flush() {
    for policy in deferred() {
        let rig = Rig::new(policy);
        let client = rig.client(Placement::Never);
        for nth in 0..1000 {
            let buffer = taken_back(&client);
            let early = rig.frees_unflushed(|| drop(buffer));
            assert!(
                !early,
                "P4: {policy:?}, {nth}: free, and the device writes there"
            );
        }
        rig.dma.domain().flush().unwrap();
        let used = rig.in_use();
        drop(taken_back(&client));
        rig.dma.domain().flush().unwrap();
        assert_eq!(rig.in_use(), used, "{policy:?}: it did not be freed");
    }
}

/// What a device of one domain may still reach is not given to another's.
#[test]
fn a_buffer_goes_to_another_domain_after_a_flush() {
    for policy in deferred() {
        let rig = Rig::new(policy);
        let other = rig.another(PolicyConfig::Strict);
        let (here, there) = (
            rig.client(Placement::Never),
            client(&other, Placement::Never),
        );
        let used = rig.in_use();
        let back = taken_back(&here);
        let flushes = || rig.dma.domain().stats().invalidations;
        let before = flushes();
        let early = rig.frees_unflushed(|| {
            let given = there.give(back).unwrap();
            drop(there.take_back(given).unwrap());
        });
        assert!(
            !early && flushes() > before,
            "P4: {policy:?}: free, and the first device writes there"
        );
        let back = taken_back(&here);
        rig.fail(true);
        let refused = there.give(back).map(drop);
        assert!(matches!(
            refused,
            Err(DmaMapError::Direct(MapError::Invalidate(_)))
        ));
        rig.fail(false);
        rig.dma.domain().flush().unwrap();
        assert!(rig.in_use() <= used + 8, "{policy:?}: tables at most");
    }
}

/// The domain lives as long as a buffer that its devices may reach.
#[test]
fn a_buffer_may_be_the_last_to_go() {
    for policy in deferred() {
        let rig = Rig::new(policy);
        let other = rig.another(policy);
        let used = rig.in_use();
        let client = client(&other, Placement::Never);
        let back = taken_back(&client);
        drop((client, other));
        back.write(ByteCount(0), b"still here").unwrap();
        assert!(!rig.frees_unflushed(|| drop(back)), "{policy:?}");
        assert!(rig.in_use() < used, "{policy:?}: its tables are free too");
    }
}

/// What waits for a flush is memory, too.
#[test]
fn a_buffer_takes_what_waits_for_a_flush() {
    for policy in deferred() {
        let rig = Rig::new(policy);
        let client = rig.client(Placement::Never);
        drop(taken_back(&client));
        let mut held: Vec<CpuBuffer<_, FromDevice>> = Vec::new();
        held.extend(std::iter::from_fn(|| client.buffer(LEN)));
        let given = client.give(held.pop().unwrap()).unwrap();
        drop(client.take_back(given).unwrap());
        assert!(client.buffer::<FromDevice>(LEN).is_some(), "{policy:?}");
    }
}
