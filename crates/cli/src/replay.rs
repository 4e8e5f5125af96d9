// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Re-running a trace's maps, unmaps and accesses under a design of the core, on the software unit, watched by the oracle.
//!
//! # Rules
//!
//! * Each device of the trace is a domain with one device; one CPU does everything, in the order of the trace.
//! * A map is mapped anew: the same pages, physical page and permission where recorded, at an IOVA that the design chooses.
//! * An access moves along: to the new IOVA plus its offset in the mapping. One whose recorded direction the mapping does not
//!   permit (permissions do not affect hits in the model), or has none, goes in a direction that it permits.
//! * Virtual time is the event index and no timer ticks, so deferred policies flush by their bound in operations alone.
//! * Events that do not fit are skipped and counted: a map over a mapped page, an unmap of anything but whole mappings, an
//!   access outside every mapping; and what would make the replay itself too large ([`MAX_LIVE_PAGES`], [`MAX_DEVICES`]).

use ioatlas_dma::{
    domain::{DomainConfig, Mapping},
    platform::host::{Host, HostConfig},
    table::fmt::VtdSecond48,
    units::{AccessKind, ByteCount, Direction, GRANULE, IovaPage, PhysPage, PhysRange, SourceId},
};
use ioatlas_iotlb::{Event, Permission, Trace};
use ioatlas_viommu::{
    config::{Geometry, SetGeometry, UnitConfig},
    machine::{WatchedDomain, WatchedMachine},
    oracle::{Oracle, Summary},
};
use ioatlas_vtd::driver;
use std::collections::BTreeMap;

/// Pages mapped at one time, at most: 8 GiB. The oracle remembers each.
pub const MAX_LIVE_PAGES: u64 = 1 << 21;
/// Devices that get a domain, at most.
pub const MAX_DEVICES: usize = 4096;
/// Frames of the arena that tables are made of: enough for the pages above, however scattered the design lays them.
const FRAMES: usize = 1 << 16;

/// The only size of page tables here, in KiB.
const FRAME_KIB: u64 = GRANULE / 1024;

/// What a replay counted.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// Maps done.
    pub maps: u64,
    /// Events skipped.
    pub skipped: u64,
    /// Invalidations that the domains started.
    pub invalidations: u64,
    /// Accesses that found no entry in the unit's IOTLB.
    pub misses: u64,
    /// The most page-table memory at any time, in KiB.
    pub table_kib: u64,
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
}

struct Live {
    pages: u64,
    permission: Permission,
    mapping: Mapping,
}

/// Re-runs `trace` under `design`, with an IOTLB of `iotlb`.
///
/// # Errors
/// A sentence: the machine could not be made, or the design failed where it must not.
pub fn replay(trace: &Trace, design: DomainConfig, iotlb: SetGeometry) -> Result<Replayed, String> {
    let mut config = UnitConfig::new(Geometry::of::<VtdSecond48>());
    config.caches.iotlb = iotlb;
    let base = Host::new(HostConfig {
        frames: FRAMES,
        slots: 1,
    });
    let machine = WatchedMachine::new(base, &config, Oracle::new(), driver::Config::default());
    let machine = machine.map_err(|error| error.to_string())?;
    let mut run = Run {
        machine: &machine,
        design,
        devices: BTreeMap::new(),
        live_pages: 0,
        maps: 0,
        skipped: 0,
        peak_frames: 0,
        not_tables: in_use(&machine),
    };
    for (time, event) in trace.events().iter().enumerate() {
        run.event(event)
            .map_err(|error| format!("event {time}: {error}"))?;
    }
    run.finish()
}

struct Run<'m> {
    machine: &'m WatchedMachine<Host>,
    design: DomainConfig,
    devices: BTreeMap<u32, Device>,
    live_pages: u64,
    maps: u64,
    skipped: u64,
    peak_frames: u64,
    /// Frames in use that are no page tables: the unit's root, context tables and queue.
    not_tables: u64,
}

fn in_use(machine: &WatchedMachine<Host>) -> u64 {
    machine.machine().platform().inner().frames_in_use() as u64
}

