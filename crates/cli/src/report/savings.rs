// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What each strategy and knob would leave of a device's misses.
//!
//! A *combination* is a sum of the strategies that a reader can put together on the page;
//! each is simulated, and of each access is kept which combinations miss, a bit a
//! combination, so that the picture shows the very misses that the numbers count. Beside
//! them: what has no place in the picture (other victims, walk caches), and a *page pool*:
//! the trace as it would be had the driver mapped each physical page when it was first
//! accessed, under its physical number, and never unmapped it. The pool assumes that the
//! driver would use the same physical pages; where a trace does not name them there is none.

use super::figure::{Figure, Unit};
use ioatlas_iotlb::{
    Class, DeviceId, Ending, Event, EventTime, Geometry, HEADER, Laboratory, Limits, LiveMappings,
    Named, Part, PhysPage, Setup, SetupError, Trace, Walks,
};
use serde::Serialize;
use std::collections::HashSet;
use std::fmt::Write;

/// Entries of the walk caches that a sentence speaks of, by level.
pub(super) const WALK_CACHES: [(usize, usize); 3] = [(2, 32), (3, 8), (4, 4)];

/// Largest mapping whose addresses Linux keeps for reuse, in pages
/// (`IOVA_RANGE_CACHE_MAX_SIZE` of `drivers/iommu/iova.c`).
const REUSED_PAGES: u64 = 32;

/// The combination without any strategy is the first: bit 0.
pub(super) const BASELINE: usize = 0;

/// Misses of a device under a strategy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Saving {
    /// Name of the strategy.
    pub strategy: String,
    /// Misses; simulated.
    pub misses: Figure,
    /// Change of misses against none; `None` where nothing misses.
    pub change: Option<Figure>,
}

/// What knobs would change for one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Knobs {
    /// Misses on consistent mappings, as rings are; simulated.
    pub consistent_misses: Option<Figure>,
    /// Maps that Linux keeps no address for reuse of; counted.
    pub maps_too_large_for_reuse: Option<Figure>,
    /// Pages that a pool would map, once each; counted. `None` without physical pages.
    pub pool_pages: Option<Figure>,
    /// Misses with a pool; simulated.
    pub pool_misses: Option<Figure>,
    /// Change of misses with a pool.
    pub pool_change: Option<Figure>,
    /// Change of the page-table entries that walks of the whole trace read, with walk
    /// caches; simulated.
    pub walk_reads_change: Option<Figure>,
}

/// The combinations, those with a name of their own among them.
pub(super) fn combinations() -> Vec<Named> {
    use Part::{AddressLocality, Descending, EightPrefetch, MapPrefetch, SingleDirection};
    let mut sums = Vec::new();
    for descending in [None, Some(Descending)] {
        for eight in [None, Some(EightPrefetch)] {
            for at_map in [None, Some(MapPrefetch)] {
                for beside in [None, Some(AddressLocality), Some(SingleDirection)] {
                    let prefetches = beside.is_some() || at_map.is_some();
                    if eight.is_some() && !prefetches {
                        continue; // a buffer that nothing is put into
                    }
                    let parts = [beside, at_map, eight, descending];
                    sums.push(parts.into_iter().flatten().collect::<Vec<_>>());
                }
            }
        }
    }
    sums.push(vec![Part::Superpage]);
    // None of these parts excludes another, and none is there twice.
    sums.iter().flat_map(|parts| Named::new(parts)).collect()
}

/// A trace under all combinations.
#[derive(Debug)]
pub(super) struct Savings {
    /// [`combinations`].
    pub combinations: Vec<Named>,
    /// Of each event, a bit a combination: whether it misses.
    pub missed: Vec<u32>,
    /// Misses by combination and device.
    misses: Vec<Vec<u64>>,
    /// Misses by device of strategies that the picture does not show.
    others: Vec<(Named, Vec<u64>)>,
    consistent: Vec<u64>,
    too_large: Vec<u64>,
    pool: Option<Pool>,
    walk_reads: (u64, u64),
}

/// A trace with a page pool: by device.
#[derive(Debug)]
struct Pool {
    pages: Vec<u64>,
    misses: Vec<u64>,
}

