// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The mapping that an interrupt ends.
//!
//! A driver maps a buffer, tells its device, hands the mapping over, and goes on; the completion
//! interrupt unmaps. It may hit whatever the kernel does at that time, a map in the same domain
//! included.

use crate::{Io, platform::Masked};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};
use ioatlas_dma::{domain::Mapping, platform::Lock};

/// By which vector, and what.
static PENDING: Masked<Option<(u64, Arc<Io>, Mapping)>> = Masked::new(None);
/// 1 while a map is under way.
pub static MAPPING: AtomicU64 = AtomicU64::new(0);
/// Interrupts that hit a map, and unmapped.
pub static HITS: AtomicU64 = AtomicU64::new(0);

/// Has the next interrupt by `vector` unmap.
pub fn hand_over(vector: u64, io: &Arc<Io>, mapping: Mapping) {
    PENDING.with(|pending| *pending = Some((vector, io.clone(), mapping)));
}
/// Whether it is still to come.
pub fn is_pending() -> bool {
    PENDING.with(|pending| pending.is_some())
}

/// In the interrupt. When unmap returns, the device reaches the buffer no more.
pub fn complete(vector: u64) {
    let taken = PENDING.with(|pending| pending.take_if(|(by, ..)| *by == vector));
    if let Some((_, io, mapping)) = taken {
        HITS.fetch_add(MAPPING.load(Ordering::SeqCst), Ordering::Relaxed);
        io.unmap(mapping).expect("unmap in an interrupt");
    }
}
