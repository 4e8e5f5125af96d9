// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Byte ranges as they come from outside, and page ranges as caches hold them.

use ioatlas_dma::units::*;

/// What is wrong with a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RangeError {
    /// The range has no bytes.
    #[error("the length is 0")]
    Empty,
    /// Address and length together are beyond the address space.
    #[error("address and length wrap around")]
    Wraps,
    /// Begins or ends inside a page.
    #[error("address and length are not multiples of 4096")]
    Unaligned,
}

/// Pages `first` up to, and without, `end`; not empty. Addresses have 64 bits, so `end`
/// is at most 2^52.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Span {
    /// The number of the first page of 4 KiB.
    pub first: u64,
    /// The number of the page after the last.
    pub end: u64,
}

/// How many pages there are.
pub(crate) const PAGES: u64 = 1 << (u64::BITS - GRANULE_LG2);

impl Span {
    /// The address space of 64 bits, all of it.
    pub const ALL: Span = Span {
        first: 0,
        end: PAGES,
    };

    /// The span of a range that consists of whole pages.
    ///
    /// # Errors
    /// It does not, has no bytes, or wraps around.
    pub fn exact(iova: Iova, len: ByteCount) -> Result<Span, RangeError> {
        let span = Self::touched(iova, len)?;
        match (iova.0 | len.0).is_multiple_of(GRANULE) {
            true => Ok(span),
            false => Err(RangeError::Unaligned),
        }
    }

    /// Of every page that has one of the bytes.
    ///
    /// # Errors
    /// There are none, or they wrap around.
    #[inline]
    pub fn touched(iova: Iova, len: ByteCount) -> Result<Span, RangeError> {
        if len.0 == 0 {
            return Err(RangeError::Empty);
        }
        if !Self::is_range(iova, len) {
            return Err(RangeError::Wraps);
        }
        let last = iova.0.wrapping_add(len.0 - 1);
        Ok(Span {
            first: iova.0 >> GRANULE_LG2,
            end: (last >> GRANULE_LG2) + 1,
        })
    }

    /// Whether there are bytes, and they do not wrap around.
    #[inline(always)]
    pub fn is_range(iova: Iova, len: ByteCount) -> bool {
        len.0 != 0 && len.0 - 1 <= !iova.0
    }

    /// Of every page that an invalidation names, which is never refused: what wraps around goes to
    /// the end. `None` where it has no bytes.
    pub fn invalidated(iova: Iova, len: ByteCount) -> Option<Span> {
        match Self::touched(iova, len) {
            Ok(span) => Some(span),
            Err(RangeError::Empty) => None,
            Err(_) => Some(Span {
                first: iova.0 >> GRANULE_LG2,
                end: PAGES,
            }),
        }
    }

    /// The address of the first byte.
    pub fn iova(self) -> Iova {
        Iova(self.first << GRANULE_LG2)
    }
    /// How many bytes; of the whole address space, one page less than there are.
    pub fn len(self) -> ByteCount {
        ByteCount((self.pages().min(PAGES - 1)) << GRANULE_LG2)
    }
    /// How many pages it has; at least one.
    pub fn pages(self) -> u64 {
        self.end - self.first
    }
    /// Whether it is a single page.
    #[inline]
    pub fn is_page(self) -> bool {
        self.first + 1 == self.end
    }
    /// Whether `page` is inside.
    #[inline]
    pub fn has(self, page: u64) -> bool {
        self.first <= page && page < self.end
    }
    /// Whether all of `other` is inside.
    pub fn contains(self, other: Span) -> bool {
        self.first <= other.first && other.end <= self.end
    }
    /// What `hole` leaves: the part before it if there is one, else the part behind.
    pub(crate) fn minus(self, hole: Span) -> Option<Span> {
        let Some(both) = self.and(hole) else {
            return Some(self);
        };
        let (first, end) = match self.first < both.first {
            true => (self.first, both.first),
            false => (both.end, self.end),
        };
        (first < end).then_some(Span { first, end })
    }
    /// What is in both.
    pub fn and(self, other: Span) -> Option<Span> {
        let both = Span {
            first: self.first.max(other.first),
            end: self.end.min(other.end),
        };
        (both.first < both.end).then_some(both)
    }
}

impl core::fmt::Display for Span {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "pages {:#x}+{:#x}", self.first, self.pages())
    }
}
