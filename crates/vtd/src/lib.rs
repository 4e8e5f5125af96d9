// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#![doc = include_str!("../README.md")]
//!
//! # Layers
//!
//! ```text
//! acpi            which units a machine has, and which devices are behind them
//! units           brings up all of them
//! driver::Unit    one unit: attach, invalidate, faults, shut down
//!   plan          which invalidations a change calls for
//!   queue, direct how they reach the unit: by its queue, or by registers
//!   layout        what lies in memory and in the capability registers
//! registers       the seam to the hardware: a kernel's accesses, or a software unit
//! ```
//!
//! [`fault`] says what a unit blocked, and why.
//!
//! Clause numbers are those of the VT-d specification, revision 4.1.
#![cfg_attr(not(test), no_std)]
#![deny(unsafe_code)] // but for promises, each with its reason

extern crate alloc;

pub mod acpi;
mod authority;
pub mod direct;
pub mod driver;
pub mod fault;
pub mod layout;
pub mod plan;
pub mod queue;
pub mod registers;
pub mod units;
