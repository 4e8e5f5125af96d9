// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Page numbers, page counts and event times, each its own type.

use serde::{Serialize, Serializer};
use std::fmt;
use std::num::NonZeroU64;

/// First page number that a trace may not name: addresses have at most 64 bits,
/// pages 12 of them.
pub(crate) const PAGE_LIMIT: u64 = 1 << 52;

/// Number of a 4 KiB page in a device's address space, below 2^52.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct IovaPage(u64);

impl IovaPage {
    /// The page with this number, or `None` at or above 2^52.
    #[must_use]
    pub const fn new(number: u64) -> Option<Self> {
        if number < PAGE_LIMIT {
            Some(Self(number))
        } else {
            None
        }
    }

    /// The page with a number that is known to be below 2^52.
    pub(crate) const fn known(number: u64) -> Self {
        debug_assert!(number < PAGE_LIMIT);
        Self(number)
    }

    /// The page number (address / 4096).
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for IovaPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// Number of a 4 KiB page of physical memory, below 2^52. What is stored is one more: so an
/// `Option` of it, which each map of a trace has, takes no more room.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PhysPage(NonZeroU64);

impl PhysPage {
    /// The page with this number, or `None` at or above 2^52.
    #[must_use]
    pub const fn new(number: u64) -> Option<Self> {
        if number >= PAGE_LIMIT {
            return None;
        }
        match NonZeroU64::new(number + 1) {
            Some(stored) => Some(Self(stored)),
            None => None,
        }
    }

    /// The page number (address / 4096).
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0.get() - 1
    }
}

impl fmt::Debug for PhysPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PhysPage").field(&self.number()).finish()
    }
}

impl fmt::Display for PhysPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.number())
    }
}

impl Serialize for PhysPage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.number())
    }
}

/// A number of 4 KiB pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct PageCount(pub u64);

impl PageCount {
    /// Sum, held at the largest representable count (65,536 devices of 2^52
    /// pages each would pass it).
    #[must_use]
    pub const fn plus(self, other: PageCount) -> PageCount {
        PageCount(self.0.saturating_add(other.0))
    }
}

/// A non-empty run of pages, both ends inclusive (an exclusive end of the last
/// run would be no valid page).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageRange {
    first: IovaPage,
    last: IovaPage,
}

impl PageRange {
    /// The `pages` pages from `first` on; `None` if there are none or the last
    /// would be at or above 2^52.
    #[must_use]
    pub const fn new(first: IovaPage, pages: PageCount) -> Option<Self> {
        if pages.0 == 0 || pages.0 > PAGE_LIMIT - first.0 {
            return None;
        }
        let last = IovaPage(first.0 + pages.0 - 1);
        Some(Self { first, last })
    }

    /// First page of the run.
    #[must_use]
    pub const fn first(self) -> IovaPage {
        self.first
    }

    /// Last page, part of the run.
    #[must_use]
    pub const fn last(self) -> IovaPage {
        self.last
    }

    /// Number of pages, at least 1.
    #[must_use]
    pub const fn pages(self) -> PageCount {
        PageCount(self.last.0 - self.first.0 + 1)
    }
}

/// Bytes in a page.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// Which bytes of its pages a mapping is for: the pages are what a device can reach, these are what
/// it was meant to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// Bytes of the first page before it, below 4,096.
    before: u16,
    /// Bytes of the last page behind it, below 4,096.
    behind: u16,
}

impl Extent {
    /// The `bytes` bytes from `offset` on, an offset into the first of `pages` pages; `None` unless
    /// they begin in the first of them and end in the last.
    #[must_use]
    pub const fn new(pages: PageCount, offset: u64, bytes: u64) -> Option<Self> {
        if offset >= PAGE_BYTES || bytes == 0 || pages.0 == 0 {
            return None;
        }
        // the last byte, which unlike the end of the highest page is a number of 64 bits
        let Some(last) = offset.checked_add(bytes - 1) else {
            return None;
        };
        if last / PAGE_BYTES != pages.0 - 1 {
            return None;
        }
        Some(Self {
            before: offset as u16,
            behind: (PAGE_BYTES - 1 - last % PAGE_BYTES) as u16,
        })
    }

    /// Offset of the first byte in its page.
    #[must_use]
    pub const fn offset(self) -> u64 {
        self.before as u64
    }

    /// How many bytes it is of so many pages, those that it was made for.
    #[must_use]
    pub const fn bytes(self, pages: PageCount) -> u64 {
        // 2^52 pages are one byte more than a number holds, and no extent has all of them
        let whole = pages.0.wrapping_mul(PAGE_BYTES);
        whole.wrapping_sub(self.before as u64 + self.behind as u64)
    }
}

/// Index of an event among the map, unmap and access events of a trace, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct EventTime(pub usize);
