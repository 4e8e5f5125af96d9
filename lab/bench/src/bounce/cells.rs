// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Measuring a load: every policy, in slices that alternate, beside the copy alone.
//!
//! The time of an operation is that of [`alternate`]'s slices. What of it is map and what is unmap
//! is looked at apart, on one thread, since two looks at the clock take as long as the fastest
//! operations: batches of up to 32 operations of each policy in turn, the median of all, less what
//! a look takes. So an operation in which the thread lost its CPU counts as one.
//!
//! A policy that learns does so before, until it says that it has, or for [`LEARNING`] operations;
//! it is measured as it is then.

use super::{
    load::Load,
    model::{Machine, pages},
    policy::Policy,
    served::{Copies, Served, roomy},
};
use crate::{
    Contestant, Effort, Failure, Figure, Pattern, Sizes, Spread, Subject, alternate,
    figure::{Unmeasured, usual},
};
use ioatlas_dma::{dma_api::DmaMapping, units::PageCount};
use ioatlas_host::register;
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// Operations of a batch; of slow ones as many as fit into [`LONG`], but a few.
const BATCH: usize = 32;
const FEW: usize = 4;
const LONG: Duration = Duration::from_millis(2);
/// Batches at the most, and at the least.
const BATCHES: (usize, usize) = (9, 3);
/// Time for the batches of a policy.
const PATIENCE: Duration = Duration::from_millis(30);
/// Operations that a policy may learn from before it is measured.
pub const LEARNING: usize = 4_000;

/// A policy under a load, measured.
#[derive(Clone, Debug)]
#[allow(missing_docs)] // its fields say it
pub struct Row {
    pub load: Load,
    pub policy: Policy,
    /// Nanoseconds of an operation, on each thread; or why there are none.
    pub figure: Result<Figure, Unmeasured>,
    /// Operations a second by those of [`Policy::Never`], in the same rounds.
    pub ratio: Option<Spread>,
    /// Nanoseconds beyond the copy alone, in the same rounds.
    pub beyond_copy: Option<Spread>,
    /// Nanoseconds of a map and of an unmap, on one thread.
    pub split: Option<Split>,
    /// Throughput by that of [`Policy::Never`] where the CPU does other things, too, and the device
    /// sets a limit: see [`Machine`].
    pub paced_ratio: Option<f64>,
    /// How many of 100 operations were bounced while it was measured.
    pub bounced_percent: Option<f64>,
    /// Operations after which a policy that learns had decided.
    pub learned_after: Option<usize>,
    /// Of a policy that learns: its time by the better one of [`Policy::Never`] and
    /// [`Policy::Always`], in the same rounds.
    pub by_better: Option<Spread>,
}

/// Where the time of an operation goes.
#[derive(Clone, Copy, PartialEq, Debug)]
#[allow(missing_docs)] // its fields say it
pub struct Split {
    pub map_ns: f64,
    pub unmap_ns: f64,
}

impl Split {
    /// Of so many nanoseconds for an operation of `bytes`, milliseconds for each 10^9 bytes: the
    /// unit in which BOUNCE'21 compares.
    pub fn ms_per_gb(ns: f64, bytes: u64) -> f64 {
        // 10^9 / bytes operations, of ns / 10^6 ms each
        ns / bytes as f64 * 1e3
    }
}

/// The same policies under the same load: what is compared.
#[derive(Clone, Debug)]
pub struct Cell {
    /// One row for each policy.
    pub rows: Vec<Row>,
    /// The copy alone, with the same bytes.
    pub copy: Result<Figure, Unmeasured>,
}

impl Cell {
    /// The row of a policy.
    pub fn of(&self, policy: Policy) -> Option<&Row> {
        self.rows.iter().find(|row| row.policy == policy)
    }
}

