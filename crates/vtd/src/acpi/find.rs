// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Where the table is: from the root pointer over the root tables to the DMAR (ACPI 6.5 §5.2.5 to
//! §5.2.8).
//!
//! A loader hands the root pointer over; where none does, [`root_pointer`] looks where a BIOS
//! leaves it. [`dmar`] follows it. Pointers and lengths are what firmware wrote, so each is read
//! through [`PhysRead`], which may refuse, and no table of more than [`MAX_BYTES`] is taken.

use super::layout::{ACPI_HEADER, SIGNATURE, sum};
use alloc::vec::Vec;
use ioatlas_dma::units::PhysAddr;

/// The largest root table or DMAR that is read, in bytes.
pub const MAX_BYTES: u32 = 1 << 20;

/// Reads of physical memory.
pub trait PhysRead {
    /// Fills `into` from `at`.
    ///
    /// # Errors
    /// Not all of it is memory that can be read.
    fn read(&self, at: PhysAddr, into: &mut [u8]) -> Result<(), Unreadable>;
}

/// Some of the bytes asked cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the memory cannot be read")]
pub struct Unreadable;

impl<F: Fn(PhysAddr, &mut [u8]) -> Result<(), Unreadable>> PhysRead for F {
    fn read(&self, at: PhysAddr, into: &mut [u8]) -> Result<(), Unreadable> {
        self(at, into)
    }
}

/// Why there is no table.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FindError {
    /// No root pointer where a BIOS leaves it.
    #[error("no ACPI root pointer between 0xe0000 and 0xfffff, nor in the extended BIOS data area")]
    NoRootPointer,
    /// What should be one has another signature, or its bytes do not add up to 0.
    #[error("no ACPI root pointer at {at}")]
    NotRootPointer { at: PhysAddr },
    /// The table that lists the others is not one, or its bytes do not add up to 0.
    #[error("no ACPI root table at {at}")]
    NotRootTable { at: PhysAddr },
    /// A table with a length that cannot be.
    #[error("the table at {at} says that it has {bytes} bytes; 36 to 1048576 are taken")]
    Length { at: PhysAddr, bytes: u32 },
    /// Firmware announces no remapping unit.
    #[error("none of the {tables} ACPI tables is a DMAR: firmware announces no remapping unit")]
    NoDmar {
        /// How many there are.
        tables: usize,
    },
    /// Memory that firmware points to cannot be read.
    #[error("{bytes} bytes at {at} cannot be read")]
    Unreadable { at: PhysAddr, bytes: usize },
}

const POINTER_SIGNATURE: [u8; 8] = *b"RSD PTR ";
/// Bytes of the first version's root pointer, and of the second's.
const POINTER_BYTES: usize = 20;
const LONG_POINTER_BYTES: usize = 36;
/// It lies on such a boundary.
const POINTER_ALIGNMENT: u64 = 16;
/// Where a BIOS leaves it (§5.2.5.1): in the first KiB of the extended BIOS data area, whose
/// segment is here, or in its own memory.
const DATA_AREA_SEGMENT_AT: PhysAddr = PhysAddr(0x40e);
const DATA_AREA_BYTES: u64 = 1024;
const BIOS: core::ops::Range<u64> = 0xe_0000..0x10_0000;

/// Looks for the root pointer where a BIOS leaves it. Firmware without a BIOS
/// hands it over instead.
///
/// # Errors
/// [`FindError::NoRootPointer`] where there is none.
pub fn root_pointer(memory: &impl PhysRead) -> Result<PhysAddr, FindError> {
    let mut segment = [0; 2];
    let area = match memory.read(DATA_AREA_SEGMENT_AT, &mut segment) {
        Ok(()) => u64::from(u16::from_le_bytes(segment)) << 4,
        Err(Unreadable) => 0,
    };
    // 0 is no data area, and its page may not be readable
    let area = (area != 0).then_some(area..area + DATA_AREA_BYTES);
    area.into_iter()
        .chain([BIOS])
        .flat_map(|range| range.step_by(POINTER_ALIGNMENT as usize))
        .map(PhysAddr)
        .find(|at| tables(memory, *at).is_ok())
        .ok_or(FindError::NoRootPointer)
}

/// The bytes of the DMAR, for [`Dmar::parse`](super::Dmar::parse), which checks them.
///
/// # Errors
/// No DMAR is listed, or a table on the way to it is malformed or unreadable ([`FindError`]).
pub fn dmar(memory: &impl PhysRead, root_pointer: PhysAddr) -> Result<Vec<u8>, FindError> {
    let root = tables(memory, root_pointer)?;
    let list = whole_table(memory, root.at)?;
    if list[..4] != root.signature || sum(&list) != 0 {
        return Err(FindError::NotRootTable { at: root.at });
    }
    let entries = list[ACPI_HEADER..].chunks_exact(root.entry_bytes);
    let count = entries.len();
    for entry in entries {
        let mut address = [0; 8];
        address[..entry.len()].copy_from_slice(entry);
        let at = PhysAddr(u64::from_le_bytes(address));
        let mut signature = [0; 4];
        // another table that cannot be read is no reason to miss ours
        if memory.read(at, &mut signature).is_ok() && signature == SIGNATURE {
            return whole_table(memory, at);
        }
    }
    Err(FindError::NoDmar { tables: count })
}

/// The table that lists the others.
struct Tables {
    at: PhysAddr,
    signature: [u8; 4],
    entry_bytes: usize,
}

/// What the root pointer at `at` points to: the table of 64-bit entries where there is one.
fn tables(memory: &impl PhysRead, at: PhysAddr) -> Result<Tables, FindError> {
    let not = FindError::NotRootPointer { at };
    let mut pointer = [0; LONG_POINTER_BYTES];
    let (short, _) = pointer.split_at_mut(POINTER_BYTES);
    fill(memory, at, short)?;
    if short[..8] != POINTER_SIGNATURE || sum(short) != 0 {
        return Err(not);
    }
    let quad = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
    let old = Tables {
        at: PhysAddr(quad(&short[16..20])),
        signature: *b"RSDT",
        entry_bytes: 4,
    };
    // the revision
    if short[15] < 2 {
        return Ok(old);
    }
    fill(memory, at, &mut pointer)?;
    if sum(&pointer) != 0 {
        return Err(not);
    }
    match quad(&pointer[24..32]) {
        0 => Ok(old),
        new => Ok(Tables {
            at: PhysAddr(new),
            signature: *b"XSDT",
            entry_bytes: 8,
        }),
    }
}

/// A table's bytes, of a length that can be.
fn whole_table(memory: &impl PhysRead, at: PhysAddr) -> Result<Vec<u8>, FindError> {
    let mut header = [0; ACPI_HEADER];
    fill(memory, at, &mut header)?;
    let bytes = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
    if !(ACPI_HEADER as u32..=MAX_BYTES).contains(&bytes) {
        return Err(FindError::Length { at, bytes });
    }
    let mut table = alloc::vec![0; bytes as usize];
    fill(memory, at, &mut table)?;
    Ok(table)
}

fn fill(memory: &impl PhysRead, at: PhysAddr, into: &mut [u8]) -> Result<(), FindError> {
    let bytes = into.len();
    memory
        .read(at, into)
        .map_err(|Unreadable| FindError::Unreadable { at, bytes })
}
