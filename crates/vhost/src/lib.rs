// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The device IOTLB of a vhost back end: the cache that it keeps of its front end's translations
//! (KVM'17).
//!
//! [`cache`] holds the contract, [`DeviceIotlb`], and the structures behind it; [`data_path`] what
//! a data path does with it: ask for what is missing once, remember where the rings are.
//! [`protocol`] speaks to the front end, [`guest_memory`] is `vm_memory::GuestMemory` over a cache,
//! [`runner`] runs a device behind a socket, and [`server`] is the front end's half, for VMM
//! authors.
#![deny(unsafe_code)]

pub mod cache;
pub mod data_path;
#[allow(unsafe_code)] // slices of guest memory
pub mod guest_memory;
mod log_limit;
pub mod protocol;
pub mod runner;
pub mod server;

#[cfg(feature = "baselines")]
pub use cache::baselines::{IntervalIotlb, ListIotlb, VmIotlb};
pub use cache::{
    Census, DeviceIotlb, Entry, Generation, Guard, HostAddr, Invalidation, IotlbReader, Limits,
    LookupError, Miss, MissCause, Moment, Piece, Pieces, PinError, RadixIotlb, RangeError,
    ReaderError, RemovalCause, Removed, Span, Stats, UpdateError, Updated, Updates, covers,
};
pub use data_path::{Asked, MetaError, MetaTranslation, PendingMiss, PendingMisses};

/// The example in README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
