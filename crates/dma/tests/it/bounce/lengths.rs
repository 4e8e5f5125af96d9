// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Two users of one slot, one after the other, whose lengths or beginnings differ by one byte or
//! not at all, at every edge that lengths have: words, lines, pages, slots.

use crate::bounce::rig::Rig;
use crate::lend;
use ioatlas_dma::{dma_api::*, units::*};

/// What lies in the buffer's pages beside it; what the users send; what the device writes.
const AROUND: u8 = 0xee;
const FIRST: u8 = 0x11;
const SECOND: u8 = 0x33;
const DEVICE: u8 = 0x77;
/// Pages of the buffers' memory, and how far the device writes.
const PAGES: u64 = 4;
/// Where the buffers begin in their first page.
const OFFSET: u64 = 100;
/// Where a buffer begins, and how long it is.
type Place = (u64, u64);

const EDGES: [u64; 7] = [
    2,
    8,
    64,
    GRANULE / 2,
    GRANULE - OFFSET,
    GRANULE,
    2 * GRANULE,
];
const DIRECTIONS: [Direction; 3] = [
    Direction::ToDevice,
    Direction::FromDevice,
    Direction::Bidirectional,
];

/// Each byte, or the first that differs with what it is and ought to be.
fn expect(seen: &[Option<u8>], want: impl Fn(usize) -> Option<u8>, what: &str) {
    let mut differs = (0..seen.len()).filter(|n| seen[*n].is_some() && seen[*n] != want(*n));
    if let Some(n) = differs.next() {
        panic!("P7: byte {n} is {:x?}, not {:x?}: {what}", seen[n], want(n));
    }
}

struct User<'r> {
    rig: &'r Rig,
    client: &'r Client<ioatlas_host::Host, crate::bounce::rig::Tables>,
    memory: PhysAddr,
    direction: Direction,
}

impl User<'_> {
    /// Uses a slot: what the device finds, and what comes back.
    fn uses(&self, (offset, len): Place, byte: u8, what: &str) {
        let (rig, at) = (self.rig, PhysAddr(self.memory.0 + offset));
        rig.poke(self.memory, &vec![AROUND; (PAGES * GRANULE) as usize]);
        rig.poke(at, &vec![byte; len as usize]);
        let buffer = PhysRange::new(at, ByteCount(len));
        let mapping = self
            .client
            .map_single(lend(buffer), self.direction)
            .unwrap();
        assert!(mapping.is_bounced(), "{what}");
        let (iova, first) = (mapping.iova(), mapping.iova().page().addr());
        // from the beginning of its first page: what the device may not read it does not see
        let before = (iova.0 - first.0) as usize;
        let data = before..before + len as usize;
        let sent = match self.direction {
            Direction::FromDevice => 0,
            _ => byte,
        };
        let shown = |n| Some(if data.contains(&n) { sent } else { 0 });
        let seen = rig.device_read(first, before as u64 + len + GRANULE);
        expect(&seen, shown, &format!("shown to the device, {what}"));
        // nothing, one byte more than there is room for, and at last all that it can
        for wrote in [0, len + 1] {
            rig.device_writes(iova, wrote, DEVICE);
            let all = Span::new(ByteCount(0), ByteCount(len));
            self.client.sync_for_cpu(&mapping, all).unwrap();
            self.comes_back((offset, len), byte, wrote, what);
        }
        rig.device_writes(first, PAGES * GRANULE, DEVICE);
        self.client.unmap(mapping).unwrap();
        self.comes_back((offset, len), byte, PAGES * GRANULE, what);
    }

    fn comes_back(&self, (offset, len): Place, byte: u8, wrote: u64, what: &str) {
        let seen = self.rig.peek(self.memory, (PAGES * GRANULE) as usize);
        let seen: Vec<_> = seen.into_iter().map(Some).collect();
        let data = offset as usize..(offset + len) as usize;
        let back = match self.direction {
            Direction::ToDevice => byte,
            _ if wrote > 0 => DEVICE,
            Direction::FromDevice => 0,
            Direction::Bidirectional => byte,
        };
        let came = |n| Some(if data.contains(&n) { back } else { AROUND });
        expect(&seen, came, &format!("{wrote} written, {what}"));
    }
}

/// Every two of three buffers, one after the other, at every edge.
fn every_pair(low_bits: LowBits, buffers: impl Fn(u64) -> [Place; 3]) {
    let rig = Rig::new(DmaConfig::default());
    let config = ClientConfig::default()
        .placement(Placement::Always)
        .low_bits(low_bits);
    let client = rig.dma.client(config).unwrap();
    let memory = rig.memory(PAGES);
    for direction in DIRECTIONS {
        let (rig, client) = (&rig, &client);
        let user = User {
            rig,
            client,
            memory,
            direction,
        };
        for three in EDGES.map(&buffers) {
            for (first, second) in three.into_iter().flat_map(|a| three.map(|b| (a, b))) {
                let what = format!("{direction:?}, {second:?} after {first:?}, {low_bits:?}");
                user.uses(first, FIRST, &what);
                user.uses(second, SECOND, &what);
            }
        }
    }
}

fn lengths(edge: u64) -> [Place; 3] {
    [edge - 1, edge, edge + 1].map(|len| (OFFSET, len))
}

#[test]
fn users_whose_lengths_differ_by_one() {
    every_pair(LowBits::Any, lengths);
}

#[test]
fn users_whose_lengths_differ_by_one_where_offsets_are_kept() {
    every_pair(LowBits::Kept, lengths);
}

#[test]
fn users_whose_beginnings_differ_by_one() {
    every_pair(LowBits::Kept, |edge| {
        [OFFSET - 1, OFFSET, OFFSET + 1].map(|offset| (offset, edge))
    });
}
