// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Arrays of the address API: memory that CPU and device share, found again by its address.
//!
//! There are a few for each queue of a device, so they are searched one by one. The list grows
//! outside of its lock, and may find no memory.

use super::*;
use crate::{
    domain::{Consistent, MapError},
    units::*,
};
use core::{
    mem::{swap, take},
    num::NonZero,
    ptr::NonNull,
};

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
        let mut room = Vec::new();
        loop {
            let len = self.0.with(|all| {
                if all.len() == all.capacity() && room.capacity() > all.len() {
                    room.append(all);
                    swap(all, &mut room);
                }
                if all.len() < all.capacity() {
                    all.extend(array.take());
                }
                all.len()
            });
            let Some(left) = array.take() else {
                return Ok(());
            };
            room = Vec::new(); // what it has is too small by now
            if room.try_reserve_exact(2 * len + 4).is_err() {
                return Err(left);
            }
            array = Some(left);
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
                if let Err(error) = domain.free_consistent(array.memory) {
                    self.dma.failed_on_drop(&error);
                }
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
        Ok(self.dma.domain.free_consistent(array.memory)?)
    }
}
