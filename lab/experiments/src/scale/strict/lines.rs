// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Which lines there are, and the points of each.

use super::super::plan::design;
use ioatlas_dma::{invalidation::CombiningConfig, units::PageCount};
use ioatlas_sim::timing::{
    Cycles, Params, Precision, Span, Topology,
    workload::{Driver, Iovas, Reaps, Requests, Scenario, System, Workload},
};

/// How mappings end. One more line is one more entry of [`LINES`], with its service in
/// [`super::expected`] if a unit's work is not that of `reaps` pages.
#[derive(Debug)]
pub(crate) struct Line {
    pub name: &'static str,
    /// A design of the registry.
    pub design: &'static str,
    /// Mappings that one call ends.
    pub reaps: u64,
    pub told: Told,
    pub iovas: Iovas,
    pub requests: Combining,
}

/// Whether requests of CPUs are combined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Combining {
    Never,
    /// On any number of CPUs, so that it is seen from how many on it gains.
    Always,
}

/// What the unit's driver is told of a domain-selective invalidation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Told {
    /// What it costs here.
    Cost,
    /// That it costs more than any number of pages, so that it is never chosen for pages.
    Dear,
}

const STRICT: &str = "magazine,strict";

const fn batches(name: &'static str, reaps: u64, told: Told) -> Line {
    Line {
        name,
        design: STRICT,
        reaps,
        told,
        iovas: Iovas::Scattered,
        requests: Combining::Never,
    }
}

const fn combined(line: Line) -> Line {
    Line {
        told: Told::Cost,
        requests: Combining::Always,
        ..line
    }
}

/// Batches of one ring, of a chunk each: one range, so that nothing need be told.
const fn chunks(name: &'static str, pages: u64) -> Line {
    Line {
        iovas: Iovas::InChunks(PageCount(pages)),
        ..batches(name, pages, Told::Dear)
    }
}

/// As long as nothing disturbs the order in which IOVAs come back: page by page, of which few are
/// left then.
const fn adjoining(name: &'static str, reaps: u64) -> Line {
    Line {
        iovas: Iovas::Fresh,
        ..batches(name, reaps, Told::Dear)
    }
}

/// All lines.
pub(crate) static LINES: [Line; 14] = [
    batches("strict", 1, Told::Dear),
    batches("batches of 2, page by page", 2, Told::Dear),
    batches("batches of 4, page by page", 4, Told::Dear),
    batches("batches of 16, page by page", 16, Told::Dear),
    batches("batches of 2", 2, Told::Cost),
    batches("batches of 4", 4, Told::Cost),
    batches("batches of 16", 16, Told::Cost),
    adjoining("batches of 2, fresh IOVAs", 2),
    adjoining("batches of 4, fresh IOVAs", 4),
    adjoining("batches of 16, fresh IOVAs", 16),
    combined(batches("combining", 1, Told::Cost)),
    chunks("chunks of 16", 16),
    combined(chunks("chunks of 16 and combining", 16)),
    Line {
        design: DEFERRED,
        ..batches("deferred", 1, Told::Cost)
    },
];

/// What strict is to come near to.
pub(super) const DEFERRED: &str = "magazine,deferred-percpu";

/// Parameters of a unit that no source gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Unit {
    /// Of p + w, the thousandths that are p.
    pub page_share: u64,
    /// g by p.
    pub domain_cost: u64,
}

/// A point of a line, or without an IOMMU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planned {
    pub line: Option<&'static Line>,
    pub cpus: usize,
    pub unit: Unit,
    /// Cycles of a transaction outside of the mapping code.
    pub work: u64,
}

impl Line {
    /// Whether g is of consequence: else all points of a line that differ by it are one.
    pub fn asks_for_domains(&self) -> bool {
        self.told == Told::Cost && self.design != DEFERRED
    }
}

impl Planned {
    pub fn params(&self, shipped: &Params) -> Params {
        Params {
            page_share: self.unit.page_share,
            domain_cost: 1000 * self.unit.domain_cost,
            rr_work: self.work,
            ..shipped.clone()
        }
    }

    /// How mappings end, and what the unit's driver is told.
    pub fn driver(&self, params: &Params) -> Driver {
        let mut driver = Driver {
            costs: params.costs(),
            ..Driver::default()
        };
        if let Some(line) = self.line {
            driver.iovas = line.iovas;
            if line.told == Told::Dear {
                driver.costs.domain = u32::MAX;
            }
            driver.reaps = match (line.reaps, line.iovas) {
                (1, _) => Reaps::One,
                (many, Iovas::InChunks(_)) => Reaps::EachRing(many),
                (many, _) => Reaps::Batches(many),
            };
            if line.requests == Combining::Always {
                let config = CombiningConfig::default();
                let worth = |ranges: &usize| driver.costs.prefer_pages(*ranges);
                driver.requests = Requests::Combined(
                    config
                        .cpus_min(1)
                        .ranges_max((1..=config.ranges_max).take_while(worth).count()),
                );
            }
        }
        driver
    }

    pub fn scenario(&self, params: &Params, seed: u64) -> Scenario {
        Scenario {
            system: match self.line {
                None => System::NoIommu,
                Some(line) => System::Design(design(line.design)),
            },
            workload: Workload::RequestResponse,
            driver: self.driver(params),
            topology: Topology::of_eights(self.cpus),
            span: SPAN,
            seed,
        }
    }
}

/// Shorter than that of other points, of which there are fewer: queues before the unit fill within
/// a few of its services.
const SPAN: Span = Span {
    warm_up: Cycles::from_us(500),
    measured: Cycles::from_us(1000),
    precision: Some(Precision {
        part: 0.01,
        doublings: 1,
    }),
};

/// ATC'15's request-response, as fitted.
pub(super) const LIGHT: u64 = 13_500;
/// As a small packet has that is looked at and answered: seven times the load.
pub(super) const HEAVY: u64 = 2_000;

/// Whether a line is drawn, where there is no room for all: not those that are there to hold a
/// model against.
pub(crate) fn is_drawn(line: &Line) -> bool {
    match (line.told, line.iovas) {
        (Told::Cost, _) | (_, Iovas::InChunks(_)) => true,
        (Told::Dear, Iovas::Scattered) => line.reaps == 1,
        (Told::Dear, Iovas::Fresh) => line.reaps == 16,
    }
}

/// Points of every line that is `wanted` for each of `cpus`, `shares` and `costs`, without an IOMMU
/// first. What is the same for all of `costs` is there once, with the first.
pub(super) fn grid(
    wanted: impl Fn(&Line) -> bool,
    work: u64,
    cpus: &[usize],
    shares: &[u64],
    costs: &[u64],
) -> Vec<Planned> {
    let mut points = Vec::new();
    for &cpus in cpus {
        let of = |line, page_share, domain_cost| Planned {
            line,
            cpus,
            unit: Unit {
                page_share,
                domain_cost,
            },
            work,
        };
        // the unit does nothing there
        let unit = shares.first().zip(costs.first());
        points.extend(unit.map(|(share, cost)| of(None, *share, *cost)));
        for &share in shares {
            for line in LINES.iter().filter(|line| wanted(line)) {
                let costs = match line.asks_for_domains() {
                    true => costs,
                    false => costs.get(..1).unwrap_or_default(),
                };
                points.extend(costs.iter().map(|cost| of(Some(line), share, *cost)));
            }
        }
    }
    points
}
