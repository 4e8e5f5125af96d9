// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A machine with a device, and the end of it, by which everything must be back.

use crate::platform::{Process, phys};
use crate::soft::{FRAMES, SoftDma, end_domain, end_machine, machine};
pub use crate::soft::{deferred, strict};
use dma_api::DeviceDma;
use ioatlas_dma::{dma_api::*, domain::DomainConfig, table::fmt::VtdSecond48, units::*};
use ioatlas_dma_api::Device;
use ioatlas_viommu::machine::{Machine, TransferError};
use std::ptr::{self, NonNull};
use std::sync::Arc;

const SOURCE: SourceId = SourceId(0x20);

pub const PAGE: usize = GRANULE as usize;

/// A buffer of more than a page has whole granules that are mapped where they are.
pub const UNTRUSTED: Placement = Placement::Untrusted {
    whole_up_to: ByteCount(GRANULE),
};

pub const PLACEMENTS: [Placement; 4] = [
    Placement::Never,
    Placement::Always,
    UNTRUSTED,
    Placement::Below(ByteCount(2 * GRANULE)),
];

/// A machine, and one device with its domain.
pub struct Rig {
    machine: Arc<Machine<Process>>,
    pub dma: Arc<SoftDma>,
    device: &'static Device,
}

pub fn placed(placement: Placement) -> ClientConfig {
    ClientConfig::default().placement(placement)
}

impl Rig {
    /// In a strict domain, with one client.
    pub fn new(placement: Placement) -> Self {
        Self::of(strict(), &[placed(placement)], phys)
    }

    /// With a client of each config, in this order, and buffers where `phys` says.
    pub fn of(
        domain: DomainConfig,
        clients: &[ClientConfig],
        phys: impl Fn(NonNull<u8>) -> PhysAddr + Send + Sync + 'static,
    ) -> Self {
        let machine = machine(FRAMES);
        let domain = machine.domain::<VtdSecond48>(domain).unwrap();
        domain.attach(SOURCE).unwrap();
        let dma = Arc::new(Dma::new(Arc::new(domain), DmaConfig::default()));
        let mut clients = clients.iter().map(|config| dma.client(*config).unwrap());
        // SAFETY: physical addresses are the process's own, or of another view of the same bytes;
        // tests that reach a buffer that is mapped do so by the unit. What the device could do
        // beside a buffer no test has it do.
        let device = unsafe { Device::new(clients.next().unwrap(), phys) };
        // SAFETY: as above; all are of one `Dma`.
        let device = clients.fold(device, |device, client| unsafe { device.or(client) });
        Rig {
            machine,
            dma,
            device: Box::leak(Box::new(device)),
        }
    }

    /// What drivers have.
    pub fn driver(&self) -> DeviceDma {
        self.device.dma()
    }
    pub fn device(&self) -> &'static Device {
        self.device
    }

    /// The device reads `len` bytes.
    pub fn read(&self, at: u64, len: usize) -> Result<Vec<u8>, TransferError> {
        let mut bytes = vec![0; len];
        self.machine.dma_read(SOURCE, Iova(at), &mut bytes)?;
        Ok(bytes)
    }
    /// The device writes.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), TransferError> {
        self.machine.dma_write(SOURCE, Iova(at), bytes)
    }
    /// Neither way, not a byte.
    pub fn is_blocked(&self, at: u64) -> bool {
        self.read(at, 1).is_err() && self.write(at, &[0xee]).is_err()
    }

    pub fn frames_in_use(&self) -> u64 {
        self.machine.platform().frames_in_use()
    }
    /// Faults that the unit has recorded since the last call.
    pub fn faults(&self) -> usize {
        self.machine.unit().take_faults().records.len()
    }
    pub fn flush(&self) {
        self.dma.domain().flush().unwrap();
    }

    /// Ends all of it after the drivers have ended: nothing is mapped, and no frame taken.
    pub fn end(self) {
        let Rig {
            machine,
            dma,
            device,
        } = self;
        // SAFETY: it was leaked by `of`, and no driver has the reference any more.
        drop(unsafe { Box::from_raw(ptr::from_ref(device).cast_mut()) });
        end_domain(dma);
        end_machine(machine);
    }
}
