// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The mappings that an interrupt ends.
//!
//! A driver maps buffers, tells its device, hands the mappings over, and goes on; the completion
//! interrupt unmaps, one or a burst. It may hit whatever the kernel does at that time, a map in the
//! same domain included. They are in an array, so that the handler frees nothing.

use crate::{Io, platform::Masked};
use alloc::sync::Arc;
use core::array;
use core::sync::atomic::{AtomicU64, Ordering};
use ioatlas_dma::{domain::Mapping, platform::Lock};

/// Mappings that one interrupt ends, at most.
pub const BURST: usize = 16;
/// By which vector, and what.
type Pending = (u64, Arc<Io>, [Option<Mapping>; BURST]);
static PENDING: Masked<Option<Pending>> = Masked::new(None);
/// 1 while a map is under way.
pub static MAPPING: AtomicU64 = AtomicU64::new(0);
/// Interrupts that hit a map, and unmapped.
pub static HITS: AtomicU64 = AtomicU64::new(0);

/// Has the next interrupt by `vector` unmap the first [`BURST`] of `mappings`.
pub fn hand_over(vector: u64, io: &Arc<Io>, mappings: impl IntoIterator<Item = Mapping>) {
    let mut mappings = mappings.into_iter();
    let burst = array::from_fn(|_| mappings.next());
    PENDING.with(|pending| *pending = Some((vector, io.clone(), burst)));
}
/// Whether it is still to come.
pub fn is_pending() -> bool {
    PENDING.with(|pending| pending.is_some())
}

/// In the interrupt. When unmap returns, the device reaches the buffers no more.
pub fn complete(vector: u64) {
    let taken = PENDING.with(|pending| pending.take_if(|(by, ..)| *by == vector));
    if let Some((_, io, burst)) = taken {
        HITS.fetch_add(MAPPING.load(Ordering::SeqCst), Ordering::Relaxed);
        let mut burst = burst.into_iter().flatten();
        io.unmap_batch(&mut burst).expect("unmap in an interrupt");
    }
}
