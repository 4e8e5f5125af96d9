// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Counts the maps and unmaps of one device as they come.

use super::{ByteCounts, CpuCount, DeviceTraffic, Lifetimes, SLOTS, SizeCount, Slot, TaskCount};
use crate::calls::Call;
use crate::classify::Class;
use crate::event::Event;
use crate::mappings::Mappings;
use crate::trace::{Stamp, TaskId};
use crate::units::{PAGE_BYTES, PageCount};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// When an event was.
#[derive(Clone, Copy, Debug)]
pub(super) struct When {
    pub stamp: Option<Stamp>,
    /// `None` without a stamp, or if no time passes in the trace.
    pub slot: Option<usize>,
}

#[derive(Debug, Default)]
pub(super) struct Counter {
    /// What needs no further work.
    sums: DeviceTraffic,
    /// When each began, in nanoseconds, if its lifetime is of interest.
    live: Mappings<Option<u64>>,
    /// In nanoseconds.
    lifetimes: Vec<u64>,
    sizes: BTreeMap<u32, u64>,
    tasks: BTreeMap<Option<TaskId>, u64>,
    cpus: BTreeMap<u32, u64>,
    timeline: Timeline,
}

impl Counter {
    /// Sees the next call; `class` is that of a map.
    pub fn count(&mut self, call: &Call, class: Option<Class>, when: When) {
        let event = &call.event;
        let before = self.live.pages();
        let ns = when.stamp.map(|stamp| stamp.nanoseconds);
        match *event {
            Event::Map { range, .. } => {
                let streaming = class == Some(Class::Streaming);
                self.count_map(range.pages(), call.bytes, streaming, when.stamp);
                // what these pages were of before has ended unseen
                self.live.map(range, ns.filter(|_| streaming), |_| {});
            }
            Event::Unmap { range, .. } => {
                self.sums.unmaps += 1;
                let lifetimes = &mut self.lifetimes;
                self.live.unmap(range, |begin| {
                    let both = begin.zip(ns);
                    lifetimes.extend(both.map(|(begin, end)| end.saturating_sub(begin)));
                });
            }
            Event::Access { .. } => return,
        }
        let now = self.live.pages();
        self.sums.peak_live_pages = self.sums.peak_live_pages.max(now);
        if let Some(slot) = when.slot {
            let slot = self.timeline.enter(slot, before);
            slot.live_pages = slot.live_pages.max(now);
            match event {
                Event::Map { .. } => slot.maps += 1,
                _ => slot.unmaps += 1,
            }
        }
    }

    fn count_map(
        &mut self,
        pages: PageCount,
        bytes: Option<u64>,
        streaming: bool,
        stamp: Option<Stamp>,
    ) {
        self.sums.maps += 1;
        self.sums.pages = self.sums.pages.plus(pages);
        // 2^52 pages have one byte more than a number of 64 bits can say
        let reachable = u128::from(pages.0) * u128::from(PAGE_BYTES);
        if let Some(bytes) = bytes.filter(|_| streaming) {
            self.sums.bytes.add(bytes, reachable);
        }
        let size = bytes.map_or(reachable, u128::from);
        *self.sizes.entry(up_to_lg2(size)).or_default() += 1;
        let task = stamp.and_then(|stamp| stamp.task);
        *self.tasks.entry(task).or_default() += 1;
        if let Some(cpu) = stamp.and_then(|stamp| stamp.cpu) {
            *self.cpus.entry(cpu).or_default() += 1;
        }
    }

    pub fn finish(self) -> DeviceTraffic {
        let size = |(up_to_bytes_lg2, maps)| SizeCount {
            up_to_bytes_lg2,
            maps,
        };
        let task = |(task, maps)| TaskCount { task, maps };
        let cpu = |(cpu, maps)| CpuCount { cpu, maps };
        DeviceTraffic {
            lifetimes: Lifetimes::of(self.lifetimes),
            sizes: self.sizes.into_iter().map(size).collect(),
            tasks: most_first(self.tasks).map(task).collect(),
            cpus: most_first(self.cpus).map(cpu).collect(),
            timeline: self.timeline.finish(self.live.pages()),
            ..self.sums
        }
    }
}

/// The least power of two that is not below a size, which is at least 1.
fn up_to_lg2(size: u128) -> u32 {
    u128::BITS - (size - 1).leading_zeros()
}

fn most_first<T>(counts: BTreeMap<T, u64>) -> impl Iterator<Item = (T, u64)> {
    let mut counts: Vec<(T, u64)> = counts.into_iter().collect();
    counts.sort_by_key(|&(_, count)| Reverse(count)); // stable: ties stay in order
    counts.into_iter()
}

impl ByteCounts {
    fn add(&mut self, bytes: u64, reachable: u128) {
        self.maps += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        let pages = u64::try_from(reachable).unwrap_or(u64::MAX);
        self.reachable = self.reachable.saturating_add(pages);
        self.partial += u64::from(u128::from(bytes) < reachable);
    }
}

impl Lifetimes {
    fn of(mut ns: Vec<u64>) -> Option<Self> {
        let longest_ns = *ns.iter().max()?;
        let count = ns.len() as u64;
        let mut quantile = |percent: u64| {
            let rank = (count * percent).div_ceil(100);
            *ns.select_nth_unstable(rank as usize - 1).1
        };
        Some(Self {
            count,
            median_ns: quantile(50),
            p90_ns: quantile(90),
            p99_ns: quantile(99),
            longest_ns,
        })
    }
}

/// Slots, if there is anything in them: a trace can have 65,536 devices.
#[derive(Debug, Default)]
struct Timeline {
    slots: Vec<Slot>,
    /// Slots up to the latest that an event was in.
    entered: usize,
}

impl Timeline {
    /// The slot of an event before which so many pages were mapped; they were in all slots that
    /// have passed since the latest.
    fn enter(&mut self, slot: usize, before: PageCount) -> &mut Slot {
        self.slots.resize(SLOTS, Slot::default());
        if slot >= self.entered {
            for passed in &mut self.slots[self.entered..=slot] {
                passed.live_pages = before;
            }
            self.entered = slot + 1;
        }
        &mut self.slots[slot]
    }

    fn finish(mut self, live: PageCount) -> Vec<Slot> {
        if !self.slots.is_empty() {
            self.enter(SLOTS - 1, live);
        }
        self.slots
    }
}
