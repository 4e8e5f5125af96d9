// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Unmapping several mappings without waiting for the unit: what is pending owns the lists, so that
//! none comes back that a device may reach.
#![allow(clippy::result_large_err)] // they have what comes back, and nothing is allocated to box it

use super::{unmap_batch::Lists, *};
use crate::domain::PendingUnmap;
#[cfg(doc)]
use crate::domain::UNMAP_ROUND;
use core::iter;

/// Mappings of a client whose unmap has begun, with their lists: see [`Client::unmap_start`].
///
/// It may be sent to another thread, and finished there. Dropping it finishes it, and drops the
/// lists that no device reaches; those that one may reach are never dropped.
#[must_use = "the mappings have ended when this is finished, and only then"]
pub struct DmaPendingUnmap<'c, P: CopyMemory, T: Translator<P>, L> {
    direct: PendingUnmap<'c, P, T>,
    lists: Lists<L>,
    stopped: Option<DmaUnmapError<L>>,
}

impl<P: CopyMemory, T: Translator<P>, D: Watch<P>> Client<P, T, D> {
    /// Begins to end the mappings that `mappings` yields, [`UNMAP_ROUND`] of them at most, and does
    /// not wait for the unit. Their lists come back from [`DmaPendingUnmap::finish`] and from
    /// nothing else: until then a device may reach what is mapped directly.
    ///
    /// What is mapped directly goes by [`Domain::unmap_start`]. What is not ends here, and its
    /// bytes are back; its list comes with the others, in order. While a watch is on, all of them
    /// end here.
    ///
    /// May be called in an interrupt handler, on any CPU, and finished on another. Where `mappings`
    /// panics, what it has yielded is unmapped, and its lists are leaked.
    ///
    /// ```
    /// # use ioatlas_dma::{dma_api::*, domain::*, platform::*, translator::{Paged, Uncached}, units::*};
    /// # use ioatlas_dma::translator::{TableConfig, VtdSecond48};
    /// # use ioatlas_host::*;
    /// # use std::{collections::VecDeque, sync::Arc};
    /// # let p = Arc::new(Host::new(HostConfig::default().frames(64)));
    /// # let table = Paged::<_, VtdSecond48, _>::new(&p, Uncached::<Host>::new(), TableConfig::default())?;
    /// # let domain = Arc::new(Domain::new(p.clone(), table, DomainConfig::default())?);
    /// # let dma = Arc::new(Dma::new(domain, DmaConfig::default()));
    /// # let nic = dma.client(ClientConfig::default().placement(Placement::Never))?;
    /// # let buffer = |nth: u64| unsafe { Lent::new(PhysRange::page(PhysPage(0x100 + nth))) };
    /// let map = |nth| nic.map_single(buffer(nth), Direction::FromDevice);
    /// let mut ring: VecDeque<_> = (0..256).map(map).collect::<Result<_, _>>()?;
    /// let pending = nic.unmap_start(&mut ring.drain(..32));
    /// for nth in 256..288 {
    ///     ring.push_back(map(nth)?); // while the unit works
    /// }
    /// let mut packets = Vec::new();
    /// pending.finish(|buffer| packets.push(buffer)).expect("the unit answers");
    /// assert_eq!(packets.len(), 32);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn unmap_start<L: DmaBuffer>(
        &self,
        mappings: &mut impl Iterator<Item = DmaMapping<L>>,
    ) -> DmaPendingUnmap<'_, P, T, L> {
        let mut lists = Lists::new();
        let mut stopped = None;
        let mut mappings = mappings.fuse();
        let mut direct =
            iter::from_fn(|| self.next_direct(&mut mappings, &mut lists, &mut stopped));
        let direct = self.dma.domain.unmap_start(&mut direct);
        DmaPendingUnmap {
            direct,
            lists,
            stopped,
        }
    }
}

impl<P: CopyMemory, T: Translator<P>, L> DmaPendingUnmap<'_, P, T, L> {
    /// As [`PendingUnmap::is_done`]. No list comes back by it.
    pub fn is_done(&mut self) -> bool {
        self.direct.is_done()
    }

    /// Waits for the unit, as [`PendingUnmap::finish`] does, and gives the lists to `back` that no
    /// device reaches any more, in order; returns how many.
    ///
    /// # Errors
    /// [`DmaUnmapBatchError`], as from [`Client::unmap_batch`].
    pub fn finish(mut self, back: impl FnMut(L)) -> Result<usize, DmaUnmapBatchError<L>> {
        self.end(back)
    }

    fn end(&mut self, back: impl FnMut(L)) -> Result<usize, DmaUnmapBatchError<L>> {
        let unmapped = self.direct.end();
        self.lists.ended(unmapped, self.stopped.take(), back)
    }
}

impl<P: CopyMemory, T: Translator<P>, L> Drop for DmaPendingUnmap<'_, P, T, L> {
    fn drop(&mut self) {
        let _ = self.end(drop);
    }
}
