// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The platform's general-purpose allocator, as far as `kmalloc` (ATC'15 §4.2) needs it: it uses
//! addresses, never the memory.
//!
//! An address is an offset in the heap's arena. Rounding and alignment are part of the contract, so
//! that a block's length follows from the length asked for, and an allocation from its mapping.

use crate::units::ByteCount;

/// A block of a heap.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HeapBlock {
    /// Where it begins, in bytes from the start of the arena.
    pub offset: ByteCount,
    /// How long it is: what [`rounded`](Self::rounded) says.
    pub len: ByteCount,
}

impl HeapBlock {
    /// The smallest block: 8 bytes, as in Linux's kmalloc.
    pub const MIN: ByteCount = ByteCount(8);

    /// How long a block for `len` bytes is: a power of two, at least
    /// [`MIN`](Self::MIN). `None` beyond 2^63.
    #[inline]
    pub fn rounded(len: ByteCount) -> Option<ByteCount> {
        let len = len.0.max(Self::MIN.0);
        len.checked_next_power_of_two().map(ByteCount)
    }
}

/// What was to be freed is not allocated, at least not so.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no block of {} bytes at offset {:#x} of the heap is allocated", .0.len, .0.offset.0)]
pub struct HeapBlockError(pub HeapBlock);

/// A general-purpose allocator over an arena of real memory. Anybody may allocate from it.
///
/// # Contract
///
/// Blocks are disjoint while they are allocated, lie in the arena, and are naturally aligned (as
/// kmalloc's blocks of a power of two of bytes are). No block is at offset 0, as none is at
/// address 0. It scales, by whatever means, and may be called wherever the core may be.
pub trait Heap: Send + Sync {
    /// How large the arena is. It never changes.
    fn arena(&self) -> ByteCount;
    /// Bytes in blocks that are held. Exact only while nothing else uses the heap.
    fn in_use(&self) -> ByteCount;
    /// A block of [`HeapBlock::rounded`]`(len)` bytes, or `None` where there is none.
    fn alloc(&self, len: ByteCount) -> Option<HeapBlock>;
    /// Takes a block back.
    ///
    /// # Errors
    /// [`HeapBlockError`]; nothing has changed then.
    fn free(&self, block: HeapBlock) -> Result<(), HeapBlockError>;
}
