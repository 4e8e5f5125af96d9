// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Where bounce buffers would pay, by the sizes of a trace's maps.
//!
//! A streaming map and its unmap, where the trace has both, cost a request each, by a [`Charge`];
//! through a slot that is mapped already they cost a copy and the slot. What is copied is what was
//! asked for, where the trace knows its bytes, else whole pages: a bound from above. What lines up
//! as one list is one map. Consistent mappings stay, so they do not count. Costs are assumed: of a
//! strict policy on hardware, the wait for one invalidation that the report assumes anyway; of a
//! virtual IOMMU, those of [`Preset::VfioGuest`]; of copies and slots, those of
//! [`Assumed::BOUNCE21`].

use crate::LoadedTrace;
use ioatlas_bench::bounce::{Charge, Cost, Preset, model::Assumed};
use ioatlas_dma::units::{GRANULE, PageCount};
use ioatlas_iotlb::{Class, DeviceId, Event, Trace, lists};
use ioatlas_present::{Figure, Sentence, Unit, sentence};
use serde::Serialize;
use std::collections::BTreeMap;

/// What bouncing would save in two places.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bouncing {
    /// On hardware under a strict policy.
    pub strict: Gain,
    /// Over a virtual IOMMU.
    pub viommu: Gain,
}

/// What bouncing would save in one place.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Gain {
    /// Maps that cost less when bounced, of the streaming ones.
    pub maps: Figure,
    /// Change of the time in map, unmap and copies of all of them, if those are.
    pub time: Figure,
}

impl Bouncing {
    /// Of all maps of `traces`, where an invalidation takes `wait`; `None` where nothing
    /// is mapped for streaming.
    #[must_use]
    pub fn of(traces: &[LoadedTrace], wait: Figure) -> Option<Self> {
        let charges = [strict(wait), Preset::VfioGuest.charge()];
        let mut sums = [Sums::default(); 2];
        for buffer in traces.iter().flat_map(|of| streaming(&of.trace)) {
            for (sums, charge) in sums.iter_mut().zip(&charges) {
                sums.add(&buffer, charge);
            }
        }
        let [strict, viommu] = sums.map(|sums| sums.gain());
        Some(Bouncing {
            strict: strict?,
            viommu: viommu?,
        })
    }

    /// The savings in one line.
    #[must_use]
    pub fn sentence(&self) -> Sentence {
        let Bouncing { strict, viommu } = self;
        sentence![
            "Bouncing pays: strict ",
            strict.maps,
            " of maps (their time ",
            strict.time,
            "), vIOMMU ",
            viommu.maps,
            " (",
            viommu.time,
            "); costs assumed.",
        ]
    }
}

/// What maps cost in one place, as they are and where each that pays is bounced. Large traces have
/// millions of them, so they are not kept.
#[derive(Clone, Copy, Default)]
struct Sums {
    maps: u64,
    paying: u64,
    before_ns: f64,
    after_ns: f64,
}

impl Sums {
    fn add(&mut self, buffer: &Buffer, charge: &Charge) {
        let assumed = Assumed::BOUNCE21;
        let direct = charge.pair_ns(buffer.pages);
        let bounced = assumed.slot_ns + assumed.copy_ns * buffer.bytes as f64;
        self.maps += 1;
        self.paying += u64::from(bounced < direct);
        self.before_ns += direct;
        self.after_ns += direct.min(bounced);
    }

    /// `None` where there was no map.
    fn gain(&self) -> Option<Gain> {
        let change = match self.before_ns > 0.0 {
            true => (self.after_ns / self.before_ns - 1.0) * 100.0,
            false => 0.0,
        };
        let share = 100.0 * self.paying as f64 / self.maps as f64;
        (self.maps > 0).then_some(Gain {
            maps: Figure::assumed(share, Unit::Percent),
            time: Figure::assumed(change, Unit::PercentChange),
        })
    }
}

/// A strict policy on hardware: an invalidation takes `wait` at each unmap.
pub(super) fn strict(wait: Figure) -> Charge {
    Charge {
        unmap: Cost {
            base_ns: wait.value,
            page_ns: 0.0,
        },
        ..Charge::default()
    }
}

/// By device, what bouncing its maps saves in a place of this charge; `None` where nothing is
/// mapped for streaming.
pub(super) fn gains(trace: &Trace, charge: &Charge) -> Vec<Option<Gain>> {
    let mut sums = vec![Sums::default(); trace.devices().len()];
    for buffer in streaming(trace) {
        sums[buffer.device.index()].add(&buffer, charge);
    }
    sums.iter().map(Sums::gain).collect()
}

/// What one streaming map is for.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Buffer {
    device: DeviceId,
    pages: PageCount,
    /// Those that were asked for, or those of the pages where that is not recorded.
    bytes: u64,
}

