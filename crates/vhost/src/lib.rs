// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#![doc = include_str!("../README.md")]
//!
//! # Layers
//!
//! ```text
//! runner          a device behind a socket: queues, guest memory, messages
//! guest_memory    vm_memory's GuestMemory, by IOVA: pins what a device touches
//! data_path       what a data path does: asks once for what is missing, keeps its rings
//! cache           DeviceIotlb, the contract, and the structures behind it
//! protocol        messages of vhost, the memory table, misses
//! server          the front end's half, for VMM authors
//! ```
//!
//! The device IOTLB is the cache that a back end keeps of its front end's translations (KVM'17).
#![deny(unsafe_code)]

#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub mod cache;
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub mod data_path;
#[allow(unsafe_code)] // slices of guest memory
pub mod guest_memory;
mod log_limit;
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub mod protocol;
pub mod runner;
pub mod server;

#[cfg(feature = "baselines")]
pub use cache::baselines::{IntervalIotlb, ListIotlb, VmIotlb};
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub use cache::{Census, Moment, RemovalCause, Removed, Updates};
pub use cache::{
    DeviceIotlb, Entry, Generation, Guard, HostAddr, Invalidation, IotlbReader, Limits,
    LookupError, Miss, MissCause, Piece, Pieces, PinError, RadixIotlb, RangeError, ReaderError,
    Span, Stats, UpdateError, Updated, covers,
};
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub use data_path::{Asked, MetaError, MetaTranslation, PendingMiss, PendingMisses};
