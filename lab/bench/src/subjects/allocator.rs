// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! An allocator alone: no tables, no policy, nothing to invalidate.

use super::Buffers;
use crate::{Failure, Subject, platform::Slots};
use ioatlas_dma::{
    domain::AllocatorConfig,
    iova::{Alone, Limits, Number, Request},
    units::{CpuIndex, IovaRange, PageCount, Perm},
};
use std::sync::Arc;

/// An allocator over an aperture. Pairs are `alloc` and `free`, to the CPU that frees.
pub struct AllocatorAlone<P: Slots> {
    platform: Arc<P>,
    allocator: Alone<P>,
}

impl<P: Slots> AllocatorAlone<P> {
    /// An allocator of this configuration over `aperture`.
    ///
    /// # Errors
    /// The design cannot work there.
    pub fn new(
        platform: Arc<P>,
        config: AllocatorConfig,
        aperture: IovaRange,
    ) -> Result<Self, Failure> {
        let allocator = Alone::new(&*platform, config, aperture).map_err(Failure::new)?;
        Ok(AllocatorAlone {
            platform,
            allocator,
        })
    }
    /// The allocator, for what it counts.
    pub fn allocator(&self) -> &Alone<P> {
        &self.allocator
    }
    /// The platform that the allocator is of.
    pub fn platform(&self) -> &P {
        &self.platform
    }

    #[inline(never)]
    fn take_otherwise(
        &self,
        (_, buffers): &mut (CpuIndex, Buffers),
        pages: PageCount,
    ) -> Result<Number, Failure> {
        let request = Request {
            pages,
            limits: Limits::NONE,
            contiguous: Some((buffers.next(pages), Perm::Write)),
        };
        let number = self.allocator.alloc(&self.platform, &request);
        number.map_err(Failure::new)
    }
}

impl<P: Slots> Subject for AllocatorAlone<P> {
    type Token = Number;
    type Hand = (CpuIndex, Buffers);

    fn hand(&self, thread: usize) -> Self::Hand {
        (self.platform.enter(), Buffers::new(thread))
    }
    #[inline]
    fn take(&self, hand: &mut Self::Hand, pages: PageCount) -> Result<Number, Failure> {
        // as a domain does
        match self.allocator.alloc_fast(&self.platform, pages) {
            Some(number) => Ok(number),
            None => self.take_otherwise(hand, pages),
        }
    }
    #[inline]
    fn give(&self, hand: &mut Self::Hand, number: Number) -> Result<(), Failure> {
        self.allocator.free(&self.platform, hand.0, number);
        Ok(())
    }
}
