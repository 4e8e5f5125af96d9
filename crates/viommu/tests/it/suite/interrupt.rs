// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! An unmap as a nested interrupt, at every shared access of a map on the same CPU.
//!
//! For n = 1, 2, .. the interrupt is armed at the CPU's n-th access and delivered at the next one
//! that is not masked, until it comes too late. Its handler unmaps another live mapping of the same
//! domain, so it may flush, drain and give IOVAs and tables back in the middle of the map. What the
//! map had done by then is looked at in memory at the moment of delivery.

use crate::suite::{crowd::Crowd, rig::*};
use ioatlas_dma::{domain::*, invalidation::WaitLimit, table::Format, units::*};
use ioatlas_sim::platform::{Interrupt, Schedule, Sim, World, inspect};
use ioatlas_viommu::config::Processing;
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
};

/// What the map had done when the interrupt was delivered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Place {
    /// No IOVA yet.
    BeforeAlloc,
    /// It has an IOVA, and no leaf.
    BeforeFirstLeaf,
    /// So many leaves, of those it is going to write.
    AmongLeaves(u64),
    /// All of its leaves, and has not returned.
    AfterLastLeaf,
    /// It failed, and so many leaves are still there.
    InUndo(u64),
    /// The leaves are gone; their flush or its free is under way.
    AfterUndo,
}

/// Which map is interrupted.
#[derive(Clone, Copy)]
struct Case {
    /// One buffer of four pages there, across the edge of two leaf tables, or a list of six in two
    /// leaf tables.
    at: Option<IovaPage>,
    /// The frame allocation that fails, counted from 1.
    failing: Option<u64>,
}

impl Case {
    /// Whether the map needs so many frames that the failing one is among them.
    fn fits<F: Format>(&self, design: DomainConfig) -> bool {
        let (crowd, _victim) = prepared::<F>(design);
        self.fail(&crowd);
        self.map(&crowd).is_err()
    }
    fn fail<F: Format>(&self, crowd: &Crowd<Sim, F>) {
        if let Some(nth) = self.failing {
            crowd.rig.failing().inner().fail_frame_alloc_at(nth);
        }
    }
    fn pages(&self) -> u64 {
        if self.at.is_some() { 4 } else { 6 }
    }
    fn map<F: Format>(&self, crowd: &Crowd<Sim, F>) -> Result<Mapping, MapError> {
        let direction = Direction::Bidirectional;
        match self.at {
            Some(page) => crowd
                .domain
                .map_at(page.addr(), buffer(0x700, 4), direction),
            None => {
                let list = [buffer(0x700, 1), buffer(0x710, 3), buffer(0x720, 2)];
                crowd.domain.map_list(&list, direction)
            }
        }
    }
}

const LIMIT: WaitLimit = WaitLimit(100_000);

/// A machine in which a mapping, the victim, lives in tables that the map uses too, and another is
/// retired.
fn prepared<F: Format>(design: DomainConfig) -> (Crowd<Sim, F>, Mapping) {
    let crowd = Crowd::<Sim, F>::new(64, design, LIMIT, |_| ());
    let at = IovaPage(near::<F>().first.0 + VICTIM);
    let place = |page: IovaPage, from| {
        let mapped = crowd
            .domain
            .map_at(page.addr(), buffer(from, 1), Direction::ToDevice);
        mapped.expect("a free page")
    };
    let victim = place(at, 0x900);
    crowd
        .domain
        .unmap(place(IovaPage(at.0 + 1), 0x910))
        .expect("unmapped");
    (crowd, victim)
}

/// One run with the interrupt at access `n`; where it was delivered, in the map and in the code.
fn interrupted_at<F: Format>(n: u64, design: DomainConfig, case: Case) -> Option<(Place, String)> {
    let context = format!("{}, access {n}", name(&design));
    let (crowd, victim) = prepared::<F>(design);
    let at = victim.range().first;
    let unit = crowd.rig.machine.machine().unit();
    unit.set_processing(Processing::Asynchronous);
    let sim = crowd.rig.failing().inner();
    let attempts = sim.frame_alloc_attempts();
    case.fail(&crowd);
    let failed = || {
        case.failing
            .is_some_and(|nth| sim.frame_alloc_attempts() >= attempts + nth)
    };
    let look = || state(&crowd);
    let before = look();
    let seen = Cell::new(None);
    let victim = RefCell::new(Some(victim));
    let mapped = RefCell::new(None);
    let over = Cell::new(false);
    let (crowd_, seen_, victim_, mapped_, over_) = (&crowd, &seen, &victim, &mapped, &over);
    let handler = move || {
        let now = inspect(look);
        let leaves = now.1 - before.1;
        seen_.set(Some(match (leaves, failed()) {
            (0, true) => Place::AfterUndo,
            (left, true) => Place::InUndo(left),
            (0, false) if now.0 == before.0 => Place::BeforeAlloc,
            (0, false) => Place::BeforeFirstLeaf,
            (all, false) if all == case.pages() => Place::AfterLastLeaf,
            (some, false) => Place::AmongLeaves(some),
        }));
        // a device has reached the victim, and whatever is half made
        let victim = victim_.take().expect("one interrupt");
        assert!(crowd_.rig.access(at, AccessKind::Read).is_some(), "P14");
        sweep(crowd_);
        crowd_.domain.unmap(victim).expect("unmapped");
        sweep(crowd_);
    };
    let outcome = World::new(Schedule::Bounded {
        seed: n,
        preemptions: 0,
    })
    .cpu(move || {
        mapped_.replace(Some(case.map(crowd_)));
        over_.set(true);
    })
    .agent("unit", move || crowd_.unit(|| over_.get()))
    .interrupt(Interrupt {
        cpu: CpuIndex(0),
        at_access: n,
        handler: Box::new(handler),
    })
    .try_run();
    let outcome = outcome.unwrap_or_else(|failure| panic!("{context}: {failure}"));

    unit.set_processing(Processing::Inline);
    sweep(&crowd);
    let result = mapped.take().expect("it ran");
    // the pages of the victim, if they are free before the map has any, may need no frame
    let spared = seen.get() == Some(Place::BeforeAlloc) && result.is_ok();
    assert!(
        result.is_err() == case.failing.is_some() || spared,
        "{context}: {result:?}"
    );
    sim.fail_frame_alloc_at(NEVER);
    if let Ok(mapping) = result {
        for page in mapping.range().iter() {
            assert!(
                crowd.rig.access(page, AccessKind::Write).is_some(),
                "{context}: P14"
            );
        }
        crowd.domain.unmap(mapping).expect("unmapped");
        sweep(&crowd);
    }
    let late = victim.take();
    late.into_iter()
        .for_each(|victim| crowd.domain.unmap(victim).expect("unmapped"));
    // the next mapping of the same pages must not meet what was there
    for n in 0..3 {
        let again = crowd
            .domain
            .map(buffer(0xa00 + 8 * n, 4), Direction::Bidirectional);
        let again = again.expect("mapped");
        sweep(&crowd);
        crowd.domain.unmap(again).expect("unmapped");
    }
    crowd.finish(&context);
    let delivery = outcome.delivered_at()?;
    let code = format!("{:?} at {}", delivery.point, delivery.location);
    Some((seen.get()?, code))
}

