// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a map may ask for besides its buffer, and how lists are laid out.

use crate::{iova::Limits, table::Lifetime, units::PageCount};

/// Limits and hints of one map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MapAttrs {
    /// Where the device can reach.
    pub limits: Limits,
    /// How long the mapping is likely to live.
    pub lifetime: Lifetime,
}

setters!(const MapAttrs {
    limits: Limits,
    lifetime: Lifetime,
});

impl MapAttrs {
    /// Anywhere, with no hint.
    pub const DEFAULT: Self = MapAttrs {
        limits: Limits::NONE,
        lifetime: Lifetime::Normal,
    };
}

impl Default for MapAttrs {
    fn default() -> Self {
        Self::DEFAULT
    }
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

/// How far from the end of its aperture a domain begins to allocate, so that the pages that each of
/// several domains uses most do not fall into the same sets of an IOTLB:
/// page colouring (WIOSCA'10 §4.2).
///
/// The pages left out stay unused: also a fixed range is refused there. Where the design chooses by
/// addresses (`identity`, `kmalloc`), that is so for its fallback only. Without
/// `Colours` shared with others, a domain is the first, and leaves out none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Offset {
    /// Every domain begins at the same page.
    #[default]
    None,
    /// The k-th of the domains begins this much times k further.
    Fixed(PageCount),
    /// As many pages as the other domains had allocated of consistent memory by the time that this
    /// one was made, with what alignment leaves out.
    Coherent,
}
