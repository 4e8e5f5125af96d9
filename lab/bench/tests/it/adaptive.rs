// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `Adaptive` against the better of `Never` and `Always` in every cell of size x translator x
//! direction, on a clock that only what is charged moves.
//!
//! The code is the real one: a domain with tables, pools, placements. Time is charged by what
//! surrounds it: the translator's charge of the preset and what tables cost anyway, copied and
//! zeroed bytes, each time that the core pins its CPU, and each look at the clock. Nothing depends
//! on the machine, so a verdict is the same everywhere, and `cargo lab bench bounce` can be held
//! against it.

use ioatlas_bench::{
    bounce::{
        Block, Charge, Preset, Way,
        expensive::{Expensive, Pace},
    },
    platform::lend,
};
use ioatlas_dma::{
    design::Design,
    dma_api::*,
    domain::Domain,
    platform::*,
    table::fmt::VtdSecond48,
    translator::{Paged, Uncached},
    units::*,
};
use ioatlas_host::{Host, HostConfig, register};
use std::{cell::Cell, collections::VecDeque, sync::Arc, time::Duration};

/// In parts of a nanosecond, so that copied bytes count.
const PART: u64 = 1000;
/// 0.119 ns: neither side in a cache, as the model of BOUNCE'21's machine has it.
const COPY_A_BYTE: u64 = 119;
/// 16 bytes each 0.4 ns: lines that the copy has just brought.
const ZERO_A_BYTE: u64 = 25;
/// Beside the bytes of each copy.
const COPY: u64 = 15 * PART;
/// To pin a thread that has a slot of its own, and count something there: 3 ns.
const PIN: u64 = 3 * PART;
/// A look at the clock: 25 ns.
const LOOK: u64 = 25 * PART;
/// What a map and an unmap of our own tables take, each: `cargo lab bench` measures about 90 ns for
/// both.
const OWN_NS: f64 = 45.0;

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(0) };
}

fn charge(parts: u64) {
    NOW.set(NOW.get() + parts);
}

fn now() -> TimeNs {
    charge(LOOK);
    TimeNs(NOW.get() / PART)
}

/// Waits are charged.
struct Charged;

impl Pace for Charged {
    fn spend(time: Duration) {
        charge(time.as_nanos() as u64 * PART);
    }
}

/// A host on which pinning and moving bytes take time; no byte is moved.
struct Slow(Host);

