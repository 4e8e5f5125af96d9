// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The register block as bytes on a bus, for a VMM that routes memory-mapped accesses to it.
//!
//! What the specification defines are accesses of 4 bytes at a multiple of 4 and of 8 at a multiple
//! of 8 (VT-d 4.1 §11.2). Others are undefined; here nothing happens, and a read gives all ones,
//! which is what a bus gives where no device answers. Registers are little-endian. An 8-byte access
//! is one section under the unit's lock.
//!
//! Offsets count from the start of the window. Those of it without a register read as 0; those
//! beyond it are treated as a wrong access. Nothing that a guest can do here panics.

use crate::unit::SoftUnit;
use ioatlas_dma::{
    platform::{PhysMemory, Platform},
    units::GRANULE,
};
use ioatlas_vtd::registers::{Reg32, Reg64, Registers};
use std::sync::Arc;

/// A unit's registers in a range of guest addresses.
pub struct MmioWindow<P: Platform, M: PhysMemory<P>> {
    unit: Arc<SoftUnit<P, M>>,
    bytes: u32,
}

/// An access that the specification defines.
enum Place {
    Word(Reg32),
    Quad(Reg64),
}

impl<P: Platform, M: PhysMemory<P>> MmioWindow<P, M> {
    /// The registers of `unit`.
    pub fn new(unit: Arc<SoftUnit<P, M>>) -> Self {
        let bytes = unit.register_bytes().next_multiple_of(GRANULE as u32);
        MmioWindow { unit, bytes }
    }
    /// Size of the window in bytes: whole pages.
    pub fn len(&self) -> u64 {
        self.bytes.into()
    }
    /// Never: there is always a version register.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
    /// The unit behind the window.
    pub fn unit(&self) -> &Arc<SoftUnit<P, M>> {
        &self.unit
    }

    /// Reads `data.len()` bytes at `offset`; all ones where that is no access to a register block.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        match self.place(offset, data.len()) {
            Some(Place::Word(at)) => data.copy_from_slice(&self.unit.read32(at).to_le_bytes()),
            Some(Place::Quad(at)) => data.copy_from_slice(&self.unit.read64(at).to_le_bytes()),
            None => data.fill(0xff),
        }
    }
    /// Writes `data` at `offset`; nothing where that is no access to a register block.
    pub fn write(&self, offset: u64, data: &[u8]) {
        match self.place(offset, data.len()) {
            Some(Place::Word(at)) => {
                if let Ok(bytes) = data.try_into() {
                    self.unit.write32(at, u32::from_le_bytes(bytes));
                }
            }
            Some(Place::Quad(at)) => {
                if let Ok(bytes) = data.try_into() {
                    self.unit.write64(at, u64::from_le_bytes(bytes));
                }
            }
            None => {}
        }
    }

    fn place(&self, offset: u64, len: usize) -> Option<Place> {
        let at = u16::try_from(offset).ok()?;
        if offset >= self.len() || !offset.is_multiple_of(len.max(1) as u64) {
            return None;
        }
        match len {
            4 => Some(Place::Word(Reg32(at))),
            8 => Some(Place::Quad(Reg64(at))),
            _ => None,
        }
    }
}

/// A driver on the bytes: what it writes goes the way that a guest's accesses go.
#[allow(unsafe_code)] // a promise
// SAFETY: the software unit's, byte by byte.
unsafe impl<P: Platform, M: PhysMemory<P>> Registers for MmioWindow<P, M> {
    fn read32(&self, register: Reg32) -> u32 {
        let mut bytes = [0; 4];
        self.read(register.0.into(), &mut bytes);
        u32::from_le_bytes(bytes)
    }
    fn read64(&self, register: Reg64) -> u64 {
        let mut bytes = [0; 8];
        self.read(register.0.into(), &mut bytes);
        u64::from_le_bytes(bytes)
    }
    fn write32(&self, register: Reg32, value: u32) {
        self.write(register.0.into(), &value.to_le_bytes());
    }
    fn write64(&self, register: Reg64, value: u64) {
        self.write(register.0.into(), &value.to_le_bytes());
    }
    fn table_entries_lg2(&self) -> u32 {
        self.unit.table_entries_lg2()
    }
}
