// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Several threads, one pool.

use crate::bounce::rig::Rig;
use crate::lend;
use ioatlas_dma::{dma_api::*, units::*};
use ioatlas_host::register;

/// So few slots that threads take them from each other, and everything beyond is used, too.
fn contended() -> DmaConfig {
    let class = |(pages_lg2, slots)| ClassConfig { pages_lg2, slots };
    DmaConfig::default().pool(
        PoolConfig::default()
            .classes([(0, 6), (2, 2)].map(class).into())
            .growth(Growth::OnDemand {
                chunks_max: 1,
                single_use: SingleUse::Allowed,
            })
            .idle_ns(1),
    )
}

#[test]
fn threads_that_share_a_pool_never_see_each_others_bytes() {
    let rig = Rig::new(contended());
    let clients = [
        rig.client(Placement::Always),
        rig.client(Placement::Untrusted {
            whole_up_to: ByteCount(4096),
        }),
        rig.client(Placement::Below(ByteCount(6000))),
    ];
    let memories: Vec<PhysAddr> = (0..3).map(|_| rig.memory(4)).collect();
    std::thread::scope(|scope| {
        for thread in 0..3u8 {
            let (rig, clients, memories) = (&rig, &clients, &memories);
            scope.spawn(move || {
                register();
                let own = memories[usize::from(thread)];
                for round in 0..1500usize {
                    let client = &clients[(round + usize::from(thread)) % 3];
                    let (at, len) = ((round * 37 % 4096) as u64, 1 + (round * 997 % 9000) as u64);
                    let buffer = PhysRange::new(PhysAddr(own.0 + at), ByteCount(len));
                    // marks that no other thread has
                    let mark = thread * 64 + (round % 64) as u8;
                    let direction = [
                        Direction::ToDevice,
                        Direction::FromDevice,
                        Direction::Bidirectional,
                    ][round % 3];
                    rig.poke(buffer.addr, &vec![mark; len as usize]);
                    let mapping = client.map_single(lend(buffer), direction).unwrap();
                    if direction != Direction::FromDevice {
                        let seen = rig.device_read(mapping.iova(), len);
                        let same = seen.iter().all(|byte| *byte == Some(mark));
                        assert!(same, "P7: thread {thread}, round {round}");
                    }
                    if direction != Direction::ToDevice {
                        let wrote = rig.device_write(mapping.iova(), &vec![mark ^ 1; len as usize]);
                        assert_eq!(wrote as u64, len, "P14");
                    }
                    client.unmap(mapping).unwrap();
                    let expected = match direction {
                        Direction::ToDevice => mark,
                        _ => mark ^ 1,
                    };
                    let back = rig.peek(buffer.addr, len as usize);
                    let same = back.iter().all(|byte| *byte == expected);
                    assert!(same, "P7: thread {thread}, round {round}: what came back");
                    if round % 50 == 0 {
                        rig.dma.tick(TimeNs(1_000_000 * round as u64));
                    }
                }
            });
        }
    });
    for pool in rig.dma.audit().unwrap() {
        let taken = pool
            .classes
            .iter()
            .map(|(_, slots)| slots.taken)
            .sum::<u64>();
        assert_eq!((taken, pool.chunks.taken.0), (0, 0), "P10");
    }
    rig.domain.audit().unwrap();
}