// SAFETY: the host's, later.
unsafe impl Platform for Slow {
    type A64 = <Host as Platform>::A64;
    type Lock<T: Send> = <Host as Platform>::Lock<T>;
    fn pinned<R>(&self, f: impl FnOnce(Cpu<'_>) -> R) -> R {
        charge(PIN);
        self.0.pinned(f)
    }
    fn try_pinned<R>(&self, f: impl FnOnce(Cpu<'_>) -> R) -> Option<R> {
        charge(PIN);
        self.0.try_pinned(f)
    }
    fn cpus(&self) -> usize {
        self.0.cpus()
    }
    fn frame_alloc(&self) -> Option<FreshFrame> {
        self.0.frame_alloc()
    }
    fn frame_free(&self, by: Authority, frame: FreshFrame) {
        self.0.frame_free(by, frame);
    }
    fn entries<'f>(&'f self, by: Authority, frame: FrameRef<'f>) -> &'f [Self::A64] {
        self.0.entries(by, frame)
    }
    fn fence(&self, order: Ordering) {
        self.0.fence(order);
    }
    fn relax(&self) {
        self.0.relax();
    }
    fn unique(&self) -> u64 {
        self.0.unique()
    }
}

// SAFETY: it is not: no byte is moved. None is looked at here, and no device is attached.
unsafe impl CopyMemory for Slow {
    fn is_memory(&self, range: PhysRange) -> bool {
        self.0.is_memory(range)
    }
    fn copy(&self, _: Authority, from: PhysRange, _: PhysAddr) -> Result<(), NotMemoryError> {
        charge(COPY + from.len.0 * COPY_A_BYTE);
        Ok(())
    }
    fn zero(&self, _: Authority, range: PhysRange) -> Result<(), NotMemoryError> {
        charge(COPY + range.len.0 * ZERO_A_BYTE);
        Ok(())
    }
    fn read(&self, by: Authority, from: PhysAddr, into: &mut [u8]) -> Result<(), NotMemoryError> {
        self.0.read(by, from, into)
    }
    fn write(&self, by: Authority, from: &[u8], to: PhysAddr) -> Result<(), NotMemoryError> {
        self.0.write(by, from, to)
    }
}

type Tables = Paged<Slow, VtdSecond48, Arc<Uncached<Slow>>>;
type Dear = Expensive<Slow, Tables, Charged>;

/// Operations in flight.
const DEPTH: u64 = 8;
/// Operations after which a cell must have been learned.
const LEARNING: u64 = 999;
/// Operations that are looked at then: beyond two looks at the other route where those are most
/// frequent.
const SEEN: u64 = 10_000;

struct Driver {
    client: Client<Slow, Dear>,
    load: (Block, Way),
    first: PhysAddr,
    flying: VecDeque<DmaMapping>,
    done: u64,
}

impl Driver {
    fn new(preset: Charge, block: Block, way: Way, placement: Placement) -> Self {
        let pages = block.pages().0 * DEPTH;
        let frames = 3 * pages as usize + 256;
        let p = Arc::new(Slow(Host::new(
            HostConfig::default().frames(frames).slots(2),
        )));
        let first = p.frame_alloc().expect("a frame").page().addr();
        (1..pages).for_each(|_| drop(p.frame_alloc().expect("a frame")));
        let design = Design::parse("magazine,strict").unwrap();
        let tables: Tables = Paged::new(&p, Arc::new(Uncached::new()), design.tables).unwrap();
        let domain = Domain::new(p, Expensive::new(tables, preset), design.domain).unwrap();
        let config = DmaConfig::default().clock(Clock(now));
        let dma = Arc::new(Dma::new(Arc::new(domain), config));
        let config = ClientConfig::default().placement(placement);
        Driver {
            client: dma.client(config).unwrap(),
            load: (block, way),
            first,
            flying: VecDeque::new(),
            done: 0,
        }
    }

    /// Nanoseconds of each of so many operations.
    fn run(&mut self, operations: u64) -> f64 {
        let begun = NOW.get();
        let (block, way) = self.load;
        for _ in 0..operations {
            if self.flying.len() as u64 == DEPTH {
                let oldest = self.flying.pop_front().expect("one is in flight");
                self.client.unmap(oldest).unwrap();
            }
            let at = self.first.0 + self.done % DEPTH * block.bytes().0;
            let buffer = PhysRange::new(PhysAddr(at), block.bytes());
            let mapped = self.client.map_single(lend(buffer), way.direction());
            self.flying.push_back(mapped.unwrap());
            self.done += 1;
        }
        (NOW.get() - begun) as f64 / PART as f64 / operations as f64
    }

    fn settled(&self) -> Option<Route> {
        let learned = self.client.dma().learned();
        learned.iter().find_map(|cell| cell.settled)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let flying = core::mem::take(&mut self.flying);
        flying
            .into_iter()
            .for_each(|one| drop(self.client.unmap(one)));
    }
}

#[test]
fn adaptive_is_at_most_five_percent_behind_the_better_way_in_every_cell() {
    register();
    let (mut routes, mut worst, mut behind) = ([0, 0], 1.0f64, Vec::<String>::new());
    for preset in Preset::ALL {
        for way in Way::ALL {
            for kib in [4, 8, 16, 32, 64, 128, 256] {
                let block = Block(kib);
                let mut charge = preset.charge();
                charge.map.base_ns += OWN_NS;
                charge.unmap.base_ns += OWN_NS;
                let driver = |placement| Driver::new(charge, block, way, placement);
                let steady = |placement| {
                    let mut driver = driver(placement);
                    driver.run(LEARNING); // slots have memory then
                    driver.run(LEARNING)
                };
                let [never, always] = [Placement::Never, Placement::Always].map(steady);
                let mut adaptive = driver(Placement::Adaptive);
                adaptive.run(LEARNING);
                let what = format!("{preset}, {kib} KiB, {}", way.name());
                let route = adaptive.settled();
                let route = route.unwrap_or_else(|| panic!("{what}: not learned"));
                routes[route as usize] += 1;
                let took = adaptive.run(SEEN);
                let better = never.min(always);
                println!("{what}: {route:?}, {took:.0} ns; never {never:.0}, always {always:.0}");
                worst = worst.max(took / better);
                if took > better * 1.05 {
                    behind.push(format!("{what}: {took} ns, {never} and {always}"));
                }
            }
        }
    }
    println!("the worst: {worst:.3}");
    assert!(behind.is_empty(), "{behind:#?}");
    assert!(
        routes[0] > 5 && routes[1] > 5,
        "both routes are taken: {routes:?}"
    );
}
