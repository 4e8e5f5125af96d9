// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A vhost-user-net back end over a device IOTLB (KVM'17): split and packed rings by IOVA,
//! mergeable receive buffers, event index, indirect descriptors, several queue pairs; loopback, MAC
//! swap or TAP; polling or notified.
//!
//! [`Net`] is a device for [`ioatlas_vhost::runner`]. Below it, [`ring`] is the two layouts as code
//! over translated memory, [`queue`] reads ahead and translates a burst at once, [`pair`] says
//! which are ready, [`port`] moves them.
//!
//! The guest is hostile: nothing here trusts a word of its memory, and a driver that breaks the
//! rules stops its own queue, with a reason.
#![deny(unsafe_code)]

mod device;
pub mod frame;
pub mod guest;
pub mod pair;
pub mod port;
pub mod queue;
pub mod ring;
mod stats;
mod tap;
mod waits;

pub use device::{INDIRECT_DESC, Layouts, MAX_PAIRS, MQ, Mode, Net, NetConfig, NetError, Wakeup};
pub use pair::MRG_RXBUF;
pub use stats::PairStats;
pub use tap::{Tap, TapError, TapLost, TapQueues};

/// The example in README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
