// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! CPUs, devices, a timer, an interrupt and the unit, all on one domain.

use crate::explorer::{
    crowd::*,
    interface::Interface,
    plan::{Plan, Scenario, Tables},
    rig::*,
};
use ioatlas_dma::{
    domain::*, invalidation::WaitLimit, platform::Platform, table::Format, units::*,
};
use ioatlas_sim::platform::{Interrupt, Sim, World};
use ioatlas_viommu::config::Processing;
use std::cell::{Cell, RefCell};

type OnSim<F> = Crowd<Sim, F>;

/// No wait is this long: a unit that is asked answers within some thousand turns of all agents.
const LIMIT: WaitLimit = WaitLimit(100_000);
/// More frame allocations than there are.
const NEVER: u64 = 1 << 32;
/// The pages that buffers share where they may, first and number.
const SHARED: (u64, u64) = (0x20, 4);
/// Mappings of a shared page before any agent acts: as many as are counted but for two.
const BRIM: usize = 1021;

pub fn run(plan: &Plan) -> Checked {
    match plan.tables {
        Tables::Small => on::<Small>(plan),
        Tables::Wide => on::<Wide>(plan),
    }
}

fn on<F: Format>(plan: &Plan) -> Checked {
    let seed = plan.seed;
    let crowd = OnSim::<F>::on(
        plan.platform(),
        Interface::Domain,
        plan.design,
        LIMIT,
        |unit| {
            plan.unit.adjust::<F>(seed, unit);
        },
    );
    let unit = crowd.rig.machine.machine().unit().clone();
    unit.set_processing(Processing::Inline);
    let brim: Vec<Mapping> = match plan.scenario {
        Scenario::Brim => (0..BRIM).map(|_| share(&crowd, SHARED.0 + 2, 1)).collect(),
        _ => Vec::new(),
    };
    unit.set_processing(Processing::Asynchronous);
    if let Some(nth) = plan.failing {
        crowd.rig.failing().inner().fail_frame_alloc_at(nth);
    }
    let ends = exchange();
    let ends = [ends.0, ends.1];
    let pot = RefCell::new(Vec::new());
    act(plan, &crowd, &ends, &pot);
    crowd.rig.failing().inner().fail_frame_alloc_at(NEVER);
    unit.set_processing(Processing::Inline);
    for live in pot.into_inner() {
        crowd.end(live, 1);
    }
    for mapping in brim {
        crowd.domain.unmap(mapping).expect("P14: a live mapping");
    }
    for end in &ends {
        end.fetch_all().for_each(|live| crowd.end(live, 1));
    }
    nothing_is_left(&crowd);
    crowd.check(ends, &plan.to_string())
}

/// When all is unmapped and flushed, a device reaches nothing of what was used.
fn nothing_is_left<F: Format>(crowd: &OnSim<F>) {
    crowd.domain.domain().flush().expect("a flush");
    let region = F::aperture().pages.0 / 4;
    let shared = (0..4 * SHARED.1).map(|n| region * (n / SHARED.1) + SHARED.0 + n % SHARED.1);
    for page in crowd.span.iter().chain(shared.map(IovaPage)) {
        for kind in [AccessKind::Read, AccessKind::Write] {
            let reached = crowd.rig.access(page, kind);
            assert_eq!(reached, None, "P2: all is unmapped and flushed, {page}");
        }
    }
}

/// Runs all agents to their ends.
fn act<F: Format>(plan: &Plan, c: &OnSim<F>, ends: &[End; 2], pot: &RefCell<Vec<Live>>) {
    let seed = plan.seed;
    let acting = &Cell::new(plan.cpus + 2);
    let done = move || acting.set(acting.get() - 1);
    let mut world = World::new(plan.schedule).step_limit(2_000_000);
    for cpu in 0..plan.cpus {
        world = world.cpu(move || {
            on_cpu(plan, c, cpu, ends, pot);
            // what is freed by an address is counted on a CPU, so there a CPU ticks
            c.ticker(if c.by_address && cpu == 0 { 5 } else { 0 });
            done();
        });
    }
    let (accesses, by_agent) = (50, if c.by_address { 0 } else { 6 });
    world = world.agent("device", move || {
        c.device(NIC, seed, accesses);
        done();
    });
    world = world.agent("timer", move || {
        c.ticker(by_agent);
        done();
    });
    if plan.scenario == Scenario::Devices {
        world = world.agent("disk", move || c.device(DISK, !seed, 50));
    }
    if let Some(at_access) = plan.interrupt {
        let handler = move || {
            let live = pot.borrow_mut().pop();
            if let Some(live) = live {
                c.end(live, seed % 2);
            }
        };
        world = world.interrupt(Interrupt {
            cpu: CpuIndex(0),
            at_access,
            handler: Box::new(handler),
        });
    }
    let world = world.agent("unit", || c.unit(|| acting.get() == 0));
    if let Err(failure) = world.try_run() {
        panic!("{failure}\n{}", c.rig.machine.oracle().summary());
    }
}

