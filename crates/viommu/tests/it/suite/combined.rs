// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Domains whose requests to the unit are combined, under the strict policy: three CPUs, and a
//! device that looks at what they unmap.
//!
//! Schedules and seeds are those of [`crate::suite::schedules`].

use crate::suite::{
    crowd::Crowd,
    interface::Interface,
    rig::*,
    schedules::{self, Body, Cast, drawn, run, schedule, seeds, unit},
};
use ioatlas_dma::{
    domain::*,
    invalidation::{InvalidateError, WaitLimit},
    platform::Platform,
    units::*,
};
use ioatlas_sim::platform::{Interrupt, Schedule, Sim, SimConfig, World};
use ioatlas_viommu::{config::Processing, unit::Injection};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
};

type Combined = Crowd<Sim, Small>;

const CPUS: usize = 3;

fn strict() -> Vec<DomainConfig> {
    let strict = |design: &DomainConfig| design.policy == PolicyConfig::Strict;
    designs().into_iter().filter(strict).collect()
}

fn crowd(design: DomainConfig, limit: WaitLimit, seed: u64) -> Combined {
    let sim = Sim::new(SimConfig {
        frames: 64,
        cpus: CPUS,
    });
    let adjust = |config: &mut _| unit(seed, config);
    Crowd::on(sim, Interface::Combined, design, limit, adjust)
}

/// One run.
struct Run<'a> {
    seed: u64,
    context: &'a str,
}

impl Run<'_> {
    /// Three CPUs, these agents, and the unit.
    fn all<'a>(&self, c: &'a Combined, cpus: [Body<'a>; CPUS], agents: Agents<'a>) {
        let cast = Cast { cpus, agents };
        run(schedule(self.seed), c, cast, self.context);
    }
}

type Agents<'a> = Vec<(&'static str, Body<'a>)>;

/// Runs over seeds, and the strict designs of each.
fn over(
    seeds: impl Iterator<Item = u64>,
    scenario: &str,
    limit: WaitLimit,
    body: impl Fn(Combined, &Run<'_>),
) {
    for seed in seeds {
        for design in drawn(seed, strict()) {
            let context = &*format!("{scenario}, {}, {}", name(&design), schedule(seed));
            body(crowd(design, limit, seed), &Run { seed, context });
        }
    }
}

/// A device that looks at what was unmapped lately.
fn nic(c: &Combined) -> (&'static str, Body<'_>) {
    ("NIC", Box::new(|| c.device(NIC, 7, 30)))
}

/// Its `nth` buffer, where the device has looked.
fn map(c: &Combined, cpu: u64, nth: u64) -> Mapping {
    let buffer = buffer(0x1000 * (cpu + 1) + 8 * nth, 1 + nth % 2);
    let mapping = c.domain.map(buffer, Direction::Bidirectional);
    let mapping = c.taken(mapping).expect("room");
    c.heat(mapping.range());
    reach(c, mapping.range(), true);
    mapping
}

/// The device reads it all, or nothing of it. Nothing else may have been mapped there meanwhile.
fn reach(c: &Combined, range: IovaRange, there: bool) {
    let property = if there { "P14" } else { "P1" };
    for page in range.iter() {
        let reached = c.rig.access(page, AccessKind::Read).is_some();
        assert_eq!(reached, there, "{property}: {page}");
    }
}

#[test]
fn what_three_cpus_unmap_at_once_shares_rounds() {
    const UNMAPS: u64 = 5;
    let shared = Cell::new(0);
    over(seeds(), "three at once", schedules::LIMIT, |c, this| {
        let cpu = |cpu: u64| -> Body<'_> {
            let c = &c;
            Box::new(move || {
                for nth in 0..UNMAPS {
                    c.domain.unmap(map(c, cpu, nth)).expect("unmapped");
                }
            })
        };
        let waits = || c.rig.machine.machine().unit().stats().waits;
        let before = waits();
        this.all(&c, [cpu(0), cpu(1), cpu(2)], vec![nic(&c)]);
        let fewer = waits() - before < UNMAPS * CPUS as u64;
        shared.set(shared.get() + u64::from(fewer));
        c.finish(this.context);
    });
    println!("runs with fewer waits than unmaps: {}", shared.get());
    assert!(shared.get() > 0, "some must share");
}