impl Run<'_> {
    fn event(&mut self, event: &Event) -> Result<(), String> {
        let done = match *event {
            Event::Map {
                device,
                range,
                permission,
                phys,
                ..
            } => {
                let first = range.first().number();
                // without a record, any memory will do; the low half of what a page number can be is out of its way
                let to = phys.map_or(first & ((1 << 39) - 1), |page| page.number());
                self.map(device.0, first, range.pages().0, permission, to)?
            }
            Event::Unmap { device, range } => {
                self.unmap(device.0, range.first().number(), range.pages().0)?
            }
            Event::Access {
                device,
                page,
                direction,
            } => self.access(device.0, page.number(), direction),
        };
        if !done {
            self.skipped += 1;
        }
        Ok(())
    }

    fn map(
        &mut self,
        device: u32,
        first: u64,
        pages: u64,
        permission: Permission,
        to: u64,
    ) -> Result<bool, String> {
        if self.live_pages.saturating_add(pages) > MAX_LIVE_PAGES {
            return Ok(false);
        }
        if !self.devices.contains_key(&device) && !self.add_device(device)? {
            return Ok(false);
        }
        let Some(at) = self.devices.get_mut(&device) else {
            return Ok(false);
        };
        if at.overlap(first, pages) {
            return Ok(false);
        }
        let buffer = PhysRange::new(PhysPage(to).addr(), ByteCount(pages * GRANULE));
        if buffer.end().is_none() {
            return Ok(false); // recorded beyond any physical memory
        }
        let direction = match permission {
            Permission::Read => Direction::ToDevice,
            Permission::Write => Direction::FromDevice,
            Permission::ReadWrite => Direction::Bidirectional,
        };
        let mapping = at
            .domain
            .map(buffer, direction)
            .map_err(|e| e.to_string())?;
        at.live.insert(
            first,
            Live {
                pages,
                permission,
                mapping,
            },
        );
        self.maps += 1;
        self.live_pages += pages;
        let tables = in_use(self.machine) - self.not_tables;
        self.peak_frames = self.peak_frames.max(tables);
        Ok(true)
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
        let before = in_use(self.machine);
        domain.attach(source).map_err(|e| e.to_string())?;
        self.not_tables += in_use(self.machine) - before;
        self.devices.insert(
            device,
            Device {
                domain,
                source,
                live: BTreeMap::new(),
            },
        );
        Ok(true)
    }

    fn unmap(&mut self, device: u32, first: u64, pages: u64) -> Result<bool, String> {
        let Some(at) = self.devices.get_mut(&device) else {
            return Ok(false);
        };
        let whole: Vec<u64> = at.within(first, pages).collect();
        let covered: u64 = whole.iter().map(|first| at.live[first].pages).sum();
        if covered != pages {
            return Ok(false);
        }
        for first in whole {
            if let Some(live) = at.live.remove(&first) {
                self.live_pages -= live.pages;
                at.domain.unmap(live.mapping).map_err(|e| e.to_string())?;
            }
        }
        Ok(true)
    }

    fn access(
        &mut self,
        device: u32,
        page: u64,
        direction: Option<ioatlas_iotlb::Direction>,
    ) -> bool {
        let Some(at) = self.devices.get(&device) else {
            return false;
        };
        let Some((first, live)) = at.live.range(..=page).next_back() else {
            return false;
        };
        let offset = page - first;
        if offset >= live.pages {
            return false;
        }
        let recorded = direction.map(|direction| match direction {
            ioatlas_iotlb::Direction::Read => AccessKind::Read,
            ioatlas_iotlb::Direction::Write => AccessKind::Write,
        });
        let kind = match live.permission {
            Permission::Read => AccessKind::Read,
            Permission::Write => AccessKind::Write,
            Permission::ReadWrite => recorded.unwrap_or(AccessKind::Read),
        };
        let page = IovaPage(live.mapping.range().first.0 + offset);
        self.machine.machine().unit().access(at.source, page, kind);
        true
    }

    fn finish(self) -> Result<Replayed, String> {
        let mut invalidations = 0;
        for device in self.devices.into_values() {
            invalidations += device.domain.domain().stats().invalidations;
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
            skipped: self.skipped,
            invalidations,
            misses: unit.iotlb_misses,
            table_kib: self.peak_frames * FRAME_KIB,
            oracle: self.machine.oracle().summary(),
        })
    }
}

impl Device {
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

#[cfg(test)]
mod tests {
    use super::*;
    use ioatlas_dma::domain::{AssignerConfig, DeferredConfig, PolicyConfig};
    use ioatlas_iotlb::Limits;

