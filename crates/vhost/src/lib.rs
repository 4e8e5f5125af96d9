// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The device IOTLB of a vhost back end: the cache that it keeps of its front end's translations (KVM'17).
//!
//! [`cache`] holds the contract, [`DeviceIotlb`], and the structures behind it; [`burst`] what a data path does with
//! it: translate a burst of descriptors ahead, ask for what is missing once, remember where the rings are.
//! [`protocol`] speaks to the front end, [`plug`] is `vm_memory::GuestMemory` over a cache, [`runner`] runs a device behind a socket, and
//! [`server`] is the front end's half, for VMM authors.
#![deny(unsafe_code)]

pub mod burst;
pub mod cache;
pub mod fuzz;
mod log_limit;
pub mod oracle;
#[allow(unsafe_code)] // slices of guest memory
pub mod plug;
pub mod protocol;
pub mod runner;
pub mod server;

pub use burst::{
    Asked, MetaError, MetaTranslation, PendingMiss, PendingMisses, Pretranslation, Wanted,
};
pub use cache::{
    BadRange, Burst, Census, DeviceIotlb, Entry, Generation, HostAddr, IntervalIotlb, Invalidation,
    IotlbReader, Limits, ListIotlb, LookupError, Miss, MissCause, Moment, NoReader, Piece, Pieces,
    PinError, RadixIotlb, RemovalCause, Removed, Span, Stats, UpdateError, Updated, Updates,
    VmIotlb, covers,
};
