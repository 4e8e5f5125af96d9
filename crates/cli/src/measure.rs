// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! How long a map and its unmap take on this machine, and how long deferred policies really leave pages exposed.
//!
//! *Time a pair* is wall time. The domain is the real one, with real page tables, under a unit that caches nothing, so every
//! invalidation is done at once: the time is without any invalidation, and no time of a software unit is in it. The pattern
//! is a driver's ring: [`RING`] single-page mappings outstanding, the oldest unmapped before each map. Threads share the
//! domain, each with a ring and a CPU slot of its own.
//!
//! Threads run in *slices* of [`SLICE`] that all begin together. On a machine that does other things too, a slice of two
//! threads may in truth be one thread after the other, and its figure that of no contention. So a slice of several threads
//! counts only if their intervals overlap by [`OVERLAP`] and none of them waited for a CPU longer than [`QUEUED`] of its own
//! (where the kernel tells). Waiting for a lock asleep is no such wait, and part of the figure. What a hypervisor takes away
//! nobody here can see.
//!
//! A figure is the median over the slices that count of the mean time a pair of all threads, with the 10th and 90th
//! percentile, after warm-up; compare rows of one run.

use crate::host::host;
use ioatlas_dma::{
    design::Design,
    domain::{Domain, Exposure, Mapping},
    platform::host::{Host, register},
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
/// Length of a slice.
const SLICE: Duration = Duration::from_millis(3);
/// Pairs between two looks at the clock.
const PAIRS: u32 = 64;
/// Slices that count at the least; with fewer there is no figure.
const LEAST: usize = 5;
/// Slices before them.
const WARM_UP: usize = 4;
/// Slices tried for each that is to count, at most.
const ATTEMPTS: usize = 8;
/// Pages of memory that a thread's buffers go round: drivers use theirs again, and page tables that follow them
/// (`identity`) are finite.
const BUFFERS: u64 = 1 << 16;
/// Share of the time from the first start to the last end in which all threads of a slice are under way.
const OVERLAP: f64 = 0.9;
/// Share of a slice that a thread may spend ready to run, but without a CPU.
const QUEUED: f64 = 0.05;

/// How much time a figure may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Slices that count.
    pub slices: usize,
    /// Time after which no further slice begins.
    pub patience: Duration,
}

impl Effort {
    /// For a few designs.
    pub const FULL: Self = Self {
        slices: 21,
        patience: Duration::from_secs(2),
    };
    /// For many.
    pub const QUICK: Self = Self {
        slices: 9,
        patience: Duration::from_millis(300),
    };
}

type Bare = Domain<Host, Paged<Host, VtdSecond48, Arc<Uncached<Host>>>>;

/// A time a pair, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// 10th percentile of the slices.
    pub low: f64,
    /// Median of the slices.
    pub median: f64,
    /// 90th percentile of the slices.
    pub high: f64,
}

impl Spread {
    fn of(mut slices: Vec<f64>) -> Option<Self> {
        slices.sort_by(f64::total_cmp);
        let at = |tenths: usize| slices.get(slices.len() * tenths / 10).copied();
        Some(Self {
            low: at(1)?,
            median: at(5)?,
            high: at(9)?,
        })
    }
}

/// The time of a map and an unmap on each of `threads` threads at once. `None` where there are fewer CPUs, or where the
/// machine was too busy to run all threads at the same time.
///
/// # Errors
/// A sentence: the design failed where it must not.
pub fn pair_time(design: Design, threads: usize, effort: Effort) -> Result<Option<Spread>, String> {
    if threads > std::thread::available_parallelism().map_or(1, usize::from) {
        return Ok(None);
    }
    // other threads of this process may hold slots of their own
    let platform = Arc::new(host(4096, threads + 16)?);
    let unit = Arc::new(Uncached::new());
    let tables = Paged::new(&*platform, unit, design.tables).map_err(|e| e.to_string())?;
    let domain: Bare = Domain::new(platform, tables, design.domain).map_err(|e| e.to_string())?;
    let pace = Pace {
        barrier: Barrier::new(threads),
        slice: Mutex::new((Vec::new(), true)),
    };
    let clean: Result<Vec<Vec<f64>>, String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let (domain, pace) = (&domain, &pace);
                scope.spawn(move || ring(domain, pace, thread, effort))
            })
            .collect();
        let joined = workers.into_iter().map(|worker| {
            worker
                .join()
                .map_err(|_| "a measuring thread panicked".to_owned())?
        });
        joined.collect()
    });
    let clean: Vec<f64> = clean?.into_iter().flatten().collect();
    Ok(if clean.len() < LEAST {
        None
    } else {
        Spread::of(clean)
    })
}

