// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Where the registers are and which bits they have (VT-d 4.1 §11.4), written down here a second
//! time: a driver's mistake is then not ours too.

/// A 64-bit register at its offset.
pub(super) mod quad {
    pub(crate) const CAP: u32 = 0x08;
    pub(crate) const ECAP: u32 = 0x10;
    pub(crate) const RTADDR: u32 = 0x20;
    pub(crate) const CCMD: u32 = 0x28;
    pub(crate) const IQH: u32 = 0x80;
    pub(crate) const IQT: u32 = 0x88;
    pub(crate) const IQA: u32 = 0x90;
    pub(crate) const IQERCD: u32 = 0xb0;
    pub(crate) const IRTA: u32 = 0xb8;
}

/// A 32-bit register at its offset.
pub(super) mod dword {
    pub(crate) const VER: u32 = 0x00;
    pub(crate) const GCMD: u32 = 0x18;
    pub(crate) const GSTS: u32 = 0x1c;
    pub(crate) const FSTS: u32 = 0x34;
    /// FECTL, FEDATA, FEADDR, FEUADDR.
    pub(crate) const FAULT_EVENT: u32 = 0x38;
    pub(crate) const ICS: u32 = 0x9c;
    /// IECTL, IEDATA, IEADDR, IEUADDR.
    pub(crate) const COMPLETION_EVENT: u32 = 0xa0;
}

/// Global command and status share these positions (§11.4.4).
pub(super) mod command {
    pub(crate) const TRANSLATION: u32 = 1 << 31;
    pub(crate) const ROOT_TABLE: u32 = 1 << 30;
    pub(crate) const WRITE_BUFFER: u32 = 1 << 27;
    pub(crate) const QUEUE: u32 = 1 << 26;
    pub(crate) const INTERRUPTS: u32 = 1 << 25;
    pub(crate) const INTERRUPT_TABLE: u32 = 1 << 24;
    pub(crate) const COMPATIBLE: u32 = 1 << 23;
}

/// Fault status (§11.4.7.1). All but PENDING and the index of the record are cleared by writing 1.
pub(super) mod fault {
    pub(crate) const OVERFLOW: u32 = 1 << 0;
    pub(crate) const PENDING: u32 = 1 << 1;
    pub(crate) const QUEUE_ERROR: u32 = 1 << 4;
    pub(crate) const COMPLETION_ERROR: u32 = 1 << 5;
    pub(crate) const TIME_OUT: u32 = 1 << 6;
    pub(crate) const INDEX_SHIFT: u32 = 8;
}

/// RTADDR: table and table mode; 9:0 are reserved (§11.4.5).
pub(super) const ROOT_BITS: u64 = !0x3ff;
/// Table mode of the root table address; 0 is legacy mode.
pub(super) const TABLE_MODE: u64 = 0b11 << 10;
/// IQA: ring, descriptor width (11) and size (2:0) (§11.4.9.3).
pub(super) const RING_BITS: u64 = !0x7f8;
/// Head and tail are byte offsets into the ring, in 18:4 (§11.4.9.1).
pub(super) const RING_SHIFT: u32 = 4;
pub(super) const RING_MASK: u32 = (1 << 15) - 1;
/// ICS.IWC, cleared by writing 1 (§11.4.9.4).
pub(super) const WAIT_COMPLETE: u32 = 1;
/// F of a fault recording register, in its highest word (§11.4.7.5).
pub(super) const RECORD_PENDING: u32 = 1 << 31;
/// VER: version 1.0 (§11.4.1).
pub(super) const VERSION: u32 = 0x10;

/// Puts `value` where the 32-bit access at `at` meets a 64-bit register.
pub(super) fn set_half(register: &mut u64, at: u32, value: u32) {
    let shift = (at & 4) * 8;
    *register = *register & !(0xffff_ffff << shift) | u64::from(value) << shift;
}
/// The half of a 64-bit register that a 32-bit access at `at` meets.
pub(super) fn half(register: u64, at: u32) -> u32 {
    (register >> ((at & 4) * 8)) as u32
}