fn on_cpu<F: Format>(
    plan: &Plan,
    c: &OnSim<F>,
    cpu: usize,
    ends: &[End; 2],
    pot: &RefCell<Vec<Live>>,
) {
    let seed = plan.seed * 3 + cpu as u64;
    // something for the handler
    let kept = c.taken(
        c.domain
            .map(buffer(0x30 + seed % 4, 1), Direction::ToDevice),
    );
    pot.borrow_mut().extend(kept.map(Live::Mapped));
    let looks = match (cpu, plan.interrupt) {
        (0, Some(_)) => Looks::No,
        _ => Looks::Yes,
    };
    match (plan.scenario, cpu) {
        (Scenario::Everything, _) | (Scenario::Devices, 0) => {
            c.cpu(seed, 12, 3, &ends[cpu % 2]);
        }
        (Scenario::Devices, _) => come_and_go(c, cpu),
        (Scenario::Brim, _) => brim(c, seed, looks),
        (Scenario::Bursts, _) => bursts(c, seed, looks),
        _ => tables(c, seed, plan.failing.is_some(), looks),
    }
}

/// The second CPU attaches and detaches a device; others map meanwhile.
fn come_and_go<F: Format>(c: &OnSim<F>, cpu: usize) {
    let mapping = |n: u64| c.taken(c.domain.map(buffer(0x5000 + n, 2), Direction::ToDevice));
    for round in 0..4 {
        if cpu > 1 {
            if let Some(mapping) = mapping(16 * round) {
                c.heat(mapping.range());
                c.domain.unmap(mapping).expect("P14: a live mapping");
            }
            continue;
        }
        let live = mapping(0x800 + round);
        let at = live.as_ref().map(|mapping| mapping.range().first);
        // it may lack a frame for its context entries
        let attached = c.domain.attach(DISK).is_ok();
        if let (true, Some(at)) = (attached, at) {
            let reached = c.rig.access_by(DISK, at, AccessKind::Read);
            assert!(reached.is_some(), "P14: attached, and mapped before");
        }
        if attached {
            c.domain.detach(DISK).expect("detached");
        }
        if let Some(at) = at {
            let reached = c.rig.access_by(DISK, at, AccessKind::Read);
            assert_eq!(reached, None, "P8: detached");
        }
        if let Some(mapping) = live {
            c.domain.unmap(mapping).expect("P14: a live mapping");
        }
    }
}

