// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a unit blocked, and why: its fault records, read, cleared and put into words (VT-d 4.1
//! §7.2, §11.4.7).
//!
//! A record has 128 bits (§11.4.7.5, FRCD):
//!
//! | bits | |
//! |---|---|
//! | 63..12 | FI: the page of the address, or in bits 63..48 the interrupt index |
//! | 79..64 | SID |
//! | 92, 126 | T2, T1: 00 write, 01 page request, 10 read, 11 atomic |
//! | 103..96 | FR, the reason |
//! | 127 | F, occupied; written 1 to free the record |
//!
//! The unit fills records in a circle, beginning where FSTS.FRI says, and drops what finds its
//! record occupied, which it tells by FSTS.PFO. Fields that have to do with PASIDs are ignored:
//! legacy mode has none.

mod history;
mod reason;

pub use history::{Explained, History, IovaHistory, Past};
pub use reason::Reason;

use crate::{layout::Capabilities, registers::*};
use core::fmt;
use ioatlas_dma::{
    platform::{Lock, Platform},
    units::{Iova, SourceId},
};

/// F in the high word.
const OCCUPIED: u64 = 1 << 63;
/// T1 in the high word.
const TYPE_1: u64 = 1 << 62;
/// T2 in the high word.
const TYPE_2: u64 = 1 << 28;
/// FR begins here in the high word.
const REASON_SHIFT: u32 = 32;
/// The page of the address, in the low word.
const PAGE: u64 = !0xfff;
/// The interrupt index begins here in the low word.
const INDEX_SHIFT: u32 = 48;

/// What a device wanted.
#[allow(missing_docs)] // its variants say it
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attempt {
    Read,
    Write,
    /// To have a page brought in.
    PageRequest,
    /// To read and write in one.
    Atomic,
    /// To interrupt, by that entry of the interrupt-remapping table.
    Interrupt {
        index: u16,
    },
}

/// One blocked request, as the unit recorded it.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FaultRecord {
    pub device: SourceId,
    /// The first byte of the page; 0 for an interrupt.
    pub page: Iova,
    pub attempt: Attempt,
    pub reason: Reason,
}

/// Whether more was blocked than there was room to record (FSTS.PFO).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overflow {
    /// Every fault was recorded.
    None,
    /// Some were not recorded.
    Lost,
}

impl FaultRecord {
    /// From the two words of an occupied record.
    pub fn decode(low: u64, high: u64) -> Self {
        let reason = Reason::decode((high >> REASON_SHIFT) as u8);
        let (attempt, page) = if reason.is_of_interrupts() {
            let index = (low >> INDEX_SHIFT) as u16;
            (Attempt::Interrupt { index }, 0)
        } else {
            let attempt = match (high & TYPE_1 != 0, high & TYPE_2 != 0) {
                (false, false) => Attempt::Write,
                (false, true) => Attempt::PageRequest,
                (true, false) => Attempt::Read,
                (true, true) => Attempt::Atomic,
            };
            (attempt, low & PAGE)
        };
        FaultRecord {
            device: SourceId(high as u16),
            page: Iova(page),
            attempt,
            reason,
        }
    }

    /// With what `history` knows about the page.
    pub fn explain(&self, history: &impl IovaHistory) -> Explained {
        let past = match self.attempt {
            Attempt::Interrupt { .. } => None,
            _ => Some(history.recall(self.device, self.page.page())),
        };
        Explained {
            record: *self,
            past,
        }
    }
}

/// One sentence: device, attempt, page, reason.
impl fmt::Display for FaultRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {} ", self.device)?;
        match self.attempt {
            Attempt::Read => write!(f, "tried to read page {}", self.page)?,
            Attempt::Write => write!(f, "tried to write page {}", self.page)?,
            Attempt::PageRequest => write!(f, "asked for page {}", self.page)?,
            Attempt::Atomic => write!(f, "tried an atomic access to page {}", self.page)?,
            Attempt::Interrupt { index } => write!(f, "tried to interrupt by entry {index:#x}")?,
        }
        write!(f, ", and was blocked: {}", self.reason)
    }
}

/// Gives every occupied record to `each`, in the order in which they were filled, and frees it. Of
/// two CPUs each record goes to one; `each` runs with no lock held.
pub(crate) fn drain_faults<P: Platform, R: Registers>(
    reader: &P::Lock<()>,
    registers: &R,
    unit: &Capabilities,
    mut each: impl FnMut(FaultRecord),
) -> Overflow {
    let status = registers.read32(FSTS);
    // at offset 0 there are other registers
    if status & (FSTS_PPF | FSTS_PFO) == 0 || unit.fault_offset() == 0 {
        return Overflow::None;
    }
    let count = unit.fault_records();
    let oldest = (status >> FSTS_FRI_SHIFT & 0xff) % count;
    for n in 0..count {
        let index = ((oldest + n) % count) as u16;
        if let Some(record) = reader.with(|()| take(registers, unit, index)) {
            each(record);
        }
    }
    // only now: until then the unit drops what it has no room for, and says so already
    if status & FSTS_PFO == 0 {
        return Overflow::None;
    }
    registers.write32(FSTS, FSTS_PFO);
    Overflow::Lost
}

/// The record, if it is occupied; it is free afterwards.
fn take<R: Registers>(registers: &R, unit: &Capabilities, index: u16) -> Option<FaultRecord> {
    let low = unit.fault_offset() + index * FAULT_RECORD_BYTES;
    let (low, high) = (Reg64(low), Reg64(low + 8));
    let upper = registers.read64(high);
    // a unit that fell off its bus reads all ones, for ever
    if upper & OCCUPIED == 0 || upper == u64::MAX {
        return None;
    }
    let record = FaultRecord::decode(registers.read64(low), upper);
    registers.write64(high, OCCUPIED);
    Some(record)
}
