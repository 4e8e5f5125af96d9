// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a `DeviceDma` leads to: clients of the DMA API and their kernel's addresses.

use crate::constraints;
use alloc::{boxed::Box, vec, vec::Vec};
use core::{alloc::Layout, fmt, num::NonZero, ptr::NonNull};
use dma_api::*;
use ioatlas_dma::{dma_api::*, units::*};

/// One device, as drivers on dma-api use it. See the [crate](crate)'s theory.
pub struct Device {
    clients: Vec<AnyClient>,
    phys: Box<dyn Fn(NonNull<u8>) -> PhysAddr + Send + Sync>,
}

const NOT_COHERENT: &str = "devices that are not coherent with the CPU's caches are not handled";

impl Device {
    /// The device that `client` is of.
    ///
    /// `phys` gives the physical address of a byte that the CPU sees at a pointer; it is asked once
    /// for each granule (4 KiB) of a buffer.
    ///
    /// # Safety
    /// For as long as the result lives:
    ///
    /// * `phys` tells the truth of every buffer that is mapped, until it is unmapped: the bytes of
    ///   a granule lie there one after the other, and nowhere else. It exposes the pointer's
    ///   provenance, where the platform makes pointers of addresses.
    /// * A buffer lives until its [`StreamingMap`] is dropped, and until then nothing else writes
    ///   it, or reads it where the device writes. (`StreamingMap` does not borrow it, so that its
    ///   drivers see to that.)
    /// * Where buffers are mapped directly, the device may be trusted with the rest of their first
    ///   and last granules, and under a policy that defers invalidations with the buffers
    ///   themselves until the flush that follows. [`Placement::Always`] under any policy, and
    ///   [`Placement::Untrusted`] under the strict one, need no such trust.
    pub unsafe fn new(
        client: impl Into<AnyClient>,
        phys: impl Fn(NonNull<u8>) -> PhysAddr + Send + Sync + 'static,
    ) -> Self {
        Device {
            clients: vec![client.into()],
            phys: Box::new(phys),
        }
    }

    /// The same, with a further client of the same [`Dma`], which serves what those before do not:
    /// of tighter limits, for drivers that say how far some of their addresses may reach; or that
    /// bounces always, for buffers that are not aligned as their driver asks.
    ///
    /// # Safety
    /// It is of the same [`Dma`], and what [`new`](Self::new) asks for where buffers are mapped
    /// directly is true of this client, too.
    #[must_use]
    pub unsafe fn or(mut self, client: impl Into<AnyClient>) -> Self {
        self.clients.push(client.into());
        self
    }

    /// What drivers are given.
    pub fn dma(&'static self) -> DeviceDma {
        DeviceDma::new(self.info(), self)
    }

    /// That it is coherent, what all addresses of its first client keep, and a domain of its own:
    /// a buffer that was prepared for another device is refused by its drivers, also where that one
    /// is in the same domain of ours.
    pub fn info(&'static self) -> DmaDeviceInfo {
        // no other device lies there
        let id = NonZero::<u64>::MIN | NonNull::from(self).addr().get() as u64;
        let constraints = constraints::of_limits(&self.clients[0].config().limits);
        DmaDeviceInfo::new(
            DmaDomainId::Translated(id),
            DmaCoherency::Coherent,
            constraints,
        )
    }

    /// What the first client answers whose `what` this is: others do not know it.
    fn of_owner(
        &self,
        what: impl Fn(&AnyClient) -> Result<(), RawDmaError>,
    ) -> Result<(), RawDmaError> {
        let mut answer = what(&self.clients[0]);
        for client in &self.clients[1..] {
            match answer {
                Err(RawDmaError::NotMapped(_) | RawDmaError::Sync(SyncError::Foreign { .. })) => {
                    answer = what(client)
                }
                _ => break,
            }
        }
        answer
    }

