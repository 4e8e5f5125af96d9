// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Accesses where none were recorded.
//!
//! The kernel sees maps and unmaps, not what a device does between. What is known is that a
//! streaming buffer was used: by its unmap at the latest, or by the moment that the CPU got it
//! back. So each streaming page gets one access there ([`Assume::Unmap`]). [`Assume::Map`] puts it
//! at the map instead, which is badly wrong where buffers wait long for use, as on the receive side
//! of a NIC. Consistent memory (rings) gets none, though devices use it most, so the misses that
//! follow are a floor.
//!
//! Every mapping is streaming here unless its kind says `alloc`; what is unmapped without a kind is
//! streaming by definition.

use super::ImportError;
use super::assemble::direction;
use super::items::{Item, Items};
use super::raw::Owner;
use crate::event::{DeviceId, Event, Kind, Permission};
use crate::note::{Note, Topic};
use crate::runs::Runs;
use crate::trace::{Stamped, TaskId, Trace};
use crate::units::{EventTime, IovaPage, PageRange};
use std::collections::{HashMap, VecDeque};

/// Where accesses are assumed if there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // its variants say it
pub enum Assume {
    None,
    Map,
    #[default]
    Unmap,
}

/// Accesses assumed at one event, at most.
const MAX_AT_ONCE: u64 = 1 << 16;

/// Accesses assumed in all, at most: more than a trace in memory may have.
const MAX_IN_ALL: u64 = 1 << 26;

/// A live mapping, or a part of one.
#[derive(Clone, Copy, Debug)]
struct Live {
    permission: Permission,
    streaming: bool,
    /// The CPU has it back, and the access that shows is placed.
    seen: bool,
}

/// Puts accesses into a stream of events.
#[derive(Debug, Default)]
struct Placer {
    assume: Assume,
    live: HashMap<DeviceId, Runs<Live>>,
    placed: u64,
    left_out: u64,
}

impl Placer {
    fn new(assume: Assume) -> Self {
        Self {
            assume,
            ..Self::default()
        }
    }

    /// Calls `emit` with `event` and the accesses that go with it.
    fn event(&mut self, event: Event, mut emit: impl FnMut(Event)) {
        match event {
            Event::Map {
                device,
                range,
                permission,
                kind,
                ..
            } => {
                emit(event);
                let (first, last) = (range.first().number(), range.last().number());
                let live = Live {
                    permission,
                    streaming: kind != Some(Kind::Alloc),
                    seen: false,
                };
                if live.streaming && self.assume == Assume::Map {
                    self.place(device, (first, last), live, &mut emit);
                }
                self.live
                    .entry(device)
                    .or_default()
                    .insert(first, last, live);
            }
            Event::Unmap { device, range } => {
                for (pages, live) in self.take(device, range) {
                    if live.streaming && !live.seen && self.assume == Assume::Unmap {
                        self.place(device, pages, live, &mut emit);
                    }
                }
                emit(event);
            }
            Event::Access { .. } => emit(event),
        }
    }

    /// Pages change hands without being unmapped.
    fn handed(
        &mut self,
        device: DeviceId,
        range: PageRange,
        to: Owner,
        mut emit: impl FnMut(Event),
    ) {
        if self.assume != Assume::Unmap {
            return;
        }
        let seen = to == Owner::Cpu;
        for ((first, last), live) in self.take(device, range) {
            if live.streaming && seen && !live.seen {
                self.place(device, (first, last), live, &mut emit);
            }
            let runs = self.live.entry(device).or_default();
            runs.insert(first, last, Live { seen, ..live });
        }
    }

    /// Removes the pages of the range; what was mapped of it, by first and last page.
    fn take(&mut self, device: DeviceId, range: PageRange) -> Vec<((u64, u64), Live)> {
        let mut taken = Vec::new();
        if let Some(runs) = self.live.get_mut(&device) {
            let (first, last) = (range.first().number(), range.last().number());
            runs.take(first, last, |first, last, live| {
                taken.push(((first, last), live))
            });
        }
        taken
    }

