// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The translation caches of a unit, as one thing: lookups, fills, invalidation.
//!
//! The IOTLB is the array for pages and the arrays for large leaves together. Entries that are
//! absent are remembered in caching mode only.

mod absent;
mod iotlb;
mod large;
mod lru;

pub(crate) use absent::AbsentEntries;

pub(crate) use iotlb::{Iotlb, Translation};
pub(crate) use large::LargeLeaves;
pub(crate) use lru::Lru;

use crate::{
    config::{CacheConfig, Features, Geometry},
    decode::{BadContext, Context, Pointer},
    invalidation::{ContextSelection, Selection},
};
use ioatlas_dma::{invalidation::Caches as Reach, units::*};

/// Tag of a walk-cache entry: the domain, and the page number without the bits
/// below the entry's span.
pub(crate) type WalkTag = (DomainId, u64);

/// How many entries an injected erratum still leaves behind.
#[derive(Clone, Copy, Default)]
pub(crate) struct LeftBehind {
    pub(crate) translations: u32,
    pub(crate) walks: u32,
}

/// What the context cache knows of a device: where it is attached, or, in caching mode,
/// why it is not.
pub(crate) type KnownContext = Result<Context, BadContext>;

/// The domain by which a cached context entry is invalidated: id 0 where the entry is absent or
/// faulty (VT-d 4.1 §6.2.2.1).
fn tag_of(known: &KnownContext) -> DomainId {
    known.map_or(DomainId(0), |context| context.domain)
}

pub(crate) struct Caches {
    geometry: Geometry,
    /// By the requester's source id.
    pub(crate) context: Lru<SourceId, KnownContext>,
    pub(crate) iotlb: Iotlb,
    pub(crate) large: LargeLeaves,
    pub(crate) absent: AbsentEntries,
    /// Element i caches entries of tables at level i + 2.
    walk: Vec<Lru<WalkTag, Pointer>>,
}

impl Caches {
    pub(crate) fn new(geometry: Geometry, features: &Features, config: &CacheConfig) -> Self {
        let absent = if features.caching_mode {
            config.absent
        } else {
            0
        };
        Caches {
            geometry,
            context: Lru::new(config.context),
            iotlb: Iotlb::new(config.iotlb),
            large: LargeLeaves::new(geometry, features.largest_leaf, &config.large),
            absent: AbsentEntries::new(geometry, features.largest_leaf, absent),
            walk: config
                .walk
                .iter()
                .map(|&entries| Lru::new(entries))
                .collect(),
        }
    }

    /// The translation of a page in the IOTLB, and the level of its leaf. A use.
    pub(crate) fn translation(
        &mut self,
        domain: DomainId,
        page: IovaPage,
    ) -> Option<(u32, Translation)> {
        let page_leaf = self.iotlb.get(domain, page).map(|hit| (1, hit));
        page_leaf.or_else(|| self.large.get(domain, page))
    }
    /// The same, not a use.
    pub(crate) fn peek(&self, domain: DomainId, page: IovaPage) -> Option<Translation> {
        self.iotlb
            .peek(domain, page)
            .or_else(|| self.large.peek(domain, page))
    }
    /// The cached entry nearest the leaf: the level it was read at, and what it says.
    pub(crate) fn nearest(&mut self, domain: DomainId, page: IovaPage) -> Option<(u32, Pointer)> {
        let geometry = self.geometry;
        (2..).zip(&mut self.walk).find_map(|(level, cache)| {
            let prefix = page.0 >> geometry.table_span_lg2(level - 1);
            cache.get(&(domain, prefix)).map(|hit| (level, hit))
        })
    }
    /// Enters what was read at `level`; returns how many entries that displaced, or `None` where
    /// that level is not cached.
    pub(crate) fn fill_walk(
        &mut self,
        level: u32,
        domain: DomainId,
        page: IovaPage,
        entry: Pointer,
    ) -> Option<u64> {
        let prefix = page.0 >> self.geometry.table_span_lg2(level - 1);
        let cache = self.walk.get_mut(level as usize - 2)?;
        (cache.capacity() > 0).then(|| cache.insert((domain, prefix), entry))
    }

