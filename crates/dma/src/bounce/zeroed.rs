// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Zeroed frames in a cache: for the edges of split buffers.
//!
//! An edge needs a frame in which nothing is but its bytes, and zeroing one takes longer than all
//! else of a split. So a CPU that has split anything finds frames in its magazine, which the timer
//! fills, as far as memory goes: only what is split beyond a magazine between two ticks is zeroed
//! by the platform on the way. When a pool is idle, all of them go back.
//!
//! The frames are fresh, seen by no device since they were zeroed: what a device has seen is freed
//! through a flush, and to the platform.
//!
//! Locking: that of the magazines.

use super::{
    class::{WordShelf, Words},
    stats::Lack,
};
use crate::{
    domain::free,
    magazine::{MagazineSizes, Magazines},
    platform::{room::vec_of, *},
    units::*,
};
use alloc::vec::Vec;

/// Frames of a magazine: heads and tails of eight lists.
const FAST: usize = 16;
/// Frames that a tick zeroes at the most.
const REFILL_MAX: usize = 64;

pub(crate) struct Zeroed<P: Platform> {
    /// The kept frames, by page.
    kept: Words<P>,
}

/// The frame that was kept as this page.
fn fresh(page: u64) -> FreshFrame {
    FreshFrame::kept(PhysPage(page))
}

impl<P: Platform> Zeroed<P> {
    /// No frame is kept at first.
    pub fn new(shelf: WordShelf<P>) -> Self {
        let sizes = MagazineSizes {
            magazine_len: FAST,
            depot_full_max: 1,
        };
        Zeroed {
            kept: Magazines::in_places(shelf, sizes),
        }
    }

    /// So many zeroed frames, or none: those cached first, then the platform's, at last
    /// those of other CPUs.
    pub fn take(&self, p: &P, frames: u64) -> Result<Vec<FreshFrame>, Lack> {
        let mut taken = vec_of(frames as usize)?;
        for _ in 0..frames {
            let fast_path = p.pinned(|cpu| self.kept.take(&cpu));
            let frame = fast_path.map(fresh).or_else(|| p.frame_alloc());
            match frame.or_else(|| self.take_anyones(p)) {
                Some(frame) => taken.push(frame),
                None => {
                    free(p, taken);
                    return Err(Lack::NoFrame);
                }
            }
        }
        Ok(taken)
    }

    #[cold]
    fn take_anyones(&self, p: &P) -> Option<FreshFrame> {
        self.trim(p);
        p.frame_alloc()
    }

    /// The timer's part: fills the magazines of CPUs that looked for more than they had.
    pub fn refill(&self, p: &P) {
        let mut left = REFILL_MAX;
        for cpu in (0..p.cpus()).map(CpuIndex) {
            if self.kept.misses(cpu) == 0 {
                continue;
            }
            let room = self.kept.room(cpu).min(left);
            let frames = (0..room).map_while(|_| p.frame_alloc());
            let mut pages = [None; REFILL_MAX];
            for (page, frame) in pages.iter_mut().zip(frames) {
                *page = Some(frame.page().0);
                left -= 1;
            }
            let mut pages = pages.into_iter().flatten();
            self.kept.fill(cpu, &mut pages);
            // another thread was faster
            pages.for_each(|page| p.frame_free(OURS, fresh(page)));
        }
    }

    /// Gives all of them back; returns how many.
    pub fn trim(&self, p: &P) -> usize {
        let mut trimmed = 0;
        self.kept.drain(|pages| {
            for page in pages {
                p.frame_free(OURS, fresh(page));
                trimmed += 1;
            }
        });
        self.kept.free_empty();
        trimmed
    }

    /// Frames that are kept.
    pub fn kept(&self) -> PageCount {
        PageCount(self.kept.kept() as u64)
    }

    /// Bytes of bookkeeping, without the frames.
    pub fn metadata(&self) -> u64 {
        self.kept.footprint().0
    }
}
