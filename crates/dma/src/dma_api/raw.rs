// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The address API: for interfaces that pass addresses in place of tokens.
//!
//! [`Client::into_raw`] keeps a mapping's token in a table by its IOVA, and [`Client::unmap_raw`]
//! takes it out again if address and length are what they were, and the direction where the
//! interface has one; so a second unmap finds nothing, and a wrong one changes nothing.
//! [`AnyClient::map_raw`] does both, mapping and giving up, for a buffer that is named by a
//! pointer.
//!
//! Locking: that of the table (`raw_table`); nothing is mapped, copied or unmapped under it.

use super::{raw_table::Meant, *};
use crate::{domain::UnmapError, units::*};

/// What a mapping of the address API names: one buffer, for which nothing is allocated, or several.
#[derive(PartialEq, Eq, Debug)]
pub enum RawList {
    /// One buffer.
    One(PhysRange),
    /// A list of them.
    Many(Vec<PhysRange>),
    /// A list that its driver keeps, for which nothing is allocated either.
    Shared(Arc<[PhysRange]>),
}

impl AsRef<[PhysRange]> for RawList {
    #[inline]
    fn as_ref(&self) -> &[PhysRange] {
        match self {
            RawList::One(buffer) => core::slice::from_ref(buffer),
            RawList::Many(list) => list,
            RawList::Shared(list) => list,
        }
    }
}

impl From<PhysRange> for RawList {
    fn from(buffer: PhysRange) -> Self {
        RawList::One(buffer)
    }
}

impl From<Arc<[PhysRange]>> for RawList {
    fn from(list: Arc<[PhysRange]>) -> Self {
        RawList::Shared(list)
    }
}

impl From<Vec<PhysRange>> for RawList {
    fn from(list: Vec<PhysRange>) -> Self {
        RawList::Many(list)
    }
}

/// The heap has no memory to note the mapping; here it is back.
#[derive(PartialEq, Eq, Debug, thiserror::Error)]
#[error("no memory to note the mapping at {}", .0.iova())]
pub struct IntoRawError(pub DmaMapping<Lent<RawList>>);

