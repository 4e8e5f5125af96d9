// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The rings of a device, found again by the address that was handed out.
//!
//! There are two for each queue of the device, so they are searched one by one. The list grows
//! outside of its lock, and may find no memory.

use alloc::vec::Vec;
use core::{mem::swap, ptr::NonNull};
use ioatlas_dma::{dma_api::Coherent, platform::*, units::*};

/// Whole pages that CPU and device share.
pub(crate) type Array = Coherent<[[u8; GRANULE as usize]]>;

/// Arrays that were handed out.
pub(crate) struct Arrays<P: Platform>(P::Lock<Vec<Array>>);

impl<P: Platform> Arrays<P> {
    pub fn new() -> Self {
        Arrays(P::Lock::new(Vec::new()))
    }

    /// Keeps `array`, or frees it where there is no memory to note it: whether it is kept.
    pub fn keep(&self, array: Array) -> bool {
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
            if array.is_none() {
                return true;
            }
            room = Vec::new(); // what it has is too small by now
            if room.try_reserve_exact(2 * len + 4).is_err() {
                return false;
            }
        }
    }

    /// Takes the array of exactly so many pages at both addresses out again.
    pub fn take(&self, iova: Iova, at: NonNull<u8>, pages: usize) -> Option<Array> {
        let is_it = |array: &Array| {
            array.iova() == iova && array.as_ptr().cast() == at && array.len() == pages
        };
        self.0.with(|all| {
            let found = all.iter().position(is_it)?;
            Some(all.swap_remove(found))
        })
    }
}
