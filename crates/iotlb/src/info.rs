// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What is in a trace: counts, kinds, peaks, anomalies.

use crate::classify::Class;
use crate::event::{Event, Kind};
use crate::live::{Effect, LiveMappings};
use crate::trace::Trace;
use crate::units::{EventTime, PageCount};
use serde::Serialize;

/// Events that do not fit the live mappings; all other results leave them out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Anomalies {
    /// Pages that a map found mapped.
    pub map_over_mapped_pages: PageCount,
    /// Pages that an unmap found not mapped.
    pub unmap_not_mapped_pages: PageCount,
    /// Accesses outside a live mapping.
    pub faults: u64,
}

impl Anomalies {
    /// Adds what `effect` shows.
    pub(crate) fn count(&mut self, effect: Effect) {
        match effect {
            Effect::Mapped { replaced } => {
                self.map_over_mapped_pages = self.map_over_mapped_pages.plus(replaced);
            }
            Effect::Unmapped { not_mapped, .. } => {
                self.unmap_not_mapped_pages = self.unmap_not_mapped_pages.plus(not_mapped);
            }
            Effect::Accessed(owner) => self.faults += u64::from(owner.is_none()),
        }
    }

    /// Whether every event fitted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Map events by recorded kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[allow(missing_docs)] // its fields say it
pub struct KindCounts {
    pub alloc: u64,
    pub page: u64,
    pub sg: u64,
    /// Maps whose lines say no kind.
    pub not_recorded: u64,
}

/// What a trace says of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[allow(missing_docs)] // its fields say it
pub struct DeviceInfo {
    /// Its name in the trace.
    pub device: String,
    pub maps: u64,
    pub unmaps: u64,
    pub accesses: u64,
    /// Map events by kind.
    pub kinds: KindCounts,
    /// Map events of consistent mappings.
    pub consistent_maps: u64,
    /// Map events of streaming mappings.
    pub streaming_maps: u64,
    /// Largest number of pages mapped at one moment.
    pub peak_live_pages: PageCount,
    /// What did not fit.
    pub anomalies: Anomalies,
}

/// What is in a trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs)] // its fields say it
pub struct TraceInfo {
    /// Name of the file, as given by the user.
    pub name: String,
    /// Number of events: the trace's duration in virtual time.
    pub events: usize,
    /// Largest number of pages mapped at one moment, over all devices.
    pub peak_live_pages: PageCount,
    pub marks: usize,
    /// What did not fit, over all devices.
    pub anomalies: Anomalies,
    /// What the times and CPUs in the trace say, if there are any.
    pub clock: Option<crate::clock::ClockInfo>,
    /// What the trace says about its making.
    pub notes: Vec<crate::note::Note>,
    /// Events of the capture that its importer did not know, by number and name.
    pub not_understood: Option<String>,
    /// The devices, in the order of [`crate::DeviceId::index`].
    pub devices: Vec<DeviceInfo>,
}

impl Trace {
    /// Counts what is in the trace.
    #[must_use]
    pub fn info(&self) -> TraceInfo {
        let named = |id| DeviceInfo {
            device: self.device_name(id).into(),
            ..Default::default()
        };
        let mut info = TraceInfo {
            name: self.name.clone(),
            events: self.events.len(),
            peak_live_pages: PageCount(0),
            marks: self.marks.len(),
            anomalies: Anomalies::default(),
            clock: self.clock(),
            notes: self.notes.clone(),
            not_understood: self.not_understood.clone(),
            devices: self.devices().map(named).collect(),
        };
        let classes = self.classes();
        let mut live = LiveMappings::new(self);
        let mut live_pages = vec![PageCount(0); info.devices.len()];
        let mut all_live_pages = 0u128; // 65,536 devices of 2^52 pages pass 64 bits
        for (index, event) in self.events.iter().enumerate() {
            let at = event.device().index();
            let device = &mut info.devices[at];
            device.count_event(event, classes[index]);
            let effect = live.apply(EventTime(index), event);
            device.anomalies.count(effect);
            info.anomalies.count(effect);
            let before = live_pages[at].0;
            match (effect, event) {
                (Effect::Mapped { replaced }, Event::Map { range, .. }) => {
                    live_pages[at].0 += range.pages().0 - replaced.0;
                }
                (Effect::Unmapped { removed, .. }, _) => live_pages[at].0 -= removed.0,
                _ => {}
            }
            let now = live_pages[at];
            all_live_pages = all_live_pages + u128::from(now.0) - u128::from(before);
            device.peak_live_pages = device.peak_live_pages.max(now);
            let all = PageCount(u64::try_from(all_live_pages).unwrap_or(u64::MAX));
            info.peak_live_pages = info.peak_live_pages.max(all);
        }
        info
    }
}

impl DeviceInfo {
    fn count_event(&mut self, event: &Event, class: Option<Class>) {
        match event {
            Event::Map { kind, .. } => {
                self.maps += 1;
                *match kind {
                    Some(Kind::Alloc) => &mut self.kinds.alloc,
                    Some(Kind::Page) => &mut self.kinds.page,
                    Some(Kind::ScatterGather) => &mut self.kinds.sg,
                    None => &mut self.kinds.not_recorded,
                } += 1;
            }
            Event::Unmap { .. } => self.unmaps += 1,
            Event::Access { .. } => self.accesses += 1,
        }
        match class {
            Some(Class::Consistent) => self.consistent_maps += 1,
            Some(Class::Streaming) => self.streaming_maps += 1,
            None => {}
        }
    }
}
