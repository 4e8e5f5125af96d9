// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! From what happened to the lines of a trace: pages, mappings, devices.
//!
//! * An unmap of what was not seen being mapped is left out and counted: the capture began later.
//! * A list is unmapped by the memory of its entries; the pages that it had come from its map.
//! * `dma:*` unmaps are reported after the fact. A map over live pages therefore ends them first;
//!   the unmap that comes within [`OVERTAKEN`] is that one's, and dropped. After a loss of events
//!   this cannot be told, and nothing is dropped.
//! * Where bus addresses are memory addresses no IOMMU translated; each mapping then gets pages of
//!   its own ([`Iovas`]).
//!
//! Memory is bounded by what is mapped at one time, by devices, and by [`MAX_LIVE`].

mod lists;

use lists::List;

use super::iovas::Iovas;
use super::items::{Devices, Item};
use super::order::Waiting;
use super::raw::{Raw, Segment, Via};
use super::runs::{Joined, Runs, page_range};
use super::{AssignIovas, Fault, Limits};
use crate::event::{DeviceId, Event, Kind, Permission};
use crate::note::Topic;
use crate::trace::{Stamp, TaskId, Tasks};
use crate::units::{Extent, IovaPage, PageCount, PageRange, PhysPage};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Mappings alive at one time, at most, over all devices; segments of lists count each.
const MAX_LIVE: usize = 1 << 24;

/// How late the report of an unmap can be, in nanoseconds.
const OVERTAKEN: u64 = 1_000_000;

/// Unmaps that are remembered to be on their way, at most, a device.
const MAX_OWED: usize = 1 << 12;

#[derive(Debug, Default)]
pub(super) struct Counts(BTreeMap<Topic, u64>);

impl Counts {
    pub fn add(&mut self, topic: Topic, count: u64) {
        if count > 0 {
            let sum = self.0.entry(topic).or_default();
            *sum = sum.saturating_add(count);
        }
    }

    pub fn get(&self, topic: Topic) -> u64 {
        self.0.get(&topic).copied().unwrap_or(0)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Topic, u64)> {
        self.0.iter().map(|(topic, count)| (*topic, *count))
    }
}

/// What a look at the beginning of a capture says about a device.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Addresses {
    /// Maps whose bus address is their memory's.
    pub physical: u64,
    /// Maps whose bus address is another.
    pub translated: u64,
}

impl Addresses {
    /// Whether no IOMMU translates; `None` without a map that tells.
    fn verdict(self) -> Option<bool> {
        match self.physical + self.translated {
            0 => None,
            _ => Some(self.physical > self.translated),
        }
    }
}

/// What a device has mapped.
#[derive(Default)]
struct Device {
    /// Whether its mappings get IOVAs here.
    assigned: bool,
    live: Runs,
    lists: HashMap<(u64, usize), Vec<List>>,
    /// Mappings with pages of ours, by bus address.
    given: BTreeMap<u64, Vec<Given>>,
    iovas: Iovas,
    /// Unmaps that were done when the next map came, and when that was.
    owed: HashMap<PageRange, u64>,
}

/// A mapping with pages of ours.
#[derive(Clone, Copy)]
struct Given {
    range: PageRange,
    bytes: u64,
}

/// When a source reports unmaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unmaps {
    /// Before the range can be used again.
    InTime,
    /// When another CPU may have mapped the range again.
    AfterTheFact,
}

/// What a source says of lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lengths {
    /// How many bytes a caller asked for.
    Bytes,
    /// How many pages became reachable, as a number of bytes.
    WholePages,
}

pub(super) struct Assembler {
    limits: Limits,
    assign: AssignIovas,
    unmaps: Unmaps,
    lengths: Lengths,
    survey: HashMap<String, Addresses>,
    devices: Devices,
    states: Vec<Device>,
    tasks: Tasks,
    at: Option<Stamp>,
    live: usize,
    pub counts: Counts,
    pub out: VecDeque<Item>,
}

