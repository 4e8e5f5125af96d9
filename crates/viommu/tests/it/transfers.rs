// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Bytes that devices of a test move through the unit: where they go, how far, and until when.

use crate::BY;
use crate::suite::rig::{Dom, NIC, Rig, Small, Vtd};
use ioatlas_dma::{domain::*, platform::*, units::*};
use ioatlas_host::Host;
use ioatlas_sim::platform::{Schedule, Sim, World};
use ioatlas_viommu::{
    machine::{FaultReason, Machine, TransferError, TransferErrorReason},
    oracle::{Failing, Property, WatchedPlatform},
    unit::Injection,
};
use std::cell::Cell;

const PAGE: usize = GRANULE as usize;
/// Where pages are mapped by number.
const BASE: Iova = Iova(0x4_0000);
const BEFORE: u8 = 0xbe;
const DEVICE: u8 = 0xd0;

/// A machine with a strict domain, and three frames of which no two that follow each other adjoin.
struct Bench {
    rig: Rig<Host>,
    domain: Dom<Host, Vtd>,
    frames: Vec<FreshFrame>,
}

impl Bench {
    fn new() -> Self {
        let rig = Rig::<Host>::new::<Vtd>(64);
        let domain = rig.domain::<Vtd>(DomainConfig::default());
        let p = rig.machine.machine().platform();
        let mut all: Vec<_> = (0..6).filter_map(|_| p.frame_alloc()).collect();
        all.sort_by_key(|frame| std::cmp::Reverse(frame.page()));
        let mut frames = Vec::new();
        for (nth, frame) in all.into_iter().enumerate() {
            match nth % 2 {
                0 => frames.push(frame),
                _ => p.frame_free(BY, frame),
            }
        }
        let bench = Bench {
            rig,
            domain,
            frames,
        };
        let pages = bench.frames.iter().map(|frame| frame.page().0);
        let pages: Vec<_> = pages.collect();
        assert!(pages.windows(2).all(|two| two[0] > two[1] + 1));
        bench.fill(BEFORE);
        bench
    }
    fn machine(&self) -> &Machine<WatchedPlatform<Failing<Host>>> {
        self.rig.machine.machine()
    }
    fn buffers(&self) -> Vec<PhysRange> {
        let frames = self.frames.iter();
        frames.map(|frame| PhysRange::page(frame.page())).collect()
    }
    fn fill(&self, byte: u8) {
        for buffer in self.buffers() {
            let filled = self
                .machine()
                .platform()
                .write(BY, &[byte; PAGE], buffer.addr);
            filled.expect("memory");
        }
    }
    /// What is in the frames, one after the other.
    fn memory(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.frames.len() * PAGE];
        for (part, buffer) in bytes.chunks_mut(PAGE).zip(self.buffers()) {
            let read = self.machine().platform().read(BY, buffer.addr, part);
            read.expect("memory");
        }
        bytes
    }
    /// Maps a frame at the page of `BASE` that has its number.
    fn map(&self, nth: usize, direction: Direction) -> Mapping {
        let buffer = self.buffers()[nth];
        let mapping = self.domain.map_at(at(nth * PAGE), buffer, direction);
        mapping.expect("mapped")
    }
    fn write(&self, at: Iova, bytes: &[u8]) -> Result<(), TransferError> {
        self.machine().dma_write(NIC, at, bytes)
    }
    /// What is read of so many bytes; those that are not read are `BEFORE`.
    fn read(&self, at: Iova, len: usize) -> (Vec<u8>, Result<(), TransferError>) {
        let mut bytes = vec![BEFORE; len];
        let result = self.machine().dma_read(NIC, at, &mut bytes);
        (bytes, result)
    }
    fn accesses(&self) -> u64 {
        self.machine().unit().stats().accesses
    }
    fn end(self, mappings: impl IntoIterator<Item = Mapping>) {
        for mapping in mappings {
            self.domain.unmap(mapping).expect("unmapped");
        }
        self.rig.close(self.domain, &[NIC]);
        let p = self.rig.machine.machine().platform();
        self.frames
            .into_iter()
            .for_each(|frame| p.frame_free(BY, frame));
        self.rig.end();
    }
}

/// So many bytes behind `BASE`.
fn at(offset: usize) -> Iova {
    Iova(BASE.0 + offset as u64)
}

fn refused(at: Iova, moved: usize, reason: FaultReason) -> Result<(), TransferError> {
    Err(TransferError {
        at,
        moved: ByteCount(moved as u64),
        reason: TransferErrorReason::Fault(reason),
    })
}

