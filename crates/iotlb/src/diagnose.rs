// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Why accesses miss.
//!
//! Every miss has one cause, found by running three IOTLBs side by side: the one
//! asked about, a fully associative one of as many entries, and one without bound.
//! Unmaps remove entries from all three.
//!
//! * *first touch*: the unbounded one misses as well. The page has not been
//!   accessed since it was mapped; no larger IOTLB removes this miss.
//! * *capacity*: else, the fully associative one misses as well.
//! * *conflict*: the rest; more ways would have kept the entry.

use crate::cache::{Any, Cache, Found, Span, Tag};
use crate::event::Event;
use crate::geometry::Geometry;
use crate::live::{Effect, LiveMappings};
use crate::trace::Trace;
use crate::units::EventTime;
use serde::Serialize;
use std::collections::BTreeSet;

/// Why an access missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MissCause {
    /// First access since the page was mapped.
    FirstTouch,
    /// More pages are in use than there are entries.
    Capacity,
    /// Enough entries, too few ways.
    Conflict,
}

/// How an access ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Found in the IOTLB.
    Hit,
    /// Walked the page table.
    Miss(MissCause),
    /// Outside every live mapping.
    Fault,
}

/// Accesses by how they ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[allow(missing_docs)] // its fields say it
pub struct MissCounts {
    pub accesses: u64,
    /// Found in the IOTLB.
    pub hits: u64,
    /// Outside every live mapping.
    pub faults: u64,
    pub first_touch: u64,
    pub capacity: u64,
    pub conflict: u64,
}

impl MissCounts {
    /// Misses of every cause.
    #[must_use]
    pub const fn misses(&self) -> u64 {
        self.first_touch + self.capacity + self.conflict
    }

    fn count(&mut self, verdict: Verdict) {
        self.accesses += 1;
        *match verdict {
            Verdict::Hit => &mut self.hits,
            Verdict::Fault => &mut self.faults,
            Verdict::Miss(MissCause::FirstTouch) => &mut self.first_touch,
            Verdict::Miss(MissCause::Capacity) => &mut self.capacity,
            Verdict::Miss(MissCause::Conflict) => &mut self.conflict,
        } += 1;
    }
}

/// Accesses of a trace by how they ended, with the baseline strategy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// Over all devices together.
    pub total: MissCounts,
    /// By [`crate::DeviceId::index`]; the devices share the IOTLB.
    pub per_device: Vec<MissCounts>,
}

/// Counts the accesses of `trace` by how they end in a baseline IOTLB.
#[must_use]
pub fn diagnose(trace: &Trace, geometry: Geometry) -> Diagnosis {
    diagnose_with(trace, geometry, |_, _| {})
}

/// [`diagnose`], telling `each` the time and verdict of every access.
pub fn diagnose_with(
    trace: &Trace,
    geometry: Geometry,
    mut each: impl FnMut(EventTime, Verdict),
) -> Diagnosis {
    let mut caches = Caches {
        asked: Any::with_shape(geometry),
        fully_associative: Any::with_shape(geometry.fully_associative()),
        unbounded: BTreeSet::new(),
        clock: 0,
    };
    let mut live = LiveMappings::new(trace);
    let mut total = MissCounts::default();
    let mut per_device = vec![MissCounts::default(); trace.devices().len()];
    for (index, event) in trace.events().iter().enumerate() {
        let time = EventTime(index);
        match (live.apply(time, event), event) {
            (_, &Event::Unmap { device, range }) => caches.unmap(Span {
                device: device.0,
                first: range.first().number(),
                last: range.last().number(),
            }),
            (Effect::Accessed(owner), &Event::Access { device, page, .. }) => {
                let verdict = match owner {
                    Some(_) => caches.access(Tag {
                        device: device.0,
                        page: page.number(),
                    }),
                    None => Verdict::Fault,
                };
                total.count(verdict);
                per_device[device.index()].count(verdict);
                each(time, verdict);
            }
            _ => {}
        }
    }
    Diagnosis { total, per_device }
}

struct Caches {
    asked: Any,
    fully_associative: Any,
    unbounded: BTreeSet<Tag>,
    clock: u64,
}

impl Caches {
    fn access(&mut self, tag: Tag) -> Verdict {
        self.clock += 1;
        let first_touch = self.unbounded.insert(tag);
        let full = self.fully_associative.access(tag, tag.page, self.clock, 0);
        if self.asked.access(tag, tag.page, self.clock, 0) == Found::Hit {
            Verdict::Hit
        } else if first_touch {
            Verdict::Miss(MissCause::FirstTouch)
        } else if full != Found::Hit {
            Verdict::Miss(MissCause::Capacity)
        } else {
            Verdict::Miss(MissCause::Conflict)
        }
    }

    fn unmap(&mut self, span: Span) {
        self.asked.remove(span, 0);
        self.fully_associative.remove(span, 0);
        while let Some(&tag) = self
            .unbounded
            .range(span.first_tag()..=span.last_tag())
            .next()
        {
            self.unbounded.remove(&tag);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::Limits;

    fn verdicts(lines: &str, geometry: Geometry) -> Vec<Verdict> {
        let text = format!("# ioatlas-trace 1\n{lines}");
        let trace = Trace::read("test", text.as_bytes(), Limits::default()).unwrap();
        let mut verdicts = Vec::new();
        diagnose_with(&trace, geometry, |_, verdict| verdicts.push(verdict));
        verdicts
    }

    #[test]
    fn each_cause_has_its_case() {
        use MissCause::{Capacity, Conflict, FirstTouch};
        let geometry = Geometry::new(2, 1).unwrap();
        // Two sets of one entry: pages 0 and 2 share set 0.
        let conflict = "M d 0 4 r\nA d 0 r\nA d 2 r\nA d 0 r\nA d 0 r\nA d 9 r\n";
        let miss = Verdict::Miss;
        let first = miss(FirstTouch);
        let expected = [first, first, miss(Conflict), Verdict::Hit, Verdict::Fault];
        assert_eq!(verdicts(conflict, geometry), expected);
        let capacity = "M d 0 4 r\nA d 0 r\nA d 1 r\nA d 2 r\nA d 0 r\n";
        assert_eq!(
            verdicts(capacity, geometry),
            [first, first, first, miss(Capacity)]
        );
        let remapped = "M d 0 1 r\nA d 0 r\nU d 0 1\nM d 0 1 r\nA d 0 r\n";
        assert_eq!(verdicts(remapped, geometry), [first, first]);
        // A map over a mapped page leaves the cached entry, so it still hits.
        let over = "M d 0 1 r\nA d 0 r\nM d 0 1 w\nA d 0 w\n";
        assert_eq!(verdicts(over, geometry), [first, Verdict::Hit]);
    }
}
