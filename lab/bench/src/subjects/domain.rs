// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A whole domain: allocator, tables and policy.

use super::Buffers;
use crate::{Failure, Subject, platform::Slots};
use ioatlas_dma::{
    design::Design,
    domain::{Domain, Mapping},
    table::Format,
    translator::{Paged, Translator, Uncached},
    units::{ByteCount, Direction, GRANULE, PageCount, PhysRange},
};
use std::sync::Arc;

/// A domain. Pairs are `map` and `unmap` of one buffer, for the device to write to, a burst is
/// ended by `unmap_batch`; no timer ticks, so deferred policies flush by their bound in operations
/// alone.
pub struct Whole<P: Slots, T: Translator<P>>(pub Domain<P, T>);

impl<P: Slots, F: Format> Whole<P, Paged<P, F, Arc<Uncached<P>>>> {
    /// Over real tables, under a unit that caches nothing: every invalidation is done at once, and
    /// no time of a unit is in the figure.
    ///
    /// # Errors
    /// The design cannot work there.
    pub fn uncached(platform: Arc<P>, design: Design) -> Result<Self, Failure> {
        let unit = Arc::new(Uncached::new());
        let tables = Paged::new(&platform, unit, design.tables).map_err(Failure::new)?;
        let domain = Domain::new(platform, tables, design.domain).map_err(Failure::new)?;
        Ok(Whole(domain))
    }
}

impl<P: Slots, T: Translator<P>> Subject for Whole<P, T> {
    type Token = Mapping;
    type Hand = Buffers;

    fn hand(&self, thread: usize) -> Buffers {
        self.0.platform().enter();
        Buffers::new(thread)
    }
    #[inline]
    fn take(&self, buffers: &mut Buffers, pages: PageCount) -> Result<Mapping, Failure> {
        let first = buffers.next(pages);
        let buffer = PhysRange::new(first.addr(), ByteCount(pages.0 * GRANULE));
        let mapping = self.0.map(buffer, Direction::FromDevice);
        mapping.map_err(Failure::new)
    }
    /// Without a copy between, as in a driver that keeps what it gets; and without a call, as
    /// this is the driver.
    #[inline(always)]
    fn take_into(
        &self,
        buffers: &mut Buffers,
        pages: PageCount,
        place: &mut Option<Mapping>,
    ) -> Result<(), Failure> {
        let first = buffers.next(pages);
        let buffer = PhysRange::new(first.addr(), ByteCount(pages.0 * GRANULE));
        match self.0.map(buffer, Direction::FromDevice) {
            Ok(mapping) => {
                *place = Some(mapping);
                Ok(())
            }
            Err(why) => Err(Failure::new(why)),
        }
    }
    #[inline(always)]
    fn give(&self, _: &mut Buffers, mapping: Mapping) -> Result<(), Failure> {
        self.0.unmap(mapping).map_err(Failure::new)
    }
    fn give_all(
        &self,
        _: &mut Buffers,
        mappings: &mut impl Iterator<Item = Mapping>,
    ) -> Result<(), Failure> {
        self.0.unmap_batch(mappings).map_err(Failure::new)
    }
}
