// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Splitting at granules, byte-exact.

use crate::bounce::rig::{Rig, Tables};
use crate::lend;
use ioatlas_dma::{dma_api::*, units::*};
use ioatlas_host::Host;

const UNTRUSTED: Placement = Placement::Untrusted {
    whole_up_to: ByteCount(0),
};

/// Byte `at` of the test's memory.
fn before(at: u64) -> u8 {
    (at % 251) as u8 + 1
}

/// Pages that the device and the CPU look at: those of the largest buffer, and one beside.
const PAGES: u64 = 5;
const BYTES: usize = (PAGES * GRANULE) as usize;

/// Every offset with ends around a granule's edges and middle; every end with offsets around them.
/// The arithmetic of all offsets with all lengths is in `bounce::split`'s own tests.
#[test]
fn every_offset_and_length_is_exact_in_both_directions() {
    let rig = Rig::new(DmaConfig::default());
    let client = rig.client(UNTRUSTED);
    let memory = rig.memory(PAGES);
    let content: Vec<u8> = (0..BYTES as u64).map(before).collect();
    let mut exact = Exact {
        rig: &rig,
        client: &client,
        memory,
        content: &content,
        cases: 0,
    };
    for pages in 0..=3 {
        for at in 0..GRANULE {
            for edge in [0, 1, 2048, 4095] {
                exact.check(at, pages * GRANULE + edge);
                exact.check(edge, pages * GRANULE + at);
            }
        }
    }
    assert!(exact.cases > 90_000, "{}", exact.cases);
    rig.dma.audit().unwrap();
    rig.domain.audit().unwrap();
}

struct Exact<'r> {
    rig: &'r Rig,
    client: &'r Client<Host, Tables>,
    memory: PhysAddr,
    content: &'r [u8],
    cases: u64,
}

impl Exact<'_> {
    /// The buffer between two offsets, of three pages at the most.
    fn check(&mut self, offset: u64, end: u64) {
        if end <= offset || end - offset > 3 * GRANULE {
            return;
        }
        self.cases += 1;
        let (rig, len) = (self.rig, end - offset);
        let buffer = PhysRange::new(PhysAddr(self.memory.0 + offset), ByteCount(len));
        let what = || format!("{len} bytes at offset {offset}");
        let bytes = offset as usize..end as usize;
        rig.poke(self.memory, self.content);

        let mapping = self
            .client
            .map_single(lend(buffer), Direction::ToDevice)
            .unwrap();
        let lead = mapping.iova().offset();
        // a buffer in one granule is bounced, and may lie anywhere in its slot
        assert!(lead == offset % GRANULE || lead == 0, "{}", what());
        let seen = rig.device_reads(mapping.iova().page(), (lead + len).div_ceil(GRANULE));
        let (before, rest) = seen.split_at(lead as usize);
        let (data, behind) = rest.split_at(len as usize);
        assert!(data == &self.content[bytes.clone()], "P14: {}", what());
        let zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        assert!(
            zero(before) && zero(behind),
            "P7: {}: the device reads beside it",
            what()
        );
        self.client.unmap(mapping).unwrap();

        let mapping = self
            .client
            .map_single(lend(buffer), Direction::FromDevice)
            .unwrap();
        let lead = mapping.iova().offset();
        // malicious: it writes all that it can reach, but for the second half of the buffer what it
        // should
        let half = len / 2;
        let behind = Iova(mapping.iova().0 + len);
        rig.device_writes(mapping.iova(), half, 0xaa);
        rig.device_writes(mapping.iova().page().addr(), lead, 0xaa);
        rig.device_writes(behind, (GRANULE - behind.offset()) % GRANULE, 0xaa);
        self.client.unmap(mapping).unwrap();
        let back = rig.peek(self.memory, BYTES);
        let middle = bytes.start + half as usize;
        let same = |part: std::ops::Range<usize>| back[part.clone()] == self.content[part];
        let beside = same(0..bytes.start) && same(bytes.end..BYTES);
        assert!(beside, "P7: {}: a byte that is not of the buffer", what());
        let wrote = back[bytes.start..middle].iter().all(|byte| *byte == 0xaa);
        assert!(wrote, "P7: {}: what the device wrote is lost", what());
        let unwritten = back[middle..bytes.end]
            .iter()
            .zip(&self.content[middle..bytes.end]);
        let mut fine = unwritten.map(|(now, old)| *now == 0 || now == old);
        assert!(
            fine.all(|fine| fine),
            "P7: {}: bytes that were not written",
            what()
        );
    }
}

