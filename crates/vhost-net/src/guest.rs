// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Guest memory under a guard, without waiting.
//!
//! `GuardedMemory` of the guest-memory adapter waits for what is missing; a data path that reads
//! ahead must not. This is the same memory with the other half of the choice: what is missing is an
//! answer, and the guard goes on.
//!
//! The only module here that turns addresses into memory.
#![allow(unsafe_code)]

use ioatlas_dma::units::*;
use ioatlas_vhost::{
    Generation, Guard, IotlbReader, LookupError, Piece,
    guest_memory::{IovaMemory, MemoryId},
};
use vm_memory::VolatileSlice;

/// A guard of a thread's memory.
pub struct GuestGuard<'r, R: IotlbReader + 'r> {
    memory: MemoryId,
    guard: R::Guard<'r>,
}

/// When, and in whose memory, something was looked up: where these are alike, what was found under
/// one guard may be used in the other.
///
/// A generation alone does not say that: another memory's cache counts its own, and another
/// reader's guards are not waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    memory: MemoryId,
    generation: Generation,
}

impl<'r, R: IotlbReader> GuestGuard<'r, R> {
    /// Begins a guard, which ends when it is dropped.
    pub fn begin(memory: &'r mut IovaMemory<R>) -> Self {
        GuestGuard {
            memory: memory.id(),
            guard: memory.pin_cache(),
        }
    }

    /// Its memory, and the generation that it began in.
    #[inline]
    pub fn known(&self) -> Known {
        Known {
            memory: self.memory,
            generation: self.guard.generation(),
        }
    }

    /// Translates the first bytes of a range.
    ///
    /// # Errors
    /// As the cache's own lookup.
    #[inline]
    pub fn lookup(&self, iova: Iova, len: ByteCount, need: Perm) -> Result<Piece, LookupError> {
        self.guard.lookup(iova, len, need)
    }

    /// Begins to bring the first bytes of a piece into the CPU's cache, for what is about to be
    /// done with them: a header and the start of a frame are two lines. The other side of a ring
    /// has written them last, on another CPU, so that each comes from that CPU's cache.
    ///
    /// A hint: whatever the address, nothing is accessed, and nothing can fail.
    #[inline]
    pub fn prefetch(&self, piece: &Piece, access: AccessKind) {
        prefetch(piece, access);
    }

    /// The memory of a piece, which has as many bytes as it says.
    ///
    /// # Safety
    /// The piece was looked up under this guard, or in one whose [`known`](Self::known) is equal.
    #[inline]
    pub unsafe fn slice(&self, piece: &Piece) -> VolatileSlice<'_> {
        // SAFETY: the guard came from an `IovaMemory`, so the code that made that promised that
        // what the cache names is mapped until an invalidation of it is done. That waits for this
        // guard; and none that began before it changed what was looked up, since the generation is
        // the same (P12).
        unsafe { memory(piece) }
    }
}

/// Bytes of a cache line.
#[cfg(target_arch = "x86_64")]
const LINE: u64 = 64;

#[cfg(target_arch = "x86_64")]
#[inline]
fn prefetch(piece: &Piece, access: AccessKind) {
    let first = piece.host.0;
    let second = first + (piece.len.0 - 1).min(LINE);
    for at in [first, second] {
        // SAFETY: a prefetch is no access, neither for the language nor for the CPU, which drops
        // one that would fault.
        unsafe {
            match access {
                AccessKind::Read => core::arch::asm!(
                    "prefetcht0 [{}]", in(reg) at, options(nostack, preserves_flags, readonly)
                ),
                // Else the line comes to be shared, and is asked for again when it is written.
                // (CPUs without it ignore it.)
                AccessKind::Write => core::arch::asm!(
                    "prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly)
                ),
            }
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn prefetch(_: &Piece, _: AccessKind) {}

/// The memory of a piece, where there is no guard.
///
/// # Safety
/// As for [`GuestGuard::slice`], with a guard that lives as long as `'b`.
#[inline]
pub(crate) unsafe fn memory<'b>(piece: &Piece) -> VolatileSlice<'b> {
    // SAFETY: the caller's promise: what the cache names is mapped meanwhile.
    unsafe { VolatileSlice::new(piece.host.0 as usize as *mut u8, piece.len.0 as usize) }
}
