// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Slices of several contestants, alternated in one process.
//!
//! # Theory
//!
//! A *slice* is [`SLICE`] of one contestant's pairs; a *round* is one slice of each. What disturbs
//! the machine for longer than a slice so disturbs all contestants alike, and what is compared is
//! of one round. Before each slice its contestant runs untimed, to have in the caches what the
//! others displaced: for [`WARM_UP`], and on until it has replaced all that is outstanding twice
//! over, or for [`WARM_UP_MOST`]. Threads stay on a CPU each, and those of a slice first find each
//! other running ([`PingPong::probe`]), so that even a machine with other work has both of them on
//! CPUs at the same time.
//!
//! One thread alone is timed by its own CPU time, since it waits for no other: what others run
//! meanwhile on its CPU does not count, but for what they displace from its caches. Several are
//! timed by the clock, as waiting for each other is part of what is measured.
//!
//! A slice is *clean* if
//! * no thread waited for a CPU longer than `QUEUED` of it, where the kernel tells (involuntary
//!   switches show as such waiting); waiting for a lock asleep is no such wait, and part of the
//!   figure;
//! * of several threads: their intervals overlap by `OVERLAP`, else it is in truth one thread after
//!   the other and its figure that of no contention;
//! * of several threads: the probe ([`crate::probe`]) found the same mode before and after it.
//!
//! What a hypervisor takes away cannot be seen from here; medians over slices are for that. Of one
//! thread alone all slices count, clean or not, so there is always a figure.
//!
//! Threads that a contestant has no use for sleep meanwhile.

use crate::{
    Contestant, Failure, Worker,
    probe::{Mode, PingPong},
};
use ioatlas_host::{Host, register};
use rustix::{
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
    time::{ClockId, clock_gettime},
};
use std::{
    panic::AssertUnwindSafe,
    sync::{Barrier, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Length of a slice.
pub const SLICE: Duration = Duration::from_millis(1);
/// How long one may take, on a thread that has to wait for its CPU.
const SLICE_MOST: Duration = Duration::from_millis(20);
/// Untimed pairs before it.
pub const WARM_UP: Duration = Duration::from_micros(200);
/// The same where much is outstanding: enough for 200,000 pairs of a fast subject.
pub const WARM_UP_MOST: Duration = Duration::from_millis(10);
/// Pairs between two looks at the clock take about this long.
const LOOK: Duration = Duration::from_micros(10);
/// And are at most so many.
const PAIRS: u32 = 4096;
/// Slices that count at the least; with fewer there is no figure.
pub const LEAST: usize = 5;
/// Share of the time from the first start to the last end in which all threads of a
/// slice are under way.
const OVERLAP: f64 = 0.9;
/// How long the threads of a slice wait until both run: beyond what schedulers make a thread
/// wait for its turn.
const MEETING: Duration = Duration::from_millis(20);
/// How long after it; a thread that does not come then did not run in the slice.
const PARTING: Duration = Duration::from_millis(1);
/// Share of a slice that a thread may spend ready to run, but without a CPU.
const QUEUED: f64 = 0.05;

/// How much time contestants may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Clean slices wanted of each.
    pub slices: usize,
    /// Time after which no further round begins.
    pub patience: Duration,
    /// Time for filling a pattern.
    pub filling: Duration,
}

impl Effort {
    /// For a few designs.
    pub const FULL: Self = Self {
        slices: 21,
        patience: Duration::from_secs(2),
        filling: Duration::from_secs(5),
    };
    /// For many designs, in a short time.
    pub const QUICK: Self = Self {
        slices: 9,
        patience: Duration::from_millis(300),
        filling: Duration::from_secs(1),
    };
}

/// Where rounds end, whatever is still wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Rounds at the most.
    pub rounds: usize,
    /// When no more is filled.
    pub filled: Option<Instant>,
    /// When nothing more begins.
    pub over: Option<Instant>,
}

impl Limit {
    /// No limit: rounds end where all slices that are wanted have been run.
    pub const NONE: Self = Self {
        rounds: usize::MAX,
        filled: None,
        over: None,
    };
}

fn past(moment: Option<Instant>) -> bool {
    moment.is_some_and(|moment| Instant::now() >= moment)
}

/// One slice of one contestant.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)] // its fields say it
pub struct Slice {
    /// Which round it was of.
    pub round: usize,
    /// Nanoseconds a pair, on the mean of its threads.
    pub ns: f64,
    pub quality: Quality,
    /// Where its threads were; `None` for one thread.
    pub mode: Option<Mode>,
}

