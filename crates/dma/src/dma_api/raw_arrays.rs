// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Arrays of the address API: memory that CPU and device share, found again by its address.
//!
//! There are a few for each queue of a device, so they are searched one by one. The list grows
//! outside of its lock, and may find no memory.

use super::{coherent::Owner, *};
use crate::{
    domain::{Consistent, MapError},
    platform::room::{Larger, NoMemory, with_room},
    units::*,
};
use core::{mem::take, num::NonZero, ptr::NonNull};

/// One that was given out.
pub(super) struct Array {
    memory: Consistent,
    /// Where the CPU sees it.
    at: NonZero<usize>,
}

/// Those of a domain.
pub(super) struct Arrays<P: Platform>(P::Lock<Vec<Array>>);

impl<P: Platform> Arrays<P> {
    pub fn new() -> Self {
        Arrays(P::Lock::new(Vec::new()))
    }

    /// Keeps `array`, which comes back where there is no memory to note it.
    fn keep(&self, array: Array) -> Result<(), Array> {
        let mut array = Some(array);
        let kept = with_room(
            &self.0,
            |all| all,
            |all| match Larger::of(all, all.len() + 1) {
                Some(larger) => Err(larger),
                None => {
                    all.extend(array.take());
                    Ok(())
                }
            },
        );
        match (kept, array) {
            (Err(NoMemory), Some(array)) => Err(array),
            _ => Ok(()),
        }
    }

    /// Ends them all.
    pub fn close<T: Translator<P>>(&self, domain: &Domain<P, T>) {
        for array in self.0.with(take) {
            // quarantined where that fails
            let _ = domain.free_consistent(array.memory);
        }
    }

    /// Takes the array of exactly so many pages at both addresses out again.
    fn take(&self, iova: Iova, at: NonNull<u8>, pages: PageCount) -> Option<Array> {
        let is_it = |array: &Array| {
            let len = PageCount(array.memory.frames().len() as u64);
            (array.memory.iova(), array.at, len) == (iova, at.addr(), pages)
        };
        self.0.with(|all| {
            let found = all.iter().position(is_it)?;
            Some(all.swap_remove(found))
        })
    }
}

impl<P, T, D> Client<P, T, D>
where
    P: CopyMemory + ContiguousMemory,
    T: Translator<P>,
    D: Watch<P>,
{
    /// The memory of a [`Coherent`] array, of `pages` zeroed granules, for an interface that passes
    /// addresses: where the device sees it, and where the CPU does. It is allocated, and mapped
    /// both ways, until [`free_raw`](Self::free_raw), or the end of its [`Dma`].
    ///
    /// # Errors
    /// [`MapError`]; nothing is allocated then.
    pub fn alloc_raw(&self, pages: PageCount) -> Result<(Iova, NonNull<u8>), MapError> {
        let domain = &self.dma.domain;
        let (memory, first) = domain.alloc_contiguous(pages, self.config().limits)?;
        let iova = memory.iova();
        let at = first.addr();
        match self.dma.arrays.keep(Array { memory, at }) {
            Ok(()) => Ok((iova, first)),
            Err(array) => {
                self.dma.end_dropped(array.memory);
                Err(MapError::NoMemory)
            }
        }
    }

    /// Unmaps what [`alloc_raw`](Self::alloc_raw) of any client of this [`Dma`] gave, and frees it,
    /// after the flush where the domain's policy defers invalidations.
    ///
    /// # Errors
    /// [`RawDmaError::NotMapped`], if nothing of exactly so many pages was given out at these two
    /// addresses; nothing has changed then. [`RawDmaError::Free`], if an invalidation failed: the
    /// memory is never used again.
    ///
    /// # Safety
    /// Neither the program nor the device uses the memory any more.
    #[allow(unsafe_code)] // there is nothing to it but the promise
    pub unsafe fn free_raw(
        &self,
        iova: Iova,
        at: NonNull<u8>,
        pages: PageCount,
    ) -> Result<(), RawDmaError> {
        let array = self.dma.arrays.take(iova, at, pages);
        let array = array.ok_or(RawDmaError::NotMapped(iova))?;
        Ok(self.dma.end(array.memory)?)
    }
}
