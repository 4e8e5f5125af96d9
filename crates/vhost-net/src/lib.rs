// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#![doc = include_str!("../README.md")]
//!
//! # Layers
//!
//! ```text
//! Net         a device for ioatlas_vhost::runner
//!   pair      which queue pairs are ready
//!   port      where frames go: back, or to a TAP
//!   queue     reads ahead, and translates a burst at once
//!   ring      split and packed rings as code over translated memory
//! ```
//!
//! # Guests
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
