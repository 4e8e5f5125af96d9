// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What each strategy and knob would leave of a device's misses.
//!
//! A *combination* is a sum of the strategies that a reader can put together on the page;
//! each is simulated, and of each access is kept which combinations miss, a bit a
//! combination, so that the picture shows the very misses that the numbers count. Beside
//! them: what has no place in the picture (other victims, walk caches), and a *page pool* of
//! a network driver (see `pool`).

use super::pool::Pool;
use crate::record;
use ioatlas_iotlb::{
    Class, DeviceId, Ending, Event, EventTime, Geometry, Laboratory, LiveMappings, Named, Part,
    Setup, SetupError, Trace, Walks,
};
use ioatlas_present::{Figure, Unit};
use serde::Serialize;

/// Entries of the walk caches that a sentence speaks of, by level.
pub(super) const WALK_CACHES: [(usize, usize); 3] = [(2, 32), (3, 8), (4, 4)];

/// Largest mapping whose addresses Linux keeps for reuse, in pages
/// (constant `IOVA_RANGE_CACHE_MAX_SIZE` of `drivers/iommu/iova.c`).
const REUSED_PAGES: u64 = 32;

/// The combination without any strategy is the first: bit 0.
pub(super) const BASELINE: usize = 0;

/// Misses of a device under a strategy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Saving {
    /// Name of the strategy.
    pub strategy: String,
    /// Misses under it; simulated.
    pub misses: Figure,
    /// Change of misses against none; `None` where nothing misses.
    pub change: Option<Figure>,
}

/// What knobs would change for one device. A field is `None` where the device has no such knob, or
/// the trace cannot tell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Knobs {
    /// Misses on consistent mappings, as rings are; simulated.
    pub consistent_misses: Option<Figure>,
    /// Maps that Linux keeps no address for reuse of; counted. Not of network cards.
    pub maps_too_large_for_reuse: Option<Figure>,
    /// Pages of a pool of receive buffers, each of which is mapped once: as many as are live at
    /// most; counted. Not of disks.
    pub pool_pages: Option<Figure>,
    /// Maps that such a pool makes needless; counted.
    pub pool_maps: Option<Figure>,
    /// Misses with such a pool; simulated.
    pub pool_misses: Option<Figure>,
    /// Change of misses with such a pool.
    pub pool_change: Option<Figure>,
    /// Change of the page-table entries that walks of the whole trace read, once the unit
    /// has walk caches; simulated.
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
    /// What [`combinations`] lists, in its order.
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

impl Savings {
    /// Simulates `trace` under each combination, in an IOTLB of this geometry.
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

    /// What knobs change for a device, which is for this, if that is known.
    pub fn knobs(&self, device: DeviceId, class: Option<record::Class>) -> Knobs {
        let at = device.index();
        let may_be = |other| class.is_none_or(|class| class == other);
        let pool = self.pool.as_ref().filter(|pool| {
            // one that serves each page once saves nothing
            may_be(record::Class::Network) && pool.maps[at] > pool.pages[at]
        });
        let large = Figure::count(self.too_large[at]);
        Knobs {
            consistent_misses: Some(simulated(self.consistent[at])),
            maps_too_large_for_reuse: may_be(record::Class::Disk).then_some(large),
            pool_pages: pool.map(|pool| Figure::count(pool.pages[at])),
            pool_maps: pool.map(|pool| Figure::count(pool.maps[at] - pool.pages[at])),
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

#[cfg(test)]
mod tests {
    use super::*;
    use ioatlas_iotlb::{HEADER, Limits};
    use std::collections::HashSet;

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
}
