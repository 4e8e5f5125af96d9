// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The register block (VT-d 4.1 §11.4), seen through [`Registers`]. Offsets come from `ioatlas-vtd`, bits from here.
//!
//! Commands take effect at once; a write that concerns the queue processes it where [`Processing`] says so. Registers that this unit
//! does not have read as 0 and ignore writes.

use crate::{
    config::Processing,
    unit::{SoftUnit, State},
};
use ioatlas_dma::{
    platform::{Lock, PhysMemory, Platform},
    units::*,
};
use ioatlas_vtd::registers::{self as offset, Reg32, Reg64, Registers};

/// Global command and status share these positions (§11.4.4).
const TRANSLATION: u32 = 1 << 31;
const ROOT_TABLE: u32 = 1 << 30;
const QUEUE: u32 = 1 << 26;
/// Fault status: overflow, pending, queue error (§11.4.7.1). Overflow and error are cleared by writing 1.
const OVERFLOW: u32 = 1 << 0;
const PENDING: u32 = 1 << 1;
const QUEUE_ERROR: u32 = 1 << 4;
/// Head and tail are byte offsets into the ring, in 18:4 (§11.4.9.1).
const RING_SHIFT: u32 = 4;
const RING_MASK: u64 = (1 << 15) - 1;
/// Table mode of the root table address; 0 is legacy mode (§11.4.5).
const TABLE_MODE: u64 = 0b11 << 10;
/// Version 1.0.
const VERSION: u32 = 0x10;

#[derive(Default)]
pub(crate) struct RegisterFile {
    /// As last written to RTADDR.
    root_address: u64,
    /// The set-root-table-pointer command was given.
    root_set: bool,
    /// The table as latched by it; none before, and where the address asks for other than legacy mode.
    pub(crate) root: Option<PhysPage>,
    pub(crate) translating: bool,
}

impl State {
    fn command(&mut self, value: u32) {
        if value & ROOT_TABLE != 0 {
            let address = self.registers.root_address;
            self.registers.root_set = true;
            self.registers.root = (address & TABLE_MODE == 0).then_some(PhysAddr(address).page());
        }
        self.registers.translating = value & TRANSLATION != 0;
        let enable = value & QUEUE != 0;
        if !enable {
            self.active.unblock();
        }
        self.queue.switch(enable);
    }
    fn status(&self) -> u32 {
        let bit = |on: bool, bit: u32| if on { bit } else { 0 };
        bit(self.registers.translating, TRANSLATION)
            | bit(self.registers.root_set, ROOT_TABLE)
            | bit(self.queue.enabled, QUEUE)
    }
    fn fault_status(&self) -> u32 {
        let bit = |on: bool, bit: u32| if on { bit } else { 0 };
        bit(self.faults.overflowed(), OVERFLOW)
            | bit(self.faults.pending() > 0, PENDING)
            | bit(self.queue.error, QUEUE_ERROR)
    }
    fn clear_fault_status(&mut self, value: u32) {
        if value & OVERFLOW != 0 {
            self.faults.clear_overflow();
        }
        if value & QUEUE_ERROR != 0 {
            self.queue.error = false;
        }
    }
    /// §11.4.2: ND 2:0, SAGAW 12:8, MGAW 21:16, PSI 39, NFR 47:40, MAMV 53:48, DWD 54, DRD 55.
    fn capabilities(&self) -> u64 {
        let (f, g) = (&self.features, self.geometry);
        let widths = 1 << g.levels.saturating_sub(2);
        // a toy geometry poses as the VT-d width with as many levels; addresses above its own fault
        let mgaw = u64::from(GRANULE_LG2 + 9 * g.levels - 1);
        let psi = u64::from(f.page_selective.is_some());
        u64::from(f.nd)
            | widths << 8
            | mgaw << 16
            | psi << 39
            | (self.faults.capacity() as u64 - 1) << 40
            | u64::from(f.page_selective.unwrap_or(0)) << 48
            | u64::from(f.drain_writes) << 54
            | u64::from(f.drain_reads) << 55
    }
    /// §11.4.3: C 0, QI 1, PT 6.
    fn extended_capabilities(&self) -> u64 {
        u64::from(self.features.coherent) | 1 << 1 | u64::from(self.features.pass_through) << 6
    }
    /// The caller is the one who processes the queue.
    fn inline(&self) -> bool {
        self.queue.processing == Processing::Inline
    }
}

impl<P: Platform, M: PhysMemory<P>> Registers for SoftUnit<P, M> {
    fn read32(&self, register: Reg32) -> u32 {
        self.state.with(|s| match register {
            offset::VER => VERSION,
            offset::GSTS => s.status(),
            offset::FSTS => s.fault_status(),
            _ => 0,
        })
    }

    fn read64(&self, register: Reg64) -> u64 {
        self.state.with(|s| match register {
            offset::CAP => s.capabilities(),
            offset::ECAP => s.extended_capabilities(),
            offset::RTADDR => s.registers.root_address,
            offset::IQH => u64::from(s.queue.head) << RING_SHIFT,
            offset::IQT => u64::from(s.queue.tail) << RING_SHIFT,
            offset::IQA => s.queue.address,
            _ => 0,
        })
    }

    fn write32(&self, register: Reg32, value: u32) {
        let run = self.state.with(|s| {
            match register {
                offset::GCMD => s.command(value),
                offset::FSTS => s.clear_fault_status(value),
                _ => return false,
            }
            s.inline()
        });
        if run {
            self.run_queue();
        }
    }

    fn write64(&self, register: Reg64, value: u64) {
        let run = self.state.with(|s| {
            match register {
                offset::RTADDR => s.registers.root_address = value,
                offset::IQA if !s.queue.enabled => s.queue.address = value,
                offset::IQT => {
                    s.queue.tail = (value >> RING_SHIFT & RING_MASK) as u32;
                    return s.inline();
                }
                _ => {}
            }
            false
        });
        if run {
            self.run_queue();
        }
    }
}