/// What the streaming maps that the trace sees unmapped are for.
fn streaming(trace: &Trace) -> impl Iterator<Item = Buffer> {
    let (lists, classes, ended) = (lists(trace), trace.classes(), ended(trace));
    let pages = |time: usize| match trace.events()[time] {
        Event::Map { range, .. } => range.pages().0,
        _ => 0,
    };
    let bytes = move |time: usize| {
        let recorded = trace.events()[time].bytes();
        recorded.unwrap_or(pages(time).saturating_mul(GRANULE))
    };
    let sum = |lines: &[usize], of: &dyn Fn(usize) -> u64| {
        let sizes = lines.iter().map(|line| of(*line));
        sizes.fold(0, u64::saturating_add)
    };
    let events = trace.events().iter().enumerate();
    events.filter_map(move |(time, event)| {
        let streams = classes[time] == Some(Class::Streaming);
        (streams && ended[time] && !lists.members.contains(&time)).then(|| {
            let one = [time];
            let lines = lists.heads.get(&time).map_or(&one[..], Vec::as_slice);
            Buffer {
                device: event.device(),
                pages: PageCount(sum(lines, &pages)),
                bytes: sum(lines, &bytes),
            }
        })
    })
}

/// Of each event, whether it is a map whose first page, at least, is unmapped later.
fn ended(trace: &Trace) -> Vec<bool> {
    let mut ended = vec![false; trace.events().len()];
    let mut live = vec![BTreeMap::new(); trace.devices().len()];
    for (time, event) in trace.events().iter().enumerate() {
        let live = &mut live[event.device().index()];
        match event {
            Event::Map { range, .. } => {
                live.insert(range.first().number(), time);
            }
            Event::Unmap { range, .. } => {
                let inside = live.range(range.first().number()..=range.last().number());
                let inside: Vec<u64> = inside.map(|(first, _)| *first).collect();
                let gone = inside.iter().filter_map(|first| live.remove(first));
                gone.for_each(|time| ended[time] = true);
            }
            Event::Access { .. } => {}
        }
    }
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(lines: &str) -> LoadedTrace {
        let text = format!("# ioatlas-trace 1\n{lines}");
        LoadedTrace::read("t", text.as_bytes(), None).unwrap()
    }

    fn wait(ns: f64) -> Figure {
        Figure::assumed(ns, Unit::Nanoseconds)
    }

    #[test]
    fn maps_that_cost_more_than_their_copies_pay() {
        // one page and two pages for streaming; a copy costs 527 and 1,015 ns
        let trace =
            loaded("M d 1 1 r 7 page\nU d 1 1\nM d 4 2 r 9 page\nU d 4 2\nM d 8 1 rw 20 alloc\n");
        let of = |ns| Bouncing::of(std::slice::from_ref(&trace), wait(ns)).unwrap();
        let strict = of(800.0).strict;
        assert_eq!(strict.maps.value, 50.0);
        let copy = 40.0 + 0.119 * 4096.0;
        let change = ((copy + 800.0) / 1_600.0 - 1.0) * 100.0;
        assert!((strict.time.value - change).abs() < 1e-9);
        assert_eq!(of(100.0).strict.maps.value, 0.0);
        assert_eq!(of(100.0).strict.time.value, 0.0);
        assert_eq!(of(0.0).strict.time.value, 0.0);
        let both = of(2_000.0);
        assert_eq!(
            (both.strict.maps.value, both.viommu.maps.value),
            (100.0, 100.0)
        );
        assert!(both.viommu.time.value < both.strict.time.value);
    }

    #[test]
    fn a_list_is_one_map_of_all_its_pages() {
        let list = loaded("M d 1 1 r 7 sg\nM d 2 1 r 9 sg\nU d 1 2\n");
        let of = |trace: &LoadedTrace| {
            let buffers = streaming(&trace.trace);
            buffers.map(|b| (b.pages.0, b.bytes)).collect::<Vec<_>>()
        };
        assert_eq!(of(&list), [(2, 8192)]);
        let short = loaded("M d 1 1 r 7 sg 4000+96\nM d 2 1 r 9 sg 0+4\nU d 1 2\n");
        assert_eq!(of(&short), [(2, 100)]);
    }

    /// No invalidation is waited for there, so none is saved.
    #[test]
    fn a_map_without_its_unmap_is_charged_nothing() {
        let both = "M d 1 1 r 7 page\nU d 1 1\n";
        let open = "M d 4 1 r 9 page\nM d 5 1 r 9 page\n";
        let of = |lines: &str| Bouncing::of(&[loaded(lines)], wait(800.0));
        assert_eq!(of(open), None);
        assert_eq!(of(&[both, open].concat()), of(both));
        let one = [open, "U d 4 1\n"].concat();
        assert_eq!(streaming(&loaded(&one).trace).count(), 1);
    }

    #[test]
    fn without_streaming_maps_there_is_nothing_to_say() {
        let rings = loaded("M d 1 1 rw 7 alloc\n");
        assert_eq!(Bouncing::of(&[rings], wait(800.0)), None);
    }
}
