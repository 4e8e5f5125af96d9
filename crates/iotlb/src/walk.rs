// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Page walks and the caches that shorten them.
//!
//! A walk reads one entry a level, from the root to the leaf: level 1, or 2 for a
//! superpage. The cache of level x keeps entries of level-x tables, so a hit there leaves
//! the levels below: x - 1 reads, or x - 2 down to a superpage. A walk looks from the
//! lowest level up and stops at the first hit, which alone is refreshed; what it reads
//! above the leaf is filled.

use crate::cache::{Any, Cache, Span, Tag};
use crate::geometry::Geometry;
use crate::plan::View;
use crate::setup::{InvalidationHint, Walks};

/// Bits of a page number that one level translates.
const LEVEL_LG2: usize = 9;

pub(crate) struct WalkCaches {
    /// By level, from 0; `None` where there is no cache.
    caches: [Option<Any>; Walks::MAX_LEVELS + 1],
    leaf: usize,
    levels: usize,
    hint: InvalidationHint,
    any: bool,
    clock: u64,
    reads: u64,
}

impl WalkCaches {
    pub fn new(walks: &Walks, view: View) -> Self {
        let leaf = if view.superpages { 2 } else { 1 };
        let cache = |level: usize| {
            let entries = walks.entries(level);
            let used = level > leaf && level <= walks.levels();
            let geometry = used.then(|| Geometry::new(entries, entries).ok())?;
            geometry.map(Any::with_shape)
        };
        let caches = std::array::from_fn(cache);
        Self {
            any: caches.iter().any(Option::is_some),
            caches,
            leaf,
            levels: walks.levels(),
            hint: walks.hint,
            clock: 0,
            reads: 0,
        }
    }

    /// Reads of a walk that no cache shortens.
    pub fn longest(&self) -> u64 {
        (self.levels + 1 - self.leaf) as u64
    }

    /// Reads of all walks.
    pub fn reads(&self) -> u64 {
        self.reads
    }

    /// Walks for one page, or superpage.
    #[inline]
    pub fn walk(&mut self, tag: Tag) {
        self.reads += if self.any {
            self.shortened(tag)
        } else {
            self.longest()
        };
    }

    fn shortened(&mut self, tag: Tag) -> u64 {
        self.clock += 1;
        let at = |level: usize| Tag {
            page: tag.page >> (LEVEL_LG2 * (level - self.leaf)),
            ..tag
        };
        let (leaf, stamp) = (self.leaf, self.clock);
        let above_leaf = leaf + 1..=self.levels;
        let hit = above_leaf.clone().find(|&level| {
            let cache = self.caches[level].as_mut();
            cache.is_some_and(|cache| cache.hit(at(level), 0, stamp, 0))
        });
        let from = hit.unwrap_or(self.levels + 1);
        for level in leaf + 1..from {
            if let Some(cache) = &mut self.caches[level] {
                cache.fill(at(level), 0, stamp, 0);
            }
        }
        (from - leaf) as u64
    }

    /// An unmap removed at least one page of a device.
    #[inline]
    pub fn unmapped(&mut self, device: u32) {
        if self.any && self.hint == InvalidationHint::WalkCachesToo {
            self.clear(device);
        }
    }

    /// Removes the entries of a device.
    pub fn clear(&mut self, device: u32) {
        for cache in self.caches.iter_mut().flatten() {
            cache.remove(Span::all(device), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caches(l2: usize, l3: usize, l4: usize, superpages: bool) -> WalkCaches {
        let walks = [(2, l2), (3, l3), (4, l4)]
            .iter()
            .try_fold(Walks::default(), |walks, &(level, entries)| {
                walks.with_cache(level, entries)
            });
        let view = View {
            superpages,
            mirrored: false,
        };
        WalkCaches::new(&walks.unwrap(), view)
    }

    fn reads(caches: &mut WalkCaches, page: u64) -> u64 {
        let before = caches.reads();
        caches.walk(Tag { device: 0, page });
        caches.reads() - before
    }

    #[test]
    fn a_hit_leaves_the_levels_below() {
        let mut caches = caches(1, 1, 1, false);
        assert_eq!(reads(&mut caches, 0), 4);
        assert_eq!(reads(&mut caches, 511), 1);
        assert_eq!(reads(&mut caches, 512), 2, "another leaf table");
        assert_eq!(reads(&mut caches, 1 << 18), 3);
        assert_eq!(reads(&mut caches, 1 << 27), 4);
        caches.hint = InvalidationHint::WalkCachesToo;
        caches.unmapped(1);
        assert_eq!(reads(&mut caches, 1 << 27), 1);
        caches.unmapped(0);
        assert_eq!(reads(&mut caches, 1 << 27), 4);
    }

    #[test]
    fn only_the_cache_that_hit_is_refreshed() {
        let mut caches = caches(1, 2, 0, false);
        assert_eq!(reads(&mut caches, 0), 4);
        assert_eq!(reads(&mut caches, 1 << 18), 4);
        assert_eq!(reads(&mut caches, 0), 2, "L2 holds the other; L3 refreshed");
        assert_eq!(reads(&mut caches, 1), 1, "L3 not refreshed");
        // A third goes over the least recently used of L3, which is the second.
        assert_eq!(reads(&mut caches, 2 << 18), 4);
        assert_eq!(reads(&mut caches, 0), 2);
        assert_eq!(reads(&mut caches, 1 << 18), 4);
    }

    #[test]
    fn superpages_end_a_level_higher_and_leave_l2_alone() {
        let mut caches = caches(8, 1, 0, true);
        assert_eq!((caches.longest(), reads(&mut caches, 0)), (3, 3));
        assert_eq!(reads(&mut caches, 511), 1);
        assert_eq!(reads(&mut caches, 512), 3);
    }
}
