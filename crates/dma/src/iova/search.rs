// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Where a run of ranges may lie: the arithmetic of size, alignment and limits, once for all
//! designs that search.
//!
//! What an allocator grants is a power of two of pages, naturally aligned. So of the four limits
//! only three are left to a search, and they are simple: a run crosses a boundary of 2^b pages
//! exactly if it is larger than one (then it always does); the mask and the preference are ends of
//! the [`Window`] in which it is looked for; and alignment beyond the run's own is a larger step
//! between the places that are considered.

use super::{AllocErrorCause, Limits};
use crate::units::*;

/// A run of ranges to be found: `count` of `each` pages, side by side.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    each: u64,
    count: u64,
    align: u64,
}

/// Pages from `floor` up to but not including `end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    pub floor: u64,
    pub end: u64,
}

/// A search with limits: the windows to look in, the preferred one first.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    pub run: Run,
    preferred: Option<Window>,
    otherwise: Window,
}

impl Window {
    /// All that may be allocated of `aperture`: page 0 is for callers that ask for it by number,
    /// since drivers read address 0 as "none".
    pub fn of(aperture: IovaRange) -> Self {
        Window {
            floor: aperture.first.0.max(1),
            end: aperture.end().0,
        }
    }
    fn below(self, end: Option<IovaPage>) -> Self {
        let end = end.map_or(self.end, |end| end.0.min(self.end));
        Window { end, ..self }
    }
    fn range(self) -> IovaRange {
        let pages = self.end.saturating_sub(self.floor);
        IovaRange::new(IovaPage(self.floor), PageCount(pages))
    }
}

impl Run {
    /// `None` where the numbers overflow. `each` is rounded up to a power of two; the run is
    /// aligned to its own size, rounded up likewise, so that each range in it is naturally aligned
    /// too. A `count` of 0 is taken for 1.
    pub fn new(each: PageCount, count: u64) -> Option<Run> {
        let each = each.0.checked_next_power_of_two()?;
        let count = count.max(1);
        let align = each.checked_mul(count)?.checked_next_power_of_two()?;
        Some(Run { each, count, align })
    }
    /// One range. `None` and alignment as for [`new`](Self::new).
    #[inline]
    pub fn single(pages: PageCount) -> Option<Run> {
        let each = pages.0.checked_next_power_of_two()?;
        Some(Run {
            each,
            count: 1,
            align: each,
        })
    }
    /// How many pages in all.
    pub fn pages(&self) -> u64 {
        self.each * self.count
    }
    /// How many ranges.
    #[inline]
    pub fn count(&self) -> usize {
        usize::try_from(self.count).unwrap_or(usize::MAX)
    }
    /// How many pages each range has.
    pub fn each(&self) -> PageCount {
        PageCount(self.each)
    }
    /// Whether it is one range.
    pub fn is_single(&self) -> bool {
        self.count == 1
    }
    /// Log2 of what the first page is a multiple of.
    pub fn align_lg2(&self) -> u32 {
        self.align.trailing_zeros()
    }
    /// The ranges, the first at `first`.
    pub fn ranges(self, first: u64) -> impl Iterator<Item = IovaRange> {
        let firsts = (0..self.count).map(move |nth| IovaPage(first + nth * self.each));
        firsts.map(move |first| IovaRange::new(first, self.each()))
    }
    /// The whole of it.
    pub fn range(&self, first: u64) -> IovaRange {
        IovaRange::new(IovaPage(first), PageCount(self.pages()))
    }
    /// The highest aligned place between `bottom` and `top`.
    pub fn highest(&self, bottom: u64, top: u64) -> Option<u64> {
        let first = top.checked_sub(self.pages())? & !(self.align - 1);
        (first >= bottom).then_some(first)
    }
    /// The lowest aligned place between `bottom` and `top`.
    pub fn lowest(&self, bottom: u64, top: u64) -> Option<u64> {
        let first = bottom.checked_next_multiple_of(self.align)?;
        (first.checked_add(self.pages())? <= top).then_some(first)
    }
    /// Whether `range`, which has the size of this run, is a place for it in `window`.
    pub fn may_be(&self, range: IovaRange, window: Window) -> bool {
        range.first.0.is_multiple_of(self.align)
            && range.first.0 >= window.floor
            && range.end().0 <= window.end
    }
    fn fits(&self, window: Window) -> bool {
        self.highest(window.floor, window.end).is_some()
    }
}

impl Search {
    /// A search for `run`, a single range, within `limits`.
    ///
    /// # Errors
    /// Why it fits nowhere in `aperture`, were all of it free.
    pub fn new(run: Run, limits: &Limits, aperture: IovaRange) -> Result<Self, AllocErrorCause> {
        let whole = Window::of(aperture);
        if !run.fits(whole) {
            return Err(AllocErrorCause::Full);
        }
        let boundary = limits.boundary_lg2.filter(|lg2| *lg2 < u64::BITS);
        if let Some(boundary_lg2) = boundary.filter(|lg2| run.pages() > 1 << lg2) {
            return Err(AllocErrorCause::Boundary { boundary_lg2 });
        }
        let within = whole.below(limits.end);
        if let Some(end) = limits.end.filter(|_| !run.fits(within)) {
            return Err(AllocErrorCause::Mask { end, aperture });
        }
        let align_lg2 = limits.align_lg2;
        let aligned = 1u64.checked_shl(align_lg2).map(|align| Run {
            align: align.max(run.align),
            ..run
        });
        let run = aligned
            .filter(|run| run.fits(within))
            .ok_or(AllocErrorCause::Alignment {
                align_lg2,
                aperture: within.range(),
            })?;
        let preferred = within.below(limits.prefer_end);
        if preferred == within {
            return Ok(Search {
                run,
                preferred: None,
                otherwise: within,
            });
        }
        // what begins further below has been looked at by then
        let straddling = preferred.end.saturating_sub(run.pages() - 1);
        Ok(Search {
            run,
            preferred: Some(preferred),
            otherwise: Window {
                floor: straddling.max(within.floor),
                ..within
            },
        })
    }

    /// Where to look, in this order.
    pub fn windows(&self) -> impl Iterator<Item = Window> + use<> {
        self.preferred.into_iter().chain([self.otherwise])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn places_are_those_of_a_naive_search(
            each in 1u64..9, count in 1u64..5, bottom in 0u64..80, len in 0u64..80,
        ) {
            let run = Run::new(PageCount(each), count).unwrap();
            let top = bottom + len;
            let places: Vec<_> = (bottom..top)
                .filter(|at| at.is_multiple_of(run.align) && at + run.pages() <= top)
                .collect();
            prop_assert_eq!(run.lowest(bottom, top), places.first().copied());
            prop_assert_eq!(run.highest(bottom, top), places.last().copied());
        }
    }

    #[test]
    fn places_at_the_end_of_numbers_do_not_wrap() {
        let run = Run::new(PageCount(8), 1).unwrap();
        assert_eq!(run.lowest(u64::MAX - 3, u64::MAX), None);
        assert_eq!(run.lowest(u64::MAX - 8, u64::MAX), None);
        assert_eq!(run.highest(0, 7), None);
    }
}