#[test]
fn edges_come_from_a_cache_that_the_timer_fills_and_empties() {
    edges_come_from_a_cache(PoolConfig::default());
}

#[test]
fn a_pool_whose_slots_have_memory_for_good_has_that_cache_too() {
    let slots = ClassConfig {
        pages_lg2: 0,
        slots: 4,
    };
    edges_come_from_a_cache(PoolConfig::of(slots).growth(Growth::Fixed));
}

fn edges_come_from_a_cache(pool: PoolConfig) {
    let idle_ms = pool.idle_ns / 1_000_000;
    let rig = Rig::new(DmaConfig::default().pool(pool));
    let client = rig.client(UNTRUSTED);
    let memory = rig.memory(3);
    let content: Vec<u8> = (0..3 * GRANULE).map(before).collect();
    rig.poke(memory, &content);
    let in_use = || rig.p.frames_in_use();
    let pages = || rig.dma.usage()[0].memory.0 / GRANULE;
    let slots = pages();
    let kept = || pages() - slots;
    let split = |expected: Option<usize>| {
        let buffer = PhysRange::new(PhysAddr(memory.0 + 100), ByteCount(8000));
        let before = in_use();
        let mapping = client
            .map_single(lend(buffer), Direction::ToDevice)
            .unwrap();
        let taken = in_use() - before;
        assert!(
            expected.is_none_or(|frames| frames == taken),
            "{taken} frames of the platform's"
        );
        let seen = rig.device_reads(mapping.iova().page(), 2);
        assert!(
            seen[..100]
                .iter()
                .chain(&seen[8100..])
                .all(|byte| *byte == 0),
            "P7"
        );
        assert!(seen[100..8100] == content[100..8100]);
        client.unmap(mapping).unwrap();
    };
    split(None); // tables of these IOVAs, too
    assert_eq!(kept(), 0);
    let tick = |ms: u64| rig.dma.tick(TimeNs(1_000_000 * ms));
    tick(1);
    assert_eq!(kept(), 16, "one magazine");
    (0..8).for_each(|_| split(Some(0)));
    assert_eq!(kept(), 0);
    split(Some(2));
    tick(2);
    assert_eq!(kept(), 16);
    tick(3);
    tick(3 + idle_ms);
    assert_eq!(kept(), 0, "idle");
    tick(4 + idle_ms);
    assert_eq!(kept(), 0, "and still");
    rig.dma.audit().unwrap();
}

#[test]
fn larger_buffers_are_split_and_smaller_ones_bounced() {
    let rig = Rig::new(DmaConfig::default());
    let client = rig.client(Placement::Untrusted {
        whole_up_to: ByteCount(8192),
    });
    let memory = rig.memory(8);
    let map = |at: u64, len| {
        let buffer = PhysRange::new(PhysAddr(memory.0 + at), ByteCount(len));
        let mapping = client
            .map_single(lend(buffer), Direction::Bidirectional)
            .unwrap();
        client.unmap(mapping).unwrap();
    };
    let steps = || {
        let steps = rig.dma.usage()[0].steps;
        let served = steps.of(Step::Populated) + steps.of(Step::Kept);
        [Step::Split, Step::Direct]
            .map(|step| steps.of(step))
            .into_iter()
            .chain([served])
            .collect::<Vec<_>>()
    };
    map(0, 8192);
    assert_eq!(steps(), [0, 1, 0], "whole granules");
    map(1, 8192);
    assert_eq!(steps(), [0, 1, 1], "up to the threshold");
    map(1, 8193);
    assert_eq!(steps(), [1, 1, 1], "beyond");
}