/// Whether a slice counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quality {
    /// All ran at once, and undisturbed.
    Clean,
    /// A thread waited for a CPU.
    Queued,
    /// Its threads did not run at the same time.
    Apart,
    /// The CPUs moved between near and far, or the probe had no answer.
    Unsteady,
}

/// What became of one contestant.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// Its slices, in order of their rounds.
    pub slices: Vec<Slice>,
    /// Why there are no more of them.
    pub failure: Option<Failure>,
    /// Whether time was over ([`Limit::over`]) before there were [`LEAST`].
    pub late: bool,
}

impl Record {
    fn clean(&self) -> usize {
        let clean = |slice: &&Slice| slice.quality == Quality::Clean;
        self.slices.iter().filter(clean).count()
    }
    fn wants(&self, effort: Effort) -> bool {
        self.failure.is_none() && self.clean() < effort.slices
    }
}

/// Runs rounds of `contestants` until each has as many clean slices as wanted, or time is out; of
/// contestants on one thread there are [`LEAST`] slices in any case. A contestant that fails says
/// so in its record, and the others go on.
pub fn alternate(contestants: &[Contestant<'_>], effort: Effort) -> Vec<Record> {
    alternate_within(contestants, effort, Limit::NONE)
}

/// The same within a limit, beyond which there are no slices of any contestant.
pub fn alternate_within(
    contestants: &[Contestant<'_>],
    effort: Effort,
    limit: Limit,
) -> Vec<Record> {
    let threads = contestants
        .iter()
        .map(Contestant::threads)
        .max()
        .unwrap_or(0);
    let shared = Shared {
        contestants,
        effort,
        limit,
        barrier: Barrier::new(threads),
        threads,
        state: Mutex::new(State {
            records: contestants.iter().map(|_| Record::default()).collect(),
            ..State::default()
        }),
        probes: Default::default(),
    };
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let shared = &shared;
            scope.spawn(move || shared.serve(thread));
        }
    });
    let state = shared.state.into_inner();
    let State {
        mut records, late, ..
    } = state.unwrap_or_else(PoisonError::into_inner);
    for record in &mut records {
        record.late = late && record.failure.is_none() && record.slices.len() < LEAST;
    }
    records
}

/// One thread's part of a slice.
#[derive(Clone, Copy, Debug)]
struct Ran {
    start: Instant,
    end: Instant,
    pairs: u32,
    /// Time ready to run but without a CPU.
    queued: Duration,
    /// Time of the CPU.
    used: Duration,
}

/// Nanoseconds a pair of a slice, and whether its threads ran, all at the same time. `None` if
/// there were no pairs.
fn judged(slice: &[Ran]) -> Option<(f64, Quality)> {
    let starts = || slice.iter().map(|ran| ran.start);
    let ends = || slice.iter().map(|ran| ran.end);
    let all = ends().max()?.duration_since(starts().min()?);
    let together = ends().min()?.saturating_duration_since(starts().max()?);
    let long = |ran: &Ran| ran.end.duration_since(ran.start);
    let queued = |ran: &Ran| ran.queued.as_secs_f64() > QUEUED * long(ran).as_secs_f64();
    let apart = together.as_secs_f64() < OVERLAP * all.as_secs_f64();
    // one thread waits for no other, so what it did not run in is not its own
    let time = match slice {
        [alone] => alone.used,
        _ => slice.iter().map(long).sum(),
    };
    let pairs: u32 = slice.iter().map(|ran| ran.pairs).sum();
    let quality = match (slice.iter().any(queued), apart) {
        (true, _) => Quality::Queued,
        (false, true) => Quality::Apart,
        (false, false) => Quality::Clean,
    };
    (pairs > 0).then(|| (time.as_nanos() as f64 / f64::from(pairs), quality))
}

/// Keeps this thread on the CPU of that number among those that it may use. Where the system does
/// not let it, it moves as before: slices in which two threads share a CPU do not count.
fn stay(thread: usize) {
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    let cpu = (0..CpuSet::MAX_CPU)
        .filter(|cpu| allowed.is_set(*cpu))
        .nth(thread);
    if let Some(cpu) = cpu {
        let mut one = CpuSet::new();
        one.set(cpu);
        let _ = sched_setaffinity(None, &one);
    }
}