/// Measures `policies` under `load`.
pub fn measure(load: Load, policies: &[Policy], effort: Effort) -> Cell {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if load.threads > cpus {
        let why = Unmeasured::Cpus {
            threads: load.threads,
            cpus,
        };
        return unmeasured(load, policies, &why);
    }
    let (copies, served, learned) = match prepared(load, policies) {
        Ok(made) => made,
        Err(failure) => {
            return unmeasured(load, policies, &Unmeasured::Failed(failure.to_string()));
        }
    };
    let pattern = Pattern::Ring(load.depth);
    let mut contestants = vec![Contestant::new(&copies, pattern, Sizes::One, load.threads)];
    contestants.extend(
        served
            .iter()
            .map(|served| Contestant::new(served, pattern, Sizes::One, load.threads)),
    );
    let records = alternate(&contestants, effort);
    drop(contestants);
    let mode = usual(&records);
    let figures: Vec<_> = records
        .iter()
        .map(|record| Figure::of(record, load.threads, mode))
        .collect();
    let splits = on_a_thread(|| splits(&served));
    let copy = figures[0].clone();
    let rows: Vec<Row> = policies
        .iter()
        .zip(&figures[1..])
        .zip(splits)
        .zip(learned)
        .map(|(((policy, figure), split), learned_after)| Row {
            load,
            policy: *policy,
            beyond_copy: both(figure, &copy, Figure::excess),
            figure: figure.clone(),
            ratio: None,
            bounced_percent: split.as_ref().ok().map(|(_, percent)| *percent),
            split: split.ok().map(|(split, _)| split),
            paced_ratio: None,
            learned_after,
            by_better: None,
        })
        .collect();
    compared(Cell { rows, copy })
}

fn both(
    one: &Result<Figure, Unmeasured>,
    other: &Result<Figure, Unmeasured>,
    of: fn(&Figure, &Figure) -> Option<Spread>,
) -> Option<Spread> {
    of(one.as_ref().ok()?, other.as_ref().ok()?)
}

/// With what follows from direct mapping's row.
fn compared(mut cell: Cell) -> Cell {
    let Some(never) = cell.of(Policy::Never).cloned() else {
        return cell;
    };
    let always = cell.of(Policy::Always).cloned();
    let time = |row: &Row| row.figure.as_ref().map_or(f64::MAX, |f| f.ns.median);
    let better = match always {
        Some(always) if time(&always) < time(&never) => always,
        _ => never.clone(),
    };
    let machine = Machine::bounce21();
    for row in &mut cell.rows {
        if row.policy.learns() {
            row.by_better = both(&row.figure, &better.figure, Figure::ratio);
        }
        row.ratio = both(&never.figure, &row.figure, Figure::ratio);
        let paced = |row: &Row| {
            let split = row.split?;
            let block = row.load.block.bytes();
            Some(machine.paced_ns(block, split.map_ns + split.unmap_ns).0)
        };
        row.paced_ratio = paced(&never).zip(paced(row)).map(|(a, b)| a / b);
    }
    cell
}

fn unmeasured(load: Load, policies: &[Policy], why: &Unmeasured) -> Cell {
    let row = |policy: &Policy| Row {
        load,
        policy: *policy,
        figure: Err(why.clone()),
        ratio: None,
        beyond_copy: None,
        split: None,
        paced_ratio: None,
        bounced_percent: None,
        learned_after: None,
        by_better: None,
    };
    Cell {
        rows: policies.iter().map(row).collect(),
        copy: Err(why.clone()),
    }
}

/// What is measured, and after how many operations each had learned.
type Prepared = (Copies, Vec<Served>, Vec<Option<usize>>);

fn prepared(load: Load, policies: &[Policy]) -> Result<Prepared, Failure> {
    let (mut served, mut learned) = (Vec::new(), Vec::new());
    for policy in policies {
        let one = Served::new(load, *policy, roomy())?;
        learned.push(taught(&one)?);
        served.push(one);
    }
    Ok((Copies::new(load)?, served, learned))
}

/// With a slot of its own, which it gives back.
fn on_a_thread<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let ran = scope.spawn(|| {
            register();
            run()
        });
        match ran.join() {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Operations of one thread on what is served: a ring, as in slices.
pub struct Driver<'s> {
    served: &'s Served,
    hand: <Served as Subject>::Hand,
    flying: VecDeque<DmaMapping>,
}

impl<'s> Driver<'s> {
    /// With as many in flight as the load says.
    pub fn new(served: &'s Served) -> Result<Self, Failure> {
        let mut driver = Driver {
            served,
            hand: served.hand(0),
            flying: VecDeque::with_capacity(served.load.depth),
        };
        for _ in 0..served.load.depth {
            driver.map()?;
        }
        Ok(driver)
    }
    fn map(&mut self) -> Result<bool, Failure> {
        let mapping = self.served.take(&mut self.hand, PageCount(1))?;
        let bounced = mapping.is_bounced();
        self.flying.push_back(mapping);
        Ok(bounced)
    }
    fn unmap(&mut self) -> Result<(), Failure> {
        match self.flying.pop_front() {
            Some(mapping) => self.served.give(&mut self.hand, mapping),
            None => Ok(()),
        }
    }
    /// Ends the oldest operation and begins another; whether that is bounced.
    pub fn turn(&mut self) -> Result<bool, Failure> {
        self.unmap()?;
        self.map()
    }
    /// Ends all operations that are in flight.
    pub fn finish(mut self) -> Result<(), Failure> {
        while !self.flying.is_empty() {
            self.unmap()?;
        }
        Ok(())
    }
}

