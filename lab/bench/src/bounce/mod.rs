// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Bounce buffers beside direct mapping, where translations cost something.
//!
//! # Theory
//!
//! What direct mapping costs depends on what keeps the translations: our own tables take
//! nanoseconds, a strict invalidation about one microsecond, a virtual IOMMU an exit, a monitor and
//! a system call for each request. So one domain runs over one translator that is made as
//! *expensive* as that: [`Expensive`] waits for what a [`Charge`] says, and holds one big lock
//! meanwhile where the original does. A [`Preset`] is a charge with its source.
//!
//! An *operation* is a driver's: a map, and later its unmap. A [`Load`] is operations of one size
//! and direction, so many in flight on one thread or two; the policies that are compared under a
//! load ([`Policy`]) have a domain each, and their slices alternate ([`cells`]). What a machine
//! makes of the times is in [`model`]: a CPU that also does other things for each operation, and a
//! device that moves only so many bytes a second. All costs are nanoseconds of one CPU.
//!
//! There is no device: accesses by one take no CPU time. So the bytes that are copied come from the
//! CPU's caches as far as they fit there, where a device may leave them in memory; what a copy
//! costs is measured beside each load, with the same bytes.

pub mod cells;
pub mod cost;
pub mod crossover;
pub mod expensive;
pub mod limits;
pub mod lists;
pub mod load;
pub mod memory;
pub mod model;
pub mod plan;
pub mod policy;
pub mod served;
pub mod study;

pub use cells::{Cell, Row, measure};
pub use cost::{BigLock, Charge, Cost, Preset};
pub use expensive::{Charged, Expensive};
pub use load::{Block, Load, Way};
pub use model::{Bound, Machine};
pub use policy::Policy;
