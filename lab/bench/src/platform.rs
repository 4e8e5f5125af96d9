// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The platform that designs are measured on: this process, with a heap for those that take their
//! IOVAs from one.

use crate::Failure;
use ioatlas_dma::{
    dma_api::Lent,
    platform::{DedicatedMemory, Platform},
    units::{ByteCount, CpuIndex},
};
use ioatlas_host::{Host, HostConfig, register};

/// Bytes of the heap, from which `kmalloc` takes eight at least for each mapping (ATC'15 §4.2):
/// room for eight million. They cost address space until they are used.
pub const HEAP: ByteCount = ByteCount(64 << 20);

/// A platform of so many frames and slots, with a heap.
///
/// # Errors
/// The system has no room for the heap.
pub fn host(frames: usize, slots: usize) -> Result<Host, Failure> {
    let host = Host::new(HostConfig::default().frames(frames).slots(slots));
    host.with_heap(HEAP).map_err(Failure::new)
}

/// A measurement's own memory, or addresses that no device is there to reach.
#[allow(unsafe_code)] // a promise
pub fn lend<L>(list: L) -> Lent<L> {
    // SAFETY: it is words of an arena that lives on, and what reaches it copies.
    unsafe { Lent::new(list) }
}

/// A platform whose CPUs a measurement's threads can have for themselves.
pub trait Slots: DedicatedMemory {
    /// Gives the calling thread a CPU of its own, and says which.
    fn enter(&self) -> CpuIndex;
}

impl Slots for Host {
    /// The slot of the thread, which it keeps until it exits; the shared one where this host
    /// has none so high.
    fn enter(&self) -> CpuIndex {
        register();
        self.pinned(|cpu| cpu.index())
    }
}
