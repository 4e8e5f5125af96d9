// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! VT-d second-stage tables (VT-d 4.1 §9.8): three, four or five levels of 512 entries for IOVAs of
//! 39, 48 or 57 bits.
//!
//! | bits | |
//! |---|---|
//! | 0 | read |
//! | 1 | write |
//! | 7 | page size: the entry is a leaf, at level 2 (2 MiB) or 3 (1 GiB); 0 at level 1 |
//! | 12..51 | physical page; of a large leaf, those below its size are 0 |
//! | 52..61 | ignored by hardware: our [`LeafMarks`] in 52..55 of a leaf or its count in all of them, *written back* in 56 of a table's entry |
//! | 62 | transient, in leaves; reserved where the unit does not honour it |

use super::super::{Entry, Format, LeafMarks};
use crate::units::*;

const READ: u64 = 1 << 0;
const WRITE: u64 = 1 << 1;
const PAGE_SIZE: u64 = 1 << 7;
const ADDRESS: u64 = ((1 << PHYS_BITS) - 1) & !(GRANULE - 1);
const IGNORED_SHIFT: u32 = 52;
const MARKS: u64 = ((1 << LeafMarks::BITS) - 1) << IGNORED_SHIFT;

/// VT-d second stage of `LEVELS` levels: 3, 4 or 5.
pub struct VtdSecond<const LEVELS: u32>;

/// VT-d second stage, 39-bit IOVAs.
pub type VtdSecond39 = VtdSecond<3>;
/// VT-d second stage, 48-bit IOVAs.
pub type VtdSecond48 = VtdSecond<4>;
/// VT-d second stage, 57-bit IOVAs.
pub type VtdSecond57 = VtdSecond<5>;

#[allow(unsafe_code)] // a promise
// SAFETY: VT-d 4.1 §9.8; the tests hold entries against the bits of the specification.
unsafe impl<const LEVELS: u32> Format for VtdSecond<LEVELS> {
    const LEVELS: u32 = LEVELS;
    const ENTRIES_LG2: u32 = 9;
    const NAME: &'static str = match LEVELS {
        3 => "vtd-39",
        4 => "vtd-48",
        5 => "vtd-57",
        _ => panic!("VT-d has second-stage tables of 3, 4 and 5 levels"),
    };
    const LAYOUT: &'static str = "VT-d second-stage";
    const WRITTEN_BACK: u64 = 1 << 56;
    const LARGEST_LEAF: u32 = 3;
    const TRANSIENT: u64 = 1 << 62;
    const COUNT_SHIFT: u32 = IGNORED_SHIFT;

    #[inline]
    fn leaf(to: PhysPage, perm: Perm, marks: LeafMarks, level: u32) -> u64 {
        let rights = match perm {
            Perm::Read => READ,
            Perm::Write => WRITE,
            Perm::ReadWrite => READ | WRITE,
        };
        debug_assert!(to.addr().page() == to && to.addr().0 & !ADDRESS == 0);
        let size = if level > 1 { PAGE_SIZE } else { 0 };
        to.addr().0 | rights | size | marks.bits() << IGNORED_SHIFT
    }
    #[inline]
    fn marked(entry: u64, marks: LeafMarks) -> u64 {
        entry & !MARKS | marks.bits() << IGNORED_SHIFT
    }
    #[inline]
    fn table(frame: PhysPage, _: u32) -> u64 {
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
        if level > 1 && entry & PAGE_SIZE == 0 {
            return Entry::Table(to);
        }
        Entry::Leaf(to, perm, LeafMarks::from_bits(entry >> IGNORED_SHIFT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_survives_encoding_with_every_permission_mark_and_level() {
        let far = PhysPage((1 << (PHYS_BITS - GRANULE_LG2)) - (1 << 18));
        for (to, level) in [(0, 1), (0x12345, 1), (0x200, 2), (0x40000, 3), (far.0, 3)] {
            let to = PhysPage(to);
            for perm in [Perm::Read, Perm::Write, Perm::ReadWrite] {
                for bits in 0..1 << LeafMarks::BITS {
                    let marks = LeafMarks::from_bits(bits);
                    let entry = VtdSecond48::leaf(to, perm, marks, level);
                    let leaf = Entry::Leaf(to, perm, marks);
                    assert_eq!(VtdSecond48::decode(entry, level), leaf);
                    assert_eq!(entry >> 62, 0, "bits 62 and 63 stay 0");
                    let hinted = entry | VtdSecond48::TRANSIENT;
                    assert_eq!(VtdSecond48::decode(hinted, level), leaf);
                    let bare = VtdSecond48::marked(hinted, LeafMarks::NONE);
                    assert_eq!(VtdSecond48::marked(bare, marks), hinted);
                }
            }
        }
    }

    #[test]
    fn entries_have_the_bits_of_the_specification() {
        // written out from the table above, not from the code's constants
        let entry = VtdSecond48::leaf(PhysPage(0xabc), Perm::Write, LeafMarks::FIRST, 1);
        assert_eq!(entry, 0x0010_0000_00ab_c002);
        let entry = VtdSecond48::leaf(PhysPage(0x400), Perm::Read, LeafMarks::LAST, 2);
        assert_eq!(entry, 0x0020_0000_0040_0081);
        assert_eq!(VtdSecond48::TRANSIENT, 0x4000_0000_0000_0000);
        assert_eq!(VtdSecond48::table(PhysPage(5), 2), 0x5003);
        assert_eq!(VtdSecond48::decode(0, 1), Entry::Absent);
        assert_eq!(VtdSecond48::decode(0x5003, 2), Entry::Table(PhysPage(5)));
    }

    #[test]
    fn apertures_are_as_wide_as_their_names_say() {
        let bits = |range: IovaRange| range.pages.0.ilog2() + GRANULE_LG2;
        assert_eq!(bits(VtdSecond39::aperture()), 39);
        assert_eq!(bits(VtdSecond48::aperture()), 48);
        assert_eq!(bits(VtdSecond57::aperture()), 57);
        let names = [VtdSecond39::NAME, VtdSecond48::NAME, VtdSecond57::NAME];
        assert_eq!(names, ["vtd-39", "vtd-48", "vtd-57"]);
    }
}
