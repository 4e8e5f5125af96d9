// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Why bytes are no DMAR.

use super::Segment;
use ioatlas_dma::units::PhysAddr;

/// What is wrong with a table. Offsets are in bytes from its start.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DmarError {
    /// Fewer bytes than the header has.
    #[error("{bytes} bytes are no DMAR: its header alone has 48")]
    Short {
        /// How many there are.
        bytes: usize,
    },
    /// Another table: its signature is not `DMAR`.
    #[error("signature {found:02x?} at offset 0 is not \"DMAR\"")]
    Signature {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// The length field says less than a header, or more than there is.
    #[error("length field at offset 4: {says} bytes, of which {bytes} are here (at least 48)")]
    Length {
        /// What the field says.
        says: u32,
        /// How many bytes there are.
        bytes: usize,
    },
    /// The bytes do not add up to 0.
    #[error("the bytes of the table add up to {sum:#04x} instead of 0")]
    Checksum { sum: u8 },
    /// The length of a structure is less than its kind has, or leads out of the table.
    #[error(
        "structure at offset {offset:#x}: length {says} of kind {kind}, which has at least {least}; {left} bytes are left"
    )]
    Structure {
        offset: usize,
        kind: u16,
        /// What its length field says.
        says: usize,
        /// What its kind has at least.
        least: usize,
        /// Bytes to the end of the table.
        left: usize,
    },
    /// Some bytes are left that hold no structure, or no scope.
    #[error("offset {offset:#x}: {left} bytes are left, too few for what should follow")]
    Tail { offset: usize, left: usize },
    /// The length of a scope is less than one step of a path needs, half a step too long, or leads
    /// out of its structure.
    #[error(
        "scope at offset {offset:#x}: length {says} is not 6 + 2n (n at least 1) within the {left} bytes left"
    )]
    Scope {
        offset: usize,
        /// What its length field says.
        says: usize,
        /// Bytes to the end of its structure.
        left: usize,
    },
    /// A step of a path that no PCI function has.
    #[error("path at offset {offset:#x}: there is no device {device}, function {function}")]
    Path {
        /// Where the step is.
        offset: usize,
        /// Its device; at most 31 exists.
        device: u8,
        /// Its function; at most 7 exists.
        function: u8,
    },
    /// A unit's registers begin at 0, inside a page, or beyond every physical address.
    #[error("unit at offset {offset:#x}: registers cannot be at {registers}")]
    Registers {
        /// Where the structure begins.
        offset: usize,
        registers: PhysAddr,
    },
    /// Two units have one register block.
    #[error("unit at offset {offset:#x}: another unit has its registers at {registers}, too")]
    SameRegisters {
        /// Where the second begins.
        offset: usize,
        registers: PhysAddr,
    },
    /// Two units claim what is left of one segment.
    #[error("unit at offset {offset:#x}: another unit covers the rest of segment {segment}, too")]
    TwoRests {
        /// Where the second begins.
        offset: usize,
        segment: Segment,
    },
    /// Reserved memory that is not one or more whole pages.
    #[error("reserved memory at offset {offset:#x}: {base} to {limit} are no whole pages")]
    Reserved {
        /// Where the structure begins.
        offset: usize,
        base: PhysAddr,
        /// The last byte, not one past it.
        limit: PhysAddr,
    },
    /// The name of a device does not end, or is no text.
    #[error("name at offset {offset:#x}: no ASCII text that ends with 0")]
    Name { offset: usize },
}
