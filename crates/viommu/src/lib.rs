// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A software VT-d remapping unit.
//!
//! [`unit::SoftUnit`] reads from memory the very tables and queue that hardware would, and decodes
//! them with code of its own. It has an IOTLB, walk caches and a context cache of configurable
//! geometry, walks in separable steps, and may evict and read ahead when it likes.
//! [`observe::Observer`] is told everything it does, in order.
//!
//! Clause numbers are those of the VT-d specification, revision 4.1.
#![deny(unsafe_code)] // but for promises, each with its reason

mod active;
pub mod announce;
mod caches;
pub mod config;
mod decode;
mod descriptor;
pub mod device;
pub mod fault;
pub mod invalidation;
pub mod machine;
pub mod message;
pub mod mmio;
pub mod observe;
pub mod oracle;
pub mod queue;
pub mod registers;
pub mod unit;
pub mod walk;
mod write_buffer;

/// The example in README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
