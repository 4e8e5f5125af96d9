// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A cache whose sets are scanned.

use super::{Cache, Sets, Span, Tag};
use crate::geometry::Geometry;

/// No page has this number, so no look-up finds an empty entry.
const EMPTY_PAGE: u64 = u64::MAX;

/// Rank 0 and stamp 0 are below every valid entry's, so empty ones are filled first.
const EMPTY: Entry = Entry {
    tag: Tag {
        device: 0,
        page: EMPTY_PAGE,
    },
    rank: 0,
    stamp: 0,
};

#[derive(Clone, Copy)]
struct Entry {
    tag: Tag,
    rank: u32,
    stamp: u64,
}

/// `WAYS` known to the compiler, or 0 where only the program knows.
pub(crate) struct Array<const WAYS: usize> {
    entries: Vec<Entry>,
    ways: usize,
    sets: Sets,
}

impl<const WAYS: usize> Array<WAYS> {
    #[inline]
    fn ways(&self) -> usize {
        if WAYS == 0 { self.ways } else { WAYS }
    }

    #[inline]
    fn set(&self, home: u64) -> &[Entry] {
        let ways = self.ways();
        &self.entries[self.sets.of(home) * ways..][..ways]
    }

    #[inline]
    fn set_mut(&mut self, home: u64) -> &mut [Entry] {
        let ways = self.ways();
        &mut self.entries[self.sets.of(home) * ways..][..ways]
    }

    /// Shows `each` the valid entries of a span.
    #[inline]
    fn each(&mut self, span: Span, offset: u64, mut each: impl FnMut(&mut Entry)) {
        if span.is_at_most(self.entries.len() / self.ways()) {
            for page in span.first..=span.last {
                let tag = Tag {
                    device: span.device,
                    page,
                };
                let set = self.set_mut(page + offset);
                if let Some(entry) = set.iter_mut().find(|entry| entry.tag == tag) {
                    each(entry);
                }
            }
        } else {
            let held = self.entries.iter_mut().filter(|e| span.holds(e.tag));
            held.for_each(each);
        }
    }
}

impl<const WAYS: usize> Cache for Array<WAYS> {
    fn with_shape(geometry: Geometry) -> Self {
        debug_assert!(WAYS == 0 || WAYS == geometry.ways());
        Self {
            entries: vec![EMPTY; geometry.entries()],
            ways: geometry.ways(),
            sets: Sets::new(geometry.sets()),
        }
    }

    #[inline]
    fn hit(&mut self, tag: Tag, home: u64, stamp: u64, rank: u32) -> bool {
        let set = self.set_mut(home);
        match set.iter_mut().find(|entry| entry.tag == tag) {
            Some(entry) => {
                entry.stamp = stamp;
                entry.rank = rank;
                true
            }
            None => false,
        }
    }

    #[inline]
    fn fill(&mut self, tag: Tag, home: u64, stamp: u64, rank: u32) -> bool {
        let set = self.set_mut(home);
        let mut victim = 0;
        for at in 1..set.len() {
            let (candidate, lowest) = (set[at], set[victim]);
            if (candidate.rank, candidate.stamp) < (lowest.rank, lowest.stamp) {
                victim = at;
            }
        }
        let evicted = set[victim].stamp != EMPTY.stamp;
        set[victim] = Entry { tag, rank, stamp };
        evicted
    }

    #[inline]
    fn contains(&self, tag: Tag, home: u64) -> bool {
        self.set(home).iter().any(|entry| entry.tag == tag)
    }

    #[inline]
    fn remove(&mut self, span: Span, offset: u64) -> u64 {
        let mut removed = 0;
        self.each(span, offset, |entry| {
            *entry = EMPTY;
            removed += 1;
        });
        removed
    }

    fn rerank(&mut self, span: Span, offset: u64, mut rank: impl FnMut(u64) -> u32) {
        self.each(span, offset, |entry| entry.rank = rank(entry.tag.page));
    }
}
