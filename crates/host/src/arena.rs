// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A heap over real memory of this process: a buddy allocator behind one lock.
//!
//! The arena is mapped and not touched, so a large one costs address space until it is used. The
//! buddy system is the crate `buddy_system_allocator`; it keeps its free lists in free blocks, and
//! no headers. It finds buddies by address, so the arena begins at a multiple of its own size.
//! Beside it lies a tag for each 8 bytes: the size of the block that begins there, if one is
//! allocated, as a slab allocator keeps it with the page. By it a free is checked.
//!
//! No caller is given a pointer into the arena, only offsets.
use super::*;
use buddy_system_allocator::Heap as Buddies;
use core::{alloc::Layout, ptr::NonNull};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::sync::{Mutex, MutexGuard, PoisonError, atomic::AtomicU8};

/// Blocks of up to 2^36 bytes: 64 GiB.
const ORDERS: usize = 37;
/// The largest arena: 64 GiB, beyond which ATC'15 §4.2 has no use for it.
pub const ARENA_MAX: ByteCount = ByteCount(1 << (ORDERS - 1));

/// An arena and its allocator.
pub struct Arena {
    /// What was mapped, `mapped` bytes of it: the tags, and somewhere behind them the arena.
    mapping: NonNull<core::ffi::c_void>,
    mapped: usize,
    base: usize,
    len: ByteCount,
    free: Mutex<Buddies<ORDERS>>,
}

// SAFETY: the arena is reached through `free` alone, under its lock; the tags are atomic, and
// everything else is a number.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

/// Why there is no arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ArenaError {
    /// Too small for any block, or beyond what blocks can be.
    #[error("a heap of {len} bytes: it must have 16 to {ARENA_MAX}")]
    Size {
        /// Bytes wanted, a multiple of 8.
        len: ByteCount,
    },
    /// The system has no room for it.
    #[error("no room for a heap of {len} bytes (error number {errno})")]
    NoRoom {
        /// Bytes wanted, a multiple of 8.
        len: ByteCount,
        /// What the system said.
        errno: i32,
    },
}

impl Arena {
    /// An arena of `len` bytes, rounded down to a multiple of 8, all of it free but the first 8.
    ///
    /// # Errors
    /// The length has no arena, or the system has no room ([`ArenaError`]).
    pub fn new(len: ByteCount) -> Result<Self, ArenaError> {
        let min = HeapBlock::MIN.0;
        let len = ByteCount(len.0 / min * min);
        if len.0 < 2 * min || len > ARENA_MAX {
            return Err(ArenaError::Size { len });
        }
        let align = len.0.next_power_of_two();
        let no_room = |errno| ArenaError::NoRoom { len, errno };
        let mapped = usize::try_from(len.0 / min + len.0 + align).map_err(|_| no_room(0))?;
        // SAFETY: a new anonymous mapping, at an address of the system's choice, touches no memory
        // that exists.
        let mapping = unsafe {
            mmap_anonymous(
                core::ptr::null_mut(),
                mapped,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let mapping = mapping.map_err(|error| no_room(error.raw_os_error()))?;
        let Some(mapping) = NonNull::new(mapping) else {
            return Err(no_room(0));
        };
        let tags_end = mapping.as_ptr().expose_provenance() + (len.0 / min) as usize;
        let base = tags_end.next_multiple_of(align as usize);
        let mut free = Buddies::empty();
        // SAFETY: the range lies in the mapping, which nothing else uses and which outlives `free`.
        unsafe { free.add_to_heap(base + min as usize, base + len.0 as usize) };
        Ok(Arena {
            mapping,
            mapped,
            base,
            len,
            free: Mutex::new(free),
        })
    }

    fn free(&self) -> MutexGuard<'_, Buddies<ORDERS>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Up to `many` free blocks of `len` bytes, to be kept by the cache that takes them;
    /// each goes to `sink`.
    pub(super) fn take(&self, len: ByteCount, many: usize, mut sink: impl FnMut(u64)) -> usize {
        let Some(layout) = layout(len).filter(|_| len <= self.len) else {
            return 0;
        };
        let mut free = self.free();
        let blocks = core::iter::from_fn(|| free.alloc(layout).ok());
        let offsets = blocks.map(|block| (block.as_ptr().addr() - self.base) as u64);
        offsets.take(many).map(&mut sink).count()
    }

    /// Takes such blocks back, or those that [`untag`](Self::untag) has let go.
    ///
    /// # Safety
    /// Each came from [`take`](Self::take) with this length, and was not given since.
    pub(super) unsafe fn give(&self, len: ByteCount, offsets: impl Iterator<Item = u64>) {
        let Some(layout) = layout(len) else { return };
        let mut free = self.free();
        for offset in offsets {
            let at = core::ptr::with_exposed_provenance_mut(self.base + offset as usize);
            if let Some(at) = NonNull::new(at) {
                // SAFETY: the caller's promise.
                unsafe { free.dealloc(at, layout) };
            }
        }
    }

    /// The block belongs to a caller from now on.
    #[inline]
    pub(super) fn tag(&self, offset: u64, len: ByteCount) -> HeapBlock {
        let tag = 1 + len.0.trailing_zeros() as u8;
        self.tags()[tag_of(offset)].store(tag, Ordering::Relaxed);
        HeapBlock {
            offset: ByteCount(offset),
            len,
        }
    }

    /// The block belongs to no caller any more. Of two that free one block, one succeeds.
    #[inline]
    pub(super) fn untag(&self, block: HeapBlock) -> Result<(), HeapBlockError> {
        let HeapBlock { offset, len } = block;
        let tag = 1 + len.0.trailing_zeros() as u8;
        let fits = len.0.is_power_of_two()
            && offset.0.is_multiple_of(HeapBlock::MIN.0)
            && offset < self.len
            && self.tags()[tag_of(offset.0)]
                .compare_exchange(tag, 0, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if !fits {
            return Err(HeapBlockError(block));
        }
        Ok(())
    }

    fn tags(&self) -> &[AtomicU8] {
        let tags = self.mapping.as_ptr().cast::<AtomicU8>();
        // SAFETY: the mapping begins with that many bytes, zero at first and atomic ever since; it
        // lives as long as `self`.
        unsafe { core::slice::from_raw_parts(tags, tag_of(self.len.0)) }
    }
}

fn tag_of(offset: u64) -> usize {
    (offset / HeapBlock::MIN.0) as usize
}

/// The allocator rounds by itself, so `len` is a block's.
fn layout(len: ByteCount) -> Option<Layout> {
    let len = usize::try_from(len.0).ok()?;
    Layout::from_size_align(len, len).ok()
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, just so, and nothing has a pointer into it.
        let unmapped = unsafe { munmap(self.mapping.as_ptr(), self.mapped) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

impl Heap for Arena {
    fn arena(&self) -> ByteCount {
        self.len
    }
    fn in_use(&self) -> ByteCount {
        ByteCount(self.free().stats_alloc_actual() as u64)
    }
    fn alloc(&self, len: ByteCount) -> Option<HeapBlock> {
        let len = HeapBlock::rounded(len)?;
        let mut found = None;
        self.take(len, 1, |offset| found = Some(offset));
        found.map(|offset| self.tag(offset, len))
    }
    fn free(&self, block: HeapBlock) -> Result<(), HeapBlockError> {
        self.untag(block)?;
        // SAFETY: its tag said that it was taken with this length, and no other caller
        // has removed that tag.
        unsafe { self.give(block.len, core::iter::once(block.offset.0)) };
        Ok(())
    }
}
