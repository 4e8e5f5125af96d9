// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A set of pages as ranges in ascending order with a gap between any two, in room that does not
//! grow.

use crate::units::*;

/// At most `N` ranges. See the module's theory.
pub(crate) struct Ranges<const N: usize> {
    ranges: [IovaRange; N],
    count: usize,
    /// Where pages were added last: those that come next mostly adjoin.
    last: usize,
}

impl<const N: usize> Ranges<N> {
    pub const fn new() -> Self {
        let none = IovaRange {
            first: IovaPage(0),
            pages: PageCount(0),
        };
        Ranges {
            ranges: [none; N],
            count: 0,
            last: 0,
        }
    }
    pub fn as_slice(&self) -> &[IovaRange] {
        &self.ranges[..self.count]
    }
    pub fn clear(&mut self) {
        self.count = 0;
        self.last = 0;
    }

    /// Adds the pages of `range`, which has some. What overlaps or adjoins becomes one range, and
    /// nothing else does. Returns whether there was room; nothing has changed if not.
    #[inline(always)]
    pub fn add(&mut self, range: IovaRange) -> bool {
        self.extend_last(range) || self.find_place(range)
    }

    /// Adds what adjoins the range that grew last, and no other.
    #[inline(always)]
    fn extend_last(&mut self, range: IovaRange) -> bool {
        let (before, behind) = self.ranges[..self.count].split_at_mut(self.last);
        let [last, behind @ ..] = behind else {
            return false;
        };
        if range.first == last.end() {
            let alone = behind.first().is_none_or(|next| range.end() < next.first);
            if alone {
                last.pages.0 += range.pages.0;
            }
            return alone;
        }
        let alone = range.end() == last.first
            && before.last().is_none_or(|other| other.end() < range.first);
        if alone {
            last.first = range.first;
            last.pages.0 += range.pages.0;
        }
        alone
    }

    #[inline(never)]
    fn find_place(&mut self, range: IovaRange) -> bool {
        let all = self.as_slice();
        // what touches `range` stands in a row: from the first that does not end before it ..
        let from = all.partition_point(|other| other.end() < range.first);
        let behind = &all[from..];
        // .. up to the first that begins behind it
        let touched = behind.partition_point(|other| other.first <= range.end());
        let Some(last) = touched.checked_sub(1) else {
            return self.insert(from, range);
        };
        self.ranges[from] = range.around(&behind[0]).around(&behind[last]);
        self.ranges
            .copy_within(from + touched..self.count, from + 1);
        self.count -= last;
        self.last = from;
        true
    }

    fn insert(&mut self, at: usize, range: IovaRange) -> bool {
        if self.count == N {
            return false;
        }
        self.ranges.copy_within(at..self.count, at + 1);
        self.ranges[at] = range;
        self.count += 1;
        self.last = at;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{collections::BTreeSet, vec::Vec};
    use proptest::prelude::*;

    fn pages(ranges: &[IovaRange]) -> BTreeSet<u64> {
        let pages = ranges.iter().flat_map(|range| range.iter());
        pages.map(|page| page.0).collect()
    }

    proptest! {
        /// Beside a set of pages: the ranges are its runs.
        #[test]
        fn ranges_are_the_runs_of_the_pages_that_were_added(
            added in prop::collection::vec((0u64..96, 1u64..9), 0..40)
        ) {
            let mut ranges = Ranges::<12>::new();
            let mut model = BTreeSet::new();
            for (first, count) in added {
                let range = IovaRange::new(IovaPage(first), PageCount(count));
                let before = ranges.as_slice().to_vec();
                let mut with: BTreeSet<u64> = model.clone();
                with.extend(range.iter().map(|page| page.0));
                let runs = with.iter().filter(|page| !with.contains(&(*page + 1))).count();
                if ranges.add(range) {
                    model = with;
                    prop_assert_eq!(ranges.as_slice().len(), runs);
                } else {
                    prop_assert!(runs > 12, "there was room");
                    prop_assert_eq!(ranges.as_slice(), &before[..]);
                }
                prop_assert_eq!(&pages(ranges.as_slice()), &model);
                let gaps = ranges.as_slice().windows(2);
                let apart: Vec<_> = gaps.map(|pair| pair[0].end() < pair[1].first).collect();
                prop_assert!(!apart.contains(&false), "P1: {:?}", ranges.as_slice());
            }
            ranges.clear();
            prop_assert!(ranges.as_slice().is_empty());
        }
    }

    #[test]
    fn where_addresses_end_nothing_wraps() {
        let mut ranges = Ranges::<2>::new();
        let last = IovaRange::new(IovaPage(u64::MAX - 1), PageCount(1));
        assert!(ranges.add(last) && ranges.add(IovaRange::new(IovaPage(0), PageCount(1))));
        assert_eq!(ranges.as_slice().len(), 2);
    }
}
