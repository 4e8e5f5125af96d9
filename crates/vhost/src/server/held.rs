// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a back end may hold: ranges of IOVAs, joined where they meet.

use std::collections::BTreeMap;

/// A set of IOVAs, as ranges that neither overlap nor touch; a superset of what was put in
/// once it is full.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Held {
    /// First address -> last address.
    ranges: BTreeMap<u64, u64>,
    limit: usize,
}

impl Held {
    /// The empty set, of at most `limit` (at least 1) ranges.
    pub fn new(limit: usize) -> Self {
        Held {
            ranges: BTreeMap::new(),
            limit: limit.max(1),
        }
    }

    /// The ranges, first and last address each, in order.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|(&first, &last)| (first, last))
    }

    /// Adds `first` to `last`.
    pub fn insert(&mut self, first: u64, last: u64) {
        let (mut first, mut last) = (first, last);
        // What it overlaps or touches becomes part of it.
        while let Some((&f, &l)) = self.ranges.range(..=last.saturating_add(1)).next_back() {
            if l.saturating_add(1) < first {
                break;
            }
            self.ranges.remove(&f);
            (first, last) = (first.min(f), last.max(l));
        }
        self.ranges.insert(first, last);
        self.keep_within_limit(first);
    }

    /// Joins neighbours if there are too many ranges now that one begins at `first`.
    fn keep_within_limit(&mut self, first: u64) {
        if self.ranges.len() > self.limit {
            self.join_next_to(first);
        }
    }

    /// Joins the range that begins at `first` with its nearer neighbour, across the gap.
    fn join_next_to(&mut self, first: u64) {
        let last = self.ranges[&first];
        let before = self.ranges.range(..first).next_back();
        let after = self.ranges.range(first..).nth(1);
        let (before, after) = (before.map(|(&f, &l)| (f, l)), after.map(|(&f, &l)| (f, l)));
        let (lower, upper) = match (before, after) {
            (Some(b), Some(a)) if first - b.1 <= a.0 - last => (b, (first, last)),
            (_, Some(a)) => ((first, last), a),
            (Some(b), None) => (b, (first, last)),
            (None, None) => return,
        };
        self.ranges.remove(&upper.0);
        self.ranges.insert(lower.0, upper.1);
    }

    /// What is in the set of `first` to `last`.
    pub fn within(&self, first: u64, last: u64) -> Vec<(u64, u64)> {
        let before = self.ranges.range(..first).next_back();
        let straddles = before.filter(|&(_, &l)| l >= first);
        straddles
            .into_iter()
            .chain(self.ranges.range(first..=last))
            .map(|(&f, &l)| (f.max(first), l.min(last)))
            .collect()
    }

    /// Takes `first` to `last` out; what is left of a range on either side stays. (Where that is
    /// one range too many, a gap is held again, and perhaps this one.)
    pub fn remove(&mut self, first: u64, last: u64) {
        for (f, l) in self.within(first, last) {
            let (&start, &end) = self
                .ranges
                .range(..=f)
                .next_back()
                .expect("`within` gives parts of ranges");
            self.ranges.remove(&start);
            if start < f {
                self.ranges.insert(start, f - 1);
            }
            if l < end {
                self.ranges.insert(l + 1, end);
                self.keep_within_limit(l + 1);
            }
        }
    }
}
