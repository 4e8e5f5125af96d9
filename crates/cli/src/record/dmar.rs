// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! One more reserved region in a firmware's DMAR table.
//!
//! QEMU's LSI 53C895A fetches its scripts from its own on-chip memory by DMA, through the unit,
//! where real hardware stays on the chip. Without a mapping every fetch faults. A reserved region
//! (RMRR, VT-d 8.4) of that memory for that device makes the kernel map it onto itself; the
//! importer then leaves these accesses out. The kernel takes the table from the first archive of
//! its file system.

use ioatlas_guest::cpio::Archive;

/// Offset of the table's length, and of the byte that makes its sum 0.
const LENGTH: usize = 4;
const CHECKSUM: usize = 9;
/// Offset of the vendor's revision: the kernel takes a table only in place of an older one.
const OEM_REVISION: usize = 24;
/// Bytes before the first remapping structure (VT-d 8.1).
const HEADER: usize = 48;

/// A device's memory that is to be mapped onto itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// Device number on bus 0; its function is 0.
    pub device: u8,
    pub first: u64,
    /// The last byte, part of it.
    pub last: u64,
}

/// An archive with the table, the region added.
///
/// # Errors
///
/// In words, if `table` is no DMAR table.
pub fn archive(table: &[u8], reserved: Reserved) -> Result<Vec<u8>, String> {
    if table.len() < HEADER || &table[..4] != b"DMAR" || word(table, LENGTH) as usize != table.len()
    {
        return Err(format!("{} bytes that are no DMAR table", table.len()));
    }
    let mut table = table.to_vec();
    // type 1, 32 bytes, segment 0; then a device scope: type 1 (endpoint), 8 bytes, bus 0
    table.extend_from_slice(&[1, 0, 32, 0, 0, 0, 0, 0]);
    table.extend_from_slice(&reserved.first.to_le_bytes());
    table.extend_from_slice(&reserved.last.to_le_bytes());
    table.extend_from_slice(&[1, 8, 0, 0, 0, 0, reserved.device, 0]);
    let length = table.len() as u32;
    table[LENGTH..LENGTH + 4].copy_from_slice(&length.to_le_bytes());
    let revision = word(&table, OEM_REVISION).wrapping_add(1);
    table[OEM_REVISION..OEM_REVISION + 4].copy_from_slice(&revision.to_le_bytes());
    table[CHECKSUM] = 0;
    let sum = table.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    table[CHECKSUM] = sum.wrapping_neg();
    let mut archive = Archive::default();
    for directory in ["kernel", "kernel/firmware", "kernel/firmware/acpi"] {
        archive.directory(directory);
    }
    archive.file("kernel/firmware/acpi/dmar.aml", &table);
    Ok(archive.finish())
}

fn word(table: &[u8], at: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&table[at..at + 4]);
    u32::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Vec<u8> {
        let mut table = vec![0; 64];
        table[..4].copy_from_slice(b"DMAR");
        table[LENGTH] = 64;
        table[OEM_REVISION] = 1;
        table
    }

    #[test]
    fn the_table_grows_by_the_region_and_sums_to_zero() {
        let reserved = Reserved {
            device: 6,
            first: 0xfebf_c000,
            last: 0xfebf_dfff,
        };
        let archive = archive(&table(), reserved).unwrap();
        let at = archive.windows(4).position(|four| four == b"DMAR").unwrap();
        let new = &archive[at..at + 96];
        assert_eq!(word(new, LENGTH), 96);
        assert_eq!(word(new, OEM_REVISION), 2);
        assert_eq!(new.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)), 0);
        assert_eq!(new[72..80], 0xfebf_c000u64.to_le_bytes());
        assert_eq!(new[80..88], 0xfebf_dfffu64.to_le_bytes());
        assert_eq!(new[88..96], [1, 8, 0, 0, 0, 0, 6, 0]);
    }

    #[test]
    fn what_is_no_table_is_refused() {
        let reserved = Reserved {
            device: 6,
            first: 0,
            last: 4095,
        };
        assert!(archive(b"DMAR", reserved).is_err());
        let mut short = table();
        short.truncate(50);
        assert!(archive(&short, reserved).is_err());
    }
}
