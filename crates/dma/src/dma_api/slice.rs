// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Slices of the program's own memory, which no device ever reaches: copies of them are mapped.
//!
//! A `&mut [u8]` is promised to have no other user, so it cannot be mapped where it is: a guard can
//! be forgotten, and the device would write there still. What is mapped is a bounce buffer, by any
//! placement, mostly a slot that is kept mapped from use to use. So there is nothing to promise,
//! and code without `unsafe` may do it; it costs the copy.

use super::{any::Ends, *};
use crate::{
    bounce::{BounceError, Buffer, Need, Pool, ReturnError, Step, map_own},
    domain::BufferError,
    platform::room::boxed,
    units::*,
};
use core::convert::Infallible;

/// A copy of some bytes, which a device reaches, until this is finished or dropped: see
/// [`Client::map_slice`].
#[must_use = "dropped at once, it is mapped and unmapped"]
pub struct MappedSlice<'c, B> {
    client: &'c dyn Ends,
    bytes: Option<B>,
    copy: Copied,
    /// There until it ends.
    buffer: Option<Buffer>,
}

/// Where a copy is, and of what.
#[derive(Clone, Copy)]
pub(super) struct Copied {
    pub iova: Iova,
    pub len: ByteCount,
    pub direction: Direction,
}

impl Copied {
    #[inline]
    fn need(&self) -> Need {
        Need {
            offset: 0,
            len: self.len,
            direction: self.direction,
        }
    }
}

/// A copy of some bytes that a device only reads: see [`Client::map_copy`].
pub type MappedCopy<'c> = MappedSlice<'c, [u8; 0]>;

impl<P: CopyMemory, T: Translator<P>, D: Watch<P>> Client<P, T, D> {
    /// Lets the device reach a copy of `bytes`, until what this returns is finished or dropped.
    /// `bytes` may be borrowed (`&mut [u8]`) or owned (`Vec<u8>`, `Box<[u8]>`, an array); they stay
    /// where they are, and the device never reaches them.
    ///
    /// The copy holds the bytes as they are now where the device reads them
    /// ([`Direction::ToDevice`], [`Direction::Bidirectional`]). [`MappedSlice::finish`] brings back
    /// what the device wrote; where that is nothing, `FromDevice` brings zeroes, and
    /// `Bidirectional` what was there. Dropping it brings nothing back.
    ///
    /// The copy is in the client's bounce pool; where it has none ([`Placement::Never`]), in frames
    /// of its own, which are mapped for this one use. IOVAs follow each other, and the first one
    /// begins a granule of 4 KiB.
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
    /// # let disk = dma.client(ClientConfig::default().placement(Placement::Always))?;
    /// # fn read_block(_: u64, _: Iova) -> Result<(), std::fmt::Error> { Ok(()) }
    /// let mut block = [1; 512];
    /// let mapped = disk.map_slice(&mut block, Direction::FromDevice)?;
    /// read_block(7, mapped.iova())?; // or it is unmapped, and the block as it was
    /// mapped.finish()?;
    /// assert_eq!(block, [0; 512]); // this device wrote nothing
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`DmaMapError`]; nothing is mapped then, and owned bytes are dropped.
    #[inline]
    pub fn map_slice<B: AsMut<[u8]>>(
        &self,
        mut bytes: B,
        direction: Direction,
    ) -> Result<MappedSlice<'_, B>, DmaMapError> {
        let (copy, buffer) = self.bounce_slice(bytes.as_mut(), direction)?;
        Ok(MappedSlice::new(self, bytes, copy, buffer))
    }

    /// Lets the device read a copy of `bytes` as they are now. They are the caller's again when
    /// this returns.
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
    /// # let nic = dma.client(ClientConfig::default().placement(Placement::Always))?;
    /// # fn send(_: Iova, _: ByteCount) {}
    /// let packet = nic.map_copy(b"a packet")?;
    /// send(packet.iova(), packet.len());
    /// // ... when the device has sent it
    /// packet.finish()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`DmaMapError`]; nothing is mapped then.
    #[inline]
    pub fn map_copy(&self, bytes: &[u8]) -> Result<MappedCopy<'_>, DmaMapError> {
        let (copy, buffer) = self.bounce_slice(bytes, Direction::ToDevice)?;
        Ok(MappedSlice::new(self, [], copy, buffer))
    }

    /// A copy of `bytes`, and where the device finds it.
    #[inline]
    pub(super) fn bounce_slice(
        &self,
        bytes: &[u8],
        direction: Direction,
    ) -> Result<(Copied, Buffer), DmaMapError> {
        let mut copy = Copied {
            iova: Iova(0),
            len: ByteCount(bytes.len() as u64),
            direction,
        };
        let need = copy.need();
        let limits = &self.config().limits;
        // as in `map`; not every class has slots that keep these limits
        if let Some(pool) = &self.pool
            && !bytes.is_empty()
            && limits.align_lg2 == 0
            && limits.boundary_lg2.is_none()
            && !self.dma.watch.is_on()
            && let Some((iova, slot)) = pool.bounce_fast(&self.dma.domain, bytes, &need)
        {
            copy.iova = iova;
            return Ok((copy, Buffer::Slot(slot)));
        }
        let (iova, buffer) = self.bounce_slice_slow(bytes, &need)?;
        copy.iova = iova;
        Ok((copy, buffer))
    }

    #[inline(never)]
    fn bounce_slice_slow(&self, bytes: &[u8], need: &Need) -> Result<(Iova, Buffer), DmaMapError> {
        if bytes.is_empty() {
            return Err(BufferError::Empty { segment: 0 }.into());
        }
        let (iova, buffer) = match &self.pool {
            Some(pool) => self.bounce_slice_in(pool, bytes, need)?,
            None => self.map_slice_once(bytes, need)?,
        };
        if self.dma.watch.is_on() {
            let event = self.event(iova, need.len, need.direction);
            self.dma.watch.mapped(&event, &[]);
        }
        Ok((iova, buffer))
    }

    fn bounce_slice_in(
        &self,
        pool: &Pool<P>,
        bytes: &[u8],
        need: &Need,
    ) -> Result<(Iova, Buffer), DmaMapError> {
        let attrs = self.config().map_attrs(DmaAttrs::default());
        let taken = pool.take(&self.dma.domain, need, &attrs);
        let buffer = taken.inspect_err(|_| pool.count(self.platform(), Step::NoSpace))?;
        self.filled(pool, buffer, need, bytes)
    }

    /// Without a pool.
    #[cold]
    fn map_slice_once(&self, bytes: &[u8], need: &Need) -> Result<(Iova, Buffer), DmaMapError> {
        let attrs = self.config().map_attrs(DmaAttrs::default());
        let domain = &self.dma.domain;
        let own = boxed(|| map_own(domain, need.offset, need.len, need.direction, attrs));
        let own = own.map_err(|lack| BounceError::once(need.len, lack))?;
        if let Err(hole) = own.fill(self.platform(), bytes, need.direction) {
            // as there is nothing to bring back; what cannot be flushed is quarantined
            let none: &[PhysRange] = &[];
            let _ = own.into_inner().end(domain, none, Direction::ToDevice);
            return Err(hole.into());
        }
        Ok((own.mapping.iova(), Buffer::Own(own)))
    }

    /// Ends a copy.
    #[inline]
    pub(super) fn end_copy(
        &self,
        copy: &Copied,
        buffer: Buffer,
        into: &mut [u8],
    ) -> Result<(), ReturnError> {
        match (buffer, &self.pool) {
            (Buffer::Slot(slot), Some(pool)) if !self.dma.watch.is_on() => {
                Ok(pool.give_fast(&self.dma.domain, slot, &copy.need(), into)?)
            }
            (buffer, _) => self.end_copy_slow(copy, buffer, into),
        }
    }

    #[inline(never)]
    fn end_copy_slow(
        &self,
        copy: &Copied,
        buffer: Buffer,
        into: &mut [u8],
    ) -> Result<(), ReturnError> {
        let (domain, need) = (&self.dma.domain, copy.need());
        let end = || match (buffer, &self.pool) {
            (buffer, Some(pool)) => pool.give(domain, buffer, &need, into),
            (Buffer::Own(own), None) => own.into_inner().end(domain, into, need.direction),
            // of a pool, which the client has then
            (_, None) => Ok(()),
        };
        match self.dma.watch.is_on() {
            true => self.watched(copy.iova, copy.len, copy.direction, end),
            false => end(),
        }
    }
}

