// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Slices of ordinary memory: the device has a copy of them, and nothing else, wherever the copy
//! lies and however the mapping ends.

use crate::bounce::{
    rig::*,
    suite::{DISK, NIC, designs, is_strict},
};
use ioatlas_dma::{dma_api::*, domain::BufferError, units::*};
use ioatlas_host::Host;
use std::mem::forget;

const SECRET: u8 = 0x5e;
const DEVICE: u8 = 0xd0;
const OURS: u8 = 7;

const DIRECTIONS: [Direction; 3] = [
    Direction::ToDevice,
    Direction::FromDevice,
    Direction::Bidirectional,
];

/// Parts of a slot, whole ones, of each class, pages of a chunk, and more than a chunk has.
const LENS: [usize; 8] = [1, 60, 512, 4096, 4097, 12_000, 20_000, 70 * 4096];
/// The largest slot.
const SLOT_MAX: usize = 4 * 4096;

fn rig(growth: Growth) -> Rig<Host> {
    let strict = designs().into_iter().find(is_strict);
    Rig::new(512, strict.expect("a strict design"), tight(growth))
}

/// Every kind of pool, placement and direction; what the pool has room for.
fn cases() -> impl Iterator<Item = (Growth, Placement, Direction, Vec<usize>)> {
    let growths = [ON_DEMAND, Growth::Fixed].into_iter();
    let placements = growths.flat_map(|growth| PLACEMENTS.map(|placement| (growth, placement)));
    placements.flat_map(|(growth, placement)| {
        let most = match (growth, placement) {
            (Growth::Fixed, Placement::Never) | (Growth::OnDemand { .. }, _) => usize::MAX,
            (Growth::Fixed, _) => SLOT_MAX,
        };
        DIRECTIONS.map(|direction| {
            let lens = LENS.into_iter().filter(|len| *len <= most).collect();
            (growth, placement, direction, lens)
        })
    })
}

/// What the device reads of a mapping's granules: its bytes, and what is beside them.
fn seen(rig: &Rig<Host>, at: Iova, len: usize) -> (Vec<Option<u8>>, Vec<Option<u8>>) {
    let all = (len as u64).next_multiple_of(GRANULE);
    let mut bytes = rig.device_read(DISK, at, all);
    let beside = bytes.split_off(len);
    (bytes, beside)
}

#[test]
fn the_device_has_a_copy_and_what_it_wrote_comes_back() {
    for (growth, placement, direction, lens) in cases() {
        let rig = rig(growth);
        let client = rig.client(placement);
        // twice, so that the second time a slot has had an earlier user
        for len in lens.iter().chain(&lens).copied() {
            let what = format!("{growth:?}, {placement:?}, {direction:?}, {len} bytes");
            let bytes = vec![OURS; len];
            let place = bytes.as_ptr();
            let mapped = client.map_slice(bytes, direction).expect("room");
            assert_eq!(mapped.len().0, len as u64);
            let (own, beside) = seen(&rig, mapped.iova(), len);
            let shown = match direction {
                Direction::FromDevice => [None, Some(0)],
                _ => [Some(OURS), Some(OURS)],
            };
            assert!(own.iter().all(|byte| shown.contains(byte)), "P7: {what}");
            assert!(
                beside.iter().all(|byte| byte.unwrap_or(0) == 0),
                "P7: {what}: beside it"
            );
            // all but the last byte, where there are several
            let some = len.div_ceil(2).max(len - 1);
            let written = rig.device_write(NIC, mapped.iova(), &vec![DEVICE; some]);
            assert!(
                direction == Direction::ToDevice || written == some,
                "{what}"
            );
            let bytes = mapped.finish().expect("unmapped");
            assert_eq!(bytes.as_ptr(), place, "{what}: it never moved");
            let back = |at: usize| match direction {
                Direction::ToDevice => OURS,
                _ if at < some => DEVICE,
                Direction::FromDevice => 0,
                Direction::Bidirectional => OURS,
            };
            let wrong = (0..len).find(|at| bytes[*at] != back(*at));
            assert_eq!(wrong, None, "P7: {what}: {:?}", &bytes[..len.min(8)]);
        }
        drop(client);
        rig.end("slices");
    }
}

#[test]
fn what_is_only_read_is_the_callers_at_once() {
    for (growth, placement, _, lens) in cases() {
        let rig = rig(growth);
        let client = rig.client(placement);
        for len in lens {
            let mut bytes = vec![OURS; len];
            let mapped = client.map_copy(&bytes).expect("room");
            bytes.fill(SECRET);
            let (own, _) = seen(&rig, mapped.iova(), len);
            assert!(own.iter().all(|byte| *byte == Some(OURS)), "P7: {len}");
            mapped.finish().expect("unmapped");
        }
        drop(client);
        rig.end("copies");
    }
}

