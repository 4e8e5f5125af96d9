// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Deferred per CPU: "batching invalidation requests locally on each core instead of globally" (ATC'15 §5).
//!
//! Each CPU has a queue of retired things, oldest first. The `batch`-th thing since the last start makes its CPU
//! start one domain-wide invalidation, wait for it, and drain its own queue as far as the completion settles it. Things
//! leave from the front, so a queue drains in order and nothing is allocated: a queue has room for two batches,
//! and a CPU that finds it full (unmaps nested in interrupts while it waits) flushes for itself.
//!
//! [`Deferred::tick`] flushes once for all queues when `window` has passed, then drains at most
//! [`DeferredConfig::tick_budget`] things, and goes on in the next tick: a flush timer that freed every CPU's
//! queue at one go has stalled machines. What it drains goes home to the CPU that unmapped it.
//!
//! Exposure: a thing is flushed by its own CPU's `batch`-th unmap after it at the latest, or by the first tick that is
//! `window` after the last one that flushed; that is, `window` plus the host's tick interval plus one invalidation.

use super::*;
use alloc::collections::VecDeque;

/// The bounds of the deferred policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeferredConfig {
    /// Things retired on one CPU that start an invalidation. 1 to [`MAX_BATCH`]; other numbers are brought to the nearer end.
    pub batch: u32,
    /// Time after which a tick starts one.
    pub window: TimeNs,
    /// Things drained by one tick, at most. At least 1.
    pub tick_budget: u32,
}

impl Default for DeferredConfig {
    /// Linux's and ATC'15's: 250 requests or 10 ms.
    fn default() -> Self {
        DeferredConfig {
            batch: 250,
            window: TimeNs(10_000_000),
            tick_budget: 256,
        }
    }
}

/// The largest batch: queues are allocated whole, for two batches a CPU.
pub const MAX_BATCH: u32 = 1 << 16;

/// What one tick did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TickReport {
    /// Invalidations started: 0 or 1.
    pub invalidations: u32,
    /// Things that went home.
    pub drained: u32,
}

pub(crate) struct Deferred<P: Platform> {
    queues: PerCpu<P::Lock<Queue>>,
    timer: P::Lock<Timer>,
    config: DeferredConfig,
}

struct Queue {
    items: VecDeque<Retired<Resource>>,
    since_start: u32,
    room: usize,
    /// Taken out, and not home yet.
    in_transit: usize,
}

/// Between ticks. `busy` keeps a second ticker out while the first waits without the lock.
struct Timer {
    due: TimeNs,
    completion: Option<Completion>,
    next_queue: usize,
    busy: bool,
}

enum Pushed {
    Queued,
    BatchFull,
    NoRoom(Retired<Resource>),
}

impl Queue {
    fn push(&mut self, item: Retired<Resource>, batch: u32) -> Pushed {
        if self.items.len() == self.room {
            return Pushed::NoRoom(item);
        }
        self.items.push_back(item);
        self.since_start += 1;
        if self.since_start < batch {
            return Pushed::Queued;
        }
        self.since_start = 0;
        Pushed::BatchFull
    }

    /// Takes up to a handful of things from the front that were stamped no later than `seq`. `home` of an earlier handful are home now.
    fn pop_through(&mut self, seq: Seq, most: usize, home: usize) -> Handful {
        self.in_transit -= home;
        let mut handful = [const { None }; HANDFUL];
        for place in handful.iter_mut().take(most) {
            if self.items.front().is_none_or(|item| item.seq() > seq) {
                break;
            }
            *place = self.items.pop_front();
            self.in_transit += 1;
        }
        // what a tick or another CPU's flush took home needs no start any more
        self.since_start = self.since_start.min(self.items.len() as u32);
        handful
    }
}

/// Things taken out under the lock at a time, to be released without it.
const HANDFUL: usize = 16;
type Handful = [Option<Retired<Resource>>; HANDFUL];

/// Turns to wait for other CPUs' handfuls. One is home within microseconds.
const TRANSIT_TURNS: u32 = 4096;

impl<P: Platform> Deferred<P> {
    pub fn new(p: &P, config: DeferredConfig) -> Self {
        let batch = config.batch.clamp(1, MAX_BATCH);
        let room = 2 * batch as usize;
        Deferred {
            queues: PerCpu::new(p, || {
                Lock::new(Queue {
                    items: VecDeque::with_capacity(room),
                    since_start: 0,
                    room,
                    in_transit: 0,
                })
            }),
            timer: Lock::new(Timer {
                due: TimeNs(0),
                completion: None,
                next_queue: 0,
                busy: false,
            }),
            config: DeferredConfig {
                batch,
                tick_budget: config.tick_budget.max(1),
                ..config
            },
        }
    }

    #[inline]
    pub fn push<I: Invalidate>(
        &self,
        engine: &Engine<'_, P, I>,
        mut item: Retired<Resource>,
    ) -> Result<(), Failed> {
        loop {
            let (home, pushed) = engine.p.pinned(|cpu| {
                let queue = self.queues.get(&cpu);
                (cpu.index(), queue.with(|q| q.push(item, self.config.batch)))
            });
            match pushed {
                Pushed::Queued => return Ok(()),
                Pushed::BatchFull => return self.flush_queue(engine, home),
                Pushed::NoRoom(back) => {
                    if let Err(failed) = self.flush_queue(engine, home) {
                        engine.quarantine.put(back);
                        return Err(failed);
                    }
                    item = back;
                }
            }
        }
    }

