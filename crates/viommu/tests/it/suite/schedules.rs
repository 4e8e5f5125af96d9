// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Schedules of a simulated machine: two CPUs, a device, a timer and an asynchronous unit, switched
//! at any shared access.
//!
//! Each scenario runs over many seeds, sticky and preemption-bounded, a third of the designs on
//! each. A failure names its seed:
//!
//! * `IOATLAS_SEEDS=n` runs n seeds a scenario, instead of the few of the default;
//! * `IOATLAS_SEED=s` runs that one seed.

use crate::suite::{crowd::*, interface::Interface, rig::*};
use ioatlas_dma::{
    design::Design,
    domain::*,
    invalidation::WaitLimit,
    table::{Format, Reclaim, TableConfig},
    units::*,
};
use ioatlas_sim::platform::{Schedule, Sim, World};
use ioatlas_viommu::config::*;
use std::{cell::Cell, env, num::NonZeroU32, ops::Range};

/// Seeds of each scenario where the environment does not say otherwise.
const SEEDS: u64 = 128;
/// No wait is this long: a unit that is asked answers within some thousand turns of all agents.
pub const LIMIT: WaitLimit = WaitLimit(100_000);

fn from_env(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name}={text}: not a number")))
}

/// Those to run.
pub fn seeds() -> Range<u64> {
    match from_env("IOATLAS_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..from_env("IOATLAS_SEEDS").unwrap_or(SEEDS),
    }
}

/// One design in so many runs on each seed: 3, so that each has its turn under every kind of
/// schedule and of unit.
const DESIGNS_OF_A_SEED: u64 = 3;

/// Those of `designs` that run on `seed`.
pub fn drawn(seed: u64, designs: Vec<DomainConfig>) -> impl Iterator<Item = DomainConfig> {
    let drawn = move |(nth, _): &(u64, _)| (nth + seed).is_multiple_of(DESIGNS_OF_A_SEED);
    (0..).zip(designs).filter(drawn).map(|(_, design)| design)
}

/// Eight kinds of schedule in turn, so that a seed names one.
pub fn schedule(seed: u64) -> Schedule {
    match seed % 8 {
        n @ 0..=4 => Schedule::Sticky {
            seed,
            switch_one_in: 2 << n,
        },
        n => Schedule::Bounded {
            seed,
            preemptions: 2 * (n as u32 - 4),
        },
    }
}

/// Every design, on every other seed under another unit.
pub fn unit(seed: u64, unit: &mut UnitConfig) {
    unit.processing = Processing::Asynchronous;
    match seed / 8 % 4 {
        1 => {
            unit.caches.eviction = Some(Eviction {
                seed,
                one_in: NonZeroU32::MIN.saturating_add(1),
            });
        }
        2 => unit.caches.prefetch = 3,
        3 => unit.features.page_selective = None,
        _ if seed / 32 % 2 == 1 => {
            unit.features.device_tlbs = true;
            unit.devices = vec![AtsDevice {
                source: NIC,
                entries: 8,
                answer: Answer::WhenDrained,
                refetch: [Refetch::OnDemand, Refetch::AtOnce][(seed % 2) as usize],
            }];
        }
        _ => {}
    }
}

pub type Body<'a> = Box<dyn FnOnce() + 'a>;
type OnSim<F> = Crowd<Sim, F>;

/// What acts besides the unit. Agents may not be pinned, so all that maps or unmaps is a CPU.
pub struct Cast<'a, const CPUS: usize = 2> {
    pub cpus: [Body<'a>; CPUS],
    pub agents: Vec<(&'static str, Body<'a>)>,
}

/// Runs `cast` over all seeds, and those designs of each that `fits`.
fn over_seeds<F: Format>(
    scenario: &str,
    fits: impl Fn(&DomainConfig) -> bool,
    aperture: Option<IovaRange>,
    cast: impl for<'a> Fn(&'a OnSim<F>, &'a [End; 2], u64) -> Cast<'a>,
) -> Checked {
    through::<F>(Interface::Domain, scenario, fits, aperture, cast)
}

/// The same by an interface.
pub fn through<F: Format>(
    interface: Interface,
    scenario: &str,
    fits: impl Fn(&DomainConfig) -> bool,
    aperture: Option<IovaRange>,
    cast: impl for<'a> Fn(&'a OnSim<F>, &'a [End; 2], u64) -> Cast<'a>,
) -> Checked {
    let seeds = seeds();
    let mut sum = Checked::default();
    for seed in seeds.clone() {
        for mut design in drawn(seed, core_designs::<F>()).filter(&fits) {
            design.aperture = aperture;
            let schedule = schedule(seed);
            let context = format!("{scenario}, {interface:?}, {}, {schedule}", name(&design));
            // emptied tables are looked for on half of them
            let reclaim = [Reclaim::Covered, Reclaim::Emptied][(seed / 2 % 2) as usize];
            let design = Design {
                domain: design,
                tables: TableConfig::default().reclaim(reclaim),
            };
            let crowd = Crowd::<Sim, F>::by(interface, design, LIMIT, |u| unit(seed, u));
            let ends = exchange();
            let ends = [ends.0, ends.1];
            run(schedule, &crowd, cast(&crowd, &ends, seed), &context);
            sum.add(crowd.check(ends, &context));
        }
    }
    println!("{scenario}: seeds {seeds:?}: {sum:?}");
    sum
}

