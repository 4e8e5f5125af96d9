// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A client whose platform and translator do not show in its type.
//!
//! A driver that is to run on several of them (a kernel, VFIO, the machine of its tests) would be
//! generic over both. [`AnyClient`] is one name for all: the same client behind an indirect call
//! for each map, and one for each unmap. What it does not have (streams, batches, typed buffers)
//! the [`Client`] has that it is made of.
//!
//! Guards ([`Mapped`], [`MappedSlice`]) end by such a call whatever they are of, and so have no
//! such types either.

use super::{coherent::Shared, mapping::Seen, slice::Copied, *};
use crate::{
    bounce::{Buffer, ReturnError},
    domain::{MapError, UnmapError},
    units::*,
};
use alloc::boxed::Box;
use core::{mem::ManuallyDrop, ptr::NonNull};
use zerocopy::{FromBytes, IntoBytes};

/// What ends a mapping, whatever its types are.
pub(super) trait Ends: Send + Sync {
    /// [`Client::unmap`] of a mapping of `list`.
    fn end(&self, mapping: DmaMapping<()>, list: &[PhysRange]) -> Result<(), DmaUnmapError<()>>;
    /// Brings back what a device wrote to a copy, and ends that.
    fn end_copy(&self, copy: &Copied, buffer: Buffer, into: &mut [u8]) -> Result<(), ReturnError>;
    /// Where something is dropped.
    fn failed_on_drop(&self, error: &dyn fmt::Display);
}

/// Ends a mapping by whatever `client` is.
pub(super) fn end_by<L: DmaBuffer>(
    client: &dyn Ends,
    mapping: DmaMapping<L>,
) -> Result<L, DmaUnmapError<L>> {
    let (list, mapping) = mapping.bare();
    match client.end(mapping, list.segments()) {
        Ok(()) => Ok(ManuallyDrop::into_inner(list)),
        Err(DmaUnmapError::Foreign(mapping)) => {
            Err(DmaUnmapError::Foreign(Box::new(mapping.of(list))))
        }
        // the device may reach the list still, so what owns it is never dropped
        Err(DmaUnmapError::Direct(error)) => Err(DmaUnmapError::Direct(error)),
        Err(DmaUnmapError::NotMemory(hole)) => {
            drop(ManuallyDrop::into_inner(list));
            Err(hole.into())
        }
    }
}

/// What an [`AnyClient`] does, whatever its types are.
trait Maps: Ends {
    fn config(&self) -> &ClientConfig;
    fn map(
        &self,
        list: &[PhysRange],
        direction: Direction,
        attrs: DmaAttrs,
    ) -> Result<DmaMapping<()>, DmaMapError>;
    fn sync(
        &self,
        mapping: &Seen<'_>,
        list: &[PhysRange],
        span: Span,
        to: SyncFor,
    ) -> Result<(), SyncError>;
    fn copy(&self, bytes: &[u8], direction: Direction) -> Result<(Copied, Buffer), DmaMapError>;
    #[allow(clippy::result_large_err)] // as there
    fn give_up(
        &self,
        mapping: DmaMapping<Lent<RawList>>,
    ) -> Result<(Iova, ByteCount), IntoRawError>;
    fn unmap_raw(
        &self,
        iova: Iova,
        len: ByteCount,
        direction: Option<Direction>,
    ) -> Result<(), RawDmaError>;
    fn unmap_raw_unsynced(
        &self,
        iova: Iova,
        len: ByteCount,
        direction: Option<Direction>,
    ) -> Result<(), RawDmaError>;
    fn unmap_raw_all(&self) -> Result<(), RawDmaError>;
    /// [`Client::end_unsynced`] of a mapping of `list`.
    fn end_unsynced(
        &self,
        mapping: DmaMapping<()>,
        list: &[PhysRange],
    ) -> Result<(), DmaUnmapError<()>>;
    fn sync_raw(
        &self,
        iova: Iova,
        span: Span,
        direction: Option<Direction>,
        to: SyncFor,
    ) -> Result<(), RawDmaError>;
    fn shared(&self, pages: PageCount) -> Result<Shared, MapError>;
    fn alloc_raw(&self, pages: PageCount) -> Result<(Iova, NonNull<u8>), MapError>;
    /// # Safety
    /// As [`Client::free_raw`].
    #[allow(unsafe_code)] // as there
    unsafe fn free_raw(
        &self,
        iova: Iova,
        at: NonNull<u8>,
        pages: PageCount,
    ) -> Result<(), RawDmaError>;
}

fn with_list(mapping: DmaMapping<()>, list: &[PhysRange]) -> DmaMapping<Lent<&[PhysRange]>> {
    mapping.of(ManuallyDrop::new(Lent::ours(list)))
}

