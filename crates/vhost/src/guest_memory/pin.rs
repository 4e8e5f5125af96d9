// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Counting the slices that a device holds.
//!
//! A slice is good for the guard in which it was made. To wait for a translation the guard has to
//! be dropped, and that is allowed only while no slice exists. Borrowing cannot tell (slices borrow
//! the memory, which outlives guards), so each carries a count, in the one place where `vm-memory`
//! lets a slice carry something: its dirty bitmap, which we do not keep.

use std::cell::Cell;
use vm_memory::bitmap::{Bitmap, BitmapSlice, WithBitmapSlice};

/// How many slices there are.
#[derive(Debug, Default)]
pub struct PinCount(Cell<usize>);

impl PinCount {
    pub(super) fn is_zero(&self) -> bool {
        self.0.get() == 0
    }

    pub(super) fn pin(&self) -> Pinned<'_> {
        self.0.set(self.0.get() + 1);
        Pinned(&self.0)
    }
}

/// One slice's share in the count.
#[derive(Debug)]
pub struct Pinned<'m>(&'m Cell<usize>);

impl Clone for Pinned<'_> {
    fn clone(&self) -> Self {
        self.0.set(self.0.get() + 1);
        Pinned(self.0)
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl<'m> WithBitmapSlice<'m> for PinCount {
    type S = Pinned<'m>;
}

impl Bitmap for PinCount {
    fn mark_dirty(&self, _offset: usize, _len: usize) {}
    fn dirty_at(&self, _offset: usize) -> bool {
        false
    }
    fn slice_at(&self, _offset: usize) -> Pinned<'_> {
        self.pin()
    }
}

impl<'m> WithBitmapSlice<'_> for Pinned<'m> {
    type S = Pinned<'m>;
}

impl BitmapSlice for Pinned<'_> {}

impl Bitmap for Pinned<'_> {
    fn mark_dirty(&self, _offset: usize, _len: usize) {}
    fn dirty_at(&self, _offset: usize) -> bool {
        false
    }
    fn slice_at(&self, _offset: usize) -> Self {
        self.clone()
    }
}
