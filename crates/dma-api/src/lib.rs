// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#![doc = include_str!("../README.md")]
//!
//! # Theory
//!
//! Drivers on dma-api have a [`DeviceDma`](dma_api::DeviceDma), which asks its kernel for one
//! trait, [`DmaOp`](dma_api::DmaOp). A [`Device`] implements it, made of a device's clients of the
//! DMA API and of what only the kernel knows, where a buffer lies in physical memory:
//!
//! ```text
//! StreamingMap     map_streaming -> map_raw      sync_map_for_* -> sync_raw
//! CoherentArray    alloc_contiguous -> alloc_raw         (unmap_raw_unsynced, free_raw)
//!   -> DeviceDma   constraints are checked
//!     -> Device    the first client that keeps them
//!       -> AnyClient                  placement, limits, pools, domain, unit
//! ```
//!
//! A driver's DMA addresses are IOVAs then: the device reaches what its driver has mapped, and
//! nothing else but, where that is mapped directly, the rest of its pages. Arrays and boxes are
//! mapped for as long as the driver has them, and their frames are freed after the flush, whatever
//! the policy. Where buffers go is decided by a client's
//! [`Placement`](ioatlas_dma::dma_api::Placement).
//!
//! # What is synchronised
//!
//! A bounced buffer is copied where it is mapped, and by `prepare_for_device`,
//! `complete_for_cpu` and what calls these: the bytes that they name, no others. Dropping a
//! [`StreamingMap`](dma_api::StreamingMap) brings nothing back, as in dma-api itself: its driver
//! may have changed the buffer since it synchronised.
//!
//! # Constraints
//!
//! Each call comes with what its driver asks for: an address mask, an alignment, a boundary, a
//! longest segment. A client has its limits once and for all, so a device may have several clients
//! ([`Device::or`]), which are tried in turn until the address that one gives is as it was asked
//! for. That of a client that does not keep it is never seen by the driver.
//!
//! # What is not handled
//!
//! Devices that are not coherent with the CPU's caches. [`Device::info`] says that its device is;
//! for a `DeviceDma` that was told otherwise nothing is allocated coherently, and synchronising
//! panics.
//!
//! Arrays that are to be aligned to more than a page are refused where the platform's frames do not
//! happen to lie so: those of a buddy allocator do.
//!
//! # Contexts
//!
//! What maps or allocates may call the heap, with no lock held, and fails where that has nothing.
//! All may be called wherever those of the DMA API may that they lead to.
#![no_std]

extern crate alloc;

mod constraints;
mod device;

pub use device::Device;
/// The crate whose drivers run on this one, in the version that fits.
pub use dma_api;
