// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Attacks, each by itself, byte by byte.

use crate::bounce::{
    rig::*,
    suite::{DISK, NIC, designs, is_strict},
};
use crate::lend;
use ioatlas_dma::{dma_api::*, domain::DomainConfig, units::*};
use ioatlas_host::Host;

const BESIDE: u8 = 0xee;
const SECRET: u8 = 0x5e;
const DEVICE: u8 = 0xd0;

/// Those that protect what lies beside buffers.
const PROTECTING: [Placement; 4] = [
    Placement::Always,
    Placement::Untrusted {
        whole_up_to: ByteCount(4096),
    },
    Placement::Untrusted {
        whole_up_to: ByteCount(0),
    },
    Placement::SingleUse,
];

fn strict() -> DomainConfig {
    let strict = designs().into_iter().find(is_strict);
    strict.expect("a strict design")
}

fn rig(growth: Growth) -> Rig<Host> {
    Rig::new(512, strict(), tight(growth))
}

fn part(at: PhysAddr, offset: u64, len: u64) -> PhysRange {
    PhysRange::new(PhysAddr(at.0 + offset), ByteCount(len))
}

/// All the granules about a mapping, and one on either side.
fn around(mapping: &DmaMapping) -> (Iova, u64) {
    let first = mapping.iova().page().0.saturating_sub(1);
    let last = Iova(mapping.iova().0 + mapping.len().0 - 1).page().0 + 1;
    (IovaPage(first).addr(), (last + 1 - first) * GRANULE)
}

#[track_caller]
fn all_are(bytes: &[u8], byte: u8, what: &str) {
    let other = bytes.iter().position(|b| *b != byte);
    assert_eq!(other, None, "P7: {what}");
}

#[test]
fn writing_past_the_buffer_changes_nothing_but_the_buffer() {
    for (placement, len) in PROTECTING.into_iter().flat_map(|p| [(p, 100), (p, 6000)]) {
        let mut rig = rig(ON_DEMAND);
        let memory = rig.memory(3);
        rig.fill(part(memory, 0, 3 * GRANULE), BESIDE);
        let client = rig.client(placement);
        for direction in [Direction::FromDevice, Direction::Bidirectional] {
            let mapping = client
                .map_single(lend(part(memory, 300, len)), direction)
                .expect("room");
            let (from, all) = around(&mapping);
            let written = rig.device_write(NIC, from, &vec![DEVICE; all as usize]);
            assert!(
                written as u64 >= len,
                "{placement:?}: it may write the buffer"
            );
            client.unmap(mapping).expect("unmapped");
            let seen = rig.peek(memory, 3 * GRANULE);
            all_are(&seen[..300], BESIDE, "bytes before the buffer were written");
            let (own, behind) = seen[300..].split_at(len as usize);
            all_are(own, DEVICE, "what the device wrote is lost");
            all_are(behind, BESIDE, "bytes behind the buffer were written");
        }
        drop(client);
        rig.end("an overrun");
    }
}

#[test]
fn reading_padding_shows_zeroes() {
    for growth in [ON_DEMAND, Growth::Fixed] {
        for (placement, len) in PROTECTING.into_iter().flat_map(|p| [(p, 100), (p, 6000)]) {
            let mut rig = rig(growth);
            let memory = rig.memory(3);
            rig.fill(part(memory, 0, 3 * GRANULE), BESIDE);
            let client = rig.client(placement);
            for tag in 1..4 {
                let buffer = part(memory, 300, len);
                rig.fill(buffer, tag);
                let mapping = client
                    .map_single(lend(buffer), Direction::ToDevice)
                    .expect("room");
                let (from, all) = around(&mapping);
                let start = mapping.iova().0 - from.0;
                for (at, byte) in (0..).zip(rig.device_read(NIC, from, all)) {
                    let own = (start..start + len).contains(&at);
                    let fine = match byte {
                        None => !own,
                        Some(byte) => byte == if own { tag } else { 0 },
                    };
                    assert!(fine, "P7: {placement:?}, byte {at}: {byte:x?}, tag {tag}");
                }
                client.unmap(mapping).expect("unmapped");
                rig.fill(buffer, BESIDE);
            }
            drop(client);
            rig.end("padding");
        }
    }
}

