// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! One device with an I/O address space of its own: where most drivers in user space begin.
//!
//! What it is made of can be had by itself, for several devices in one space, or another platform:
//!
//! ```text
//! AnySpace::open   the kernel's space, and the device in it
//! UserSpace::new   memory that devices may reach
//! Vfio::domain     IOVAs and mappings of both
//! Domain::attach   from now on the device is a bus master
//! Dma::client      the DMA API, with bounce buffers
//! ```

use crate::{
    device::{AddressError, Device, PciAddress},
    error::OpenError,
    kernel::{Kernel, Linux},
    platform::{ArenaError, UserSpace, UserSpaceConfig},
    space::AnySpace,
    translator::{Vfio, VfioDomainError},
};
use ioatlas_dma::{
    dma_api::{AnyClient, Client, ClientConfig, Dma, DmaConfig, Placement, PoolError},
    domain::DomainConfig,
    translator::AttachError,
    units::{ByteCount, GRANULE, PageCount},
};
use std::{ops::Deref, sync::Arc};

/// The DMA API's client of a [`DmaDevice`].
pub type DmaClient<K = Linux> = Client<UserSpace, Vfio<AnySpace<K>>>;

/// A device that VFIO has given to this process, in an address space of its own: it reaches what is
/// mapped by this, and nothing else.
///
/// It is the [`Client`] with which its buffers are mapped. Clones are the same device; it is closed
/// with the last of them, and with the last array of [`Client::alloc_coherent`].
///
/// ```no_run
/// use ioatlas_vfio::{DmaDevice, device::BarIndex};
/// use ioatlas_dma::units::Direction;
///
/// let disk = DmaDevice::open("0000:01:00.0")?; // says what to do where it cannot
/// let queue = disk.alloc_coherent::<[u64; 8]>(64)?; // contiguous, for both sides
/// let registers = disk.device().bar(BarIndex(0))?;
/// registers.write(0x28, queue.iova().0)?;
///
/// let mut block = [0; 4096];
/// let mapped = disk.map_slice(&mut block, Direction::FromDevice)?;
/// // ... have the device write to mapped.iova(), and wait until it has ...
/// mapped.finish()?; // what it wrote is in the block
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DmaDevice<K: Kernel = Linux> {
    /// Before the device, which it makes quiet.
    client: DmaClient<K>,
    device: Device<K>,
}

impl DmaDevice {
    /// Opens the device at an address like `0000:01:00.0`, with what [`OpenOptions`] has by
    /// default.
    ///
    /// # Errors
    /// [`OpenDeviceError`], whose sentence says what to do.
    pub fn open(address: &str) -> Result<Self, OpenDeviceError> {
        OpenOptions::default().open(address)
    }
}

impl<K: Kernel> DmaDevice<K> {
    /// Its registers, configuration space and interrupts.
    pub fn device(&self) -> &Device<K> {
        &self.device
    }
    /// Memory that devices may reach: for buffers that are mapped where they are.
    pub fn memory(&self) -> &Arc<UserSpace> {
        self.client.dma().domain().platform()
    }
}

impl<K: Kernel> Clone for DmaDevice<K> {
    fn clone(&self) -> Self {
        DmaDevice {
            client: self.client.clone(),
            device: self.device.clone(),
        }
    }
}

impl<K: Kernel> From<DmaDevice<K>> for AnyClient {
    /// The client alone, for a driver that runs on other platforms, too.
    fn from(device: DmaDevice<K>) -> Self {
        device.client.into()
    }
}

impl<K: Kernel> Deref for DmaDevice<K> {
    type Target = DmaClient<K>;
    fn deref(&self) -> &DmaClient<K> {
        &self.client
    }
}

/// How a device is opened.
///
/// By default: strict, so that after an unmap the device reaches nothing; a buffer that shares a
/// page is bounced, so that the device never reaches what lies beside; 256 MiB of memory for
/// devices, of which only what is used is there.
///
/// ```no_run
/// use ioatlas_dma::{design::Design, dma_api::Placement, units::ByteCount};
/// use ioatlas_vfio::OpenOptions;
///
/// let disk = OpenOptions::default()
///     .memory(ByteCount(1 << 30))
///     .placement(Placement::Never)
///     .domain(Design::parse("magazine,deferred-percpu")?.domain)
///     .open("0000:01:00.0")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct OpenOptions {
    memory: UserSpaceConfig,
    domain: DomainConfig,
    dma: DmaConfig,
    client: ClientConfig,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            memory: UserSpaceConfig::default(),
            domain: DomainConfig::default(),
            dma: DmaConfig::default(),
            client: ClientConfig::UNTRUSTED,
        }
    }
}

impl OpenOptions {
    /// At most so much memory for page tables of ours, coherent arrays, bounce buffers, and buffers
    /// of [`UserSpace::buffer`]; whole pages.
    pub fn memory(mut self, bytes: ByteCount) -> Self {
        self.memory.pages = PageCount(bytes.0.div_ceil(GRANULE));
        self
    }
    /// Where and of what pages that memory is, and how many threads have caches of their own.
    pub fn user_space(mut self, config: UserSpaceConfig) -> Self {
        self.memory = config;
        self
    }
    /// Allocator, policy and aperture of IOVAs.
    pub fn domain(mut self, config: DomainConfig) -> Self {
        self.domain = config;
        self
    }
    /// Sizes of bounce buffers, and what else the DMA API may be told.
    pub fn dma(mut self, config: DmaConfig) -> Self {
        self.dma = config;
        self
    }
    /// Which buffers are bounced.
    pub fn placement(mut self, placement: Placement) -> Self {
        self.client.placement = placement;
        self
    }
    /// That, which addresses the device has, and which bits of them it looks at.
    pub fn client(mut self, config: ClientConfig) -> Self {
        self.client = config;
        self
    }

    /// Opens the device at an address like `0000:01:00.0`.
    ///
    /// # Errors
    /// [`OpenDeviceError`]; the device is closed then.
    pub fn open(self, address: &str) -> Result<DmaDevice, OpenDeviceError> {
        self.open_by(Arc::new(Linux), address)
    }

    /// The same by another kernel than this machine's, as a test's is.
    ///
    /// # Errors
    /// [`OpenDeviceError`]; the device is closed then.
    pub fn open_by<K: Kernel>(
        self,
        kernel: Arc<K>,
        address: &str,
    ) -> Result<DmaDevice<K>, OpenDeviceError> {
        let address: PciAddress = address.parse()?;
        let memory = Arc::new(UserSpace::new(self.memory)?);
        let space = AnySpace::open(kernel, &[address])?;
        let device = space.devices()[0].clone();
        let domain = Arc::new(Vfio::domain(memory, space, self.domain)?);
        domain.attach(address.source())?;
        let dma = Arc::new(Dma::new(domain, self.dma));
        let client = dma.client(self.client)?;
        Ok(DmaDevice { client, device })
    }
}

/// Why a device was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenDeviceError {
    /// That is no address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// There is no memory for devices.
    #[error(transparent)]
    Memory(#[from] ArenaError),
    /// The kernel does not give the device.
    #[error(transparent)]
    Space(#[from] OpenError),
    /// Its IOVAs are not those wanted.
    #[error(transparent)]
    Domain(#[from] VfioDomainError),
    /// It cannot be made a bus master.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// There is no pool of bounce buffers.
    #[error(transparent)]
    Pool(#[from] PoolError),
}
