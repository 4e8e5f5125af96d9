// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A device that attacks all the time, while two CPUs map and unmap (P7, P10): every placement x
//! size x direction, on simulated CPUs, so that each seed is one run.
//!
//! Whose a byte is shows in its value: what the device writes, what lies beside buffers, what a CPU
//! put into a buffer for this one operation, what it put there after the operation. The device
//! reads and writes every page that it was ever told of, and those around; so
//!
//! * what lies beside buffers, or was put there after unmap, is never read and never overwritten;
//! * between map's return and unmap's call, a page that the device reads shows this operation's
//!   bytes, in their place, and zero;
//! * what unmap brings back is the device's, zero, or this operation's, in the mapped range alone;
//!   nothing comes later.
//!
//! Placements that do not protect what lies beside buffers are given whole granules, for which they
//! promise the same.

use crate::bounce::{
    rig::*,
    suite::{DISK, NIC, designs, is_strict},
};
use crate::lend;
use ioatlas_dma::{dma_api::*, domain::DomainConfig, platform::Platform, units::*};
use ioatlas_sim::platform::{Schedule, Sim, World};
use std::{cell::Cell, sync::Mutex};

const OPS: u64 = 6;
const SEEDS: u64 = 4;
/// Of a CPU's memory.
const PAGES: usize = 4;

const ZERO: u8 = 0;
/// What an operation puts into its buffer is 1 to 0x7f.
const TAGS: u64 = 0x7f;
const DEVICE: u8 = 0xd0;
const BESIDE: u8 = 0xee;
const AFTER: u8 = 0x90;

/// A live mapping, between the return of map and the call of unmap.
#[derive(Clone, Copy, PartialEq)]
struct Told {
    operation: u64,
    iova: Iova,
    len: u64,
    direction: Direction,
    tag: u8,
    /// Whether a copy is all that the device reaches.
    bounced: bool,
}

/// What devices know.
#[derive(Default)]
struct Board {
    live: Mutex<[Option<Told>; 2]>,
    /// Every page that was ever told, and those beside it.
    pages: Mutex<Vec<IovaPage>>,
}

impl Board {
    fn tell(&self, cpu: usize, told: Option<Told>) {
        self.live.lock().expect("unpoisoned")[cpu] = told;
        let Some(told) = told else { return };
        let mut pages = self.pages.lock().expect("unpoisoned");
        let last = Iova(told.iova.0 + told.len - 1).page().0;
        for page in told.iova.page().0.saturating_sub(1)..=last + 1 {
            if !pages.contains(&IovaPage(page)) {
                pages.push(IovaPage(page));
            }
        }
    }
    fn live(&self) -> [Option<Told>; 2] {
        *self.live.lock().expect("unpoisoned")
    }
    fn page(&self, nth: usize) -> Option<IovaPage> {
        let pages = self.pages.lock().expect("unpoisoned");
        // the latest first
        let nth = nth % pages.len().max(1);
        pages.iter().rev().nth(nth).copied()
    }
}

/// What one operation maps.
#[derive(Clone, Copy, Debug)]
struct Op {
    /// Where the buffer begins in its first page, and how long it is.
    offset: u64,
    len: u64,
    direction: Direction,
}

struct Case {
    placement: Placement,
    /// What operations choose from: so a slot's next user often has another length, place or
    /// direction.
    ops: Vec<Op>,
    design: DomainConfig,
    growth: Growth,
    seed: u64,
}

