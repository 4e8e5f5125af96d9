// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What drivers of other crates pay for a buffer: by the `Hal` of virtio-drivers, and by dma-api.
//! As [`Bounced`](super::Bounced), so that the difference to that is the adapters'.

use super::bounced::{BUFFERS, LEN, client};
use crate::{Failure, Subject, bounce::Way, platform::Slots};
use dma_api::{DeviceDma, DmaDirection, StreamingMap};
use ioatlas_dma::{platform::ContiguousMemory, units::*};
use ioatlas_dma_api::dma_api;
use ioatlas_host::Host;
use ioatlas_virtio_drivers::{Device, virtio_drivers::BufferDirection};
use std::ptr::NonNull;
use std::slice::from_raw_parts_mut;
use std::sync::Arc;

type Bytes = &'static mut [u8];

/// The host's memory, as its CPUs see it.
struct Memory {
    platform: Arc<Host>,
    /// What is added to a pointer, and the sum is a physical address.
    to_phys: u64,
}

impl Memory {
    fn new(platform: Arc<Host>) -> Result<Self, Failure> {
        let some = platform.frames_alloc(PageCount(1));
        let some = some.ok_or_else(|| Failure::new("a platform without contiguous memory"))?;
        let (at, phys) = (platform.frames_ptr(&some), some.run().first.addr());
        let to_phys = phys.0.wrapping_sub(at.addr().get() as u64);
        Ok(Memory { platform, to_phys })
    }

    fn phys(&self) -> impl Fn(NonNull<u8>) -> PhysAddr + Send + Sync + 'static {
        let to_phys = self.to_phys;
        move |at| PhysAddr((at.addr().get() as u64).wrapping_add(to_phys))
    }

    /// Those of a thread, which enters its CPU.
    #[allow(unsafe_code)] // memory of the arena becomes slices
    fn buffers(&self) -> Vec<Bytes> {
        self.platform.enter();
        let len = (BUFFERS * LEN) as usize;
        let pages = PageCount((BUFFERS * LEN).div_ceil(GRANULE));
        let run = self.platform.frames_alloc(pages);
        let run = run.expect("memory for the buffers of two threads");
        // SAFETY: so many bytes are there, of this call alone, and are never freed.
        let bytes = unsafe { from_raw_parts_mut(self.platform.frames_ptr(&run).as_ptr(), len) };
        bytes.chunks_mut(LEN as usize).collect()
    }
}

/// Pairs are `share` and `unshare`.
pub struct VirtioShares {
    device: Device,
    direction: BufferDirection,
    memory: Memory,
}

impl VirtioShares {
    /// On `platform`.
    ///
    /// # Errors
    /// It is too small.
    #[allow(unsafe_code)] // a promise
    pub fn new(platform: Arc<Host>, way: Way) -> Result<Self, Failure> {
        let memory = Memory::new(platform.clone())?;
        let client = client(platform)?;
        let none = |_, _| panic!("there are no registers");
        // SAFETY: the buffers are of the arena, whose addresses these are; no device runs.
        let device = unsafe { Device::new(client, memory.phys(), none) };
        let direction = match way.direction() {
            Direction::ToDevice => BufferDirection::DriverToDevice,
            _ => BufferDirection::DeviceToDriver,
        };
        Ok(VirtioShares {
            device,
            direction,
            memory,
        })
    }
}

impl Subject for VirtioShares {
    type Token = (u64, Bytes);
    /// Those that are not shared.
    type Hand = Vec<Bytes>;

    fn hand(&self, _: usize) -> Vec<Bytes> {
        self.memory.buffers()
    }
    #[inline]
    #[allow(unsafe_code)] // a driver's
    fn take(&self, hand: &mut Vec<Bytes>, _: PageCount) -> Result<Self::Token, Failure> {
        let bytes = hand.pop().ok_or_else(|| Failure::new("no buffer left"))?;
        // SAFETY: nothing uses it before it is unshared.
        let iova = unsafe {
            self.device
                .share(NonNull::from(&mut *bytes), self.direction)
        };
        Ok((iova, bytes))
    }
    #[inline]
    #[allow(unsafe_code)] // a driver's
    fn give(&self, hand: &mut Vec<Bytes>, (iova, bytes): Self::Token) -> Result<(), Failure> {
        let buffer = NonNull::from(&mut *bytes);
        // SAFETY: it was shared, and is ours again.
        unsafe { self.device.unshare(iova, buffer, self.direction) };
        hand.push(bytes);
        Ok(())
    }
}

/// Pairs are a [`StreamingMap`] that is made and prepared for the device, or completed for the CPU,
/// and dropped.
pub struct StreamingMaps {
    dma: DeviceDma,
    direction: DmaDirection,
    memory: Memory,
}

impl StreamingMaps {
    /// On `platform`.
    ///
    /// # Errors
    /// It is too small.
    #[allow(unsafe_code)] // a promise
    pub fn new(platform: Arc<Host>, way: Way) -> Result<Self, Failure> {
        let memory = Memory::new(platform.clone())?;
        let client = client(platform)?;
        // SAFETY: as above.
        let device = unsafe { ioatlas_dma_api::Device::new(client, memory.phys()) };
        let direction = match way.direction() {
            Direction::ToDevice => DmaDirection::ToDevice,
            _ => DmaDirection::FromDevice,
        };
        Ok(StreamingMaps {
            dma: Box::leak(Box::new(device)).dma(),
            direction,
            memory,
        })
    }
}

impl Subject for StreamingMaps {
    /// The map does not borrow its buffer.
    type Token = (StreamingMap<u8>, Bytes);
    /// Those that are not mapped.
    type Hand = Vec<Bytes>;

    fn hand(&self, _: usize) -> Vec<Bytes> {
        self.memory.buffers()
    }
    #[inline]
    fn take(&self, hand: &mut Vec<Bytes>, _: PageCount) -> Result<Self::Token, Failure> {
        let bytes = hand.pop().ok_or_else(|| Failure::new("no buffer left"))?;
        let map = match self.direction {
            DmaDirection::ToDevice => {
                (self.dma).map_streaming_slice_for_device(bytes, 1, self.direction)
            }
            _ => self.dma.map_streaming_slice(bytes, 1, self.direction),
        };
        Ok((map.map_err(Failure::new)?, bytes))
    }
    #[inline]
    fn give(&self, hand: &mut Vec<Bytes>, (map, bytes): Self::Token) -> Result<(), Failure> {
        map.complete_for_cpu(0..map.bytes_len());
        drop(map);
        hand.push(bytes);
        Ok(())
    }
}
