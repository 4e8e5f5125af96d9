// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A cache with an index by page and an order of eviction a set.

use super::{Cache, Sets, Span, Tag};
use crate::geometry::Geometry;
use std::collections::{BTreeMap, BTreeSet};

/// Rank, stamp, and which entry.
type Place = (u32, u64, Tag);

/// Invariant: an entry with (set, rank, stamp) is in `index` if and only if
/// `order[set]` holds its place.
pub(crate) struct Indexed {
    index: BTreeMap<Tag, (usize, u32, u64)>,
    order: Vec<BTreeSet<Place>>,
    ways: usize,
    sets: Sets,
}

impl Indexed {
    fn move_to(&mut self, tag: Tag, rank: u32, stamp: impl FnOnce(u64) -> u64) -> bool {
        let Some((set, old_rank, old_stamp)) = self.index.get_mut(&tag) else {
            return false;
        };
        let stamp = stamp(*old_stamp);
        let order = &mut self.order[*set];
        order.remove(&(*old_rank, *old_stamp, tag));
        order.insert((rank, stamp, tag));
        (*old_rank, *old_stamp) = (rank, stamp);
        true
    }

    fn first_in(&self, span: Span, from: u64) -> Option<Tag> {
        let tag = |page| Tag {
            device: span.device,
            page,
        };
        let mut held = self.index.range(tag(from)..=tag(span.last));
        held.next().map(|(&tag, _)| tag)
    }
}

impl Cache for Indexed {
    fn with_shape(geometry: Geometry) -> Self {
        Self {
            index: BTreeMap::new(),
            order: vec![BTreeSet::new(); geometry.sets()],
            ways: geometry.ways(),
            sets: Sets::new(geometry.sets()),
        }
    }

    fn hit(&mut self, tag: Tag, _: u64, stamp: u64, rank: u32) -> bool {
        self.move_to(tag, rank, |_| stamp)
    }

    fn fill(&mut self, tag: Tag, home: u64, stamp: u64, rank: u32) -> bool {
        let set = self.sets.of(home);
        let order = &mut self.order[set];
        let victim = (order.len() == self.ways)
            .then(|| order.pop_first())
            .flatten();
        if let Some((_, _, victim)) = victim {
            self.index.remove(&victim);
        }
        order.insert((rank, stamp, tag));
        self.index.insert(tag, (set, rank, stamp));
        victim.is_some()
    }

    fn contains(&self, tag: Tag, _: u64) -> bool {
        self.index.contains_key(&tag)
    }

    fn remove(&mut self, span: Span, _: u64) -> u64 {
        let mut removed = 0;
        while let Some(tag) = self.first_in(span, span.first) {
            if let Some((set, rank, stamp)) = self.index.remove(&tag) {
                self.order[set].remove(&(rank, stamp, tag));
            }
            removed += 1;
        }
        removed
    }

    fn rerank(&mut self, span: Span, _: u64, mut rank: impl FnMut(u64) -> u32) {
        let mut from = span.first;
        while let Some(tag) = self.first_in(span, from) {
            self.move_to(tag, rank(tag.page), |stamp| stamp);
            if tag.page == span.last {
                break;
            }
            from = tag.page + 1;
        }
    }
}
