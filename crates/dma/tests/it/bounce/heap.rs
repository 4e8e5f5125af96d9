// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A heap that has nothing.

use crate::{
    allocators::counting::{Failing, failing},
    bounce::rig::Rig,
};
use ioatlas_dma::{dma_api::*, units::*};

/// Slots that CPUs keep in magazines; those that find no place give their memory back.
#[test]
fn unmap_does_without_magazines() {
    for direction in [Direction::ToDevice, Direction::FromDevice] {
        for nth in 0..3 {
            let rig = Rig::new(DmaConfig::default());
            let client = rig.client(Placement::Always);
            let buffer = PhysRange::new(PhysAddr(rig.memory(1).0 + 100), ByteCount(50));
            let map = |_| client.map_single(buffer, direction).expect("room");
            let held: Vec<_> = (0..40).map(map).collect();
            let (unmapped, failed) = failing(Failing::From(nth), || {
                held.into_iter().all(|held| client.unmap(held).is_ok())
            });
            assert!(unmapped && failed, "without {nth}");
            for pool in rig.dma.audit().expect("P10: nothing is lost") {
                let taken: u64 = pool.classes.iter().map(|(_, slots)| slots.taken).sum();
                assert_eq!(taken, 0, "P10: without {nth}");
            }
        }
    }
}

/// What magazines there are has room for all slots of a fixed pool, whichever CPU gives them back.
#[test]
fn a_fixed_pool_needs_no_memory_and_unmaps_nothing() {
    const SLOTS: u32 = 16;
    let rig = Rig::new(DmaConfig::default());
    let pool = PoolConfig {
        growth: Growth::Fixed,
        ..PoolConfig::of(ClassConfig {
            pages_lg2: 0,
            slots: SLOTS,
        })
    };
    let config = ClientConfig {
        placement: Placement::Always,
        ..ClientConfig::default()
    };
    let client = rig.dma.client_with_pool(config, &pool).unwrap();
    let buffer = PhysRange::new(rig.memory(1), ByteCount(50));
    let before = rig.domain.stats().invalidations;
    for _ in 0..3 {
        let map = |_| {
            client
                .map_single(buffer, Direction::ToDevice)
                .expect("room")
        };
        let held: Vec<_> = (0..SLOTS).map(map).collect();
        let unmapped = std::thread::scope(|scope| {
            let elsewhere = scope.spawn(|| {
                let unmap = || held.into_iter().all(|held| client.unmap(held).is_ok());
                failing(Failing::From(0), unmap).0
            });
            elsewhere.join().expect("no panic")
        });
        assert!(unmapped);
        rig.dma.audit().expect("P10: nothing is lost");
    }
    let after = rig.domain.stats().invalidations;
    assert_eq!(after, before, "a fixed pool maps and unmaps nothing");
}
