// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A disk of virtio in software, and the transport that leads to it.
//!
//! It reaches memory by [`Machine::dma_read`] and [`Machine::dma_write`] alone, with the addresses
//! that its driver gave it, in QEMU's order: the index of the available ring, its entry, the chain
//! of descriptors, the request, the data, the status, the used ring. It works in `notify`. As
//! QEMU's disks behind a virtual IOMMU it insists on the feature `ACCESS_PLATFORM`. A request whose
//! data are refused ends with the status `IOERR`; where a disk cannot even fetch work, or answer,
//! it panics, for its driver would wait for ever.

use crate::platform::Process;
use ioatlas_dma::units::*;
use ioatlas_viommu::machine::{Machine, TransferError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use virtio_drivers::{Error, PhysAddr, Result, transport::*};
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub const SECTOR: usize = 512;
pub const SECTORS: usize = 1024;

pub const FLUSH: u64 = 1 << 9;
pub const INDIRECT: u64 = 1 << 28;
pub const EVENT_IDX: u64 = 1 << 29;
pub const VERSION_1: u64 = 1 << 32;
pub const ACCESS_PLATFORM: u64 = 1 << 33;

/// Flags of descriptors.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const TABLE: u16 = 4;

/// The statuses of requests.
const OK: u8 = 0;
const IOERR: u8 = 1;
const UNSUPPORTED: u8 = 2;

/// A buffer that the driver gave the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shared {
    pub iova: Iova,
    pub len: usize,
    /// Whether the disk is to write it.
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

/// What a disk is, and has seen.
pub struct Disk {
    machine: Arc<Machine<Process>>,
    source: SourceId,
    /// What it offers.
    pub features: u64,
    accepted: u64,
    status: DeviceStatus,
    pub queue: Option<Queue>,
    pub sectors: Vec<u8>,
    /// The buffers of the last request, its header and status among them.
    pub last: Vec<Shared>,
    /// Where it moves data in place of the driver's buffers.
    pub astray: Option<Iova>,
    /// Why the last request failed.
    pub refused: Option<TransferError>,
    pub requests: u64,
}

type Moved = std::result::Result<(), TransferError>;

impl Disk {
    pub fn read(&self, iova: Iova, into: &mut [u8]) -> Moved {
        self.machine.dma_read(self.source, iova, into)
    }
    pub fn write(&self, iova: Iova, from: &[u8]) -> Moved {
        self.machine.dma_write(self.source, iova, from)
    }
    fn read_as<T: FromBytes + IntoBytes>(
        &self,
        iova: Iova,
    ) -> std::result::Result<T, TransferError> {
        let mut value = T::new_zeroed();
        self.read(iova, value.as_mut_bytes())?;
        Ok(value)
    }

    /// Serves what the driver has made available.
    fn work(&mut self) -> Moved {
        let is_ready = self.status.contains(DeviceStatus::DRIVER_OK);
        assert!(is_ready, "work for a disk that is not ready");
        let mut queue = self.queue.expect("a queue");
        let slot = |queue: &Queue| u64::from(queue.next % queue.size);
        while self.read_as::<u16>(Iova(queue.avail.0 + 2))? != queue.next {
            let head: u16 = self.read_as(Iova(queue.avail.0 + 4 + 2 * slot(&queue)))?;
            let chain = self.chain(queue.desc, head)?;
            let written = self.request(&chain)?;
            let element = [u32::from(head), written];
            self.write(
                Iova(queue.used.0 + 4 + 8 * slot(&queue)),
                element.as_bytes(),
            )?;
            queue.next = queue.next.wrapping_add(1);
            self.write(Iova(queue.used.0 + 2), &queue.next.to_le_bytes())?;
            if self.accepted & EVENT_IDX != 0 {
                let event = Iova(queue.used.0 + 4 + 8 * u64::from(queue.size));
                self.write(event, &queue.next.to_le_bytes())?;
            }
            self.queue = Some(queue);
        }
        Ok(())
    }

    /// The buffers of the chain that begins at descriptor `at` of the table at `table`.
    fn chain(
        &self,
        mut table: Iova,
        mut at: u16,
    ) -> std::result::Result<Vec<Shared>, TransferError> {
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

    /// Carries out one request; how many bytes were written.
    fn request(&mut self, chain: &[Shared]) -> std::result::Result<u32, TransferError> {
        let [header, data @ .., status] = chain else {
            panic!("a chain of {} buffers", chain.len());
        };
        self.last = chain.to_vec();
        self.requests += 1;
        let [kind, _, low, high]: [u32; 4] = self.read_as(header.iova)?;
        let mut sector = low as usize | (high as usize) << 32;
        let mut answer = OK;
        let mut written = 1;
        for part in data {
            let iova = self.astray.unwrap_or(part.iova);
            let bytes = sector * SECTOR..sector * SECTOR + part.len;
            let mut copy = vec![0; part.len];
            let moved = match (kind, part.write) {
                (0, true) => {
                    written += part.len as u32;
                    self.write(iova, &self.sectors[bytes])
                }
                (1, false) => self.read(iova, &mut copy).map(|()| {
                    self.sectors[bytes].copy_from_slice(&copy);
                }),
                (8, true) => self.write(iova, b"an ioatlas disk\0\0\0\0\0"),
                _ => panic!("request {kind} with {part:?}"),
            };
            if let Err(refused) = moved {
                self.refused = Some(refused);
                answer = IOERR;
            }
            sector += part.len / SECTOR;
        }
        if ![0, 1, 4, 8].contains(&kind) {
            answer = UNSUPPORTED;
        }
        self.write(status.iova, &[answer])?;
        Ok(written)
    }
}

/// The transport of a disk, of which the test has a clone.
#[derive(Clone)]
pub struct DiskPort(Arc<Mutex<Disk>>);

impl DiskPort {
    /// A disk of zeroes that offers `features`.
    pub fn new(machine: Arc<Machine<Process>>, source: SourceId, features: u64) -> DiskPort {
        let disk = Disk {
            machine,
            source,
            features,
            accepted: 0,
            status: DeviceStatus::empty(),
            queue: None,
            sectors: vec![0; SECTORS * SECTOR],
            last: Vec::new(),
            astray: None,
            refused: None,
            requests: 0,
        };
        DiskPort(Arc::new(Mutex::new(disk)))
    }

    pub fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Transport for DiskPort {
    fn device_type(&self) -> DeviceType {
        DeviceType::Block
    }
    fn read_device_features(&mut self) -> u64 {
        self.disk().features
    }
    fn write_driver_features(&mut self, driver_features: u64) {
        self.disk().accepted = driver_features;
    }
    fn max_queue_size(&mut self, _: u16) -> u32 {
        256
    }
    fn notify(&mut self, _: u16) {
        self.disk().work().expect("the disk has its rings");
    }
    fn get_status(&self) -> DeviceStatus {
        self.disk().status
    }
    fn set_status(&mut self, status: DeviceStatus) {
        let mut disk = self.disk();
        let demanded = disk.features & ACCESS_PLATFORM & !disk.accepted;
        if status.contains(DeviceStatus::FEATURES_OK) && demanded != 0 {
            return; // it is left as it is, as QEMU does
        }
        disk.status = status;
    }
    fn set_guest_page_size(&mut self, _: u32) {}
    fn requires_legacy_layout(&self) -> bool {
        false
    }
    fn queue_set(
        &mut self,
        _: u16,
        size: u32,
        descriptors: PhysAddr,
        driver_area: PhysAddr,
        device_area: PhysAddr,
    ) {
        self.disk().queue = Some(Queue {
            size: size as u16,
            desc: Iova(descriptors),
            avail: Iova(driver_area),
            used: Iova(device_area),
            next: 0,
        });
    }
    fn queue_unset(&mut self, _: u16) {
        self.disk().queue = None;
    }
    fn queue_used(&mut self, _: u16) -> bool {
        self.disk().queue.is_some()
    }
    fn ack_interrupt(&mut self) -> InterruptStatus {
        InterruptStatus::empty()
    }
    fn read_config_generation(&self) -> u32 {
        0
    }
    fn read_config_space<T: FromBytes + IntoBytes>(&self, offset: usize) -> Result<T> {
        // the capacity, and nothing else that a driver reads
        let space = (SECTORS as u64).to_le_bytes();
        let field = space.get(offset..offset + size_of::<T>());
        T::read_from_bytes(field.ok_or(Error::ConfigSpaceTooSmall)?).map_err(|_| Error::IoError)
    }
    fn write_config_space<T: IntoBytes + Immutable>(&mut self, _: usize, _: T) -> Result<()> {
        Err(Error::Unsupported)
    }
}
