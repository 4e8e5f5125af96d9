// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a seed says.

use crate::explorer::{crowd::Random, rig::*};
use ioatlas_dma::{design::Design, domain::*, table::Format};
use ioatlas_sim::platform::{Schedule, Sim, SimConfig};
use ioatlas_viommu::config::*;
use std::{fmt, num::NonZeroU32};

/// What the agents do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scenario {
    /// Every operation at random, on every CPU.
    Everything,
    /// Whole tables, or leaves as large, take turns with single pages.
    Tables,
    /// Devices come and go.
    Devices,
    /// What was mapped together is unmapped together, by one call or by two.
    Bursts,
    /// Buffers share a page that is mapped as often as can be counted.
    Brim,
    /// No policy: a CPU that has retired something asks with the last completion that any CPU got.
    Bare,
    /// CPUs open domains, each with a colour.
    Colours,
}

/// Which tables the domain has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tables {
    Small,
    Wide,
}

/// Everything that one run follows from.
pub struct Plan {
    pub seed: u64,
    pub schedule: Schedule,
    pub scenario: Scenario,
    pub tables: Tables,
    pub design: Design,
    pub unit: Unit,
    pub cpus: usize,
    /// The first CPU is interrupted at this of its accesses.
    pub interrupt: Option<u64>,
    /// This frame allocation fails, counted from the start.
    pub failing: Option<u64>,
}

/// What the unit is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    Plain,
    Evicts,
    Prefetches,
    WholeDomains,
    NoWalkCaches,
    CachesAbsent,
    WriteBuffers(WriteBuffers),
    DeviceTlbs(Refetch),
}

impl Plan {
    pub fn draw(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x5eed << 32);
        let mut one_in = |n| random.below(n) == 0;
        let (failing, interrupt) = (one_in(4), one_in(3));
        let schedule = match random.below(5) {
            0 | 1 => Schedule::Sticky {
                seed,
                switch_one_in: 2 << random.below(5),
            },
            2 => Schedule::Bounded {
                seed,
                preemptions: 2 * (1 + random.below(3) as u32),
            },
            _ => Schedule::Priority {
                seed,
                changes: 1 + random.below(4) as u32,
            },
        };
        let scenario = match random.below(16) {
            0..=5 => Scenario::Everything,
            6 => Scenario::Bursts,
            7..=10 => Scenario::Tables,
            11 | 12 => Scenario::Devices,
            13 => Scenario::Brim,
            14 => Scenario::Bare,
            _ => Scenario::Colours,
        };
        let tables = match (scenario, random.below(3)) {
            (Scenario::Brim, _) | (Scenario::Everything | Scenario::Bursts, 0) => Tables::Wide,
            _ => Tables::Small,
        };
        let designs = match (scenario, tables) {
            (Scenario::Brim, _) | (Scenario::Bursts, Tables::Wide) => shared(),
            (_, Tables::Small) => core_designs::<Small>(),
            (_, Tables::Wide) => core_designs::<Wide>(),
        };
        let domain = designs[random.below(designs.len() as u64) as usize];
        let table_configs = all_tables();
        let kind = table_configs[random.below(table_configs.len() as u64) as usize];
        Plan {
            seed,
            schedule,
            scenario,
            tables,
            design: Design {
                domain,
                tables: kind,
            },
            unit: Unit::draw(&mut random),
            cpus: 2 + random.below(2) as usize,
            interrupt: interrupt.then(|| 1 + random.below(1500)),
            failing: failing.then(|| 1 + random.below(24)),
        }
    }
}

/// The designs under which mappings share leaves.
fn shared() -> Vec<DomainConfig> {
    let identity = |d: &DomainConfig| matches!(d.allocator, AllocatorConfig::Identity(_));
    by_address::<Wide>().into_iter().filter(identity).collect()
}

impl Plan {
    /// A machine of so many CPUs, with a heap.
    pub fn platform(&self) -> Sim {
        let sim = Sim::new(SimConfig {
            frames: 96,
            cpus: self.cpus,
        });
        sim.with_heap(ARENA).expect("room for an arena")
    }
}

impl Unit {
    fn draw(random: &mut Random) -> Self {
        match random.below(16) {
            0..=4 => Unit::Plain,
            5 => Unit::Evicts,
            6 => Unit::Prefetches,
            7 => Unit::WholeDomains,
            8 | 9 => Unit::NoWalkCaches,
            10 | 11 => Unit::CachesAbsent,
            12 => Unit::WriteBuffers(WriteBuffers::FlushedByCommand),
            13 => Unit::WriteBuffers(WriteBuffers::FlushedByInvalidations),
            14 => Unit::DeviceTlbs(Refetch::OnDemand),
            _ => Unit::DeviceTlbs(Refetch::AtOnce),
        }
    }

    /// Makes `config` such a unit, which works on its own.
    pub fn adjust<F: Format>(self, seed: u64, config: &mut UnitConfig) {
        config.processing = Processing::Asynchronous;
        config.features.largest_leaf = F::LEVELS.min(3);
        let (caches, features) = (&mut config.caches, &mut config.features);
        match self {
            Unit::Plain => {}
            Unit::Evicts => {
                caches.eviction = Some(Eviction {
                    seed,
                    one_in: NonZeroU32::MIN.saturating_add(1),
                });
            }
            Unit::Prefetches => caches.prefetch = 3,
            Unit::WholeDomains => features.page_selective = None,
            Unit::NoWalkCaches => caches.walk = Vec::new(),
            Unit::CachesAbsent => features.caching_mode = true,
            Unit::WriteBuffers(buffers) => features.write_buffers = buffers,
            Unit::DeviceTlbs(refetch) => {
                features.device_tlbs = true;
                caches.walk = Vec::new();
                config.devices = vec![AtsDevice {
                    source: NIC,
                    entries: 8,
                    answer: Answer::WhenDrained,
                    refetch,
                }];
            }
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "seed {}, schedule {}: {:?} on {} CPUs, {}, tables {:?} {:?}, unit {:?}",
            self.seed,
            self.schedule,
            self.scenario,
            self.cpus,
            name(&self.design.domain),
            self.tables,
            self.design.tables,
            self.unit,
        )?;
        if let Some(at) = self.interrupt {
            write!(f, ", CPU 0 interrupted at access {at}")?;
        }
        if let Some(nth) = self.failing {
            write!(f, ", frame allocation {nth} fails")?;
        }
        Ok(())
    }
}