    fn place(
        &mut self,
        device: DeviceId,
        (first, last): (u64, u64),
        live: Live,
        emit: &mut impl FnMut(Event),
    ) {
        let pages = last - first + 1;
        let allowed = pages.min(MAX_AT_ONCE).min(MAX_IN_ALL - self.placed);
        for page in first..first + allowed {
            if let Some(page) = IovaPage::new(page) {
                emit(Event::Access {
                    device,
                    page,
                    direction: direction(live.permission),
                });
            }
        }
        self.placed += allowed;
        self.left_out = self.left_out.saturating_add(pages - allowed);
    }

    fn notes(&self) -> impl Iterator<Item = Note> {
        let placed = match self.assume {
            Assume::None => None,
            Assume::Map => Some(Topic::AccessesAtMap),
            Assume::Unmap => Some(Topic::AccessesAtUnmap),
        };
        let placed = placed
            .map(|topic| (topic, self.placed))
            .filter(|(_, count)| *count > 0);
        let left_out = (self.left_out > 0).then_some((Topic::AccessesLeftOut, self.left_out));
        let all = placed.into_iter().chain(left_out);
        all.map(|(topic, count)| Note { topic, count })
    }
}

/// A stream with accesses put in.
pub(super) struct Assuming<I> {
    items: I,
    placer: Placer,
    out: VecDeque<Item>,
    ended: bool,
}

impl<I: Items> Assuming<I> {
    pub fn new(items: I, assume: Assume) -> Self {
        Self {
            items,
            placer: Placer::new(assume),
            out: VecDeque::new(),
            ended: false,
        }
    }
}

impl<I: Items> Items for Assuming<I> {
    fn next(&mut self) -> Result<Option<Item>, ImportError> {
        loop {
            if let Some(item) = self.out.pop_front() {
                return Ok(Some(item));
            }
            if self.ended {
                return Ok(None);
            }
            let out = &mut self.out;
            let emit = |event| out.push_back(Item::Event(event));
            match self.items.next()? {
                Some(Item::Event(event)) => self.placer.event(event, emit),
                Some(Item::Handed { device, range, to }) => {
                    self.placer.handed(device, range, to, emit);
                }
                Some(other) => return Ok(Some(other)),
                None => {
                    self.ended = true;
                    self.out.extend(self.placer.notes().map(Item::Note));
                }
            }
        }
    }

    fn device_name(&self, device: DeviceId) -> &str {
        self.items.device_name(device)
    }

    fn task_name(&self, task: TaskId) -> &str {
        self.items.task_name(task)
    }
}

impl Trace {
    /// The trace with accesses put in by `assume`, and a note that says so; as it is if it has any,
    /// or nothing that is streaming.
    #[must_use]
    pub fn with_assumed_accesses(self, assume: Assume) -> Self {
        let has_access = |event: &Event| matches!(event, Event::Access { .. });
        if assume == Assume::None || self.events.iter().any(has_access) {
            return self;
        }
        let mut placer = Placer::new(assume);
        let (mut events, mut times) = (Vec::new(), Vec::with_capacity(self.events.len() + 1));
        for event in &self.events {
            times.push(EventTime(events.len()));
            placer.event(*event, |event| events.push(event));
        }
        times.push(EventTime(events.len()));
        if placer.placed == 0 {
            return self;
        }
        let mut trace = Trace { events, ..self };
        for mark in &mut trace.marks {
            mark.time = times[mark.time.0];
        }
        for Stamped { time, .. } in &mut trace.stamps {
            *time = times[time.0];
        }
        trace.notes.extend(placer.notes());
        trace
    }

    /// The trace without its accesses, as a capture of maps and unmaps would have it.
    #[must_use]
    pub fn without_accesses(&self) -> Self {
        let mut trace = self.clone();
        let mut times = Vec::with_capacity(self.events.len() + 1);
        trace.events.clear();
        for event in &self.events {
            times.push(EventTime(trace.events.len()));
            if !matches!(event, Event::Access { .. }) {
                trace.events.push(*event);
            }
        }
        times.push(EventTime(trace.events.len()));
        for mark in &mut trace.marks {
            mark.time = times[mark.time.0];
        }
        for Stamped { time, .. } in &mut trace.stamps {
            *time = times[time.0];
        }
        trace
    }
}