#[test]
fn a_slice_that_is_dropped_or_forgotten_is_as_it_was() {
    for (growth, placement, direction, lens) in cases() {
        let rig = rig(growth);
        let client = rig.client(placement);
        for len in lens {
            let mut bytes = vec![OURS; len];
            let mapped = client.map_slice(&mut bytes[..], direction).expect("room");
            let at = mapped.iova();
            rig.device_write(NIC, at, &vec![DEVICE; len]);
            drop(mapped);
            rig.device_write(NIC, at, &vec![DEVICE; len]);
            assert_eq!(bytes, vec![OURS; len], "P7: {placement:?}, {direction:?}");
        }
        drop(client);
        rig.end("dropped slices");
    }
    // what is forgotten stays mapped, so nothing is counted at the end
    for placement in PLACEMENTS {
        let rig = rig(ON_DEMAND);
        let client = rig.client(placement);
        let mut bytes = [OURS; 100];
        let mapped = client
            .map_slice(&mut bytes[..], Direction::Bidirectional)
            .expect("room");
        let at = mapped.iova();
        forget(mapped);
        assert_eq!(rig.device_write(NIC, at, &[DEVICE; 100]), 100);
        assert_eq!(bytes, [OURS; 100], "P7: {placement:?}");
    }
}

#[test]
fn a_slot_shows_nothing_of_the_slices_before() {
    for growth in [ON_DEMAND, Growth::Fixed] {
        let pairs = DIRECTIONS
            .into_iter()
            .flat_map(|a| DIRECTIONS.map(|b| (a, b)));
        for ((first, second), end) in pairs.flat_map(|pair| [(pair, true), (pair, false)]) {
            let rig = rig(growth);
            let client = rig.client(Placement::Always);
            let secrets: Vec<_> = (0..2)
                .map(|_| client.map_slice([SECRET; 4000], first).expect("room"))
                .collect();
            for secret in secrets {
                rig.device_write(NIC, secret.iova(), &[SECRET; 4096]);
                match end {
                    true => drop(secret.finish().expect("unmapped")),
                    false => drop(secret),
                }
            }
            let mapped = client.map_slice([OURS; 50], second).expect("room");
            let (own, beside) = seen(&rig, mapped.iova(), 50);
            let shown = own.iter().chain(&beside).flatten();
            assert!(
                shown.clone().all(|byte| *byte != SECRET),
                "P7: {growth:?}: an earlier user's bytes, {first:?} then {second:?}"
            );
            let back = mapped.finish().expect("unmapped");
            let expected = match second {
                Direction::FromDevice => 0,
                _ => OURS,
            };
            assert_eq!(
                back, [expected; 50],
                "P7: {growth:?}, {first:?} then {second:?}: bytes that no device wrote"
            );
            drop(client);
            rig.end("a slot of slices");
        }
    }
}

/// Bytes of which there are more or fewer each time one looks.
struct Fickle {
    bytes: Vec<u8>,
    lens: Vec<usize>,
}

impl AsMut<[u8]> for Fickle {
    fn as_mut(&mut self) -> &mut [u8] {
        let len = self.lens.pop().expect("looked at twice");
        &mut self.bytes[..len]
    }
}

#[test]
fn bytes_that_change_their_number_get_no_others() {
    for (growth, placement, direction, _) in cases() {
        for (mapped, finished) in [(100, 5000), (5000, 100), (9000, 0), (100, 99)] {
            let rig = rig(growth);
            let client = rig.client(placement);
            let fickle = Fickle {
                bytes: vec![OURS; 9000],
                lens: vec![finished, mapped],
            };
            let copy = client.map_slice(fickle, direction).expect("room");
            rig.device_write(NIC, copy.iova(), &vec![DEVICE; mapped]);
            let Fickle { bytes, .. } = copy.finish().expect("unmapped");
            let moved = match direction {
                Direction::ToDevice => 0,
                _ => mapped.min(finished),
            };
            let what = format!("P7: {placement:?}, {direction:?}, {mapped} then {finished}");
            assert!(bytes[..moved].iter().all(|byte| *byte == DEVICE), "{what}");
            assert!(bytes[moved..].iter().all(|byte| *byte == OURS), "{what}");
            // the next user
            if direction == Direction::FromDevice {
                let next = client
                    .map_slice(vec![OURS; mapped], direction)
                    .expect("room");
                let bytes = next.finish().expect("unmapped");
                assert!(bytes.iter().all(|byte| *byte == 0), "{what}: the next user");
            }
            drop(client);
            rig.end("fickle bytes");
        }
    }
}

#[test]
fn nothing_is_no_slice_and_more_than_there_is_is_refused() {
    let rig = rig(Growth::Fixed);
    let client = rig.client(Placement::Always);
    let mut bytes = vec![OURS; SLOT_MAX + 1];
    let refused = client.map_slice(&mut bytes[..0], Direction::FromDevice);
    let empty = DmaMapError::Buffer(BufferError::Empty { segment: 0 });
    assert_eq!(refused.err(), Some(empty));
    let refused = client.map_slice(&mut bytes[..], Direction::FromDevice);
    assert!(matches!(refused.err(), Some(DmaMapError::NoSpace(_))));
    assert_eq!(bytes, vec![OURS; SLOT_MAX + 1]);
    drop(client);
    rig.end("refused slices");
}
