// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Frames, by whether hardware may hold a pointer to them.
//!
//! `frame_alloc` gives a [`FreshFrame`]: zeroed, seen by nothing else, freed at will (the loser of
//! a compare-and-swap does). Publishing it makes a [`TableFrame`], which has no way back but
//! through `Retired` and `Flushed`: "the page tables that were mapping the IOVA range will not be
//! reclaimed" before the invalidation is done (ATC'15 §5, requirement 2).

use crate::units::PhysPage;
use core::marker::PhantomData;

/// A zeroed frame that hardware cannot reach yet.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a dropped frame is lost"]
pub struct FreshFrame(PhysPage);

/// A frame that hardware may reach: a page table, a queue, consistent memory.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a dropped frame is lost"]
pub struct TableFrame(PhysPage);

/// A frame that is not taken back for as long as `'f`:
/// what [`Platform::entries`](super::Platform::entries) asks for.
#[derive(Clone, Copy, Debug)]
pub struct FrameRef<'f>(PhysPage, PhantomData<&'f TableFrame>);

impl FreshFrame {
    /// For platforms, which make frames of memory that is theirs.
    ///
    /// # Safety
    /// `page` is 4 KiB of this platform's memory, zeroed. Nothing else owns it, no CPU has words of
    /// it, and no device reaches it, nor will by what was mapped before: it becomes a live page
    /// table, or is handed out next. Until it comes back by
    /// [`frame_free`](super::Platform::frame_free) it is not made again. (Nothing checks that but
    /// the software unit's oracle.)
    ///
    /// ```
    /// # use ioatlas_dma::{platform::*, units::*};
    /// // SAFETY: an example; nothing is done with it.
    /// let frame = unsafe { FreshFrame::new(PhysPage(0x100)) };
    /// # assert_eq!(frame.page(), PhysPage(0x100));
    /// ```
    ///
    /// Nothing owns a page by its number:
    ///
    /// ```compile_fail,E0133
    /// # use ioatlas_dma::{platform::*, units::*};
    /// let frame = FreshFrame::new(PhysPage(0x100));
    /// # assert_eq!(frame.page(), PhysPage(0x100));
    /// ```
    #[allow(unsafe_code)] // a promise of its caller's
    pub unsafe fn new(page: PhysPage) -> Self {
        FreshFrame(page)
    }
    /// One whose number the core kept in a word as it was allocated, or that was flushed.
    pub(crate) fn kept(page: PhysPage) -> Self {
        FreshFrame(page)
    }
    /// Its physical page number.
    pub fn page(&self) -> PhysPage {
        self.0
    }
    /// Hardware may see it from now on.
    pub fn publish(self) -> TableFrame {
        TableFrame(self.0)
    }
}

impl TableFrame {
    /// The frame that an entry of a live table names.
    pub(crate) fn from_entry(page: PhysPage) -> Self {
        TableFrame(page)
    }
    /// Its physical page number.
    pub fn page(&self) -> PhysPage {
        self.0
    }
    /// Lends it: it can be neither retired nor freed meanwhile.
    #[inline]
    pub fn by_ref(&self) -> FrameRef<'_> {
        FrameRef(self.0, PhantomData)
    }
}

impl FrameRef<'_> {
    /// A frame that a live entry names, by a right to what is below the entry that lasts as long as
    /// the result is used: the one place where the compiler does not see the frame's owner.
    #[inline(always)] // a few instructions, on every way
    pub(crate) fn of_entry(page: PhysPage) -> Self {
        FrameRef(page, PhantomData)
    }
    /// Its physical page number.
    #[inline]
    pub fn page(self) -> PhysPage {
        self.0
    }
}
