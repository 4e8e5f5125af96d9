// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Entry point for fuzzers: arbitrary bytes become memory, register writes and device accesses.
//!
//! The first byte chooses the unit, bit by bit: caches with eviction and prefetch (0), pass-through
//! (1), three levels of four entries (2), no page-selective invalidation (3), no drains (4), large
//! leaves (5), caching mode (6). Then come records of 12 bytes; what is left over, or comes after
//! [`MAX_RECORDS`], is ignored. Numbers are big-endian, so that a seed can be read as hex:
//!
//! | byte 0: what | byte 1 | bytes 2, 3 | bytes 4 to 11 |
//! |---|---|---|---|
//! | 0: store a word | frame | index | the word |
//! | 1: write a register | GCMD, FSTS, RTADDR, IQA, IQT | - | value |
//! | 2: a whole access | kind: read, write | device | page |
//! | 3: begin an access, instead of the one in that place | kind in bit 0, place above | device | page |
//! | 4: step an access in flight | place | - | - |
//! | 5: finish it | place | - | - |
//! | 6: give it up | place | - | - |
//! | 7: micro-step the queue; make it inline, asynchronous, stuck; read faults | which | - | - |
//!
//! Every choice is taken modulo what there is, so each input means something. After each record the
//! unit's audit must pass; without caches, a whole access must end where a walk by other code ends.

mod expected;
mod mmio;

pub use mmio::{WindowFindings, mmio};

use core::num::NonZeroU32;
use expected::{End, Told, Walker};
use ioatlas_dma::{
    platform::{Authority, Ordering, PhysMemory},
    units::*,
};
use ioatlas_host::Host;
use ioatlas_viommu::{config::*, observe::*, queue::Progress, unit::SoftUnit, walk::InFlight};
use ioatlas_vtd::registers::{self as offset, Registers};

/// What reads and writes the unit's memory.
// SAFETY: an input's memory is its own.
const OWNER: Authority = unsafe { Authority::assume() };
/// Records beyond these are ignored, so that one input takes milliseconds.
pub const MAX_RECORDS: usize = 512;
/// Bytes of one record.
const RECORD: usize = 12;
const FRAMES: usize = 8;
/// Words of a frame.
const WORDS: usize = 512;
/// Places for accesses in flight.
const PLACES: usize = 4;
/// Fault records that the unit keeps.
const FAULTS: usize = 4;

/// What became of one input.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Findings {
    /// Whole accesses that were translated.
    pub translated: u64,
    /// Whole accesses that passed untranslated.
    pub passed: u64,
    /// Whole accesses that were blocked.
    pub blocked: u64,
    /// Whole accesses compared with a walk by other code.
    pub compared: u64,
    /// What the unit counted.
    pub stats: Stats,
}

struct Machine {
    walker: Walker,
    unit: SoftUnit<Host, Host>,
    cached: bool,
}

type Places<'m> = [Option<InFlight<'m, Host, Host>>; PLACES];

/// Does what `data` says to a unit with a few frames of memory.
///
/// # Panics
/// The unit broke an invariant, or let an access get where memory does not.
pub fn unit(data: &[u8]) -> Findings {
    let mut findings = Findings::default();
    let Some((&choice, records)) = data.split_first() else {
        return findings;
    };
    let machine = Machine::new(choice);
    let (mut told, mut places) = (Told::default(), Places::default());
    for record in records.chunks_exact(RECORD).take(MAX_RECORDS) {
        machine.act(record, &mut told, &mut places, &mut findings);
        machine.check(&places);
    }
    drop(places);
    machine.check(&Places::default());
    findings.stats = machine.unit.stats();
    findings
}

impl Machine {
    fn new(choice: u8) -> Self {
        let on = |bit: u8| choice >> bit & 1 == 1;
        let toy = Geometry {
            levels: 3,
            entries_lg2: 2,
        };
        let geometry = if on(2) { toy } else { Geometry::VTD_48 };
        let mut config = UnitConfig::new(geometry);
        config.fault_records = FAULTS;
        config.features.pass_through = on(1);
        if on(3) {
            config.features.page_selective = None;
        }
        (config.features.drain_reads, config.features.drain_writes) = (!on(4), !on(4));
        let entries = |n: usize| if on(0) { n } else { 0 };
        config.caches = CacheConfig {
            context: entries(2),
            iotlb: SetGeometry {
                entries: entries(8),
                ways: 2,
            },
            walk: vec![entries(2); 2],
            large: vec![entries(2); 2],
            absent: entries(2),
            prefetch: if on(0) { 2 } else { 0 },
            eviction: on(0).then_some(Eviction {
                seed: 0,
                one_in: NonZeroU32::MIN.saturating_add(2),
            }),
        };
        config.features.largest_leaf = if on(5) { 3 } else { 1 };
        config.features.caching_mode = on(6);
        let largest_leaf = config.features.largest_leaf;
        let walker = Walker::new(FRAMES, geometry, on(1), largest_leaf);
        let unit = SoftUnit::new(walker.memory.clone(), &config);
        Machine {
            unit: unit.expect("every choice is within bounds"),
            walker,
            cached: on(0),
        }
    }

