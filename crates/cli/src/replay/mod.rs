// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Re-running a trace's maps, unmaps and accesses under a design of the core, on the software unit,
//! watched by the oracle.
//!
//! # Rules
//!
//! * Each device of the trace is a domain with one device; one CPU does everything, in the order of
//!   the trace.
//! * A map is mapped anew: the same pages, physical page and permission where recorded, at an IOVA
//!   that the design chooses.
//! * Maps that were one scatter-gather list ([`ioatlas_iotlb::Lists`] says how that shows) are one
//!   list, mapped where its first line stands, and their unmap is one unmap.
//! * An access moves along: to the new IOVA plus its offset in the mapping. One whose recorded
//!   direction the mapping does not permit (permissions do not affect hits in the model), or has
//!   none, goes in a direction that it permits.
//! * A driver that unmaps in bursts ([`Unmaps::InBursts`]) ends what the trace has unmapped when
//!   there are [`BURST`] mappings of a device, or at the end of the trace, by one call. Until then
//!   it has not unmapped them, so they are unmapped later than in the trace.
//! * Virtual time is the event index and no timer ticks, so deferred policies flush by their bound
//!   in operations alone.
//! * Events that do not fit are skipped and counted as *anomalies*: a map over a mapped page, an
//!   unmap of anything but whole mappings, an access outside every mapping.
//! * What would make the replay itself too large ([`MAX_PAGES`], [`MAX_DEVICES`], page tables
//!   beyond `FRAMES`) is skipped and counted as *limited*, and so is what needs a map that was.
//! * With [`Probe::UnmappedPages`] the device tries the pages of each mapping once more when its
//!   unmap has returned. That disturbs the caches, so it is a run of its own, and what is counted
//!   of the traffic comes from a run without. A page that another mapping shares (`identity`) is
//!   still mapped, and left alone.

pub(crate) mod command;
#[cfg(test)]
mod tests;

use ioatlas_bench::{pattern::BURST, platform::host};
use ioatlas_dma::{
    design::Design,
    domain::{Exposure, MapError, Mapping},
    table::{InstallCause, fmt::VtdSecond48},
    units::{AccessKind, ByteCount, Direction, GRANULE, IovaPage, PhysPage, PhysRange, SourceId},
};
use ioatlas_host::Host;
use ioatlas_iotlb::{Event, Permission, Trace, lists};
use ioatlas_viommu::{
    config::{Geometry, SetGeometry, UnitConfig},
    machine::{WatchedDomain, WatchedMachine},
    observe::Outcome,
    oracle::{Oracle, Summary},
};
use ioatlas_vtd::driver;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// Pages mapped in all, at most, each as often as it is: 4 GiB. A short line can map and unmap
/// millions, and the oracle remembers each that is mapped.
pub const MAX_PAGES: u64 = 1 << 20;
/// Devices that get a domain, at most.
pub const MAX_DEVICES: usize = 4096;
/// Pages of an ended mapping that the device tries again, at most.
pub const PROBED_PAGES: u64 = 8;
/// Frames of the arena that tables are made of: enough for the pages above, unless the design lays
/// them where scattered memory is.
const FRAMES: usize = 1 << 16;

/// The only size of page tables here, in KiB.
const FRAME_KIB: u64 = GRANULE / 1024;

/// How long the unmaps that an invalidation waited for in a replay took in the trace, at most, in
/// ns; `None` without times. No timer ticks in a replay: in a kernel that has one it ends the wait.
pub(crate) fn exposure_ns(trace: &Trace, design: Design, replayed: &Replayed) -> Option<u64> {
    let by_unmaps = trace.longest_wait_of_unmaps(replayed.oracle.exposure.unmaps)?;
    Some(match design.domain.policy.exposure(1) {
        Exposure::Bounded {
            time: Some(time), ..
        } => by_unmaps.min(time.0),
        _ => by_unmaps,
    })
}

/// How a driver unmaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unmaps {
    /// Where the trace does.
    #[default]
    OneByOne,
    /// [`BURST`] mappings by one call.
    InBursts,
}