#[test]
fn a_recycled_slot_shows_nothing_of_earlier_users() {
    let directions = [
        Direction::ToDevice,
        Direction::FromDevice,
        Direction::Bidirectional,
    ];
    for growth in [ON_DEMAND, Growth::Fixed] {
        for (first, second) in directions
            .into_iter()
            .flat_map(|a| directions.map(|b| (a, b)))
        {
            let mut rig = rig(growth);
            let memory = rig.memory(2);
            let client = rig.client(Placement::Always);
            // each slot of the class has had a long secret, and a device that wrote it all over
            let live: Vec<_> = (0..2)
                .map(|_| {
                    rig.fill(part(memory, 0, 4000), SECRET);
                    let mapping = client
                        .map_single(lend(part(memory, 0, 4000)), first)
                        .expect("room");
                    rig.device_write(NIC, mapping.iova().page().addr(), &[SECRET; 4096]);
                    mapping
                })
                .collect();
            live.into_iter()
                .for_each(|m| assert!(client.unmap(m).is_ok()));
            rig.fill(part(memory, 0, 2 * GRANULE), 1);
            let mapping = client
                .map_single(lend(part(memory, 0, 50)), second)
                .expect("room");
            let seen = rig.device_read(DISK, mapping.iova().page().addr(), 4096);
            let shown: Vec<u8> = seen.into_iter().flatten().collect();
            assert!(
                !shown.contains(&SECRET),
                "P7: {growth:?}: an earlier user's bytes, {first:?} then {second:?}"
            );
            client.unmap(mapping).expect("unmapped");
            let back = rig.peek(memory, 50);
            let expected = match second {
                Direction::FromDevice => 0,
                _ => 1,
            };
            all_are(
                &back,
                expected,
                "bytes came back that this device never wrote",
            );
            drop(client);
            rig.end("a recycled slot");
        }
    }
}

#[test]
fn a_stale_write_to_an_unmapped_slot_reaches_no_later_user() {
    let mut rig = rig(ON_DEMAND);
    let memory = rig.memory(2);
    let client = rig.client(Placement::Always);
    let buffer = part(memory, 10, 100);
    rig.fill(buffer, 1);
    let mapping = client
        .map_single(lend(buffer), Direction::Bidirectional)
        .expect("room");
    let at = mapping.iova();
    client.unmap(mapping).expect("unmapped");
    // the slot stays mapped, and the device goes on with it
    rig.device_write(NIC, at.page().addr(), &[DEVICE; 4096]);
    all_are(
        &rig.peek(buffer.addr, 100),
        1,
        "a write after unmap arrived",
    );
    rig.fill(buffer, 2);
    let mapping = client
        .map_single(lend(buffer), Direction::Bidirectional)
        .expect("room");
    assert_eq!(mapping.iova(), at, "the slot of before");
    let seen: Vec<_> = rig.device_read(NIC, at.page().addr(), 4096);
    let seen: Vec<u8> = seen.into_iter().map(|b| b.expect("readable")).collect();
    all_are(
        &seen[..100],
        2,
        "a stale write was taken for this user's data",
    );
    all_are(&seen[100..], 0, "a stale write stayed in the padding");
    client.unmap(mapping).expect("unmapped");
    all_are(&rig.peek(buffer.addr, 100), 2, "a stale write came back");
    drop(client);
    rig.end("a stale write");
}