impl Assembler {
    pub fn new(
        assign: AssignIovas,
        unmaps: Unmaps,
        lengths: Lengths,
        survey: HashMap<String, Addresses>,
        limits: Limits,
    ) -> Self {
        Self {
            limits,
            assign,
            unmaps,
            lengths,
            survey,
            devices: Devices::default(),
            states: Vec::new(),
            tasks: Tasks::default(),
            at: None,
            live: 0,
            counts: Counts::default(),
            out: VecDeque::new(),
        }
    }

    pub fn device_name(&self, device: DeviceId) -> &str {
        self.devices.name(device)
    }

    pub fn task_name(&self, task: TaskId) -> &str {
        &self.tasks.names[task.0 as usize]
    }

    /// Turns an event into items in [`Self::out`].
    pub fn event(&mut self, event: Waiting) -> Result<(), Fault> {
        let device = self.device(&event)?;
        let before = self.out.len();
        let task = event.task.as_deref().and_then(|name| self.tasks.get(name));
        let stamp = event.stamp.map(|stamp| Stamp { task, ..stamp });
        match event.raw {
            Raw::Map {
                segment,
                phys,
                permission,
                kind,
            } => self.map(device, segment, phys, permission, kind, stamp)?,
            Raw::Unmap { segment, via } => self.unmap(device, segment, via, stamp),
            Raw::MapList {
                segments,
                phys,
                permission,
                entries,
                cut,
            } => {
                self.counts.add(Topic::ListsCut, u64::from(cut > 0));
                self.map_list(device, segments, &phys, permission, entries, stamp)?;
            }
            Raw::UnmapList { phys } => self.unmap_list(device, &phys, stamp),
            Raw::Sync { segments, to } => {
                for segment in segments {
                    for range in self.mapped_pages(device, segment) {
                        self.out.push_back(Item::Handed { device, range, to });
                    }
                }
            }
            Raw::Access { address, direction } => {
                if let Some(page) = self.page(device, address) {
                    self.emit(Event::Access {
                        device,
                        page,
                        direction,
                    });
                }
            }
            Raw::Translated {
                address,
                phys,
                permission,
            } => self.translated(device, address, phys, permission)?,
            Raw::Invalidate {
                first_page,
                last_page,
            } => {
                if let Some(range) = page_range(first_page, last_page) {
                    self.end(device, range);
                }
            }
        }
        // only what became lines has a time
        let has_event = self
            .out
            .range(before..)
            .any(|item| matches!(item, Item::Event(_)));
        if has_event
            && let Some(stamp) = stamp
            && self.at.replace(stamp) != Some(stamp)
        {
            self.out.insert(before, Item::At(stamp));
        }
        Ok(())
    }

    fn device(&mut self, event: &Waiting) -> Result<DeviceId, Fault> {
        let most = self.limits.devices;
        let device = self.devices.get(&event.device, most);
        let device = device.ok_or(Fault::TooManyDevices(most))?;
        if device.index() == self.states.len() {
            self.states.push(Device {
                assigned: match self.assign {
                    AssignIovas::Always => true,
                    AssignIovas::Never => false,
                    AssignIovas::Auto => self.is_physical(event),
                },
                ..Device::default()
            });
        }
        Ok(device)
    }

    /// Whether a new device's bus addresses are memory addresses: by the survey, by its first
    /// event, by the other devices.
    fn is_physical(&self, event: &Waiting) -> bool {
        let known = self.survey.get(&event.device).and_then(|a| a.verdict());
        let first = || addresses(&event.raw).verdict();
        let others = || {
            let all = self
                .survey
                .values()
                .fold(Addresses::default(), |a, b| Addresses {
                    physical: a.physical + b.physical,
                    translated: a.translated + b.translated,
                });
            all.verdict()
        };
        known.or_else(first).or_else(others).unwrap_or(false)
    }

    fn emit(&mut self, event: Event) {
        self.out.push_back(Item::Event(event));
    }

    /// Which bytes of its pages a run of addresses is, where that is known.
    fn extent(&self, pages: PageRange, segment: Segment) -> Option<Extent> {
        match self.lengths {
            Lengths::Bytes => Extent::new(pages.pages(), segment.address & 0xfff, segment.bytes),
            Lengths::WholePages => None,
        }
    }