impl Unmaps {
    /// Mappings that one call ends.
    #[must_use]
    pub fn at_a_time(self) -> usize {
        match self {
            Self::OneByOne => 1,
            Self::InBursts => BURST,
        }
    }
}

/// A driver: the design that it works with, and how it unmaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // its fields say it
pub struct Driver {
    pub design: Design,
    pub unmaps: Unmaps,
}

impl From<Design> for Driver {
    fn from(design: Design) -> Self {
        Self {
            design,
            unmaps: Unmaps::OneByOne,
        }
    }
}

/// What the device does besides the trace's accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Not even these: they were not recorded, and nothing that follows from them is asked for.
    Idle,
    /// Nothing but the accesses of the trace.
    Off,
    /// It tries the first [`PROBED_PAGES`] pages of every mapping that has just been unmapped.
    UnmappedPages,
}

/// Accesses to unmapped pages, tried by [`Probe::UnmappedPages`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempts {
    /// Those that the unit refused.
    pub blocked: u64,
    /// Those that succeeded. The oracle judges whether they may.
    pub stale: u64,
}

/// What a replay counted.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// Map lines done; the lines of a list each count.
    pub maps: u64,
    /// Unmap lines done; the lines of a list each count.
    pub unmaps: u64,
    /// Lines skipped because they do not fit.
    pub anomalies: u64,
    /// Lines skipped because the replay would be too large.
    pub limited: u64,
    /// Invalidations that the unit was asked for, of pages or of a domain: a batch may ask for
    /// several at once, with one wait for all.
    pub invalidations: u64,
    /// Accesses that found no entry in the unit's IOTLB.
    pub misses: u64,
    /// Entries of page tables that walks read, those of the unit's walk caches left out.
    pub walk_reads: u64,
    /// The most page-table memory at any time, in KiB.
    pub table_kib: u64,
    /// What became of accesses to unmapped pages.
    pub attempts: Attempts,
    /// What the oracle saw.
    pub oracle: Summary,
}

type Tables = WatchedDomain<Host, VtdSecond48>;

/// One device of the trace, with what it has mapped.
struct Device {
    domain: Tables,
    source: SourceId,
    /// By the first page in the trace.
    live: BTreeMap<u64, Live>,
    /// How many mappings have each IOVA page.
    mapped: HashMap<u64, u32>,
    /// Unmapped in the trace, and not yet by the driver.
    reaped: Vec<Live>,
}

struct Live {
    pages: u64,
    permission: Permission,
    mapping: Mapping,
}

/// What became of a line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Done {
    Whole,
    Anomaly,
    Limited,
}

/// Re-runs `trace` by `driver`, with an IOTLB of `iotlb`.
///
/// # Errors
/// A sentence: the machine could not be made, or the design failed where it must not.
pub fn replay(
    trace: &Trace,
    driver: impl Into<Driver>,
    iotlb: SetGeometry,
    probe: Probe,
) -> Result<Replayed, String> {
    let Driver { design, unmaps } = driver.into();
    let mut config = UnitConfig::new(Geometry::of::<VtdSecond48>());
    config.caches.iotlb = iotlb;
    // no more than the design uses, so that a design of pages alone runs on a unit of pages alone
    config.features.largest_leaf = design.tables.largest_leaf;
    let base = host(FRAMES, 1).map_err(|e| e.to_string())?;
    let machine = WatchedMachine::new(base, &config, Oracle::new(), driver::Config::default());
    let machine = machine.map_err(|error| error.to_string())?;
    let lists = lists(trace);
    let mut run = Run {
        machine: &machine,
        design,
        at_a_time: unmaps.at_a_time(),
        probe,
        devices: BTreeMap::new(),
        refused: BTreeMap::new(),
        pages: 0,
        maps: 0,
        unmaps: 0,
        anomalies: 0,
        limited: 0,
        peak_frames: 0,
        not_tables: in_use(&machine),
        not_of_unmaps: invalidations(&machine),
        attempts: Attempts::default(),
    };
    for (time, event) in trace.events().iter().enumerate() {
        let alone = [time];
        let lines = match lists.heads.get(&time) {
            Some(list) => list.as_slice(),
            None if lists.members.contains(&time) => continue, // done with the first
            None => &alone,
        };
        let count = lines.len() as u64;
        match run
            .event(event, lines, trace)
            .map_err(|error| format!("event {time}: {error}"))?
        {
            Done::Whole => {}
            Done::Anomaly => run.anomalies += count,
            Done::Limited => run.limited += count,
        }
    }
    run.finish()
}

