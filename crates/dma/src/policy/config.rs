// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Which policies there are, and what each leaves exposed.

use super::MAX_BATCH;
use crate::units::TimeNs;

/// Which policy, and its bounds.
///
/// *Exposure* is how long a device may still reach a page after its unmap has returned;
/// [`PolicyConfig::exposure`] has it as numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PolicyConfig {
    /// Invalidate and wait in every unmap (ATC'15 §3.2, "strict"). Exposure: none.
    Strict,
    /// The same a page at a time: one invalidation for each page of the range, each waited for
    /// (FreeBSD, ATC'15 §3.4), and one for every eight tables that it detaches. Exposure: none.
    FreeBsd,
    /// Batch on each CPU (ATC'15 §5). Exposure: a batch of this CPU, or the window.
    DeferredPerCpu(DeferredConfig),
    /// Batch in one queue under one lock (Linux 3.17, ATC'15 §3.2). Exposure: a
    /// batch, or the window.
    DeferredGlobal(DeferredConfig),
    /// Nothing at unmap; map invalidates the range that it maps (Solaris, ATC'15 §3.4). Exposure:
    /// unbounded, until the range is mapped again or [`crate::domain::Domain::flush`] is called.
    Solaris,
    /// Start at unmap and collect the completion later (Mac OS X, ATC'15 §3.4). Exposure: what the
    /// unit takes, at most a queue of unmaps.
    MacOs(MacOsConfig),
}

/// The bounds of the deferred policies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeferredConfig {
    /// Things retired into one queue that start an invalidation. 1 to [`MAX_BATCH`]; other numbers
    /// are brought to the nearer end.
    pub batch: u32,
    /// Time after which a tick starts one.
    pub window: TimeNs,
    /// Things drained by one tick, at most. At least 1.
    pub tick_budget: u32,
}

setters!(const DeferredConfig {
    batch: u32,
    window: TimeNs,
    tick_budget: u32,
});

impl DeferredConfig {
    /// Linux's and ATC'15's: 250 requests or 10 ms.
    pub const DEFAULT: Self = DeferredConfig {
        batch: 250,
        window: TimeNs(10_000_000),
        tick_budget: 256,
    };

    /// Within the limits named.
    pub(super) fn limited(self) -> Self {
        DeferredConfig {
            batch: self.batch.clamp(1, MAX_BATCH),
            tick_budget: self.tick_budget.max(1),
            ..self
        }
    }
}

impl Default for DeferredConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The bound of the policy of Mac OS X.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MacOsConfig {
    /// Things whose invalidation is under way, at most; one more waits for the oldest. 1 to
    /// [`MAX_BATCH`]; other numbers are brought to the nearer end.
    pub depth: u32,
}

setters!(const MacOsConfig { depth: u32 });

impl MacOsConfig {
    /// 256: descriptors of 16 bytes in one page, the smallest invalidation queue that VT-d has
    /// (VT-d 4.1 §11.4.9.3, QS = 0).
    pub const DEFAULT: Self = MacOsConfig { depth: 256 };

    pub(super) fn limited(self) -> Self {
        MacOsConfig {
            depth: self.depth.clamp(1, MAX_BATCH),
        }
    }
}

impl Default for MacOsConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// How long a device may still reach a page after its unmap has returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exposure {
    /// Not at all: the unmap flushes.
    None,
    /// Until an invalidation that starts by then at the latest is complete.
    Bounded {
        /// After so many further unmaps of the domain, each of them retiring one thing at least. A
        /// CPU that fills a batch and is held up before it starts the invalidation lets the other
        /// CPUs, and threads, fill each queue once more before they must start one themselves.
        operations: u64,
        /// After so much time, if the host's timer ticks just then. `None`: the invalidation was
        /// started already, and takes what the unit takes.
        time: Option<TimeNs>,
    },
    /// Until a map takes the page's range again, if one ever does.
    Unbounded,
}

impl PolicyConfig {
    /// The name used on command lines and in tables.
    pub fn name(&self) -> &'static str {
        match self {
            PolicyConfig::Strict => "strict",
            PolicyConfig::FreeBsd => "freebsd",
            PolicyConfig::DeferredPerCpu(_) => "deferred-percpu",
            PolicyConfig::DeferredGlobal(_) => "deferred-global",
            PolicyConfig::Solaris => "solaris",
            PolicyConfig::MacOs(_) => "macos",
        }
    }

    /// What the policy promises on a machine of `cpus` CPUs.
    pub fn exposure(&self, cpus: usize) -> Exposure {
        let cpus = cpus.max(1) as u64;
        let batched = |config: &DeferredConfig, queues: u64| Exposure::Bounded {
            operations: u64::from(config.limited().batch) * queues,
            time: Some(config.window),
        };
        match self {
            PolicyConfig::Strict | PolicyConfig::FreeBsd => Exposure::None,
            // while one queue fills slowly, each other may hold a batch that is not full
            PolicyConfig::DeferredPerCpu(config) => batched(config, cpus),
            PolicyConfig::DeferredGlobal(config) => batched(config, 1),
            PolicyConfig::Solaris => Exposure::Unbounded,
            PolicyConfig::MacOs(config) => Exposure::Bounded {
                operations: u64::from(config.limited().depth),
                time: None,
            },
        }
    }
}
