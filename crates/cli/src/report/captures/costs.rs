// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the kernel's modes cost at a capture's own rate, in CPUs.
//!
//! Under strict each unmap waits for an invalidation. Under lazy a CPU flushes when its queue is
//! full, and a timer flushes those of all CPUs: so there are at most as many flushes as full queues
//! and ticks, or as unmaps. What a map and its unmap take besides is measured, of this project's
//! code on this machine; what one invalidation takes is assumed. Beside it stands what Linux's own
//! code takes, measured elsewhere: [`Linux`].

use super::Capture;
use crate::error::Error;
use crate::report::systems;
use crate::report::timings::Timings;
use ioatlas_dma::design::Design;
use ioatlas_dma::domain::Exposure;
use ioatlas_present::{Figure, Tag, Unit};
use serde::Serialize;

/// The modes, and what they rest on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Costs {
    /// Maps of all devices.
    pub maps_per_second: Figure,
    /// Unmaps of all devices.
    pub unmaps_per_second: Figure,
    /// Strict, lazy and passthrough.
    pub modes: Vec<Mode>,
}

/// One way to run an IOMMU.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mode {
    /// What it is called.
    pub name: &'static str,
    /// How one asks the kernel for it.
    pub knob: &'static str,
    /// CPUs that are busy with maps, unmaps and waits for invalidations; `None` where this machine
    /// was not measured.
    pub cpus_busy: Option<Figure>,
    /// Of it, what a map and its unmap take without an invalidation, in ns; measured.
    pub ns_per_pair: Option<Figure>,
    /// The same with the kernel's own code; `None` where it has nothing to do.
    pub linux: Option<Linux>,
    /// Invalidations a second: one an unmap under strict, at most so many under lazy.
    pub invalidations_per_second: Option<Figure>,
    /// How long a device reaches what was unmapped.
    pub window: Window,
}

/// A mode with Linux's own code: from the fastest to the slowest of what was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Linux {
    /// Whose code was measured.
    pub version: &'static str,
    /// What a map and its unmap take without an invalidation, in ns.
    pub ns_per_pair: [Figure; 2],
    /// CPUs that are busy with it, with the same invalidations and waits.
    pub cpus_busy: [Figure; 2],
}

impl Linux {
    /// The version of Linux that was measured.
    pub const VERSION: &str = "6.12.117";
}

/// A map and its unmap of one page in Linux's code for IOVAs and for VT-d, compiled in user space,
/// in ns: the fastest and the slowest median of three passes, on one thread and a ring of 256 pages
/// (`docs/measurements-2026-11.md`). Mitigations and the kernel's layers above come on top.
const STRICT_NS: [f64; 2] = [45.8, 76.1];

/// The same with a flush queue for each CPU.
const LAZY_NS: [f64; 2] = [51.6, 101.5];

/// How long a device reaches a page after its unmap returned.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Window {
    /// Not at all.
    None,
    /// Up to the next flush, which is due after so many unmaps of a CPU or after this time.
    Bounded {
        /// Unmaps of one CPU.
        unmaps: Figure,
        /// Of the timer.
        time: Figure,
    },
    /// All memory, at any time.
    Always,
}

/// Kernel's modes as designs: strict and lazy, what a map and its unmap take in each, in ns, where
/// that was measured.
#[derive(Clone, Copy, Debug)]
pub struct Pairs {
    strict: Option<Figure>,
    lazy: Option<Figure>,
    /// Of the queue of a CPU under lazy, and of the timer in ns.
    queue: (f64, f64),
}

