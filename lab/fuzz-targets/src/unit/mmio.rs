// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Arbitrary bytes as bus accesses to the register block: whatever a guest does, nothing panics and
//! the registers stay consistent.
//!
//! The first byte chooses the unit, bit by bit: no queue (0), SRTP flushes (1), interrupt remapping
//! (2), faults collapse (3), the queue restarts at a tail write (4), an asynchronous queue (5),
//! write buffers (6). Records are those of the [parent](super), save these:
//!
//! | byte 0: what | byte 1 | bytes 2, 3 | bytes 4 to 11 |
//! |---|---|---|---|
//! | 1: write | length: 4, 8, 4, 8, 0, 1, 2, 16 | offset | value |
//! | 2: read | the same | offset | - |
//! | 7: micro-step the queue, five times; device time-out; wrong completion | which | device | - |

use super::{FRAMES, MAX_RECORDS, OWNER, PLACES, RECORD, WORDS};
use ioatlas_dma::{
    platform::{Ordering, PhysMemory},
    units::*,
};
use ioatlas_host::{Host, HostConfig};
use ioatlas_viommu::{
    config::*, mmio::MmioWindow, observe::Stats, queue::DeviceTlbError, unit::SoftUnit,
    walk::InFlight,
};
use ioatlas_vtd::registers::{Reg32, Reg64, Registers};
use std::sync::Arc;

const LENGTHS: [usize; 8] = [4, 8, 4, 8, 0, 1, 2, 16];
const RECORDS: usize = 3;
const GSTS: Reg32 = Reg32(0x1c);
const FSTS: Reg32 = Reg32(0x34);
const EVENTS: [Reg32; 2] = [Reg32(0x38), Reg32(0xa0)];

/// What became of one input.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WindowFindings {
    /// Accesses of a size and at a place that the specification defines.
    pub taken: u64,
    /// Accesses of other sizes or at other places.
    pub refused: u64,
    /// The global status at the end.
    pub status: u32,
    /// The fault status at the end.
    pub fault_status: u32,
    /// What the unit counted.
    pub stats: Stats,
}

type Places<'m> = [Option<InFlight<'m, Host, Host>>; PLACES];

struct Bus {
    memory: Arc<Host>,
    unit: Arc<SoftUnit<Host, Host>>,
    window: MmioWindow<Host, Host>,
    /// Bits of GSTS that this unit can ever show.
    possible: u32,
}

/// Does what `data` says to the registers of a unit with a few frames of memory.
///
/// # Panics
/// The unit broke an invariant, or its registers contradict each other.
pub fn mmio(data: &[u8]) -> WindowFindings {
    let mut findings = WindowFindings::default();
    let Some((&choice, records)) = data.split_first() else {
        return findings;
    };
    let bus = Bus::new(choice);
    let mut places = Places::default();
    for record in records.chunks_exact(RECORD).take(MAX_RECORDS) {
        bus.act(record, &mut places, &mut findings);
        bus.check(&places);
    }
    drop(places);
    bus.check(&Places::default());
    (findings.status, findings.fault_status) = (bus.unit.read32(GSTS), bus.unit.read32(FSTS));
    findings.stats = bus.unit.stats();
    findings
}

impl Bus {
    fn new(choice: u8) -> Self {
        let on = |bit: u8| choice >> bit & 1 == 1;
        let mut config = UnitConfig::new(Geometry {
            levels: 3,
            entries_lg2: 2,
        });
        config.fault_records = RECORDS;
        let mut possible = 1 << 31 | 1 << 30;
        let r = &mut config.registers;
        if on(0) {
            r.interface = InvalidationInterface::Registers;
        } else {
            possible |= 1 << 26;
        }
        if on(1) {
            r.root_pointer = RootPointer::LatchesAndFlushes;
        }
        if on(2) {
            r.interrupts = InterruptRemapping::Extended;
            possible |= 1 << 25 | 1 << 24 | 1 << 23;
        }
        if on(3) {
            r.collapse = Collapse::SameSource;
        }
        if on(4) {
            r.restart = Restart::TailWritten;
        }
        if on(5) {
            config.processing = Processing::Asynchronous;
        }
        if on(6) {
            config.features.write_buffers = WriteBuffers::FlushedByInvalidations;
            possible |= 1 << 27;
        }
        let memory = Arc::new(Host::new(HostConfig::default().frames(FRAMES).slots(1)));
        let unit = SoftUnit::new(memory.clone(), &config).expect("every choice is within bounds");
        let unit = Arc::new(unit);
        Bus {
            window: MmioWindow::new(unit.clone()),
            memory,
            unit,
            possible,
        }
    }

