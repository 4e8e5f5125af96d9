// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What is asked of an allocator: how many pages, and where they may lie.

use super::AllocErrorCause;
use crate::units::*;
use core::fmt;

/// What a device, or a bus, can take. [`Limits::NONE`] is what most can.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Limits {
    /// No page at or beyond this one: the device's address mask.
    pub end: Option<IovaPage>,
    /// Below this page if any place there is free, else wherever `end` permits: 32-bit addresses
    /// first, for devices that ask.
    pub prefer_end: Option<IovaPage>,
    /// The first page is a multiple of 2^this.
    pub align_lg2: u32,
    /// No multiple of 2^this pages lies inside the range: the device's segment boundary.
    pub boundary_lg2: Option<u32>,
}

setters!(const Limits {
    align_lg2: u32,
    ;
    end?: IovaPage,
    prefer_end?: IovaPage,
    boundary_lg2?: u32,
});

impl Limits {
    /// No limits: anywhere in the aperture.
    pub const NONE: Limits = Limits {
        end: None,
        prefer_end: None,
        align_lg2: 0,
        boundary_lg2: None,
    };

    /// Whether there are none. Without a branch for each: every map asks.
    #[inline]
    pub fn is_none(&self) -> bool {
        let any_end = self.end.is_some() | self.prefer_end.is_some();
        !(any_end | (self.align_lg2 != 0) | self.boundary_lg2.is_some())
    }

    /// Why nothing was found within them, though some place of the aperture would do.
    pub(super) fn full(&self) -> AllocErrorCause {
        match self {
            Limits {
                end: None,
                align_lg2: 0,
                ..
            } => AllocErrorCause::Full,
            limits => AllocErrorCause::FullWithin(*limits),
        }
    }

    /// Whether an allocation of `range` keeps them and lies where it is preferred.
    #[inline]
    pub fn prefer(&self, range: IovaRange) -> bool {
        self.allow(range) && self.prefer_end.is_none_or(|end| range.end() <= end)
    }

    /// Whether an allocation of `range` keeps them. A preference is none that must be kept.
    #[inline]
    pub fn allow(&self, range: IovaRange) -> bool {
        if self.is_none() {
            return true;
        }
        let last = range.end().0.saturating_sub(1);
        let multiple = |lg2: u32| lg2 < u64::BITS && range.first.0.is_multiple_of(1 << lg2);
        let crosses = |lg2: u32| lg2 < u64::BITS && range.first.0 >> lg2 != last >> lg2;
        self.end.is_none_or(|end| range.end() <= end)
            && (self.align_lg2 == 0 || multiple(self.align_lg2))
            && !self.boundary_lg2.is_some_and(crosses)
    }
}

/// As they follow "no free run".
impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(end) = self.end {
            write!(f, "below page {end}")?;
        }
        if self.align_lg2 > 0 {
            let comma = if self.end.is_some() { ", " } else { "" };
            write!(f, "{comma}at a multiple of 2^{} pages", self.align_lg2)?;
        }
        Ok(())
    }
}

/// What is asked of an allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// How many pages are wanted.
    pub pages: PageCount,
    /// Where they may lie.
    pub limits: Limits,
    /// What will be mapped, if it is physically contiguous: its first page, and for what. Designs
    /// that choose by it are told.
    pub contiguous: Option<(PhysPage, Perm)>,
}

impl Request {
    /// Asks for `pages`, anywhere in the aperture.
    #[inline]
    pub fn pages(pages: PageCount) -> Self {
        Request {
            pages,
            limits: Limits::NONE,
            contiguous: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u64, pages: u64) -> IovaRange {
        IovaRange::new(IovaPage(first), PageCount(pages))
    }

    #[test]
    fn each_limit_refuses_what_breaks_it() {
        let end = Limits {
            end: Some(IovaPage(64)),
            ..Limits::NONE
        };
        assert!(end.allow(range(60, 4)) && !end.allow(range(61, 4)));
        let align = Limits {
            align_lg2: 3,
            ..Limits::NONE
        };
        assert!(align.allow(range(16, 1)) && !align.allow(range(20, 1)));
        let boundary = Limits {
            boundary_lg2: Some(4),
            ..Limits::NONE
        };
        assert!(boundary.allow(range(8, 8)) && !boundary.allow(range(12, 8)));
        assert!(Limits::NONE.allow(range(12, 8)));
    }
}
