// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! **macos**: unmap starts its invalidation and returns; calls that come by later collect what is
//! done (ATC'15 §3.4).
//!
//! Each thing stands in one queue, oldest first, with the invalidation that was started for it.
//! Unmaps, maps and ticks look at the first, and while it is done free what it completes. The queue
//! has room for `depth` things: an unmap that finds it full waits for the first's invalidation,
//! without the lock. An exhausted allocator drains all by one flush of the domain.
//!
//! **One CPU collects at a time**, behind a gate; a call that comes by meanwhile leaves it to that
//! CPU, and one that needs room waits before the gate. Else every CPU looks at the same first
//! thing, all but one find it gone when they have the lock again, and on 16 CPUs they do little
//! else. Ticks go through. No correctness rests on the gate: while the CPU that closed it is off
//! its core, things are only freed later.
//!
//! Unlike Mac OS X, which as ATC'15 has it does not wait before it hands an IOVA out again, nothing
//! is freed here before its own invalidation is done; that is no choice of this file, but what
//! [`Retired::complete`] asks for.
//!
//! Exposure: until the unit has done what was asked of it at the unmap, which takes the host no
//! further call ([`Invalidate::submit_unattended`]). It is bounded in unmaps too: `depth` things
//! later the first has been waited for. (What another CPU has started and not queued yet has not
//! returned from its unmap.)
//!
//! A failure is found later than the unmap that it belongs to, as under a deferred policy: the
//! unmap, tick or flush that finds it reports it, and what it should have completed is quarantined.
//! A map that comes upon one leaves it for them.

use super::{
    gate::{Gate, Waited},
    queue::{self, Item, Queues, RetiredQueue},
    *,
};
use alloc::vec;

/// For how many things there is always room: one that finds no more waits for the first of them.
const FIRST_ROOM: usize = 8;

/// Things that are looked at under one acquisition of the lock.
const LOOKED_AT: usize = 8;

pub(crate) struct Outstanding<P: Platform, K: Copy + Send> {
    /// One queue, of all CPUs.
    queues: Queues<P, Started<K>>,
    /// Closed while one CPU collects.
    collecting: Gate<P>,
    depth: u32,
}

impl<P: Platform, K: Copy + Send> Outstanding<P, K> {
    pub fn new(config: MacOsConfig) -> Self {
        let depth = config.limited().depth;
        let queue = RetiredQueue::new(FIRST_ROOM, depth as usize);
        Outstanding {
            queues: vec![CachePadded(queue)].into_boxed_slice(),
            collecting: Gate::new(),
            depth,
        }
    }

    /// Gives memory back in which nothing is kept.
    pub fn shrink(&self) {
        self.queue().shrink(FIRST_ROOM.min(self.depth as usize));
    }

    fn queue(&self) -> &RetiredQueue<P, Started<K>> {
        &self.queues[0].0
    }

    /// Starts one invalidation for `batch`, which it completes, and queues it.
    pub fn start<I: Invalidate<Token = K>>(
        &self,
        engine: &Engine<'_, P, I>,
        scope: Scope,
        batch: impl Iterator<Item = Retired<Resource>>,
    ) -> Result<(), Failed> {
        let started = match engine.start(scope) {
            Ok(started) => started,
            Err(failed) => {
                batch.for_each(|retired| engine.quarantine.put(retired));
                return Err(failed);
            }
        };
        let mut result = self.collect_or_quarantine(engine).map(drop);
        let origin = engine.p.pinned(|cpu| cpu.index());
        for retired in batch {
            let mut item = Item {
                origin,
                retired,
                beside: started,
            };
            while let Err(back) = self.queue().push(item) {
                item = back;
                result = result.and(self.make_room(engine, origin));
            }
        }
        result
    }

    /// Frees what is done, from the first on, at most `depth` things, as other CPUs may add what is
    /// done at once; returns how many: 0 if another CPU is at it.
    ///
    /// # Errors
    /// The unit says that the first will never be done; it stays where it is.
    pub fn collect<I: Invalidate<Token = K>>(
        &self,
        engine: &Engine<'_, P, I>,
    ) -> Result<usize, Failed> {
        if !self.collecting.is_open() {
            return Ok(0);
        }
        let cpu = engine.p.pinned(|cpu| cpu.index());
        match self.collecting.try_close(cpu) {
            Some(_closed) => self.free_done(engine),
            None => Ok(0),
        }
    }

