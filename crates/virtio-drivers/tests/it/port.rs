// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A device of virtio in software, and the transport that leads to it.
//!
//! It reaches memory by [`Machine::dma_read`] and [`Machine::dma_write`] alone, with the addresses
//! that its driver gave it, in QEMU's order: the index of the available ring, its entry, the chain
//! of descriptors, what its [`Model`] does with that, the used ring. It works in `notify`. As
//! QEMU's devices behind a virtual IOMMU it insists on the feature `ACCESS_PLATFORM`. Where it
//! cannot even fetch work, or answer, it panics, for its driver would wait for ever.

use crate::platform::Process;
use ioatlas_dma::units::*;
use ioatlas_viommu::machine::{Machine, TransferError};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use virtio_drivers::{Error, PhysAddr, Result, transport::*};
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub const INDIRECT: u64 = 1 << 28;
pub const EVENT_IDX: u64 = 1 << 29;
pub const VERSION_1: u64 = 1 << 32;
pub const ACCESS_PLATFORM: u64 = 1 << 33;

/// Flags of descriptors.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const TABLE: u16 = 4;

/// A buffer that the driver gave the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shared {
    pub iova: Iova,
    pub len: usize,
    /// Whether the device is to write it.
    pub write: bool,
}

#[derive(Clone, Copy)]
pub struct Queue {
    pub size: u16,
    pub desc: Iova,
    pub avail: Iova,
    pub used: Iova,
    next: u16,
}

pub type Moved<R = ()> = std::result::Result<R, TransferError>;

/// What a device is.
pub trait Model {
    const TYPE: DeviceType;
    /// What its driver reads of its configuration.
    fn config(&self) -> Vec<u8>;
    /// Does what a chain of this queue asks for; how many bytes were written. `None`: not yet.
    fn serve(&mut self, reach: &Reach, queue: usize, chain: &[Shared]) -> Moved<Option<u32>>;
}

/// A device's way to memory.
pub struct Reach {
    machine: Arc<Machine<Process>>,
    source: SourceId,
}

impl Reach {
    pub fn read(&self, iova: Iova, into: &mut [u8]) -> Moved {
        self.machine.dma_read(self.source, iova, into)
    }
    pub fn write(&self, iova: Iova, from: &[u8]) -> Moved {
        self.machine.dma_write(self.source, iova, from)
    }
    pub fn read_as<T: FromBytes + IntoBytes>(&self, iova: Iova) -> Moved<T> {
        let mut value = T::new_zeroed();
        self.read(iova, value.as_mut_bytes())?;
        Ok(value)
    }

    /// The buffers of the chain that begins at descriptor `at` of the table at `table`.
    fn chain(&self, mut table: Iova, mut at: u16) -> Moved<Vec<Shared>> {
        let mut chain = Vec::new();
        loop {
            let [iova, rest]: [u64; 2] = self.read_as(Iova(table.0 + 16 * u64::from(at)))?;
            let [len, flags, next] = [
                rest as u32,
                (rest >> 32) as u32 & 0xffff,
                (rest >> 48) as u32,
            ];
            let flags = flags as u16;
            if flags & TABLE != 0 {
                (table, at) = (Iova(iova), 0);
                continue;
            }
            chain.push(Shared {
                iova: Iova(iova),
                len: len as usize,
                write: flags & WRITE != 0,
            });
            if flags & NEXT == 0 {
                return Ok(chain);
            }
            at = next as u16;
        }
    }
}

/// A device, and what it has seen.
pub struct Virtio<M> {
    reach: Reach,
    /// What it offers.
    pub features: u64,
    accepted: u64,
    status: DeviceStatus,
    pub queues: [Option<Queue>; 2],
    /// The buffers of the last chain.
    pub last: Vec<Shared>,
    /// Is told of resets.
    pub on_reset: Option<Box<dyn Fn() + Send>>,
    model: M,
}

impl<M> Deref for Virtio<M> {
    type Target = M;
    fn deref(&self) -> &M {
        &self.model
    }
}

impl<M> DerefMut for Virtio<M> {
    fn deref_mut(&mut self) -> &mut M {
        &mut self.model
    }
}

impl<M: Model> Virtio<M> {
    pub fn read(&self, iova: Iova, into: &mut [u8]) -> Moved {
        self.reach.read(iova, into)
    }
    pub fn write(&self, iova: Iova, from: &[u8]) -> Moved {
        self.reach.write(iova, from)
    }

