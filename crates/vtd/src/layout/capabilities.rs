// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a unit says it can do (VT-d 4.1 §11.4.2, CAP, and §11.4.3, ECAP). Read, never assumed.

use super::{AddressMask, AddressWidth, Drain};
use crate::registers::FAULT_RECORD_BYTES;
use core::ops::Range;
use ioatlas_dma::units::ByteCount;

/// The registers that every unit has, or leaves room for, end here, with the interrupt
/// remapping table address (§11.4.8.1).
pub(crate) const FIXED_END: u32 = 0xc0;
/// The invalidate address and the IOTLB register, beside each other.
const IOTLB_BYTES: u32 = 16;

/// The two capability registers of a unit. [`Explanation`](crate::driver::Explanation)
/// puts them into words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    cap: u64,
    ecap: u64,
}

/// Single bits: a method for each.
macro_rules! features {
    ($($(#[$doc:meta])* $name:ident: $register:ident, $bit:literal;)*) => {
        impl Capabilities {
            $($(#[$doc])* pub fn $name(&self) -> bool {
                self.$register >> $bit & 1 != 0
            })*
        }
    };
}

features! {
    /// CAP.RWBF (bit 4): changes in memory must be pushed by a write-buffer flush before
    /// the unit sees them.
    needs_write_buffer_flush: cap, 4;
    /// CAP.PLMR (bit 5): the low protected memory region exists.
    protected_low_memory: cap, 5;
    /// CAP.PHMR (bit 6): the high protected memory region exists.
    protected_high_memory: cap, 6;
    /// CAP.CM (bit 7), caching mode: entries that are not present, or faulty, may be cached too.
    caching_mode: cap, 7;
    /// CAP.ZLR (bit 22): zero-length reads of write-only pages succeed.
    zero_length_reads: cap, 22;
    /// CAP.PSI (bit 39): invalidation of pages, not only of domains.
    page_selective: cap, 39;
    /// CAP.DWD (bit 54): an invalidation can drain writes.
    drains_writes: cap, 54;
    /// CAP.DRD (bit 55): an invalidation can drain reads.
    drains_reads: cap, 55;
    /// CAP.ESRTPS (bit 63): setting the root table pointer flushes all caches by itself.
    root_pointer_flushes: cap, 63;
    /// ECAP.C (bit 0): walks of root, context and second-stage tables snoop the processor's caches.
    coherent_walks: ecap, 0;
    /// ECAP.QI (bit 1): the invalidation queue exists.
    queued_invalidation: ecap, 1;
    /// ECAP.DT (bit 2): devices may keep translations of their own.
    device_tlb: ecap, 2;
    /// ECAP.IR (bit 3): interrupts can be remapped.
    interrupt_remapping: ecap, 3;
    /// ECAP.PT (bit 6): a context entry may let requests pass untranslated.
    pass_through: ecap, 6;
    /// ECAP.SC (bit 7): a leaf may force snooping.
    snoop_control: ecap, 7;
    /// ECAP.SMTS (bit 43): scalable mode.
    scalable_mode: ecap, 43;
}

impl Capabilities {
    /// From the values of the two registers.
    pub fn new(cap: u64, ecap: u64) -> Self {
        Capabilities { cap, ecap }
    }
    /// The value of CAP (§11.4.2).
    pub fn cap(&self) -> u64 {
        self.cap
    }
    /// The value of ECAP (§11.4.3).
    pub fn ecap(&self) -> u64 {
        self.ecap
    }

    fn field(value: u64, low: u32, high: u32) -> u32 {
        (value >> low & ((1 << (high - low + 1)) - 1)) as u32
    }

    /// CAP.ND (bits 2..0): how many domain ids there are, 16 to 65,536; `None` for
    /// the reserved code 7.
    pub fn domain_ids(&self) -> Option<u32> {
        let nd = Self::field(self.cap, 0, 2);
        (nd < 7).then(|| 1 << (4 + 2 * nd))
    }
    /// CAP.SAGAW (bits 12..8): whether second-stage tables may be that wide.
    pub fn supports_width(&self, width: AddressWidth) -> bool {
        Self::field(self.cap, 8, 12) >> width.code() & 1 != 0
    }
    /// CAP.MGAW (bits 21..16): how many bits an IOVA may have. It may be less than
    /// a supported table width.
    pub fn iova_bits(&self) -> u32 {
        Self::field(self.cap, 16, 21) + 1
    }
    /// CAP.FRO (bits 33..24): byte offset of the fault records.
    pub fn fault_offset(&self) -> u16 {
        16 * Self::field(self.cap, 24, 33) as u16
    }
    /// CAP.SSLPS (bits 37..34): whether second-stage leaves of 2 MiB (bit 34) exist.
    pub fn leaves_2m(&self) -> bool {
        self.cap >> 34 & 1 != 0
    }
    /// CAP.SSLPS (bits 37..34): whether second-stage leaves of 1 GiB (bit 35) exist.
    pub fn leaves_1g(&self) -> bool {
        self.cap >> 35 & 1 != 0
    }
    /// CAP.NFR (bits 47..40): how many fault records there are, at least 1.
    pub fn fault_records(&self) -> u32 {
        Self::field(self.cap, 40, 47) + 1
    }
    /// CAP.MAMV (bits 53..48): the largest mask of a page-selective invalidation.
    /// Means nothing without PSI.
    pub fn max_address_mask(&self) -> Option<AddressMask> {
        self.page_selective()
            .then(|| AddressMask::new(Self::field(self.cap, 48, 53)))
            .flatten()
    }
    /// What an invalidation can be asked to drain (CAP.DRD, CAP.DWD).
    pub fn drains(&self) -> Drain {
        let mut drain = Drain::NONE;
        if self.drains_reads() {
            drain = drain.with(Drain::READS);
        }
        if self.drains_writes() {
            drain = drain.with(Drain::WRITES);
        }
        drain
    }
    /// ECAP.MHMV (bits 23..20): the largest mask of an interrupt-entry invalidation.
    pub fn max_interrupt_mask(&self) -> u32 {
        Self::field(self.ecap, 20, 23)
    }
    /// The level of the largest second-stage leaf that the unit walks: 1 is 4 KiB, 2 is 2 MiB, 3 is
    /// 1 GiB. A unit that claims 1 GiB without 2 MiB contradicts itself, and gets 4 KiB.
    pub fn largest_leaf(&self) -> u32 {
        match (self.leaves_2m(), self.leaves_1g()) {
            (false, _) => 1,
            (true, false) => 2,
            (true, true) => 3,
        }
    }
    /// ECAP.IRO (bits 17..8): byte offset of the IOTLB registers.
    pub fn iotlb_offset(&self) -> u16 {
        16 * Self::field(self.ecap, 8, 17) as u16
    }
    /// Where the register block ends: after the fixed registers, the fault records
    /// and the IOTLB registers.
    pub fn register_bytes(&self) -> ByteCount {
        let [faults, iotlb] = [self.fault_registers(), self.iotlb_registers()];
        ByteCount(u64::from(faults.end.max(iotlb.end).max(FIXED_END)))
    }
    /// Byte offsets of the fault records.
    pub(crate) fn fault_registers(&self) -> Range<u32> {
        let first = u32::from(self.fault_offset());
        first..first + u32::from(FAULT_RECORD_BYTES) * self.fault_records()
    }
    /// Byte offsets of the invalidate address and the IOTLB register.
    pub(crate) fn iotlb_registers(&self) -> Range<u32> {
        let first = u32::from(self.iotlb_offset());
        first..first + IOTLB_BYTES
    }
    /// Whether the registers read as an absent device's do: all zeros or all ones.
    pub fn is_absent(&self) -> bool {
        self.cap == u64::MAX || self.cap == 0
    }
}
