// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The integration tests of this crate, in one program: each is a module.

mod domain;
mod model;
mod orderings;
mod params;
mod platform;

/// For calls that a domain would make.
// SAFETY: memory is a test's own, and no unit but a test's sees tables.
const BY: ioatlas_dma::platform::Authority = unsafe { ioatlas_dma::platform::Authority::assume() };