/// Runs `cast` and the unit to their ends.
pub fn run<B: Base, F: Format, const CPUS: usize>(
    schedule: Schedule,
    crowd: &Crowd<B, F>,
    cast: Cast<'_, CPUS>,
    context: &str,
) {
    let acting = Cell::new(cast.cpus.len() + cast.agents.len());
    let acting = &acting;
    let mut world = World::new(schedule);
    for body in cast.cpus {
        world = world.cpu(move || {
            body();
            acting.set(acting.get() - 1);
        });
    }
    for (name, body) in cast.agents {
        world = world.agent(name, move || {
            body();
            acting.set(acting.get() - 1);
        });
    }
    // it looks again whenever one of the others ends
    let world = world.agent("unit", || crowd.unit(|| acting.get() == 0));
    if let Err(failure) = world.try_run() {
        panic!(
            "{context}: {failure}\n{}",
            crowd.rig.machine.oracle().summary()
        );
    }
}

fn every_design(_: &DomainConfig) -> bool {
    true
}

/// A device over pages that it was never told of.
fn sweeper<F: Format>(crowd: &OnSim<F>, pages: IovaRange, rounds: u64) {
    for _ in 0..rounds {
        for page in pages.iter() {
            let _ = crowd.rig.access(page, AccessKind::Read);
        }
    }
}

fn at(first: u64, pages: u64) -> IovaRange {
    IovaRange::new(IovaPage(first), PageCount(pages))
}

fn everything<F: Format>(interface: Interface) {
    let sum = through::<F>(
        interface,
        "everything",
        every_design,
        None,
        |c, ends, seed| {
            c.domain.attach(DISK).expect("attached");
            // what is freed by an address, or is a pool's, is counted on a CPU, and a request to be
            // combined has a CPU's slot; so there a CPU ticks
            let on_a_cpu = c.by_address || interface != Interface::Domain;
            let (ticks, cpu_ticks) = if on_a_cpu { (0, 6) } else { (6, 0) };
            Cast {
                cpus: [
                    Box::new(move || c.cpu(2 * seed, 14, 3, &ends[0])),
                    Box::new(move || {
                        c.cpu(2 * seed + 1, 14, 3, &ends[1]);
                        c.ticker(cpu_ticks);
                    }),
                ],
                agents: vec![
                    ("NIC", Box::new(move || c.device(NIC, seed, 40))),
                    ("disk", Box::new(move || c.device(DISK, !seed, 20))),
                    ("timer", Box::new(move || c.ticker(ticks))),
                ],
            }
        },
    );
    assert!(sum.succeeded > 0 && sum.blocked > 0 && sum.stale > 0);
}

#[test]
fn everything_at_once_on_toy_tables() {
    everything::<Small>(Interface::Domain);
}

#[cfg(not(ioatlas_killers))]
#[test]
fn everything_at_once_on_vtd_tables() {
    everything::<Vtd>(Interface::Domain);
}

/// With the designs that go by addresses.
#[test]
fn everything_at_once_on_wide_tables() {
    everything::<Wide>(Interface::Domain);
}

#[test]
fn everything_at_once_over_a_combined_unit_on_toy_tables() {
    everything::<Small>(Interface::Combined);
}

#[test]
fn everything_at_once_through_the_dma_api_on_toy_tables() {
    everything::<Small>(Interface::Dma);
}

#[cfg(not(ioatlas_killers))]
#[test]
fn everything_at_once_through_the_dma_api_on_vtd_tables() {
    everything::<Vtd>(Interface::Dma);
}

#[cfg(not(ioatlas_killers))]
#[test]
fn everything_at_once_through_the_dma_api_on_wide_tables() {
    everything::<Wide>(Interface::Dma);
}

/// Both find the tables above missing, and one of them loses the race to add them; then both unmap
/// again.
#[test]
fn two_cpus_map_neighbours_under_one_absent_table() {
    let sum = over_seeds::<Small>("neighbours", every_design, None, |c, _, _| {
        let cpu = |page: u64| -> Body<'_> {
            Box::new(move || {
                for round in 0..3 {
                    let buffer = buffer(0x1000 * page + round, 1);
                    let mapping =
                        c.domain
                            .map_at(IovaPage(page).addr(), buffer, Direction::ToDevice);
                    let mapping = c.taken(mapping).expect("its own page, free after a drain");
                    assert!(
                        c.rig.access(IovaPage(page), AccessKind::Read).is_some(),
                        "P14"
                    );
                    c.domain.unmap(mapping).expect("unmapped");
                }
            })
        };
        Cast {
            cpus: [cpu(17), cpu(18)],
            agents: vec![("device", Box::new(|| sweeper(c, at(16, 4), 6)))],
        }
    });
    assert!(sum.succeeded > 0);
}

