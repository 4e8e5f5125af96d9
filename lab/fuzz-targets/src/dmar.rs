// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Entry point for fuzzers: arbitrary bytes as what firmware left in memory.
//!
//! They are a DMAR, as they are and with signature, length and checksum made right, so that changes
//! reach the parser behind them. And they are the memory where a BIOS leaves the root pointer. A
//! table that is accepted must be one that can be built, read again as the same, and that routes
//! every device to a unit that it has.

use ioatlas_dma::units::{PhysAddr, SourceId};
use ioatlas_vtd::acpi::{
    Covers, Dmar, DmarError, Segment,
    find::{self, FindError, Unreadable},
};

/// Bytes beyond these are ignored.
pub const MAX_TABLE_BYTES: usize = 1 << 16;
/// Address at which the memory that is searched begins.
const BIOS: u64 = 0xe_0000;

/// What became of one input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableFindings {
    /// The bytes as they are.
    pub raw: Result<(), DmarError>,
    /// With a header made right.
    pub sealed: Result<(), DmarError>,
    /// Structures of the table with the right header, skipped ones not counted.
    pub structures: usize,
    /// Structures that were skipped.
    pub skipped: u32,
    /// Devices that have a unit, of those that were asked for.
    pub routed: u32,
    /// The length of the table that was found, or why none was.
    pub found: Result<usize, FindError>,
}

/// Reads `data` as firmware's.
///
/// # Panics
/// A table was accepted that cannot be built again as the same, or that routes a device to a unit
/// that it has not.
pub fn dmar(data: &[u8]) -> TableFindings {
    let data = &data[..data.len().min(MAX_TABLE_BYTES)];
    let sealed = Dmar::parse(&sealed(data));
    let mut findings = TableFindings {
        raw: Dmar::parse(data).map(drop),
        sealed: sealed.clone().map(drop),
        structures: 0,
        skipped: 0,
        routed: 0,
        found: found(data),
    };
    if let Ok(dmar) = sealed {
        let lists = dmar.units.len() + dmar.reserved.len() + dmar.ats.len();
        findings.structures = lists + dmar.affinity.len() + dmar.names.len();
        findings.skipped = dmar.skipped;
        findings.routed = routed(&dmar, data);
        built_again(dmar);
    }
    findings
}

/// Signature, length and checksum as they should be.
fn sealed(data: &[u8]) -> Vec<u8> {
    let mut table = data.to_vec();
    if let Some(header) = table.get_mut(..10) {
        header[..4].copy_from_slice(b"DMAR");
        header[4..8].copy_from_slice(&(data.len() as u32).to_le_bytes());
        header[9] = 0;
        let sum = table.iter().fold(0u8, |sum, b| sum.wrapping_add(*b));
        table[9] = sum.wrapping_neg();
    }
    table
}

fn built_again(mut dmar: Dmar) {
    let table = dmar.build().expect("what was read can be built");
    // what building does not keep
    dmar.skipped = 0;
    dmar.units.sort_by_key(|unit| unit.devices == Covers::Rest);
    assert_eq!(Dmar::parse(&table), Ok(dmar));
}

/// Asks for the unit, the reserved memory and the ATS of some devices, in a PCI tree that
/// the bytes make up.
fn routed(dmar: &Dmar, data: &[u8]) -> u32 {
    // one device has no vendor, and may be a virtual function: its owner is looked for among all
    let virtual_one = SourceId(0x409);
    let pci = |_: Segment, function: SourceId, offset: u16| {
        if offset == 0 {
            return match function == virtual_one {
                true => u32::MAX,
                false => 0x8086,
            };
        }
        let at = usize::from(function.0) * 4 + usize::from(offset);
        let byte = |n: usize| u32::from(data[(at + n) % data.len()]);
        byte(0) | byte(1) << 8 | (byte(2) & !0x7f | 1) << 16 | byte(3) << 24
    };
    let segments = dmar.units.iter().map(|unit| unit.segment).take(4);
    let mut routed = 0;
    for segment in segments.chain([Segment(0)]) {
        for device in (0..64).map(|n| SourceId(n * 0x409)) {
            let unit = dmar.unit_for(segment, device, &pci);
            let rest = dmar
                .units
                .iter()
                .any(|u| u.segment == segment && u.devices == Covers::Rest);
            assert!(unit.is_some() || !rest, "{device} belongs to the rest");
            if let Some(unit) = unit {
                assert_eq!(dmar.units[unit].segment, segment);
                routed += 1;
            }
            assert!(
                dmar.reserved_for(segment, device, &pci)
                    .all(|r| r.segment == segment)
            );
            let ats = dmar.may_use_ats(segment, device, &pci);
            assert!(!ats || dmar.ats.iter().any(|a| a.segment == segment));
        }
    }
    routed
}

fn found(data: &[u8]) -> Result<usize, FindError> {
    let memory = |at: PhysAddr, into: &mut [u8]| {
        let from =
            at.0.checked_sub(BIOS)
                .and_then(|at| usize::try_from(at).ok());
        let bytes = from.and_then(|from| data.get(from..)?.get(..into.len()));
        into.copy_from_slice(bytes.ok_or(Unreadable)?);
        Ok(())
    };
    find::dmar(&memory, find::root_pointer(&memory)?).map(|table| table.len())
}
