// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The designs that KVM'17 compares, to be measured beside [`RadixIotlb`]: its sorted list, the
//! interval tree of vhost in the kernel, and the IOTLB of `vm-memory`. Each keeps a copy for each
//! reader under a lock ([`Locked`]).
//!
//! Feature `baselines` of this crate has them: a back end needs none.

mod interval;
mod list;
mod locked;
mod store;
mod vm;

use super::*;

pub use interval::{IntervalIotlb, IntervalTree};
pub use list::{ListIotlb, SortedList};
pub use locked::{Locked, LockedGuard, LockedReader};
pub use store::Store;
pub use vm::{VmIotlb, VmMemory};
