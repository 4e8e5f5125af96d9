// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Consistent or streaming: from recorded kinds where a device has any, else from
//! behaviour.
//!
//! Recorded: on a device where at least one map carries a kind, `alloc` is
//! consistent and every other map streaming. Behaviour: a mapping is streaming if
//! an unmap takes a page of it while that is still the mapping's, or if it was made
//! after its device's first unmap (drivers allocate rings while they start); all
//! others are consistent.
//!
//! Two passes. The first ([`Survey::observe`]) sees every event; in the second,
//! [`Classes`] names the class of each map as it comes. What the first must remember
//! of maps is about *early* ones only, those before the first unmap and the first
//! recorded kind of their device: one bit each, beside those of their pages that are
//! still mapped. So memory follows the live mappings, not the length of the trace.

use crate::event::{Event, Kind};
use crate::runs::Runs;
use crate::trace::Trace;
use serde::Serialize;

/// How long a mapping is meant to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Long-lived, shared between CPU and device: rings, control blocks.
    Consistent,
    /// Lives for one transfer.
    Streaming,
}

impl Class {
    fn streaming_if(streaming: bool) -> Self {
        if streaming {
            Class::Streaming
        } else {
            Class::Consistent
        }
    }
}

/// An early map: its number among the maps of its device, and its pages.
#[derive(Clone, Copy, Debug)]
struct Early {
    number: u64,
    pages: u64,
}

/// What a pass over the events learns of one device.
#[derive(Clone, Debug, Default)]
struct DeviceSurvey {
    kinds_recorded: bool,
    seen_unmap: bool,
    maps: u64,
    /// A bit for each early map: whether an unmap took a page of it.
    taken: Vec<u64>,
    /// Pages that are still an early map's.
    early: Runs<Early>,
    early_pages: u128,
    alloc_pages: u128,
}

/// What a first pass over a trace learns, for the passes that follow.
#[derive(Clone, Debug, Default)]
pub(crate) struct Survey {
    devices: Vec<DeviceSurvey>,
}

impl Survey {
    pub fn of(trace: &Trace) -> Self {
        let mut survey = Self::default();
        trace
            .events()
            .iter()
            .for_each(|event| survey.observe(event));
        survey
    }

    /// Sees the next event.
    pub fn observe(&mut self, event: &Event) {
        let index = event.device().index();
        if index >= self.devices.len() {
            self.devices.resize_with(index + 1, Default::default);
        }
        let device = &mut self.devices[index];
        match *event {
            Event::Map { range, kind, .. } => {
                let (first, last) = (range.first().number(), range.last().number());
                device.map(first, last, kind);
            }
            Event::Unmap { range, .. } => {
                device.unmap(range.first().number(), range.last().number());
            }
            Event::Access { .. } => {}
        }
    }

    /// Number of devices seen.
    pub fn devices(&self) -> usize {
        self.devices.len()
    }

    /// Pages of all consistent maps of a device, mapped at one time or not.
    pub fn consistent_pages(&self, device: usize) -> u128 {
        let device = &self.devices[device];
        if device.kinds_recorded {
            device.alloc_pages
        } else {
            device.early_pages
        }
    }

    /// The classes of the maps, for a further pass.
    pub fn classes(&self) -> Classes<'_> {
        Classes {
            survey: self,
            maps: vec![0; self.devices.len()],
            seen_unmap: vec![false; self.devices.len()],
        }
    }
}

impl DeviceSurvey {
    fn map(&mut self, first: u64, last: u64, kind: Option<Kind>) {
        let number = self.maps;
        self.maps += 1;
        let pages = last - first + 1;
        if kind.is_some() && !self.kinds_recorded {
            self.kinds_recorded = true;
            self.early = Runs::default();
            self.taken = Vec::new();
        }
        if kind == Some(Kind::Alloc) {
            self.alloc_pages += u128::from(pages);
        }
        if self.kinds_recorded {
            return;
        }
        if self.seen_unmap {
            self.early.take(first, last, |_, _, _| {});
            return;
        }
        self.early_pages += u128::from(pages);
        self.early.insert(first, last, Early { number, pages });
        if number.is_multiple_of(64) {
            self.taken.push(0);
        }
    }

