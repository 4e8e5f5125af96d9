// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a cache holds, and what it has done.

use core::fmt;

/// What a cache holds, as an audit found it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)] // its fields say it
pub struct Census {
    pub runs: u64,
    /// Pages of 4 KiB that they translate.
    pub pages: u64,
    /// Bytes of memory that the translations take, as far as they grow with them; lock
    /// and settings not included.
    pub bytes: u64,
}

/// What a cache has done so far, lookups left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)] // its fields say it
pub struct Stats {
    /// Runs held at the time of the call.
    pub runs: u64,
    /// Updates that changed something.
    pub updates: u64,
    /// Updates that were dropped, since an invalidation beat them.
    pub beaten: u64,
    /// Updates that were refused for want of room.
    pub refused: u64,
    pub invalidations: u64,
    /// Runs thrown out for want of room.
    pub evictions: u64,
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stats {
            runs,
            updates,
            beaten,
            refused,
            invalidations,
            evictions,
        } = self;
        write!(
            f,
            "{runs} runs; {updates} updates, {beaten} beaten, {refused} refused; {invalidations} invalidations; {evictions} evictions"
        )
    }
}

impl fmt::Display for Census {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} runs of {} pages in {} bytes",
            self.runs, self.pages, self.bytes
        )
    }
}
