// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Runs of pages, each with a value: memory and time grow with the number of changes
//! and not with the page counts in them. A change adds at most two runs (the one it
//! makes and the far side of one it splits).

use crate::units::PageCount;
use std::collections::BTreeMap;

/// By first page; runs do not overlap.
#[derive(Clone, Debug)]
pub(crate) struct Runs<T>(BTreeMap<u64, Run<T>>);

/// A run's last page, part of it, and its value.
#[derive(Clone, Copy, Debug)]
struct Run<T> {
    last: u64,
    value: T,
}

impl<T> Default for Runs<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Copy> Runs<T> {
    pub fn get(&self, page: u64) -> Option<T> {
        let (_, run) = self.0.range(..=page).next_back()?;
        (run.last >= page).then_some(run.value)
    }

    /// Values of the range's pages, highest first; a run that reaches out of it counts, too.
    pub fn within(&self, first: u64, last: u64) -> impl Iterator<Item = T> + '_ {
        let below = self.0.range(..=last).rev();
        let meets = move |run: &Run<T>| run.last >= first;
        below
            .map(|(_, run)| *run)
            .take_while(meets)
            .map(|run| run.value)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether any page of the range is in a run.
    pub fn overlap(&self, first: u64, last: u64) -> bool {
        let before = self.0.range(..=last).next_back();
        before.is_some_and(|(_, run)| run.last >= first)
    }

    /// Gives the range the value; returns how many of its pages had another before.
    pub fn insert(&mut self, first: u64, last: u64, value: T) -> PageCount {
        let replaced = self.take(first, last, |_, _, _| {});
        self.0.insert(first, Run { last, value });
        replaced
    }

    /// Removes the range's pages, telling `each` the first and last page and the value
    /// of every piece, in order; returns how many pages there were.
    pub fn take(&mut self, first: u64, last: u64, mut each: impl FnMut(u64, u64, T)) -> PageCount {
        // Cut a run that begins before the range and reaches into it.
        if let Some((_, before)) = self.0.range_mut(..first).next_back()
            && before.last >= first
        {
            let inside = *before;
            before.last = first - 1;
            self.0.insert(first, inside);
        }
        let mut taken = 0;
        while let Some((&start, &run)) = self.0.range(first..=last).next() {
            self.0.remove(&start);
            if run.last > last {
                self.0.insert(last + 1, run);
            }
            let end = run.last.min(last);
            taken += end - start + 1;
            each(start, end, run.value);
        }
        PageCount(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(runs: &Runs<u8>, pages: std::ops::Range<u64>) -> Vec<Option<u8>> {
        pages.map(|page| runs.get(page)).collect()
    }

    #[test]
    fn taking_the_middle_leaves_both_sides() {
        let mut runs = Runs::default();
        assert_eq!(runs.insert(1, 5, 7), PageCount(0));
        let taken = runs.take(3, 3, |first, last, value| {
            assert_eq!((first, last, value), (3, 3, 7));
        });
        assert_eq!(taken, PageCount(1));
        let o = Some(7);
        assert_eq!(values(&runs, 0..7), [None, o, o, None, o, o, None]);
        assert!(runs.overlap(3, 4) && runs.overlap(0, 9) && !runs.overlap(3, 3));
        assert!(!runs.overlap(6, 9) && !runs.overlap(0, 0));
        let within = |first, last| runs.within(first, last).count();
        assert_eq!((within(0, 9), within(2, 3), within(3, 3)), (2, 1, 0));
        assert_eq!(runs.take(0, 6, |_, _, _| {}), PageCount(4));
        assert!(runs.is_empty());
    }

    #[test]
    fn inserting_over_counts_and_replaces() {
        let mut runs = Runs::default();
        runs.insert(0, 3, 0);
        assert_eq!(runs.insert(2, 5, 1), PageCount(2));
        let (a, b) = (Some(0), Some(1));
        assert_eq!(values(&runs, 0..7), [a, a, b, b, b, b, None]);
    }

    #[test]
    fn the_whole_address_space_is_one_run() {
        let mut runs = Runs::default();
        let last = (1 << 52) - 1;
        runs.insert(0, last, 0);
        assert_eq!(runs.0.len(), 1);
        assert_eq!(runs.take(0, last, |_, _, _| {}), PageCount(1 << 52));
    }
}
