// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Events into the order of their times, within a window.
//!
//! Each CPU has a buffer of its own, and what merges them can be a little off. The window holds so
//! many events back, sorted; one that comes later than that is let through as it comes, and
//! counted. Events without a time keep their place.

use super::raw::Raw;
use crate::trace::Stamp;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Most events that are held back at a time.
const WINDOW: usize = 1024;

/// Elements of lists held back.
const ELEMENTS: usize = 1 << 16;

/// An event on its way.
#[derive(Debug)]
pub(super) struct Waiting {
    pub stamp: Option<Stamp>,
    pub task: Option<String>,
    pub device: String,
    pub raw: Raw,
}

impl Waiting {
    fn elements(&self) -> usize {
        match &self.raw {
            Raw::MapList { segments, phys, .. } => segments.len() + phys.len(),
            Raw::UnmapList { phys } => phys.len(),
            Raw::Sync { segments, .. } => segments.len(),
            _ => 0,
        }
    }
}

#[derive(Debug)]
struct Entry {
    nanoseconds: u64,
    number: u64,
    waiting: Waiting,
}

impl Entry {
    fn key(&self) -> (u64, u64) {
        (self.nanoseconds, self.number)
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// Events that are held back until their order is known.
#[derive(Debug, Default)]
pub(super) struct Order {
    heap: BinaryHeap<Reverse<Entry>>,
    elements: usize,
    pushed: u64,
    /// Time of the last one let through.
    last: u64,
    /// Whether the window is to be emptied: its events stand before one without a time,
    /// or before the end.
    draining: bool,
    timeless: Option<Waiting>,
    /// Events that came too late.
    pub late: u64,
}

impl Order {
    /// Takes an event. [`Order::pop`] must have said `None` before.
    pub fn push(&mut self, waiting: Waiting) {
        match waiting.stamp {
            Some(stamp) => {
                self.late += u64::from(stamp.nanoseconds < self.last);
                self.elements += waiting.elements();
                self.pushed += 1;
                self.heap.push(Reverse(Entry {
                    nanoseconds: stamp.nanoseconds,
                    number: self.pushed,
                    waiting,
                }));
            }
            None => {
                self.draining = true;
                self.timeless = Some(waiting);
            }
        }
    }

    /// All that is left is to come out.
    pub fn finish(&mut self) {
        self.draining = true;
    }

    /// The next event whose turn has come.
    pub fn pop(&mut self) -> Option<Waiting> {
        let full = self.heap.len() > WINDOW || self.elements > ELEMENTS;
        if (full || self.draining)
            && let Some(Reverse(entry)) = self.heap.pop()
        {
            self.elements -= entry.waiting.elements();
            self.last = self.last.max(entry.nanoseconds);
            return Some(entry.waiting);
        }
        self.draining = false;
        self.timeless.take()
    }
}

#[cfg(test)]
mod tests {
    use super::super::raw::Owner;
    use super::*;

    fn waiting(time: Option<u64>) -> Waiting {
        Waiting {
            stamp: time.map(|nanoseconds| Stamp {
                nanoseconds,
                cpu: None,
                task: None,
            }),
            task: None,
            device: String::new(),
            raw: Raw::Sync {
                segments: Vec::new(),
                to: Owner::Cpu,
            },
        }
    }

    fn sorted(times: impl IntoIterator<Item = Option<u64>>) -> (Vec<Option<u64>>, u64) {
        let (mut order, mut out) = (Order::default(), Vec::new());
        let time = |waiting: Waiting| waiting.stamp.map(|stamp| stamp.nanoseconds);
        for at in times {
            order.push(waiting(at));
            while let Some(next) = order.pop() {
                out.push(time(next));
            }
        }
        order.finish();
        while let Some(next) = order.pop() {
            out.push(time(next));
        }
        (out, order.late)
    }

    #[test]
    fn what_is_within_the_window_is_sorted() {
        let times = (0..3 * WINDOW as u64).map(|n| Some(n ^ 0xff));
        let (out, late) = sorted(times);
        assert!(out.is_sorted() && late == 0);
    }

    #[test]
    fn what_is_later_is_counted_and_what_has_no_time_stays() {
        let times = (1..=2 * WINDOW as u64)
            .map(Some)
            .chain([Some(0), None, Some(5)]);
        let (out, late) = sorted(times);
        assert_eq!((out.len(), late), (2 * WINDOW + 3, 2));
        assert_eq!(&out[out.len() - 2..], [None, Some(5)]);
    }
}
