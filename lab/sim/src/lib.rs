// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A simulated multiprocessor: the core's real code on virtual CPUs.
//!
//! [`platform`] is the machine: words, locks, frames, interrupts, and coroutines as CPUs. On it a
//! [`World`](platform::World) runs one interleaving, drawn from a seed, so that many can be
//! explored and each replayed. [`timing`] is another scheduler of the same machine, with virtual
//! time and a cost for everything that is shared.

pub mod platform;
mod random;
pub mod timing;
