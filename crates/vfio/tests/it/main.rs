// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The integration tests of this crate, in one program: each is a module.

mod bounce;
mod suite;

/// For calls that a domain, or the DMA API, would make.
// SAFETY: memory is a test's own; the kernel is a model of one.
pub const BY: ioatlas_dma::platform::Authority =
    unsafe { ioatlas_dma::platform::Authority::assume() };

/// Memory of a test's own, which no reference leads to.
pub fn lend<L>(list: L) -> ioatlas_dma::dma_api::Lent<L> {
    // SAFETY: buffers live as long as a test, and are moved by copies.
    unsafe { ioatlas_dma::dma_api::Lent::new(list) }
}
