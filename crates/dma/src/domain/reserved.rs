// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Ranges that no map gets: windows that devices reach without translation.
//!
//! A write to the interrupt window (on x86 0xfee0_0000 to 0xfeef_ffff) is an interrupt and never
//! translated, so an IOVA there would not reach its buffer; other buses have windows of their own.
//! The host, which knows them, reserves them right after the domain is made. Memory that firmware
//! lets a device use (RMRR, VT-d 4.1 §8.4) is the opposite, it must be reached: [`Domain::map_at`]
//! maps it where it is, and holds its IOVAs all the same.
//!
//! A reserved range is an allocation that is never mapped, kept until the domain ends. It may lie
//! anywhere, also where it splits the aperture.

use super::*;
use crate::{
    iova::{FixedRangeError, IovaAlloc},
    platform::room::{Larger, NoMemory, with_room},
};

/// The allocations of reserved ranges, and of open regions.
pub(super) struct Reserved<P: Platform>(P::Lock<Vec<IovaAlloc>>);

impl<P: Platform> Reserved<P> {
    pub fn new() -> Self {
        Reserved(Lock::new(Vec::new()))
    }

    pub fn pages(&self) -> PageCount {
        let pages = |all: &mut Vec<IovaAlloc>| all.iter().map(|alloc| alloc.owned().0).sum();
        PageCount(self.0.with(pages))
    }

    /// Takes the allocation of exactly `range` out again.
    pub fn take(&self, range: IovaRange) -> Option<IovaAlloc> {
        self.0.with(|all| {
            let at = all.iter().position(|alloc| alloc.range() == range)?;
            Some(all.swap_remove(at))
        })
    }

    /// Gives it back where there is no memory to note it.
    pub fn keep(&self, alloc: IovaAlloc) -> Result<(), IovaAlloc> {
        let mut alloc = Some(alloc);
        let kept = with_room(
            &self.0,
            |all| all,
            |all| match Larger::of(all, all.len() + 1) {
                Some(larger) => Err(larger),
                None => {
                    all.extend(alloc.take());
                    Ok(())
                }
            },
        );
        match (kept, alloc) {
            (Err(NoMemory), Some(alloc)) => Err(alloc),
            _ => Ok(()),
        }
    }
}

impl<P: Platform, T: Translator<P>> Domain<P, T> {
    /// Keeps `range` off for as long as the domain lives: no map gets a page of it, and
    /// [`Domain::map_at`] into it is refused. [`DomainStats::reserved`] counts it.
    ///
    /// # Errors
    /// [`ReserveError`]: a page of it is mapped or reserved already, or it is outside the aperture,
    /// or there is no memory to note it. Nothing is reserved then.
    pub fn reserve(&self, range: IovaRange) -> Result<(), ReserveError> {
        let alloc = self.claim(range)?;
        let Err(alloc) = self.reserved.keep(alloc) else {
            return Ok(());
        };
        let none = IovaRange::new(range.first, PageCount(0));
        let (_, completed) = self.retire(alloc, none, []);
        completed.map_err(|failed| ReserveError::Invalidate(failed.cause))?;
        Err(FixedRangeError::NoMemory { wanted: range }.into())
    }

    /// The allocation of exactly `range`; what is in the way may be retired only,
    /// so that is drained.
    pub(super) fn claim(&self, range: IovaRange) -> Result<IovaAlloc, ReserveError> {
        let p = &*self.platform;
        match self.allocator.reserve(p, range) {
            Ok(alloc) => Ok(alloc),
            Err(
                FixedRangeError::Taken { .. }
                | FixedRangeError::NoRecord { .. }
                | FixedRangeError::NoMemory { .. },
            ) => {
                let drained = self.policy.drain_all(&self.engine());
                drained.map_err(|failed| ReserveError::Invalidate(failed.cause))?;
                Ok(self.allocator.reserve(p, range)?)
            }
            Err(never) => Err(never.into()),
        }
    }
}
