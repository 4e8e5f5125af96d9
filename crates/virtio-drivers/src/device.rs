// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a `Hal` leads to: a client of the DMA API and its kernel's addresses.

use alloc::{boxed::Box, sync::Arc};
use core::{fmt, ptr::NonNull};
use ioatlas_dma::{dma_api::*, units::*};
use virtio_drivers::BufferDirection;

/// One device, as drivers of virtio-drivers use it. See the [crate](crate)'s theory.
///
/// Its functions are those of [`Hal`](virtio_drivers::Hal), which [`hal!`](crate::hal) calls; a
/// kernel has no need to.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    client: AnyClient,
    phys: Box<dyn Fn(NonNull<u8>) -> PhysAddr + Send + Sync>,
    mmio: Box<dyn Fn(PhysAddr, usize) -> NonNull<u8> + Send + Sync>,
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
    pub unsafe fn new(
        client: impl Into<AnyClient>,
        phys: impl Fn(NonNull<u8>) -> PhysAddr + Send + Sync + 'static,
        mmio: impl Fn(PhysAddr, usize) -> NonNull<u8> + Send + Sync + 'static,
    ) -> Self {
        Device(Arc::new(Inner {
            client: client.into(),
            phys: Box::new(phys),
            mmio: Box::new(mmio),
        }))
    }

    /// Ends what its driver has left.
    pub(crate) fn unshare_all(&self) {
        if let Err(error) = self.0.client.unmap_raw_all() {
            panic!("a virtio buffer that a driver left is still shared: {error}");
        }
    }

    /// Allocates `pages` zeroed pages of 4 KiB that CPU and device share, one after the other for
    /// both: the device's address and the CPU's. The device may read and write them until they are
    /// [deallocated](Self::dma_dealloc).
    ///
    /// The address is 0 where there is no memory, or no IOVA within the client's limits. No
    /// allocator of `ioatlas-dma` gives out page 0, so it is never that of an array.
    pub fn dma_alloc(&self, pages: usize) -> (virtio_drivers::PhysAddr, NonNull<u8>) {
        match self.0.client.alloc_raw(PageCount(pages as u64)) {
            Ok((iova, at)) => (iova.0, at),
            Err(_) => (0, NonNull::dangling()),
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
        let pages = PageCount(pages as u64);
        // SAFETY: the caller's.
        match unsafe { self.0.client.free_raw(Iova(paddr), vaddr, pages) } {
            Ok(()) => 0,
            Err(_) => -1,
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
        (self.0.mmio)(PhysAddr(paddr), size)
    }

    /// Maps a buffer for the device, directly or bounced as the client's placement says, and
    /// returns the address that the device has for its first byte; the others follow.
    ///
    /// # Safety
    /// The buffer is memory of the program, and nothing but the device uses it until it is
    /// [unshared](Self::unshare).
    ///
    /// # Panics
    /// If it cannot be mapped, with the [`RawDmaError`]: no IOVA is free, no bounce buffer, no
    /// frame for a page table, no heap memory to note it; it is empty; or the domain does not map
    /// the segments of a list in a row ([`RawDmaError::NotInARow`]) and the buffer has several.
    pub unsafe fn share(
        &self,
        buffer: NonNull<[u8]>,
        direction: BufferDirection,
    ) -> virtio_drivers::PhysAddr {
        let Inner { client, phys, .. } = &*self.0;
        // SAFETY: until it is unshared the buffer is the device's, by the caller. What holds later
        // was promised with `phys`.
        match unsafe { client.map_raw(buffer, direction_of(direction), phys) } {
            Ok(iova) => iova.0,
            Err(error) => panic!("a virtio buffer of {} bytes: {error}", buffer.len()),
        }
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
        let (iova, direction) = (Iova(paddr), direction_of(direction));
        if let Err(error) = self.0.client.unmap_raw(iova, len, direction) {
            panic!("a virtio buffer of {len} bytes at {iova} is still shared: {error}");
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").finish_non_exhaustive()
    }
}

fn direction_of(direction: BufferDirection) -> Direction {
    match direction {
        BufferDirection::DriverToDevice => Direction::ToDevice,
        BufferDirection::DeviceToDriver => Direction::FromDevice,
        BufferDirection::Both => Direction::Bidirectional,
    }
}
