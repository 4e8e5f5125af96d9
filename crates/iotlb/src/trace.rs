// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A trace in memory.

use crate::classify::{self, Class};
use crate::event::{DeviceId, Event};
use crate::units::EventTime;

/// A `# mark N` line: a boundary between phases of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// What follows `# mark ` on the line.
    pub label: String,
    /// Time of the first event after the mark.
    pub time: EventTime,
}

/// A whole trace: events in order, devices in order of first appearance, marks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    pub(crate) name: String,
    pub(crate) devices: Vec<String>,
    pub(crate) events: Vec<Event>,
    pub(crate) marks: Vec<Mark>,
}

impl Trace {
    /// Name of the file, as given by the user.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All events; an event's time is its index.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Marks in order of time.
    #[must_use]
    pub fn marks(&self) -> &[Mark] {
        &self.marks
    }

    /// The devices in order of their first event.
    pub fn devices(&self) -> impl ExactSizeIterator<Item = DeviceId> + use<> {
        // The reader admits at most 65,536 devices.
        (0..self.devices.len() as u32).map(DeviceId)
    }

    /// The device's name in the trace, usually `bus:device.function`.
    ///
    /// # Panics
    ///
    /// If `device` is not of this trace.
    #[must_use]
    pub fn device_name(&self, device: DeviceId) -> &str {
        &self.devices[device.index()]
    }

    /// For each event that is a map, whether the mapping is consistent or
    /// streaming; `None` for the others.
    #[must_use]
    pub fn classes(&self) -> Vec<Option<Class>> {
        classify::classes(self)
    }
}
