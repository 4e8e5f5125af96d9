// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Set-associative caches of (device, page): the IOTLB, and with one set each the
//! prefetch buffer and the walk caches.
//!
//! *Home*: page + offset of its device; the set is home mod sets. *Stamp*: when an entry was last
//! used, from 1. *Rank*: what the strategy thinks of an entry. The victim of a full set is the
//! entry of lowest (rank, stamp), so equal ranks make it the least recently used. A cache whose
//! stamps are never refreshed is first in, first out.
//!
//! Two structures give the same answers. [`Array`] scans the entries of a set: fastest
//! up to [`SCANNED_WAYS`]. [`Indexed`] takes logarithmic time whatever the ways.

mod array;
mod indexed;

pub(crate) use array::Array;
pub(crate) use indexed::Indexed;

use crate::geometry::Geometry;

/// Largest sets that are scanned: at about a nanosecond an entry, more costs what a tree does.
pub(crate) const SCANNED_WAYS: usize = 64;

/// What an entry is looked up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tag {
    pub device: u32,
    pub page: u64,
}

/// A run of one device's pages, both ends inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub device: u32,
    pub first: u64,
    pub last: u64,
}

impl Span {
    /// All pages of a device.
    pub fn all(device: u32) -> Self {
        Span {
            device,
            first: 0,
            last: u64::MAX - 1,
        }
    }

    pub fn first_tag(self) -> Tag {
        Tag {
            device: self.device,
            page: self.first,
        }
    }

    pub fn last_tag(self) -> Tag {
        Tag {
            device: self.device,
            page: self.last,
        }
    }

    #[inline]
    pub fn holds(self, tag: Tag) -> bool {
        tag.device == self.device && (self.first..=self.last).contains(&tag.page)
    }

    /// Whether going through the span page by page visits at most `most` pages.
    fn is_at_most(self, most: usize) -> bool {
        self.last - self.first < most as u64
    }
}

/// How an access ended in a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Hit,
    /// It was filled; `evicted` says whether a valid entry had to go.
    Filled {
        evicted: bool,
    },
}

/// Number of sets, and the set of a home.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sets {
    count: u64,
    /// `count - 1` where that is a mask, else 0.
    mask: u64,
}

impl Sets {
    fn new(count: usize) -> Self {
        let count = count as u64;
        let mask = if count.is_power_of_two() {
            count - 1
        } else {
            0
        };
        Self { count, mask }
    }

    #[inline]
    fn of(self, home: u64) -> usize {
        let set = if self.mask != 0 {
            home & self.mask
        } else {
            home % self.count
        };
        set as usize
    }
}

/// What both structures do.
pub(crate) trait Cache {
    fn with_shape(geometry: Geometry) -> Self;

    /// Looks `tag` up; if there, gives it the stamp and the rank.
    fn hit(&mut self, tag: Tag, home: u64, stamp: u64, rank: u32) -> bool;

    /// Adds `tag`, which is not there; whether a valid entry had to go.
    fn fill(&mut self, tag: Tag, home: u64, stamp: u64, rank: u32) -> bool;

    /// Looks the tag up and fills it in where it is not there: [`Self::hit`], else [`Self::fill`].
    #[inline]
    fn access(&mut self, tag: Tag, home: u64, stamp: u64, rank: u32) -> Found {
        if self.hit(tag, home, stamp, rank) {
            Found::Hit
        } else {
            let evicted = self.fill(tag, home, stamp, rank);
            Found::Filled { evicted }
        }
    }

    fn contains(&self, tag: Tag, home: u64) -> bool;

    /// Removes the entries of a span of pages; returns how many there were. `offset` is
    /// what the device's pages are moved by to their homes.
    fn remove(&mut self, span: Span, offset: u64) -> u64;

    /// Gives the entries of a span of pages a new rank, by page.
    fn rerank(&mut self, span: Span, offset: u64, rank: impl FnMut(u64) -> u32);
}

/// Either structure, chosen by the ways.
pub(crate) enum Any {
    Array(Array<0>),
    Indexed(Indexed),
}

impl Cache for Any {
    fn with_shape(geometry: Geometry) -> Self {
        if geometry.ways() <= SCANNED_WAYS {
            Any::Array(Array::with_shape(geometry))
        } else {
            Any::Indexed(Indexed::with_shape(geometry))
        }
    }

