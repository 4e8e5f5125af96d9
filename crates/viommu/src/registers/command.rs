// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Global command and status (VT-d 4.1 §11.4.4), and the interrupt-remapping state that they
//! switch.
//!
//! TE, QIE, IRE and CFI follow the value written; SRTP, SIRTP and WBF act where they are 1 and
//! change nothing where they are 0. Bits of what the unit does not have (SFL, EAFL; QIE without a
//! queue; the rest without interrupt remapping) stay 0 in GSTS.
//!
//! Not handled: remapping of interrupts. IRE, CFI and the table are kept, so that software can be
//! seen to leave them alone.

use super::{Then, layout::*};
use crate::{
    config::{InterruptRemapping, RootPointer, WriteBuffers},
    unit::{SoftUnit, State},
};
use ioatlas_dma::{
    platform::{Lock, PhysMemory, Platform},
    units::*,
};

/// IRTA: the table, 63:12, and log2 of its entries less one, 3:0 (§11.4.8.1).
const TABLE_BITS: u64 = !0xff0;
/// IRTA.EIME: 32-bit destinations (§11.4.8.1).
const EXTENDED: u64 = 1 << 11;
/// ECAP: IR 3, EIM 4, MHMV 23:20 (all index masks).
const HAS_REMAPPING: u64 = 1 << 3 | 0xf << 20;
const HAS_EXTENDED: u64 = 1 << 4;

#[derive(Default)]
pub(super) struct InterruptState {
    /// As last written to IRTA.
    pub(super) address: u64,
    latched: Option<u64>,
    enabled: bool,
    compatible: bool,
}

/// The interrupt-remapping table as software last set it.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InterruptTable {
    pub table: PhysPage,
    /// Log2 of its entries. 1 to 16.
    pub entries_lg2: u32,
    /// Destinations have 32 bits (EIME).
    pub extended: bool,
}

impl State {
    pub(super) fn command(&mut self, value: u32) -> Then {
        use command::*;
        if value & ROOT_TABLE != 0 {
            self.set_root();
        }
        self.registers.translating = value & TRANSLATION != 0;
        if self.registers.config.interrupts != InterruptRemapping::Absent {
            let interrupts = &mut self.registers.interrupts;
            if value & INTERRUPT_TABLE != 0 {
                interrupts.latched = Some(interrupts.address);
            }
            interrupts.enabled = value & INTERRUPTS != 0;
            interrupts.compatible = value & COMPATIBLE != 0;
        }
        if value & WRITE_BUFFER != 0 {
            self.flush_write_buffer();
        }
        self.switch_queue(value & QUEUE != 0 && self.registers.has_queue());
        self.run_if_inline()
    }

    pub(super) fn status(&self) -> u32 {
        use command::*;
        let r = &self.registers;
        let bit = |on: bool, bit: u32| if on { bit } else { 0 };
        bit(r.translating, TRANSLATION)
            | bit(self.write_buffer.asked, WRITE_BUFFER)
            | bit(r.root_set, ROOT_TABLE)
            | bit(self.queue.enabled, QUEUE)
            | bit(r.interrupts.enabled, INTERRUPTS)
            | bit(r.interrupts.latched.is_some(), INTERRUPT_TABLE)
            | bit(r.interrupts.compatible, COMPATIBLE)
    }

    /// SRTP. With ESRTPS (§11.4.2) it is done when nothing of the old tables is used any more.
    fn set_root(&mut self) {
        let address = self.registers.root_address;
        self.registers.root = (address & TABLE_MODE == 0).then_some(PhysAddr(address).page());
        self.write_buffer.root_changed = true;
        match self.registers.config.root_pointer {
            RootPointer::Latches => self.root_is_set(),
            RootPointer::LatchesAndFlushes => {
                self.registers.root_set = false;
                self.flush_for_root();
            }
        }
    }
    pub(super) fn root_is_set(&mut self) {
        self.registers.root_set = true;
    }

    /// WBF (§6.8). Without a write buffer (CAP.RWBF = 0) it has nothing to do, and WBFS is never
    /// seen; with one, the code that processes the queue does it.
    fn flush_write_buffer(&mut self) {
        self.write_buffer.asked = self.features.write_buffers != WriteBuffers::None;
    }

    pub(super) fn switch_queue(&mut self, enable: bool) {
        if !enable && self.queue.draining() {
            self.active.unblock();
        }
        self.queue.switch(enable);
        self.begin_waiting_request();
    }

    pub(super) fn interrupt_capabilities(&self) -> u64 {
        match self.registers.config.interrupts {
            InterruptRemapping::Absent => 0,
            InterruptRemapping::Compatible => HAS_REMAPPING,
            InterruptRemapping::Extended => HAS_REMAPPING | HAS_EXTENDED,
        }
    }
    pub(super) fn set_interrupt_table(&mut self, at: u32, value: u32) {
        let bits = match self.registers.config.interrupts {
            InterruptRemapping::Absent => 0,
            InterruptRemapping::Compatible => TABLE_BITS & !EXTENDED,
            InterruptRemapping::Extended => TABLE_BITS | EXTENDED,
        };
        let address = &mut self.registers.interrupts.address;
        set_half(address, at, value);
        *address &= bits;
    }
}

impl<P: Platform, M: PhysMemory<P>> SoftUnit<P, M> {
    /// The interrupt-remapping table that software set (SIRTP), for code that
    /// remaps interrupts; none before.
    pub fn interrupt_table(&self) -> Option<InterruptTable> {
        let latched = self.state.with(|s| s.registers.interrupts.latched);
        latched.map(|address| InterruptTable {
            table: PhysAddr(address).page(),
            entries_lg2: (address as u32 & 0xf) + 1,
            extended: address & EXTENDED != 0,
        })
    }
}
