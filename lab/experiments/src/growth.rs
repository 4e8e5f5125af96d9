// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Whether page tables grow over repetitions of a workload (ATC'15 figure 6).
//!
//! A series has the tables before the first repetition and after each. The first repetition fills
//! the tables that every design needs, and is left out.
//!
//! *Flat*: over the last half of the repetitions the series grows by at most 1 % of what it is in
//! the end, or by one table. *Almost linear*: over the last half it grows at least
//! [`ALMOST_LINEAR`] times as much as over the first.

/// Late growth over early growth, at the least, of what grows almost linearly.
pub(crate) const ALMOST_LINEAR: f64 = 0.5;

/// The growth of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Growth {
    /// Over the first half of the repetitions.
    pub early: i64,
    /// Over the last half.
    pub late: i64,
    /// What there is in the end.
    pub last: i64,
}

impl Growth {
    /// Of a series whose first number is from before all repetitions.
    pub fn of(tables: &[u64]) -> Self {
        let at = |nth: usize| tables.get(nth).copied().unwrap_or(0) as i64;
        let end = tables.len().saturating_sub(1);
        let (first, middle, last) = (at(1.min(end)), at(end / 2), at(end));
        Growth {
            early: middle - first,
            late: last - middle,
            last,
        }
    }

    /// Whether it grows no more.
    pub fn is_flat(&self) -> bool {
        self.late <= 1.max(self.last / 100)
    }

    /// Late growth over early growth, if it is not flat.
    pub fn steadiness(&self) -> Option<f64> {
        (!self.is_flat()).then(|| self.late as f64 / self.early.max(1) as f64)
    }
}