impl Case {
    fn op(&self, operation: u64) -> Op {
        let mixed = (operation + 1 + (self.seed << 8)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.ops[(mixed >> 32) as usize % self.ops.len()]
    }
    fn reads(&self, direction: Direction) -> bool {
        direction != Direction::FromDevice || self.growth == Growth::Fixed
    }
    /// Whether the device may write what it may read.
    fn writes_too(&self, direction: Direction) -> bool {
        direction != Direction::ToDevice || self.growth == Growth::Fixed
    }
    /// Whether so many bytes are bounced as a whole, if they are.
    fn is_whole(&self, len: u64) -> bool {
        !matches!(self.placement, Placement::Untrusted { whole_up_to } if ByteCount(len) > whole_up_to)
    }
}

/// A CPU: maps, lets the device do its worst, unmaps, looks.
fn cpu(rig: &Rig<Sim>, cell: &Case, board: &Board, nth: usize, memory: PhysAddr) {
    let client = rig.client(cell.placement);
    let whole = PhysRange::new(memory, ByteCount(PAGES as u64 * GRANULE));
    for op in 0..OPS {
        let operation = op * 2 + nth as u64;
        let Op {
            offset,
            len,
            direction,
        } = cell.op(operation);
        let buffer = PhysRange::new(PhysAddr(memory.0 + offset), ByteCount(len));
        let inside = offset as usize..(offset + len) as usize;
        rig.fill(whole, BESIDE);
        let tag = 1 + (operation % TAGS) as u8;
        rig.fill(buffer, tag);
        let mapping = match client.map_single(lend(buffer), direction) {
            Ok(mapping) => mapping,
            Err(DmaMapError::NoSpace(_)) => continue, // with a fixed pool
            Err(error) => panic!("{error}"),
        };
        let bounced = mapping.is_bounced();
        let told = Told {
            operation,
            iova: mapping.iova(),
            len,
            direction,
            tag,
            bounced,
        };
        board.tell(nth, Some(told));
        for _ in 0..3 {
            rig.p().relax();
        }
        board.tell(nth, None);
        client.unmap(mapping).expect("unmapped");
        let seen = rig.peek(memory, whole.len.0);
        for (at, byte) in seen.iter().copied().enumerate() {
            let fine = match (inside.contains(&at), direction) {
                (false, _) => byte == BESIDE,
                (true, Direction::ToDevice) => byte == tag,
                // of a split buffer, some of it is where it was
                (true, Direction::FromDevice) => {
                    byte == DEVICE
                        || byte == ZERO && bounced
                        || byte == tag && !(bounced && cell.is_whole(len))
                }
                (true, Direction::Bidirectional) => byte == DEVICE || byte == tag,
            };
            assert!(
                fine,
                "P7: byte {at} of {inside:?} came back as {byte:#x}, of operation {operation}, tag {tag:#x}"
            );
        }
        rig.fill(buffer, AFTER);
        for _ in 0..2 {
            rig.p().relax();
        }
        let after = rig.peek(buffer.addr, len);
        let untouched = after.iter().all(|byte| *byte == AFTER);
        assert!(
            untouched,
            "P7: the buffer changed after unmap, operation {operation}"
        );
    }
}

/// The device: until no CPU acts any more, everywhere in turn. Returns how many pages
/// it read and wrote.
fn device(
    rig: &Rig<Sim>,
    cell: &Case,
    board: &Board,
    source: SourceId,
    acting: &Cell<usize>,
) -> [u64; 2] {
    let mut done = [0; 2];
    let mut nth = 0usize;
    while acting.get() > 0 {
        rig.p().relax();
        nth += 1;
        // five in six of the latest
        let Some(page) = board.page(if nth.is_multiple_of(6) { nth } else { nth % 6 }) else {
            continue;
        };
        let before = board.live();
        let seen = rig.device_read(source, page.addr(), GRANULE);
        let after = board.live();
        if seen[0].is_some() {
            done[0] += 1;
        }
        for (at, byte) in (page.addr().0..).zip(&seen) {
            let Some(byte) = *byte else { continue };
            assert!(
                byte != BESIDE && byte != AFTER,
                "P7: {source} read {byte:#x} at {at:#x}, which lies beside every buffer"
            );
        }
        for told in before.into_iter().flatten() {
            let last = Iova(told.iova.0 + told.len - 1).page();
            if after.contains(&Some(told)) && (told.iova.page()..=last).contains(&page) {
                check(cell, &told, page, &seen);
            }
        }
        if rig.device_write(source, page.addr(), &[DEVICE; GRANULE as usize]) > 0 {
            done[1] += 1;
        }
    }
    done
}

/// A page that was mapped all the time.
fn check(cell: &Case, told: &Told, page: IovaPage, seen: &[Option<u8>]) {
    for (at, byte) in (page.addr().0..).zip(seen) {
        let own = (told.iova.0..told.iova.0 + told.len).contains(&at);
        let data = match (told.direction, told.bounced) {
            (Direction::FromDevice, true) => ZERO,
            _ => told.tag,
        };
        let fine = match byte {
            None => !cell.reads(told.direction),
            Some(_) if !cell.reads(told.direction) => false,
            Some(DEVICE) if cell.writes_too(told.direction) => true,
            Some(byte) => *byte == if own { data } else { ZERO },
        };
        assert!(
            fine,
            "P7: the device read {byte:x?} at {at:#x} during operation {} at {} for {} bytes with tag {:#x}",
            told.operation, told.iova, told.len, told.tag
        );
    }
}

fn schedule(seed: u64) -> Schedule {
    match seed % 4 {
        n @ 0..=2 => Schedule::Sticky {
            seed,
            switch_one_in: 2 << (2 * n),
        },
        _ => Schedule::Bounded {
            seed,
            preemptions: 12,
        },
    }
}

/// Runs one cell on its seed.
fn run(cell: &Case) -> [u64; 2] {
    let seed = cell.seed;
    let context = format!(
        "{:?}, {:?}, {}, {}",
        cell.placement,
        cell.ops,
        cell.design.policy.name(),
        schedule(seed)
    );
    let mut rig = Rig::<Sim>::new(256, cell.design, tight(cell.growth));
    let memory = [rig.memory(PAGES), rig.memory(PAGES)];
    let (board, acting) = (Board::default(), Cell::new(2));
    let done = Cell::new([0; 2]);
    let mut world = World::new(schedule(seed));
    for (nth, memory) in memory.into_iter().enumerate() {
        let (rig, board, acting) = (&rig, &board, &acting);
        world = world.cpu(move || {
            cpu(rig, cell, board, nth, memory);
            acting.set(acting.get() - 1);
        });
    }
    for (name, source) in [("nic", NIC), ("disk", DISK)] {
        let (rig, board, acting, done) = (&rig, &board, &acting, &done);
        world = world.agent(name, move || {
            let [reads, writes] = device(rig, cell, board, source, acting);
            let [r, w] = done.get();
            done.set([r + reads, w + writes]);
        });
    }
    if let Err(failure) = world.try_run() {
        panic!("{context}: {failure}");
    }
    rig.end(&context);
    done.get()
}

const DIRECTIONS: [Direction; 3] = [
    Direction::ToDevice,
    Direction::FromDevice,
    Direction::Bidirectional,
];

/// Every size x direction, and all of them mixed, over the seeds.
fn every_cell(
    placement: Placement,
    growth: Growth,
    sizes: &[(u64, u64)],
    fits: impl Fn(&DomainConfig) -> bool,
) {
    let designs: Vec<_> = designs().into_iter().filter(fits).collect();
    let every = sizes.iter().flat_map(|&(offset, len)| {
        DIRECTIONS.map(|direction| Op {
            offset,
            len,
            direction,
        })
    });
    let mixed: Vec<Op> = every.clone().collect();
    let mut nth = 0;
    for ops in every.map(|op| vec![op]).chain([mixed]) {
        let mut done = [0; 2];
        // where slots change hands most, more of it
        let seeds = if ops.len() > 1 { 6 * SEEDS } else { SEEDS };
        for seed in 0..seeds {
            nth += 1;
            let cell = Case {
                placement,
                ops: ops.clone(),
                design: designs[nth % designs.len()],
                growth,
                seed,
            };
            let [reads, writes] = run(&cell);
            done = [done[0] + reads, done[1] + writes];
        }
        // it does attack
        let any =
            |not: Direction| growth == Growth::Fixed || ops.iter().any(|op| op.direction != not);
        assert_eq!(
            [done[0] > 0, done[1] > 0],
            [any(Direction::FromDevice), any(Direction::ToDevice)],
            "{placement:?} {ops:?}"
        );
    }
}

/// Each within its granules: of slots of one, two and four pages, and of a chunk's.
const SUB_GRANULE: [(u64, u64); 5] = [
    (100, 60),
    (1000, 3000),
    (0, 4096),
    (4000, 5000),
    (7, 12_000),
];
const WHOLE: [(u64, u64); 3] = [(0, 4096), (0, 8192), (0, 12_288)];

#[test]
fn always() {
    // what is never unmapped by its user may be deferred
    every_cell(Placement::Always, ON_DEMAND, &SUB_GRANULE, is_strict);
}
#[test]
fn always_under_deferred_invalidation() {
    let growth = Growth::OnDemand {
        chunks_max: 1,
        single_use: SingleUse::Never,
    };
    every_cell(Placement::Always, growth, &SUB_GRANULE, |d| !is_strict(d));
}
#[test]
fn always_in_a_fixed_pool() {
    every_cell(Placement::Always, Growth::Fixed, &SUB_GRANULE, |_| true);
}
#[test]
fn untrusted() {
    let whole_up_to = ByteCount(4096);
    let placement = Placement::Untrusted { whole_up_to };
    every_cell(placement, ON_DEMAND, &SUB_GRANULE, is_strict);
}
#[test]
fn untrusted_split_all() {
    let whole_up_to = ByteCount(0);
    let placement = Placement::Untrusted { whole_up_to };
    every_cell(placement, ON_DEMAND, &SUB_GRANULE[2..], is_strict);
}
#[test]
fn single_use() {
    every_cell(Placement::SingleUse, ON_DEMAND, &SUB_GRANULE, is_strict);
}
#[test]
fn below() {
    let placement = Placement::Below(ByteCount(8192));
    every_cell(placement, ON_DEMAND, &WHOLE, is_strict);
}
#[test]
fn never() {
    every_cell(Placement::Never, ON_DEMAND, &WHOLE, is_strict);
}
#[test]
fn adaptive() {
    every_cell(Placement::Adaptive, ON_DEMAND, &WHOLE, is_strict);
}
