// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Guest memory that shrinks under our feet.
//!
//! The front end can truncate a file that we have mapped; the next access to what is gone raises
//! `SIGBUS`, which ends a process that does not handle it. A file with the seal `F_SEAL_SHRINK`
//! cannot be truncated, and yet an access to it can raise the signal: where a huge page has to be
//! made and the pool is empty, where the machine's memory fails. So every region is watched: the
//! process gets, once, a handler that puts zeroed anonymous memory in the place of the *whole
//! region* and marks it dead; the access is repeated, reads zeros or writes where nothing looks,
//! and the code that drives the queues sees the mark at the end of the guard and stops the device.
//! (The whole region, because huge pages cannot be replaced in parts, and nothing in it is worth
//! having once its owner has gone mad.)
//!
//! # Memory ordering and what a signal handler may do
//! The handler reads a table of words that is allocated before it is installed, and makes one
//! system call. A slot is published by storing its `start` last (release) and withdrawn by clearing
//! it first, before the region is unmapped; the handler takes a slot only if `start` is the same
//! before and after it read `end`. A region in which a thread faults is still mapped, hence
//! published, so its slot is stable.
//!
//! Not handled: a system that grants no anonymous memory of a region's length; the process ends
//! then. Memory errors of the machine (also `SIGBUS`) within a region look like a truncation, and
//! end the device, which is as good. Addresses that are not ours go to the handler that was there
//! before.

use ioatlas_dma::platform::{Ordering, Platform};
use ioatlas_host::Host;
use std::sync::OnceLock;

type Word = <Host as Platform>::A64;

/// Regions of a process at a time: four back ends with as many as the protocol can add to each.
const SLOTS: usize = 4 * 512;

struct Slot {
    start: Word,
    end: Word,
    dead: Word,
}

struct Guard {
    slots: Box<[Slot]>,
    deaths: Word,
    before: libc::sigaction,
}

static GUARD: OnceLock<Option<Guard>> = OnceLock::new();

/// What marks a slot that is being filled: no mapping starts there.
const CLAIMED: u64 = 1;

/// A mapped region under the handler's care; dropping it withdraws the region.
#[derive(Debug)]
pub struct Watch {
    slot: usize,
}

/// Why no region can be watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WatchError {
    /// The system refused the handler.
    #[error("cannot handle SIGBUS")]
    NoHandler,
    /// The table is full.
    #[error("more than {SLOTS} regions of guest memory in this process")]
    Full,
}

impl Watch {
    /// Lets the handler replace `len` bytes at `start` when they are gone.
    ///
    /// # Safety
    /// `start` and `len` are exactly one mapping made by `mmap`, of whole pages of its file, which
    /// stays until the watch is dropped, and whose bytes no code trusts to stay what they are.
    pub(super) unsafe fn new(start: *mut u8, len: usize) -> Result<Self, WatchError> {
        let guard = GUARD
            .get_or_init(install)
            .as_ref()
            .ok_or(WatchError::NoHandler)?;
        let free = |slot: &Slot| {
            let claim =
                slot.start
                    .compare_exchange(0, CLAIMED, Ordering::Acquire, Ordering::Relaxed);
            claim.is_ok()
        };
        let slot = guard.slots.iter().position(free).ok_or(WatchError::Full)?;
        let it = &guard.slots[slot];
        it.dead.store(0, Ordering::Relaxed);
        it.end
            .store((start as usize + len) as u64, Ordering::Release);
        it.start.store(start as usize as u64, Ordering::Release);
        Ok(Watch { slot })
    }

    /// Whether the region has been replaced.
    pub fn is_dead(&self) -> bool {
        let guard = GUARD.get().and_then(Option::as_ref);
        guard.is_some_and(|guard| guard.slots[self.slot].dead.load(Ordering::Acquire) != 0)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(guard) = GUARD.get().and_then(Option::as_ref) {
            guard.slots[self.slot].start.store(0, Ordering::Release);
        }
    }
}

/// How many regions of this process were ever replaced.
pub fn deaths() -> u64 {
    let guard = GUARD.get().and_then(Option::as_ref);
    guard.map_or(0, |guard| guard.deaths.load(Ordering::Acquire))
}

fn install() -> Option<Guard> {
    let empty = |_| Slot {
        start: Word::new(0),
        end: Word::new(0),
        dead: Word::new(0),
    };
    // SAFETY: all-zero is a value of this plain struct.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: both point to structs of the right type; the handler only does what a signal handler
    // may. A fault between this call and the publication of the guard finds no guard and ends the
    // process, as it would have before.
    let installed = unsafe { libc::sigaction(libc::SIGBUS, &action, &mut before) };
    (installed == 0).then(|| Guard {
        slots: (0..SLOTS).map(empty).collect(),
        deaths: Word::new(0),
        before,
    })
}

extern "C" fn handler(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to a handler with SA_SIGINFO; for SIGBUS it holds
    // an address.
    let at = unsafe { (*info).si_addr() } as usize as u64;
    let Some(guard) = GUARD.get().and_then(Option::as_ref) else {
        return die();
    };
    for slot in &guard.slots {
        let start = slot.start.load(Ordering::Acquire);
        let end = slot.end.load(Ordering::Acquire);
        if start <= CLAIMED || at < start || at >= end {
            continue;
        }
        if slot.start.load(Ordering::Acquire) != start {
            continue;
        }
        slot.dead.store(1, Ordering::Release);
        guard.deaths.fetch_add(1, Ordering::Release);
        // SAFETY: `Watch::new`'s contract: the range is one mapping whose bytes no code trusts.
        let replaced = unsafe {
            libc::mmap(
                start as usize as *mut libc::c_void,
                (end - start) as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        return match replaced == libc::MAP_FAILED {
            false => (),
            true => die(),
        };
    }
    pass_on(&guard.before, signal, info, context);
}

/// Does what would have been done with a fault that is not ours.
fn pass_on(
    before: &libc::sigaction,
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    match before.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => die(),
        function if before.sa_flags & libc::SA_SIGINFO != 0 => {
            type Full = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
            // SAFETY: with SA_SIGINFO the address is that of a function of this type.
            let function: Full = unsafe { std::mem::transmute::<usize, Full>(function) };
            function(signal, info, context);
        }
        function => {
            type Short = extern "C" fn(libc::c_int);
            // SAFETY: without SA_SIGINFO the address is that of a function of this type.
            let function: Short = unsafe { std::mem::transmute::<usize, Short>(function) };
            function(signal);
        }
    }
}

/// Restores the default action: the access is repeated and ends the process, with the core dump
/// that it asks for.
fn die() {
    // SAFETY: all-zero is SIG_DFL without flags.
    let default: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: a valid struct; sigaction may be called in a handler.
    unsafe { libc::sigaction(libc::SIGBUS, &default, std::ptr::null_mut()) };
}