impl Savings {
    /// Simulates.
    pub fn of(trace: &Trace, geometry: Geometry) -> Self {
        let laboratory = Laboratory::new(trace);
        let devices = trace.devices().len();
        let combinations = combinations();
        let mut missed = vec![0u32; trace.events().len()];
        let setup = |named: &Named| Setup::of(named.clone()).with_geometry(geometry);
        let count = |named: &Named, missed: &mut dyn FnMut(usize)| {
            let mut times = Vec::new();
            laboratory.simulate_with(&setup(named), |time, ending| {
                if ending == Ending::Miss {
                    times.push(time.0);
                }
            });
            let mut misses = vec![0; devices];
            for time in times {
                misses[trace.events()[time].device().index()] += 1;
                missed(time);
            }
            misses
        };
        let misses = combinations.iter().enumerate().map(|(bit, named)| {
            let mut mark = |time: usize| missed[time] |= 1 << bit;
            count(named, &mut mark)
        });
        let misses: Vec<Vec<u64>> = misses.collect();
        let others = [Part::EvictionHint, Part::Offset, Part::OptimalEviction];
        let others = others.iter().flat_map(|&part| Named::new(&[part]));
        let others = others.map(|named| {
            let misses = count(&named, &mut |_| {});
            (named, misses)
        });
        let others: Vec<_> = others.collect();
        let reads = |walks: Walks| {
            let baseline = setup(&Named::default());
            laboratory
                .simulate(&Setup { walks, ..baseline })
                .memory_reads
        };
        let plain = reads(Walks::default());
        let cached = with_walk_caches().map_or(plain, reads);
        let (consistent, too_large) = knobs(trace, &missed);
        Self {
            combinations,
            missed,
            misses,
            others,
            consistent,
            too_large,
            pool: Pool::of(trace, geometry),
            walk_reads: (plain, cached),
        }
    }

    /// Misses of the trace by combination.
    pub fn totals(&self) -> Vec<u64> {
        self.misses.iter().map(|by| by.iter().sum()).collect()
    }

    /// What each strategy leaves of the misses of a device.
    pub fn of_device(&self, device: DeviceId) -> Vec<Saving> {
        let at = device.index();
        let without = self.misses[BASELINE][at];
        let combined = self.combinations.iter().zip(&self.misses).skip(1);
        let others = self.others.iter().map(|(named, misses)| (named, misses));
        let saving = |(named, misses): (&Named, &Vec<u64>)| Saving {
            strategy: named.to_string(),
            misses: simulated(misses[at]),
            change: change(misses[at], without),
        };
        combined.chain(others).map(saving).collect()
    }

    /// What knobs change for a device.
    pub fn knobs(&self, device: DeviceId) -> Knobs {
        let at = device.index();
        let pool = self.pool.as_ref();
        Knobs {
            consistent_misses: Some(simulated(self.consistent[at])),
            maps_too_large_for_reuse: Some(Figure::count(self.too_large[at])),
            pool_pages: pool.map(|pool| Figure::count(pool.pages[at])),
            pool_misses: pool.map(|pool| simulated(pool.misses[at])),
            pool_change: pool.and_then(|pool| change(pool.misses[at], self.misses[BASELINE][at])),
            walk_reads_change: change(self.walk_reads.1, self.walk_reads.0),
        }
    }
}

fn with_walk_caches() -> Result<Walks, SetupError> {
    let add = |walks: Walks, &(level, entries): &(usize, usize)| walks.with_cache(level, entries);
    WALK_CACHES.iter().try_fold(Walks::default(), add)
}

fn simulated(count: u64) -> Figure {
    Figure::simulated(count as f64, Unit::Count)
}

/// `None` where there was nothing.
fn change(now: u64, before: u64) -> Option<Figure> {
    let change = (now as f64 / before as f64 - 1.0) * 100.0;
    (before > 0).then_some(Figure::simulated(change, Unit::PercentChange))
}

/// By device: misses on consistent mappings, and maps too large for address reuse.
fn knobs(trace: &Trace, missed: &[u32]) -> (Vec<u64>, Vec<u64>) {
    let devices = trace.devices().len();
    let (mut consistent, mut too_large) = (vec![0; devices], vec![0; devices]);
    let classes = trace.classes();
    let mut live = LiveMappings::new(trace);
    for (time, event) in trace.events().iter().enumerate() {
        let device = event.device().index();
        match *event {
            Event::Map { range, .. } if range.pages().0 > REUSED_PAGES => too_large[device] += 1,
            Event::Access {
                device: id, page, ..
            } if missed[time] & 1 << BASELINE != 0 => {
                let owner = live.owner(id, page);
                let class = owner.and_then(|mapping| classes[mapping.0]);
                consistent[device] += u64::from(class == Some(Class::Consistent));
            }
            _ => {}
        }
        live.apply(EventTime(time), event);
    }
    (consistent, too_large)
}

