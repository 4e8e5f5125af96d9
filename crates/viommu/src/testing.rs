// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A machine for the tests of a driver: memory, a remapping unit, and devices whose part the test
//! plays.
//!
//! [`TestMachine`] is a [`Machine`] with what most tests want: a process as the platform
//! ([`Host`]), tables of four levels, and for each device a domain, strict, whose client bounces
//! what shares a page. A driver that takes an [`AnyClient`] runs on it as on VFIO or in a kernel.
//!
//! ```
//! use ioatlas_dma::{dma_api::AnyClient, units::*};
//! use ioatlas_viommu::testing::TestMachine;
//!
//! /// The driver under test.
//! struct Nic {
//!     dma: AnyClient,
//! }
//! impl Nic {
//!     /// Receives by `device`, which is told where.
//!     fn receive(
//!         &self,
//!         packet: &mut [u8],
//!         device: impl FnOnce(Iova),
//!     ) -> Result<(), Box<dyn std::error::Error>> {
//!         let mapped = self.dma.map_slice(packet, Direction::FromDevice)?;
//!         device(mapped.iova());
//!         mapped.finish()?;
//!         Ok(())
//!     }
//! }
//!
//! let machine = TestMachine::new()?;
//! let device = machine.device(SourceId::pci(0, 4, 0))?;
//! let nic = Nic { dma: device.client().clone().into() };
//! let mut packet = [0; 1500];
//! nic.receive(&mut packet, |iova| {
//!     device.dma_write(iova, b"a packet").expect("it may write");
//!     assert!(device.dma_read(iova, &mut [0]).is_err(), "and not read");
//! })?;
//! assert_eq!(&packet[..8], b"a packet");
//! device.check()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Not here: an oracle, which judges every access in all states of the caches; it is told of
//! mappings by calls of its own ([`WatchedMachine`]).

use crate::machine::*;
use ioatlas_dma::{
    design::Design,
    dma_api::{Client, ClientConfig, Dma, DmaConfig, PoolError},
    domain::DomainConfig,
    table::fmt::VtdSecond48,
    translator::{AttachError, Paged},
    units::*,
};
use ioatlas_host::Host;
use std::{ops::Deref, sync::Arc};

#[cfg(doc)]
use ioatlas_dma::dma_api::AnyClient;

/// The DMA API's client of a [`TestDevice`].
pub type TestClient = Client<Host, Paged<Host, VtdSecond48, Arc<Driver<Host>>>>;

/// A machine without hardware, of 64 MiB. Clones are the same one.
#[derive(Clone)]
pub struct TestMachine(Arc<Machine<Host>>);

/// A device of it, attached to a domain of its own: the client that its driver has, and the
/// accesses that the test makes in its place.
#[derive(Clone)]
pub struct TestDevice {
    client: TestClient,
    source: SourceId,
    machine: TestMachine,
}

/// Why a machine has no such device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TestDeviceError {
    /// There is no domain for it.
    #[error(transparent)]
    Domain(#[from] SoftDomainError),
    /// It has one already, or there is no memory.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// There is no pool of bounce buffers.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

impl TestMachine {
    /// A unit that is brought up, and blocks every device.
    ///
    /// # Errors
    /// [`MachineError`], if its memory cannot be had.
    pub fn new() -> Result<Self, MachineError> {
        let memory = Arc::new(Host::new(Default::default()));
        let machine = Machine::new(memory, &UnitConfig::new(Geometry::VTD_48))?;
        Ok(TestMachine(Arc::new(machine)))
    }

    /// A device: strict, and with a client that bounces what shares a page.
    ///
    /// # Errors
    /// [`TestDeviceError`], if there is one with this number.
    pub fn device(&self, source: SourceId) -> Result<TestDevice, TestDeviceError> {
        self.device_with(
            source,
            DomainConfig::default(),
            DmaConfig::default(),
            ClientConfig::UNTRUSTED,
        )
    }

    /// The same under a design, pools and a placement of one's own.
    ///
    /// # Errors
    /// [`TestDeviceError`]; the device is blocked then, as before.
    pub fn device_with(
        &self,
        source: SourceId,
        design: impl Into<Design>,
        dma: DmaConfig,
        client: ClientConfig,
    ) -> Result<TestDevice, TestDeviceError> {
        let domain = Arc::new(self.0.domain::<VtdSecond48>(design)?);
        let dma = Arc::new(Dma::new(domain.clone(), dma));
        let client = dma.client(client)?;
        domain.attach(source)?;
        Ok(TestDevice {
            client,
            source,
            machine: self.clone(),
        })
    }

    /// The machine underneath.
    pub fn machine(&self) -> &Machine<Host> {
        &self.0
    }
}

impl TestDevice {
    /// What its driver maps with.
    pub fn client(&self) -> &TestClient {
        &self.client
    }
    /// By what the unit knows it.
    pub fn source(&self) -> SourceId {
        self.source
    }

    /// The device reads: [`Machine::dma_read`].
    ///
    /// # Errors
    /// [`TransferError`]: where it was refused, why, and after how many bytes.
    pub fn dma_read(&self, at: Iova, into: &mut [u8]) -> Result<(), TransferError> {
        self.machine.0.dma_read(self.source, at, into)
    }
    /// The device writes: [`Machine::dma_write`].
    ///
    /// # Errors
    /// [`TransferError`]: where it was refused, why, and after how many bytes.
    pub fn dma_write(&self, at: Iova, from: &[u8]) -> Result<(), TransferError> {
        self.machine.0.dma_write(self.source, at, from)
    }

    /// Checks the books of its domain, its pools and the unit (P10), and that no unmap failed where
    /// something was dropped. Nothing else may use them meanwhile.
    ///
    /// # Errors
    /// A sentence that names what is wrong.
    pub fn check(&self) -> Result<(), String> {
        let dma = self.client.dma();
        dma.domain().audit()?;
        dma.audit()?;
        self.machine.0.unit().audit()?;
        match dma.drop_errors() {
            0 => Ok(()),
            errors => Err(format!(
                "{errors} unmaps failed where something was dropped"
            )),
        }
    }
}

impl Deref for TestDevice {
    type Target = TestClient;
    fn deref(&self) -> &TestClient {
        &self.client
    }
}
