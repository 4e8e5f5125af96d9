// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What maps and unmaps alone tell of a trace: captures of a kernel's tracepoints have no accesses.
//!
//! Events count in their order, each at its own time; accesses count nowhere. Times may step back:
//! a mapping that ends before it began lived 0 ns. Events before the first stamp have no time, no
//! CPU and no task.
//!
//! Beside the result, memory follows the live mappings and the mappings that ended, one number
//! each, because quantiles are exact.

mod counter;

use crate::classify::Survey;
use crate::clock::Span;
use crate::trace::{TaskId, Trace};
use crate::units::PageCount;
use counter::{Counter, When};

/// Equal parts that a trace's time is cut into.
pub const SLOTS: usize = 120;

/// What maps and unmaps alone tell of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    /// All times of the trace; `None` without stamps.
    pub span: Option<Span>,
    /// The devices, in the order of [`crate::DeviceId::index`], also those that have accesses only.
    pub devices: Vec<DeviceTraffic>,
}

/// What the maps and unmaps of one device tell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceTraffic {
    /// Maps; a scatter-gather list ([`crate::Lists`]) is one, with the bytes of its segments.
    pub maps: u64,
    /// Unmaps, also those of pages that were not mapped.
    pub unmaps: u64,
    /// Pages of all maps, together.
    pub pages: PageCount,
    /// Streaming maps whose bytes are recorded.
    pub bytes: ByteCounts,
    /// How long streaming mappings lived; `None` where there are no such times.
    pub lifetimes: Option<Lifetimes>,
    /// Maps by size, smallest first. The size is in bytes where recorded, else that of the pages.
    pub sizes: Vec<SizeCount>,
    /// Maps by task, most first, then by task; together they are all maps.
    pub tasks: Vec<TaskCount>,
    /// Maps by CPU, most first, then by CPU; those without a stamp are in none.
    pub cpus: Vec<CpuCount>,
    /// [`Traffic::span`] in [`SLOTS`] equal parts. Empty if no map or unmap of the device has a
    /// time, or all stamps have the same.
    pub timeline: Vec<Slot>,
    /// Largest number of pages mapped at one moment.
    pub peak_live_pages: PageCount,
}

/// Streaming maps whose bytes are recorded ([`crate::Event::bytes`]). Consistent ones have whole
/// pages, with nothing else in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteCounts {
    /// How many there are.
    pub maps: u64,
    /// Bytes that they are for, together.
    pub bytes: u64,
    /// Bytes of their pages, which is what the device can reach, together.
    pub reachable: u64,
    /// Those that do not fill their pages.
    pub partial: u64,
}

/// From map to unmap of streaming mappings, in nanoseconds, where both have times.
///
/// A mapping ends with its last page. One whose last page is mapped again without an unmap has
/// ended unseen: it does not count.
///
/// Quantiles are those of the nearest rank: the least lifetime that so many per cent do not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // its fields say it
pub struct Lifetimes {
    /// Mappings that ended, at least 1.
    pub count: u64,
    pub median_ns: u64,
    pub p90_ns: u64,
    pub p99_ns: u64,
    pub longest_ns: u64,
}

/// Maps of about the same size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeCount {
    /// The least power of two of bytes that holds each of them: 12 is 2,049 to 4,096 bytes. At
    /// most 64.
    pub up_to_bytes_lg2: u32,
    /// How many there are, at least 1.
    pub maps: u64,
}

/// Maps of one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskCount {
    /// The task; `None` where it is not recorded.
    pub task: Option<TaskId>,
    /// How many there are, at least 1.
    pub maps: u64,
}

/// Maps of one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuCount {
    /// Number of the CPU.
    pub cpu: u32,
    /// How many there are, at least 1.
    pub maps: u64,
}

/// What happened in one part of a trace's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// Map events.
    pub maps: u64,
    /// Unmap events.
    pub unmaps: u64,
    /// Most pages of the device mapped: after one of these events, or as the slot began, which is
    /// before the first map or unmap, in the trace's order, that is in the slot or a later one.
    pub live_pages: PageCount,
}

impl Trace {
    /// What maps and unmaps alone tell, whatever accesses there are.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        let span = self.span();
        let survey = Survey::of(self);
        let mut classes = survey.classes();
        let calls = self.calls();
        let mut devices: Vec<Counter> = self.devices().map(|_| Counter::default()).collect();
        let events = self.events().iter().zip(self.stamps_of_events());
        for (time, (event, stamp)) in events.enumerate() {
            let class = classes.next(event);
            let Some(call) = calls.at(time) else {
                continue;
            };
            let timed = stamp.zip(span);
            let when = When {
                stamp,
                slot: timed.and_then(|(stamp, span)| slot(span, stamp.nanoseconds)),
            };
            devices[call.event.device().index()].count(&call, class, when);
        }
        Traffic {
            span,
            devices: devices.into_iter().map(Counter::finish).collect(),
        }
    }
}

/// The part of the span that a time is in; `None` if no time passes.
fn slot(span: Span, ns: u64) -> Option<usize> {
    let length = u128::from(span.last_ns.saturating_sub(span.first_ns));
    let passed = u128::from(ns.saturating_sub(span.first_ns));
    let slot = (passed * SLOTS as u128).checked_div(length)?;
    // the latest time is the end of the last slot
    Some((slot as usize).min(SLOTS - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_equal_parts_of_the_span() {
        let span = |first_ns, last_ns| Span { first_ns, last_ns };
        let times = [1000, 1009, 1010, 1600, 2199, 2200];
        let slots = times.map(|ns| slot(span(1000, 2200), ns));
        assert_eq!(slots, [0, 0, 1, 60, 119, 119].map(Some));
        assert_eq!(slot(span(7, 7), 7), None);
        let longest = span(0, u64::MAX);
        assert_eq!(slot(longest, u64::MAX), Some(119));
        assert_eq!(slot(longest, u64::MAX / 2), Some(59));
    }
}
