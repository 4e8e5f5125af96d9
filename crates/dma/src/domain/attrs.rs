// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a map may ask for besides its buffer, and how lists are laid out.

use crate::iova::Limits;

/// Limits and hints of one map.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MapAttrs {
    /// Where the device can reach.
    pub limits: Limits,
    /// How long the mapping is likely to live.
    pub lifetime: Lifetime,
}

/// How long a mapping is likely to live.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Lifetime {
    /// Nothing is known.
    #[default]
    Normal,
    /// A few accesses: a hint to units that can evict such translations early (VT-d 4.1 §9.8, TM; WIOSCA'10 §4.1).
    Transient,
}

/// In which order the segments of a list get their IOVAs (WIOSCA'10 §5.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum ListOrder {
    /// The first segment lowest.
    #[default]
    Ascending,
    /// The first segment highest. Inside a segment addresses ascend all the same.
    Descending,
}