/// Lets a policy learn; after how many operations it had.
pub(super) fn taught(served: &Served) -> Result<Option<usize>, Failure> {
    match served.policy.learns() {
        true => on_a_thread(|| learn(served)),
        false => Ok(None),
    }
}

fn learn(served: &Served) -> Result<Option<usize>, Failure> {
    let mut driver = Driver::new(served)?;
    let mut operations = served.load.depth;
    while served.settled().is_none() && operations < LEARNING {
        driver.turn()?;
        operations += 1;
    }
    // as soon as it is so: one late sample of those in flight may make it learn anew
    let learned = served.settled().map(|_| operations);
    driver.finish()?;
    Ok(learned)
}

/// One that is looked at in batches.
struct Watched<'s> {
    driver: Driver<'s>,
    /// Where the time of its operations went.
    splits: Vec<Split>,
    /// Operations of all of them that were bounced.
    bounced: usize,
}

/// The split of each, and how many of 100 operations were bounced.
fn splits(served: &[Served]) -> Vec<Result<(Split, f64), Failure>> {
    let clock = clock_ns();
    let begin = |served| {
        let driver = Driver::new(served)?;
        Ok(Watched {
            driver,
            splits: Vec::new(),
            bounced: 0,
        })
    };
    let mut drivers: Vec<Result<Watched<'_>, Failure>> = served.iter().map(begin).collect();
    let begun = Instant::now();
    for round in 0..BATCHES.0 {
        if round >= BATCHES.1 && begun.elapsed() > PATIENCE * served.len() as u32 {
            break;
        }
        for place in &mut drivers {
            let Ok(watched) = place else {
                continue;
            };
            if let Err(failure) = batch(watched) {
                *place = Err(failure);
            }
        }
    }
    let of = |place: Result<Watched<'_>, Failure>| {
        let Watched {
            driver,
            splits,
            bounced,
        } = place?;
        driver.finish()?;
        let median = |of: fn(&Split) -> f64| {
            let spread = Spread::of(splits.iter().map(of).collect());
            spread.map_or(0.0, |spread| (spread.median - clock).max(0.0))
        };
        let split = Split {
            map_ns: median(|split| split.map_ns),
            unmap_ns: median(|split| split.unmap_ns),
        };
        Ok((split, 100.0 * bounced as f64 / splits.len().max(1) as f64))
    };
    drivers.into_iter().map(of).collect()
}

/// Times some operations, and counts those that were bounced.
fn batch(watched: &mut Watched<'_>) -> Result<(), Failure> {
    let first = watched.splits.len();
    let begun = Instant::now();
    let done = |watched: &Watched<'_>| watched.splits.len() - first;
    while done(watched) < FEW || done(watched) < BATCH && begun.elapsed() < LONG {
        let begun = Instant::now();
        watched.driver.unmap()?;
        let between = Instant::now();
        watched.bounced += usize::from(watched.driver.map()?);
        let map = between.elapsed();
        let nanoseconds = |time: Duration| time.as_nanos() as f64;
        watched.splits.push(Split {
            map_ns: nanoseconds(map),
            unmap_ns: nanoseconds(between - begun),
        });
    }
    Ok(())
}

/// What a look at the clock adds to what is between two: the median of some.
fn clock_ns() -> f64 {
    let looks = (0..101).map(|_| {
        let look = Instant::now();
        look.elapsed().as_nanos() as f64
    });
    Spread::of(looks.collect()).map_or(0.0, |spread| spread.median)
}

/// Change of one time by another, in percent.
pub fn change(now: f64, before: f64) -> Option<f64> {
    (before > 0.0).then(|| (now / before - 1.0) * 100.0)
}

/// The charge of a load's map and unmap, in nanoseconds: what direct mapping takes at least.
pub fn charged_ns(load: &Load) -> f64 {
    load.preset.charge().pair_ns(pages(load.block.bytes()))
}
