// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Intel VT-d: layouts, and a driver of one remapping unit.
//!
//! [`layout`] says what lies in memory and in the capability registers, [`plan`](mod@plan) which
//! invalidations a change calls for, [`queue`] and [`direct`] how it reaches the unit, [`fault`]
//! what the unit blocked and why, [`driver`] how a unit is brought up, used and shut down.
//! [`registers`] is the seam to the hardware. [`acpi`] says which units a machine has, [`units`]
//! brings up all of them.
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

/// The example in README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
