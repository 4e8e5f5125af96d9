// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Words that several CPUs, or the hardware, may touch at once.

use super::Ordering;

/// A 64-bit word that several CPUs, or the hardware, may touch at once. The machine's own,
/// `AtomicU64`, is one, where the machine has it; a 32-bit machine's platform brings a
/// word of its own.
///
/// Table entries and queue descriptors are such words too; they are read by hardware as
/// little-endian naturally aligned words, so only little-endian machines are supported.
pub trait Atomic64: Send + Sync {
    /// A word that holds `value`.
    fn new(value: u64) -> Self;
    /// Returns what the word holds.
    fn load(&self, order: Ordering) -> u64;
    /// Makes the word hold `value`.
    fn store(&self, value: u64, order: Ordering);
    /// Writes, and returns what was there.
    fn swap(&self, value: u64, order: Ordering) -> u64;
    /// Adds with wrap-around, and returns what was there.
    fn fetch_add(&self, value: u64, order: Ordering) -> u64;
    /// Writes `new` if the word holds `current`; returns what was there, `Err` if it differed.
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64>;

    /// Says that `what`, an element of a block of memory that a lock guards and by which it is not
    /// held, is read or written by the holder of the lock. Words and locks are seen by
    /// construction; what lies behind a pointer is not. Only a platform that follows cache lines
    /// asks; for all others this is nothing.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    #[inline(always)]
    fn touches<'b, T: 'b>(_what: impl FnOnce() -> Option<Element<'b, T>>) {}
    /// Says that a block is about to be freed, some of which [was touched](Self::touches).
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    #[inline(always)]
    fn frees<T>(_block: &[T]) {}
}

/// An element of a block of memory: the block, at least its beginning, and the element's index,
/// which may lie beyond what the slice shows.
pub type Element<'b, T> = (&'b [T], usize);
