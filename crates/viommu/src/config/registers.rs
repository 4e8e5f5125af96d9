// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Which registers a unit has, where, and how they behave where the specification leaves it open.

/// The fixed registers end here; those that the capabilities place come after.
const FIRST_FREE: u16 = 0xc0;
/// FRO and IRO count 16 bytes in 10 bits.
const LAST_PLACE: u16 = 0x3ff << 4;
/// IVA and IOTLB together.
const IOTLB_BYTES: u32 = 16;
/// One fault recording register.
const RECORD_BYTES: u32 = 16;

/// How software invalidates (ECAP.QI).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InvalidationInterface {
    /// By CCMD and IOTLB only: no queue registers, and QIE is reserved.
    Registers,
    /// By the queue, and by registers while it is disabled.
    Queue,
}

/// What the set-root-table-pointer command does (CAP.ESRTPS).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RootPointer {
    /// It latches the address. What the caches hold stays until software invalidates it.
    Latches,
    /// It invalidates all of context cache, IOTLB and walk caches too, and is done (RTPS) when what
    /// was in flight has ended.
    LatchesAndFlushes,
}

/// The interrupt-remapping registers (ECAP.IR, ECAP.EIM). Their state is kept; no interrupt is
/// remapped by this unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InterruptRemapping {
    /// None: IRE, SIRTP and CFI are reserved, and so is an interrupt-entry invalidation.
    Absent,
    /// 8-bit destinations alone (EIM = 0).
    Compatible,
    /// 32-bit destinations (EIM) too.
    Extended,
}

/// Whether several pending faults of one requester take one record (§7.3.1 lets hardware choose).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Collapse {
    /// Each fault takes a record.
    Never,
    /// While a record of the requester is pending, further faults of it are not recorded.
    SameSource,
}

/// When a queue that stopped with an error goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Restart {
    /// When the error bit is cleared.
    ErrorCleared,
    /// At the first write of the tail after that. QEMU's unit does so.
    TailWritten,
}

/// The register block of a unit.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegisterConfig {
    pub interface: InvalidationInterface,
    /// What setting the root pointer (SRTP) does.
    pub root_pointer: RootPointer,
    /// Which interrupt-remapping registers there are.
    pub interrupts: InterruptRemapping,
    /// How faults of one requester are recorded.
    pub collapse: Collapse,
    /// When the queue goes on after an error.
    pub restart: Restart,
    /// Byte offset of the fault recording registers (CAP.FRO), a multiple of 16.
    pub fault_offset: u16,
    /// Byte offset of IVA and IOTLB (ECAP.IRO), a multiple of 16.
    pub iotlb_offset: u16,
}

impl Default for RegisterConfig {
    /// A queue, nothing flushed by SRTP, no interrupt remapping, a record for each fault; FRO and
    /// IRO as QEMU has them.
    fn default() -> Self {
        RegisterConfig {
            interface: InvalidationInterface::Queue,
            root_pointer: RootPointer::Latches,
            interrupts: InterruptRemapping::Absent,
            collapse: Collapse::Never,
            restart: Restart::ErrorCleared,
            fault_offset: 0x220,
            iotlb_offset: 0xf0,
        }
    }
}

impl RegisterConfig {
    /// Where the register block ends, in bytes, with `records` fault recording registers.
    pub(crate) fn end(&self, records: usize) -> u32 {
        let faults = u32::from(self.fault_offset) + RECORD_BYTES * records as u32;
        faults.max(u32::from(self.iotlb_offset) + IOTLB_BYTES)
    }

    /// Checks that both places are in range, and apart.
    pub(crate) fn check(&self, records: usize) -> Result<(), PlaceError> {
        let places = [
            ("offset of the fault records", self.fault_offset),
            ("offset of IVA and IOTLB", self.iotlb_offset),
        ];
        for (what, place) in places {
            if !(FIRST_FREE..=LAST_PLACE).contains(&place) || place % 16 != 0 {
                return Err(PlaceError::Place { what, place });
            }
        }
        let (faults, iotlb) = (u32::from(self.fault_offset), u32::from(self.iotlb_offset));
        if faults < iotlb + IOTLB_BYTES && iotlb < faults + RECORD_BYTES * records as u32 {
            return Err(PlaceError::Overlap {
                faults: self.fault_offset,
                records,
                iotlb: self.iotlb_offset,
            });
        }
        Ok(())
    }
}

/// Why the registers cannot be where they were asked to be.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PlaceError {
    /// FRO and IRO count 16 bytes in 10 bits, beyond the fixed registers.
    #[error("{what}: {place:#x} is no multiple of 16 within 0xc0 to 0x3ff0")]
    Place {
        what: &'static str,
        /// The offset that was asked, in bytes.
        place: u16,
    },
    /// One on the other.
    #[error("{records} fault records at {faults:#x} overlap IVA and IOTLB at {iotlb:#x}")]
    Overlap {
        /// Offset of the fault records, in bytes.
        faults: u16,
        records: usize,
        /// Offset of IVA and IOTLB, in bytes.
        iotlb: u16,
    },
}