/// How long this thread has had a CPU.
fn used() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let (seconds, nanoseconds) = (time.tv_sec.max(0), time.tv_nsec.max(0));
    Duration::from_secs(seconds as u64) + Duration::from_nanos(nanoseconds as u64)
}

/// How long this thread has been ready to run but without a CPU, where the kernel tells.
fn queued() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split(' ').nth(1).and_then(|field| field.parse().ok());
    Duration::from_nanos(nanoseconds.unwrap_or(0))
}

/// What the threads share.
struct Shared<'c, 's> {
    contestants: &'c [Contestant<'s>],
    effort: Effort,
    limit: Limit,
    barrier: Barrier,
    threads: usize,
    state: Mutex<State>,
    /// Before and after a slice.
    probes: [PingPong<Host>; 2],
}

/// What thread 0 decides and the others hand in.
#[derive(Default)]
struct State {
    records: Vec<Record>,
    /// Parts of the slice that is ending.
    parts: Vec<Ran>,
    failure: Option<Failure>,
    /// Whether no other round is to begin.
    over: bool,
    /// Whether that is because of [`Limit::over`].
    late: bool,
}

/// A contestant's part on one thread, and how many pairs at a time it runs.
struct Seat<'s> {
    worker: Option<Box<dyn Worker + 's>>,
    at_once: u32,
}

impl<'s> Shared<'_, 's> {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one thread until the rounds are over.
    fn serve(&self, thread: usize) {
        register();
        if self.threads > 1 {
            stay(thread);
        }
        let mut seats: Vec<Seat<'s>> = Vec::new();
        for (nth, contestant) in self.contestants.iter().enumerate() {
            let plays = thread < contestant.threads();
            let worker = plays.then(|| caught(|| self.filled(contestant, thread)));
            let worker = worker.transpose().unwrap_or_else(|failure| {
                self.state().records[nth].failure.get_or_insert(failure);
                None
            });
            seats.push(Seat { worker, at_once: 1 });
            self.barrier.wait(); // what one fills the other does not measure, and does not disturb
        }
        let begun = Instant::now();
        for round in 0.. {
            for (nth, contestant) in self.contestants.iter().enumerate() {
                self.slice(thread, nth, contestant, round, &mut seats[nth]);
            }
            if thread == 0 {
                let mut state = self.state();
                let late = begun.elapsed() >= self.effort.patience;
                // alone every slice counts at need, so what a figure needs is certain to come: a
                // busy machine only delays it
                let alone = self.contestants.iter().all(|c| c.threads() == 1);
                let wants = |record: &Record| record.wants(self.effort);
                state.over = state.late
                    || round + 1 >= self.limit.rounds
                    || !state.records.iter().any(wants)
                    || late && (!alone || round + 1 >= LEAST);
            }
            self.barrier.wait();
            if self.state().over {
                break;
            }
        }
    }

    fn filled(
        &self,
        contestant: &Contestant<'s>,
        thread: usize,
    ) -> Result<Box<dyn Worker + 's>, Failure> {
        let begun = Instant::now();
        let mut worker = contestant.worker(thread)?;
        worker.fill(&mut || begun.elapsed() < self.effort.filling && !past(self.limit.filled))?;
        Ok(worker)
    }

    /// One slice of contestant `nth`, as thread `thread` sees it.
    fn slice(
        &self,
        thread: usize,
        nth: usize,
        contestant: &Contestant<'s>,
        round: usize,
        seat: &mut Seat<'s>,
    ) {
        let (threads, outstanding) = (contestant.threads(), contestant.outstanding());
        if thread == 0 {
            let mut state = self.state();
            state.parts.clear();
            state.late |= past(self.limit.over);
            self.probes.iter().for_each(PingPong::reset);
        }
        self.barrier.wait();
        let alive = {
            let state = self.state();
            !state.late && state.records[nth].failure.is_none()
        };
        let mut modes = [None; 2];
        if let (true, true, Some(worker)) = (alive, thread < threads, &mut seat.worker) {
            let [before, after] = &self.probes;
            let probed = |probe: &PingPong<Host>, patience| {
                let trip = (threads > 1).then(|| probe.probe(thread, patience));
                trip.flatten().map(Mode::of)
            };
            modes[0] = probed(before, MEETING);
            let company = match threads {
                1 => Company::None,
                _ => Company::Others,
            };
            let ran = caught(|| timed(&mut **worker, &mut seat.at_once, outstanding, company));
            modes[1] = probed(after, PARTING);
            match ran {
                Ok(ran) => self.state().parts.push(ran),
                Err(failure) => self.state().failure = Some(failure),
            }
        }
        self.barrier.wait();
        if thread > 0 || !alive {
            return;
        }
        let mut state = self.state();
        if let Some(failure) = state.failure.take() {
            state.records[nth].failure = Some(failure);
            return;
        }
        if let Some((ns, quality)) = judged(&state.parts) {
            let steady = threads == 1 || modes[0].is_some() && modes[0] == modes[1];
            let slice = Slice {
                round,
                ns,
                quality: match quality {
                    Quality::Clean if !steady => Quality::Unsteady,
                    quality => quality,
                },
                mode: modes[1],
            };
            state.records[nth].slices.push(slice);
        }
    }
}

