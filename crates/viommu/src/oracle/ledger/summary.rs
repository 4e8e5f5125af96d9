// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the oracle reports: properties, violations, exposure.

use ioatlas_dma::{
    policy::{Exposure as Promise, PolicyConfig},
    units::TimeNs,
};
use std::fmt;

/// The properties of the safety model, by name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Property {
    /// Strict: no access succeeds after unmap has returned.
    P1,
    /// Deferred: stale accesses succeed within a bounded window only.
    P2,
    /// No IOVA is reused before an invalidation that began after its unmap is complete.
    P3,
    /// No table frame is freed while a cache or a walk may hold a pointer to it.
    P4,
    /// An invalidation completes only after walks that began before it have drained.
    P5,
    /// A device does with a page what its mapping permits, and no more.
    P6,
    /// A device reaches what a mapping of its own domain names.
    P8,
    /// A successful access returns what a mapping named at some moment between its start and end.
    P9,
    /// From the return of map until the call of unmap, permitted accesses succeed.
    P14,
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// A property that did not hold, and how.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    pub property: Property,
    pub text: String,
}

/// How much staleness a domain's policy allows.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bounds {
    /// None: what is unmapped is flushed.
    Strict,
    /// At most so many further unmaps of the domain, and so long.
    Deferred {
        /// Unmaps of the domain that return after the page's own, where no two calls that retire
        /// were under way at once since that was called: unmaps, maps (one that fails undoes),
        /// ticks of the DMA API, and drops of its buffers.
        unmaps: u64,
        /// The same where some were.
        overlapping: u64,
        time: Deadline,
    },
    /// Any, until the page is mapped again; the longest is recorded.
    Unbounded,
}

/// By when a page that was unmapped is flushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deadline {
    /// So many nanoseconds of the oracle's clock after the return of its unmap.
    After(TimeNs),
    /// When a tick of the domain has returned that comes so long after the last tick before that
    /// return, in the time that ticks are told; or the first tick of all.
    Tick(TimeNs),
    /// Whenever the unit is done with it.
    Open,
}

impl Bounds {
    /// What `policy` promises on a machine of `cpus` CPUs, to the last unmap and to the
    /// nanosecond of the tick.
    ///
    /// The thing that fills a batch is flushed within its unmap, so one unmap fewer returns
    /// before than a batch has things after its first. While a CPU that is to start an
    /// invalidation is held up, each queue may take another batch, and each CPU may return from
    /// an unmap that was about to.
    pub fn of(policy: &PolicyConfig, cpus: usize) -> Bounds {
        let cpus = cpus.max(1) as u64;
        let (operations, time) = match policy.exposure(cpus as usize) {
            Promise::None => return Bounds::Strict,
            Promise::Unbounded => return Bounds::Unbounded,
            Promise::Bounded { operations, time } => (operations, time),
        };
        // of each queue the thing that makes it full, and the page's own
        let never_seen = match policy {
            PolicyConfig::DeferredPerCpu(_) => cpus + 1,
            PolicyConfig::DeferredGlobal(_) => 2,
            _ => 1,
        };
        Bounds::Deferred {
            unmaps: operations.saturating_sub(never_seen),
            overlapping: 2 * operations + cpus,
            time: time.map_or(Deadline::Open, Deadline::Tick),
        }
    }
}

/// The longest that any page was unmapped and not flushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Exposure {
    /// In further unmaps of the domain.
    pub unmaps: u64,
    /// In nanoseconds of the oracle's clock.
    pub time: TimeNs,
}

/// What the oracle saw so far.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Debug, Default)]
pub struct Summary {
    pub accesses: u64,
    pub succeeded: u64,
    /// Those that succeeded on a page that was unmapped and not flushed, within the window.
    pub stale: u64,
    /// Frames whose freeing was checked.
    pub frames_freed: u64,
    pub invalidations: u64,
    /// The longest exposure of any page.
    pub exposure: Exposure,
    /// What must be empty.
    pub violations: Vec<Violation>,
    /// Violations in all; only the first hundred are kept.
    pub violation_count: u64,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} violations in {} accesses ({} succeeded, {} stale), {} frames freed, {} invalidations",
            self.violation_count,
            self.accesses,
            self.succeeded,
            self.stale,
            self.frames_freed,
            self.invalidations
        )?;
        for violation in &self.violations {
            writeln!(f, "  {}: {}", violation.property, violation.text)?;
        }
        Ok(())
    }
}