    /// Serves what the driver has made available, in the second queue first: what it sends may be
    /// the answer to what the first one receives.
    fn work(&mut self) -> Moved {
        let is_ready = self.status.contains(DeviceStatus::DRIVER_OK);
        assert!(is_ready, "work for a device that is not ready");
        for nth in (0..self.queues.len()).rev() {
            if let Some(queue) = self.queues[nth] {
                self.queues[nth] = Some(self.work_at(nth, queue)?);
            }
        }
        Ok(())
    }

    fn work_at(&mut self, nth: usize, mut queue: Queue) -> Moved<Queue> {
        let slot = |queue: &Queue| u64::from(queue.next % queue.size);
        while self.reach.read_as::<u16>(Iova(queue.avail.0 + 2))? != queue.next {
            let available = Iova(queue.avail.0 + 4 + 2 * slot(&queue));
            let head: u16 = self.reach.read_as(available)?;
            let chain = self.reach.chain(queue.desc, head)?;
            let Some(written) = self.model.serve(&self.reach, nth, &chain)? else {
                break;
            };
            self.last = chain;
            let element = [u32::from(head), written];
            let used = Iova(queue.used.0 + 4 + 8 * slot(&queue));
            self.write(used, element.as_bytes())?;
            queue.next = queue.next.wrapping_add(1);
            self.write(Iova(queue.used.0 + 2), &queue.next.to_le_bytes())?;
            if self.accepted & EVENT_IDX != 0 {
                let event = Iova(queue.used.0 + 4 + 8 * u64::from(queue.size));
                self.write(event, &queue.next.to_le_bytes())?;
            }
        }
        Ok(queue)
    }
}

/// The transport of a device, of which the test has a clone.
pub struct Port<M>(Arc<Mutex<Virtio<M>>>);

impl<M> Clone for Port<M> {
    fn clone(&self) -> Self {
        Port(self.0.clone())
    }
}

impl<M: Model> Port<M> {
    /// A device that offers `features`.
    pub fn new(machine: Arc<Machine<Process>>, source: SourceId, features: u64, model: M) -> Self {
        Port(Arc::new(Mutex::new(Virtio {
            reach: Reach { machine, source },
            features,
            accepted: 0,
            status: DeviceStatus::empty(),
            queues: [None; 2],
            last: Vec::new(),
            on_reset: None,
            model,
        })))
    }

    pub fn device(&self) -> MutexGuard<'_, Virtio<M>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M: Model> Transport for Port<M> {
    fn device_type(&self) -> DeviceType {
        M::TYPE
    }
    fn read_device_features(&mut self) -> u64 {
        self.device().features
    }
    fn write_driver_features(&mut self, driver_features: u64) {
        self.device().accepted = driver_features;
    }
    fn max_queue_size(&mut self, _: u16) -> u32 {
        256
    }
    fn notify(&mut self, _: u16) {
        self.device().work().expect("the device has its rings");
    }
    fn get_status(&self) -> DeviceStatus {
        self.device().status
    }
    fn set_status(&mut self, status: DeviceStatus) {
        let mut device = self.device();
        let demanded = device.features & ACCESS_PLATFORM & !device.accepted;
        if status.contains(DeviceStatus::FEATURES_OK) && demanded != 0 {
            return; // it is left as it is, as QEMU does
        }
        device.status = status;
        if let Some(told) = device.on_reset.as_ref().filter(|_| status.is_empty()) {
            told();
        }
    }
    fn set_guest_page_size(&mut self, _: u32) {}
    fn requires_legacy_layout(&self) -> bool {
        false
    }
    fn queue_set(
        &mut self,
        queue: u16,
        size: u32,
        descriptors: PhysAddr,
        driver_area: PhysAddr,
        device_area: PhysAddr,
    ) {
        self.device().queues[usize::from(queue)] = Some(Queue {
            size: size as u16,
            desc: Iova(descriptors),
            avail: Iova(driver_area),
            used: Iova(device_area),
            next: 0,
        });
    }
    fn queue_unset(&mut self, queue: u16) {
        self.device().queues[usize::from(queue)] = None;
    }
    fn queue_used(&mut self, queue: u16) -> bool {
        self.device().queues[usize::from(queue)].is_some()
    }
    fn ack_interrupt(&mut self) -> InterruptStatus {
        InterruptStatus::empty()
    }
    fn read_config_generation(&self) -> u32 {
        0
    }
    fn read_config_space<T: FromBytes + IntoBytes>(&self, offset: usize) -> Result<T> {
        let space = self.device().config();
        let field = space.get(offset..offset + size_of::<T>());
        T::read_from_bytes(field.ok_or(Error::ConfigSpaceTooSmall)?).map_err(|_| Error::IoError)
    }
    fn write_config_space<T: IntoBytes + Immutable>(&mut self, _: usize, _: T) -> Result<()> {
        Err(Error::Unsupported)
    }
}