/// More frame allocations than there are.
const NEVER: u64 = 1 << 32;
/// Pages that are used here.
const NEAR: u64 = 32;
/// Where among them the victim is: in a leaf table that the buffer of four uses.
const VICTIM: u64 = 12;

fn near<F: Format>() -> IovaRange {
    let table = span::<F>();
    IovaRange::new(IovaPage(table.max(NEAR) - NEAR / 2), PageCount(NEAR))
}

/// The device looks everywhere.
fn sweep<F: Format>(crowd: &Crowd<Sim, F>) {
    for page in near::<F>().iter() {
        let _ = crowd.rig.access(page, AccessKind::Read);
    }
}

/// Pages allocated, and pages with a translation.
fn state<F: Format>(crowd: &Crowd<Sim, F>) -> (u64, u64) {
    let domain = crowd.domain.domain();
    let table = domain.translator().table();
    let there = |page: &IovaPage| table.walk(domain.platform(), *page).is_some();
    let leaves = near::<F>().iter().filter(there).count();
    (domain.usage().allocated.0, leaves as u64)
}

/// Every access of the map, over every frame allocation that may fail in it.
///
/// `undone` are the numbers of leaves that an undo is to be interrupted at.
fn at_every_access<F: Format>(what: &str, at: Option<IovaPage>, undone: &[u64]) {
    for mut design in designs() {
        design.aperture = Some(near::<F>());
        // what was unmapped before is one thing: the handler's unmap flushes, or waits
        match &mut design.policy {
            PolicyConfig::DeferredPerCpu(bounds) | PolicyConfig::DeferredGlobal(bounds) => {
                bounds.batch = 2;
            }
            PolicyConfig::MacOs(bounds) => bounds.depth = 1,
            PolicyConfig::Strict | PolicyConfig::FreeBsd | PolicyConfig::Solaris => {}
            new => panic!("{new:?} is new here"),
        }
        let (mut places, mut code) = (BTreeMap::new(), BTreeSet::new());
        let mut delivered = 0;
        for failing in [None, Some(1), Some(2), Some(3)] {
            let case = Case { at, failing };
            if failing.is_some() && !case.fits::<F>(design) {
                continue;
            }
            for n in 1.. {
                let Some((place, line)) = interrupted_at::<F>(n, design, case) else {
                    break;
                };
                *places.entry(place).or_insert(0) += 1;
                code.insert((place, line));
                delivered += 1;
            }
        }
        println!(
            "{what}, {}: {delivered} interrupts at {} distinct points: {places:?}",
            name(&design),
            code.len(),
        );
        let hit = |place: &Place| places.contains_key(place);
        assert!(hit(&Place::BeforeAlloc) && hit(&Place::BeforeFirstLeaf));
        assert!(
            (1..4).all(|leaves| hit(&Place::AmongLeaves(leaves))),
            "{places:?}"
        );
        assert!(
            hit(&Place::AfterLastLeaf) && hit(&Place::AfterUndo),
            "{places:?}"
        );
        assert!(
            undone.iter().all(|left| hit(&Place::InUndo(*left))),
            "{places:?}"
        );
        assert!(code.len() >= POINTS, "{} points", code.len());
    }
}

/// Distinct points (a place and a line of code) that every design has at least.
const POINTS: usize = 30;

#[test]
fn an_unmap_interrupts_the_map_of_a_list_on_toy_tables() {
    at_every_access::<Small>("list, toy", None, &[4]);
}

#[test]
fn an_unmap_interrupts_a_map_across_a_table_edge_on_toy_tables() {
    let edge = near::<Small>().first.0 + NEAR / 2;
    at_every_access::<Small>("edge, toy", Some(IovaPage(edge - 2)), &[2, 1]);
}

#[cfg(not(ioatlas_killers))]
#[test]
fn an_unmap_interrupts_a_map_across_a_table_edge_on_vtd_tables() {
    let edge = span::<Vtd>();
    at_every_access::<Vtd>("edge, vtd", Some(IovaPage(edge - 2)), &[2, 1]);
}
