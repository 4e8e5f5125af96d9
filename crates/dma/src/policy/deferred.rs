// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Deferred: retired things are queued, and one domain-wide invalidation completes many.
//!
//! Two designs differ in what shares a queue: **deferred-percpu**, "batching invalidation requests
//! locally on each core instead of globally" (ATC'15 §5), has one a CPU; **deferred-global**, Linux
//! 3.17's (ATC'15 §3.2), has one for all. Its lock is what all contend for, and while one CPU
//! flushes and frees, all others wait before the queue's gate, as they do for Linux 3.17's lock.
//!
//! Things stand in a queue oldest first. The `batch`-th thing since the last start makes its CPU
//! start one domain-wide invalidation, wait for it, and drain that queue as far as the completion
//! completes it. Things leave from the front, so a queue drains in order and nothing is allocated:
//! a queue has room for two batches once it was used so far, and a CPU that finds it full (other
//! CPUs' unmaps, or unmaps nested in interrupts, while one waits) flushes for itself, as does one
//! for whose queue the heap has no memory.
//!
//! [`Deferred::tick`] flushes once for all queues when `window` has passed, then drains at most
//! [`DeferredConfig::tick_budget`] things, and goes on in the next tick: a flush timer that freed
//! every CPU's queue at one go has stalled machines. What it drains returns to the CPU that
//! unmapped it.
//!
//! Exposure: a thing is flushed by its queue's `batch`-th thing after it at the latest, or by the
//! first tick that is `window` after the last one that flushed; that is, `window` plus the host's
//! tick interval plus one invalidation. The CPU of the `batch`-th thing may be held up before it
//! starts; then others put a second batch behind the first, and no more, since an unmap that finds
//! no room must flush before it returns.

use super::{
    batch::{BatchQueue, CpuResource, Growth, NotQueued, Queued},
    gate::Gate,
    queue::{self, Drained},
    switch::Switch,
    *,
};

/// The largest batch: queues have room for two batches each.
pub const MAX_BATCH: u32 = 1 << 16;

/// What one tick did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TickReport {
    /// Invalidations started: 0 or 1.
    pub invalidations: u32,
    /// Things that were freed.
    pub drained: u32,
    /// Emptied tables that were freed ([`Domain::reclaim_tables`]), by an invalidation that is not
    /// counted here.
    ///
    /// [`Domain::reclaim_tables`]: crate::domain::Domain::reclaim_tables
    pub tables: u32,
}

/// Which CPUs share a queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// None: each CPU has its own.
    PerCpu,
    /// All CPUs share one.
    Global,
}

pub(crate) struct Deferred<P: Platform> {
    /// One a CPU, or one.
    queues: Box<[CachePadded<BatchQueue<P>>]>,
    /// Of the queue that all share.
    gate: Option<Gate<P>>,
    timer: P::Lock<Timer>,
    config: DeferredConfig,
    pub(super) switch: Switch<P>,
}

/// Between ticks. `busy` keeps a second ticker out while the first waits without the lock.
struct Timer {
    due: TimeNs,
    completion: Option<Completion>,
    next_queue: usize,
    busy: bool,
}

impl<P: Platform> Deferred<P> {
    pub fn new(p: &P, config: DeferredConfig, sharing: Sharing, key: DomainKey) -> Self {
        let config = config.limited();
        let queues = match sharing {
            Sharing::PerCpu => p.cpus(),
            Sharing::Global => 1,
        };
        let queue = |_| CachePadded(BatchQueue::new(key, config.batch));
        Deferred {
            queues: (0..queues).map(queue).collect(),
            gate: (sharing == Sharing::Global).then(Gate::new),
            timer: Lock::new(Timer {
                due: TimeNs(0),
                completion: None,
                next_queue: 0,
                busy: false,
            }),
            config,
            switch: Switch::new(),
        }
    }

    pub(super) fn queues(&self) -> &[CachePadded<BatchQueue<P>>] {
        &self.queues
    }

    /// The queue of a CPU: its own, or the only one.
    #[inline]
    fn queue_of(&self, cpu: CpuIndex) -> &BatchQueue<P> {
        match self.queues.get(cpu.0) {
            Some(queue) => &queue.0,
            None => &self.queues[0].0,
        }
    }

    /// Queues what `retire` retires for this CPU, where that calls nothing;
    /// else nothing has happened.
    #[inline(always)]
    pub fn push_fast(
        &self,
        cpu: &Cpu<'_>,
        retire: impl FnOnce() -> Option<Retired<CpuResource>>,
    ) -> Option<Queued> {
        let origin = cpu.index();
        let queue = match &self.gate {
            None => self.queues.get(origin.0)?,
            Some(gate) if gate.lets_in(origin) => self.queues.first()?,
            Some(_) => return None,
        };
        queue.0.try_push(retire)?.ok()
    }

