// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The register block (VT-d 4.1 §11.4).
//!
//! # Theory
//!
//! Everything happens in 32-bit words, as the bus has them: a 64-bit access is its low word, then
//! its high word, in one section under the unit's lock. So the halves of a 64-bit register can be
//! written one at a time, and what a register triggers is triggered by the word that holds the bit:
//! CCMD and IOTLB by their high word, the tail by its low one.
//!
//! Commands take effect at once, save those that drain: requests (module `requests`) are done (IVT,
//! RTPS) when what was in flight has ended. A write that concerns the queue processes it where
//! [`Processing`] says so, after the lock is released.
//!
//! Reserved bits are ignored and read as 0. Offsets without a register, and those of registers that
//! this unit does not have (protected memory, advanced fault log, page requests, MTRRs, everything
//! of scalable mode), read as 0 and ignore writes. Several commands in one write to GCMD are all
//! done: one at a time is what software owes hardware (§11.4.4.1), and QEMU does not mind either.

mod command;
mod events;
mod layout;
mod requests;

pub use command::InterruptTable;
pub(crate) use requests::Requests;

use crate::{
    config::{InvalidationInterface, Processing, RegisterConfig, Restart, RootPointer},
    message::{EventRegisters, MessageSource},
    unit::{SoftUnit, State},
};
use command::InterruptState;
use ioatlas_dma::{
    platform::{Lock, PhysMemory, Platform},
    units::*,
};
use ioatlas_vtd::registers::{Reg32, Reg64, Registers};
use layout::*;

pub(crate) struct RegisterFile {
    pub(crate) config: RegisterConfig,
    /// As last written to RTADDR.
    root_address: u64,
    /// The set-root-table-pointer command is done.
    root_set: bool,
    /// The table as latched by it; none before, and where the address asks for
    /// other than legacy mode.
    pub(crate) root: Option<PhysPage>,
    pub(crate) translating: bool,
    interrupts: InterruptState,
    /// ICS.IWC: a wait descriptor is done.
    wait_complete: bool,
    fault_event: EventRegisters,
    completion_event: EventRegisters,
    pub(crate) requests: Requests,
}

/// What a register write asks to be done once the lock is released.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Nothing,
    RunQueue,
}

impl RegisterFile {
    pub(crate) fn new(config: RegisterConfig) -> Self {
        RegisterFile {
            config,
            root_address: 0,
            root_set: false,
            root: None,
            translating: false,
            interrupts: InterruptState::default(),
            wait_complete: false,
            fault_event: EventRegisters::new(MessageSource::Fault),
            completion_event: EventRegisters::new(MessageSource::Completion),
            requests: Requests::default(),
        }
    }
    fn has_queue(&self) -> bool {
        self.config.interface == InvalidationInterface::Queue
    }
}

/// Which word of the fault recording registers is at `at`: the register, and the doubleword in it.
fn recording(config: &RegisterConfig, records: usize, at: u32) -> Option<(usize, u32)> {
    let word = at.checked_sub(config.fault_offset.into())? / 4;
    let (index, word) = ((word / 4) as usize, word % 4);
    (index < records).then_some((index, word))
}

impl State {
    /// §11.4.2: ND 2:0, SAGAW 12:8, MGAW 21:16, FRO 33:24, PSI 39, NFR 47:40, MAMV 53:48, DWD 54,
    /// DRD 55, ESRTPS 63.
    fn capabilities(&self) -> u64 {
        let (f, g) = (&self.features, self.geometry);
        let config = &self.registers.config;
        let widths = 1 << g.levels.saturating_sub(2);
        // a toy geometry poses as the VT-d width with as many levels; addresses above its own fault
        let mgaw = u64::from(GRANULE_LG2 + 9 * g.levels - 1);
        let psi = u64::from(f.page_selective.is_some());
        let flushes = u64::from(config.root_pointer == RootPointer::LatchesAndFlushes);
        u64::from(f.nd)
            | widths << 8
            | mgaw << 16
            | u64::from(config.fault_offset / 16) << 24
            | psi << 39
            | (self.faults.capacity() as u64 - 1) << 40
            | u64::from(f.page_selective.unwrap_or(0)) << 48
            | u64::from(f.drain_writes) << 54
            | u64::from(f.drain_reads) << 55
            | flushes << 63
            | f.capability_bits()
    }
    /// §11.4.3: C 0, QI 1, IR 3, EIM 4, PT 6, IRO 17:8, MHMV 23:20.
    fn extended_capabilities(&self) -> u64 {
        let registers = &self.registers;
        u64::from(self.features.coherent)
            | u64::from(registers.has_queue()) << 1
            | self.interrupt_capabilities()
            | u64::from(self.features.pass_through) << 6
            | u64::from(registers.config.iotlb_offset / 16) << 8
            | self.features.extended_capability_bits()
    }
    /// The caller itself processes the queue.
    fn inline(&self) -> bool {
        self.queue.processing == Processing::Inline
    }
    fn run_if_inline(&self) -> Then {
        match self.inline() {
            true => Then::RunQueue,
            false => Then::Nothing,
        }
    }

    /// The 32-bit word at byte `at`.
    fn read_word(&self, at: u32) -> u32 {
        if !at.is_multiple_of(4) {
            return 0;
        }
        let r = &self.registers;
        match at {
            dword::VER => VERSION,
            dword::GSTS => self.status(),
            dword::FSTS => self.fault_status(),
            dword::FAULT_EVENT..=0x44 => self.event_word(MessageSource::Fault, at),
            dword::ICS => u32::from(r.wait_complete) * WAIT_COMPLETE,
            dword::COMPLETION_EVENT..=0xac => self.event_word(MessageSource::Completion, at),
            _ => half(self.quad(at & !7), at),
        }
    }