/// Of every length, from every place: each byte goes where the page it is in leads.
#[test]
fn bytes_of_every_page_go_to_its_own_frame() {
    let bench = Bench::new();
    let mapping = bench
        .domain
        .map_list(&bench.buffers(), Direction::Bidirectional)
        .expect("mapped");
    let mut expected = bench.memory();
    let edges = [0, 1, 7, PAGE / 2, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE];
    let lengths = [1, 8, 63, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 3 * PAGE];
    let cases = edges
        .iter()
        .flat_map(|from| lengths.map(|len| (*from, len)));
    let inside = cases.filter(|(from, len)| from + len <= expected.len());
    for (nth, (from, len)) in inside.collect::<Vec<_>>().into_iter().enumerate() {
        let begin = Iova(mapping.iova().0 + from as u64);
        let sent: Vec<u8> = (0..len).map(|at| (at / 251 + at * 7 + nth) as u8).collect();
        expected[from..from + len].copy_from_slice(&sent);
        let before = bench.accesses();
        assert_eq!(bench.write(begin, &sent), Ok(()), "P14: {from}+{len}");
        let there = bench.memory() == expected;
        assert!(there, "P9: {len} bytes from {from} on went elsewhere");
        let (seen, result) = bench.read(begin, len);
        assert_eq!(result, Ok(()), "P14: {from}+{len}");
        assert!(seen == sent, "P9: {len} bytes from {from} on are others");
        let pages = (from + len).div_ceil(PAGE) - from / PAGE;
        assert_eq!(bench.accesses() - before, 2 * pages as u64, "{from}+{len}");
    }
    bench.end([mapping]);
}

/// The page in the middle is mapped no more: what lies before it is moved, what lies behind is not,
/// and the error names that page.
#[test]
fn a_transfer_ends_at_the_page_that_is_not_mapped() {
    let bench = Bench::new();
    let all = [0, 1, 2].map(|nth| bench.map(nth, Direction::Bidirectional));
    let whole = 2 * PAGE + 50; // from byte 100 on into the third page
    assert_eq!(bench.write(at(100), &vec![BEFORE; whole]), Ok(()), "P14");
    let [first, middle, last] = all;
    bench.domain.unmap(middle).expect("unmapped");

    let (level, moved) = (1, PAGE - 100);
    let kind = AccessKind::Write;
    let stopped = refused(at(PAGE), moved, FaultReason::NotPresent { kind, level });
    assert_eq!(bench.write(at(100), &vec![DEVICE; whole]), stopped, "P1");
    let mut expected = vec![BEFORE; 3 * PAGE];
    expected[100..PAGE].fill(DEVICE);
    assert!(bench.memory() == expected, "P1: it moved more, or less");

    let kind = AccessKind::Read;
    let stopped = refused(at(PAGE), moved, FaultReason::NotPresent { kind, level });
    bench.fill(DEVICE);
    let (seen, result) = bench.read(at(100), whole);
    assert_eq!(result, stopped, "P1");
    let read = seen.iter().filter(|byte| **byte == DEVICE).count();
    assert_eq!(read, moved, "P1: it read more, or less");
    let error = result.unwrap_err().to_string();
    let said = "at 0x41000, after 3996 bytes: no entry at level 1 (fault reason 6h)";
    assert_eq!(error, said);
    bench.end([first, last]);
}

/// Permissions are each page's (P6).
#[test]
fn a_transfer_ends_at_the_page_that_does_not_permit_it() {
    let bench = Bench::new();
    let directions = [
        Direction::Bidirectional,
        Direction::ToDevice,
        Direction::FromDevice,
    ];
    let mappings = [0, 1, 2].map(|nth| bench.map(nth, directions[nth]));
    let kind = AccessKind::Write;
    let stopped = refused(at(PAGE), 3, FaultReason::NotPermitted { kind });
    let write = bench.write(at(PAGE - 3), &[DEVICE; 10]);
    assert_eq!(write, stopped, "P6: the page may be read only");
    let mut expected = vec![BEFORE; 3 * PAGE];
    expected[PAGE - 3..PAGE].fill(DEVICE);
    assert!(bench.memory() == expected, "P6: it moved more, or less");

    let kind = AccessKind::Read;
    let stopped = refused(at(2 * PAGE), 5, FaultReason::NotPermitted { kind });
    bench.fill(DEVICE);
    let (seen, result) = bench.read(at(2 * PAGE - 5), 10);
    assert_eq!(result, stopped, "P6: the page may be written only");
    assert_eq!(seen[..5], [DEVICE; 5], "P14");
    assert_eq!(seen[5..], [BEFORE; 5], "P6");
    bench.end(mappings);
}

/// Strict, and the IOTLB had it: not a byte moves (P1).
#[test]
fn after_unmap_no_byte_is_moved() {
    let bench = Bench::new();
    let list = bench.buffers();
    let mapping = bench.domain.map_list(&list, Direction::Bidirectional);
    let mapping = mapping.expect("mapped");
    let iova = mapping.iova();
    assert_eq!(bench.write(iova, &[DEVICE; 3 * PAGE]), Ok(()), "P14");
    bench.domain.unmap(mapping).expect("unmapped");
    bench.fill(BEFORE);
    for page in 0..3 {
        let begin = Iova(iova.0 + page * GRANULE + 9);
        let error = bench.write(begin, &[DEVICE; 100]).unwrap_err();
        assert_eq!((error.at, error.moved), (begin, ByteCount(0)), "P1");
        let (seen, result) = bench.read(begin, 100);
        let error = result.unwrap_err();
        assert_eq!((error.at, error.moved), (begin, ByteCount(0)), "P1");
        assert_eq!(seen, [BEFORE; 100], "P1");
    }
    let untouched = bench.memory() == [BEFORE; 3 * PAGE];
    assert!(untouched, "P1: bytes were written after unmap");
    bench.end([]);
}

