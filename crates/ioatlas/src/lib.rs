// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! DMA protection that is strict *and* fast, for software that drives or emulates devices outside
//! the Linux kernel.
//!
//! A device reaches what its driver has mapped, until it is unmapped, and nothing else; an I/O
//! virtual address is given to another buffer only against proof that no translation cache has it
//! any more. This crate is the front door: one dependency, the names that a driver imports, and
//! behind features what it runs on.
//!
//! ```text
//! a driver        Client, AnyClient     map_slice, map_sg, alloc_coherent, unmap
//! the DMA API     Dma                   mapped where it is, or bounced: Placement
//! address space   Domain                IOVAs, and when to invalidate: DomainConfig
//! translations    page tables of our own, and a unit (vtd, testing); or the kernel's (vfio)
//! memory          Platform              a kernel, or a process (host)
//! ```
//!
//! | feature | brings | for |
//! |---|---|---|
//! | | [`dma`], `no_std` with `alloc` | what all others are made of |
//! | `vtd` | `vtd`, `no_std` | a kernel on Intel's units |
//! | `virtio-drivers` | `virtio_drivers`, `no_std` | drivers of the crate `virtio-drivers`, in a kernel |
//! | `dma-api` | `dma_api`, `no_std` | drivers on the crate `dma-api`, in a kernel |
//! | `vfio` | `vfio`, `host` | drivers in user space on Linux |
//! | `vhost` | `vhost`, `host` | vhost-user devices |
//! | `testing` | `testing`, `viommu`, `host` | tests of a driver, VMMs |
//!
//! # A driver, wherever it runs
//!
//! An [`AnyClient`] is a device's way to map, on whatever platform:
//!
//! ```
//! use ioatlas::{AnyClient, Coherent, Direction};
//!
//! pub struct Disk {
//!     dma: AnyClient,
//!     queue: Coherent<[u64]>, // contiguous, for CPU and device, for as long as the driver lives
//! }
//!
//! impl Disk {
//!     pub fn new(dma: AnyClient) -> Result<Self, Box<dyn std::error::Error>> {
//!         let queue = dma.alloc_coherent(64)?;
//!         Ok(Disk { dma, queue })
//!     }
//!     pub fn read(&mut self, lba: u64, block: &mut [u8]) -> Result<(), Box<dyn std::error::Error>> {
//!         let mapped = self.dma.map_slice(block, Direction::FromDevice)?;
//!         self.queue.write(0, mapped.iova().0);
//!         // ... ring the doorbell, and wait; or leave by `?`, and nothing stays mapped ...
//! #       let _ = lba;
//!         mapped.finish()?; // what the device wrote is in the block
//!         Ok(())
//!     }
//! }
//! ```
//!
//! # On VFIO
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use ioatlas::{AnyClient, vfio::DmaDevice};
//!
//! let nvme = DmaDevice::open("0000:01:00.0")?; // says what to do where it cannot
//! let dma = AnyClient::from(nvme);
//! # Ok(()) }
//! ```
//!
//! # Behind VT-d, in a kernel
//!
//! ```
//! # use ioatlas::{ContiguousMemory, CopyMemory, vtd::registers::Registers};
//! use ioatlas::{AnyClient, SourceId, vtd::units::Units};
//!
//! # fn begin<P: CopyMemory + ContiguousMemory, R: Registers>(
//! #     kernel: &std::sync::Arc<P>,
//! #     memory: impl ioatlas::vtd::acpi::find::PhysRead,
//! #     root_pointer: ioatlas::PhysAddr,
//! #     registers: impl FnMut(ioatlas::PhysAddr, ioatlas::ByteCount) -> Option<R>,
//! #     pci: impl ioatlas::vtd::acpi::PciConfig,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! // from now on the units that firmware announces block every device
//! let units = Units::from_acpi(kernel, &memory, root_pointer, registers)?;
//! let disk = units.device(SourceId::pci(0, 2, 0), &pci)?; // in a domain of its own, strict
//! let dma = AnyClient::from(disk);
//! # Ok(()) }
//! ```
//!
//! # In its tests
//!
//! ```
//! use ioatlas::{Direction, SourceId, testing::TestMachine};
//!
//! let machine = TestMachine::new()?;
//! let device = machine.device(SourceId::pci(0, 4, 0))?;
//!
//! let mut packet = vec![0; 1500];
//! let mapped = device.map_slice(&mut packet, Direction::FromDevice)?; // as the driver does
//! device.dma_write(mapped.iova(), &[7; 1500])?; // as the device does
//! assert!(device.dma_read(mapped.iova(), &mut [0]).is_err()); // it is mapped to be written
//! mapped.finish()?;
//! assert_eq!(packet, [7; 1500]);
//! device.check()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # In a kernel whose drivers pass addresses
//!
//! ```
//! use ioatlas::{AnyClient, Direction, Iova, Lent, PhysRange};
//!
//! /// # Safety
//! /// The frames are untyped memory, and stay the device's until `unmap` has returned.
//! pub unsafe fn map(dma: &AnyClient, frames: PhysRange) -> Option<Iova> {
//!     // SAFETY: the caller's.
//!     let frames = unsafe { Lent::new(frames) };
//!     let mapping = dma.map_single(frames, Direction::Bidirectional).ok()?;
//!     let (iova, _) = dma.into_raw(mapping).ok()?;
//!     Some(iova)
//! }
//! pub fn unmap(dma: &AnyClient, at: Iova, frames: PhysRange) -> bool {
//!     dma.unmap_raw(at, frames.len, None).is_ok() // under `strict` it is flushed, too
//! }
//! # let device = ioatlas::testing::TestMachine::new()?.device(ioatlas::SourceId::pci(0, 4, 0))?;
//! # let dma = device.client().clone().into();
//! # let frames = PhysRange::page(ioatlas::dma::units::PhysPage(7));
//! # let at = unsafe { map(&dma, frames) }.unwrap();
//! # assert!(unmap(&dma, at, frames) && !unmap(&dma, at, frames));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What a kernel implements is in [`dma::platform`]; `virtio_drivers` and `dma_api` have programs
//! for drivers of that crate, `vhost` that of a vhost-user device.
#![no_std]
#![forbid(unsafe_code)]

pub use ioatlas_dma as dma;
#[cfg(feature = "dma-api")]
pub use ioatlas_dma_api as dma_api;
#[cfg(any(feature = "testing", feature = "vfio", feature = "vhost"))]
pub use ioatlas_host as host;
#[cfg(feature = "vfio")]
pub use ioatlas_vfio as vfio;
#[cfg(feature = "vhost")]
pub use ioatlas_vhost as vhost;
#[cfg(feature = "testing")]
pub use ioatlas_viommu::{self as viommu, testing};
#[cfg(feature = "virtio-drivers")]
pub use ioatlas_virtio_drivers as virtio_drivers;
#[cfg(feature = "vtd")]
pub use ioatlas_vtd as vtd;

#[doc(inline)]
pub use ioatlas_dma::{
    design::Design,
    dma_api::{
        AnyClient, Client, ClientConfig, Coherent, CpuBuffer, DeviceBuffer, Dma, DmaBuffer,
        DmaConfig, DmaMapping, Lent, Mapped, MappedSlice, Placement,
    },
    domain::{Domain, DomainConfig},
    platform::{ContiguousMemory, CopyMemory, Platform},
    units::{ByteCount, Direction, Iova, PhysAddr, PhysRange, SourceId},
};

/// The example in README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
