// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The NVMe driver. See [`crate`] for the order in which to read.
//!
//! Source: NVM Express base specification 2.0, cited by section, and NVM command set specification
//! 1.0.

pub mod command;
pub mod controller;
mod error;
mod lent;
pub mod namespace;
pub mod prp;
pub mod queue;
pub mod registers;

pub use error::{NvmeError, Status};
pub use lent::settle;