    fn sync(
        &self,
        handle: &DmaMapHandle,
        offset: usize,
        size: usize,
        direction: DmaDirection,
        coherency: DmaCoherency,
        to: SyncFor,
    ) {
        assert!(coherency == DmaCoherency::Coherent, "{NOT_COHERENT}");
        let no_byte_goes = matches!(
            (direction, to),
            (DmaDirection::ToDevice, SyncFor::Cpu) | (DmaDirection::FromDevice, SyncFor::Device)
        );
        if no_byte_goes {
            return; // drivers ask for it all the same
        }
        let iova = Iova(handle.dma_addr().as_u64());
        let span = Span::new(ByteCount(offset as u64), ByteCount(size as u64));
        let direction = direction_of(direction);
        let synced = self.of_owner(|client| client.sync_raw(iova, span, direction, to));
        if let Err(error) = synced {
            panic!("{span} of a buffer at {iova} were not synchronised: {error}");
        }
    }
}

// SAFETY: arrays are memory of the device's own, zeroed, mapped for it and live until they are
// deallocated, and streaming maps are those of the DMA API; addresses are checked against what was
// asked for.
impl DmaOp for Device {
    /// That of an IOVA.
    fn page_size(&self) -> usize {
        GRANULE as usize
    }

    unsafe fn alloc_contiguous(
        &self,
        constraints: DmaConstraints,
        layout: Layout,
    ) -> Option<DmaAllocHandle> {
        let handle = |at, iova: Iova| {
            // SAFETY: both are of one allocation, which is live, or of no byte.
            unsafe { DmaAllocHandle::new(at, at, iova.0.into(), layout) }
        };
        if layout.size() == 0 {
            // dma-api does not deallocate it
            let nowhere = NonNull::without_provenance(NonZero::new(layout.align())?);
            return Some(handle(nowhere, Iova(0)));
        }
        let pages = pages_of(layout);
        self.clients.iter().find_map(|client| {
            let (iova, at) = client.alloc_raw(pages).ok()?;
            let is_aligned = at.addr().get().is_multiple_of(layout.align());
            if is_aligned && constraints::check(&constraints, iova, layout.size()).is_ok() {
                return Some(handle(at, iova));
            }
            // SAFETY: neither the driver nor the device has seen it.
            let _ = unsafe { client.free_raw(iova, at, pages) }; // quarantined if that fails
            None
        })
    }

    /// Unmaps the memory and frees it, after the flush where the domain's policy defers
    /// invalidations. Where an invalidation failed it is never used again.
    ///
    /// # Panics
    /// If it is no memory that this device allocated.
    unsafe fn dealloc_contiguous(&self, handle: DmaAllocHandle) {
        let iova = Iova(handle.dma_addr().as_u64());
        let (at, pages) = (handle.allocation_ptr(), pages_of(handle.layout()));
        // SAFETY: the caller's.
        let freed = self.of_owner(|client| unsafe { client.free_raw(iova, at, pages) });
        match freed {
            Ok(()) | Err(RawDmaError::Free(_)) => {} // counted by the domain
            Err(error) => panic!("{} bytes at {iova} were not freed: {error}", handle.size()),
        }
    }

    /// None: it is for devices that are not coherent.
    unsafe fn alloc_coherent(&self, _: DmaConstraints, _: Layout) -> Option<DmaAllocHandle> {
        None
    }
    /// Nothing is such memory.
    unsafe fn dealloc_coherent(&self, _: DmaAllocHandle) -> Result<(), DmaError> {
        Err(DmaError::CoherentReleaseFailed)
    }

