// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Mappings that end where they are dropped.

use super::{
    any::{Ends, end_by},
    *,
};
use crate::units::{Direction, PhysRange};
use core::ops::Deref;

/// A [`DmaMapping`] that is unmapped where it is dropped: see [`Client::map_guarded`].
#[must_use = "dropped at once, it is mapped and unmapped"]
pub struct Mapped<'c, L: DmaBuffer = Lent<PhysRange>> {
    client: &'c dyn Ends,
    /// There until it ends.
    mapping: Option<DmaMapping<L>>,
}

/// Is told of an unmap that failed where a [`Mapped`], a [`MappedSlice`] or a [`Coherent`] array
/// was dropped, and why.
#[derive(Clone, Copy, Debug)]
pub struct OnDropError(pub fn(&dyn fmt::Display));

impl PartialEq for OnDropError {
    /// Two are the same where the function is.
    fn eq(&self, other: &Self) -> bool {
        core::ptr::fn_addr_eq(self.0, other.0)
    }
}

impl Eq for OnDropError {}

impl<P: CopyMemory, T: Translator<P>, D: Watch<P>> Client<P, T, D> {
    /// Maps a list, or one buffer, until what this returns is dropped. So a driver that leaves a
    /// function by `?` leaves nothing mapped behind.
    ///
    /// Dropping it unmaps as [`unmap`](Self::unmap) does, with all that the policy promises of
    /// that, and may wait for an invalidation. An error is counted then ([`Dma::drop_errors`]) and
    /// told to [`DmaConfig::on_drop_error`]; [`Mapped::unmap`] returns it, and the list.
    ///
    /// ```
    /// # use ioatlas_dma::{dma_api::*, domain::*, platform::*, translator::{Paged, Uncached}, units::*};
    /// # use ioatlas_dma::translator::{TableConfig, VtdSecond48};
    /// # use ioatlas_host::*;
    /// # use std::sync::Arc;
    /// # let p = Arc::new(Host::new(HostConfig::default().frames(64)));
    /// # let table = Paged::<_, VtdSecond48, _>::new(&p, Uncached::<Host>::new(), TableConfig::default())?;
    /// # let domain = Arc::new(Domain::new(p.clone(), table, DomainConfig::default())?);
    /// # let dma = Arc::new(Dma::new(domain, DmaConfig::default()));
    /// # let disk = dma.client(ClientConfig::default())?;
    /// # let page = |at| unsafe { Lent::new(PhysRange::page(PhysPage(at))) };
    /// # let (first, second) = (page(1), page(2));
    /// # fn tell(_: Iova) -> Result<(), std::fmt::Error> { Ok(()) }
    /// let header = disk.map_guarded(first, Direction::ToDevice)?;
    /// let data = disk.map_guarded(second, Direction::FromDevice)?; // or the header is unmapped
    /// tell(header.iova())?; // or both are
    /// tell(data.iova())?;
    /// // ... when the device has answered
    /// let second = data.unmap()?; // no device reaches it any more
    /// # drop((header, second));
    /// # assert_eq!(dma.domain().stats().live, PageCount(0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`DmaMapError`]; nothing is mapped then.
    pub fn map_guarded<L: DmaBuffer>(
        &self,
        list: L,
        direction: Direction,
    ) -> Result<Mapped<'_, L>, DmaMapError> {
        let mapping = self.map_sg(list, direction)?;
        Ok(Mapped::new(self, mapping))
    }
}

impl<'c, L: DmaBuffer> Mapped<'c, L> {
    pub(super) fn new(client: &'c dyn Ends, mapping: DmaMapping<L>) -> Self {
        Mapped {
            client,
            mapping: Some(mapping),
        }
    }

    /// Ends the mapping, and brings back what the device wrote.
    ///
    /// # Errors
    /// As from [`Client::unmap`]; never that the mapping is of another client.
    pub fn unmap(mut self) -> Result<L, DmaUnmapError<L>> {
        end_by(self.client, self.take())
    }

    /// Keeps the mapping beyond this: it has to be given to [`Client::unmap`].
    pub fn into_mapping(mut self) -> DmaMapping<L> {
        self.take()
    }

    fn take(&mut self) -> DmaMapping<L> {
        self.mapping.take().expect("it has not ended")
    }
}

impl<L: DmaBuffer> Deref for Mapped<'_, L> {
    type Target = DmaMapping<L>;
    fn deref(&self) -> &DmaMapping<L> {
        self.mapping.as_ref().expect("it has not ended")
    }
}

impl<L: DmaBuffer> Drop for Mapped<'_, L> {
    fn drop(&mut self) {
        let Some(mapping) = self.mapping.take() else {
            return;
        };
        if let Err(error) = end_by(self.client, mapping) {
            self.client.failed_on_drop(&error);
        }
    }
}