struct Run<'m> {
    machine: &'m WatchedMachine<Host>,
    design: Design,
    /// Mappings that the driver unmaps by one call.
    at_a_time: usize,
    probe: Probe,
    devices: BTreeMap<u32, Device>,
    /// Disjoint ranges of pages whose map was limited, by device and first page.
    refused: BTreeMap<(u32, u64), u64>,
    pages: u64,
    maps: u64,
    unmaps: u64,
    anomalies: u64,
    limited: u64,
    peak_frames: u64,
    /// Frames in use that are no page tables: the unit's root, context tables and queue.
    not_tables: u64,
    /// Invalidations that attaching devices took.
    not_of_unmaps: u64,
    attempts: Attempts,
}

/// A mapping to be made: pages of the trace, and memory.
#[allow(missing_docs)] // its fields say it
pub struct Request {
    pub device: u32,
    pub first: u64,
    pub pages: u64,
    pub permission: Permission,
    pub buffers: Vec<PhysRange>,
}

fn in_use(machine: &WatchedMachine<Host>) -> u64 {
    machine.machine().platform().inner().frames_in_use() as u64
}

fn invalidations(machine: &WatchedMachine<Host>) -> u64 {
    let unit = machine.machine().unit().stats();
    unit.page_invalidations + unit.domain_invalidations
}

/// What a driver maps for.
pub fn direction(permission: Permission) -> Direction {
    match permission {
        Permission::Read => Direction::ToDevice,
        Permission::Write => Direction::FromDevice,
        Permission::ReadWrite => Direction::Bidirectional,
    }
}

/// What the map lines of `lines` (one, or those of a list) ask for; `None` for other lines.
pub fn request(lines: &[usize], trace: &Trace) -> Option<Request> {
    let mut whole: Option<Request> = None;
    for &line in lines {
        let Event::Map {
            device,
            range,
            permission,
            phys,
            ..
        } = trace.events()[line]
        else {
            return None;
        };
        let (first, pages) = (range.first().number(), range.pages().0);
        // without a record, any memory will do; the low half of what a page number can be is out of
        // its way
        let to = phys.map_or(first & ((1 << 39) - 1), |page| page.number());
        let bytes = ByteCount(pages.saturating_mul(GRANULE));
        let buffer = PhysRange::new(PhysPage(to).addr(), bytes);
        let request = whole.get_or_insert(Request {
            device: device.0,
            first,
            pages: 0,
            permission,
            buffers: Vec::new(),
        });
        request.pages += pages;
        request.buffers.push(buffer);
    }
    whole
}