impl Pool {
    /// `None` if a page that is accessed has no physical number.
    fn of(trace: &Trace, geometry: Geometry) -> Option<Self> {
        let mut live = LiveMappings::new(trace);
        let mut pooled: HashSet<(DeviceId, PhysPage)> = HashSet::new();
        let mut pages = vec![0; trace.devices().len()];
        let mut text = format!("{HEADER}\n");
        for (time, event) in trace.events().iter().enumerate() {
            if let Event::Access { device, page, .. } = *event
                && let Some(mapping) = live.owner(device, page)
            {
                let phys = physical(&trace.events()[mapping.0], page.number())?;
                // The number stands for the name; writing to a string cannot fail.
                if pooled.insert((device, phys)) {
                    pages[device.index()] += 1;
                    let _ = writeln!(text, "M {} {phys} 1 rw", device.0);
                }
                let _ = writeln!(text, "A {} {phys} ?", device.0);
            }
            live.apply(EventTime(time), event);
        }
        let limits = Limits {
            text_bytes: u64::MAX,
            ..Limits::default()
        };
        let trace = Trace::read("pool", text.as_bytes(), limits).ok()?;
        let mut misses = vec![0; pages.len()];
        let setup = Setup::default().with_geometry(geometry);
        Laboratory::new(&trace).simulate_with(&setup, |time, ending| {
            let name = trace.device_name(trace.events()[time.0].device());
            if let (Ending::Miss, Ok(device)) = (ending, name.parse::<usize>()) {
                misses[device] += 1;
            }
        });
        Some(Self { pages, misses })
    }
}

/// The physical page that a map put behind a page.
fn physical(map: &Event, page: u64) -> Option<PhysPage> {
    match *map {
        Event::Map {
            range,
            phys: Some(phys),
            ..
        } => PhysPage::new(phys.number() + (page - range.first().number())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(lines: &str) -> Trace {
        let text = format!("{HEADER}\n{lines}");
        Trace::read("t", text.as_bytes(), Limits::default()).unwrap()
    }

    #[test]
    fn combinations_have_a_bit_each_and_none_is_twice() {
        let all = combinations();
        assert!(all.len() <= u32::BITS as usize);
        assert_eq!(all[BASELINE], Named::default());
        let names: HashSet<String> = all.iter().map(Named::to_string).collect();
        assert_eq!(names.len(), all.len());
        for name in [
            "alh",
            "sd-alh",
            "mpre",
            "sd-alh+mpre+descending",
            "superpage",
        ] {
            assert!(names.contains(name), "{name}");
        }
    }

    #[test]
    fn a_neighbour_that_was_prefetched_does_not_miss() {
        let trace = trace("M d 10 2 r\nA d 10 r\nA d 11 r\n");
        let savings = Savings::of(&trace, Geometry::default());
        let bit = |name: &str| {
            let found = savings
                .combinations
                .iter()
                .position(|n| n.to_string() == name);
            1 << found.unwrap()
        };
        assert_eq!(savings.missed[0], 0);
        assert_ne!(savings.missed[1] & bit("alh"), 0);
        assert_eq!(savings.missed[2] & bit("alh"), 0);
        assert_ne!(savings.missed[2] & bit("baseline"), 0);
        let alh = savings.of_device(DeviceId(0));
        let alh = alh.iter().find(|saving| saving.strategy == "alh").unwrap();
        assert_eq!(alh.misses.value, 1.0);
        assert_eq!(alh.change.unwrap().value, -50.0);
    }

    #[test]
    fn a_pool_misses_once_a_page_and_needs_to_know_the_page() {
        let again = "M d 1 1 r 7\nA d 1 r\nU d 1 1\nM d 2 1 r 7\nA d 2 r\nU d 2 1\n";
        let pool = Pool::of(&trace(again), Geometry::default()).unwrap();
        assert_eq!((pool.pages, pool.misses), (vec![1], vec![1]));
        let unknown = "M d 1 1 r\nA d 1 r\n";
        assert!(Pool::of(&trace(unknown), Geometry::default()).is_none());
    }
}
