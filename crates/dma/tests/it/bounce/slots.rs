// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Slots: what the device sees, what comes back, and what does not.

use crate::bounce::rig::Rig;
use crate::lend;
use ioatlas_dma::{dma_api::*, units::*};

fn bytes(of: &[Option<u8>]) -> Vec<u8> {
    of.iter().map(|byte| byte.expect("readable")).collect()
}

#[test]
fn a_sent_buffer_is_seen_with_nothing_beside_it() {
    let rig = Rig::new(DmaConfig::default());
    let client = rig.client(Placement::Always);
    let memory = rig.memory(1);
    rig.poke(memory, &[0xee; 4096]);
    rig.poke(PhysAddr(memory.0 + 100), b"hello");
    let buffer = PhysRange::new(PhysAddr(memory.0 + 100), ByteCount(5));
    let mapping = client
        .map_single(lend(buffer), Direction::ToDevice)
        .unwrap();
    assert!(mapping.is_bounced());
    let seen = bytes(&rig.device_read(mapping.iova(), 4096));
    assert_eq!(&seen[..5], b"hello");
    assert!(
        seen[5..].iter().all(|byte| *byte == 0),
        "P7: padding is zero"
    );
    assert_eq!(rig.device_write(mapping.iova(), b"jello"), 0);
    client.unmap(mapping).unwrap();
    // a shorter user of the same slot
    let buffer = PhysRange::new(PhysAddr(memory.0 + 100), ByteCount(2));
    let mapping = client
        .map_single(lend(buffer), Direction::ToDevice)
        .unwrap();
    let seen = bytes(&rig.device_read(mapping.iova(), 4096));
    assert_eq!(&seen[..2], b"he");
    let rest = seen[2..].iter().all(|byte| *byte == 0);
    assert!(rest, "P7: no byte of an earlier user is visible");
    client.unmap(mapping).unwrap();
}

#[test]
fn what_the_device_wrote_comes_back_and_nothing_else_changes() {
    let rig = Rig::new(DmaConfig::default());
    let client = rig.client(Placement::Always);
    let memory = rig.memory(1);
    rig.poke(memory, &[0xee; 4096]);
    let buffer = PhysRange::new(PhysAddr(memory.0 + 100), ByteCount(50));
    for round in 0..2 {
        let mapping = client
            .map_single(lend(buffer), Direction::FromDevice)
            .unwrap();
        let read = rig.device_read(mapping.iova(), 8);
        assert!(read.iter().all(Option::is_none), "it may only write");
        let wrote = if round == 0 { 200 } else { 10 };
        assert_eq!(rig.device_write(mapping.iova(), &vec![7; wrote]), wrote);
        client.unmap(mapping).unwrap();
        let seen = rig.peek(memory, 4096);
        let kept = wrote.min(50);
        let wrote_back = seen[100..100 + kept].iter().all(|byte| *byte == 7);
        assert!(wrote_back, "P7: what the device wrote is lost");
        let unwritten = seen[100 + kept..150].iter().all(|byte| *byte == 0);
        assert!(unwritten, "P7: bytes of an earlier user came back");
        let around = seen[..100].iter().chain(&seen[150..]);
        assert!(
            around.copied().all(|byte| byte == 0xee),
            "P7: copy-back covers the mapped range"
        );
    }
    let longer = PhysRange::new(memory, ByteCount(4096));
    let mapping = client
        .map_single(lend(longer), Direction::FromDevice)
        .unwrap();
    client.unmap(mapping).unwrap();
    let seen = rig.peek(memory, 4096);
    assert!(
        seen.iter().all(|byte| *byte == 0),
        "P7: an overrun of an earlier user came back"
    );
}