    #[cold]
    fn flush_queue<I: Invalidate>(
        &self,
        engine: &Engine<'_, P, I>,
        home: CpuIndex,
    ) -> Result<(), Failed> {
        match engine.flush(Scope::DOMAIN) {
            Ok(completion) => {
                self.drain(engine, home, &completion, usize::MAX);
                Ok(())
            }
            Err(failed) => {
                self.quarantine(engine, home, failed.seq);
                Err(failed)
            }
        }
    }

    /// Sends home what `completion` settles of one queue, at most `budget` things; returns how many.
    fn drain<I: Invalidate>(
        &self,
        engine: &Engine<'_, P, I>,
        home: CpuIndex,
        completion: &Completion,
        budget: usize,
    ) -> usize {
        self.take_out(home, completion.seq(), budget, |retired| {
            engine.settle(home, retired, completion);
        })
    }

    fn quarantine<I: Invalidate>(&self, engine: &Engine<'_, P, I>, home: CpuIndex, seq: Seq) {
        self.take_out(home, seq, usize::MAX, |retired| {
            engine.quarantine.put(retired);
        });
    }

    /// Takes things stamped no later than `seq` out of a queue, a handful at a time, and gives them to `each` without the lock.
    fn take_out(
        &self,
        home: CpuIndex,
        seq: Seq,
        budget: usize,
        mut each: impl FnMut(Retired<Resource>),
    ) -> usize {
        let (mut taken, mut last) = (0, 0);
        loop {
            let queue = self.queues.at(home);
            let handful = queue.with(|q| q.pop_through(seq, budget - taken, last));
            last = handful.into_iter().flatten().map(&mut each).count();
            if last == 0 {
                return taken;
            }
            taken += last;
        }
    }

    pub fn drain_all<I: Invalidate>(&self, engine: &Engine<'_, P, I>) -> Result<(), Failed> {
        if self.is_empty() {
            self.await_transit(engine.p);
            return Ok(());
        }
        let flushed = engine.flush(Scope::DOMAIN);
        for (home, _) in self.queues.iter() {
            match &flushed {
                Ok(completion) => {
                    self.drain(engine, home, completion, usize::MAX);
                }
                Err(failed) => self.quarantine(engine, home, failed.seq),
            }
        }
        self.await_transit(engine.p);
        flushed.map(drop)
    }

    /// Waits until what others have taken out of the queues is home, or the caller would find IOVAs missing that are
    /// as good as free. The bound is for a caller in an interrupt that hit such a drain on its own CPU.
    fn await_transit(&self, p: &P) {
        for _ in 0..TRANSIT_TURNS {
            let mut queues = self.queues.iter();
            if queues.all(|(_, q)| q.with(|q| q.in_transit == 0)) {
                return;
            }
            p.relax();
        }
    }

    fn is_empty(&self) -> bool {
        self.queues
            .iter()
            .all(|(_, q)| q.with(|q| q.items.is_empty()))
    }

    /// Bounded work of the host's timer. `now` may come from any monotonic clock.
    pub fn tick<I: Invalidate>(
        &self,
        engine: &Engine<'_, P, I>,
        now: TimeNs,
    ) -> Result<TickReport, Failed> {
        let mut report = TickReport::default();
        let begun = self.timer.with(|t| {
            if t.busy {
                return None;
            }
            t.busy = true;
            Some((now >= t.due, t.completion.take(), t.next_queue))
        });
        let Some((due, mut completion, mut next_queue)) = begun else {
            return Ok(report); // the other ticker does it
        };
        let mut failed = None;
        if due && !self.is_empty() {
            report.invalidations = 1;
            match engine.flush(Scope::DOMAIN) {
                Ok(fresh) => completion = Some(fresh),
                Err(error) => {
                    failed = Some(error);
                    for (home, _) in self.queues.iter() {
                        self.quarantine(engine, home, error.seq);
                    }
                }
            }
        }
        let mut left = self.config.tick_budget as usize;
        if let Some(proof) = completion {
            for _ in 0..self.queues.cpus() {
                let home = CpuIndex(next_queue % self.queues.cpus());
                left -= self.drain(engine, home, &proof, left);
                if left == 0 {
                    break; // this queue first in the next tick
                }
                next_queue = home.0 + 1;
            }
            if left > 0 {
                completion = None; // everything it settles is home
            }
        }
        report.drained = self.config.tick_budget - left as u32;
        self.timer.with(|t| {
            if due {
                t.due = TimeNs(now.0.saturating_add(self.config.window.0));
            }
            (t.completion, t.next_queue, t.busy) = (completion, next_queue, false);
        });
        failed.map_or(Ok(report), Err)
    }

    pub fn retired(&self) -> Held {
        let mut held = Held::default();
        for (_, queue) in self.queues.iter() {
            queue.with(|q| q.items.iter().for_each(|item| held.add(item.get())));
        }
        held
    }
}
