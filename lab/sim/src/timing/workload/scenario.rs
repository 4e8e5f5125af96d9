// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! One point: a system, a workload, a machine.

use super::{
    background::Background,
    mapper::{Mapper, Requests},
    rings::{self, Rings},
};
use crate::{random::Random, timing::*};
use ioatlas_dma::{
    design::Design,
    domain::MapError,
    platform::{Heap, Platform},
    units::{ByteCount, PageCount, TimeNs},
};
use ioatlas_vtd::{driver::BringUpError, plan::InvalidationCosts};
use std::{
    cell::{Cell, RefCell},
    sync::Arc,
};

/// Frames of a machine: tables of the design that needs most, `kmalloc`, with room.
const FRAMES: u64 = 1 << 12;
/// The same for a hundred iterations.
const MANY_FRAMES: u64 = 1 << 15;
/// Bytes of a heap: address space until it is used.
const HEAP: ByteCount = ByteCount(1 << 32);
/// Bytes of a packet without payload worth naming.
const SMALL: ByteCount = ByteCount(66);
/// Bytes of a value of memcached (ATC'15 §6).
const VALUE: ByteCount = ByteCount(1024);
/// One in so many requests of memcached sets (ATC'15 §6).
const SETS_ONE_IN: u64 = 10;

/// Where device addresses come from.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum System {
    /// No IOMMU, or one that maps everything to itself for good: the mapping code does nothing.
    NoIommu,
    /// The real code of a design.
    Design(Design),
}

/// What the CPUs of the machine do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Workload {
    /// 270 connections at once, a byte there and back (ATC'15 figure 3): CPUs are never idle.
    RequestResponse,
    /// One connection a CPU (figure 4).
    Latency,
    /// 64-byte keys, 1 KiB values, 10 % set, on a wire of 10 Gb/s (figure 5).
    Memcached,
    /// Packets of a full frame come and go on a wire of 40 Gb/s.
    Ring,
    /// Lists of pages, as an NVMe queue has them.
    Lists,
}

impl Workload {
    /// All, with their names on command lines.
    pub const ALL: [(Workload, &'static str); 5] = [
        (Workload::RequestResponse, "rr"),
        (Workload::Latency, "latency"),
        (Workload::Memcached, "memcached"),
        (Workload::Ring, "ring"),
        (Workload::Lists, "lists"),
    ];
}

/// How the devices' driver ends mappings, and what it knows of the unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Driver {
    /// What it reaps at a time.
    pub reaps: Reaps,
    /// What the unit's driver is told that invalidations cost.
    pub costs: InvalidationCosts,
    /// How the IOVAs lie that it has.
    pub iovas: Iovas,
    /// How its invalidations reach the unit.
    pub requests: Requests,
}

/// How free IOVAs lie when rings are filled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Iovas {
    /// As a new domain gives them out: what is mapped one after the other often adjoins, and goes
    /// on to, where batches come back as they went.
    #[default]
    Fresh,
    /// In random order: twice as many buffers as a receive ring has were mapped on each CPU, and
    /// ended in an order of chance.
    Scattered,
    /// In order: each ring takes a chunk of so many pages and maps into it, then another.
    InChunks(PageCount),
}

/// What a driver reaps at a time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Reaps {
    /// Each mapping is ended when its buffer comes back.
    #[default]
    One,
    /// Completions of so many mappings, which one call ends; then what they brought is worked on.
    /// Of [`Workload::RequestResponse`], where it is a whole number of transactions (less is one);
    /// other workloads reap one by one.
    Batches(u64),
    /// The same of each ring by itself, as drivers do that poll a queue: so many packets that came,
    /// and half as many transactions later as many pieces that went out.
    EachRing(u64),
}

impl Reaps {
    /// Whether `workload` reaps several at a time.
    fn together(self, workload: Workload) -> bool {
        self != Reaps::One && workload == Workload::RequestResponse
    }

    /// Reaps what is due before the transaction `nth`, of `pairs` mappings, counted from 0.
    fn before(self, nth: u64, pairs: u64, rings: &mut Rings<'_>) -> Result<(), MapError> {
        match self {
            Reaps::One => {}
            Reaps::Batches(mappings) => {
                let transactions = (mappings / pairs.max(1)).max(1);
                if nth.is_multiple_of(transactions) {
                    rings.reap(transactions as usize)?;
                }
                rings.filled((nth % transactions) as usize);
            }
            Reaps::EachRing(mappings) => {
                let mappings = mappings.max(1);
                if nth.is_multiple_of(mappings) {
                    rings.reap_received(mappings as usize)?;
                }
                if nth % mappings == mappings / 2 {
                    rings.reap_sent(mappings as usize)?;
                }
                rings.filled((nth % mappings) as usize);
            }
        }
        Ok(())
    }
}

