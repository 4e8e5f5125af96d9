// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! An invalidation fails at each step in the life of a bounce pool, while a device reaches whatever
//! it was ever told of.

use crate::lend;
use crate::suite::{interface::room, placements::*, rig::*};
use ioatlas_dma::{dma_api::*, platform::Platform, table::Format, units::*};
use ioatlas_viommu::{
    machine::WatchedUnit,
    oracle::{Failing, WatchedClient, WatchedDma, WatchedMapping, WatchedPlatform},
    unit::Injection,
};
use std::sync::Arc;

on_every_machine! {
    pool_failures::the_unit_refuses_one,
    pool_failures::one_comes_late,
}

type Memory<B> = WatchedPlatform<Failing<B>>;
type Tables<B> = WatchedUnit<Failing<B>>;

/// A pool with one client, what its driver holds, and the ends of what its device was told.
struct Pool<'r, B: Base, F: Format> {
    rig: &'r Rig<B>,
    dma: WatchedDma<Memory<B>, F, Tables<B>>,
    client: WatchedClient<Memory<B>, F, Tables<B>>,
    held: Vec<WatchedMapping>,
    told: Vec<IovaPage>,
    /// The first page of the driver's own memory.
    memory: PhysPage,
}

/// The driver's own memory.
const PAGES: u64 = 70;

impl<B: Base, F: Format> Pool<'_, B, F> {
    fn map(&mut self, pages: u64, direction: Direction) {
        let list = Arc::from([PhysRange::new(
            self.memory.addr(),
            ByteCount(pages * GRANULE),
        )]);
        // what fails belongs to no mapping any more, and is looked at all the same
        if let Ok(mapping) = self.client.map_sg(lend(list), direction) {
            let runs = mapping.runs().iter().copied();
            let ends = runs.flat_map(|run| [run.first, IovaPage(run.end().0 - 1)]);
            self.told.extend(ends);
            self.held.push(mapping);
        }
    }
    fn unmap_all(&mut self) {
        for mapping in self.held.drain(..) {
            drop(self.client.unmap(mapping));
        }
    }
    /// Long after: what was not used since is given up.
    fn idle(&self, second: u64) {
        self.dma.tick(TimeNs(second * 1_000_000_000));
    }
    fn look(&self) {
        for at in &self.told {
            for kind in [AccessKind::Read, AccessKind::Write] {
                let _ = self.rig.access(*at, kind);
            }
        }
    }
}

type Step<B, F> = fn(&mut Pool<'_, B, F>);

/// Slots are populated, kept and converted; a chunk is added; one buffer is for a single use; then
/// all of that goes.
fn steps<B: Base, F: Format>() -> Vec<(&'static str, Step<B, F>)> {
    let steps: [(&'static str, Step<B, F>); 12] = [
        ("one is populated", |pool| {
            pool.map(1, Direction::FromDevice)
        }),
        ("another", |pool| pool.map(1, Direction::FromDevice)),
        ("both are kept", |pool| pool.unmap_all()),
        ("one is converted", |pool| pool.map(1, Direction::ToDevice)),
        ("a larger one", |pool| pool.map(4, Direction::Bidirectional)),
        ("a chunk", |pool| pool.map(20, Direction::FromDevice)),
        ("a single use", |pool| {
            pool.map(PAGES, Direction::FromDevice)
        }),
        ("all end", |pool| pool.unmap_all()),
        ("it is idle", |pool| pool.idle(1)),
        ("it stays so", |pool| pool.idle(2)),
        ("what is left goes", |pool| pool.idle(3)),
        ("it is used again", |pool| pool.map(1, Direction::ToDevice)),
    ];
    steps.into()
}

/// What becomes of the invalidation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// It is refused, and after that all are.
    Refused,
    /// Accesses hold it up for longer than any caller waits; then the unit goes on.
    Late,
}

/// Runs the steps; from each of them on in turn, the first invalidation fails.
fn each_step<B: Base, F: Format>(fault: Fault) {
    for (nth, design) in designs().into_iter().enumerate() {
        let steps = steps::<B, F>();
        // every policy has each step with one allocator or another
        for (at, (failing, _)) in steps.iter().enumerate().skip(nth % 2).step_by(2) {
            let rig = Rig::<B>::new::<F>(512);
            let unit = rig.machine.machine().unit().clone();
            let memory = adjoining(rig.failing(), PAGES as usize);
            let aperture = Some(room::<F>());
            let domain = rig.domain::<F>(design.aperture(aperture));
            let dma = domain.dma(tight(ON_DEMAND));
            let config = ClientConfig::default().placement(Placement::Always);
            let client = dma.client(config).expect("a pool");
            let mut pool = Pool {
                rig: &rig,
                dma,
                client,
                held: Vec::new(),
                told: Vec::new(),
                memory: memory[0].page(),
            };
            let check = |step: &str| {
                let summary = rig.machine.oracle().summary();
                let name = name(&design);
                assert!(
                    summary.violations.is_empty(),
                    "{name}, {fault:?} where {failing}, {step}: {summary}"
                );
            };
            for (nth, (step, work)) in steps.iter().enumerate() {
                let hang = |at: &IovaPage| unit.begin(NIC, *at, AccessKind::Read);
                let mut hanging = Vec::new();
                match fault {
                    _ if nth != at => {}
                    Fault::Refused => unit.inject(Injection::QueueErrors(1)),
                    Fault::Late => hanging.extend(pool.told.iter().map(hang)),
                }
                work(&mut pool);
                pool.look();
                drop(hanging);
                pool.look();
                check(step);
            }
            pool.unmap_all();
            pool.look();
            check("all end");
            pool.dma.dma().audit().expect("P10");
            let Pool { dma, client, .. } = pool;
            drop((client, dma));
            check("the pool is closed");
            domain.domain().audit().expect("P10");
            match fault {
                Fault::Refused => drop(domain), // perhaps it cannot be closed
                Fault::Late => rig.close(domain, &[NIC]), // what was lost stays where it is
            }
            rig.assert_clean();
            let memory = memory.into_iter();
            memory.for_each(|frame| rig.failing().frame_free(crate::BY, frame));
        }
    }
}

pub fn the_unit_refuses_one<B: Base, F: Format>() {
    each_step::<B, F>(Fault::Refused);
}

pub fn one_comes_late<B: Base, F: Format>() {
    each_step::<B, F>(Fault::Late);
}
