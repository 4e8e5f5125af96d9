// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Which page is mapped by which mapping, as a trace is replayed.
//!
//! A mapping is named by the time of the event that made it.

use crate::event::{DeviceId, Event};
use crate::runs::Runs;
use crate::trace::Trace;
use crate::units::{EventTime, IovaPage, PageCount, PageRange};

/// The live mappings of all devices of a trace at one moment.
#[derive(Clone, Debug)]
pub struct LiveMappings {
    devices: Vec<Runs<EventTime>>,
}

/// What an event did to the live mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A map; `replaced` of its pages were mapped before (an anomaly).
    Mapped {
        /// Pages that changed hands.
        replaced: PageCount,
    },
    /// An unmap, perhaps of pages that were not mapped.
    Unmapped {
        /// Pages that were mapped.
        removed: PageCount,
        /// Pages that were not (an anomaly).
        not_mapped: PageCount,
    },
    /// An access; `None` outside every live mapping (an anomaly, a fault).
    Accessed(Option<EventTime>),
}

impl LiveMappings {
    /// Nothing mapped, for the devices of `trace`.
    #[must_use]
    pub fn new(trace: &Trace) -> Self {
        Self {
            devices: vec![Runs::default(); trace.devices().len()],
        }
    }

    /// Applies one event; what a map covers is owned by `time` from then on.
    ///
    /// # Panics
    ///
    /// If the event is not of the trace that `self` was made for.
    pub fn apply(&mut self, time: EventTime, event: &Event) -> Effect {
        let runs = &mut self.devices[event.device().index()];
        match *event {
            Event::Map { range, .. } => Effect::Mapped {
                replaced: runs.insert(range.first().number(), range.last().number(), time),
            },
            Event::Unmap { range, .. } => {
                let (first, last) = (range.first().number(), range.last().number());
                let removed = runs.take(first, last, |_, _, _| {});
                Effect::Unmapped {
                    removed,
                    not_mapped: PageCount(range.pages().0 - removed.0),
                }
            }
            Event::Access { page, .. } => Effect::Accessed(runs.get(page.number())),
        }
    }

    /// The mappings that pages of a range belong to, those of higher pages first.
    ///
    /// # Panics
    ///
    /// If `device` is not of the trace that `self` was made for.
    pub fn owners(
        &self,
        device: DeviceId,
        range: PageRange,
    ) -> impl Iterator<Item = EventTime> + '_ {
        let (first, last) = (range.first().number(), range.last().number());
        self.devices[device.index()].within(first, last)
    }

    /// The mappings of all devices; one that has lost pages in its middle comes more than once.
    pub fn all(&self) -> impl Iterator<Item = EventTime> + '_ {
        self.devices
            .iter()
            .flat_map(|runs| runs.within(0, u64::MAX))
    }

    /// The mapping that a page belongs to.
    ///
    /// # Panics
    ///
    /// If `device` is not of the trace that `self` was made for.
    #[must_use]
    pub fn owner(&self, device: DeviceId, page: IovaPage) -> Option<EventTime> {
        self.devices[device.index()].get(page.number())
    }
}