impl<'c, B> MappedSlice<'c, B> {
    #[inline]
    pub(super) fn new(client: &'c dyn Ends, bytes: B, copy: Copied, buffer: Buffer) -> Self {
        MappedSlice {
            client,
            bytes: Some(bytes),
            copy,
            buffer: Some(buffer),
        }
    }
    /// The address of the first byte, to give to the device.
    pub fn iova(&self) -> Iova {
        self.copy.iova
    }
    /// How many bytes it is.
    pub fn len(&self) -> ByteCount {
        self.copy.len
    }
    /// Never: an empty slice is not mapped.
    pub fn is_empty(&self) -> bool {
        false
    }
}

impl<B: AsMut<[u8]>> MappedSlice<'_, B> {
    /// Ends it, brings back what the device wrote, and returns the bytes.
    ///
    /// # Errors
    /// [`DmaUnmapError::Direct`], if a copy that was mapped for this one use could not be unmapped
    /// or flushed: the bytes have come back, owned ones are dropped, and the device may still reach
    /// the copy, whose memory is never used again.
    #[inline]
    pub fn finish(mut self) -> Result<B, DmaUnmapError<Infallible>> {
        let ended = "it has not ended";
        let mut bytes = self.bytes.take().expect(ended);
        let into = bytes.as_mut();
        let buffer = self.buffer.take().expect(ended);
        match self.client.end_copy(&self.copy, buffer, into) {
            Ok(()) => Ok(bytes),
            Err(ReturnError::Unmap(error)) => Err(DmaUnmapError::Direct(error)),
            Err(ReturnError::NotMemory(hole)) => Err(hole.into()),
        }
    }
}

impl<B> Drop for MappedSlice<'_, B> {
    #[inline]
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take()
            && let Err(error) = self.client.end_copy(&self.copy, buffer, &mut [])
        {
            self.client.failed_on_drop(&error);
        }
    }
}