impl Run<'_> {
    fn event(&mut self, event: &Event, lines: &[usize], trace: &Trace) -> Result<Done, String> {
        match *event {
            Event::Map { .. } => match request(lines, trace) {
                Some(request) => self.map(&request),
                None => Ok(Done::Anomaly),
            },
            Event::Unmap { device, range } => {
                self.unmap(device.0, range.first().number(), range.pages().0)
            }
            Event::Access {
                device,
                page,
                direction,
            } => Ok(match self.probe {
                Probe::Idle => Done::Whole,
                _ => self.access(device.0, page.number(), direction),
            }),
        }
    }

    fn map(&mut self, request: &Request) -> Result<Done, String> {
        let &Request {
            device,
            first,
            pages,
            permission,
            ref buffers,
        } = request;
        let taken = self
            .devices
            .get(&device)
            .is_some_and(|at| at.overlap(first, pages));
        if taken || self.refused_overlap(device, first, pages) {
            return Ok(Done::Anomaly);
        }
        if buffers.iter().any(|buffer| buffer.end().is_none()) {
            return Ok(Done::Anomaly); // recorded beyond any physical memory
        }
        let too_large = self.pages.saturating_add(pages) > MAX_PAGES;
        if too_large || !self.devices.contains_key(&device) && !self.add_device(device)? {
            self.refused.insert((device, first), pages);
            return Ok(Done::Limited);
        }
        let Some(at) = self.devices.get_mut(&device) else {
            return Ok(Done::Limited);
        };
        let direction = direction(permission);
        let mapping = match buffers.as_slice() {
            [buffer] => at.domain.map(*buffer, direction),
            list => at.domain.map_list(list, direction),
        };
        let mapping = match mapping {
            Ok(mapping) => mapping,
            Err(MapError::Install(error)) if error.cause == InstallCause::NoFrame => {
                self.refused.insert((device, first), pages);
                return Ok(Done::Limited);
            }
            Err(error) => return Err(error.to_string()),
        };
        if self.probe == Probe::UnmappedPages {
            for page in mapped_pages(&mapping, pages) {
                *at.mapped.entry(page).or_default() += 1;
            }
        }
        at.live.insert(
            first,
            Live {
                pages,
                permission,
                mapping,
            },
        );
        self.maps += buffers.len() as u64;
        self.pages += pages;
        let tables = in_use(self.machine) - self.not_tables;
        self.peak_frames = self.peak_frames.max(tables);
        Ok(Done::Whole)
    }

    /// Whether any page of the range belongs to a map that was limited.
    fn refused_overlap(&self, device: u32, first: u64, pages: u64) -> bool {
        let mut before = self.refused.range(..(device, first + pages));
        before
            .next_back()
            .is_some_and(|(&(of, at), pages)| of == device && at + pages > first)
    }

    /// Why a line finds no mapping: it does not fit, or its map was limited.
    fn unmatched(&self, device: u32, first: u64, pages: u64) -> Done {
        if self.refused_overlap(device, first, pages) {
            Done::Limited
        } else {
            Done::Anomaly
        }
    }

    fn add_device(&mut self, device: u32) -> Result<bool, String> {
        if self.devices.len() == MAX_DEVICES {
            return Ok(false);
        }
        let domain = self
            .machine
            .domain::<VtdSecond48>(self.design)
            .map_err(|e| e.to_string())?;
        let source = SourceId(self.devices.len() as u16); // below MAX_DEVICES
        let before = (in_use(self.machine), invalidations(self.machine));
        domain.attach(source).map_err(|e| e.to_string())?;
        self.not_tables += in_use(self.machine) - before.0;
        self.not_of_unmaps += invalidations(self.machine) - before.1;
        self.devices.insert(
            device,
            Device {
                domain,
                source,
                live: BTreeMap::new(),
                mapped: HashMap::new(),
                reaped: Vec::new(),
            },
        );
        Ok(true)
    }

    fn unmap(&mut self, device: u32, first: u64, pages: u64) -> Result<Done, String> {
        let unmatched = self.unmatched(device, first, pages);
        if unmatched == Done::Limited {
            // gone from the trace now, whatever else the line ends
            let end = (device, first.saturating_add(pages));
            let gone: Vec<_> = self
                .refused
                .range((device, first)..end)
                .map(|(at, _)| *at)
                .collect();
            for at in gone {
                self.refused.remove(&at);
            }
        }
        let Some(at) = self.devices.get_mut(&device) else {
            return Ok(unmatched);
        };
        let whole: Vec<u64> = at.within(first, pages).collect();
        let covered: u64 = whole.iter().map(|first| at.live[first].pages).sum();
        if covered != pages {
            return Ok(unmatched);
        }
        for first in whole {
            at.reaped.extend(at.live.remove(&first));
            if at.reaped.len() >= self.at_a_time {
                at.end_reaped(self.machine, self.probe, &mut self.attempts)?;
            }
        }
        self.unmaps += 1;
        Ok(Done::Whole)
    }

    fn access(
        &mut self,
        device: u32,
        page: u64,
        direction: Option<ioatlas_iotlb::Direction>,
    ) -> Done {
        let at = self.devices.get(&device);
        let owner = at.and_then(|at| Some((at, at.live.range(..=page).next_back()?)));
        match owner {
            Some((at, (first, live))) if page - first < live.pages => {
                let kind = permitted(live.permission, direction);
                let page = IovaPage(live.mapping.range().first.0 + (page - first));
                self.machine.machine().unit().access(at.source, page, kind);
                Done::Whole
            }
            _ => self.unmatched(device, page, 1),
        }
    }

    fn finish(mut self) -> Result<Replayed, String> {
        for device in self.devices.values_mut() {
            device.end_reaped(self.machine, self.probe, &mut self.attempts)?;
        }
        let invalidations = invalidations(self.machine) - self.not_of_unmaps;
        for device in self.devices.into_values() {
            device.domain.domain().audit()?;
            let source = device.source;
            device
                .domain
                .close(&[source])
                .map_err(|error| error.to_string())?;
        }
        let unit = self.machine.machine().unit().stats();
        Ok(Replayed {
            maps: self.maps,
            unmaps: self.unmaps,
            anomalies: self.anomalies,
            limited: self.limited,
            invalidations,
            misses: unit.iotlb_misses,
            walk_reads: unit.walk_reads,
            table_kib: self.peak_frames * FRAME_KIB,
            attempts: self.attempts,
            oracle: self.machine.oracle().summary(),
        })
    }
}

