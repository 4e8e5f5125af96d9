// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! This process as a platform whose memory devices may be given.
//!
//! # Theory
//!
//! VFIO maps *virtual* addresses, and pins what is behind them. So here **a frame is a page of this
//! process's address space, and its number is the page's virtual address divided by 4096**: a
//! [`PhysAddr`] of a buffer is its address as a pointer. Nothing has to be translated, a driver can
//! tell where a buffer is by looking at it, and neighbours in frame numbers are neighbours in
//! virtual memory, which is what one mapping covers, whether or not they are in physical memory.
//!
//! **Frames come from one arena**, reserved whole when the platform is made, and handed out lowest
//! first, so that what is allocated together adjoins. Untouched frames take no memory. Other memory
//! of the process can be lent ([`UserSpace::lend`]), which is unsafe, since devices write it behind
//! the language's back; what is neither is refused ([`DeviceMemory::address`]), so no buffer that
//! Rust has references to is mapped by mistake.
//!
//! **Where the arena lies** matters to `identity` alone, which needs addresses below a quarter of
//! the IOVAs, where the kernel maps nothing by itself: [`ArenaPlace::Below`] searches there. Over
//! an IOMMU of 39 bits that is 2^37.
//!
//! Threads have CPU slots as under [`Host`], whose locks and fences these are.
//!
//! The arena is not inherited by a child of `fork`: pinned pages and copy-on-write do not go
//! together.
//!
//! Locking: the free list has one lock, and lent ranges one for readers and writers. Not handled:
//! memory that moves between NUMA nodes; more than one arena.
#![allow(clippy::disallowed_types)] // this is a platform

mod arena;
mod buffer;
mod user_space;

pub use arena::{ArenaError, ArenaPlace, Pages};
pub use buffer::Buffer;
pub use user_space::{NotBorrowedError, UserSpace, UserSpaceConfig};

use crate::kernel::VirtAddr;
use ioatlas_dma::{platform::Platform, units::*};
use ioatlas_host::{Host, copy::InProcess};

/// Orders what this CPU wrote to memory before what it writes to registers next: a device that
/// is told finds it.
#[inline]
pub(crate) fn fence_before_registers() {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// A platform whose frames are memory of this process.
///
/// # Safety
/// What [`address`](Self::address) gives is memory to which no code has a reference that a device's
/// reads and writes would break: such as is accessed by atomic words, or as racing bytes. It stays
/// mapped in this process as long as the platform lives.
pub unsafe trait DeviceMemory: Platform {
    /// Where the frames of `run` are, all of them, one after the other; `None` where they are no
    /// memory that devices may have.
    fn address(&self, run: PhysRun) -> Option<VirtAddr>;
}

// SAFETY: the arena consists of atomic words, and lives as long as the host.
unsafe impl DeviceMemory for Host {
    /// In the arena, from frame 0, if it is that of [`Host::on_file`]. One on the heap is the
    /// heap's again afterwards, also where a device could not be kept off.
    fn address(&self, run: PhysRun) -> Option<VirtAddr> {
        let end = run.first.0.checked_add(run.pages.0)?;
        if end > self.frames() as u64 || !self.is_on_file() {
            return None;
        }
        let base = self
            .bytes(PhysRange::page(PhysPage(0)))
            .ok()?
            .expose_provenance() as u64;
        Some(VirtAddr(base + (run.first.0 << GRANULE_LG2)))
    }
}
