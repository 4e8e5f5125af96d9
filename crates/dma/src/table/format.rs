// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a format says: geometry and the encoding of entries. One small file each, in `fmt`.

use crate::{iova::AllocKind, units::*};
use core::fmt;

/// What an entry says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// Nothing is mapped below.
    Absent,
    /// The next table, one level down.
    Table(PhysPage),
    /// A translation to this page.
    Leaf(PhysPage, Perm, LeafMarks),
}

/// Marks in bits of a leaf that hardware ignores.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LeafMarks(u8);

impl LeafMarks {
    /// None: a page inside a mapping.
    pub const NONE: LeafMarks = LeafMarks(0);
    /// The first page of a mapping.
    pub const FIRST: LeafMarks = LeafMarks(1);
    /// The last page of a mapping.
    pub const LAST: LeafMarks = LeafMarks(2);
    /// On the first page: the caller chose the range.
    pub const FIXED: LeafMarks = LeafMarks(4);
    /// On the first page: the mapping's token was given up, so the address API may end it.
    pub const RAW: LeafMarks = LeafMarks(8);
    /// How many bits marks take.
    pub const BITS: u32 = 4;

    /// From the bits of an entry; others are dropped.
    pub fn from_bits(bits: u64) -> Self {
        LeafMarks(bits as u8 & 15)
    }
    /// For the bits of an entry.
    pub fn bits(self) -> u64 {
        u64::from(self.0)
    }
    /// How the range was chosen, by the marks of its first page.
    pub fn kind(self) -> AllocKind {
        match self.has(LeafMarks::FIXED) {
            true => AllocKind::Fixed,
            false => AllocKind::Dynamic,
        }
    }
    /// The marks of both.
    pub const fn with(self, other: LeafMarks) -> Self {
        LeafMarks(self.0 | other.0)
    }
    /// Those of `self` that `other` does not have.
    pub const fn without(self, other: LeafMarks) -> Self {
        LeafMarks(self.0 & !other.0)
    }
    /// Whether all of `other` is set.
    pub fn has(self, other: LeafMarks) -> bool {
        self.0 & other.0 == other.0
    }
}

/// What a unit must know of tables before it walks them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableShape {
    /// What entries look like: [`Format::LAYOUT`].
    pub layout: &'static str,
    /// Levels of a table.
    pub levels: u32,
    /// Log2 of the entries of each of its frames.
    pub entries_lg2: u32,
}

impl TableShape {
    /// Of tables in format `F`.
    pub const fn of<F: Format>() -> Self {
        TableShape {
            layout: F::LAYOUT,
            levels: F::LEVELS,
            entries_lg2: F::ENTRIES_LG2,
        }
    }
}

impl fmt::Display for TableShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = 1_u64 << self.entries_lg2;
        write!(
            f,
            "{} tables of {} levels with {entries} entries each",
            self.layout, self.levels
        )
    }
}

/// A table format. All algorithms are written once, over this.
///
/// # Safety
/// The core goes where [`decode`](Self::decode) says, writes there, and frees it; units go there
/// too. So entries mean to `decode` and to hardware what they were made of ([`leaf`](Self::leaf),
/// [`marked`](Self::marked), [`next_leaf`](Self::next_leaf), [`table`](Self::table)), at every
/// level up to the largest at which they may be; 0 is absent, and none that is made is 0; the bits
/// for marks, counts and "written back" are ignored by hardware and lie apart from all others, and
/// [`TRANSIENT`](Self::TRANSIENT) makes no leaf lead elsewhere; two leaves of one page that differ
/// in page or marks differ by the same, whatever they have else. Hardware writes nothing into
/// entries. A table fits into a frame, and the aperture into 64 bits of address.
/// [`index`](Self::index) is below the entries of a table. A unit is asked whether it walks tables
/// by their [`TableShape`] alone: two formats have one [`LAYOUT`](Self::LAYOUT) only if one walk
/// finds its way in both, given levels and entries. `tests/it/tables` holds ours against a walk of
/// their bits.
#[allow(unsafe_code)]
pub unsafe trait Format: Send + Sync + 'static {
    /// How many levels a walk has; the root is at this level, leaves of one page at level 1.
    const LEVELS: u32;
    /// Log2 of the entries a table has.
    const ENTRIES_LG2: u32;
    /// The format's name, for messages.
    const NAME: &'static str;
    /// What its entries look like: one name for all formats that differ in levels and entries
    /// alone.
    const LAYOUT: &'static str;
    /// A bit of a table's entry that hardware ignores: set once the entry has been
    /// written back to memory.
    const WRITTEN_BACK: u64;
    /// The highest level at which an entry may be a leaf.
    const LARGEST_LEAF: u32;
    /// The bit of a leaf that says that it will not be used for long; 0 in a format without one.
    const TRANSIENT: u64;
    /// Where the ten ignored bits begin in which a shared leaf is counted. They hold the
    /// marks of other leaves.
    const COUNT_SHIFT: u32;

    /// The entry of a leaf at `level`. Above level 1, `to` is a multiple of what
    /// an entry there covers.
    fn leaf(to: PhysPage, perm: Perm, marks: LeafMarks, level: u32) -> u64;
    /// The leaf `entry` with other marks.
    fn marked(entry: u64, marks: LeafMarks) -> u64;
    /// The leaf at level 1 to the page after that of `leaf`, alike in all else; it has no marks.
    #[inline]
    fn next_leaf(leaf: u64) -> u64 {
        let at = |page| Self::leaf(PhysPage(page), Perm::Read, LeafMarks::NONE, 1);
        leaf + (at(1) - at(0))
    }
    /// The entry at `level`, above 1, that points to a table.
    fn table(frame: PhysPage, level: u32) -> u64;
    /// What `entry`, found at `level`, says. 0 is absent in every format.
    fn decode(entry: u64, level: u32) -> Entry;

    /// Log2 of the pages that one entry at `level` covers.
    fn span_lg2(level: u32) -> u32 {
        Self::ENTRIES_LG2 * (level - 1)
    }
    /// The pages that one entry at `level` covers.
    fn span(level: u32) -> u64 {
        1 << Self::span_lg2(level)
    }
    /// Which entry of a table at `level` covers `page`.
    fn index(page: IovaPage, level: u32) -> usize {
        (page.0 >> Self::span_lg2(level)) as usize & ((1 << Self::ENTRIES_LG2) - 1)
    }
    /// All pages that the format can translate.
    fn aperture() -> IovaRange {
        let pages = PageCount(1 << (Self::ENTRIES_LG2 * Self::LEVELS));
        IovaRange::new(IovaPage(0), pages)
    }
}
