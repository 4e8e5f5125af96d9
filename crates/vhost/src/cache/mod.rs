// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The contract of a device IOTLB, and the structures behind it.
//!
//! # Vocabulary
//!
//! An *entry* is what the front end says in one update: IOVA range, host address, permission. A
//! *run* is what a cache makes of entries: a longest IOVA range whose host addresses are contiguous
//! and whose permission is one. A *piece* is the part of a run that a lookup asked for. A *guard*
//! is the time in which a reader may use what it looked up.
//!
//! # Invariants, of every implementation
//!
//! * A piece never spans host addresses that are not contiguous (P12).
//! * An invalidation is done only when every guard has been dropped that could have looked up what
//!   it removed (P12).
//! * An invalidation beats an update that races with it: an update of a range whose invalidation is
//!   not done yet is dropped, and said to be ([`Updated::Beaten`]); see also
//!   [`DeviceIotlb::update_since`] (P12).
//! * A later update wins over an earlier one, whatever of size, permission or host address it
//!   changes.
//! * It is a cache: any translation but those that [`DeviceIotlb::pin`] holds may be gone at the
//!   next guard. It never holds one that no update gave.
//!
//! Memory safety rests on the first three: code that turns what a lookup gives into memory
//! (`guest_memory`) cannot check it. So the traits are sealed, and there are no implementations but
//! those here.
//!
//! # Locking
//!
//! Writers (update, invalidate, clear, pin) take turns behind a lock of the cache. How readers meet
//! writers is each implementation's: those of `baselines` make a writer wait for guards, in *every*
//! writing call. So a thread must not write to a cache while it is under a guard of that cache.

/// What seals the traits.
mod private {
    pub trait Sealed {}
}

mod audit;
#[cfg(feature = "baselines")]
pub mod baselines;
mod contract;
pub mod radix;
mod range;
mod run;
mod types;
mod upkeep;

pub use audit::{Census, Stats};
pub use contract::{DeviceIotlb, Guard, IotlbReader, Pieces, Updates};
pub use radix::RadixIotlb;
pub use range::{RangeError, Span};
pub use run::Run;
pub use types::*;
pub(crate) use upkeep::Upkeep;