#[test]
fn lists_are_split_at_their_ends_and_bounced_where_they_cannot_be() {
    let rig = Rig::new(DmaConfig::default());
    let client = rig.client(UNTRUSTED);
    let memory = rig.memory(8);
    let content: Vec<u8> = (0..8 * 4096).map(before).collect();
    rig.poke(memory, &content);
    let segment = |page: u64, at: u64, len| {
        PhysRange::new(PhysAddr(memory.0 + page * 4096 + at), ByteCount(len))
    };
    // the second segment lies before the first
    let good = [
        segment(4, 100, 8192 - 100),
        segment(1, 0, 4096),
        segment(7, 0, 77),
    ];
    let bad = [segment(4, 100, 50), segment(1, 3, 4096), segment(7, 0, 77)];
    // so many were split by then
    for (list, split) in [(good, 1), (bad, 2)] {
        let mapping = client.map_sg(lend(&list[..]), Direction::ToDevice).unwrap();
        assert_eq!(rig.dma.usage()[0].steps.of(Step::Split), split);
        let mut expected = Vec::new();
        for (segment, at) in list.iter().zip(mapping.segments()) {
            assert_eq!(at.0, mapping.iova().0 + expected.len() as u64, "contiguous");
            let from = (segment.addr.0 - memory.0) as usize;
            expected.extend(
                content[from..from + segment.len.0 as usize]
                    .iter()
                    .map(|byte| Some(*byte)),
            );
        }
        assert_eq!(rig.device_read(mapping.iova(), mapping.len().0), expected);
        let last = Iova(mapping.iova().0 + mapping.len().0);
        assert_eq!(rig.device_read(last, 1), [Some(0)], "P7: padding");
        client.unmap(mapping).unwrap();
        rig.poke(memory, &vec![0; 8 * 4096]);
        let mapping = client
            .map_sg(lend(&list[..]), Direction::FromDevice)
            .unwrap();
        let wrote: Vec<u8> = expected.iter().map(|byte| byte.unwrap()).collect();
        assert_eq!(rig.device_write(mapping.iova(), &wrote), wrote.len());
        client.unmap(mapping).unwrap();
        for segment in &list {
            let from = (segment.addr.0 - memory.0) as usize;
            let len = segment.len.0 as usize;
            assert_eq!(rig.peek(segment.addr, len), content[from..from + len]);
        }
        rig.poke(memory, &content);
    }
}

#[test]
fn a_mapping_that_is_never_synchronised_is_direct_or_refused() {
    let rig = Rig::new(DmaConfig::default());
    let memory = rig.memory(2);
    let attrs = DmaAttrs::default().streaming(Streaming::Persistent);
    let whole = PhysRange::new(memory, ByteCount(8192));
    let partly = PhysRange::new(memory, ByteCount(8191));
    let every = [
        (Placement::Never, true),
        (Placement::Below(ByteCount(1 << 20)), true),
        (Placement::Always, false),
        (UNTRUSTED, false),
        (Placement::SingleUse, false),
    ];
    for (placement, direct) in every {
        let client = rig.client(placement);
        let mapping = client
            .map_with(lend(whole), Direction::Bidirectional, attrs)
            .unwrap();
        assert!(!mapping.is_bounced(), "{placement:?}");
        client.unmap(mapping).unwrap();
        match client.map_with(lend(partly), Direction::Bidirectional, attrs) {
            Ok(mapping) => {
                assert!(direct && !mapping.is_bounced(), "{placement:?}");
                client.unmap(mapping).unwrap();
            }
            Err(error) => {
                assert!(!direct, "{placement:?}: {error}");
                let len = ByteCount(8191);
                assert_eq!(error, DmaMapError::Persistent { len });
            }
        }
    }
}
