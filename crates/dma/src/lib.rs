// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#![doc = include_str!("../README.md")]
#![cfg_attr(
    feature = "unstable",
    doc = "\n**These pages are with `unstable`**: the mechanism is among them."
)]
//!
//! # Layers
//!
//! ```text
//! Client, AnyClient   dma_api      a driver's buffers, mapped where they are, or bounced (bounce)
//! Domain              domain       one I/O address space
//!   IOVAs             iova         eight allocators; magazines keep ranges for each CPU (magazine)
//!   invalidation      policy       when, and of what: an IOVA is free against proof (invalidation)
//!   translations      translator   page tables of ours under a unit (table), or a kernel's
//! Platform            platform     memory, locks, CPUs: a kernel, a process, a simulator
//! ```
//!
//! A [`domain::Domain`] allocates an IOVA for a buffer, installs the translation and returns a
//! [`domain::Mapping`]; unmapping clears the translation and *retires* the IOVA, which goes back to
//! its allocator only against proof that no translation cache holds it any more (`invalidation`).
//! Everything the core needs of its surroundings is one trait, [`platform::Platform`]. Which design
//! does what is chosen by words, as `magazine,strict` ([`design`]).
//!
//! # Words
//!
//! * *IOVA*: the address a device uses. *Granule*: the smallest mappable unit, 4 KiB; a *page* is
//!   one granule.
//! * *Domain*: a translator, an IOVA space and an invalidation policy, attached to one or more
//!   devices.
//! * *Allocator*: the IOVA allocator. *Allocation*: the right to write the leaves of one IOVA
//!   range.
//! * *Translator*: holds translations where a device's accesses meet them (our own tables under a
//!   remapping unit, a kernel's tables behind an ioctl, a software unit).
//! * *Retired*: unmapped, but perhaps still in some translation cache. *Flushed*: in no cache any
//!   more.
//! * *Completion*: proof that an invalidation that began at or after a sequence number is done.
//! * *Magazine*, *depot*: Bonwick's per-CPU stacks and their global exchange.
//! * *Walk cache*: the paging-structure cache of an IOMMU.
//! * *Quarantine*: what an invalidation that failed should have freed; it is never used again.
#![cfg_attr(not(test), no_std)]
// no block is unsafe but in unit tests; what is allowed are promises, item by item
#![deny(unsafe_code)]

extern crate alloc;

#[macro_use]
mod setters;

pub mod design;
pub mod dma_api;
pub mod domain;
pub mod platform;
pub mod translator;
pub mod units;

#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub mod bounce;
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub mod invalidation;
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub mod iova;
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub mod magazine;
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub mod policy;
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub mod table;