/// Its owner has the list.
fn without_list<L>(ended: Result<L, DmaUnmapError<L>>) -> Result<(), DmaUnmapError<()>> {
    match ended {
        Ok(_) => Ok(()),
        Err(DmaUnmapError::Foreign(mapping)) => {
            Err(DmaUnmapError::Foreign(Box::new(mapping.bare().1)))
        }
        Err(DmaUnmapError::Direct(error)) => Err(DmaUnmapError::Direct(error)),
        Err(DmaUnmapError::NotMemory(hole)) => Err(hole.into()),
    }
}

impl<P: CopyMemory, T: Translator<P>, D: Watch<P>> Ends for Client<P, T, D> {
    fn end(&self, mapping: DmaMapping<()>, list: &[PhysRange]) -> Result<(), DmaUnmapError<()>> {
        without_list(self.unmap(with_list(mapping, list)))
    }
    fn end_copy(&self, copy: &Copied, buffer: Buffer, into: &mut [u8]) -> Result<(), ReturnError> {
        Client::end_copy(self, copy, buffer, into)
    }
    fn failed_on_drop(&self, error: &dyn fmt::Display) {
        self.dma.failed_on_drop(error);
    }
}

impl<P, T, D> Maps for Client<P, T, D>
where
    P: CopyMemory + ContiguousMemory,
    T: Translator<P>,
    D: Watch<P> + 'static,
{
    fn config(&self) -> &ClientConfig {
        Client::config(self)
    }
    fn map(
        &self,
        list: &[PhysRange],
        direction: Direction,
        attrs: DmaAttrs,
    ) -> Result<DmaMapping<()>, DmaMapError> {
        let mapping = self.map_with(Lent::ours(list), direction, attrs)?;
        Ok(mapping.bare().1)
    }
    fn sync(
        &self,
        mapping: &Seen<'_>,
        list: &[PhysRange],
        span: Span,
        to: SyncFor,
    ) -> Result<(), SyncError> {
        self.sync_list(mapping, list, span, to)
    }
    fn copy(&self, bytes: &[u8], direction: Direction) -> Result<(Copied, Buffer), DmaMapError> {
        self.bounce_slice(bytes, direction)
    }
    fn give_up(
        &self,
        mapping: DmaMapping<Lent<RawList>>,
    ) -> Result<(Iova, ByteCount), IntoRawError> {
        Client::into_raw(self, mapping)
    }
    fn unmap_raw(
        &self,
        iova: Iova,
        len: ByteCount,
        direction: Option<Direction>,
    ) -> Result<(), RawDmaError> {
        Client::unmap_raw(self, iova, len, direction)
    }
    fn unmap_raw_unsynced(
        &self,
        iova: Iova,
        len: ByteCount,
        direction: Option<Direction>,
    ) -> Result<(), RawDmaError> {
        Client::unmap_raw_unsynced(self, iova, len, direction)
    }
    fn unmap_raw_all(&self) -> Result<(), RawDmaError> {
        Client::unmap_raw_all(self)
    }
    fn end_unsynced(
        &self,
        mapping: DmaMapping<()>,
        list: &[PhysRange],
    ) -> Result<(), DmaUnmapError<()>> {
        without_list(Client::end_unsynced(self, with_list(mapping, list)))
    }
    fn sync_raw(
        &self,
        iova: Iova,
        span: Span,
        direction: Option<Direction>,
        to: SyncFor,
    ) -> Result<(), RawDmaError> {
        Client::sync_raw(self, iova, span, direction, to)
    }
    fn shared(&self, pages: PageCount) -> Result<Shared, MapError> {
        Client::shared(self, pages)
    }
    fn alloc_raw(&self, pages: PageCount) -> Result<(Iova, NonNull<u8>), MapError> {
        Client::alloc_raw(self, pages)
    }
    #[allow(unsafe_code)] // as there
    unsafe fn free_raw(
        &self,
        iova: Iova,
        at: NonNull<u8>,
        pages: PageCount,
    ) -> Result<(), RawDmaError> {
        // SAFETY: the caller's promise.
        unsafe { Client::free_raw(self, iova, at, pages) }
    }
}