    /// Retires `what`, whose entries the caller has just cleared, and queues it.
    pub fn push<I: Invalidate>(
        &self,
        engine: &Engine<'_, P, I>,
        what: Resource,
        need: Scope,
    ) -> Result<(), Failed> {
        let mut what = Some(what);
        let (origin, failed) = loop {
            if let Some(gate) = &self.gate {
                gate.wait(engine.p, engine.p.pinned(|cpu| cpu.index()));
            }
            let (origin, pushed) = engine.p.pinned(|cpu| {
                let origin = cpu.index();
                let queue = self.queue_of(origin);
                let retire = || {
                    let what = CpuResource::new(origin, what.take()?);
                    Some(engine.sequence.retire(engine.p, what, need))
                };
                (origin, queue.push(retire))
            });
            match pushed {
                Ok(Queued::Waits) | Err(NotQueued::Declined) => return Ok(()),
                Ok(Queued::BatchFull) => return self.flush_batch(engine, origin),
                // closed before its lock was taken, so the switch says so; if it has been opened
                // since, to flush for itself is not needed, and no harm
                Err(NotQueued::Full) if self.switch.is_closed() => break (origin, None),
                Err(NotQueued::Full) => match self.queue_of(origin).grow() {
                    Growth::Grown => {}
                    Growth::NoMemory => break (origin, None),
                    Growth::Largest => {
                        if let Err(failed) = self.flush_batch(engine, origin) {
                            break (origin, Some(failed));
                        }
                    }
                },
            }
        };
        match what {
            Some(what) => self.without_place(engine, origin, what, need, failed),
            None => failed.map_or(Ok(()), Err), // never: nothing has taken it
        }
    }

    /// Where a queue that is closed, or has no memory, had no place for `what`, it is flushed at
    /// once; where an invalidation `failed` that was to make room, it is as lost as what stood in
    /// the queue, since it is stamped after it.
    #[cold]
    #[inline(never)]
    fn without_place<I: Invalidate>(
        &self,
        engine: &Engine<'_, P, I>,
        origin: CpuIndex,
        what: Resource,
        need: Scope,
        failed: Option<Failed>,
    ) -> Result<(), Failed> {
        let retired = engine.sequence.retire(engine.p, what, need);
        match failed {
            None => self.flush_with(engine, origin, retired),
            Some(failed) => {
                engine.quarantine.put(retired);
                Err(failed)
            }
        }
    }

    /// Flushes, and drains the queue of CPU `origin`.
    pub fn flush_batch<I: Invalidate>(
        &self,
        engine: &Engine<'_, P, I>,
        origin: CpuIndex,
    ) -> Result<(), Failed> {
        let queue = self.queue_of(origin);
        let _closed = self.gate.as_ref().map(|gate| gate.close(engine.p, origin));
        let flushed = engine.flush(Scope::DOMAIN);
        match &flushed {
            Ok(completion) => queue.complete_all(engine, completion),
            Err(failed) => queue.quarantine(engine, *failed),
        }
        flushed.map(drop)
    }

    /// Flushes the domain for `retired`, for which a queue had no place, and frees it. With
    /// it goes what was queued before: a switch that is held up lengthens no window.
    #[cold]
    fn flush_with<I: Invalidate>(
        &self,
        engine: &Engine<'_, P, I>,
        origin: CpuIndex,
        retired: Retired<Resource>,
    ) -> Result<(), Failed> {
        let queue = self.queue_of(origin);
        let flushed = engine.flush(Scope::DOMAIN);
        match &flushed {
            Ok(completion) => {
                queue.complete_all(engine, completion);
                engine.complete(origin, retired, completion);
            }
            Err(failed) => {
                queue.quarantine(engine, *failed);
                engine.quarantine.put(retired);
            }
        }
        flushed.map(drop)
    }

    pub fn drain_all<I: Invalidate>(&self, engine: &Engine<'_, P, I>) -> Result<(), Failed> {
        queue::drain_all(&self.queues, engine)
    }

    /// Gives the memory of empty queues back.
    pub fn shrink(&self) {
        self.queues.iter().for_each(|queue| queue.0.shrink());
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
        if let Some(proof) = completion.as_ref().and_then(Completion::whole) {
            for _ in 0..self.queues.len() {
                let at = next_queue % self.queues.len();
                left -= self.queues[at].0.complete(engine, &proof, left);
                if left == 0 {
                    break; // this queue first in the next tick
                }
                next_queue = at + 1;
            }
            if left > 0 {
                completion = None; // everything it completes is freed
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