    /// Counts mappings that begin.
    fn begin(&mut self, count: usize) -> Result<(), Fault> {
        self.live += count;
        match self.live > MAX_LIVE {
            true => Err(Fault::TooManyLive(MAX_LIVE)),
            false => Ok(()),
        }
    }

    fn map(
        &mut self,
        device: DeviceId,
        segment: Segment,
        phys: Option<u64>,
        permission: Permission,
        kind: Option<Kind>,
        stamp: Option<Stamp>,
    ) -> Result<(), Fault> {
        let Some(pages) = pages(segment) else {
            self.counts.add(Topic::Failed, 1);
            return Ok(());
        };
        self.counts
            .add(Topic::KindUnknown, u64::from(kind.is_none()));
        if !self.states[device.index()].assigned {
            self.make_room(device, pages, stamp);
            self.begin(1)?;
            self.states[device.index()].live.insert(pages);
            self.emit(Event::Map {
                device,
                range: pages,
                permission,
                phys: phys.and_then(phys_page),
                kind,
                extent: self.extent(pages, segment),
            });
            return Ok(());
        }
        let state = &mut self.states[device.index()];
        let Some(range) = state.iovas.take(pages.pages()) else {
            self.counts.add(Topic::Failed, 1);
            return Ok(());
        };
        let bytes = segment.bytes;
        let given = state.given.entry(segment.address).or_default();
        given.push(Given { range, bytes });
        self.begin(1)?;
        self.counts.add(Topic::IovasAssigned, 1);
        self.emit(Event::Map {
            device,
            range,
            permission,
            // without translation the bus address is the memory's
            phys: phys_page(phys.unwrap_or(segment.address)),
            kind,
            extent: self.extent(pages, segment),
        });
        Ok(())
    }

    /// Ends what is still mapped where a map goes: its unmap is on its way, or lost.
    fn make_room(&mut self, device: DeviceId, pages: PageRange, stamp: Option<Stamp>) {
        let state = &mut self.states[device.index()];
        if !state.live.overlaps(pages) {
            return;
        }
        let before = state.live.len();
        let ended = match self.unmaps {
            Unmaps::AfterTheFact => state.live.take_touched(pages),
            // an anomaly, and shown as one
            Unmaps::InTime => {
                state.live.take(pages);
                Vec::new()
            }
        };
        self.live = (self.live + state.live.len()).saturating_sub(before);
        let lost = self.counts.get(Topic::Lost) > 0;
        for range in ended {
            self.counts.add(Topic::Overtaken, 1);
            let owed = &mut self.states[device.index()].owed;
            if let Some(stamp) = stamp
                && !lost
                && owed.len() < MAX_OWED
            {
                owed.insert(range, stamp.nanoseconds);
            }
            self.emit(Event::Unmap { device, range });
        }
    }

    fn unmap(&mut self, device: DeviceId, segment: Segment, via: Via, stamp: Option<Stamp>) {
        let Some(pages) = pages(segment) else {
            self.counts.add(Topic::Failed, 1);
            return;
        };
        if !self.states[device.index()].assigned {
            self.unmap_pages(device, pages, via, stamp);
            return;
        }
        let state = &mut self.states[device.index()];
        let Some(given) = state.given.get_mut(&segment.address) else {
            self.counts.add(Topic::MappedBefore, 1);
            return;
        };
        // the same buffer can be mapped more than once, then the length may tell which
        let same = given.iter().rposition(|given| given.bytes == segment.bytes);
        let ended = given.remove(same.unwrap_or(given.len() - 1));
        if given.is_empty() {
            state.given.remove(&segment.address);
        }
        state.iovas.give(ended.range);
        self.live -= 1;
        self.emit(Event::Unmap {
            device,
            range: ended.range,
        });
    }

    fn unmap_pages(&mut self, device: DeviceId, pages: PageRange, via: Via, stamp: Option<Stamp>) {
        if via == Via::Dma
            && let Some(since) = self.states[device.index()].owed.remove(&pages)
            && stamp.is_some_and(|now| now.nanoseconds.abs_diff(since) <= OVERTAKEN)
        {
            return;
        }
        if self.end(device, pages) == 0 {
            self.counts.add(Topic::MappedBefore, 1);
        }
    }