    fn act<'m>(&'m self, record: &[u8], places: &mut Places<'m>, findings: &mut WindowFindings) {
        let number = |bytes: &[u8]| bytes.iter().fold(0, |n, &b| n << 8 | u64::from(b));
        let (which, short, long) = (record[1], number(&record[2..4]), number(&record[4..12]));
        let place = usize::from(which) % PLACES;
        match record[0] % 8 {
            0 => {
                let frame = PhysPage(u64::from(which) % FRAMES as u64);
                let word = self.memory.word(OWNER, frame, short as usize % WORDS);
                word.expect("modulo both").store(long, Ordering::SeqCst);
            }
            what @ (1 | 2) => {
                let mut data = [0; 16];
                data[..8].copy_from_slice(&long.to_le_bytes());
                let data = &mut data[..LENGTHS[usize::from(which) % LENGTHS.len()]];
                match what {
                    1 => self.write(short, data, findings),
                    _ => self.read(short, data, findings),
                }
            }
            3 => {
                let kind = [AccessKind::Read, AccessKind::Write][usize::from(which & 1)];
                let place = usize::from(which >> 1) % PLACES;
                places[place] = None;
                let source = SourceId(short as u16);
                places[place] = Some(self.unit.begin(source, IovaPage(long), kind));
            }
            4 => {
                if let Some(access) = &mut places[place] {
                    access.step();
                }
            }
            5 => {
                if let Some(access) = places[place].take() {
                    access.finish();
                }
            }
            6 => places[place] = None,
            _ => self.queue(which, SourceId(short as u16)),
        }
    }

    fn write(&self, offset: u64, data: &[u8], findings: &mut WindowFindings) {
        self.count(offset, data.len(), findings);
        self.window.write(offset, data);
    }

    fn read(&self, offset: u64, data: &mut [u8], findings: &mut WindowFindings) {
        let taken = self.count(offset, data.len(), findings);
        self.window.read(offset, data);
        let first = data.to_vec();
        self.window.read(offset, data);
        assert_eq!(first, data, "a read at {offset:#x} has an effect");
        assert!(
            taken || data.iter().all(|&b| b == 0xff),
            "{} bytes at {offset:#x} are answered",
            data.len()
        );
    }

    /// Whether the specification defines such an access.
    fn count(&self, offset: u64, len: usize, findings: &mut WindowFindings) -> bool {
        let aligned = matches!(len, 4 | 8) && offset.is_multiple_of(len as u64);
        let taken = aligned && offset < self.window.len();
        findings.taken += u64::from(taken);
        findings.refused += u64::from(!taken);
        taken
    }

    fn queue(&self, which: u8, source: SourceId) {
        match which % 3 {
            0 => {
                for _ in 0..5 {
                    self.unit.service();
                }
            }
            1 => (self.unit).inject_device_tlb_error(DeviceTlbError::TimedOut(source)),
            _ => (self.unit).inject_device_tlb_error(DeviceTlbError::BadCompletion(source)),
        }
    }

    fn check(&self, places: &Places<'_>) {
        let census = self.unit.audit().expect("the unit's invariants");
        assert_eq!(census.in_flight, places.iter().flatten().count());
        let status = self.unit.read32(GSTS);
        assert_eq!(status & !self.possible, 0, "GSTS {status:#x}");

        let cap = self.unit.read64(Reg64(8));
        let records = (cap >> 24 & 0x3ff) as u16 * 16;
        let recorded = |n: usize| self.unit.read64(Reg64(records + 16 * n as u16 + 8)) >> 63 == 1;
        let faults = self.unit.read32(FSTS);
        let any = (0..RECORDS).any(recorded);
        assert_eq!(faults >> 1 & 1 == 1, any, "PPF is the sum of all F");
        let oldest = (faults >> 8 & 0xff) as usize;
        assert!(!any || recorded(oldest), "FRI names no pending record");

        let complete = self.unit.read32(Reg32(0x9c)) & 1;
        for (event, announces) in EVENTS.into_iter().zip([faults, complete]) {
            match self.unit.read32(event) >> 30 {
                0b01 => panic!("{event:?}: pending and not masked"),
                0b11 => assert_ne!(announces, 0, "{event:?}: pending, and nothing to announce"),
                _ => {}
            }
        }
    }
}
