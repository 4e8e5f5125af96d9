// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The full fence of a process.
//!
//! Every unmap has one between clearing its leaves and reading the domain's sequence number. On x86 compilers make `mfence` of it, which also waits for
//! all that is not ordinary memory and takes 16 ns where this was measured; any locked instruction orders ordinary loads and stores as well
//! (Intel SDM volume 3, "Memory Ordering in P6 and More Recent Processor Families"), and takes 2 ns. Linux' `smp_mb` is one, too.

use core::sync::atomic::{self, Ordering};

#[inline]
pub(super) fn fence(order: Ordering) {
    #[cfg(target_arch = "x86_64")]
    if order == Ordering::SeqCst {
        // SAFETY: adds nothing to a word below the stack pointer, which is ours: what it holds stays as it is. The compiler moves no access
        // to memory across, since the block may touch any.
        unsafe { core::arch::asm!("lock or dword ptr [rsp - 4], 0", options(nostack)) };
        return;
    }
    atomic::fence(order)
}

/// Orders everything before against everything after, in all threads, at the price that the statement above names. For rings that are shared
/// with another process, where no [`super::Host`] is at hand.
#[inline]
pub fn full_fence() {
    fence(Ordering::SeqCst)
}