/// A point to be measured.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, PartialEq, Debug)]
pub struct Scenario {
    pub system: System,
    pub workload: Workload,
    pub driver: Driver,
    pub topology: Topology,
    /// How long it runs.
    pub span: Span,
    /// Where the workload's variations come from.
    pub seed: u64,
}

/// What was seen of a scenario.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Debug)]
pub struct Outcome {
    pub run: Run,
    /// How long an operation takes from the request's arrival to the reply's, time outside of
    /// the server included. Mean.
    pub latency: Cycles,
    /// Frames in use at the end: tables of all levels, and the unit's own.
    pub frames: usize,
}

/// Frames in use over repetitions of a workload in one domain (ATC'15 figure 6).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Iterations {
    /// Before the first and after each.
    pub frames: Vec<usize>,
}

/// Why a point cannot be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkloadError {
    /// There is no such machine.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The unit cannot be brought up.
    #[error(transparent)]
    Unit(#[from] BringUpError),
    /// The domain cannot be made, or cannot map.
    #[error("{0}")]
    Domain(String),
    /// The run did not end well.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// What all CPUs share outside of the mapping code.
#[derive(Default)]
struct Shared {
    /// When the wire has sent all it was given.
    wire_free: Cell<u64>,
    failed: RefCell<Option<MapError>>,
}

impl Scenario {
    /// Runs it once, on a machine of its own.
    ///
    /// # Errors
    /// No machine, unit or domain, or a run that did not end well ([`WorkloadError`]).
    pub fn run(&self, params: &Params) -> Result<Outcome, WorkloadError> {
        self.run_with(params, |_| ())
    }

    /// The same, with what the unit's caches would see in `log`.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_logged(
        &self,
        params: &Params,
        log: &Arc<CacheLog>,
    ) -> Result<Outcome, WorkloadError> {
        self.run_with(params, |machine| machine.registers().log_to(log.clone()))
    }

    fn run_with(
        &self,
        params: &Params,
        prepared: impl FnOnce(&Machine),
    ) -> Result<Outcome, WorkloadError> {
        let (machine, mapper) = self.prepare(params, FRAMES)?;
        prepared(&machine);
        let heap = machine.platform().heap().expect("made with one");
        self.once(&machine, &mapper, &self.backgrounds(heap, params))
    }

    /// Runs it `count` times in one domain, with the background drifting on between.
    ///
    /// # Errors
    /// No machine, unit or domain, or a run that did not end well ([`WorkloadError`]).
    pub fn iterate(&self, params: &Params, count: usize) -> Result<Iterations, WorkloadError> {
        let (machine, mapper) = self.prepare(params, MANY_FRAMES)?;
        let heap = machine.platform().heap().expect("made with one");
        let backgrounds = self.backgrounds(heap, params);
        let mut frames = vec![machine.platform().frames_in_use()];
        for iteration in 0..count {
            let again = Scenario {
                seed: self.seed.wrapping_add(iteration as u64),
                ..self.clone()
            };
            again.once(&machine, &mapper, &backgrounds)?;
            mapper.reclaim_tables(); // too short for a tick
            frames.push(machine.platform().frames_in_use());
            for background in &backgrounds {
                let mut background = background.borrow_mut();
                (0..params.background_growth).for_each(|_| background.grow());
            }
        }
        Ok(Iterations { frames })
    }

    /// One for each CPU: each kernel thread allocates where it runs.
    fn backgrounds<'a>(&self, heap: &'a dyn Heap, params: &Params) -> Vec<RefCell<Background<'a>>> {
        let of = |cpu| {
            // streams apart from those of the CPUs' own work
            let random = Random::of_stream(self.seed, u64::MAX - cpu as u64);
            RefCell::new(Background::new(heap, random, params.background))
        };
        (0..self.topology.cpus).map(of).collect()
    }

    fn prepare(&self, params: &Params, frames: u64) -> Result<(Machine, Mapper), WorkloadError> {
        let config = MachineConfig {
            topology: self.topology,
            frames,
            heap: Some(HEAP),
        };
        let machine = Machine::new(config, params.clone())?;
        let mapper = match self.system {
            System::NoIommu => Mapper::Physical,
            System::Design(design) => Mapper::domain(&machine, design, &self.driver)?,
        };
        Ok((machine, mapper))
    }

    fn once(
        &self,
        machine: &Machine,
        mapper: &Mapper,
        backgrounds: &[RefCell<Background<'_>>],
    ) -> Result<Outcome, WorkloadError> {
        let params = machine.params();
        let timer = Timer {
            period: Cycles(params.tick_period),
            tick: Box::new(|now| mapper.tick(TimeNs(now.ns()))),
        };
        let shared = Shared::default();
        let heap = machine.platform().heap().expect("made with one");
        let run = machine.run(self.span, Some(timer), |cpu| {
            let body = || -> Result<(), MapError> {
                let ring = match self.workload {
                    Workload::Lists => 0,
                    _ => params.receive_ring,
                };
                let mut random = Random::of_stream(self.seed, cpu.index().0 as u64);
                if self.driver.iovas == Iovas::Scattered {
                    rings::scatter(heap, mapper, params, 2 * ring, &mut random)?;
                }
                let mut rings = Rings::new(heap, mapper, params, self.driver.iovas, ring)?;
                rings.watched_by(machine.registers(), cpu.index());
                // CPUs do not all begin at once
                cpu.work(Cycles(random.below(params.rr_work)));
                let mut background = backgrounds[cpu.index().0].borrow_mut();
                let reaps = self.driver.reaps;
                let together = reaps.together(self.workload);
                let mut turn = 0u64;
                while cpu.running() {
                    turn += 1;
                    if turn.is_multiple_of(params.background_pace.max(1)) {
                        background.replace();
                    }
                    let began = cpu.now().0;
                    let away = match together {
                        false => self.operation(cpu, params, &shared, &mut rings, &mut random)?,
                        true => {
                            reaps.before(turn - 1, params.rr_pairs, &mut rings)?;
                            reply(cpu, params, &mut rings, &mut random)?;
                            Cycles(0)
                        }
                    };
                    cpu.operation_of(Cycles(cpu.now().0 - began + away.0));
                    cpu.idle_until(Cycles(cpu.now().0 + away.0));
                }
                rings.stop();
                Ok(())
            };
            if let Err(error) = body() {
                shared.failed.replace(Some(error));
            }
        })?;
        if let Some(error) = shared.failed.take() {
            return Err(WorkloadError::Domain(error.to_string()));
        }
        let took: u64 = run.cpus.iter().map(|cpu| cpu.took.0).sum();
        Ok(Outcome {
            latency: Cycles(took / run.operations().max(1)),
            frames: machine.platform().frames_in_use(),
            run,
        })
    }

    /// One operation. Returns the time until the next one comes.
    fn operation(
        &self,
        cpu: &VirtualCpu,
        params: &Params,
        shared: &Shared,
        rings: &mut Rings<'_>,
        random: &mut Random,
    ) -> Result<Cycles, MapError> {
        match self.workload {
            Workload::RequestResponse | Workload::Latency => {
                rings.receive()?;
                cpu.work(Cycles(random.about(params.rr_work)));
                for _ in 1..params.rr_pairs {
                    rings.send(SMALL)?;
                }
                if self.workload == Workload::Latency {
                    let others = self.topology.cpus as u64 - 1;
                    return Ok(Cycles(
                        random.about(params.away + others * params.away_growth),
                    ));
                }
            }
            Workload::Memcached => {
                rings.receive()?;
                cpu.work(Cycles(random.about(params.memcached_work)));
                let sets = random.below(SETS_ONE_IN) == 0;
                for _ in 1..params.memcached_pairs {
                    rings.send(if sets { SMALL } else { VALUE })?;
                }
                if !sets {
                    wire(cpu, shared, params.value_wire, params.wire_backlog);
                }
            }
            Workload::Ring => {
                rings.receive()?;
                cpu.work(Cycles(random.about(params.packet_work)));
                rings.send(ByteCount(1500))?;
                wire(cpu, shared, params.frame_wire, params.wire_backlog);
            }
            Workload::Lists => {
                cpu.work(Cycles(random.about(params.list_work)));
                rings.send_list(1 + random.below(params.list_segments))?;
            }
        }
        Ok(Cycles(0))
    }
}

/// A transaction of request-response whose packet has been reaped.
fn reply(
    cpu: &VirtualCpu,
    params: &Params,
    rings: &mut Rings<'_>,
    random: &mut Random,
) -> Result<(), MapError> {
    cpu.work(Cycles(random.about(params.rr_work)));
    (1..params.rr_pairs).try_for_each(|_| rings.post(SMALL))
}

/// Gives the wire a packet that it takes `cycles` for; idles while it has over `backlog` before it.
fn wire(cpu: &VirtualCpu, shared: &Shared, cycles: u64, backlog: u64) {
    cpu.turn();
    let free = shared.wire_free.get().max(cpu.now().0) + cycles;
    shared.wire_free.set(free);
    cpu.idle_until(Cycles(free.saturating_sub(backlog)));
}
