// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A gate before a queue, closed while one CPU flushes and frees, or (`macos`) collects.
//!
//! Linux 3.17 keeps its one queue's lock from the 250th unmap until the last range is freed, so
//! that all other CPUs' unmaps wait for the invalidation and for 250 frees (ATC'15 §3.2, figure 2).
//! No CPU waits here with a lock held, nor inside `pinned`; so an unmap that finds the gate closed
//! relaxes before it queues anything. The CPU that closed it goes through, and so does an unmap
//! that came in before it was closed. And all do after a while: an interrupt handler may be on top
//! of the very task that closed the gate, which has been moved to another CPU since. The gate
//! delays, it excludes none, and no correctness rests on it.

use crate::platform::*;
use crate::units::CpuIndex;

/// No CPU flushes. Else the word is the CPU that does, plus 1.
const OPEN: u64 = 0;
/// Turns that one waits before a closed gate, then goes through: longer than a batch
/// takes to be freed.
const PATIENCE: u32 = 1 << 14;

pub(super) struct Gate<P: Platform>(CachePadded<P::A64>);

/// Opens the gate when it is dropped, if its CPU is the one that closed it.
pub(super) struct Closed<'g, P: Platform>(Option<&'g Gate<P>>);

/// How a wait before a gate ended.
#[derive(PartialEq, Eq)]
pub(super) enum Waited {
    UntilOpen,
    /// The CPU that closed it may never open it: the caller goes through.
    ForTooLong,
}

impl<P: Platform> Gate<P> {
    pub fn new() -> Self {
        Gate(CachePadded(Atomic64::new(OPEN)))
    }
    /// Whether CPU `cpu` may pass.
    #[inline]
    pub fn lets_in(&self, cpu: CpuIndex) -> bool {
        let word = self.0.0.load(Ordering::Relaxed);
        word == OPEN || word == cpu.0 as u64 + 1
    }
    /// Whether all may pass.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.0.0.load(Ordering::Relaxed) == OPEN
    }
    /// Waits until CPU `cpu` may pass.
    pub fn wait(&self, p: &P, cpu: CpuIndex) -> Waited {
        for _ in 0..PATIENCE {
            if self.lets_in(cpu) {
                return Waited::UntilOpen;
            }
            p.relax();
        }
        Waited::ForTooLong
    }
    /// Closes the gate for all but CPU `cpu`, unless another CPU has it closed.
    pub fn try_close(&self, cpu: CpuIndex) -> Option<Closed<'_, P>> {
        let (mine, order) = (cpu.0 as u64 + 1, Ordering::Relaxed);
        match self.0.0.compare_exchange(OPEN, mine, order, order) {
            Ok(_) => Some(Closed(Some(self))),
            // beneath an interrupt handler, or on a slot that threads share: theirs to open
            Err(word) if word == mine => Some(Closed(None)),
            Err(_) => None,
        }
    }
    /// Closes the gate for all but CPU `cpu`, unless another CPU has it closed for very long.
    pub fn close(&self, p: &P, cpu: CpuIndex) -> Closed<'_, P> {
        for _ in 0..PATIENCE {
            match self.try_close(cpu) {
                Some(closed) => return closed,
                None => p.relax(),
            }
        }
        Closed(None)
    }
}

impl<P: Platform> Drop for Closed<'_, P> {
    fn drop(&mut self) {
        if let Some(gate) = self.0 {
            gate.0.0.store(OPEN, Ordering::Relaxed);
        }
    }
}
