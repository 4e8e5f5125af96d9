// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Deferred: retired things are queued, and one domain-wide invalidation settles many.
//!
//! Two designs differ in who shares a queue: **deferred-percpu**, "batching invalidation requests locally on each core instead of
//! globally" (ATC'15 §5), has one a CPU; **deferred-global**, Linux 3.17's (ATC'15 §3.2), has one for all, and its lock is what all
//! contend for. Unlike Linux 3.17, nobody waits for the invalidation, or gives IOVAs back, with that lock held.
//!
//! Things stand in a queue oldest first. The `batch`-th thing since the last start makes its CPU
//! start one domain-wide invalidation, wait for it, and drain that queue as far as the completion settles it. Things
//! leave from the front, so a queue drains in order and nothing is allocated: a queue has room for two batches,
//! and a CPU that finds it full (other CPUs' unmaps, or unmaps nested in interrupts, while one waits) flushes for itself.
//!
//! [`Deferred::tick`] flushes once for all queues when `window` has passed, then drains at most
//! [`DeferredConfig::tick_budget`] things, and goes on in the next tick: a flush timer that freed every CPU's
//! queue at one go has stalled machines. What it drains goes home to the CPU that unmapped it.
//!
//! Exposure: a thing is flushed by its queue's `batch`-th thing after it at the latest, or by the first tick that is
//! `window` after the last one that flushed; that is, `window` plus the host's tick interval plus one invalidation.
//! The CPU of the `batch`-th thing may be held up before it starts; then others put a second batch behind the first, and no more, since
//! who finds no room must flush before its unmap returns.

use super::{
    queue::{self, Item, Pushed, Queues, RetiredQueue},
    *,
};

/// The largest batch: queues are allocated whole, for two batches each.
pub const MAX_BATCH: u32 = 1 << 16;

/// What one tick did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TickReport {
    /// Invalidations started: 0 or 1.
    pub invalidations: u32,
    /// Things that went home.
    pub drained: u32,
}

/// Who shares a queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// Nobody: each CPU has its own.
    PerCpu,
    /// All CPUs.
    Global,
}

pub(crate) struct Deferred<P: Platform> {
    /// One a CPU, or one.
    queues: Queues<P, ()>,
    timer: P::Lock<Timer>,
    config: DeferredConfig,
}

/// Between ticks. `busy` keeps a second ticker out while the first waits without the lock.
struct Timer {
    due: TimeNs,
    completion: Option<Completion>,
    next_queue: usize,
    busy: bool,
}

impl<P: Platform> Deferred<P> {
    pub fn new(p: &P, config: DeferredConfig, sharing: Sharing) -> Self {
        let config = config.limited();
        let queues = match sharing {
            Sharing::PerCpu => p.cpus(),
            Sharing::Global => 1,
        };
        let room = 2 * config.batch as usize;
        let queue = |_| CachePadded(RetiredQueue::new(room));
        Deferred {
            queues: (0..queues).map(queue).collect(),
            timer: Lock::new(Timer {
                due: TimeNs(0),
                completion: None,
                next_queue: 0,
                busy: false,
            }),
            config,
        }
    }

    /// The queue of a CPU: its own, or the only one.
    #[inline]
    fn queue_of(&self, cpu: CpuIndex) -> &RetiredQueue<P, ()> {
        &self.queues[cpu.0.min(self.queues.len() - 1)].0
    }

    #[inline]
    pub fn push<I: Invalidate>(
        &self,
        engine: &Engine<'_, P, I>,
        mut retired: Retired<Resource>,
    ) -> Result<(), Failed> {
        loop {
            let (home, pushed) = engine.p.pinned(|cpu| {
                let home = cpu.index();
                let item = Item {
                    home,
                    retired,
                    beside: (),
                };
                (home, self.queue_of(home).push(item, self.config.batch))
            });
            let queue = self.queue_of(home);
            match pushed {
                Pushed::Queued => return Ok(()),
                Pushed::BatchFull => return flush_queue(engine, queue),
                Pushed::NoRoom(back) => {
                    if let Err(failed) = flush_queue(engine, queue) {
                        engine.quarantine.put(back.retired);
                        return Err(failed);
                    }
                    retired = back.retired;
                }
            }
        }
    }

    pub fn drain_all<I: Invalidate>(&self, engine: &Engine<'_, P, I>) -> Result<(), Failed> {
        queue::drain_all(&self.queues, engine)
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
        if due && !queue::all_empty(&self.queues) {
            report.invalidations = 1;
            match engine.flush(Scope::DOMAIN) {
                Ok(fresh) => completion = Some(fresh),
                Err(error) => {
                    failed = Some(error);
                    let queues = self.queues.iter();
                    queues.for_each(|queue| queue.0.quarantine(engine, error));
                }
            }
        }
        let mut left = self.config.tick_budget as usize;
        if let Some(proof) = completion {
            for _ in 0..self.queues.len() {
                let at = next_queue % self.queues.len();
                left -= self.queues[at].0.settle(engine, &proof, left);
                if left == 0 {
                    break; // this queue first in the next tick
                }
                next_queue = at + 1;
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
        queue::held(&self.queues)
    }
}

#[cold]
fn flush_queue<P: Platform, I: Invalidate>(
    engine: &Engine<'_, P, I>,
    queue: &RetiredQueue<P, ()>,
) -> Result<(), Failed> {
    match engine.flush(Scope::DOMAIN) {
        Ok(completion) => {
            queue.settle(engine, &completion, usize::MAX);
            Ok(())
        }
        Err(failed) => {
            queue.quarantine(engine, failed);
            Err(failed)
        }
    }
}
