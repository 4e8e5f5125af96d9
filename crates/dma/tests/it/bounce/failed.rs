// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! An invalidation fails: what it should have freed is never used again, and is counted, whatever
//! the policy.

use crate::bounce::patchy::*;
use crate::lend;
use ioatlas_dma::{dma_api::*, domain::*, platform::*, units::*};

fn policies() -> [PolicyConfig; 6] {
    [
        PolicyConfig::Strict,
        PolicyConfig::FreeBsd,
        PolicyConfig::DeferredPerCpu(DeferredConfig::default()),
        PolicyConfig::DeferredGlobal(DeferredConfig::default()),
        PolicyConfig::MacOs(MacOsConfig::default()),
        PolicyConfig::Solaris,
    ]
}

fn page() -> PhysRange {
    PhysRange::page(PhysPage(7))
}

#[test]
fn pages_that_were_not_flushed_are_never_mapped_again() {
    for policy in policies() {
        let rig = Rig::new(policy);
        let domain = rig.dma.domain();
        let map = || domain.map(page(), Direction::FromDevice);
        let kept = map().unwrap();
        let mapping = map().unwrap();
        let at = mapping.range();
        rig.fail(true);
        let mut told = domain.unmap(mapping).is_err();
        // solaris flushes what it maps
        if policy != PolicyConfig::Solaris {
            told |= domain.flush().is_err();
        }
        let again: Vec<_> = std::iter::repeat_with(map).take(64).collect();
        told |= again.iter().any(Result::is_err);
        for mapping in again.iter().flatten() {
            assert!(
                !mapping.range().overlaps(&at),
                "P3: {policy:?}: {at} is mapped again, and no invalidation of it has completed"
            );
        }
        assert!(told, "{policy:?}: no call reports it");
        let audit = domain.audit();
        let audit = audit.unwrap_or_else(|what| panic!("P10: {policy:?}: {what}"));
        assert!(
            audit.stats.quarantined.pages >= at.pages,
            "P10: {policy:?}: {at} is counted nowhere"
        );
        drop((kept, again));
    }
}

/// As much of it is mapped as a leaf table has.
const HALF: u64 = 512;
/// The tables for that.
const TABLES: u64 = 3;

#[test]
fn frames_of_a_map_that_was_undone_and_not_flushed_are_never_free() {
    const FRAMES: u64 = 2 * HALF;
    type Case = (&'static str, fn(&Rig) -> bool);
    let cases: [Case; 2] = [
        ("consistent memory", |rig| {
            let len = ByteCount(FRAMES * GRANULE);
            let made = rig.dma.domain().alloc_consistent(len);
            matches!(made, Err(MapError::Invalidate(_)))
        }),
        ("a buffer for one use", |rig| {
            // both ends lie inside a granule
            let buffer = PhysRange::new(PhysAddr(8), ByteCount((FRAMES - 1) * GRANULE));
            let client = rig.client(Placement::SingleUse);
            match client.map_single(lend(buffer), Direction::FromDevice) {
                Err(DmaMapError::NoSpace(none)) => matches!(none.single_use, Lack::Invalidate(_)),
                _ => false,
            }
        }),
    ];
    for policy in [PolicyConfig::Strict, PolicyConfig::FreeBsd] {
        for (what, map) in cases {
            let rig = Rig::new(policy);
            rig.frames_left(FRAMES + TABLES);
            rig.fail(true);
            let mut failed = false;
            let early = rig.frees_unflushed(|| failed = map(&rig));
            assert!(
                !early,
                "P4: {policy:?}: frames of {what} are free, and caches may lead there"
            );
            assert!(failed, "{policy:?}: {what}");
            let lost = rig.dma.domain().stats().quarantined.frames;
            assert!(lost >= FRAMES, "P10: {policy:?}: {lost} of {what} counted");
        }
    }
}

#[test]
fn a_domain_that_ends_and_is_not_flushed_keeps_its_tables_and_its_id() {
    for policy in policies() {
        let rig = Rig::new(policy);
        let other = rig.another(policy);
        let id = other.domain().id();
        let mapping = other.domain().map(page(), Direction::FromDevice).unwrap();
        rig.fail(true);
        let early = rig.frees_unflushed(|| drop(other));
        assert!(
            !early,
            "P4: {policy:?}: tables are free, and walk caches may lead to them"
        );
        rig.fail(false);
        let next = rig.another(policy);
        assert_ne!(
            next.domain().id(),
            id,
            "P8: {policy:?}: the id is another domain's, and was never flushed"
        );
        drop(mapping);
    }
}

#[test]
fn a_slot_that_was_not_flushed_is_never_used_again() {
    let rig = Rig::new(PolicyConfig::Strict);
    let client = rig.client(Placement::Always);
    let memory = rig.p.frame_alloc().unwrap().page().addr();
    let map = || {
        let buffer = PhysRange::new(memory, ByteCount(100));
        client
            .map_single(lend(buffer), Direction::FromDevice)
            .unwrap()
    };
    let mapping = map();
    let at = mapping.iova().page();
    client.unmap(mapping).unwrap();
    rig.fail(true);
    // idle for long: it is to lose its memory
    rig.dma.tick(TimeNs(1));
    rig.dma.tick(TimeNs(u64::MAX));
    let lost = rig.dma.domain().stats().quarantined.frames;
    let taken: Vec<_> = std::iter::repeat_with(map).take(8).collect();
    assert!(
        taken.iter().all(|mapping| mapping.iova().page() != at),
        "P3: {at} is mapped again, and no invalidation of it has completed"
    );
    assert!(lost > 0, "P10: its frame is counted nowhere");
}
