// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The full fence of a process.
//!
//! Every unmap has one between clearing its leaves and reading the domain's sequence number. On x86
//! compilers make `mfence` of it, which also waits for all that is not ordinary memory and takes 16
//! ns where this was measured; any locked instruction orders ordinary loads and stores as well
//! (Intel SDM volume 3, "Memory Ordering in P6 and More Recent Processor Families"), and takes 2
//! ns. Linux' `smp_mb` is one, too.

use core::sync::atomic::{self, Ordering};
use std::io::{self, Write};

#[inline]
pub(super) fn fence(order: Ordering) {
    #[cfg(target_arch = "x86_64")]
    if order == Ordering::SeqCst {
        // SAFETY: adds nothing to a word below the stack pointer, which is ours: what it holds
        // stays as it is. The compiler moves no access to memory across, since the block may touch
        // any.
        unsafe { core::arch::asm!("lock or dword ptr [rsp - 4], 0", options(nostack)) };
        return;
    }
    atomic::fence(order)
}

/// Ends the process, since `membarrier` has ceased to work while readers rely on it. A panic would
/// not do: it can be caught, and other threads go on.
#[cold]
pub(super) fn lost(why: io::Error) -> ! {
    // If it cannot be read, the process ends all the same.
    let _ = writeln!(
        io::stderr(),
        "ioatlas: membarrier worked when this process began and fails now ({why}). Memory could be \
         used after its invalidation, so the process ends. A seccomp filter has to allow membarrier, \
         or has to be installed before the first cache or domain is made."
    );
    std::process::abort()
}

/// Orders everything before against everything after, in all threads, at the price
/// that the statement above names. For rings that are shared with another process,
/// where no [`super::Host`] is available.
#[inline]
pub fn full_fence() {
    fence(Ordering::SeqCst)
}
