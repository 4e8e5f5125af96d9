// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a `Hal` leads to: a client of the DMA API and its kernel's addresses, whatever their types.
//!
//! [`Ops`] costs one indirect call in each operation, and saves a name of three hundred characters
//! in the type of each driver.

use crate::{
    arrays::{Array, Arrays},
    segments::segments,
};
use alloc::sync::Arc;
use core::{fmt, ptr::NonNull};
use ioatlas_dma::{dma_api::*, platform::*, translator::Translator, units::*};
use virtio_drivers::BufferDirection;

/// One device, as drivers of virtio-drivers use it. See the [crate](crate)'s theory.
///
/// Its functions are those of [`Hal`](virtio_drivers::Hal), which [`hal!`](crate::hal) calls; a
/// kernel has no need to.
#[derive(Clone)]
pub struct Device(Arc<dyn Ops>);

/// What a device does, whatever the types of its client are.
trait Ops: Send + Sync {
    fn alloc(&self, pages: usize) -> Option<(Iova, NonNull<u8>)>;
    fn dealloc(&self, iova: Iova, at: NonNull<u8>, pages: usize) -> bool;
    fn mmio(&self, at: PhysAddr, len: usize) -> NonNull<u8>;
    /// # Safety
    /// As [`Device::share`].
    unsafe fn share(&self, buffer: NonNull<[u8]>, direction: Direction) -> Iova;
    fn unshare(&self, iova: Iova, len: ByteCount, direction: Direction);
}

struct Erased<P: CopyMemory, T: Translator<P>, D, F, M> {
    client: Client<P, T, D>,
    arrays: Arrays<P>,
    phys: F,
    mmio: M,
}

impl Device {
    /// The device that `client` is of.
    ///
    /// `phys` gives the physical address of a byte that the CPU sees at a pointer; it is asked once
    /// for each granule (4 KiB) of a buffer. `mmio` gives the pointer to so many bytes of the
    /// device's registers at a physical address; only the PCI transport asks for it.
    ///
    /// # Safety
    /// For as long as the result, or a clone of it, lives:
    ///
    /// * `phys` tells the truth of every buffer that is shared, until it is unshared: the bytes of
    ///   a granule lie there one after the other, and nowhere else. It exposes the pointer's
    ///   provenance, where the platform makes pointers of addresses.
    /// * `mmio` gives a pointer to as many bytes of registers, to which nothing else of the program
    ///   leads.
    /// * While a buffer is shared nothing but the device uses it. (Drivers of virtio-drivers see to
    ///   that; what adds buffers to a `VirtQueue` itself has promised it there.)
    /// * Where buffers are mapped directly, the device may be trusted with the rest of their first
    ///   and last granules, and under a policy that defers invalidations with the buffers
    ///   themselves until the flush that follows. [`Placement::Always`] under any policy, and
    ///   [`Placement::Untrusted`] under the strict one, need no such trust.
    pub unsafe fn new<P, T, D>(
        client: Client<P, T, D>,
        phys: impl Fn(NonNull<u8>) -> PhysAddr + Send + Sync + 'static,
        mmio: impl Fn(PhysAddr, usize) -> NonNull<u8> + Send + Sync + 'static,
    ) -> Self
    where
        P: CopyMemory + ContiguousMemory,
        T: Translator<P>,
        D: Watch<P> + 'static,
    {
        Device(Arc::new(Erased {
            client,
            arrays: Arrays::new(),
            phys,
            mmio,
        }))
    }

    /// Allocates `pages` zeroed pages of 4 KiB that CPU and device share, one after the other for
    /// both: the device's address and the CPU's. The device may read and write them until they are
    /// [deallocated](Self::dma_dealloc).
    ///
    /// The address is 0 where there is no memory, or no IOVA within the client's limits. No
    /// allocator of `ioatlas-dma` gives out page 0, so it is never that of an array.
    pub fn dma_alloc(&self, pages: usize) -> (virtio_drivers::PhysAddr, NonNull<u8>) {
        match self.0.alloc(pages) {
            Some((iova, at)) => (iova.0, at),
            None => (0, NonNull::dangling()),
        }
    }

    /// Ends that: unmaps the pages and frees them, after the flush where the domain's policy defers
    /// invalidations. Answers 0.
    ///
    /// It answers -1, and changes nothing, where it is not exactly what was allocated; and -1 where
    /// an invalidation failed, after which the pages are never used again.
    ///
    /// # Safety
    /// Neither the program nor the device uses the pages any more.
    pub unsafe fn dma_dealloc(
        &self,
        paddr: virtio_drivers::PhysAddr,
        vaddr: NonNull<u8>,
        pages: usize,
    ) -> i32 {
        match self.0.dealloc(Iova(paddr), vaddr, pages) {
            true => 0,
            false => -1,
        }
    }