#[test]
fn two_buffers_on_one_page_keep_their_permissions_apart() {
    for placement in PROTECTING {
        let mut rig = rig(ON_DEMAND);
        let memory = rig.memory(1);
        rig.fill(part(memory, 0, GRANULE), BESIDE);
        let (secret, inbox) = (part(memory, 512, 256), part(memory, 768, 256));
        rig.fill(secret, SECRET);
        let client = rig.client(placement);
        let to = client
            .map_single(lend(secret), Direction::ToDevice)
            .expect("room");
        let from = client
            .map_single(lend(inbox), Direction::FromDevice)
            .expect("room");
        assert_ne!(to.iova().page(), from.iova().page(), "P6: {placement:?}");
        let (at, all) = around(&to);
        let reached = rig.device_read(NIC, at, all);
        let shown: Vec<u8> = reached.into_iter().flatten().collect();
        assert!(
            !shown.contains(&BESIDE),
            "P7: {placement:?}: a neighbour was read"
        );
        assert_eq!(
            rig.device_write(NIC, to.iova(), &[DEVICE; 256]),
            0,
            "P6: {placement:?}: written where it may only read"
        );
        assert_eq!(
            rig.device_read(NIC, from.iova(), 256),
            vec![None; 256],
            "P6: {placement:?}: read where it may only write"
        );
        let page = from.iova().page().addr();
        assert_eq!(
            rig.device_write(NIC, page, &[DEVICE; 4096]),
            4096,
            "{placement:?}"
        );
        all_are(
            &rig.peek(secret.addr, 256),
            SECRET,
            "a neighbour was written",
        );
        client.unmap(from).expect("unmapped");
        client.unmap(to).expect("unmapped");
        let seen = rig.peek(memory, GRANULE);
        all_are(&seen[..512], BESIDE, "bytes before the buffers");
        all_are(&seen[512..768], SECRET, "the neighbour");
        all_are(&seen[768..1024], DEVICE, "the buffer");
        all_are(&seen[1024..], BESIDE, "bytes behind the buffers");
        drop(client);
        rig.end("one page");
    }
}

#[test]
fn what_was_checked_after_unmap_does_not_change_any_more() {
    for placement in PROTECTING {
        let mut rig = rig(ON_DEMAND);
        let memory = rig.memory(3);
        let client = rig.client(placement);
        for len in [64, 4096, 9000] {
            let buffer = part(memory, 0, len);
            rig.fill(buffer, 1);
            let mapping = client
                .map_single(lend(buffer), Direction::FromDevice)
                .expect("room");
            let (from, all) = around(&mapping);
            rig.device_write(NIC, mapping.iova(), &vec![DEVICE; len as usize]);
            client.unmap(mapping).expect("unmapped");
            all_are(&rig.peek(memory, len), DEVICE, "what the device wrote");
            for byte in [0xd1, 0xd2] {
                rig.device_write(NIC, from, &vec![byte; all as usize]);
                all_are(
                    &rig.peek(memory, len),
                    DEVICE,
                    "the device changed what was checked (TOCTOU)",
                );
            }
        }
        drop(client);
        rig.end("TOCTOU");
    }
}

#[test]
fn a_busy_device_cannot_take_the_fixed_share_of_another() {
    let mut rig = rig(Growth::Fixed);
    let memory = rig.memory(2);
    let class = ClassConfig {
        pages_lg2: 0,
        slots: 4,
    };
    let share = PoolConfig::of(class).growth(Growth::Fixed);
    let client = || {
        let config = ClientConfig::default().placement(Placement::Always);
        rig.dma
            .client_with_pool(config, &share)
            .expect("memory for a share")
    };
    let (busy, quiet) = (client(), client());
    let buffer = part(memory, 0, 100);
    let take_all = |client: &Dev<Host>| {
        let mut live = Vec::new();
        let why = loop {
            match client.map_single(lend(buffer), Direction::Bidirectional) {
                Ok(mapping) => live.push(mapping),
                Err(why) => break why,
            }
            assert!(live.len() <= 4, "P10: more than there is");
        };
        (live, why)
    };
    let (all, why) = take_all(&busy);
    assert_eq!(all.len(), 4);
    let DmaMapError::NoSpace(lack) = why else {
        panic!("{why}")
    };
    assert_eq!((lack.slots, lack.len), (Lack::Full, ByteCount(100)));
    let used = rig.frames_in_use();
    // all of the other's share is still there, each time anew
    for _ in 0..8 {
        let (mine, why) = take_all(&quiet);
        assert_eq!(mine.len(), 4, "the other device took of this one's share");
        assert!(matches!(why, DmaMapError::NoSpace(_)), "{why}");
        mine.into_iter()
            .for_each(|m| assert!(quiet.unmap(m).is_ok()));
        assert!(busy.map_single(lend(buffer), Direction::ToDevice).is_err());
    }
    assert_eq!(rig.frames_in_use(), used, "a fixed pool takes no memory");
    all.into_iter().for_each(|m| assert!(busy.unmap(m).is_ok()));
    drop((busy, quiet));
    rig.end("shares");
}