/// One thread's part of a slice.
#[derive(Clone, Copy, Debug)]
struct Ran {
    start: Instant,
    end: Instant,
    pairs: u32,
    /// Time ready to run but without a CPU.
    queued: Duration,
}

/// Nanoseconds a pair of a slice; `None` if its threads did not run at the same time.
fn judged(slice: &[Ran]) -> Option<f64> {
    let starts = || slice.iter().map(|ran| ran.start);
    let ends = || slice.iter().map(|ran| ran.end);
    let all = ends().max()?.duration_since(starts().min()?);
    let together = ends().min()?.saturating_duration_since(starts().max()?);
    let long = |ran: &Ran| ran.end.duration_since(ran.start);
    let queued = |ran: &Ran| ran.queued.as_secs_f64() > QUEUED * long(ran).as_secs_f64();
    let several = slice.len() > 1;
    let apart = together.as_secs_f64() < OVERLAP * all.as_secs_f64();
    if several && (apart || slice.iter().any(queued)) {
        return None;
    }
    let time: Duration = slice.iter().map(long).sum();
    let pairs: u32 = slice.iter().map(|ran| ran.pairs).sum();
    Some(time.as_nanos() as f64 / f64::from(pairs))
}

/// How long this thread has been ready to run but without a CPU, where the kernel tells.
fn queued() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split(' ').nth(1).and_then(|field| field.parse().ok());
    Duration::from_nanos(nanoseconds.unwrap_or(0))
}

/// Keeps the threads in step.
struct Pace {
    barrier: Barrier,
    /// Parts of the slice that is ending, and whether another is to begin.
    slice: Mutex<(Vec<Ran>, bool)>,
}

impl Pace {
    fn start(&self) {
        self.barrier.wait();
    }

    /// Hands in a part; thread 0 judges the whole with `judge`, which also says whether to go on. False at the end.
    fn end(&self, thread: usize, ran: Ran, judge: impl FnOnce(&[Ran]) -> bool) -> bool {
        let slice = || self.slice.lock().unwrap_or_else(PoisonError::into_inner);
        slice().0.push(ran);
        self.barrier.wait();
        if thread == 0 {
            let mut all = slice();
            let parts = std::mem::take(&mut all.0);
            all.1 = judge(&parts);
        }
        self.barrier.wait(); // nobody hands in again before the judgement
        slice().1
    }
}

/// One thread's slices; thread 0 returns the figures of those that count. After an error a thread still meets the others,
/// so that they end.
fn ring(domain: &Bare, pace: &Pace, thread: usize, effort: Effort) -> Result<Vec<f64>, String> {
    register();
    let mut outstanding: VecDeque<Mapping> = VecDeque::with_capacity(RING);
    let (buffers, mut next) = ((thread as u64 + 1) << 20, 0);
    let mut pair = |outstanding: &mut VecDeque<Mapping>| -> Result<(), String> {
        if outstanding.len() == RING
            && let Some(oldest) = outstanding.pop_front()
        {
            domain.unmap(oldest).map_err(|e| e.to_string())?;
        }
        next = (next + 1) % BUFFERS;
        let buffer = PhysRange::new(PhysPage(buffers + next).addr(), ByteCount(GRANULE));
        let mapping = domain.map(buffer, Direction::FromDevice);
        outstanding.push_back(mapping.map_err(|e| e.to_string())?);
        Ok(())
    };
    let mut failed = (0..RING).try_for_each(|_| pair(&mut outstanding));
    let mut clean = Vec::with_capacity(effort.slices);
    let begun = Instant::now();
    for attempt in 1..=WARM_UP + ATTEMPTS * effort.slices {
        pace.start();
        let queued_before = queued();
        let start = Instant::now();
        let (mut end, mut pairs) = (start, 0);
        while end.duration_since(start) < SLICE {
            failed = failed.and_then(|()| (0..PAIRS).try_for_each(|_| pair(&mut outstanding)));
            pairs += PAIRS;
            end = Instant::now();
        }
        let ran = Ran {
            start,
            end,
            pairs,
            queued: queued().saturating_sub(queued_before),
        };
        let judge = |slice: &[Ran]| {
            if attempt > WARM_UP {
                clean.extend(judged(slice));
            }
            // alone every slice counts, so what a figure needs is certain to come: a busy machine only delays it
            let needed = slice.len() == 1 && clean.len() < LEAST;
            needed || clean.len() < effort.slices && begun.elapsed() < effort.patience
        };
        if !pace.end(thread, ran, judge) {
            break;
        }
    }
    for mapping in outstanding {
        failed = failed.and_then(|()| domain.unmap(mapping).map_err(|e| e.to_string()));
    }
    failed.map(|()| clean)
}