    /// Removes what is named; returns how many translations and how many
    /// walk-cache entries that were.
    pub(crate) fn invalidate(
        &mut self,
        selection: &Selection,
        reach: Reach,
        left: &mut LeftBehind,
    ) -> (u64, u64) {
        let condemned =
            |t: &Translation| selection.names(t.domain, t.page) && !spend(&mut left.translations);
        let mut translations = match selection {
            Selection::Pages(_, range) => self.iotlb.sweep_range(*range, condemned),
            _ => self.iotlb.sweep(condemned),
        };
        translations += self.large.sweep(selection, left) + self.absent.sweep(selection, reach);
        let mut walks = 0;
        if reach == Reach::LeavesAndWalks {
            let geometry = self.geometry;
            for (level, cache) in (2..).zip(&mut self.walk) {
                let span = geometry.table_span_lg2(level - 1);
                walks += sweep_spans(cache, selection, span, &mut left.walks);
            }
        }
        (translations, walks)
    }
    /// Removes what is named; returns how many context entries that were.
    pub(crate) fn invalidate_context(&mut self, selection: &ContextSelection) -> u64 {
        self.context
            .sweep(|source, known| selection.names(*source, Some(tag_of(known))))
    }

    /// Evicts at random: `random` picks the cache and the entry; returns how many entries went.
    pub(crate) fn evict(&mut self, random: u64) -> u64 {
        let (which, entry) = (random & 3, random >> 2);
        match which {
            0 => self.context.evict(entry),
            1 if self.large.present() => self.large.evict(entry),
            2 if self.absent.len() > 0 => self.absent.evict(entry),
            1 | 2 => self.iotlb.evict(entry),
            _ => match self.walk.len() as u64 {
                0 => 0,
                n => self.walk[(entry % n) as usize].evict(entry / n),
            },
        }
    }

    /// Whether any cached entry points to the table in `frame`.
    pub(crate) fn point_to(&self, frame: PhysPage) -> bool {
        let mut known = self.context.iter().filter_map(|(_, known)| known.ok());
        known.any(|context| context.attachment.tables() == Some(frame))
            || self.walk_entries().any(|(_, _, entry)| entry.to == frame)
    }
    /// Every walk-cache entry, with the level it was read at.
    pub(crate) fn walk_entries(&self) -> impl Iterator<Item = (u32, &WalkTag, &Pointer)> {
        (2..)
            .zip(&self.walk)
            .flat_map(|(level, cache)| cache.iter().map(move |(tag, entry)| (level, tag, entry)))
    }
    /// Entries held and room, a walk cache each.
    pub(crate) fn walk_fill(&self) -> impl Iterator<Item = (usize, usize)> {
        self.walk
            .iter()
            .map(|cache| (cache.len(), cache.capacity()))
    }
    pub(crate) fn audit(&self) -> Result<(), String> {
        self.iotlb.audit().map_err(|e| format!("IOTLB: {e}"))?;
        self.large.audit().map_err(|e| format!("IOTLB: {e}"))?;
        self.absent
            .audit()
            .map_err(|e| format!("absent entries: {e}"))?;
        self.context
            .audit()
            .map_err(|e| format!("context cache: {e}"))?;
        for (level, cache) in (2..).zip(&self.walk) {
            cache
                .audit()
                .map_err(|e| format!("walk cache of level {level}: {e}"))?;
        }
        match self
            .walk_entries()
            .find(|(.., entry)| entry.rights.perm().is_none())
        {
            Some((level, tag, _)) => Err(format!(
                "walk cache of level {level}: {tag:?} permits nothing"
            )),
            None => Ok(()),
        }
    }
}

/// Removes the named entries of one cache whose entries cover 2^`span` pages each, by tag where the
/// range has fewer spans than the cache has entries.
fn sweep_spans(
    cache: &mut Lru<WalkTag, Pointer>,
    selection: &Selection,
    span: u32,
    left: &mut u32,
) -> u64 {
    if let Selection::Pages(domain, range) = selection {
        let (first, last) = (
            range.first.0 >> span,
            (range.end().0.saturating_sub(1)) >> span,
        );
        if last - first < cache.len() as u64 {
            let named = (first..=last).map(|prefix| (*domain, prefix));
            return named
                .filter(|tag| cache.peek(tag) && !spend(left) && cache.remove(tag).is_some())
                .count() as u64;
        }
    }
    cache.sweep(|(domain, prefix), _| selection.meets_span(*domain, *prefix, span) && !spend(left))
}

/// Takes one of `left`, if there is one.
fn spend(left: &mut u32) -> bool {
    let some = *left > 0;
    *left -= u32::from(some);
    some
}
