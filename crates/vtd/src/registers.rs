// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The register block (VT-d 4.1 §11.4), as far as DMA remapping in legacy mode needs it.
//!
//! [`Registers`] is the seam: memory-mapped hardware, QEMU by a test socket and the software unit
//! all sit behind it.

use alloc::sync::Arc;

/// The byte offset of a 32-bit register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reg32(pub u16);

/// The byte offset of a 64-bit register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reg64(pub u16);

/// Version, read only (§11.4.1).
pub const VER: Reg32 = Reg32(0x00);
/// Capabilities, read only (§11.4.2).
pub const CAP: Reg64 = Reg64(0x08);
/// Extended capabilities, read only (§11.4.3).
pub const ECAP: Reg64 = Reg64(0x10);
/// Global command, write only (§11.4.4.1).
pub const GCMD: Reg32 = Reg32(0x18);
/// Global status, read only (§11.4.4.2).
pub const GSTS: Reg32 = Reg32(0x1c);
/// Root table address (§11.4.5).
pub const RTADDR: Reg64 = Reg64(0x20);
/// Context command: invalidation of the context cache where there is no queue (§11.4.6.1).
pub const CCMD: Reg64 = Reg64(0x28);
/// Fault status; its error bits are cleared by writing 1 (§11.4.7.1).
pub const FSTS: Reg32 = Reg32(0x34);
/// Invalidation queue head (§11.4.9.1).
pub const IQH: Reg64 = Reg64(0x80);
/// Invalidation queue tail (§11.4.9.2).
pub const IQT: Reg64 = Reg64(0x88);
/// Invalidation queue address (§11.4.9.3).
pub const IQA: Reg64 = Reg64(0x90);
/// Invalidation queue error record, read only (§11.4.9.9).
pub const IQERCD: Reg64 = Reg64(0xb0);
/// Interrupt remapping table address (§11.4.8.1). Never written by this driver.
pub const IRTA: Reg64 = Reg64(0xb8);

/// From the IOTLB registers' offset (ECAP.IRO): the invalidate address (§11.4.6.3, IVA).
pub const IVA_AT: u16 = 0;
/// From the IOTLB registers' offset (ECAP.IRO): the invalidate command (§11.4.6.2, IOTLB).
pub const IOTLB_AT: u16 = 8;
/// Bytes of one fault record (§11.4.7.5, FRCD); the first is at CAP.FRO.
pub const FAULT_RECORD_BYTES: u16 = 16;

/// Translation enable: TE of [`GCMD`], TES of [`GSTS`].
pub const GCMD_TE: u32 = 1 << 31;
/// Set root table pointer: SRTP of [`GCMD`], RTPS of [`GSTS`]. One shot.
pub const GCMD_SRTP: u32 = 1 << 30;
/// Write-buffer flush: WBF of [`GCMD`], WBFS of [`GSTS`]. One shot; it is done when WBFS reads 0.
pub const GCMD_WBF: u32 = 1 << 27;
/// Queued invalidation enable: QIE of [`GCMD`], QIES of [`GSTS`].
pub const GCMD_QIE: u32 = 1 << 26;
/// The bits of [`GSTS`] that a write to [`GCMD`] must repeat so as not to change them: all enables,
/// none of the one-shot commands SRTP (30), SFL (29), WBF (27) and SIRTP (24) (§11.4.4.1).
pub const GSTS_ENABLES: u32 = !(1 << 30 | 1 << 29 | 1 << 27 | 1 << 24);

/// Fault overflow: PFO of [`FSTS`], a fault found no free record. Cleared by writing 1 (§11.4.7.1).
pub const FSTS_PFO: u32 = 1 << 0;
/// Fault pending: PPF of [`FSTS`], some record is occupied. Read only: it falls when the
/// last record is cleared.
pub const FSTS_PPF: u32 = 1 << 1;
/// FRI of [`FSTS`] begins here: which record was the first to be filled (bits 15..8).
pub const FSTS_FRI_SHIFT: u32 = 8;
/// Invalidation queue error: IQE of [`FSTS`], cleared by writing 1 (§11.4.7.1).
pub const FSTS_IQE: u32 = 1 << 4;
/// Invalidation completion error: ICE of [`FSTS`], cleared by writing 1.
pub const FSTS_ICE: u32 = 1 << 5;
/// Invalidation time-out error: ITE of [`FSTS`], cleared by writing 1.
pub const FSTS_ITE: u32 = 1 << 6;
/// What [`FSTS`] says about the queue.
pub const FSTS_QUEUE: u32 = FSTS_IQE | FSTS_ICE | FSTS_ITE;

/// [`IQERCD`]: IQEI, what was wrong with the descriptor (bits 3..0). Valid while IQE is set.
pub const IQERCD_INFO: u64 = 0xf;
/// [`IQERCD`]: ITESID begins here, the device that did not answer (bits 47..32). Valid while ITE is
/// set; 0 where unknown.
pub const IQERCD_TIMED_OUT_SHIFT: u32 = 32;
/// [`IQERCD`]: ICESID begins here, the device that answered wrongly (bits 63..48). Valid while ICE
/// is set; 0 where unknown.
pub const IQERCD_COMPLETION_SHIFT: u32 = 48;

