// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What an invalidation covers, and what a retired thing needs covered.

use crate::units::IovaRange;
use core::fmt;

/// Pages, or the whole domain; leaves only, or walk caches too.
///
/// A page-selective invalidation proves nothing about other pages, and one with the leaf-only hint
/// (VT-d 4.1 §6.5.2.3, IH = 1) nothing about cached non-leaf entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scope {
    /// The pages, or `None` for the whole domain.
    pub pages: Option<IovaRange>,
    /// Which of the unit's caches.
    pub caches: Caches,
}

/// The caches an invalidation reaches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Caches {
    /// The IOTLB: translations of leaves.
    Leaves,
    /// The IOTLB and the walk caches.
    LeavesAndWalks,
}

impl Scope {
    /// Everything that the domain's tag names.
    pub const DOMAIN: Scope = Scope {
        pages: None,
        caches: Caches::LeavesAndWalks,
    };
    /// Leaves of `range`; no non-leaf entry changed.
    pub const fn leaves(range: IovaRange) -> Self {
        Scope {
            pages: Some(range),
            caches: Caches::Leaves,
        }
    }
    /// Leaves of `range`, and non-leaf entries on the way to them.
    pub const fn tables(range: IovaRange) -> Self {
        Scope {
            pages: Some(range),
            caches: Caches::LeavesAndWalks,
        }
    }
    /// Whether an invalidation of `self` removes all that `need` names.
    pub fn covers(&self, need: &Scope) -> bool {
        self.caches >= need.caches
            && match (&self.pages, &need.pages) {
                (None, _) => true,
                (Some(_), None) => false,
                (Some(ours), Some(theirs)) => ours.contains(theirs),
            }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pages {
            None => write!(f, "the domain"),
            Some(range) => write!(f, "pages {range}"),
        }?;
        match self.caches {
            Caches::Leaves => write!(f, ", leaves only"),
            Caches::LeavesAndWalks => write!(f, ", walk caches too"),
        }
    }
}
