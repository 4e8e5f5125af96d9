// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Which page is mapped by which mapping, as a trace is replayed.
//!
//! A mapping is named by the time of the event that made it. Pages are kept as
//! runs, so memory and time grow with the number of events and not with the page
//! counts in them: an event adds at most two runs (the one it makes and the far
//! side of one it splits).

use crate::event::{DeviceId, Event};
use crate::trace::Trace;
use crate::units::{EventTime, IovaPage, PageCount, PageRange};
use std::collections::BTreeMap;

/// The live mappings of all devices of a trace at one moment.
#[derive(Clone, Debug)]
pub struct LiveMappings {
    devices: Vec<Runs>,
}

/// What an event did to the live mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A map; `replaced` of its pages were mapped before (an anomaly).
    Mapped {
        /// Pages that changed hands.
        replaced: PageCount,
    },
    /// An unmap.
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

    /// Applies one event.
    ///
    /// # Panics
    ///
    /// If the event is not of the trace that `self` was made for.
    pub fn apply(&mut self, time: EventTime, event: &Event) -> Effect {
        self.apply_with(time, event, |_| {})
    }

    /// [`Self::apply`], telling `removed` each mapping that an unmap took pages from.
    pub(crate) fn apply_with(
        &mut self,
        time: EventTime,
        event: &Event,
        removed: impl FnMut(EventTime),
    ) -> Effect {
        let runs = &mut self.devices[event.device().index()];
        match *event {
            Event::Map { range, .. } => Effect::Mapped {
                replaced: runs.insert(range, time),
            },
            Event::Unmap { range, .. } => {
                let taken = runs.take(range, removed);
                Effect::Unmapped {
                    removed: taken,
                    not_mapped: PageCount(range.pages().0 - taken.0),
                }
            }
            Event::Access { page, .. } => Effect::Accessed(runs.owner(page)),
        }
    }

    /// The mapping that a page belongs to.
    ///
    /// # Panics
    ///
    /// If `device` is not of the trace that `self` was made for.
    #[must_use]
    pub fn owner(&self, device: DeviceId, page: IovaPage) -> Option<EventTime> {
        self.devices[device.index()].owner(page)
    }
}

/// Disjoint runs of pages, by first page.
#[derive(Clone, Debug, Default)]
struct Runs(BTreeMap<u64, Run>);

#[derive(Clone, Copy, Debug)]
struct Run {
    last: u64,
    owner: EventTime,
}

impl Runs {
    fn owner(&self, page: IovaPage) -> Option<EventTime> {
        let (_, run) = self.0.range(..=page.number()).next_back()?;
        (run.last >= page.number()).then_some(run.owner)
    }

    /// Makes the range `owner`'s; returns how many of its pages were another's.
    fn insert(&mut self, range: PageRange, owner: EventTime) -> PageCount {
        let replaced = self.take(range, |_| {});
        self.0.insert(
            range.first().number(),
            Run {
                last: range.last().number(),
                owner,
            },
        );
        replaced
    }

    /// Removes the range's pages; returns how many were mapped.
    fn take(&mut self, range: PageRange, mut owner: impl FnMut(EventTime)) -> PageCount {
        let (first, last) = (range.first().number(), range.last().number());
        // Cut a run that begins before the range and reaches into it.
        if let Some((_, before)) = self.0.range_mut(..first).next_back()
            && before.last >= first
        {
            let inside = *before;
            before.last = first - 1;
            self.0.insert(first, inside);
        }
        let mut taken = 0;
        while let Some((&start, &run)) = self.0.range(first..=last).next() {
            self.0.remove(&start);
            if run.last > last {
                self.0.insert(last + 1, run);
            }
            taken += run.last.min(last) - start + 1;
            owner(run.owner);
        }
        PageCount(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u64, last: u64) -> PageRange {
        PageRange::inclusive(first, last)
    }

    fn owners(runs: &Runs, pages: std::ops::Range<u64>) -> Vec<Option<usize>> {
        pages
            .map(|p| runs.owner(IovaPage::new(p).unwrap()).map(|t| t.0))
            .collect()
    }

    #[test]
    fn taking_the_middle_leaves_both_sides() {
        let mut runs = Runs::default();
        assert_eq!(runs.insert(range(1, 5), EventTime(7)), PageCount(0));
        assert_eq!(runs.take(range(3, 3), |t| assert_eq!(t.0, 7)), PageCount(1));
        let o = Some(7);
        assert_eq!(owners(&runs, 0..7), [None, o, o, None, o, o, None]);
        assert_eq!(runs.take(range(0, 6), |_| {}), PageCount(4));
        assert_eq!(owners(&runs, 0..7), [None; 7]);
    }

    #[test]
    fn mapping_over_counts_and_replaces() {
        let mut runs = Runs::default();
        runs.insert(range(0, 3), EventTime(0));
        assert_eq!(runs.insert(range(2, 5), EventTime(1)), PageCount(2));
        let (a, b) = (Some(0), Some(1));
        assert_eq!(owners(&runs, 0..7), [a, a, b, b, b, b, None]);
    }

    #[test]
    fn the_whole_address_space_is_one_run() {
        let mut runs = Runs::default();
        let all = range(0, (1 << 52) - 1);
        runs.insert(all, EventTime(0));
        assert_eq!(runs.0.len(), 1);
        assert_eq!(runs.take(all, |_| {}), PageCount(1 << 52));
    }
}