    const IOTLB: SetGeometry = SetGeometry {
        entries: 32,
        ways: 2,
    };

    fn trace(lines: &str) -> Trace {
        let text = format!("# ioatlas-trace 1\n{lines}");
        Trace::read("t", text.as_bytes(), Limits::default()).unwrap()
    }

    fn designs() -> Vec<DomainConfig> {
        let mut all = Vec::new();
        for assigner in [
            AssignerConfig::Rbtree,
            AssignerConfig::Magazine(Default::default()),
        ] {
            for policy in [
                PolicyConfig::Strict,
                PolicyConfig::DeferredPerCpu(DeferredConfig::default()),
            ] {
                all.push(DomainConfig::new(assigner, policy));
            }
        }
        all
    }

    #[test]
    fn every_access_moves_to_where_its_mapping_went() {
        let trace = trace(
            "M a 100 2 r 5\nM b 100 1 w 5\nA a 100 r\nA a 101 r\nA b 100 w\nA a 101 r\n\
             U a 100 2\nU b 100 1\nM a 100 1 rw\nA a 100 ?\n",
        );
        for design in designs() {
            let replayed = replay(&trace, design, IOTLB).unwrap();
            assert_eq!((replayed.maps, replayed.skipped), (3, 0));
            assert_eq!(replayed.oracle.accesses, 5);
            assert_eq!(replayed.oracle.succeeded, 5, "none is blocked");
            assert_eq!(replayed.oracle.violation_count, 0, "{}", replayed.oracle);
            // two pages of a, one of b, and after the unmap a's new page, whatever its IOVA
            assert_eq!(replayed.misses, 4);
        }
    }

    #[test]
    fn what_does_not_fit_is_skipped_and_counted() {
        let trace = trace(
            "M a 100 4 rw\nM a 103 2 rw\nU a 100 2\nU a 200 1\nA a 104 r\nA b 100 r\nU b 1 1\n\
             M a 1000 3000000 rw\nM a 9000 1 rw fffffffffffff\nU a 100 4\n",
        );
        for design in designs() {
            let replayed = replay(&trace, design, IOTLB).unwrap();
            // the last map's physical page is above any physical address
            assert_eq!((replayed.maps, replayed.skipped), (1, 8));
            assert_eq!(replayed.oracle.accesses, 0);
        }
    }

    #[test]
    fn one_unmap_may_end_several_whole_mappings() {
        let trace = trace("M a 100 2 r\nM a 102 1 r\nM a 103 1 w\nU a 100 4\nA a 101 r\n");
        for design in designs() {
            let replayed = replay(&trace, design, IOTLB).unwrap();
            assert_eq!((replayed.maps, replayed.skipped), (3, 1));
        }
    }

    #[test]
    fn strict_invalidates_once_an_unmap_and_deferred_once_a_batch() {
        let pairs: String = (0..1000).map(|_| "M a 100 1 r\nU a 100 1\n").collect();
        for design in designs() {
            let replayed = replay(&trace(&pairs), design, IOTLB).unwrap();
            let (expected, exposed) = match design.policy {
                PolicyConfig::Strict => (1000, 0),
                // the first of a batch stays while 248 more return; the 250th flushes before it does
                PolicyConfig::DeferredPerCpu(_) => (4, 248),
            };
            assert_eq!(replayed.invalidations, expected, "{design:?}");
            assert_eq!(replayed.oracle.exposure.unmaps, exposed, "{design:?}");
        }
    }

    #[test]
    fn table_memory_counts_tables_alone() {
        // one page: root and three levels
        let replayed = replay(&trace("M a 100 1 r\n"), designs()[0], IOTLB).unwrap();
        assert_eq!(replayed.table_kib, 4 * 4);
    }

    #[test]
    fn bundled_traces_are_replayed_whole_and_clean() {
        for sample in &crate::bundled::BASE {
            let loaded = sample.load().unwrap();
            for design in designs() {
                let replayed = replay(&loaded.trace, design, IOTLB).unwrap();
                let events = loaded.trace.events().len() as u64;
                assert!(
                    replayed.skipped * 100 < events,
                    "{} skipped",
                    replayed.skipped
                );
                assert_eq!(replayed.oracle.violation_count, 0, "{}", replayed.oracle);
                assert!(replayed.misses > 0 && replayed.oracle.accesses > replayed.misses);
            }
        }
    }
}