/// A panic in a contestant's code is a failure of that contestant: the other threads must
/// still meet this one.
fn caught<T>(run: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let ran = std::panic::catch_unwind(AssertUnwindSafe(run));
    ran.unwrap_or_else(|what| {
        let text = what.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| what.downcast_ref::<&str>().copied());
        let why = text.unwrap_or("with no message");
        Err(Failure::new(format!("it panicked: {why}")))
    })
}

/// Whether others take part in a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Company {
    None,
    Others,
}

/// Warms up, and then runs for [`SLICE`]. So many ranges are outstanding.
fn timed(
    worker: &mut dyn Worker,
    at_once: &mut u32,
    outstanding: usize,
    company: Company,
) -> Result<Ran, Failure> {
    let mut now = Instant::now();
    let (begin, latest) = (now + WARM_UP, now + WARM_UP_MOST);
    let mut missing = 2 * outstanding as u64;
    while now < begin || missing > 0 && now < latest {
        let before = now;
        let ran = worker.run(*at_once)?;
        now = Instant::now();
        missing = missing.saturating_sub(u64::from(ran));
        let took = now.duration_since(before);
        if ran == *at_once && took < LOOK / 2 && *at_once < PAIRS {
            *at_once *= 2;
        } else if took > 2 * LOOK && *at_once > 1 {
            *at_once /= 2;
        }
    }
    let (queued_before, used_before) = (queued(), used());
    now = Instant::now();
    let start = now;
    let (mut end, mut pairs) = (start, 0u32);
    // a thread that lost the CPU meanwhile has not run for a slice yet
    let falls_short = |end: Instant| match end.duration_since(start) {
        long if long < SLICE => true,
        long if company == Company::None && long < SLICE_MOST => {
            used().saturating_sub(used_before) < SLICE
        }
        _ => false,
    };
    while falls_short(end) {
        pairs += worker.run(*at_once)?;
        end = Instant::now();
    }
    Ok(Ran {
        start,
        end,
        pairs,
        used: used().saturating_sub(used_before),
        queued: queued().saturating_sub(queued_before),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_slices_in_which_all_threads_ran_are_clean() {
        let zero = Instant::now();
        let ran = |from: u64, to: u64, queued: u64| Ran {
            start: zero + Duration::from_micros(from),
            end: zero + Duration::from_micros(to),
            pairs: 10,
            queued: Duration::from_micros(queued),
            used: Duration::from_micros((to - from) / 2),
        };
        let clean = |ns: f64| Some((ns, Quality::Clean));
        assert_eq!(judged(&[ran(0, 1000, 0), ran(0, 1000, 0)]), clean(1e5));
        assert_eq!(judged(&[ran(0, 1000, 9), ran(20, 1040, 0)]), clean(1.01e5));
        assert_eq!(judged(&[ran(0, 1000, 9)]), clean(5e4), "of CPU time");
        let apart = [ran(0, 1000, 0), ran(400, 1400, 0)];
        let after = [ran(0, 1000, 0), ran(1001, 2000, 0)];
        let queued = [ran(0, 1000, 400), ran(0, 1000, 0)];
        let quality = |slice: &[Ran]| judged(slice).unwrap().1;
        assert_eq!(quality(&apart), Quality::Apart);
        assert_eq!(quality(&after), Quality::Apart);
        assert_eq!(quality(&queued), Quality::Queued);
        assert_eq!(quality(&queued[..1]), Quality::Queued);
        let idle = Ran {
            pairs: 0,
            ..ran(0, 1000, 0)
        };
        assert_eq!(judged(&[idle]), None);
        assert_eq!(judged(&[]), None);
    }
}