    fn unmap(&mut self, first: u64, last: u64) {
        self.seen_unmap = true;
        if self.early.is_empty() {
            return;
        }
        let (taken, early_pages) = (&mut self.taken, &mut self.early_pages);
        self.early.take(first, last, |_, _, early| {
            let Early { number, pages } = early;
            let (word, bit) = ((number / 64) as usize, 1 << (number % 64));
            if taken[word] & bit == 0 {
                taken[word] |= bit;
                *early_pages -= u128::from(pages);
            }
        });
    }
}

/// Names the class of each map of a trace that was surveyed, in order.
#[derive(Clone, Debug)]
pub(crate) struct Classes<'a> {
    survey: &'a Survey,
    maps: Vec<u64>,
    seen_unmap: Vec<bool>,
}

impl Classes<'_> {
    /// The class of the next event if it is a map. Every event must pass.
    pub fn next(&mut self, event: &Event) -> Option<Class> {
        let index = event.device().index();
        match *event {
            Event::Map { kind, .. } => {
                let device = &self.survey.devices[index];
                let number = self.maps[index];
                self.maps[index] += 1;
                Some(Class::streaming_if(if device.kinds_recorded {
                    kind != Some(Kind::Alloc)
                } else {
                    let taken = |word: &u64| word & 1 << (number % 64) != 0;
                    self.seen_unmap[index]
                        || device.taken.get((number / 64) as usize).is_some_and(taken)
                }))
            }
            Event::Unmap { .. } => {
                self.seen_unmap[index] = true;
                None
            }
            Event::Access { .. } => None,
        }
    }
}

impl Trace {
    /// For each event that is a map, whether the mapping is consistent or
    /// streaming; `None` for the others.
    #[must_use]
    pub fn classes(&self) -> Vec<Option<Class>> {
        let survey = Survey::of(self);
        let mut classes = survey.classes();
        let events = self.events().iter();
        events.map(|event| classes.next(event)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::Limits;

    fn classes_of_maps(lines: &str) -> String {
        let text = format!("# ioatlas-trace 1\n{lines}");
        let trace = Trace::read("test", text.as_bytes(), Limits::default()).unwrap();
        let letter = |class| if class == Class::Consistent { 'c' } else { 's' };
        trace.classes().into_iter().flatten().map(letter).collect()
    }

    #[test]
    fn recorded_kinds_decide_for_their_device_only() {
        let lines = "M a 1 1 r 1 alloc\nM a 2 1 r\nM a 3 1 r 1 -\nM a 4 1 r - sg\nM b 1 1 r\n";
        assert_eq!(classes_of_maps(lines), "csssc");
        // A kind of `-` records nothing.
        assert_eq!(classes_of_maps("M a 1 1 r 1 -\n"), "c");
        // An unmapped consistent allocation stays consistent.
        assert_eq!(
            classes_of_maps("M a 1 1 r 1 alloc\nU a 1 1\nM a 1 1 r 1 alloc\n"),
            "cc"
        );
    }

    #[test]
    fn behaviour_decides_where_no_kind_is_recorded() {
        assert_eq!(
            classes_of_maps("M a 1 1 r\nM a 2 2 r\nU a 3 1\nM a 9 1 r\n"),
            "css"
        );
        // An unmap of nothing is a first unmap all the same.
        assert_eq!(classes_of_maps("M a 1 1 r\nU a 7 1\nM a 2 1 r\n"), "cs");
        // Replaced pages are no longer the first mapping's.
        assert_eq!(classes_of_maps("M a 1 1 r\nM a 1 1 r\nU a 1 1\n"), "cs");
        assert_eq!(classes_of_maps("M a 1 1 r\nU b 1 1\nM a 2 1 r\n"), "cc");
    }
}