/// One device's way to map, whatever it is on: a [`Client`] behind an indirect call.
///
/// Clones are the same client, as those of a [`Client`] are.
///
/// ```
/// use ioatlas_dma::{dma_api::*, units::*};
///
/// /// A driver, on whatever there is.
/// struct Disk {
///     dma: AnyClient,
///     commands: Coherent<[u64]>,
/// }
///
/// impl Disk {
///     fn new(dma: impl Into<AnyClient>) -> Result<Self, Box<dyn std::error::Error>> {
///         let dma = dma.into();
///         let commands = dma.alloc_coherent(512)?;
///         Ok(Disk { dma, commands })
///     }
///     fn read(&mut self, block: &mut [u8]) -> Result<(), Box<dyn std::error::Error>> {
///         let mapped = self.dma.map_slice(block, Direction::FromDevice)?;
///         self.commands.write(0, mapped.iova().0);
///         // ... ring the doorbell, and wait ...
///         mapped.finish()?;
///         Ok(())
///     }
/// }
/// # use ioatlas_dma::{domain::*, translator::{Paged, Uncached}};
/// # use ioatlas_dma::translator::{TableConfig, VtdSecond48};
/// # use ioatlas_host::*;
/// # use std::sync::Arc;
/// # let p = Arc::new(Host::new(HostConfig::default().frames(64)));
/// # let table = Paged::<_, VtdSecond48, _>::new(&p, Uncached::<Host>::new(), TableConfig::default())?;
/// # let domain = Arc::new(Domain::new(p.clone(), table, DomainConfig::default())?);
/// # let dma = Arc::new(Dma::new(domain, DmaConfig::default()));
/// # let mut disk = Disk::new(dma.client(ClientConfig::default())?)?;
/// # disk.read(&mut [0; 512])?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct AnyClient(Arc<dyn Maps>);

impl<P, T, D> From<Client<P, T, D>> for AnyClient
where
    P: CopyMemory + ContiguousMemory,
    T: Translator<P>,
    D: Watch<P> + 'static,
{
    fn from(client: Client<P, T, D>) -> Self {
        AnyClient(Arc::new(client))
    }
}

impl AnyClient {
    /// As the client was made.
    pub fn config(&self) -> &ClientConfig {
        self.0.config()
    }

    /// As [`Client::map_single`].
    ///
    /// # Errors
    /// [`DmaMapError`]; nothing is mapped then.
    pub fn map_single(
        &self,
        buffer: Lent<PhysRange>,
        direction: Direction,
    ) -> Result<DmaMapping, DmaMapError> {
        self.map_sg(buffer, direction)
    }

    /// As [`Client::map_sg`].
    ///
    /// # Errors
    /// [`DmaMapError`]; nothing is mapped then.
    pub fn map_sg<L: DmaBuffer>(
        &self,
        list: L,
        direction: Direction,
    ) -> Result<DmaMapping<L>, DmaMapError> {
        self.map_with(list, direction, DmaAttrs::default())
    }

    /// As [`Client::map_with`].
    ///
    /// # Errors
    /// [`DmaMapError`]; nothing is mapped then.
    pub fn map_with<L: DmaBuffer>(
        &self,
        list: L,
        direction: Direction,
        attrs: DmaAttrs,
    ) -> Result<DmaMapping<L>, DmaMapError> {
        let list = ManuallyDrop::new(list);
        match self.0.map(list.segments(), direction, attrs) {
            Ok(mapping) => Ok(mapping.of(list)),
            Err(error) => {
                if !error.is_reached_still() {
                    drop(ManuallyDrop::into_inner(list));
                }
                Err(error)
            }
        }
    }

