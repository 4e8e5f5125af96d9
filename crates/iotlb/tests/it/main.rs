// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The integration tests of this crate, in one program: each is a module.

mod bad_input;
mod bundled;
mod bytes_and_tasks;
mod differential;
mod import;
mod naive;
mod ragged;
#[cfg(feature = "viommu")]
mod record;
mod strategies;
mod traffic;