/// One mapping is all of a leaf table, another all of a table of tables; both are detached under
/// the device's walks, and come again at once with other contents.
#[test]
fn whole_tables_are_unmapped_while_a_device_walks_them() {
    let sum = over_seeds::<Small>("whole tables", every_design, None, |c, _, _| {
        let cpu = |pages: IovaRange| -> Body<'_> {
            Box::new(move || {
                for round in 0..4 {
                    let buffer = buffer(0x1000 * (1 + pages.first.0) + 32 * round, pages.pages.0);
                    let mapping =
                        c.domain
                            .map_at(pages.first.addr(), buffer, Direction::FromDevice);
                    let mapping = c.taken(mapping).expect("its own pages, free after a drain");
                    for page in pages.iter().step_by(3) {
                        assert!(c.rig.access(page, AccessKind::Write).is_some(), "P14");
                    }
                    c.domain.unmap(mapping).expect("unmapped");
                }
            })
        };
        let device = || {
            for turn in 0..60u64 {
                let page = IovaPage(if turn % 2 == 0 {
                    20 + turn % 4
                } else {
                    32 + turn % 16
                });
                let _ = c.rig.access(page, AccessKind::Write);
            }
        };
        Cast {
            cpus: [cpu(at(20, 4)), cpu(at(32, 16))],
            agents: vec![("device", Box::new(device))],
        }
    });
    assert!(sum.succeeded > 0 && sum.blocked > 0);
}

/// CPU 0's unmaps fill batch after batch, CPU 1 pushes meanwhile, and the timer flushes and drains
/// both queues.
#[test]
fn a_batch_is_flushed_while_another_cpu_pushes_and_the_timer_ticks() {
    let sum = over_seeds::<Small>("batches", is_batched, None, |c, _, _| {
        let cpu = |pages: u64| -> Body<'_> {
            Box::new(move || {
                for n in 0..14 {
                    let buffer = buffer(0x1000 * (pages + 1) + 8 * n, pages);
                    if let Some(mapping) = c.taken(c.domain.map(buffer, Direction::ToDevice)) {
                        c.heat(mapping.range());
                        c.domain.unmap(mapping).expect("unmapped");
                    }
                }
            })
        };
        Cast {
            cpus: [cpu(1), cpu(4)],
            agents: vec![
                ("timer", Box::new(|| c.ticker(12))),
                ("device", Box::new(|| c.device(NIC, 5, 40))),
            ],
        }
    });
    assert!(sum.stale > 0);
}

/// Eight pages for two CPUs that want three each time: one that finds none drains
/// what both have retired.
#[test]
fn two_cpus_exhaust_the_pages_and_drain_each_others_queues() {
    let pages = Some(at(8, 8));
    let sum = over_seeds::<Small>("exhaustion", every_design, pages, |c, _, _| {
        let cpu = |cpu: u64| -> Body<'_> {
            Box::new(move || {
                let mut held = None;
                for n in 0..12 {
                    let buffer = buffer(0x1000 * (cpu + 1) + 8 * n, 1 + n % 4);
                    let mapping = c.taken(c.domain.map(buffer, Direction::Bidirectional));
                    let before = match mapping {
                        Some(mapping) => held.replace(mapping),
                        None => held.take(),
                    };
                    if let Some(mapping) = before {
                        c.heat(mapping.range());
                        c.domain.unmap(mapping).expect("unmapped");
                    }
                }
                held.into_iter()
                    .for_each(|mapping| c.domain.unmap(mapping).expect("unmapped"));
            })
        };
        Cast {
            cpus: [cpu(0), cpu(1)],
            agents: vec![("device", Box::new(|| c.device(NIC, 9, 40)))],
        }
    });
    assert!(sum.maps > 0);
}

/// A second device comes and goes, while both devices access and the first CPU maps and unmaps.
#[test]
fn a_device_is_attached_and_detached_while_it_accesses() {
    let sum = over_seeds::<Small>("attach and detach", every_design, None, |c, ends, seed| {
        Cast {
            cpus: [
                Box::new(move || c.cpu(seed, 10, 3, &ends[0])),
                Box::new(move || {
                    for _ in 0..4 {
                        c.domain.attach(DISK).expect("attached");
                        c.domain.detach(DISK).expect("detached");
                        let reached = c.rig.access_by(DISK, IovaPage(63), AccessKind::Read);
                        assert_eq!(reached, None, "P8: detached");
                    }
                }),
            ],
            agents: vec![
                ("disk", Box::new(move || c.device(DISK, seed, 40))),
                ("NIC", Box::new(move || c.device(NIC, !seed, 20))),
            ],
        }
    });
    assert!(sum.succeeded > 0 && sum.blocked > 0);
}
