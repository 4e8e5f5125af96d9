// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The integration tests of this crate, in one program: each is a module.

mod bounce;
mod suite;

/// For calls that a domain, or the DMA API, would make.
// SAFETY: memory is a test's own; the kernel is a model of one.
pub const BY: ioatlas_dma::platform::Authority =
    unsafe { ioatlas_dma::platform::Authority::assume() };