/// A unit that forgets a translation too late lets bytes through, and the oracle's one call fails.
#[test]
fn the_oracle_tells_of_bytes_that_were_moved_after_unmap() {
    let bench = Bench::new();
    let mapping = bench.map(0, Direction::FromDevice);
    assert_eq!(bench.write(at(9), &[DEVICE]), Ok(()), "P14");
    let unit = bench.machine().unit();
    unit.inject(Injection::LeaveTranslations(1));
    bench.domain.unmap(mapping).expect("unmapped");
    let oracle = bench.rig.machine.oracle();
    oracle.assert_clean(); // nothing used it yet
    assert_eq!(bench.write(at(9), &[DEVICE]), Ok(()), "it was left");
    let seen = oracle.summary().violations;
    let seen: Vec<_> = seen.iter().map(|one| one.property).collect();
    assert_eq!(seen, [Property::P1]);
}

/// What reaches past the last address is refused as a whole, and no bytes are no access.
#[test]
fn no_transfer_wraps_and_an_empty_one_is_none() {
    let bench = Bench::new();
    let last = Iova(u64::MAX - 9);
    let overflow = |len| {
        Err(TransferError {
            at: last,
            moved: ByteCount(0),
            reason: TransferErrorReason::Overflow(ByteCount(len)),
        })
    };
    assert_eq!(bench.write(last, &[DEVICE; 11]), overflow(11));
    assert_eq!(bench.read(last, 2 * PAGE).1, overflow(2 * GRANULE));
    assert_eq!(bench.write(at(0), &[]), Ok(()));
    assert_eq!(bench.read(Iova(u64::MAX), 0).1, Ok(()));
    assert_eq!(bench.accesses(), 0);
    // the last byte of all is one like any other
    let beyond = refused(last, 0, FaultReason::BeyondAperture);
    assert_eq!(bench.write(last, &[DEVICE; 10]), beyond);
    assert_eq!(bench.accesses(), 1);
    bench.end([]);
}

/// A page that is mapped to no memory: the unit lets it through, and there is nothing.
#[test]
fn what_is_no_memory_is_not_moved() {
    let bench = Bench::new();
    let nowhere = PhysRange::page(PhysPage(1 << 30));
    let first = bench.map(0, Direction::Bidirectional);
    let mapping = bench.domain.map_at(at(PAGE), nowhere, Direction::ToDevice);
    let (_, result) = bench.read(at(PAGE - 4), 20);
    let read = PhysRange::new(nowhere.addr, ByteCount(16));
    let expected = TransferError {
        at: at(PAGE),
        moved: ByteCount(4),
        reason: TransferErrorReason::NotMemory(NotMemoryError(read)),
    };
    assert_eq!(result, Err(expected));
    bench.end([first, mapping.expect("mapped")]);
}

/// One CPU that maps, unmaps and looks, while a device writes; returns how often that was
/// permitted.
fn writes_under_way(schedule: Schedule) -> u32 {
    let rig = Rig::<Sim>::new::<Small>(64);
    let domain = rig.domain::<Small>(DomainConfig::default());
    let machine = rig.machine.machine();
    let p = machine.platform();
    let frame = p.frame_alloc().expect("a frame");
    let buffer = PhysRange::new(frame.page().addr(), ByteCount(64));
    let (told, ended, permitted) = (Cell::new(None), Cell::new(false), Cell::new(0));
    let cpu = || {
        for _ in 0..6 {
            let mapping = domain.map(buffer, Direction::FromDevice).expect("mapped");
            told.set(Some(mapping.iova()));
            (0..3).for_each(|_| p.relax());
            domain.unmap(mapping).expect("unmapped");
            p.write(BY, &[BEFORE; 64], buffer.addr).expect("memory");
            (0..3).for_each(|_| p.relax());
            let mut seen = [0; 64];
            p.read(BY, buffer.addr, &mut seen).expect("memory");
            assert_eq!(
                seen, [BEFORE; 64],
                "P1: bytes came after unmap had returned"
            );
        }
        ended.set(true);
    };
    let device = || {
        while !ended.get() {
            p.relax();
            let Some(iova) = told.get() else { continue };
            let written = machine.dma_write(NIC, iova, &[DEVICE; 64]).is_ok();
            permitted.set(permitted.get() + u32::from(written));
        }
    };
    let world = World::new(schedule).cpu(cpu).agent("device", device);
    if let Err(failure) = world.try_run() {
        panic!("{schedule:?}: {failure}");
    }
    p.frame_free(BY, frame);
    rig.close(domain, &[NIC]);
    rig.end();
    permitted.get()
}

/// The bytes of an access are moved before an invalidation that waits for it is complete.
#[test]
fn unmap_waits_for_bytes_that_are_under_way() {
    let mut permitted = 0;
    for seed in 0..60 {
        permitted += writes_under_way(Schedule::Sticky {
            seed,
            switch_one_in: 6,
        });
    }
    assert!(permitted > 0, "the device wrote nothing");
}
