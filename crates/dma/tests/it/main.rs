// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The integration tests of this crate, in one program: each is a module.

mod address_api;
mod allocators;
mod batches;
mod bounce;
mod chunks;
mod coherent;
mod combining;
mod doors;
mod heap_contexts;
mod heap_failure;
mod identity;
mod idle;
mod kmalloc;
mod loom;
mod options;
mod pending;
mod policies;
mod reserved_ranges;
mod simulated;
mod suspect;
mod tables;
mod warm_path;

/// For calls that a domain, or the DMA API, would make.
// SAFETY: memory is a test's own, and no unit but a test's sees tables.
pub const BY: ioatlas_dma::platform::Authority =
    unsafe { ioatlas_dma::platform::Authority::assume() };

/// Memory of a test's own, which no reference leads to.
pub fn lend<L>(list: L) -> ioatlas_dma::dma_api::Lent<L> {
    // SAFETY: arenas of tests are words, and addresses outside of them are reached by nothing.
    unsafe { ioatlas_dma::dma_api::Lent::new(list) }
}