#[test]
fn a_list_in_one_buffer_shows_and_brings_back_its_segments_alone() {
    for growth in [ON_DEMAND, Growth::Fixed] {
        let mut rig = rig(growth);
        let memory = rig.memory(3);
        rig.fill(part(memory, 0, 3 * GRANULE), BESIDE);
        // edges within granules, two segments on one page, out of order
        let list = [
            part(memory, 5000, 700),
            part(memory, 10, 90),
            part(memory, 200, 1),
        ];
        let client = rig.client(Placement::Always);
        for (nth, segment) in (1..).zip(list) {
            rig.fill(segment, nth);
        }
        let mapping = client
            .map_sg(lend(list), Direction::Bidirectional)
            .expect("room");
        let seen = rig.device_read(NIC, mapping.iova(), GRANULE);
        let seen: Vec<u8> = seen.into_iter().map(|b| b.expect("readable")).collect();
        let mut expected = [vec![1; 700], vec![2; 90], vec![3; 1]].concat();
        expected.resize(GRANULE as usize, 0);
        assert_eq!(seen, expected, "P7: {growth:?}");
        rig.device_write(NIC, mapping.iova(), &[DEVICE; GRANULE as usize]);
        client.unmap(mapping).expect("unmapped");
        let inside = |at: &u64| {
            [5000..5700, 10..100, 200..201]
                .iter()
                .any(|s| s.contains(at))
        };
        for (at, byte) in (0..).zip(rig.peek(memory, 3 * GRANULE)) {
            let expected = if inside(&at) { DEVICE } else { BESIDE };
            assert_eq!(byte, expected, "P7: {growth:?}: byte {at}");
        }
        drop(client);
        rig.end("a list");
    }
}

#[test]
fn keeping_low_bits_shows_no_neighbour() {
    for placement in &PROTECTING[..3] {
        for (offset, len) in [(4095, 1), (100, 50), (3000, 5000), (1, 4095)] {
            let mut rig = rig(ON_DEMAND);
            let memory = rig.memory(2);
            rig.fill(part(memory, 0, 2 * GRANULE), BESIDE);
            let config = ClientConfig::default()
                .placement(*placement)
                .low_bits(LowBits::Kept);
            let client = rig.dma.client(config).expect("a pool");
            let buffer = part(memory, offset, len);
            rig.fill(buffer, 1);
            let mapping = client
                .map_single(lend(buffer), Direction::Bidirectional)
                .expect("room");
            assert_eq!(mapping.iova().offset(), offset, "{placement:?}");
            let page = mapping.iova().page().addr();
            let pages = (offset + len).div_ceil(GRANULE) * GRANULE;
            for (at, byte) in (0..).zip(rig.device_read(NIC, page, pages)) {
                let own = (offset..offset + len).contains(&at);
                let expected = Some(u8::from(own));
                assert_eq!(byte, expected, "P7: {placement:?}: byte {at}");
            }
            rig.device_write(NIC, page, &vec![DEVICE; pages as usize]);
            client.unmap(mapping).expect("unmapped");
            for (at, byte) in (0..).zip(rig.peek(memory, 2 * GRANULE)) {
                let own = (offset..offset + len).contains(&at);
                let expected = if own { DEVICE } else { BESIDE };
                assert_eq!(byte, expected, "P7: {placement:?}: byte {at}");
            }
            drop(client);
            rig.end("low bits");
        }
    }
}
