// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Large leaves in the IOTLB: a fully associative array a size, beside the set-associative one for
//! pages.
//!
//! An entry serves every page of its leaf until an invalidation names any one of them. Where a page
//! is in the array for pages too (a leaf that was split or merged and not flushed), that one is
//! served: hardware may serve either.

use super::{LeftBehind, Lru, Translation, WalkTag, sweep_spans};
use crate::{config::Geometry, decode::Pointer, invalidation::Selection};
use ioatlas_dma::units::*;

pub(crate) struct LargeLeaves {
    geometry: Geometry,
    /// Element i holds leaves of level i + 2: the first page that each leads to.
    levels: Vec<Lru<WalkTag, Pointer>>,
}

impl LargeLeaves {
    /// `capacities` as configured; levels above `largest_leaf` hold nothing.
    pub(super) fn new(geometry: Geometry, largest_leaf: u32, capacities: &[usize]) -> Self {
        let offered = capacities.iter().take(largest_leaf as usize - 1);
        LargeLeaves {
            geometry,
            levels: offered.map(|&entries| Lru::new(entries)).collect(),
        }
    }
    /// The translation of a page by the leaf that covers it, and the level of that leaf. A use.
    pub(super) fn get(&mut self, domain: DomainId, page: IovaPage) -> Option<(u32, Translation)> {
        let geometry = self.geometry;
        (2..).zip(&mut self.levels).find_map(|(level, cache)| {
            let span = geometry.leaf_span_lg2(level);
            let leaf = cache.get(&(domain, page.0 >> span))?;
            Some((level, within(leaf, span, domain, page)?))
        })
    }
    /// The same, not a use.
    pub(super) fn peek(&self, domain: DomainId, page: IovaPage) -> Option<Translation> {
        let (level, _, leaf) = self.iter().find(|(level, (tag, prefix), _)| {
            *tag == domain && *prefix == page.0 >> self.geometry.leaf_span_lg2(*level)
        })?;
        within(*leaf, self.geometry.leaf_span_lg2(level), domain, page)
    }
    /// Enters a leaf of `level`; returns how many others that displaced, or `None` where that
    /// level is not cached.
    pub(crate) fn fill(
        &mut self,
        level: u32,
        domain: DomainId,
        page: IovaPage,
        leaf: Pointer,
    ) -> Option<u64> {
        let prefix = page.0 >> self.geometry.leaf_span_lg2(level);
        let cache = self.levels.get_mut(level as usize - 2)?;
        (cache.capacity() > 0).then(|| cache.insert((domain, prefix), leaf))
    }
    pub(super) fn sweep(&mut self, selection: &Selection, left: &mut LeftBehind) -> u64 {
        let mut removed = 0;
        for (level, cache) in (2..).zip(&mut self.levels) {
            let span = self.geometry.leaf_span_lg2(level);
            removed += sweep_spans(cache, selection, span, &mut left.translations);
        }
        removed
    }
    pub(super) fn evict(&mut self, random: u64) -> u64 {
        match self.levels.len() as u64 {
            0 => 0,
            n => self.levels[(random % n) as usize].evict(random / n),
        }
    }
    /// Every leaf, with its level.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &WalkTag, &Pointer)> {
        (2..)
            .zip(&self.levels)
            .flat_map(|(level, cache)| cache.iter().map(move |(tag, leaf)| (level, tag, leaf)))
    }
    /// Whether any level has room for leaves.
    pub(super) fn present(&self) -> bool {
        self.levels.iter().any(|cache| cache.capacity() > 0)
    }
    pub(super) fn audit(&self) -> Result<(), String> {
        for (level, cache) in (2..).zip(&self.levels) {
            cache
                .audit()
                .map_err(|e| format!("leaves of level {level}: {e}"))?;
        }
        match self.iter().find(|(level, _, leaf)| {
            let offset = (1 << self.geometry.leaf_span_lg2(*level)) - 1;
            leaf.rights.perm().is_none() || leaf.to.0 & offset != 0
        }) {
            Some((level, tag, leaf)) => Err(format!(
                "leaf of level {level}, {tag:?}: {} permits nothing or is not aligned",
                leaf.to
            )),
            None => Ok(()),
        }
    }
}

/// `page` as a leaf of 2^`span` pages translates it.
fn within(leaf: Pointer, span: u32, domain: DomainId, page: IovaPage) -> Option<Translation> {
    let offset = page.0 & ((1 << span) - 1);
    Some(Translation {
        domain,
        page,
        to: PhysPage(leaf.to.0 + offset),
        perm: leaf.rights.perm()?,
    })
}
