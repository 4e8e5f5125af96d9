// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! VT-d second-stage tables, 48-bit (VT-d 4.1 §9.8): four levels of 512 entries, 4 KiB leaves.
//!
//! | bits | |
//! |---|---|
//! | 0 | read |
//! | 1 | write |
//! | 7 | page size, above level 1 (0 here: leaves are at level 1 only) |
//! | 12..51 | physical page |
//! | 52..61 | ignored by hardware: our [`LeafMarks`] in 52..55 of a leaf, *written back* in 56 of a table's entry |
//! | 62 | 0 |

use super::super::{Entry, Format, LeafMarks};
use crate::units::*;

const READ: u64 = 1 << 0;
const WRITE: u64 = 1 << 1;
const ADDRESS: u64 = ((1 << PHYS_BITS) - 1) & !(GRANULE - 1);
const MARKS_SHIFT: u32 = 52;

/// VT-d second stage, 48-bit IOVAs.
pub struct VtdSecond48;

impl Format for VtdSecond48 {
    const LEVELS: u32 = 4;
    const ENTRIES_LG2: u32 = 9;
    const NAME: &'static str = "vtd-48";
    const WRITTEN_BACK: u64 = 1 << 56;

    #[inline]
    fn leaf(to: PhysPage, perm: Perm, marks: LeafMarks) -> u64 {
        let rights = match perm {
            Perm::Read => READ,
            Perm::Write => WRITE,
            Perm::ReadWrite => READ | WRITE,
        };
        to.addr().0 | rights | marks.bits() << MARKS_SHIFT
    }
    #[inline]
    fn table(frame: PhysPage) -> u64 {
        frame.addr().0 | READ | WRITE
    }
    #[inline]
    fn decode(entry: u64, level: u32) -> Entry {
        let to = PhysAddr(entry & ADDRESS).page();
        let perm = match entry & (READ | WRITE) {
            0 => return Entry::Absent,
            READ => Perm::Read,
            WRITE => Perm::Write,
            _ => Perm::ReadWrite,
        };
        if level > 1 {
            return Entry::Table(to);
        }
        Entry::Leaf(to, perm, LeafMarks::from_bits(entry >> MARKS_SHIFT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_survives_encoding_with_every_permission_and_mark() {
        let far = PhysPage((1 << (PHYS_BITS - GRANULE_LG2)) - 1);
        for to in [PhysPage(0), PhysPage(0x12345), far] {
            for perm in [Perm::Read, Perm::Write, Perm::ReadWrite] {
                for bits in 0..1 << LeafMarks::BITS {
                    let marks = LeafMarks::from_bits(bits);
                    let entry = VtdSecond48::leaf(to, perm, marks);
                    assert_eq!(VtdSecond48::decode(entry, 1), Entry::Leaf(to, perm, marks));
                    assert_eq!(entry >> 62, 0, "bits 62 and 63 stay 0");
                }
            }
        }
    }

    #[test]
    fn entries_have_the_bits_of_the_specification() {
        // written out from the table above, not from the code's constants
        let entry = VtdSecond48::leaf(PhysPage(0xabc), Perm::Write, LeafMarks::FIRST);
        assert_eq!(entry, 0x0010_0000_00ab_c002);
        assert_eq!(VtdSecond48::table(PhysPage(5)), 0x5003);
        assert_eq!(VtdSecond48::decode(0, 1), Entry::Absent);
        assert_eq!(VtdSecond48::decode(0x5003, 2), Entry::Table(PhysPage(5)));
    }
}