    /// # Errors
    /// What the address of the last client does not keep, or [`DmaError::NoMemory`] for any other
    /// reason that it has not to map the buffer. Nothing is mapped then.
    ///
    /// # Panics
    /// If an invalidation failed on the way: the device may still reach the buffer then.
    unsafe fn map_streaming(
        &self,
        constraints: DmaConstraints,
        addr: NonNull<u8>,
        size: NonZero<usize>,
        direction: DmaDirection,
    ) -> Result<DmaMapHandle, DmaError> {
        let direction = direction_of(direction);
        let buffer = NonNull::slice_from_raw_parts(addr, size.get());
        let layout = Layout::from_size_align(size.get(), constraints.align.max(1))?;
        let mut why = DmaError::NoMemory;
        for client in &self.clients {
            // SAFETY: until it is unmapped the buffer is the device's, by the caller. What holds
            // later was promised with `phys`.
            let iova = match unsafe { client.map_raw(buffer, direction, &self.phys) } {
                Ok(iova) => iova,
                Err(error) => {
                    let left = match &error {
                        RawDmaError::Map(error) => error.is_reached_still(),
                        error => matches!(error, RawDmaError::Unmap(_)),
                    };
                    assert!(!left, "a buffer of {size} bytes was left mapped: {error}");
                    why = DmaError::NoMemory;
                    continue;
                }
            };
            match constraints::check(&constraints, iova, size.get()) {
                Ok(()) => {
                    // SAFETY: it is mapped there, and has no copy that the driver sees.
                    let handle = unsafe { DmaMapHandle::new(addr, iova.0.into(), layout, None) };
                    return Ok(handle);
                }
                Err(error) => why = error,
            }
            let len = ByteCount(size.get() as u64);
            let unmapped = client.unmap_raw_unsynced(iova, len, direction);
            if let Err(error) = unmapped {
                panic!("a buffer of {len} bytes was left mapped at {iova}: {error}");
            }
        }
        Err(why)
    }

    /// Unmaps the buffer. Nothing is brought back.
    ///
    /// # Panics
    /// If it is no buffer that this device maps, or an invalidation failed: the device may still
    /// reach it then.
    unsafe fn unmap_streaming(&self, handle: DmaMapHandle) {
        let iova = Iova(handle.dma_addr().as_u64());
        let len = ByteCount(handle.size() as u64);
        let unmapped = self.of_owner(|client| client.unmap_raw_unsynced(iova, len, None));
        if let Err(error) = unmapped {
            panic!("a buffer of {len} bytes at {iova} is still mapped: {error}");
        }
    }

    /// # Panics
    /// It is for devices that are not coherent, which are not handled.
    fn sync_alloc_for_device(&self, _: &DmaAllocHandle, _: usize, _: usize, _: DmaDirection) {
        panic!("{NOT_COHERENT}");
    }
    /// # Panics
    /// As [`sync_alloc_for_device`](Self::sync_alloc_for_device).
    fn sync_alloc_for_cpu(&self, _: &DmaAllocHandle, _: usize, _: usize, _: DmaDirection) {
        panic!("{NOT_COHERENT}");
    }

    /// Nothing is looked at where the device only writes.
    ///
    /// # Panics
    /// If the device does not map such a buffer, or the range is not within it; or for a device
    /// that is not coherent.
    fn sync_map_for_device(
        &self,
        handle: &DmaMapHandle,
        offset: usize,
        size: usize,
        direction: DmaDirection,
        coherency: DmaCoherency,
    ) {
        self.sync(handle, offset, size, direction, coherency, SyncFor::Device);
    }

    /// Nothing is looked at where the device only reads.
    ///
    /// # Panics
    /// As [`sync_map_for_device`](Self::sync_map_for_device).
    fn sync_map_for_cpu(
        &self,
        handle: &DmaMapHandle,
        offset: usize,
        size: usize,
        direction: DmaDirection,
        coherency: DmaCoherency,
    ) {
        self.sync(handle, offset, size, direction, coherency, SyncFor::Cpu);
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("clients", &self.clients)
            .finish_non_exhaustive()
    }
}

/// How many pages are allocated for it: allocators align them to as many.
fn pages_of(layout: Layout) -> PageCount {
    let bytes = layout.size().max(layout.align()) as u64;
    PageCount(bytes.div_ceil(GRANULE))
}

fn direction_of(direction: DmaDirection) -> Direction {
    match direction {
        DmaDirection::ToDevice => Direction::ToDevice,
        DmaDirection::FromDevice => Direction::FromDevice,
        DmaDirection::Bidirectional => Direction::Bidirectional,
    }
}
