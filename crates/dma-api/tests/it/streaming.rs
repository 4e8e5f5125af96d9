// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Buffers that are mapped for a request: what a device reaches of them, when, and what comes back.

use crate::rig::*;
use dma_api::{DmaDirection, StreamingMap};
use ioatlas_dma::dma_api::Placement;

const DIRECTIONS: [DmaDirection; 3] = [
    DmaDirection::ToDevice,
    DmaDirection::FromDevice,
    DmaDirection::Bidirectional,
];

fn address<T: dma_api::DmaPod>(map: &StreamingMap<T>) -> u64 {
    map.dma_addr().as_u64()
}

#[test]
fn what_was_unmapped_cannot_be_reached() {
    for direction in DIRECTIONS {
        let rig = Rig::new(Placement::Never);
        let mut bytes = vec![7_u8; 3 * PAGE];
        let map = rig.driver().map_streaming_slice(&mut bytes, 1, direction);
        let map = map.unwrap();
        let at = address(&map);
        assert_eq!(
            rig.read(at, 1).is_ok(),
            direction != DmaDirection::FromDevice
        );
        assert_eq!(
            rig.write(at, &[7]).is_ok(),
            direction != DmaDirection::ToDevice
        );
        drop(map);
        for at in [at, at + 3 * PAGE as u64 - 1] {
            assert!(rig.is_blocked(at), "P1: {direction:?}");
        }
        assert_eq!(bytes, vec![7; 3 * PAGE]);
        rig.end();
    }
}

/// The device keeps writing to a copy; the buffer has what its driver asked for, when it did.
#[test]
fn a_bounced_buffer_changes_only_where_it_is_synchronised() {
    for direction in [DmaDirection::FromDevice, DmaDirection::Bidirectional] {
        let rig = Rig::new(Placement::Always);
        let mut bytes = [7_u8; 100];
        let before = bytes;
        let mut map = rig
            .driver()
            .map_streaming_slice(&mut bytes, 1, direction)
            .unwrap();
        rig.write(address(&map), &[9; 100]).unwrap();
        assert_eq!(map.to_vec_cpu(), before, "P7");
        map.complete_for_cpu(10..20);
        let mut expected = before;
        expected[10..20].fill(9);
        assert_eq!(map.to_vec_cpu(), expected, "P7");
        // the driver changes what it got, and drops the map
        map.set_cpu(15, 1);
        expected[15] = 1;
        rig.write(address(&map), &[8; 100]).unwrap();
        drop(map);
        assert_eq!(bytes, expected, "P7: nothing is brought back");
        rig.end();
    }
}

#[test]
fn what_the_cpu_changes_is_the_devices_where_it_is_synchronised() {
    for placement in PLACEMENTS {
        for direction in [DmaDirection::ToDevice, DmaDirection::Bidirectional] {
            let rig = Rig::new(placement);
            let mut words = [7_u32; 50];
            let map = rig
                .driver()
                .map_streaming_slice_for_device(&mut words, 4, direction);
            let mut map = map.unwrap();
            let at = address(&map);
            map.set_cpu(3, 0x0a0b_0c0d);
            map.prepare_for_device(12..16);
            assert_eq!(rig.read(at + 12, 4).unwrap(), [13, 12, 11, 10], "P7");
            map.write_for_device(50, |all| all.fill(1));
            assert_eq!(rig.read(at, 200).unwrap(), [1, 0, 0, 0].repeat(50), "P7");
            drop(map);
            rig.end();
        }
    }
}

/// What is beside a buffer is in its pages; and what another buffer held may be in its slot.
#[test]
fn a_device_sees_nothing_else_where_it_is_bounced() {
    for placement in [Placement::Always, UNTRUSTED] {
        let rig = Rig::new(placement);
        let mut memory = vec![0x55_u8; 2 * PAGE];
        for (at, len) in [(100, 300), (200, 50), (300, 10)] {
            let bytes = &mut memory[at..at + len];
            bytes.fill(len as u8);
            let driver = rig.driver();
            let map = driver.map_streaming_slice_for_device(bytes, 1, DmaDirection::ToDevice);
            let map = map.unwrap();
            let page = address(&map) & !(PAGE as u64 - 1);
            let seen = rig.read(page, PAGE).unwrap();
            let others = seen.iter().filter(|byte| **byte != len as u8);
            assert!(others.clone().all(|byte| *byte == 0), "P7: {placement:?}");
            assert_eq!(others.count(), PAGE - len, "P7: {placement:?}");
            assert!(rig.write(page, &[1]).is_err(), "P14: it may only read");
            drop(map);
        }
        rig.end();
    }
}

#[test]
fn a_buffer_that_the_device_does_not_write_comes_back_as_zero() {
    let rig = Rig::new(Placement::Always);
    let driver = rig.driver();
    let mut first = [1_u8; 200];
    let map = driver.map_streaming_slice(&mut first, 1, DmaDirection::FromDevice);
    rig.write(address(&map.unwrap()), &[2; 200]).unwrap(); // dropped, and nothing synchronised
    let mut second = [3_u8; 200];
    let map = driver.map_streaming_slice(&mut second, 1, DmaDirection::FromDevice);
    map.unwrap().complete_for_cpu(0..200);
    assert_eq!((first, second), ([1; 200], [0; 200]), "P7");
    rig.end();
}