/// Why the address API refused.
#[derive(PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // its fields say it
pub enum RawDmaError {
    /// Nothing that was given up is mapped at that address: it was unmapped already, or never was.
    #[error("no mapping was given up at {0}")]
    NotMapped(Iova),
    /// It has another length. Nothing was changed.
    #[error("the mapping at {iova} is of {mapped} bytes, not of {given}")]
    WrongLength {
        iova: Iova,
        /// How long it is.
        mapped: ByteCount,
        /// The length that the caller gave.
        given: ByteCount,
    },
    /// It has another direction. Nothing was changed.
    #[error("the mapping at {iova} is {mapped:?}, not {given:?}")]
    WrongDirection {
        iova: Iova,
        /// The direction of the mapping.
        mapped: Direction,
        /// The direction that the caller gave.
        given: Direction,
    },
    /// It cannot be mapped, as the error says; nothing is.
    #[error(transparent)]
    Map(#[from] DmaMapError),
    /// The domain maps the segments of a list otherwise than one behind the other
    /// ([`ListOrder::Descending`](crate::domain::ListOrder), [`Placement::SingleUse`]), and the
    /// buffer has several. Nothing was changed.
    #[error("the domain does not map the segments of a buffer in a row")]
    NotInARow,
    /// The mapping was found, or is one that cannot be given up, and ending it failed.
    #[error(transparent)]
    Unmap(#[from] DmaUnmapError<Lent<RawList>>),
    /// The array was found, and an invalidation failed: its memory is never used again.
    #[error(transparent)]
    Free(#[from] UnmapError),
    /// The mapping was found, and is not this client's, or synchronising it failed.
    #[error(transparent)]
    Sync(#[from] SyncError),
}

impl<P: CopyMemory, T: Translator<P>, D: Watch<P>> Client<P, T, D> {
    /// Gives a mapping's token up: from now on its address and length end it.
    ///
    /// # Errors
    /// [`IntoRawError`]; the mapping is as it was.
    #[allow(clippy::result_large_err)] // a box would need the memory that there is not
    pub fn into_raw<L: Into<RawList>>(
        &self,
        mapping: DmaMapping<Lent<L>>,
    ) -> Result<(Iova, ByteCount), IntoRawError> {
        let mapping = mapping.map_list(|lent| Lent::ours(lent.into_inner().into()));
        let raw = (mapping.iova(), mapping.len());
        self.dma()
            .raw
            .put(self.number(), mapping)
            .map_err(IntoRawError)?;
        Ok(raw)
    }

    /// Ends the mapping of `len` bytes at `iova`. Its direction is checked, unless `None` is given,
    /// for interfaces that do not say.
    ///
    /// # Errors
    /// [`RawDmaError`]; but for [`RawDmaError::Unmap`], nothing has changed.
    pub fn unmap_raw(
        &self,
        iova: Iova,
        len: ByteCount,
        direction: impl Into<Option<Direction>>,
    ) -> Result<(), RawDmaError> {
        self.unmap(self.taken(iova, len, direction.into())?)?;
        Ok(())
    }

    /// The same, but brings nothing back (`DMA_ATTR_SKIP_CPU_SYNC`): for an interface whose drivers
    /// [synchronise](Self::sync_raw) what they want to see, and may have changed the buffer since.
    ///
    /// # Errors
    /// As [`unmap_raw`](Self::unmap_raw).
    pub fn unmap_raw_unsynced(
        &self,
        iova: Iova,
        len: ByteCount,
        direction: impl Into<Option<Direction>>,
    ) -> Result<(), RawDmaError> {
        self.end_unsynced(self.taken(iova, len, direction.into())?)?;
        Ok(())
    }

    /// Ends whatever of its own this client, or a clone of it, has given up and that lives still,
    /// and brings nothing back: for an interface whose drivers go without ending it, after their
    /// device was reset. Memory that was lent may be gone by then.
    ///
    /// What is synchronised or given up meanwhile may live on. It looks at all places that there
    /// are for mappings of the [`Dma`], a sixteenth of them under one lock.
    ///
    /// # Errors
    /// The first [`RawDmaError::Unmap`]; of the others, too, all were tried.
    pub fn unmap_raw_all(&self) -> Result<(), RawDmaError> {
        let mut ended = Ok(());
        for token in self.dma().raw.take_all(self.number(), self.key) {
            ended = ended.and(self.end_unsynced(token).map(drop));
        }
        Ok(ended?)
    }

    /// Takes the token of a mapping that is to end.
    #[inline(always)] // so that it is moved once
    fn taken(
        &self,
        iova: Iova,
        len: ByteCount,
        direction: Option<Direction>,
    ) -> Result<DmaMapping<Lent<RawList>>, RawDmaError> {
        let meant = self.meant(iova, Some(len), direction);
        match self.dma().raw.take(&meant) {
            Ok(token) => Ok(token),
            Err(why) => {
                self.tell(&meant, &why);
                Err(why)
            }
        }
    }

    /// Synchronises `span` of the mapping at `iova`, for the side that `to` names. Its direction is
    /// checked as by [`unmap_raw`](Self::unmap_raw).
    ///
    /// # Errors
    /// [`RawDmaError`]; the mapping lives on.
    pub fn sync_raw(
        &self,
        iova: Iova,
        span: Span,
        direction: impl Into<Option<Direction>>,
        to: SyncFor,
    ) -> Result<(), RawDmaError> {
        // out of the table meanwhile, as nothing is copied with a lock held: an unmap that comes
        // then finds nothing
        let meant = self.meant(iova, None, direction.into());
        let borrowed = self.dma().raw.borrow(&meant);
        let (token, place) = borrowed.inspect_err(|why| self.tell(&meant, why))?;
        let synced = match to {
            SyncFor::Cpu => self.sync_for_cpu(&token, span),
            SyncFor::Device => self.sync_for_device(&token, span),
        };
        self.dma().raw.bring_back(token, place);
        Ok(synced?)
    }

    fn meant(&self, iova: Iova, len: Option<ByteCount>, direction: Option<Direction>) -> Meant {
        Meant {
            iova,
            key: self.key,
            len,
            direction,
        }
    }

    /// Tells the watch of a mistake.
    #[cold]
    fn tell(&self, meant: &Meant, why: &RawDmaError) {
        let what = match *why {
            RawDmaError::NotMapped(_) => Mistake::NotMapped,
            RawDmaError::WrongLength { mapped, .. } => Mistake::WrongLength { mapped },
            RawDmaError::WrongDirection { mapped, .. } => Mistake::WrongDirection { mapped },
            _ => return,
        };
        if self.dma().watch.is_on() {
            // what the call did not say is the least that it may have meant
            let len = meant.len.unwrap_or_default();
            let direction = meant.direction.unwrap_or(Direction::Bidirectional);
            let event = self.event(meant.iova, len, direction);
            self.dma().watch.found(&event, what);
        }
    }
}

/// Which side bytes are synchronised for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SyncFor {
    /// The CPU is about to look.
    Cpu,
    /// The device is about to look, or to write.
    Device,
}
