// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! From values to bytes, for a VMM that announces its units.
//!
//! Kinds come in ascending order, and within a segment the unit that covers the rest comes last, as
//! §8.2 and §8.3 demand of firmware.

use super::{layout::*, *};
use ioatlas_dma::units::{GRANULE_LG2, PHYS_BITS};

/// What has no encoding.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Its field holds one less, in a byte.
    #[error("host addresses of {bits} bits: 1 to 256 have a code")]
    AddressBits { bits: u16 },
    /// Scopes, or a name, that a 16-bit length cannot count.
    #[error("a structure of kind {kind} with {bytes} bytes: at most 65535 have a length")]
    Structure {
        kind: u16,
        /// What it would need.
        bytes: usize,
    },
    /// A path of no step, or one that an 8-bit length cannot count.
    #[error("a path of {steps} steps: 1 to 124 have a length")]
    Path { steps: usize },
    /// A step that no PCI function has.
    #[error("a path through device {device}, function {function}, which do not exist")]
    Step {
        /// At most 31 exists.
        device: u8,
        /// At most 7 exists.
        function: u8,
    },
    /// Registers at 0, inside a page, or beyond every physical address, or a size without a code.
    #[error("registers at {registers}, 2^{pages_lg2} pages of them: no place for a unit")]
    Registers {
        registers: PhysAddr,
        /// How many pages, log2; at most 15 has a code.
        pages_lg2: u8,
    },
    /// Two units have one register block.
    #[error("two units have their registers at {registers}")]
    SameRegisters { registers: PhysAddr },
    /// Two units claim what is left of one segment.
    #[error("two units cover the rest of segment {segment}")]
    TwoRests { segment: Segment },
    /// No page, or one beyond every physical address.
    #[error("reserved memory of {pages} pages from {first} is no range of memory")]
    Reserved { first: PhysAddr, pages: u64 },
    /// A zero inside the name, or a letter beyond ASCII.
    #[error("the name of ACPI device {number} is not ASCII text without zeros")]
    Name { number: u8 },
}

impl Dmar {
    /// An empty table for a machine whose physical addresses have `host_address_bits` bits.
    pub fn new(host_address_bits: u16) -> Self {
        Dmar {
            maker: Maker::default(),
            host_address_bits,
            interrupt_remapping: false,
            x2apic_opt_out: false,
            dma_opt_in: false,
            units: Vec::new(),
            reserved: Vec::new(),
            ats: Vec::new(),
            affinity: Vec::new(),
            names: Vec::new(),
            skipped: 0,
        }
    }

    /// The table's bytes, checksum included. Parsed again they give the same values, units in the
    /// order that is demanded, nothing skipped.
    ///
    /// # Errors
    /// [`BuildError`]: a value has no encoding.
    pub fn build(&self) -> Result<Vec<u8>, BuildError> {
        self.check()?;
        let mut table = self.header()?;
        let of = |covers| self.units.iter().filter(move |u| u.devices == covers);
        for unit in of(Covers::Listed).chain(of(Covers::Rest)) {
            let mut body = Vec::from([flag(unit.devices), unit.register_pages_lg2]);
            body.extend(unit.segment.0.to_le_bytes());
            body.extend(unit.registers.0.to_le_bytes());
            put_scopes(&mut body, &unit.scopes)?;
            put(&mut table, DRHD, &body)?;
        }
        for reserved in &self.reserved {
            let (first, pages) = (reserved.memory.first.addr().0, reserved.memory.pages.0);
            let mut body = Vec::from([0; 2]);
            body.extend(reserved.segment.0.to_le_bytes());
            body.extend(first.to_le_bytes());
            body.extend((first + pages * GRANULE - 1).to_le_bytes());
            put_scopes(&mut body, &reserved.scopes)?;
            put(&mut table, RMRR, &body)?;
        }
        for ports in &self.ats {
            let mut body = Vec::from([flag(ports.ports), 0]);
            body.extend(ports.segment.0.to_le_bytes());
            put_scopes(&mut body, &ports.scopes)?;
            put(&mut table, ATSR, &body)?;
        }
        for near in &self.affinity {
            let mut body = Vec::from([0; 4]);
            body.extend(near.registers.0.to_le_bytes());
            body.extend(near.proximity.to_le_bytes());
            put(&mut table, RHSA, &body)?;
        }
        for device in &self.names {
            let mut body = Vec::from([0, 0, 0, device.number]);
            body.extend(device.name.bytes());
            body.push(0);
            put(&mut table, ANDD, &body)?;
        }
        // each structure is at most 65,535 bytes, so 4 GiB would be 65,536 of the largest: cut
        // nothing, and check all the same
        let bytes = table.len();
        let length = u32::try_from(bytes).map_err(|_| BuildError::Structure { kind: 0, bytes })?;
        table[LENGTH_AT..LENGTH_AT + 4].copy_from_slice(&length.to_le_bytes());
        table[CHECKSUM_AT] = sum(&table).wrapping_neg();
        Ok(table)
    }

