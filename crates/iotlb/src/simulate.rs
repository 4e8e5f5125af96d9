// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Replays a trace against an IOTLB and counts.
//!
//! An unmap removes its pages from the IOTLB (strict, page-selective
//! invalidation); a map touches nothing; an access outside a live mapping is a
//! fault, which neither fills nor counts as a miss.

use crate::cache::{Geometry, Iotlb};
use crate::event::Event;
use crate::info::Anomalies;
use crate::live::LiveMappings;
use crate::trace::Trace;
use crate::units::EventTime;
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// How the IOTLB is managed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Strategy {
    /// Least recently used replacement, no prefetching.
    Baseline,
}

impl Strategy {
    /// Every strategy there is.
    pub const ALL: &[Strategy] = &[Strategy::Baseline];
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Strategy::Baseline => "baseline",
        })
    }
}

/// A strategy name that means nothing here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown strategy `{name}`; there is: {}", strategy_names())]
pub struct UnknownStrategy {
    /// As given.
    pub name: String,
}

fn strategy_names() -> String {
    let names: Vec<String> = Strategy::ALL.iter().map(ToString::to_string).collect();
    names.join(", ")
}

impl FromStr for Strategy {
    type Err = UnknownStrategy;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = Strategy::ALL
            .iter()
            .copied()
            .find(|strategy| strategy.to_string() == name);
        known.ok_or_else(|| UnknownStrategy { name: name.into() })
    }
}

/// Counts of one simulation. The serialised field names are stable.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// Name of the strategy.
    pub strategy: String,
    /// Access events: hits + prefetch hits + misses + faults.
    pub accesses: u64,
    /// Accesses that found their entry in the IOTLB.
    pub hits: u64,
    /// Accesses that found it in the prefetch buffer.
    pub prefetch_hits: u64,
    /// Accesses that had to walk the page table.
    pub misses: u64,
    /// Accesses outside a live mapping.
    pub faults: u64,
    /// Misses / (hits + prefetch hits + misses), a fraction; 0 if there is none.
    pub miss_rate: f64,
    /// Entries inserted into the prefetch buffer.
    pub prefetches: u64,
    /// Prefetched entries that an access used.
    pub useful_prefetches: u64,
    /// Valid entries displaced by a fill.
    pub evictions: u64,
    /// Entries that unmaps removed.
    pub invalidations: u64,
    /// What did not fit the live mappings.
    pub anomalies: Anomalies,
}

/// Runs `trace` through an IOTLB of the given shape.
#[must_use]
pub fn simulate(trace: &Trace, strategy: Strategy, geometry: Geometry) -> Outcome {
    let mut outcome = match strategy {
        Strategy::Baseline => baseline(trace, geometry),
    };
    outcome.strategy = strategy.to_string();
    let translated = outcome.hits + outcome.prefetch_hits + outcome.misses;
    if translated > 0 {
        outcome.miss_rate = outcome.misses as f64 / translated as f64;
    }
    outcome
}

fn baseline(trace: &Trace, geometry: Geometry) -> Outcome {
    let mut iotlb = Iotlb::new(geometry);
    let mut live = LiveMappings::new(trace);
    let mut outcome = Outcome::default();
    for (index, event) in trace.events().iter().enumerate() {
        let effect = live.apply(EventTime(index), event);
        outcome.anomalies.count(effect);
        match *event {
            Event::Map { .. } => {}
            Event::Unmap { device, range } => {
                // Cached pages are mapped ones, so the pages that were not mapped
                // remove nothing.
                outcome.invalidations += iotlb.invalidate(device, range);
            }
            Event::Access { device, page, .. } => {
                outcome.accesses += 1;
                let key = (device, page);
                if live.owner(device, page).is_none() {
                    outcome.faults += 1;
                } else if iotlb.hit(key) {
                    outcome.hits += 1;
                } else {
                    outcome.misses += 1;
                    outcome.evictions += u64::from(iotlb.fill(key).is_some());
                }
            }
        }
    }
    outcome
}
