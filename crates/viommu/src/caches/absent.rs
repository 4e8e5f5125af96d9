// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Entries of translation tables that are absent or faulty, kept by units in caching mode (VT-d 4.1
//! §6.1).
//!
//! An entry found so at a level is remembered for every page below it, and stops every access there
//! until an invalidation names one of them. Page-selective invalidation that hints "leaves only"
//! removes it where a leaf could stand in its place; above that level it may have become a pointer
//! to a table only, which the hint says did not happen.

use super::{Lru, WalkTag};
use crate::{config::Geometry, fault::FaultReason, invalidation::Selection};
use ioatlas_dma::{invalidation::Caches as Reach, units::*};

pub(crate) struct AbsentEntries {
    geometry: Geometry,
    largest_leaf: u32,
    /// By level and tag.
    entries: Lru<(u32, WalkTag), FaultReason>,
}

impl AbsentEntries {
    pub(super) fn new(geometry: Geometry, largest_leaf: u32, capacity: usize) -> Self {
        AbsentEntries {
            geometry,
            largest_leaf,
            entries: Lru::new(capacity),
        }
    }

    /// Why an access of `kind` to the page is stopped, if an entry above it is remembered; the
    /// nearest to the leaf counts.
    pub(crate) fn get(
        &mut self,
        domain: DomainId,
        page: IovaPage,
        kind: AccessKind,
    ) -> Option<FaultReason> {
        if self.entries.len() == 0 {
            return None;
        }
        let (geometry, entries) = (self.geometry, &mut self.entries);
        let found = (1..=geometry.levels)
            .find_map(|level| entries.get(&tag(geometry, level, domain, page)))?;
        Some(match found {
            FaultReason::NotPresent { level, .. } => FaultReason::NotPresent { kind, level },
            other => other,
        })
    }
    /// Remembers what stopped a walk, where an entry did; returns the level and how
    /// many others that displaced.
    pub(crate) fn fill(
        &mut self,
        domain: DomainId,
        page: IovaPage,
        reason: FaultReason,
    ) -> Option<(u32, u64)> {
        let level = match reason {
            FaultReason::NotPresent { level, .. } | FaultReason::EntryReserved { level } => level,
            _ => return None,
        };
        let tag = tag(self.geometry, level, domain, page);
        (self.entries.capacity() > 0).then(|| (level, self.entries.insert(tag, reason)))
    }
    pub(super) fn sweep(&mut self, selection: &Selection, reach: Reach) -> u64 {
        let (geometry, largest) = (self.geometry, self.largest_leaf);
        self.entries.sweep(|(level, (domain, prefix)), _| {
            let span = geometry.leaf_span_lg2(*level);
            let within_reach = reach == Reach::LeavesAndWalks || *level <= largest;
            within_reach && selection.meets_span(*domain, *prefix, span)
        })
    }
    pub(super) fn evict(&mut self, random: u64) -> u64 {
        self.entries.evict(random)
    }
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
    pub(super) fn audit(&self) -> Result<(), String> {
        self.entries.audit()
    }
}

fn tag(geometry: Geometry, level: u32, domain: DomainId, page: IovaPage) -> (u32, WalkTag) {
    (level, (domain, page.0 >> geometry.leaf_span_lg2(level)))
}
