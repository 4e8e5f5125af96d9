// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The platform that designs run on here: this process, with a heap for those that take their IOVAs from one.

use ioatlas_dma::{
    platform::host::{Host, HostConfig},
    units::ByteCount,
};

/// Bytes of the heap, from which `kmalloc` takes eight at least for each mapping (ATC'15 §4.2): room for eight million.
/// They cost address space until they are used.
pub(crate) const HEAP: ByteCount = ByteCount(64 << 20);

/// A platform of so many frames and slots, with a heap.
///
/// # Errors
/// A sentence: the system has no room for the heap.
pub(crate) fn host(frames: usize, slots: usize) -> Result<Host, String> {
    let host = Host::new(HostConfig { frames, slots });
    host.with_heap(HEAP).map_err(|error| error.to_string())
}
