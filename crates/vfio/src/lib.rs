// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! DMA protection for drivers in user space: VFIO type 1 and iommufd as translators of
//! [`ioatlas_dma`].
//!
//! A device that the kernel has given to this process reaches what is mapped in its address space
//! and nothing else. This crate makes that space a
//! [`Translator`](ioatlas_dma::translator::Translator), so that `Domain` and the DMA API, with
//! their allocators, policies and bounce pools, work above it unchanged.
//!
//! ```no_run
//! use ioatlas_dma::{dma_api::*, domain::DomainConfig, units::*};
//! use ioatlas_vfio::{device::{BarIndex, PciAddress}, kernel::Linux, platform::*};
//! use ioatlas_vfio::{space::AnySpace, translator::Vfio};
//! use std::sync::Arc;
//!
//! let address: PciAddress = "0000:00:04.0".parse()?;
//! let space = AnySpace::open(Arc::new(Linux), &[address])?; // says what to do where it cannot
//! let device = space.devices()[0].clone();
//! let memory = Arc::new(UserSpace::new(UserSpaceConfig::default())?);
//! let domain = Arc::new(Vfio::domain(memory.clone(), space, DomainConfig::default())?);
//! domain.attach(address.source())?; // from now on it is a bus master
//!
//! let dma = Arc::new(Dma::new(domain, DmaConfig::default()));
//! let client = dma.client(ClientConfig::default())?;
//! let buffer = memory.buffer(ByteCount(4096)).ok_or("no memory")?;
//! let mapping = client.map_sg(buffer, Direction::FromDevice)?;
//! device.bar(BarIndex(0))?.write(0x80, mapping.iova().0)?; // as the device wants it
//! // ...
//! let buffer = client.unmap(mapping)?; // the device reaches it no more
//! # drop(buffer);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Words
//!
//! * *Space*: an I/O address space that the kernel keeps: a container under type 1, or an IOAS of
//!   an iommufd ([`space`]).
//! * *Frame*: a page of this process, by its virtual address ([`platform`]).
//! * *Pending*: unmapped by the core, and to be ended in the kernel by the next invalidation
//!   ([`translator`]).
//! * *Quiet*: a device that is no bus master, and was reset if it can be ([`device`]).
//!
//! # Order at the end
//!
//! `Domain` detaches its devices, which makes them quiet, then ends what is mapped, then closes the
//! space. A driver may drop its handles whenever it likes.

pub mod device;
pub mod error;
pub mod kernel;
pub mod platform;
#[cfg(feature = "simulated")]
pub mod simulated;
pub mod space;
pub mod translator;

/// The example in README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