impl Pairs {
    /// Measures both on this machine.
    ///
    /// # Errors
    ///
    /// [`Error::System`], if one of them fails, which neither must.
    pub fn measure(timings: &Timings) -> Result<Self, Error> {
        let design = |name: &str| {
            Design::parse(name).map_err(|error| Error::System {
                system: name.into(),
                detail: error.to_string(),
            })
        };
        let (strict, lazy) = (design("linux-strict")?, design("linux")?);
        let queue = match lazy.domain.policy.exposure(1) {
            Exposure::Bounded {
                operations,
                time: Some(time),
            } => (operations as f64, time.0 as f64),
            other => {
                return Err(Error::System {
                    system: "linux".into(),
                    detail: format!("a window without queue and timer: {other:?}"),
                });
            }
        };
        Ok(Self {
            strict: systems::ns_per_pair(strict, timings)?,
            lazy: systems::ns_per_pair(lazy, timings)?,
            queue,
        })
    }
}

impl Costs {
    /// For a capture whose time is known.
    #[must_use]
    pub fn of(capture: &Capture, pairs: &Pairs, wait: Figure) -> Option<Self> {
        let seconds = capture.seconds.filter(|seconds| *seconds > 0.0)?;
        let sum = |of: fn(&super::CapturedDevice) -> f64| {
            let sum: f64 = capture.devices.iter().map(of).sum();
            Figure::counted(sum / seconds, Unit::PerSecond)
        };
        let maps = sum(|device| device.maps.value);
        let unmaps = sum(|device| device.unmaps.value);
        let (queue, timer_ns) = pairs.queue;
        let ticks = capture.devices.len() as f64 * 1e9 / timer_ns;
        // a queue without an unmap is not flushed
        let flushes = (unmaps.value / queue + ticks).min(unmaps.value);
        let flushes = Figure::assumed(flushes, Unit::PerSecond);
        let busy = |pair: Figure, invalidations: Figure| Figure {
            value: (maps.value * pair.value + invalidations.value * wait.value) / 1e9,
            unit: Unit::Cpus,
            tag: Tag::Assumed,
        };
        let linux = |ns: [f64; 2], invalidations: Figure| {
            let ns_per_pair = ns.map(|ns| Figure::assumed(ns, Unit::Nanoseconds));
            Some(Linux {
                version: Linux::VERSION,
                ns_per_pair,
                cpus_busy: ns_per_pair.map(|pair| busy(pair, invalidations)),
            })
        };
        let modes = vec![
            Mode {
                name: "strict",
                knob: "iommu.strict=1",
                cpus_busy: pairs.strict.map(|pair| busy(pair, unmaps)),
                ns_per_pair: pairs.strict,
                linux: linux(STRICT_NS, unmaps),
                invalidations_per_second: Some(unmaps),
                window: Window::None,
            },
            Mode {
                name: "lazy",
                knob: "iommu.strict=0",
                cpus_busy: pairs.lazy.map(|pair| busy(pair, flushes)),
                ns_per_pair: pairs.lazy,
                linux: linux(LAZY_NS, flushes),
                invalidations_per_second: Some(flushes),
                window: Window::Bounded {
                    unmaps: Figure::assumed(queue, Unit::Count),
                    time: Figure::assumed(timer_ns / 1e6, Unit::Milliseconds),
                },
            },
            Mode {
                name: "passthrough",
                knob: "iommu.passthrough=1",
                cpus_busy: Some(Figure::assumed(0.0, Unit::Cpus)),
                ns_per_pair: None,
                linux: None,
                invalidations_per_second: None,
                window: Window::Always,
            },
        ];
        Some(Self {
            maps_per_second: maps,
            unmaps_per_second: unmaps,
            modes,
        })
    }

    /// The mode of this name.
    #[must_use]
    pub fn mode(&self, name: &str) -> Option<&Mode> {
        self.modes.iter().find(|mode| mode.name == name)
    }

    /// Whether strict itself takes too little of a CPU for anything to be gained: as measured here,
    /// or else of Linux's own code.
    #[must_use]
    pub fn are_small(&self) -> bool {
        const LEAST_CPUS: f64 = 0.01;
        let busy = |mode: &Mode| {
            let linux = mode.linux.map(|linux| linux.cpus_busy[0]);
            mode.cpus_busy.or(linux)
        };
        let strict = self.mode("strict").and_then(busy);
        strict.is_some_and(|cpus| cpus.value < LEAST_CPUS)
    }
}
