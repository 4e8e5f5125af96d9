// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! **macos**: unmap starts its invalidation and returns; whoever comes by later collects what is done (ATC'15 §3.4).
//!
//! Each thing stands in one queue, oldest first, with the invalidation that was started for it. Unmaps, maps and ticks look at the
//! first, and while it is done send home what it settles. The queue has room for `depth` things: an unmap that finds it full waits for the first's
//! invalidation, without the lock. An exhausted assigner drains all by one flush of the domain.
//!
//! Unlike Mac OS X, which as ATC'15 has it does not wait before it hands an IOVA out again, nothing goes home here before its own invalidation is done;
//! that is no choice of this file, but what [`Retired::settle`] asks for.
//!
//! Exposure: until the unit has done what was asked of it at the unmap, which takes the host no further call. It is bounded in unmaps too: `depth`
//! things later the first has been waited for. (What another CPU has started and not queued yet has not returned from its unmap.)
//!
//! A failure is found later than the unmap that it belongs to, as under a deferred policy: the unmap, tick or flush that finds it reports it,
//! and what it should have settled is quarantined. A map that comes upon one leaves it for them.

use super::{
    queue::{self, Item, Pushed, Queues, RetiredQueue},
    *,
};
use alloc::vec;

pub(crate) struct Outstanding<P: Platform, K: Copy + Send> {
    /// One.
    queues: Queues<P, Started<K>>,
    depth: u32,
}

impl<P: Platform, K: Copy + Send> Outstanding<P, K> {
    pub fn new(config: MacOsConfig) -> Self {
        let depth = config.limited().depth;
        let queue = RetiredQueue::new(depth as usize);
        Outstanding {
            queues: vec![CachePadded(queue)].into_boxed_slice(),
            depth,
        }
    }

    fn queue(&self) -> &RetiredQueue<P, Started<K>> {
        &self.queues[0].0
    }

    /// Starts one invalidation for `lot`, which it settles, and queues it.
    pub fn start<I: Invalidate<Token = K>>(
        &self,
        engine: &Engine<'_, P, I>,
        scope: Scope,
        lot: impl Iterator<Item = Retired<Resource>>,
    ) -> Result<(), Failed> {
        let started = match engine.start(scope) {
            Ok(started) => started,
            Err(failed) => {
                lot.for_each(|retired| engine.quarantine.put(retired));
                return Err(failed);
            }
        };
        let mut result = self.collect_or_quarantine(engine).map(drop);
        let home = engine.p.pinned(|cpu| cpu.index());
        for retired in lot {
            let mut item = Item {
                home,
                retired,
                beside: started,
            };
            while let Pushed::NoRoom(back) = self.queue().push(item, u32::MAX) {
                item = back;
                result = result.and(self.wait_for_first(engine));
            }
        }
        result
    }

    /// Sends home what is done, from the first on, at most `depth` things, as other CPUs may add what is done at once; returns how many.
    ///
    /// # Errors
    /// The unit says that the first will never be done; it stays where it is.
    pub fn collect<I: Invalidate<Token = K>>(
        &self,
        engine: &Engine<'_, P, I>,
    ) -> Result<usize, Failed> {
        let (mut home, most) = (0, self.depth as usize);
        while home < most {
            let Some(first) = self.queue().first() else {
                break;
            };
            let Some(completion) = engine.grace.poll(engine.unit, &first)? else {
                break;
            };
            home += match self.send_home(engine, &completion, most - home) {
                0 => break, // another CPU does it
                some => some,
            };
        }
        Ok(home)
    }

    /// The same, for those who report a failure.
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
        Ok(TickReport {
            invalidations: 0,
            drained: self.collect_or_quarantine(engine)? as u32,
        })
    }

    pub fn drain_all<I: Invalidate>(&self, engine: &Engine<'_, P, I>) -> Result<(), Failed> {
        queue::drain_all(&self.queues, engine)
    }

    pub fn retired(&self) -> Held {
        queue::held(&self.queues)
    }

    #[cold]
    fn wait_for_first<I: Invalidate<Token = K>>(
        &self,
        engine: &Engine<'_, P, I>,
    ) -> Result<(), Failed> {
        let Some(first) = self.queue().first() else {
            return Ok(()); // others have made room meanwhile
        };
        match engine
            .grace
            .wait(engine.p, engine.unit, first, engine.limit)
        {
            Ok(completion) => {
                self.send_home(engine, &completion, usize::MAX);
                Ok(())
            }
            Err(failed) => {
                self.give_up(engine, failed);
                Err(failed)
            }
        }
    }

    /// What stands first and was started with `completion`; others may have taken it home already.
    fn send_home<I: Invalidate<Token = K>>(
        &self,
        engine: &Engine<'_, P, I>,
        completion: &Completion,
        budget: usize,
    ) -> usize {
        let its = |item: &Item<Started<K>>| item.beside.seq() == completion.seq();
        self.queue().take_out(budget, its, |item| {
            engine.settle(item.home, item.retired, completion);
        })
    }

    fn give_up<I: Invalidate<Token = K>>(&self, engine: &Engine<'_, P, I>, failed: Failed) {
        let its = |item: &Item<Started<K>>| item.beside.seq() == failed.seq;
        self.queue().take_out(usize::MAX, its, |item| {
            engine.quarantine.put(item.retired);
        });
    }
}
