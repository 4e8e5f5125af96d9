// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The vhost-user protocol around the device IOTLB: what the `vhost` crate does not do, and no
//! more.
//!
//! `vhost` reads, checks and answers every request but message 22 (`IOTLB_MSG`), at which its
//! handler ends, and keeps the back channel's socket to itself. So [`socket`] looks at each request
//! before `vhost` does; [`message`] is message 22; [`misses`] asks on the back channel; [`memory`]
//! is the memory table, through which updates are translated; [`foreign`] closes files whose server
//! may never answer; [`sigbus`] survives memory that shrinks. What drives them is
//! [`runner`](crate::runner). `docs/upstream.md` says which small changes to `vhost` and
//! `vhost-user-backend` would make this module unnecessary.
//!
//! # What goes where
//! * *Update* (front end to us): front-end address, through the memory table, to pieces of host
//!   memory, into the cache. Outside the table: refused, with a line in the log.
//! * *Invalidate*: out of the cache; acknowledged when every guard has been dropped that could have
//!   used it.
//! * *Miss* (us to the front end): sent without waiting for a reply; the update is the answer.
//!   Bounded in number and in time.
//! * *Access failure*: told the front end when its answer does not permit the access.

pub mod foreign;
#[allow(unsafe_code)] // mmap
mod mapping;
#[allow(unsafe_code)] // host addresses inside mappings
pub mod memory;
pub mod message;
pub mod misses;
#[allow(unsafe_code)] // a signal handler
pub mod sigbus;
pub mod socket;

/// `VIRTIO_F_VERSION_1`: the device is not a legacy one.
pub const VERSION_1: u64 = 1 << 32;
/// `VIRTIO_F_ACCESS_PLATFORM`, `VIRTIO_F_IOMMU_PLATFORM` of old.
pub const ACCESS_PLATFORM: u64 = 1 << 33;
