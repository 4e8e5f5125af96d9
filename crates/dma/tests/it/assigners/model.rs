// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What an assigner is compared with: ranges that are leased, in a `BTreeMap`.

use crate::assigners::rig::range;
use ioatlas_dma::iova::*;
use ioatlas_dma::units::*;
use std::collections::BTreeMap;

/// The slow oracle: which ranges are leased, and nothing else.
pub struct Model {
    pub aperture: IovaRange,
    pub leased: BTreeMap<u64, u64>,
}

impl Model {
    pub fn new(first: u64, pages: u64) -> Self {
        Model {
            aperture: range(first, pages),
            leased: BTreeMap::new(),
        }
    }
    pub fn pages(&self) -> u64 {
        self.leased.values().sum()
    }
    pub fn in_the_way(&self, of: IovaRange) -> Option<IovaRange> {
        let mut all = self
            .leased
            .iter()
            .map(|(first, pages)| range(*first, *pages));
        all.find(|leased| leased.overlaps(&of))
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
    pub fn add(&mut self, lease: &Lease) -> Result<(), String> {
        let new = lease.range();
        if let Some(taken) = self.in_the_way(new) {
            return Err(format!("{new} was given out while {taken} was leased"));
        }
        if !self.aperture.contains(&new) {
            return Err(format!("{new} is outside {}", self.aperture));
        }
        self.leased.insert(new.first.0, new.pages.0);
        Ok(())
    }
    /// As [`add`](Self::add), for a lease that answers an assign of `pages`.
    pub fn add_assigned(&mut self, lease: &Lease, pages: u64) -> Result<(), String> {
        let new = lease.range();
        let natural =
            new.pages == granted(PageCount(pages)) && new.first.0.is_multiple_of(new.pages.0);
        if !natural || new.first.0 == 0 || lease.kind() != LeaseKind::Assigned {
            return Err(format!("{lease:?} answers an assign of {pages} pages"));
        }
        self.add(lease)
    }
}