/// The IOVA pages of a mapping of so many pages.
fn mapped_pages(mapping: &Mapping, pages: u64) -> std::ops::Range<u64> {
    let first = mapping.range().first.0;
    first..first + pages
}

impl Device {
    /// Unmaps what is reaped, by one call.
    fn end_reaped(
        &mut self,
        machine: &WatchedMachine<Host>,
        probe: Probe,
        attempts: &mut Attempts,
    ) -> Result<(), String> {
        let mut ended = Vec::new();
        let mut mappings = self.reaped.drain(..).map(|live| {
            ended.push((mapped_pages(&live.mapping, live.pages), live.permission));
            live.mapping
        });
        let unmapped = self.domain.unmap_batch(&mut mappings);
        drop(mappings);
        unmapped.map_err(|error| error.to_string())?;
        if probe != Probe::UnmappedPages {
            return Ok(());
        }
        for (was, permission) in ended {
            let kind = permitted(permission, None);
            let unit = machine.machine().unit();
            for page in self.gone(was).into_iter().take(PROBED_PAGES as usize) {
                match unit.access(self.source, IovaPage(page), kind).outcome {
                    Outcome::Fault(_) => attempts.blocked += 1,
                    _ => attempts.stale += 1,
                }
            }
        }
        Ok(())
    }

    /// Counts a mapping of these IOVA pages out; returns those that no other mapping has.
    fn gone(&mut self, pages: std::ops::Range<u64>) -> Vec<u64> {
        let mut gone = Vec::new();
        for page in pages {
            let left = self.mapped.entry(page).or_default();
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.mapped.remove(&page);
                gone.push(page);
            }
        }
        gone
    }

    /// Whether any page of the range is mapped.
    fn overlap(&self, first: u64, pages: u64) -> bool {
        let before = self.live.range(..first).next_back();
        before.is_some_and(|(at, live)| at + live.pages > first)
            || self.within_start(first, pages).next().is_some()
    }

    /// The mappings that begin in the range.
    fn within_start(&self, first: u64, pages: u64) -> impl Iterator<Item = (u64, u64)> {
        let mappings = self.live.range(first..first.saturating_add(pages));
        mappings.map(|(at, live)| (*at, live.pages))
    }

    /// The mappings that lie whole in the range.
    fn within(&self, first: u64, pages: u64) -> impl Iterator<Item = u64> {
        let end = first.saturating_add(pages);
        self.within_start(first, pages)
            .filter(move |(at, pages)| at + pages <= end)
            .map(|(at, _)| at)
    }
}

/// The recorded direction if the mapping permits it, else one that it permits.
fn permitted(permission: Permission, recorded: Option<ioatlas_iotlb::Direction>) -> AccessKind {
    match (permission, recorded) {
        (Permission::Write, _) => AccessKind::Write,
        (Permission::ReadWrite, Some(ioatlas_iotlb::Direction::Write)) => AccessKind::Write,
        _ => AccessKind::Read,
    }
}
