// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#![doc = include_str!("../README.md")]
//!
//! # Layers
//!
//! ```text
//! DmaDevice     a device, an address space for it, and the DMA API
//! device        registers, interrupts, configuration space, reset
//! translator    the space as a Translator: Domain and the DMA API work above it unchanged
//! space         a container of type 1, or an IOAS of iommufd
//! kernel        the calls; simulated: the same in this process
//! platform      an arena of memory for devices
//! ```
//!
//! A buffer of memory that is there for devices is mapped without a copy:
//!
//! ```no_run
//! use ioatlas_dma::units::{ByteCount, Direction};
//! use ioatlas_vfio::{DmaDevice, device::BarIndex};
//!
//! let nic = DmaDevice::open("0000:00:04.0")?; // says what to do where it cannot
//! let buffer = nic.memory().buffer(ByteCount(4096)).ok_or("no memory")?;
//! let mapping = nic.map_sg(buffer, Direction::FromDevice)?;
//! nic.device().bar(BarIndex(0))?.write(0x80, mapping.iova().0)?; // as the device wants it
//! // ...
//! let buffer = nic.unmap(mapping)?; // the device reaches it no more
//! # drop(buffer);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`DmaDevice`] has an address space for one device, with defaults that are right for most; what
//! it is made of is here, too, for all else.
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
mod dma_device;
pub mod error;
pub mod kernel;
pub mod platform;
#[cfg(feature = "simulated")]
pub mod simulated;
pub mod space;
pub mod translator;

pub use dma_device::{DmaClient, DmaDevice, OpenDeviceError, OpenOptions};
