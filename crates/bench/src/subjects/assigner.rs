// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! An assigner alone: no tables, no policy, nothing to invalidate.

use super::Buffers;
use crate::{Failure, Subject, platform::Slots};
use ioatlas_dma::{
    domain::AssignerConfig,
    iova::{Alone, Limits, Number, Request},
    units::{CpuIndex, IovaRange, PageCount, Perm},
};
use std::sync::Arc;

/// An assigner over an aperture. Pairs are `assign` and `release`, to the CPU that releases.
pub struct AssignerAlone<P: Slots> {
    platform: Arc<P>,
    assigner: Alone<P>,
}

impl<P: Slots> AssignerAlone<P> {
    /// Over `aperture`.
    ///
    /// # Errors
    /// The design cannot work there.
    pub fn new(
        platform: Arc<P>,
        config: AssignerConfig,
        aperture: IovaRange,
    ) -> Result<Self, Failure> {
        let assigner = Alone::new(&*platform, config, aperture).map_err(Failure::new)?;
        Ok(AssignerAlone { platform, assigner })
    }
    /// The assigner, for what it counts.
    pub fn assigner(&self) -> &Alone<P> {
        &self.assigner
    }
    /// The platform.
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
        let number = self.assigner.assign(&self.platform, &request);
        number.map_err(Failure::new)
    }
}

impl<P: Slots> Subject for AssignerAlone<P> {
    type Token = Number;
    type Hand = (CpuIndex, Buffers);

    fn hand(&self, thread: usize) -> Self::Hand {
        (self.platform.enter(), Buffers::new(thread))
    }
    #[inline]
    fn take(&self, hand: &mut Self::Hand, pages: PageCount) -> Result<Number, Failure> {
        // as a domain does
        match self.assigner.assign_at_hand(&self.platform, pages) {
            Some(number) => Ok(number),
            None => self.take_otherwise(hand, pages),
        }
    }
    #[inline]
    fn give(&self, hand: &mut Self::Hand, number: Number) -> Result<(), Failure> {
        self.assigner.release(&self.platform, hand.0, number);
        Ok(())
    }
}
