// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a map and its unmap cost this machine's CPU, and how long deferred policies really leave pages exposed.
//!
//! The cost is the CPU's share alone: the domain is the real one, with real page tables, under a unit that caches
//! nothing, so every invalidation is done at once and no time of a software unit is in the figure. The pattern is a driver's
//! ring: [`RING`] single-page mappings outstanding, the oldest unmapped before each map. Threads share the domain, each with a ring
//! and a CPU slot of its own. A figure is the median over [`SLICES`] slices of all threads, after warm-up.
//!
//! Virtual machines share cores, so single figures wander; compare rows of one run.

use ioatlas_dma::{
    domain::{DeferredConfig, Domain, DomainConfig, Mapping, PolicyConfig},
    platform::host::{self, Host, HostConfig},
    table::fmt::VtdSecond48,
    translator::{Paged, Uncached},
    units::{ByteCount, Direction, GRANULE, PhysPage, PhysRange, SourceId, TimeNs},
};
use ioatlas_viommu::{
    config::{Geometry, UnitConfig},
    machine::WatchedMachine,
    oracle::Oracle,
};
use ioatlas_vtd::driver;
use std::{
    collections::VecDeque,
    sync::{Arc, Barrier, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Mappings outstanding on each thread.
const RING: usize = 256;
/// Pairs of one slice.
const PAIRS: u32 = 4096;
/// Slices that count.
const SLICES: usize = 21;
/// Slices that count at the least.
const LEAST: usize = 5;
/// Time after which no further slice begins.
const PATIENCE: Duration = Duration::from_secs(2);
/// Slices before them.
const WARM_UP: usize = 4;

type Bare = Domain<Host, Paged<Host, VtdSecond48, Arc<Uncached<Host>>>>;

/// Median nanoseconds of a map and an unmap on each of `threads` threads at once.
///
/// # Errors
/// A sentence: the design failed where it must not.
pub fn ns_per_pair(design: DomainConfig, threads: usize) -> Result<f64, String> {
    let platform = Arc::new(Host::new(HostConfig {
        frames: 4096,
        // other threads of this process may hold slots of their own
        slots: threads + 16,
    }));
    let unit = Arc::new(Uncached::new());
    let tables = Paged::new(&*platform, unit).map_err(|e| e.to_string())?;
    let domain: Bare = Domain::new(platform, tables, design).map_err(|e| e.to_string())?;
    let pace = Pace {
        barrier: Barrier::new(threads),
        enough: Mutex::new(false),
    };
    let slices: Result<Vec<Vec<f64>>, String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let (domain, pace) = (&domain, &pace);
                scope.spawn(move || ring(domain, pace, thread))
            })
            .collect();
        let joined = workers.into_iter().map(|worker| {
            worker
                .join()
                .map_err(|_| "a measuring thread panicked".to_owned())?
        });
        joined.collect()
    });
    let mut all: Vec<f64> = slices?.into_iter().flatten().collect();
    all.sort_by(f64::total_cmp);
    Ok(all[all.len() / 2])
}

/// Keeps the threads in step.
struct Pace {
    barrier: Barrier,
    enough: Mutex<bool>,
}

impl Pace {
    /// Waits for the others; false if no further slice is to begin. Thread 0 decides, before it comes to the barrier.
    fn go_on(&self, thread: usize, decide: impl FnOnce() -> bool) -> bool {
        let enough = || self.enough.lock().unwrap_or_else(PoisonError::into_inner);
        if thread == 0 {
            *enough() = decide();
        }
        self.barrier.wait();
        let go_on = !*enough();
        self.barrier.wait(); // nobody decides again before all have read
        go_on
    }
}

/// One thread's slices. After an error it still meets the others at the barrier, so that they end.
fn ring(domain: &Bare, pace: &Pace, thread: usize) -> Result<Vec<f64>, String> {
    host::register();
    let mut outstanding: VecDeque<Mapping> = VecDeque::with_capacity(RING);
    let mut next = (thread as u64 + 1) << 20;
    let mut pair = |outstanding: &mut VecDeque<Mapping>| -> Result<(), String> {
        if outstanding.len() == RING
            && let Some(oldest) = outstanding.pop_front()
        {
            domain.unmap(oldest).map_err(|e| e.to_string())?;
        }
        next += 1;
        let buffer = PhysRange::new(PhysPage(next).addr(), ByteCount(GRANULE));
        let mapping = domain.map(buffer, Direction::FromDevice);
        outstanding.push_back(mapping.map_err(|e| e.to_string())?);
        Ok(())
    };
    let mut failed = (0..RING).try_for_each(|_| pair(&mut outstanding));
    let mut slices = Vec::with_capacity(SLICES);
    let begun = Instant::now();
    for slice in 0..WARM_UP + SLICES {
        let enough = || slice >= WARM_UP + LEAST && begun.elapsed() > PATIENCE;
        if !pace.go_on(thread, enough) {
            break;
        }
        let start = Instant::now();
        failed = failed.and_then(|()| (0..PAIRS).try_for_each(|_| pair(&mut outstanding)));
        let spent = start.elapsed();
        if slice >= WARM_UP {
            slices.push(spent.as_nanos() as f64 / f64::from(PAIRS));
        }
    }
    for mapping in outstanding {
        failed = failed.and_then(|()| domain.unmap(mapping).map_err(|e| e.to_string()));
    }
    failed.map(|()| slices)
}

/// Bursts of unmaps, each followed by silence longer than any window.
const BURSTS: u32 = 8;
/// Unmaps of a burst: below the batch, so that only the timer flushes.
const BURST: usize = 100;
/// The timer's interval.
const TICK: Duration = Duration::from_millis(1);

/// The longest that an unmapped page stayed unflushed, in ms, by the oracle's clock: bursts that do not fill a batch, a timer
/// that ticks every millisecond. `None` under policies without a window.
///
/// # Errors
/// A sentence: the design failed where it must not.
pub fn exposure_ms(design: DomainConfig) -> Result<Option<f64>, String> {
    let PolicyConfig::DeferredPerCpu(DeferredConfig { window, .. }) = design.policy else {
        return Ok(None);
    };
    let start = Instant::now();
    let now = move || TimeNs(start.elapsed().as_nanos() as u64);
    let machine = WatchedMachine::new(
        Host::new(HostConfig {
            frames: 4096,
            slots: 1,
        }),
        &UnitConfig::new(Geometry::of::<VtdSecond48>()),
        Oracle::with_clock(now),
        driver::Config::default(),
    );
    let machine = machine.map_err(|e| e.to_string())?;
    let domain = machine
        .domain::<VtdSecond48>(design)
        .map_err(|e| e.to_string())?;
    domain.attach(SourceId(0)).map_err(|e| e.to_string())?;
    let page = PhysRange::new(PhysPage(1).addr(), ByteCount(GRANULE));
    for _ in 0..BURSTS {
        for _ in 0..BURST {
            let mapping = domain
                .map(page, Direction::ToDevice)
                .map_err(|e| e.to_string())?;
            domain.unmap(mapping).map_err(|e| e.to_string())?;
        }
        let until = now().0 + window.0 + window.0 / 2;
        while now().0 < until {
            std::thread::sleep(TICK);
            domain.tick(now()).map_err(|e| e.to_string())?;
        }
    }
    let summary = machine.oracle().summary();
    if summary.violation_count > 0 {
        return Err(summary.to_string());
    }
    Ok(Some(summary.exposure.time.0 as f64 / 1e6))
}
