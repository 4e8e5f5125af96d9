// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A format of any small geometry, for exhaustive tests: 2 entries x 2 levels has 4 pages in all.
//!
//! Bits as in VT-d, except that the geometry is a parameter, and that leaves may be at any level.

use super::super::{Entry, Format, LeafMarks};
use super::vtd::VtdSecond48;
use crate::units::*;

/// `LEVELS` levels of 2^`ENTRIES_LG2` entries.
pub struct Toy<const ENTRIES_LG2: u32, const LEVELS: u32>;

#[allow(unsafe_code)] // a promise
// SAFETY: no hardware reads it but software by this very code; fields do not overlap, and whatever
// is made is readable or writable.
unsafe impl<const ENTRIES_LG2: u32, const LEVELS: u32> Format for Toy<ENTRIES_LG2, LEVELS> {
    const LEVELS: u32 = LEVELS;
    const ENTRIES_LG2: u32 = ENTRIES_LG2;
    const NAME: &'static str = "toy";
    const LAYOUT: &'static str = VtdSecond48::LAYOUT;
    const WRITTEN_BACK: u64 = VtdSecond48::WRITTEN_BACK;
    const LARGEST_LEAF: u32 = LEVELS;
    const TRANSIENT: u64 = VtdSecond48::TRANSIENT;
    const COUNT_SHIFT: u32 = VtdSecond48::COUNT_SHIFT;

    fn leaf(to: PhysPage, perm: Perm, marks: LeafMarks, level: u32) -> u64 {
        VtdSecond48::leaf(to, perm, marks, level)
    }
    fn marked(entry: u64, marks: LeafMarks) -> u64 {
        VtdSecond48::marked(entry, marks)
    }
    fn table(frame: PhysPage, level: u32) -> u64 {
        VtdSecond48::table(frame, level)
    }
    fn decode(entry: u64, level: u32) -> Entry {
        VtdSecond48::decode(entry, level)
    }
}