    /// Ends what is mapped in the range; the number of lines that took.
    fn end(&mut self, device: DeviceId, pages: PageRange) -> usize {
        let state = &mut self.states[device.index()];
        let before = state.live.len();
        let ended = state.live.take(pages);
        self.live = (self.live + state.live.len()).saturating_sub(before);
        let count = ended.len();
        for range in ended {
            self.emit(Event::Unmap { device, range });
        }
        count
    }

    /// The live pages of a buffer that changes hands.
    fn mapped_pages(&self, device: DeviceId, segment: Segment) -> Vec<PageRange> {
        let state = &self.states[device.index()];
        let Some(wanted) = pages(segment) else {
            return Vec::new();
        };
        if !state.assigned {
            return match state.live.overlaps(wanted) {
                true => vec![wanted],
                false => Vec::new(),
            };
        }
        // part of a buffer is synchronised by an address within it
        let before = state.given.range(..=segment.address).next_back();
        let given = before.and_then(|(at, given)| Some((at, given.last()?)));
        let Some((at, given)) = given.filter(|(at, g)| segment.address - **at < g.bytes) else {
            return Vec::new();
        };
        let skipped = (segment.address >> 12) - (at >> 12);
        let first = given.range.first().number() + skipped;
        let last = (first + wanted.pages().0 - 1).min(given.range.last().number());
        page_range(first, last).into_iter().collect()
    }

    /// The page of a trace that a device means by an address.
    fn page(&self, device: DeviceId, address: u64) -> Option<IovaPage> {
        let state = &self.states[device.index()];
        if !state.assigned {
            return IovaPage::new(address >> 12);
        }
        let one = Segment { address, bytes: 1 };
        let range = self.mapped_pages(device, one).into_iter().next()?;
        Some(range.first())
    }

    fn translated(
        &mut self,
        device: DeviceId,
        address: u64,
        phys: u64,
        permission: Permission,
    ) -> Result<(), Fault> {
        let Some(page) = IovaPage::new(address >> 12) else {
            return Ok(());
        };
        if !self.states[device.index()].live.contains(page.number())
            && let Some(range) = page_range(page.number(), page.number())
        {
            self.begin(1)?;
            self.counts.add(Topic::MappedAtAccess, 1);
            self.states[device.index()].live.insert(range);
            self.emit(Event::Map {
                device,
                range,
                permission,
                phys: phys_page(phys),
                kind: None,
                extent: None,
            });
        }
        self.emit(Event::Access {
            device,
            page,
            direction: direction(permission),
        });
        Ok(())
    }
}

/// The direction of an access to a page, if its permission leaves no other.
pub(super) fn direction(permission: Permission) -> Option<crate::event::Direction> {
    match permission {
        Permission::Read => Some(crate::event::Direction::Read),
        Permission::Write => Some(crate::event::Direction::Write),
        Permission::ReadWrite => None,
    }
}

/// What one event says about whose addresses the device uses.
pub(super) fn addresses(raw: &Raw) -> Addresses {
    let mut found = Addresses::default();
    let mut compare = |bus: u64, phys: u64| match bus == phys {
        true => found.physical += 1,
        false => found.translated += 1,
    };
    match raw {
        Raw::Map {
            segment,
            phys: Some(phys),
            ..
        } => compare(segment.address, *phys),
        Raw::MapList { segments, phys, .. } => {
            if let (Some(segment), Some(phys)) = (segments.first(), phys.first()) {
                compare(segment.address, *phys);
            }
        }
        _ => {}
    }
    found
}

/// The pages that a run of addresses touches; `None` if it is empty or wraps.
fn pages(segment: Segment) -> Option<PageRange> {
    let last = segment.address.checked_add(segment.bytes.checked_sub(1)?)?;
    page_range(segment.address >> 12, last >> 12)
}

fn phys_page(address: u64) -> Option<PhysPage> {
    PhysPage::new(address >> 12)
}
