// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a VMM tells its guest of software units: the ACPI table DMAR (VT-d 4.1 §8).
//!
//! The VMM chooses where in the guest's address space the register windows lie, and whose devices
//! each unit translates; what else the table says follows from the units. The table is built with
//! the values of [`ioatlas_vtd::acpi`], and the VMM hands its bytes to the guest's firmware.

use crate::{config::InterruptRemapping, mmio::MmioWindow};
use ioatlas_dma::{
    platform::{Lock, PhysMemory, Platform},
    units::{GRANULE, PhysAddr},
};
use ioatlas_vtd::acpi::{Atsr, BuildError, Covers, Dmar, Drhd, Rmrr, Scope, ScopeKind, Segment};

/// Where a VMM puts a unit, and for which devices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnitPlace {
    /// Of which segment the devices are.
    pub segment: Segment,
    /// Where the register window begins in the guest's address space; a whole page.
    pub registers: PhysAddr,
    /// Whether the unit takes the devices in `scopes`, or whatever no other one does.
    pub devices: Covers,
    /// Under [`Covers::Listed`], its devices; I/O APICs and timers, whatever it covers.
    pub scopes: Vec<Scope>,
}

/// A table that grows by units and reserved memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Announcement {
    dmar: Dmar,
}

impl Announcement {
    /// Of nothing yet, for a guest whose physical addresses have `host_address_bits` bits.
    pub fn new(host_address_bits: u16) -> Self {
        let mut dmar = Dmar::new(host_address_bits);
        // of every unit, so far
        dmar.interrupt_remapping = true;
        Announcement { dmar }
    }

    /// Adds the unit behind `window`. A unit that serves device TLBs also gets an ATSR: for the
    /// bridges among its scopes, or for all ports of a segment of which it covers the rest.
    /// Interrupts can be remapped where every unit can.
    pub fn unit<P: Platform, M: PhysMemory<P>>(
        mut self,
        window: &MmioWindow<P, M>,
        place: UnitPlace,
    ) -> Self {
        let unit = window.unit();
        let interrupts = unit.state.with(|s| s.registers.config.interrupts);
        self.dmar.interrupt_remapping &= interrupts != InterruptRemapping::Absent;
        if unit.features().device_tlbs {
            let ports = place.scopes.iter().filter(|s| s.kind == ScopeKind::Bridge);
            self.dmar.ats.push(Atsr {
                segment: place.segment,
                ports: place.devices,
                scopes: match place.devices {
                    Covers::Listed => ports.cloned().collect(),
                    Covers::Rest => Vec::new(),
                },
            });
        }
        let pages = (window.len() / GRANULE).next_power_of_two();
        self.dmar.units.push(Drhd {
            segment: place.segment,
            registers: place.registers,
            register_pages_lg2: pages.ilog2() as u8,
            devices: place.devices,
            scopes: place.scopes,
        });
        self
    }

    /// Adds memory that devices are to reach at its own address.
    pub fn reserved(mut self, memory: Rmrr) -> Self {
        self.dmar.reserved.push(memory);
        self
    }

    /// The table's values. Interrupts can be remapped nowhere where there is no unit.
    pub fn dmar(mut self) -> Dmar {
        self.dmar.interrupt_remapping &= !self.dmar.units.is_empty();
        self.dmar
    }

    /// The table's bytes, checksum included.
    ///
    /// # Errors
    /// [`BuildError`]: a place, a path or reserved memory has no encoding, or two
    /// units contradict each other.
    pub fn build(self) -> Result<Vec<u8>, BuildError> {
        self.dmar().build()
    }
}