    /// The 64-bit register at byte `at`.
    fn quad(&self, at: u32) -> u64 {
        let r = &self.registers;
        match at {
            quad::CAP => self.capabilities(),
            quad::ECAP => self.extended_capabilities(),
            quad::RTADDR => r.root_address,
            quad::CCMD => r.requests.context(),
            quad::IQH => u64::from(self.queue.head) << RING_SHIFT,
            quad::IQT => u64::from(self.queue.tail) << RING_SHIFT,
            quad::IQA => self.queue.address,
            quad::IQERCD => self.queue.error_record(),
            quad::IRTA => r.interrupts.address,
            // IVA before it is write-only
            _ if at == u32::from(r.config.iotlb_offset) + 8 => r.requests.iotlb(),
            _ => match recording(&r.config, self.faults.capacity(), at) {
                Some((index, word)) => self.faults.words(index)[word as usize / 2],
                None => 0,
            },
        }
    }

    /// Writes the 32-bit word at byte `at`.
    fn write_word(&mut self, at: u32, value: u32) -> Then {
        if !at.is_multiple_of(4) {
            return Then::Nothing;
        }
        let iotlb = u32::from(self.registers.config.iotlb_offset);
        match at {
            dword::GCMD => return self.command(value),
            dword::FSTS => return self.clear_fault_status(value),
            dword::FAULT_EVENT..=0x44 => self.set_event_word(MessageSource::Fault, at, value),
            dword::ICS if value & WAIT_COMPLETE != 0 => self.clear_wait_complete(),
            dword::COMPLETION_EVENT..=0xac => {
                self.set_event_word(MessageSource::Completion, at, value);
            }
            _ if at & !7 == quad::RTADDR => {
                set_half(&mut self.registers.root_address, at, value);
                self.registers.root_address &= ROOT_BITS;
            }
            _ if at & !7 == quad::CCMD => self.write_context_command(at, value),
            quad::IQT if self.registers.has_queue() => return self.ring(value),
            _ if at & !7 == quad::IQA && self.registers.has_queue() => {
                if !self.queue.enabled {
                    set_half(&mut self.queue.address, at, value);
                    self.queue.address &= RING_BITS;
                }
            }
            _ if at & !7 == quad::IRTA => self.set_interrupt_table(at, value),
            _ if at & !7 == iotlb => self.registers.requests.set_address(at, value),
            _ if at & !7 == iotlb + 8 => self.write_iotlb_command(at, value),
            _ => {
                let records = self.faults.capacity();
                if let Some((index, 3)) = recording(&self.registers.config, records, at)
                    && value & RECORD_PENDING != 0
                {
                    self.faults.clear(index);
                    self.withdraw_if_served();
                }
            }
        }
        Then::Nothing
    }

    /// The tail was written.
    fn ring(&mut self, value: u32) -> Then {
        self.queue.tail = value >> RING_SHIFT & RING_MASK;
        self.queue.go_on(Restart::TailWritten);
        self.run_if_inline()
    }
}

impl<P: Platform, M: PhysMemory<P>> SoftUnit<P, M> {
    /// Where the register block ends, in bytes from its start; everything beyond reads as 0.
    pub fn register_bytes(&self) -> u32 {
        self.state
            .with(|s| s.registers.config.end(s.faults.capacity()))
    }
    /// Whether a write of the word at `at` may be a request to invalidate.
    fn requests_by(&self, at: u32) -> bool {
        let iotlb = |s: &mut State| u32::from(s.registers.config.iotlb_offset) + 8;
        at & !7 == quad::CCMD || at & !7 == self.state.with(iotlb)
    }
    fn write_words<const N: usize>(&self, words: [(u32, u32); N]) {
        let buffered = self.seen.is_some();
        if buffered && words.iter().any(|(at, _)| self.requests_by(*at)) {
            self.flush_before_invalidation();
        }
        let run = self.state.with(|s| {
            words
                .map(|(at, value)| s.write_word(at, value))
                .contains(&Then::RunQueue)
        });
        if run {
            self.run_queue();
        }
    }
}

/// A register of another size than named is what its words are; a 32-bit one at an offset that is
/// no multiple of 4 is none.
#[allow(unsafe_code)] // a promise
// SAFETY: a unit by the specification; the conformance cases say how far.
unsafe impl<P: Platform, M: PhysMemory<P>> Registers for SoftUnit<P, M> {
    fn read32(&self, register: Reg32) -> u32 {
        self.state.with(|s| s.read_word(register.0.into()))
    }
    fn read64(&self, register: Reg64) -> u64 {
        let at = u32::from(register.0);
        self.state
            .with(|s| u64::from(s.read_word(at)) | u64::from(s.read_word(at + 4)) << 32)
    }
    fn write32(&self, register: Reg32, value: u32) {
        self.write_words([(register.0.into(), value)]);
    }
    fn write64(&self, register: Reg64, value: u64) {
        let at = u32::from(register.0);
        self.write_words([(at, value as u32), (at + 4, (value >> 32) as u32)]);
    }
    fn table_entries_lg2(&self) -> u32 {
        self.geometry().entries_lg2
    }
}
