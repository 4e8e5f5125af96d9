// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the kernel's modes cost at a capture's own rate, in CPUs.
//!
//! A mode is one of the systems of the report: `as Linux strict` and `as Linux today`. What a map
//! and its unmap take is measured, of this project's code on this machine; how many invalidations
//! the capture's own sequence makes is counted, in a replay of it; what one takes is assumed. The
//! kernel's code takes other times, and its layers above the IOMMU come on top.

use super::Capture;
use crate::report::systems::{Exposure, SystemOnTrace, SystemRow};
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
    /// CPUs that are busy with maps, unmaps and waits for invalidations.
    pub cpus_busy: Figure,
    /// Invalidations a second.
    pub invalidations_per_second: Option<Figure>,
    /// How long a device reaches what was unmapped.
    pub window: Window,
}

/// How long a device reaches a page after its unmap returned.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Window {
    /// Not at all.
    None,
    /// Up to the next flush.
    Bounded {
        /// The most unmaps that one waited for, in the replay.
        unmaps: Figure,
        /// How long so many take at most in the capture, or until the timer.
        time: Option<Figure>,
        /// The bounds that are configured: unmaps, and the timer.
        unmaps_bound: Figure,
        /// As above.
        time_bound: Option<Figure>,
    },
    /// All memory, at any time.
    Always,
}

impl Costs {
    /// For a capture whose time is known, where both systems were run on it.
    #[must_use]
    pub fn of(capture: &Capture, systems: &[SystemRow], wait: Figure) -> Option<Self> {
        let seconds = capture.seconds?;
        if seconds <= 0.0 {
            return None;
        }
        let sum = |of: fn(&super::CapturedDevice) -> f64| {
            let sum: f64 = capture.devices.iter().map(of).sum();
            Figure::counted(sum / seconds, Unit::PerSecond)
        };
        let maps_per_second = sum(|device| device.maps.value);
        let mode = |name, knob, system: &str| {
            let row = systems.iter().find(|row| row.name == system)?;
            let on = row.per_trace.iter().find(|on| on.trace == capture.trace)?;
            Some(Mode::of(name, knob, (row, on), maps_per_second, wait))
        };
        Some(Self {
            maps_per_second,
            unmaps_per_second: sum(|device| device.unmaps.value),
            modes: vec![
                mode("strict", "iommu.strict=1", "as Linux strict")?,
                mode("lazy", "iommu.strict=0", "as Linux today")?,
                Mode {
                    name: "passthrough",
                    knob: "iommu.passthrough=1",
                    cpus_busy: Figure::counted(0.0, Unit::Cpus),
                    invalidations_per_second: None,
                    window: Window::Always,
                },
            ],
        })
    }

    /// The mode of this name.
    #[must_use]
    pub fn mode(&self, name: &str) -> Option<&Mode> {
        self.modes.iter().find(|mode| mode.name == name)
    }
}

impl Mode {
    fn of(
        name: &'static str,
        knob: &'static str,
        (row, on): (&SystemRow, &SystemOnTrace),
        maps_per_second: Figure,
        wait: Figure,
    ) -> Self {
        // of a very large capture the replay has the beginning, and the rest is like it
        let invalidations_per_map = on.invalidations.value / on.maps.value.max(1.0);
        let ns_per_map = row.ns_per_pair_1_thread.value + invalidations_per_map * wait.value;
        Self {
            name,
            knob,
            cpus_busy: Figure {
                value: maps_per_second.value * ns_per_map / 1e9,
                unit: Unit::Cpus,
                tag: Tag::Assumed,
            },
            invalidations_per_second: Some(Figure::counted(
                maps_per_second.value * invalidations_per_map,
                Unit::PerSecond,
            )),
            window: match row.exposure {
                Exposure::None => Window::None,
                Exposure::Bounded {
                    operations_bound,
                    time_bound,
                    operations_observed,
                    time_observed,
                } => Window::Bounded {
                    unmaps: operations_observed,
                    time: time_observed,
                    unmaps_bound: operations_bound,
                    time_bound,
                },
                Exposure::Unbounded { .. } => Window::Always,
            },
        }
    }
}