    /// Where the CPU reaches `size` bytes of registers at the physical address `paddr`.
    ///
    /// # Safety
    /// They are registers of this device.
    pub unsafe fn mmio_phys_to_virt(
        &self,
        paddr: virtio_drivers::PhysAddr,
        size: usize,
    ) -> NonNull<u8> {
        self.0.mmio(PhysAddr(paddr), size)
    }

    /// Maps a buffer for the device, directly or bounced as the client's placement says, and
    /// returns the address that the device has for its first byte; the others follow.
    ///
    /// # Safety
    /// The buffer is memory of the program, and nothing but the device uses it until it is
    /// [unshared](Self::unshare).
    ///
    /// # Panics
    /// If it cannot be mapped, with the [`DmaMapError`]: no IOVA is free, no bounce buffer, no
    /// frame for a page table, no heap memory to note it; it is empty; or the domain lays out the
    /// segments of a list otherwise than one behind the other (`ListOrder::Descending`,
    /// [`Placement::SingleUse`]) and the buffer has several.
    pub unsafe fn share(
        &self,
        buffer: NonNull<[u8]>,
        direction: BufferDirection,
    ) -> virtio_drivers::PhysAddr {
        // SAFETY: the caller's.
        unsafe { self.0.share(buffer, direction_of(direction)).0 }
    }

    /// Ends that: unmaps the buffer, which has then what the device wrote.
    ///
    /// # Safety
    /// The buffer is the one that was shared, and its owner's again after the call.
    ///
    /// # Panics
    /// If no buffer of that length and direction is shared at `paddr`, or an invalidation failed:
    /// the device may still reach the buffer then.
    pub unsafe fn unshare(
        &self,
        paddr: virtio_drivers::PhysAddr,
        buffer: NonNull<[u8]>,
        direction: BufferDirection,
    ) {
        let len = ByteCount(buffer.len() as u64);
        self.0.unshare(Iova(paddr), len, direction_of(direction));
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").finish_non_exhaustive()
    }
}

impl<P, T, D, F, M> Ops for Erased<P, T, D, F, M>
where
    P: CopyMemory + ContiguousMemory,
    T: Translator<P>,
    D: Watch<P> + 'static,
    F: Fn(NonNull<u8>) -> PhysAddr + Send + Sync,
    M: Fn(PhysAddr, usize) -> NonNull<u8> + Send + Sync,
{
    fn alloc(&self, pages: usize) -> Option<(Iova, NonNull<u8>)> {
        let array: Array = self.client.alloc_coherent(pages).ok()?;
        let (iova, at) = (array.iova(), array.as_ptr().cast());
        // an array that is not kept is freed where it is dropped
        self.arrays.keep(array).then_some((iova, at))
    }

    fn dealloc(&self, iova: Iova, at: NonNull<u8>, pages: usize) -> bool {
        let array = self.arrays.take(iova, at, pages);
        array.is_some_and(|array| array.free().is_ok())
    }

    fn mmio(&self, at: PhysAddr, len: usize) -> NonNull<u8> {
        (self.mmio)(at, len)
    }

    unsafe fn share(&self, buffer: NonNull<[u8]>, direction: Direction) -> Iova {
        let list = segments(buffer, &self.phys);
        // SAFETY: the segments are the buffer, as `phys` was promised to say; by the caller it is
        // the device's until it is unshared. What holds later was promised with `phys`.
        let lent = unsafe { Lent::new(list) };
        let mapping = match self.client.map_sg(lent, direction) {
            Ok(mapping) => mapping,
            Err(error) => panic!("a virtio buffer of {} bytes: {error}", buffer.len()),
        };
        let mut next = mapping.iova().0;
        let in_a_row = mapping.list().as_ref().iter().map(|segment| {
            let here = Iova(next);
            next += segment.len.0;
            here
        });
        let (mapping, why) = match mapping.segments().eq(in_a_row) {
            false => (mapping, "the domain does not map its segments in a row"),
            true => match self.client.into_raw(mapping) {
                Ok((iova, _)) => return iova,
                Err(IntoRawError(mapping)) => (mapping, "no memory to note it"),
            },
        };
        let len = mapping.len();
        let _ = self.client.unmap(mapping); // the device never had its address
        panic!("a virtio buffer of {len} bytes: {why}");
    }

    fn unshare(&self, iova: Iova, len: ByteCount, direction: Direction) {
        if let Err(error) = self.client.unmap_raw(iova, len, direction) {
            panic!("a virtio buffer of {len} bytes at {iova} is still shared: {error}");
        }
    }
}

fn direction_of(direction: BufferDirection) -> Direction {
    match direction {
        BufferDirection::DriverToDevice => Direction::ToDevice,
        BufferDirection::DeviceToDriver => Direction::FromDevice,
        BufferDirection::Both => Direction::Bidirectional,
    }
}
