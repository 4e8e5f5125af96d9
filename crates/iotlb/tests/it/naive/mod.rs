// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A second implementation of the simulator for comparison: one map entry a page,
//! caches as plain vectors scanned from end to end. Slow, and simple enough to
//! check against the model by eye.

pub mod model;

use ioatlas_iotlb::{DeviceId, Event, Geometry, Trace};
use std::collections::{HashMap, HashSet};

type Page = (DeviceId, u64);

/// The counts that both implementations give.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub accesses: u64,
    pub hits: u64,
    pub misses: u64,
    pub faults: u64,
    pub evictions: u64,
    pub invalidations: u64,
    pub first_touch: u64,
    pub capacity: u64,
    pub conflict: u64,
    pub map_over_mapped_pages: u64,
    pub unmap_not_mapped_pages: u64,
    pub peak_live_pages: u64,
}

/// A set-associative cache; each set is a vector, least recently used first.
struct Cache(Vec<Vec<Page>>, usize);

impl Cache {
    /// Returns whether it hit and whether a fill evicted.
    fn access(&mut self, page: Page) -> (bool, bool) {
        let sets = self.0.len() as u64;
        let set = &mut self.0[(page.1 % sets) as usize];
        let found = set.iter().position(|&entry| entry == page);
        if let Some(at) = found {
            set.remove(at);
        }
        let evicts = found.is_none() && set.len() == self.1;
        if evicts {
            set.remove(0);
        }
        set.push(page);
        (found.is_some(), evicts)
    }

    fn remove(&mut self, page: Page) -> u64 {
        let mut removed = 0;
        for set in &mut self.0 {
            let before = set.len();
            set.retain(|&entry| entry != page);
            removed += (before - set.len()) as u64;
        }
        removed
    }
}

pub fn run(trace: &Trace, geometry: Geometry) -> Counts {
    let mut counts = Counts::default();
    let mut mapped: HashMap<Page, ()> = HashMap::new();
    let mut asked = Cache(vec![Vec::new(); geometry.sets()], geometry.ways());
    let mut full = Cache(vec![Vec::new()], geometry.entries());
    let mut touched: HashSet<Page> = HashSet::new();
    for event in trace.events() {
        match *event {
            Event::Map { device, range, .. } => {
                for page in range.first().number()..=range.last().number() {
                    if mapped.insert((device, page), ()).is_some() {
                        counts.map_over_mapped_pages += 1;
                    }
                }
                counts.peak_live_pages = counts.peak_live_pages.max(mapped.len() as u64);
            }
            Event::Unmap { device, range } => {
                for page in range.first().number()..=range.last().number() {
                    let page = (device, page);
                    if mapped.remove(&page).is_none() {
                        counts.unmap_not_mapped_pages += 1;
                        continue;
                    }
                    counts.invalidations += asked.remove(page);
                    full.remove(page);
                    touched.remove(&page);
                }
            }
            Event::Access { device, page, .. } => {
                counts.accesses += 1;
                let page = (device, page.number());
                if !mapped.contains_key(&page) {
                    counts.faults += 1;
                    continue;
                }
                let first = touched.insert(page);
                let (full_hit, _) = full.access(page);
                let (hit, evicted) = asked.access(page);
                counts.evictions += u64::from(evicted);
                if hit {
                    counts.hits += 1;
                    continue;
                }
                counts.misses += 1;
                if first {
                    counts.first_touch += 1;
                } else if !full_hit {
                    counts.capacity += 1;
                } else {
                    counts.conflict += 1;
                }
            }
        }
    }
    counts
}