    fn act<'m>(
        &'m self,
        record: &[u8],
        told: &mut Told,
        places: &mut Places<'m>,
        findings: &mut Findings,
    ) {
        let number = |bytes: &[u8]| bytes.iter().fold(0, |n, &b| n << 8 | u64::from(b));
        let (which, short, long) = (record[1], number(&record[2..4]), number(&record[4..12]));
        let (source, page) = (SourceId(short as u16), IovaPage(long));
        let kind = [AccessKind::Read, AccessKind::Write][usize::from(which & 1)];
        let place = |which: u8| usize::from(which) % PLACES;
        match record[0] % 8 {
            0 => {
                let frame = PhysPage(u64::from(which) % FRAMES as u64);
                let word = self
                    .walker
                    .memory
                    .word(OWNER, frame, short as usize % WORDS);
                word.expect("modulo both").store(long, Ordering::SeqCst);
            }
            1 => self.write(which, long, told),
            2 => self.access(source, page, kind, told, findings),
            3 => {
                let place = place(which >> 1);
                places[place] = None;
                places[place] = Some(self.unit.begin(source, page, kind));
            }
            4 => {
                if let Some(access) = &mut places[place(which)] {
                    access.step();
                }
            }
            5 => {
                if let Some(access) = places[place(which)].take() {
                    access.finish();
                }
            }
            6 => places[place(which)] = None,
            _ => self.queue(which),
        }
    }

    fn write(&self, which: u8, value: u64, told: &mut Told) {
        match which % 5 {
            0 => {
                if value >> 30 & 1 == 1 {
                    let legacy = told.root_address >> 10 & 3 == 0;
                    told.root = legacy.then_some(told.root_address >> 12);
                }
                told.translating = value >> 31 & 1 == 1;
                self.unit.write32(offset::GCMD, value as u32);
            }
            1 => self.unit.write32(offset::FSTS, value as u32),
            2 => {
                told.root_address = value;
                self.unit.write64(offset::RTADDR, value);
            }
            3 => self.unit.write64(offset::IQA, value),
            _ => self.unit.write64(offset::IQT, value),
        }
    }

    fn queue(&self, which: u8) {
        match which % 5 {
            0 => {
                let progress = self.unit.service();
                assert!(
                    progress != Progress::Blocked || self.unit.in_flight() > 0,
                    "blocked, and nothing is in flight"
                );
            }
            1 => self.unit.set_processing(Processing::Inline),
            2 => self.unit.set_processing(Processing::Asynchronous),
            3 => self.unit.set_processing(Processing::Stuck),
            _ => assert!(self.unit.take_faults().records.len() <= FAULTS),
        }
    }

    fn access(
        &self,
        source: SourceId,
        page: IovaPage,
        kind: AccessKind,
        told: &Told,
        findings: &mut Findings,
    ) {
        let expected = self.walker.expected(told, source.0, page.0, kind);
        let outcome = self.unit.access(source, page, kind).outcome;
        let (end, count) = match outcome {
            Outcome::Translated { page, perm, .. } => {
                assert!(perm.allows(kind), "{kind:?} through {perm:?}");
                (End::Translated(page.0), &mut findings.translated)
            }
            Outcome::PassedThrough { page: to, .. } => {
                assert_eq!(to.0, page.0, "passed through to elsewhere");
                (End::Passed, &mut findings.passed)
            }
            Outcome::Fault(_) => (End::Blocked, &mut findings.blocked),
        };
        *count += 1;
        if !self.cached {
            assert_eq!(
                end, expected,
                "{source}: {kind:?} of page {page}: {outcome}"
            );
            findings.compared += 1;
        }
    }

    fn check(&self, places: &Places<'_>) {
        // A tail beyond the ring is the guest's fault, not the unit's; the audit does not tell the
        // two apart.
        let ring = 256 << (self.unit.read64(offset::IQA) & 7);
        if self.unit.read64(offset::IQT) >> 4 < ring && self.unit.read64(offset::IQH) >> 4 < ring {
            let census = self.unit.audit().expect("the unit's invariants");
            assert_eq!(census.in_flight, places.iter().flatten().count());
        }
    }
}
