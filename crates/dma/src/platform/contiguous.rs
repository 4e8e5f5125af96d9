// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Frames that adjoin: what arrays that CPU and device share need of a platform beside
//! [`Platform`].

use super::{FreshFrame, Platform};
use crate::units::*;
use core::ptr::NonNull;

/// A platform that has several frames in a row, and one pointer to all of their bytes.
///
/// # Safety
/// Drivers read and write by that pointer. For as long as the platform lives
///
/// * a run is its memory, as [`FreshRun::new`] demands; each frame of it goes back by itself, by
///   [`Platform::frame_free`], in any order;
/// * until then what [`frames_ptr`](Self::frames_ptr) gives is a pointer to all bytes of the run,
///   aligned to a granule, which may be read and written, at any CPU, by volatile accesses. The
///   platform has no references to them but to atomic words.
#[allow(unsafe_code)]
pub unsafe trait ContiguousMemory: Platform {
    /// So many zeroed frames that adjoin, or `None` where there are not.
    fn frames_alloc(&self, pages: PageCount) -> Option<FreshRun>;
    /// Where the CPU finds the bytes of the run, one after the other.
    fn frames_ptr(&self, run: &FreshRun) -> NonNull<u8>;
}

/// Zeroed frames that adjoin, and that hardware cannot reach yet.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "dropped frames are lost"]
pub struct FreshRun(PhysRun);

impl FreshRun {
    /// For platforms, which make frames of memory that is theirs.
    ///
    /// # Safety
    /// Each page keeps the promise of [`FreshFrame::new`].
    #[allow(unsafe_code)] // a promise of its caller's
    pub unsafe fn new(run: PhysRun) -> Self {
        FreshRun(run)
    }
    /// Which pages they are.
    pub fn run(&self) -> PhysRun {
        self.0
    }
    /// The frames, in order.
    pub fn into_frames(self) -> impl Iterator<Item = FreshFrame> {
        self.0.iter().map(FreshFrame::kept)
    }
}