    fn free_done<I: Invalidate<Token = K>>(
        &self,
        engine: &Engine<'_, P, I>,
    ) -> Result<usize, Failed> {
        let (mut origin, most) = (0, self.depth as usize);
        while origin < most {
            let firsts: [Option<Started<K>>; LOOKED_AT] = self.queue().firsts();
            let mut completions = [const { None }; LOOKED_AT];
            let mut done = 0;
            for first in firsts.iter().flatten() {
                match engine.sequence.poll(engine.unit, first) {
                    Ok(Some(completion)) => completions[done] = Some(completion),
                    Ok(None) => break,
                    // those before it are freed, and then it is the first
                    Err(_) if done > 0 => break,
                    Err(failed) => return Err(failed),
                }
                done += 1;
            }
            origin += match self.free_completed(
                engine,
                &completions[..done],
                (most - origin).min(done),
            ) {
                0 => break, // nothing is done, or an interrupt that came between does it
                some => some,
            };
        }
        Ok(origin)
    }

    /// The same, for callers that report a failure.
    pub fn collect_or_quarantine<I: Invalidate<Token = K>>(
        &self,
        engine: &Engine<'_, P, I>,
    ) -> Result<usize, Failed> {
        self.collect(engine)
            .inspect_err(|failed| self.give_up(engine, *failed))
    }

    pub fn tick<I: Invalidate<Token = K>>(
        &self,
        engine: &Engine<'_, P, I>,
    ) -> Result<TickReport, Failed> {
        // Whatever ticks need not be a CPU that could close the gate; and what the one that did
        // leaves lying is found by it.
        let drained = self.free_done(engine);
        let drained = drained.inspect_err(|failed| self.give_up(engine, *failed))?;
        Ok(TickReport {
            drained: drained as u32,
            ..TickReport::default()
        })
    }

    pub fn drain_all<I: Invalidate>(&self, engine: &Engine<'_, P, I>) -> Result<(), Failed> {
        queue::drain_all(&self.queues, engine)
    }

    pub fn retired(&self) -> Held {
        queue::held(&self.queues)
    }

    /// Waits until some has left the queue: freed by the CPU that collects, or by this
    /// one if none does.
    #[cold]
    fn make_room<I: Invalidate<Token = K>>(
        &self,
        engine: &Engine<'_, P, I>,
        cpu: CpuIndex,
    ) -> Result<(), Failed> {
        let closed = self.collecting.try_close(cpu);
        if closed.is_none() && self.collecting.wait(engine.p, cpu) == Waited::UntilOpen {
            return Ok(());
        }
        let Some(first) = self.queue().first() else {
            return Ok(()); // others have made room meanwhile
        };
        match engine.wait(first) {
            Ok(completion) => {
                self.free_completed(engine, &[Some(completion)], usize::MAX);
                self.free_done(engine).map(drop)
            }
            Err(failed) => Err(failed),
        }
        .inspect_err(|failed| self.give_up(engine, *failed))
    }

    /// At most `budget` things from the first on that were started with one of `completions`;
    /// others may have freed them already.
    fn free_completed<I: Invalidate<Token = K>>(
        &self,
        engine: &Engine<'_, P, I>,
        completions: &[Option<Completion>],
        budget: usize,
    ) -> usize {
        if budget == 0 {
            return 0;
        }
        let its = |item: &Item<Started<K>>| {
            let of = |done: &&Completion| done.seq() == item.beside.seq();
            completions.iter().flatten().find(of)
        };
        self.queue().take_out(
            budget,
            |item| its(item).is_some(),
            |item| match its(&item) {
                Some(completion) => engine.complete(item.origin, item.retired, completion),
                None => unreachable!("taken out for its completion"),
            },
        )
    }

    fn give_up<I: Invalidate<Token = K>>(&self, engine: &Engine<'_, P, I>, failed: Failed) {
        let its = |item: &Item<Started<K>>| item.beside.seq() == failed.seq;
        self.queue().take_out(usize::MAX, its, |item| {
            engine.quarantine.put(item.retired);
        });
    }
}