    /// As [`Client::map_guarded`].
    ///
    /// # Errors
    /// [`DmaMapError`]; nothing is mapped then.
    pub fn map_guarded<L: DmaBuffer>(
        &self,
        list: L,
        direction: Direction,
    ) -> Result<Mapped<'_, L>, DmaMapError> {
        let mapping = self.map_sg(list, direction)?;
        Ok(Mapped::new(&*self.0, mapping))
    }

    /// As [`Client::map_slice`].
    ///
    /// # Errors
    /// [`DmaMapError`]; nothing is mapped then, and owned bytes are dropped.
    pub fn map_slice<B: AsMut<[u8]>>(
        &self,
        mut bytes: B,
        direction: Direction,
    ) -> Result<MappedSlice<'_, B>, DmaMapError> {
        let (copy, buffer) = self.0.copy(bytes.as_mut(), direction)?;
        Ok(MappedSlice::new(&*self.0, bytes, copy, buffer))
    }

    /// As [`Client::map_copy`].
    ///
    /// # Errors
    /// [`DmaMapError`]; nothing is mapped then.
    pub fn map_copy(&self, bytes: &[u8]) -> Result<MappedCopy<'_>, DmaMapError> {
        let (copy, buffer) = self.0.copy(bytes, Direction::ToDevice)?;
        Ok(MappedSlice::new(&*self.0, [], copy, buffer))
    }

    /// As [`Client::alloc_coherent`].
    ///
    /// # Errors
    /// [`MapError`]; nothing is allocated then.
    pub fn alloc_coherent<E: FromBytes + IntoBytes>(
        &self,
        count: usize,
    ) -> Result<Coherent<[E]>, MapError> {
        Coherent::array(count, |pages| self.0.shared(pages))
    }

    /// As [`Client::sync_for_cpu`].
    ///
    /// # Errors
    /// [`SyncError`]; no byte was moved then, except perhaps with [`SyncError::NotMemory`].
    pub fn sync_for_cpu<L: DmaBuffer>(
        &self,
        mapping: &DmaMapping<L>,
        span: Span,
    ) -> Result<(), SyncError> {
        let list = mapping.list().segments();
        self.0.sync(&mapping.seen(), list, span, SyncFor::Cpu)
    }

    /// As [`Client::sync_for_device`].
    ///
    /// # Errors
    /// [`SyncError`]; no byte was moved then, except perhaps with [`SyncError::NotMemory`].
    pub fn sync_for_device<L: DmaBuffer>(
        &self,
        mapping: &DmaMapping<L>,
        span: Span,
    ) -> Result<(), SyncError> {
        let list = mapping.list().segments();
        self.0.sync(&mapping.seen(), list, span, SyncFor::Device)
    }

    /// As [`Client::into_raw`].
    ///
    /// # Errors
    /// [`IntoRawError`]; the mapping is as it was.
    #[allow(clippy::result_large_err)] // as there
    pub fn into_raw<L: Into<RawList>>(
        &self,
        mapping: DmaMapping<Lent<L>>,
    ) -> Result<(Iova, ByteCount), IntoRawError> {
        let of_lists = mapping.map_list(|lent| Lent::ours(lent.into_inner().into()));
        self.0.give_up(of_lists)
    }

    /// As [`Client::unmap_raw`].
    ///
    /// # Errors
    /// [`RawDmaError`]; but for [`RawDmaError::Unmap`], nothing has changed.
    pub fn unmap_raw(
        &self,
        iova: Iova,
        len: ByteCount,
        direction: impl Into<Option<Direction>>,
    ) -> Result<(), RawDmaError> {
        self.0.unmap_raw(iova, len, direction.into())
    }

    /// As [`Client::unmap_raw_unsynced`].
    ///
    /// # Errors
    /// As [`unmap_raw`](Self::unmap_raw).
    pub fn unmap_raw_unsynced(
        &self,
        iova: Iova,
        len: ByteCount,
        direction: impl Into<Option<Direction>>,
    ) -> Result<(), RawDmaError> {
        self.0.unmap_raw_unsynced(iova, len, direction.into())
    }

    /// As [`Client::unmap_raw_all`].
    ///
    /// # Errors
    /// As there.
    pub fn unmap_raw_all(&self) -> Result<(), RawDmaError> {
        self.0.unmap_raw_all()
    }

    /// As [`Client::sync_raw`].
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
        self.0.sync_raw(iova, span, direction.into(), to)
    }

    /// As [`Client::alloc_raw`].
    ///
    /// # Errors
    /// [`MapError`]; nothing is allocated then.
    pub fn alloc_raw(&self, pages: PageCount) -> Result<(Iova, NonNull<u8>), MapError> {
        self.0.alloc_raw(pages)
    }

    /// As [`Client::free_raw`].
    ///
    /// # Errors
    /// [`RawDmaError`], as there.
    ///
    /// # Safety
    /// Neither the program nor the device uses the memory any more.
    #[allow(unsafe_code)] // as there
    pub unsafe fn free_raw(
        &self,
        iova: Iova,
        at: NonNull<u8>,
        pages: PageCount,
    ) -> Result<(), RawDmaError> {
        // SAFETY: the caller's promise.
        unsafe { self.0.free_raw(iova, at, pages) }
    }

    /// Ends what the driver was not told of, and brings nothing back. Where that fails a device may
    /// reach the list still, so what owns it is never dropped.
    pub(super) fn undo<L: DmaBuffer>(&self, mapping: DmaMapping<L>) -> Result<(), UnmapError> {
        let (list, mapping) = mapping.bare();
        match self.0.end_unsynced(mapping, list.segments()) {
            Err(DmaUnmapError::Direct(error)) => Err(error),
            _ => {
                drop(ManuallyDrop::into_inner(list));
                Ok(())
            }
        }
    }

    /// As [`Client::unmap`].
    ///
    /// # Errors
    /// [`DmaUnmapError`], as there.
    pub fn unmap<L: DmaBuffer>(&self, mapping: DmaMapping<L>) -> Result<L, DmaUnmapError<L>> {
        end_by(&*self.0, mapping)
    }
}

impl fmt::Debug for AnyClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AnyClient").field(self.config()).finish()
    }
}
