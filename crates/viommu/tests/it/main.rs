// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The integration tests of this crate, in one program: each is a module.

mod attacks;
mod bounce;
mod coherent;
mod completions;
mod explorer;
mod suite;
#[cfg(not(ioatlas_killers))]
mod testing;
mod transfers;
#[cfg(not(ioatlas_killers))]
mod unit;

/// For calls that a domain, or the DMA API, would make.
// SAFETY: memory is a test's own, and devices are what the test says they do.
pub const BY: ioatlas_dma::platform::Authority =
    unsafe { ioatlas_dma::platform::Authority::assume() };

/// Memory of a test's own, which no reference leads to.
pub fn lend<L>(list: L) -> ioatlas_dma::dma_api::Lent<L> {
    // SAFETY: arenas of tests are words, and other addresses are reached by nothing.
    unsafe { ioatlas_dma::dma_api::Lent::new(list) }
}
