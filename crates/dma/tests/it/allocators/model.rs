// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What an allocator is compared with: ranges that are allocated, in a `BTreeMap`.

use crate::allocators::rig::range;
use ioatlas_dma::iova::*;
use ioatlas_dma::units::*;
use std::collections::BTreeMap;

/// The slow oracle: which ranges are allocated, and nothing else.
pub struct Model {
    pub aperture: IovaRange,
    pub allocated: BTreeMap<u64, u64>,
}

impl Model {
    pub fn new(first: u64, pages: u64) -> Self {
        Model {
            aperture: range(first, pages),
            allocated: BTreeMap::new(),
        }
    }
    pub fn pages(&self) -> u64 {
        self.allocated.values().sum()
    }
    pub fn in_the_way(&self, of: IovaRange) -> Option<IovaRange> {
        let mut all = self
            .allocated
            .iter()
            .map(|(first, pages)| range(*first, *pages));
        all.find(|allocated| allocated.overlaps(&of))
    }
    /// Whether some aligned place for `pages` is free, page 0 not counted.
    pub fn has_room(&self, pages: u64) -> bool {
        self.has_room_where(pages, |_| true)
    }
    /// The same of the places that `fits` takes.
    pub fn has_room_where(&self, pages: u64, fits: impl Fn(IovaRange) -> bool) -> bool {
        self.places(pages, fits)
            .any(|place| self.in_the_way(place).is_none())
    }
    /// All aligned places for `pages` that `fits` takes, were everything free.
    pub fn places(
        &self,
        pages: u64,
        fits: impl Fn(IovaRange) -> bool,
    ) -> impl Iterator<Item = IovaRange> {
        let pages = pages.next_power_of_two();
        let IovaRange { first, .. } = self.aperture;
        let lowest = first.0.max(1).next_multiple_of(pages);
        let firsts = (lowest..self.aperture.end().0).step_by(pages as usize);
        let places = firsts.map(move |first| range(first, pages));
        places.filter(move |place| self.aperture.contains(place) && fits(*place))
    }
    pub fn add(&mut self, alloc: &IovaAlloc) -> Result<(), String> {
        let new = alloc.range();
        if let Some(taken) = self.in_the_way(new) {
            return Err(format!("{new} was given out while {taken} was allocated"));
        }
        if !self.aperture.contains(&new) {
            return Err(format!("{new} is outside {}", self.aperture));
        }
        self.allocated.insert(new.first.0, new.pages.0);
        Ok(())
    }
    /// As [`add`](Self::add), for an allocation that answers an allocation of `pages`.
    pub fn add_assigned(&mut self, alloc: &IovaAlloc, pages: u64) -> Result<(), String> {
        let new = alloc.range();
        let natural =
            new.pages == granted(PageCount(pages)) && new.first.0.is_multiple_of(new.pages.0);
        if !natural || new.first.0 == 0 || alloc.kind() != AllocKind::Dynamic {
            return Err(format!("{alloc:?} answers an allocation of {pages} pages"));
        }
        self.add(alloc)
    }
}
