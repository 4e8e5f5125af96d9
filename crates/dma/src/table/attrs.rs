// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What callers decide about a table and its leaves, and what clearing and counting found.

use crate::{iova::AllocKind, units::*};

/// What is decided once for a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TableConfig {
    /// When tables are given back.
    pub reclaim: Reclaim,
    /// Leaves up to this level: 1 is 4 KiB; in VT-d 2 is 2 MiB and 3 is 1 GiB. Held at what
    /// unit and format have.
    pub largest_leaf: u32,
}

setters!(const TableConfig {
    reclaim: Reclaim,
    largest_leaf: u32,
});

/// When a table that maps nothing any more is given back, before its domain ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Reclaim {
    /// If one unmap covers all that it maps: Linux's rule (ATC'15 §3.3).
    #[default]
    Covered,
    /// So, and in time also where it was emptied in pieces: each tick looks for such tables
    /// ([`Domain::reclaim_tables`](crate::domain::Domain::reclaim_tables)). No map and no unmap
    /// does more for it.
    Emptied,
    /// Never, unless a large leaf is to take its place.
    Never,
}

impl TableConfig {
    /// Linux's rule, and leaves of 4 KiB.
    pub const DEFAULT: Self = TableConfig {
        reclaim: Reclaim::Covered,
        largest_leaf: 1,
    };
}

impl Default for TableConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// How long a mapping is likely to live.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Lifetime {
    /// Nothing is known of it.
    #[default]
    Normal,
    /// A few accesses: a hint to units that can evict such translations early (VT-d 4.1
    /// §9.8, TM; WIOSCA'10 §4.1).
    Transient,
}

/// What the leaves of one mapping have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeafAttrs {
    /// What the device may do.
    pub perm: Perm,
    /// How the range was chosen. Leaves of [`AllocKind::Shared`] are counted.
    pub kind: AllocKind,
    /// A hint for the unit.
    pub lifetime: Lifetime,
}

impl LeafAttrs {
    /// Of a mapping about whose lifetime nothing is known.
    pub fn new(perm: Perm, kind: AllocKind) -> Self {
        LeafAttrs {
            perm,
            kind,
            lifetime: Lifetime::Normal,
        }
    }
}

/// What clearing a range found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cleared {
    /// Pages that had a translation.
    pub found: PageCount,
    /// Those that have none any more. Fewer than `found` only where leaves are shared.
    pub gone: PageCount,
}

/// What a table holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Census {
    /// Pages with a translation.
    pub pages: PageCount,
    /// Pages mapped: a page whose leaf is shared is here as often as it is mapped.
    pub references: PageCount,
    /// Table frames, root included.
    pub frames: u64,
}