/// Batches of one range and of several, and one that is finished after another was begun and ended.
#[test]
fn batches_and_single_unmaps_share_rounds() {
    over(seeds(), "batches", schedules::LIMIT, |c, this| {
        let single = || {
            (0..5).for_each(|nth| c.domain.unmap(map(&c, 0, nth)).expect("unmapped"));
        };
        let batches = || {
            for size in [1, 3, 1, 2] {
                let all: Vec<_> = (0..size).map(|nth| map(&c, 1, nth)).collect();
                let batch = c.domain.unmap_batch(&mut all.into_iter());
                batch.expect("unmapped");
            }
        };
        let pending = || {
            for nth in [0, 2, 4] {
                let mut first = [map(&c, 2, nth)].into_iter();
                let first = c.domain.unmap_start(&mut first);
                c.domain.unmap(map(&c, 2, nth + 1)).expect("unmapped");
                first.finish().expect("unmapped");
            }
        };
        let cpus: [Body<'_>; CPUS] = [Box::new(single), Box::new(batches), Box::new(pending)];
        this.all(&c, cpus, vec![nic(&c)]);
        c.finish(this.context);
    });
}

/// What became of unmaps, over all seeds.
#[derive(Default, Debug)]
struct Ended {
    well: Cell<u64>,
    failed: Cell<u64>,
}

impl Ended {
    /// Whether the unmap of that range ended well.
    fn note(&self, result: Result<(), UnmapError>) -> bool {
        let counter = match &result {
            Ok(()) => &self.well,
            Err(UnmapError::Invalidate { .. }) => &self.failed,
            Err(error) => panic!("{error}"),
        };
        counter.set(counter.get() + 1);
        result.is_ok()
    }
    fn both_seen(&self) {
        println!("{self:?}");
        let (well, failed) = (self.well.get(), self.failed.get());
        assert!(well > 0 && failed > 0, "both must be seen");
    }
}

/// An access holds the first round up for longer than any of its requests waits. When the unit goes
/// on they have been given up, and others are served.
#[test]
fn requests_that_ran_out_of_time_hold_up_no_others() {
    // more than 16 times what a request waits before it takes over: then it asks at each look
    const PATIENCE: WaitLimit = WaitLimit(400);
    let ended = &Ended::default();
    // those waits are long; and of 64 seeds the first 32 have no device TLBs, which do not answer
    let seeds = seeds().filter(|seed| seed % 4 == 0 && seed % 64 < 32);
    over(seeds, "out of time", PATIENCE, |c, this| {
        let c = &c;
        let first = map(c, 0, 0);
        let unit = c.rig.machine.machine().unit();
        let slow = unit.begin(NIC, first.range().first, AccessKind::Read);
        let slow = &RefCell::new(Some(slow));
        let cpu = |cpu: u64, mut first: Option<Mapping>| -> Body<'_> {
            Box::new(move || {
                for nth in 1.. {
                    let mapping = first.take().unwrap_or_else(|| map(c, cpu, nth));
                    let result = c.domain.unmap(mapping);
                    if let Err(UnmapError::Invalidate { cause, .. }) = &result {
                        let timed_out = matches!(cause, InvalidateError::TimedOut { .. });
                        assert!(timed_out, "{cause}");
                        slow.take();
                    }
                    if ended.note(result) && nth > 1 {
                        break;
                    }
                    assert!(nth < 10, "P11: the unit goes on");
                }
            })
        };
        let cpus = [cpu(0, Some(first)), cpu(1, None), cpu(2, None)];
        this.all(c, cpus, Vec::new());
        c.domain.domain().audit().expect("P10");
        c.rig.assert_clean();
    });
    ended.both_seen();
}

/// The unit refuses a request, and all after it: each whose round it was knows.
#[test]
fn a_unit_that_fails_completes_no_request() {
    let ended = &Ended::default();
    over(seeds(), "a failure", schedules::LIMIT, |c, this| {
        let c = &c;
        let cpu = |cpu: u64| -> Body<'_> {
            Box::new(move || {
                for nth in 0..4 {
                    ended.note(c.domain.unmap(map(c, cpu, nth)));
                }
            })
        };
        let fails = || {
            let machine = c.rig.machine.machine();
            (0..this.seed % 32).for_each(|_| machine.platform().relax());
            machine.unit().inject(Injection::QueueErrors(1));
        };
        let agents: Agents<'_> = vec![("failure", Box::new(fails)), nic(c)];
        this.all(c, [cpu(0), cpu(1), cpu(2)], agents);
        c.domain.domain().audit().expect("P10");
        c.rig.assert_clean();
    });
    ended.both_seen();
}

/// One run, in which an unmap as an interrupt comes at access `n` of one that waits; and where.
fn interrupted_at(n: u64, design: DomainConfig) -> Option<String> {
    let context = format!("nested, {}, access {n}", name(&design));
    let crowd = crowd(design, schedules::LIMIT, 0);
    let c = &crowd;
    let [outer, nested, other] = [0, 1, 2].map(|cpu| map(c, cpu, 1));
    let unit = c.rig.machine.machine().unit();
    let nested = RefCell::new(Some(nested));
    let (nested, acting) = (&nested, &Cell::new(2));
    let unmap = move |mapping: Mapping| {
        let range = mapping.range();
        c.domain.unmap(mapping).expect("unmapped");
        reach(c, range, false);
    };
    let schedule = Schedule::Bounded {
        seed: n,
        preemptions: 2,
    };
    let outcome = World::new(schedule)
        .cpu(move || {
            unmap(outer);
            acting.set(acting.get() - 1);
        })
        .cpu(move || {
            unmap(other);
            acting.set(acting.get() - 1);
        })
        .agent("unit", || c.unit(|| acting.get() == 0))
        .interrupt(Interrupt {
            cpu: CpuIndex(0),
            at_access: n,
            handler: Box::new(move || nested.take().into_iter().for_each(unmap)),
        })
        .try_run();
    let outcome = outcome.unwrap_or_else(|failure| panic!("{context}: {failure}"));
    unit.set_processing(Processing::Inline);
    nested.take().into_iter().for_each(unmap); // it came too late
    crowd.finish(&context);
    let delivery = outcome.delivered_at()?;
    Some(format!("{:?} at {}", delivery.point, delivery.location))
}

#[test]
fn an_unmap_interrupts_one_that_waits_at_each_of_its_accesses() {
    for design in strict() {
        let mut code = BTreeSet::new();
        let mut delivered = 0;
        for n in 1.. {
            let Some(place) = interrupted_at(n, design) else {
                break;
            };
            code.insert(place);
            delivered += 1;
        }
        let combining = code.iter().filter(|place| place.contains("/combining/"));
        let combining = combining.count();
        println!(
            "{}: {delivered} interrupts, {combining} points of combining",
            name(&design)
        );
        assert!(combining >= POINTS, "{code:?}");
    }
}

/// Lines of combining that the interrupt comes at.
const POINTS: usize = 12;