/// [`CCMD`]: ICC, begin; 0 again when done (bit 63).
pub const CCMD_ICC: u64 = 1 << 63;
/// [`CCMD`]: CIRG begins here, what to invalidate (bits 62..61).
pub const CCMD_REQUEST_SHIFT: u32 = 61;
/// [`CCMD`]: CAIG begins here, what was invalidated (bits 60..59); 0 is a request that
/// was not carried out.
pub const CCMD_ACTUAL_SHIFT: u32 = 59;
/// [`CCMD`]: FM begins here, the function mask (bits 33..32).
pub const CCMD_FUNCTION_MASK_SHIFT: u32 = 32;
/// [`CCMD`]: SID begins here (bits 31..16). DID is in bits 15..0.
pub const CCMD_SOURCE_SHIFT: u32 = 16;
/// IOTLB command: IVT, begin; 0 again when done (§11.4.6.2, bit 63).
pub const IOTLB_IVT: u64 = 1 << 63;
/// IOTLB command: IIRG begins here, what to invalidate (bits 61..60).
pub const IOTLB_REQUEST_SHIFT: u32 = 60;
/// IOTLB command: IAIG begins here, what was invalidated (bits 58..57); 0 is a request that
/// was not carried out.
pub const IOTLB_ACTUAL_SHIFT: u32 = 57;
/// IOTLB command: DR, drain reads (bit 49).
pub const IOTLB_DRAIN_READS: u64 = 1 << 49;
/// IOTLB command: DW, drain writes (bit 48).
pub const IOTLB_DRAIN_WRITES: u64 = 1 << 48;
/// IOTLB command: DID begins here (bits 47..32).
pub const IOTLB_DOMAIN_SHIFT: u32 = 32;
/// Both actual granularities are two bits, with the codes of the requests: 1 global, 2 domain,
/// 3 device or pages.
pub const ACTUAL_MASK: u64 = 0b11;

/// [`IQH`] and [`IQT`] hold the index of a 128-bit descriptor from this bit on (bits 18..4).
pub const IQ_INDEX_SHIFT: u32 = 4;
/// The index bits of [`IQH`] and [`IQT`], shifted down.
pub const IQ_INDEX_MASK: u64 = (1 << 15) - 1;
/// [`IQA`]: QS, the queue has 2^QS frames (bits 2..0). We use 0: one frame of 256 descriptors.
pub const IQA_ONE_FRAME: u64 = 0;
/// [`RTADDR`]: TTM, the table mode (bits 11..10). 0 is legacy mode.
pub const RTADDR_MODE_MASK: u64 = 3 << 10;

/// Access to a unit's registers. Reads and writes are ordered as uncached accesses of one CPU are:
/// a write is after everything that the caller wrote to memory before it.
///
/// # Safety
/// They are the registers of a remapping unit, or of what behaves like one (VT-d 4.1 §11):
/// each call is one access of that size at that offset, in the order of the calls. For as long
/// as a driver has them, nothing else writes what it uses: commands, the root table's address,
/// the invalidation queue or registers, fault records. Its tables have as many entries as
/// [`table_entries_lg2`](Self::table_entries_lg2) says. The driver believes what it reads, and
/// frames are reused by that. Nothing checks it at run time; the conformance cases check
/// units, ours and others'.
///
/// ```
/// # use ioatlas_vtd::registers::*;
/// struct Nothing;
/// // SAFETY: nothing is there, as all ones say; no driver takes it for a unit.
/// unsafe impl Registers for Nothing {
///     fn read32(&self, _: Reg32) -> u32 { !0 }
///     fn read64(&self, _: Reg64) -> u64 { !0 }
///     fn write32(&self, _: Reg32, _: u32) {}
///     fn write64(&self, _: Reg64, _: u64) {}
/// }
/// ```
///
/// No safe code makes a unit that says what a driver wants to hear:
///
/// ```compile_fail,E0200
/// # use ioatlas_vtd::registers::*;
/// struct Nothing;
/// impl Registers for Nothing {
///     fn read32(&self, _: Reg32) -> u32 { !0 }
///     fn read64(&self, _: Reg64) -> u64 { !0 }
///     fn write32(&self, _: Reg32, _: u32) {}
///     fn write64(&self, _: Reg64, _: u64) {}
/// }
/// ```
#[allow(unsafe_code)]
pub unsafe trait Registers: Send + Sync + 'static {
    /// Reads a 32-bit register.
    fn read32(&self, register: Reg32) -> u32;
    /// Reads a 64-bit register.
    fn read64(&self, register: Reg64) -> u64;
    /// Writes a 32-bit register.
    fn write32(&self, register: Reg32, value: u32);
    /// Writes a 64-bit register.
    fn write64(&self, register: Reg64, value: u64);
    /// Log2 of the entries of the second-stage tables that the unit walks. All hardware has 512; a
    /// unit in software may have fewer, which no register says, and what stands before it says the
    /// same.
    fn table_entries_lg2(&self) -> u32 {
        9
    }
}

/// Shared registers are registers: a software unit is used by its driver and by
/// its devices at once.
#[allow(unsafe_code)] // a promise
// SAFETY: those inside are.
unsafe impl<R: Registers + ?Sized> Registers for Arc<R> {
    #[inline]
    fn read32(&self, register: Reg32) -> u32 {
        (**self).read32(register)
    }
    #[inline]
    fn read64(&self, register: Reg64) -> u64 {
        (**self).read64(register)
    }
    #[inline]
    fn write32(&self, register: Reg32, value: u32) {
        (**self).write32(register, value)
    }
    #[inline]
    fn write64(&self, register: Reg64, value: u64) {
        (**self).write64(register, value)
    }
    fn table_entries_lg2(&self) -> u32 {
        (**self).table_entries_lg2()
    }
}