/// Maps of whole tables, of single pages and across the edges of tables, in the same places.
/// `failing`: now and then a table is missing a frame.
fn tables<F: Format>(c: &OnSim<F>, seed: u64, failing: bool, looks: Looks) {
    let mut random = Random(seed);
    let span = span::<F>();
    let mut last = None;
    for round in 0..12 {
        if random.below(2) == 0 {
            // what was kept comes back, so that a page's table may be detached
            c.domain.domain().flush().expect("a flush");
            c.domain.domain().shrink();
        }
        // few, and those that allocators which begin at the end give first
        let tables = c.span.pages.0 / span;
        let whole = match last {
            // a table that this CPU may remember
            Some(IovaPage(page)) if random.below(2) == 0 => page & !(span - 1),
            _ => c.span.first.0 + span * (tables - 1 - random.below(tables.min(4))),
        };
        let to = 0x1000 * (seed % 0x10_0000) + 4 * span * round;
        let (at, to) = match random.below(6) {
            0 | 3 => (None, buffer(to + 1, 1)),
            1 => (Some(whole + random.below(span)), buffer(to + 1, 1)),
            2 => (
                Some(whole.max(span) - 1),
                buffer(to + 1, 2 + random.below(span)),
            ),
            _ => (Some(whole), buffer(to, span)),
        };
        if failing && random.below(2) == 0 {
            let next = 1 + random.below(2);
            c.rig.failing().inner().fail_frame_alloc_at(next);
        }
        let mapped = match at.map(IovaPage) {
            None => c.domain.map(to, Direction::ToDevice),
            Some(at) => {
                // so that the device meets what is half made
                c.heat(IovaRange::new(at, PageCount(2)));
                c.domain.map_at(at.addr(), to, Direction::ToDevice)
            }
        };
        let Some(mapping) = c.taken(mapped) else {
            continue;
        };
        c.heat(mapping.range());
        look(c, &mapping, looks);
        last = at.is_none().then(|| mapping.range().first);
        c.domain.unmap(mapping).expect("P14: a live mapping");
    }
}

/// Whether a CPU plays device as well. One that is interrupted must not: its handler might wait for
/// the end of the access that it interrupts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Looks {
    No,
    Yes,
}

fn look<F: Format>(c: &OnSim<F>, mapping: &Mapping, looks: Looks) {
    for page in mapping.range().iter().step_by(3) {
        if looks == Looks::Yes {
            let reached = c.rig.access(page, AccessKind::Read);
            assert!(reached.is_some(), "P14: mapped, {page}");
        }
    }
}

/// Maps bursts of neighbours, some of them twice, and ends each burst together.
fn bursts<F: Format>(c: &OnSim<F>, seed: u64, looks: Looks) {
    let mut random = Random(seed);
    for _ in 0..5 {
        let (first, pages) = SHARED;
        let from = first + random.below(pages);
        let burst = (0..2 + random.below(4)).filter_map(|nth| {
            let page = from + (nth + random.below(2)) % pages;
            c.taken(c.domain.map(buffer(page, 1), Direction::ToDevice))
        });
        let burst: Vec<Mapping> = burst.collect();
        let ranges: Vec<IovaRange> = burst.iter().map(Mapping::range).collect();
        ranges.iter().for_each(|range| c.heat(*range));
        burst.iter().for_each(|mapping| look(c, mapping, looks));
        let mut burst = burst.into_iter();
        let ended = match random.below(3) {
            0 => c.domain.unmap_batch(&mut burst),
            1 => c.domain.unmap_start(&mut burst).finish().map(drop),
            _ => {
                let mut pending = c.domain.unmap_start(&mut burst);
                while !pending.is_done() {
                    c.domain.domain().platform().relax();
                }
                Ok(())
            }
        };
        ended.unwrap_or_else(|error| panic!("P14: a live mapping was not whole: {error}"));
        if looks == Looks::Yes {
            // the oracle judges what they reach
            for range in ranges {
                c.rig.access(range.first, AccessKind::Read);
            }
        }
    }
}

/// Maps and unmaps pages that are counted nearly to the brim.
fn brim<F: Format>(c: &OnSim<F>, seed: u64, looks: Looks) {
    let mut random = Random(seed);
    let mut held = Vec::new();
    for _ in 0..10 {
        if held.len() > 2 || !held.is_empty() && random.below(3) == 0 {
            let mapping = held.swap_remove(random.below(held.len() as u64) as usize);
            c.domain.unmap(mapping).expect("P14: a live mapping");
            continue;
        }
        let (first, pages) = SHARED;
        let (from, pages) = (first + random.below(pages - 1), 1 + random.below(2));
        let mapped = c.domain.map(buffer(from, pages), Direction::ToDevice);
        let Some(mapping) = c.taken(mapped) else {
            continue;
        };
        look(c, &mapping, looks);
        held.push(mapping);
    }
    for mapping in held {
        c.domain.unmap(mapping).expect("P14: a live mapping");
    }
}

/// One more mapping of `pages` pages.
fn share<F: Format>(c: &OnSim<F>, first: u64, pages: u64) -> Mapping {
    let mapped = c.domain.map(buffer(first, pages), Direction::ToDevice);
    mapped.expect("a count that is not full")
}