    #[inline]
    fn hit(&mut self, tag: Tag, home: u64, stamp: u64, rank: u32) -> bool {
        match self {
            Any::Array(cache) => cache.hit(tag, home, stamp, rank),
            Any::Indexed(cache) => cache.hit(tag, home, stamp, rank),
        }
    }

    #[inline]
    fn fill(&mut self, tag: Tag, home: u64, stamp: u64, rank: u32) -> bool {
        match self {
            Any::Array(cache) => cache.fill(tag, home, stamp, rank),
            Any::Indexed(cache) => cache.fill(tag, home, stamp, rank),
        }
    }

    #[inline]
    fn contains(&self, tag: Tag, home: u64) -> bool {
        match self {
            Any::Array(cache) => cache.contains(tag, home),
            Any::Indexed(cache) => cache.contains(tag, home),
        }
    }

    #[inline]
    fn remove(&mut self, span: Span, offset: u64) -> u64 {
        match self {
            Any::Array(cache) => cache.remove(span, offset),
            Any::Indexed(cache) => cache.remove(span, offset),
        }
    }

    fn rerank(&mut self, span: Span, offset: u64, rank: impl FnMut(u64) -> u32) {
        match self {
            Any::Array(cache) => cache.rerank(span, offset, rank),
            Any::Indexed(cache) => cache.rerank(span, offset, rank),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: u32 = 1;

    fn tag(page: u64) -> Tag {
        Tag { device: 0, page }
    }

    fn cache<C: Cache>(entries: usize, ways: usize) -> C {
        C::with_shape(Geometry::new(entries, ways).unwrap())
    }

    fn the_lowest_of_the_set_goes<C: Cache>() {
        let mut cache: C = cache(6, 2);
        // Sets of 3: pages 0, 3, 6 and 9 share one, page 1 has another.
        for (stamp, page) in [(1, 0), (2, 1), (3, 3)] {
            assert!(!cache.fill(tag(page), page, stamp, 0));
        }
        assert!(cache.hit(tag(0), 0, 4, 0));
        assert!(cache.fill(tag(6), 6, 5, 0));
        assert!(!cache.contains(tag(3), 3), "the least recently used");
        // Rank comes before age.
        cache.rerank(
            Span {
                device: 0,
                first: 0,
                last: 0,
            },
            0,
            |_| 1,
        );
        assert!(cache.fill(tag(9), 9, 6, 0));
        let there = [0, 6, 9, 1].map(|page| cache.contains(tag(page), page));
        assert_eq!(there, [true, false, true, true]);
        // A hit gives a new rank.
        assert!(cache.hit(tag(0), 0, 7, 0) && cache.hit(tag(9), 9, 8, 0));
        assert!(cache.fill(tag(3), 3, 9, 0) && !cache.contains(tag(0), 0));
    }

    fn removal_is_by_device_and_makes_room<C: Cache>() {
        for last in [4, (1 << 52) - 1] {
            let mut cache: C = cache(2, 2);
            let other = Tag {
                device: OTHER,
                page: 4,
            };
            assert!(!cache.fill(tag(4), 4, 1, 0) && !cache.fill(other, 5, 2, 0));
            let span = Span {
                device: 0,
                first: 3,
                last,
            };
            assert_eq!(cache.remove(span, 0), 1);
            assert!(!cache.fill(tag(8), 8, 3, 0));
            assert!(cache.contains(other, 5) && !cache.contains(tag(4), 4));
            let span = Span {
                device: OTHER,
                first: 0,
                last,
            };
            assert_eq!(cache.remove(span, 1), 1);
        }
    }

    #[test]
    fn both_structures_follow_rank_and_age() {
        the_lowest_of_the_set_goes::<Array<0>>();
        the_lowest_of_the_set_goes::<Array<2>>();
        the_lowest_of_the_set_goes::<Indexed>();
        the_lowest_of_the_set_goes::<Any>();
    }

    #[test]
    fn both_structures_remove_by_device() {
        removal_is_by_device_and_makes_room::<Array<0>>();
        removal_is_by_device_and_makes_room::<Array<2>>();
        removal_is_by_device_and_makes_room::<Indexed>();
        removal_is_by_device_and_makes_room::<Any>();
    }
}
