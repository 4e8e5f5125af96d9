// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Frames, by whether hardware may hold a pointer to them.
//!
//! `frame_alloc` gives a [`FreshFrame`]: zeroed, seen by nobody, freed at will (the loser of a
//! compare-and-swap does). Publishing it makes a [`TableFrame`], which has no way back but through
//! `Retired` and `Flushed`: "the page tables that were mapping the IOVA range will not be reclaimed"
//! before the invalidation is done (ATC'15 §5, requirement 2).

use crate::{grace::Flushed, units::PhysPage};

/// A zeroed frame that hardware cannot reach yet.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a dropped frame is lost"]
pub struct FreshFrame(PhysPage);

/// A frame that hardware may reach: a page table, a queue, consistent memory.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a dropped frame is lost"]
pub struct TableFrame(PhysPage);

impl FreshFrame {
    /// For platforms only: `page` is zeroed, and nobody else owns it.
    pub fn new(page: PhysPage) -> Self {
        FreshFrame(page)
    }
    /// Its physical page number.
    pub fn page(&self) -> PhysPage {
        self.0
    }
    /// Hardware may see it from now on.
    pub fn publish(self) -> TableFrame {
        TableFrame(self.0)
    }
}

impl TableFrame {
    /// The frame that an entry of a live table names.
    pub(crate) fn from_entry(page: PhysPage) -> Self {
        TableFrame(page)
    }
    /// Its physical page number.
    pub fn page(&self) -> PhysPage {
        self.0
    }
}

impl Flushed<TableFrame> {
    /// No cache holds a pointer to the frame: the platform may have it back.
    pub fn into_fresh(self) -> FreshFrame {
        FreshFrame(self.into_inner().0)
    }
}
