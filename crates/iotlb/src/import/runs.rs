// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Which pages of a device are mapped: disjoint runs, each one mapping or what is left of it.

use crate::units::{IovaPage, PageCount, PageRange};

/// Runs with the first and the last page of the mapping that they are left of.
#[derive(Debug, Default)]
pub(super) struct Runs(crate::runs::Runs<(u64, u64)>, usize);

impl Runs {
    /// Mappings added and not taken whole or in part since.
    pub fn len(&self) -> usize {
        self.1
    }

    pub fn contains(&self, page: u64) -> bool {
        self.0.get(page).is_some()
    }

    /// Whether any page of the range is mapped.
    pub fn overlaps(&self, range: PageRange) -> bool {
        self.0
            .overlap(range.first().number(), range.last().number())
    }

    /// Adds a range of which no page is mapped.
    pub fn insert(&mut self, range: PageRange) {
        let (first, last) = (range.first().number(), range.last().number());
        self.0.insert(first, last, (first, last));
        self.1 += 1;
    }

    /// Removes the pages of the range; what was mapped of it, neighbours joined.
    pub fn take(&mut self, range: PageRange) -> Vec<PageRange> {
        let mut taken = Joined::default();
        let mut ended = 0;
        self.0.take(
            range.first().number(),
            range.last().number(),
            |first, last, mapping| {
                // what is left of a mapping counts until its last page goes
                ended += usize::from(last == mapping.1);
                taken.push(first, last);
            },
        );
        self.1 = self.1.saturating_sub(ended);
        taken.ranges()
    }

    /// Removes every mapping that has a page in the range, whole.
    pub fn take_touched(&mut self, range: PageRange) -> Vec<PageRange> {
        let mut touched = Vec::new();
        self.0.take(
            range.first().number(),
            range.last().number(),
            |_, _, mapping| touched.push(mapping),
        );
        touched.dedup();
        self.1 = self.1.saturating_sub(touched.len());
        for (first, last) in &touched {
            self.0.take(*first, *last, |_, _, _| {});
        }
        let range = |(first, last)| page_range(first, last);
        touched.into_iter().filter_map(range).collect()
    }
}

/// Page runs in ascending order, neighbours joined.
#[derive(Debug, Default)]
pub(super) struct Joined(Vec<(u64, u64)>);

impl Joined {
    pub fn push(&mut self, first: u64, last: u64) {
        match self.0.last_mut() {
            Some((_, end)) if first <= *end + 1 && first > *end => *end = last,
            _ => self.0.push((first, last)),
        }
    }

    pub fn ranges(self) -> Vec<PageRange> {
        let range = |(first, last)| page_range(first, last);
        self.0.into_iter().filter_map(range).collect()
    }
}

/// From page to page, both within.
pub(super) fn page_range(first: u64, last: u64) -> Option<PageRange> {
    let pages = last.checked_sub(first)?.checked_add(1)?;
    PageRange::new(IovaPage::new(first)?, PageCount(pages))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u64, last: u64) -> PageRange {
        page_range(first, last).unwrap()
    }

    #[test]
    fn taking_splits_and_joins() {
        let mut runs = Runs::default();
        for (first, last) in [(1, 2), (3, 5), (8, 9)] {
            runs.insert(range(first, last));
        }
        assert!(runs.contains(5) && !runs.contains(6) && runs.overlaps(range(6, 8)));
        assert_eq!(runs.take(range(2, 8)), [range(2, 5), range(8, 8)]);
        assert!(runs.contains(1) && runs.contains(9) && !runs.overlaps(range(2, 8)));
        runs.insert(range(2, 3));
        // of the mapping 8..=9 page 8 went before
        assert_eq!(runs.take_touched(range(3, 9)), [range(2, 3), range(8, 9)]);
        assert!(runs.contains(1) && !runs.overlaps(range(2, 9)));
    }
}