    /// With length and checksum 0.
    fn header(&self) -> Result<Vec<u8>, BuildError> {
        let bits = self.host_address_bits;
        let width = bits.checked_sub(1).and_then(|w| u8::try_from(w).ok());
        let width = width.ok_or(BuildError::AddressBits { bits })?;
        let maker = &self.maker;
        let mut header = Vec::from(SIGNATURE);
        header.extend([0; 4]);
        header.extend([maker.revision, 0]);
        header.extend(maker.oem);
        header.extend(maker.oem_table);
        header.extend(maker.oem_revision.to_le_bytes());
        header.extend(maker.creator);
        header.extend(maker.creator_revision.to_le_bytes());
        let flags = u8::from(self.interrupt_remapping)
            | u8::from(self.x2apic_opt_out) << 1
            | u8::from(self.dma_opt_in) << 2;
        header.extend([width, flags]);
        header.resize(HEADER, 0);
        Ok(header)
    }

    /// What the parser would refuse.
    fn check(&self) -> Result<(), BuildError> {
        for (n, unit) in self.units.iter().enumerate() {
            let (registers, pages_lg2) = (unit.registers, unit.register_pages_lg2);
            if !unit.has_a_place() {
                return Err(BuildError::Registers {
                    registers,
                    pages_lg2,
                });
            }
            let segment = unit.segment;
            match unit.conflict(&self.units[..n]) {
                None => {}
                Some(Conflict::Registers) => return Err(BuildError::SameRegisters { registers }),
                Some(Conflict::Rest) => return Err(BuildError::TwoRests { segment }),
            }
        }
        for reserved in &self.reserved {
            let (first, pages) = (reserved.memory.first.addr(), reserved.memory.pages.0);
            let end = reserved.memory.first.0.checked_add(pages);
            let fits = end.is_some_and(|end| end <= 1 << (PHYS_BITS - GRANULE_LG2));
            if pages == 0 || !fits {
                return Err(BuildError::Reserved { first, pages });
            }
        }
        let text = |name: &str| name.bytes().all(|b| b != 0 && b.is_ascii());
        match self.names.iter().find(|device| !text(&device.name)) {
            Some(device) => Err(BuildError::Name {
                number: device.number,
            }),
            None => Ok(()),
        }
    }
}

fn flag(covers: Covers) -> u8 {
    u8::from(covers == Covers::Rest)
}

fn put(table: &mut Vec<u8>, kind: u16, body: &[u8]) -> Result<(), BuildError> {
    let bytes = STRUCTURE_HEADER + body.len();
    let length = u16::try_from(bytes).map_err(|_| BuildError::Structure { kind, bytes })?;
    table.extend(kind.to_le_bytes());
    table.extend(length.to_le_bytes());
    table.extend(body);
    Ok(())
}

fn put_scopes(body: &mut Vec<u8>, scopes: &[Scope]) -> Result<(), BuildError> {
    for scope in scopes {
        let steps = scope.path.len();
        let length = u8::try_from(SCOPE_HEADER + STEP * steps).ok();
        let length = length.filter(|_| steps > 0);
        let length = length.ok_or(BuildError::Path { steps })?;
        body.extend([scope.kind.code(), length, 0, 0]);
        body.extend([scope.enumeration_id, scope.start_bus]);
        for &PathStep { device, function } in &scope.path {
            if device > 31 || function > 7 {
                return Err(BuildError::Step { device, function });
            }
            body.extend([device, function]);
        }
    }
    Ok(())
}
