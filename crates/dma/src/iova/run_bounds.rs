// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Where no run fits, so that no search looks there again.
//!
//! # Theory
//!
//! Magazines ask a tree for long runs, and give back single ranges that lie scattered. So the
//! highest gaps are small, and a top-down scan for a run walks past all of them, each time: with
//! 100,000 ranges in use, that was most of what magazines cost.
//!
//! For each size 2^k a *bound* is kept. Invariant: no gap that ends above it holds 2^k pages at a
//! multiple of 2^k. A scan may therefore begin at the bound, and finds what a scan from the top
//! would have found. What was found is the new bound: it is the highest place, and the rest of its
//! gap above is too short. Taking anything else keeps the invariant. Giving back makes one gap; the
//! bounds of all sizes that fit into it rise to its end.
//!
//! Only sizes that were ever asked for are kept up to date, so an allocator that is never asked for
//! runs pays nothing.

use super::search::{Run, Window};

/// Sizes with a bound: up to 2^31 pages.
const SIZES: usize = 32;

/// See the module's theory.
pub(super) struct RunBounds {
    /// By log2 of pages; meaningful where `asked` has that bit.
    bounds: [u64; SIZES],
    asked: u32,
}

impl RunBounds {
    /// Nothing was asked for.
    pub fn new() -> Self {
        RunBounds {
            bounds: [0; SIZES],
            asked: 0,
        }
    }

    /// Whether any size was asked for.
    #[inline]
    pub fn any(&self) -> bool {
        self.asked != 0
    }

    /// Where to begin to look for `run`; `None` for single ranges, and for what is no power of two.
    pub fn begin(&mut self, run: Run, window: Window) -> Option<u64> {
        let lg2 = size(run)?;
        if self.asked & 1 << lg2 == 0 {
            self.asked |= 1 << lg2;
            self.bounds[lg2] = window.end;
        }
        Some(self.bounds[lg2])
    }

    /// A look from [`begin`](Self::begin) on has found `first`, or nothing.
    pub fn found(&mut self, run: Run, first: Option<u64>, window: Window) {
        if let Some(lg2) = size(run) {
            self.bounds[lg2] = first.unwrap_or(window.floor);
        }
    }

    /// There is a gap from `bottom` to `top` now.
    pub fn gap(&mut self, bottom: u64, top: u64) {
        let Some(largest) = top.saturating_sub(bottom).checked_ilog2() else {
            return;
        };
        let fit = u32::MAX >> (SIZES as u32 - 1 - largest.min(SIZES as u32 - 1));
        let mut sizes = self.asked & fit;
        while sizes != 0 {
            let lg2 = sizes.trailing_zeros();
            // aligned, it may have no place though the gap is as long
            let first = (top - (1 << lg2)) >> lg2 << lg2;
            if first >= bottom {
                let bound = &mut self.bounds[lg2 as usize];
                *bound = top.max(*bound);
            }
            sizes &= sizes - 1;
        }
    }
}

/// Log2 of its pages, if it is a run that has a bound.
fn size(run: Run) -> Option<usize> {
    let lg2 = run.align_lg2() as usize;
    let whole = run.pages().is_power_of_two();
    (!run.is_single() && whole && lg2 < SIZES).then_some(lg2)
}