/// Bursts of unmaps, each followed by silence longer than any window.
const BURSTS: u32 = 8;
/// Unmaps of a burst: below the batch, so that only the timer flushes.
const BURST: usize = 100;
/// The timer's interval.
const TICK: Duration = Duration::from_millis(1);

/// Silence after a burst where a policy names no window.
const UNTIMED: TimeNs = TimeNs(10_000_000);

/// The longest that an unmapped page stayed unflushed, in ms, by the oracle's clock: bursts that do not fill a batch, a timer
/// that ticks every millisecond. `None` under policies without a window.
///
/// # Errors
/// A sentence: the design failed where it must not.
pub fn exposure_ms(design: Design) -> Result<Option<f64>, String> {
    let Exposure::Bounded { time, .. } = design.domain.policy.exposure(1) else {
        return Ok(None);
    };
    let window = time.unwrap_or(UNTIMED);
    let start = Instant::now();
    let now = move || TimeNs(start.elapsed().as_nanos() as u64);
    let machine = WatchedMachine::new(
        host(4096, 1)?,
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
    if let Some(first) = summary.violations.first() {
        let count = summary.violation_count;
        return Err(format!(
            "{:?}: {} (one of {count})",
            first.property, first.text
        ));
    }
    Ok(Some(summary.exposure.time.0 as f64 / 1e6))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_slices_in_which_all_threads_ran_count() {
        let zero = Instant::now();
        let ran = |from: u64, to: u64, queued: u64| Ran {
            start: zero + Duration::from_micros(from),
            end: zero + Duration::from_micros(to),
            pairs: 10,
            queued: Duration::from_micros(queued),
        };
        assert_eq!(judged(&[ran(0, 1000, 0), ran(0, 1000, 0)]), Some(100_000.0));
        assert_eq!(
            judged(&[ran(0, 1000, 9), ran(20, 1040, 0)]),
            Some(101_000.0)
        );
        let apart = [ran(0, 1000, 0), ran(400, 1400, 0)];
        let after = [ran(0, 1000, 0), ran(1001, 2000, 0)];
        let queued = [ran(0, 1000, 400), ran(0, 1000, 0)];
        for slice in [apart, after, queued] {
            assert_eq!(judged(&slice), None, "{slice:?}");
        }
        // alone it is its own interval, and waiting for a CPU is left to the median
        assert_eq!(judged(&[ran(0, 1000, 400)]), Some(100_000.0));
    }

    #[test]
    fn one_thread_is_measured_however_busy_the_machine() {
        let impatient = Effort {
            patience: Duration::ZERO,
            ..Effort::QUICK
        };
        let design = Design::parse("rbtree,strict").unwrap();
        assert!(pair_time(design, 1, impatient).unwrap().is_some());
    }

    #[test]
    fn percentiles_are_of_the_slices() {
        let slices: Vec<f64> = (0..=20).rev().map(f64::from).collect();
        let spread = Spread {
            low: 2.0,
            median: 10.0,
            high: 18.0,
        };
        assert_eq!(Spread::of(slices), Some(spread));
        assert_eq!(Spread::of(Vec::new()), None);
    }
}
