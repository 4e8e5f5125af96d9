// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! All that a simulation can be told, with the reference values as defaults.

use crate::geometry::Geometry;
use crate::named::{Named, Part, Toward};
use crate::plan::View;

/// Largest prefetch buffer and walk cache: far above any hardware, and small enough that
/// a mistyped number exhausts no memory.
const MAX_ENTRIES: usize = 1 << 20;

/// What makes a strategy prefetch after an access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Trigger {
    /// A miss, and nothing else.
    Miss,
    /// A miss or a prefetch hit.
    #[default]
    MissOrPrefetchHit,
}

/// What an unmap does to the walk caches: VT-d's invalidation hint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum InvalidationHint {
    /// IH = 1: only leaves changed, so they stay.
    #[default]
    LeavesOnly,
    /// IH = 0: all entries of the domain go.
    WalkCachesToo,
}

/// An option is out of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // its fields say it
pub enum SetupError {
    /// Too few or too many levels.
    #[error("a page table of {levels} levels: 2 to 6 can be simulated")]
    Levels { levels: usize },
    /// No walk cache is there.
    #[error("walk cache of level {level}: there are L2 to L6, of tables above the leaf")]
    WalkCacheLevel { level: usize },
    /// A cache beyond what the simulator accepts.
    #[error("{entries} entries are more than the {MAX_ENTRIES} that can be simulated")]
    TooLarge { entries: usize },
}

/// Page-table levels and walk caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Walks {
    levels: usize,
    entries: [usize; Self::MAX_LEVELS + 1],
    /// What an unmap does to the walk caches.
    pub hint: InvalidationHint,
}

impl Default for Walks {
    /// Four levels, no walk caches.
    fn default() -> Self {
        Self {
            levels: 4,
            entries: [0; Self::MAX_LEVELS + 1],
            hint: InvalidationHint::default(),
        }
    }
}

impl Walks {
    pub(crate) const MAX_LEVELS: usize = 6;

    /// With another number of page-table levels.
    ///
    /// # Errors
    ///
    /// Below 2 or above 6.
    pub fn with_levels(mut self, levels: usize) -> Result<Self, SetupError> {
        if !(2..=Self::MAX_LEVELS).contains(&levels) {
            return Err(SetupError::Levels { levels });
        }
        self.levels = levels;
        Ok(self)
    }

    /// With a cache of `entries` entries for tables of level `level`; 0 is none. A cache
    /// of a level that the table does not have is not used.
    ///
    /// # Errors
    ///
    /// If the level is below 2 or above 6, or the entries above 2^20.
    pub fn with_cache(mut self, level: usize, entries: usize) -> Result<Self, SetupError> {
        if !(2..=Self::MAX_LEVELS).contains(&level) {
            return Err(SetupError::WalkCacheLevel { level });
        }
        if entries > MAX_ENTRIES {
            return Err(SetupError::TooLarge { entries });
        }
        self.entries[level] = entries;
        Ok(self)
    }

    /// Levels of the page table, 2 to 6.
    #[must_use]
    pub const fn levels(&self) -> usize {
        self.levels
    }

    /// Entries of the walk cache of a level, 2 to 6; 0 is none.
    #[must_use]
    pub fn entries(&self, level: usize) -> usize {
        self.entries.get(level).copied().unwrap_or(0)
    }
}

/// What one simulation runs: a strategy and the hardware under it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // its fields say it
pub struct Setup {
    pub strategy: Named,
    pub geometry: Geometry,
    pub buffer: BufferSize,
    /// What makes strategies prefetch.
    pub trigger: Trigger,
    /// The side to which `sd-alh` prefetches.
    pub toward: Toward,
    /// Page table and walk caches.
    pub walks: Walks,
}

/// Number of entries in the prefetch buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferSize(usize);

impl Default for BufferSize {
    /// 4, as WIOSCA'10 assumes.
    fn default() -> Self {
        Self(4)
    }
}

impl BufferSize {
    /// A buffer of so many entries; 0 is none.
    pub const fn new(entries: usize) -> Result<Self, SetupError> {
        if entries > MAX_ENTRIES {
            return Err(SetupError::TooLarge { entries });
        }
        Ok(Self(entries))
    }

    /// Number of entries; 0 is no buffer.
    #[must_use]
    pub const fn entries(self) -> usize {
        self.0
    }
}

impl Setup {
    /// A strategy with everything else at the reference values.
    #[must_use]
    pub fn of(strategy: Named) -> Self {
        Self {
            strategy,
            ..Self::default()
        }
    }

    /// The same with another IOTLB.
    #[must_use]
    pub fn with_geometry(mut self, geometry: Geometry) -> Self {
        self.geometry = geometry;
        self
    }

    /// Entries of the prefetch buffer: `8-prefetch` wins over what was given.
    #[must_use]
    pub fn buffer_entries(&self) -> usize {
        if self.strategy.has(Part::EightPrefetch) {
            8
        } else {
            self.buffer.entries()
        }
    }

    pub(crate) fn view(&self) -> View {
        View {
            superpages: self.strategy.has(Part::Superpage),
            mirrored: self.strategy.has(Part::Descending),
        }
    }
}
