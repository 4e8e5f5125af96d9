// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What several unmaps retire under **strict**, where one invalidation completes all of it.
//!
//! A round has room for [`UNMAP_ROUND`] mappings and some tables that they detach, and allocates
//! nothing. Where tables beyond that are detached, what is there so far is completed first. As the
//! allocation of a mapping comes after its tables, no IOVA is free before every table of its range
//! has been flushed.
//!
//! A round that is dropped before [`Round::finish`] frees nothing: that is lost.
//!
//! Locking: none. Things are in the round of one call, and nothing else knows of them until they
//! are freed.

use super::{
    batch::{CpuResource, free_completed},
    *,
};

/// How many mappings one invalidation ends at most, where several are unmapped at once.
pub const UNMAP_ROUND: usize = 64;

/// With as many tables as 16 unmaps of 2 MiB detach.
pub(super) const ROOM: usize = UNMAP_ROUND + 16;

pub(crate) struct Round {
    together: Together<CpuResource, ROOM>,
    /// The CPU that frees go to.
    origin: CpuIndex,
    /// Mappings of which nothing was said yet.
    under_way: usize,
    outcome: RoundOutcome,
}

/// What became of the mappings of a round: the first `ended`, in the order in which they came, have
/// ended; of the `lost` that follow the invalidation failed.
#[derive(Clone, Copy, Default)]
pub(crate) struct RoundOutcome {
    pub ended: usize,
    pub lost: usize,
    pub failed: Option<Failed>,
}

impl Round {
    pub fn new(origin: CpuIndex) -> Self {
        Round {
            together: Together::new(),
            origin,
            under_way: 0,
            outcome: RoundOutcome::default(),
        }
    }

    /// Whether an invalidation has failed: no other mapping should be begun.
    pub fn has_failed(&self) -> bool {
        self.outcome.failed.is_some()
    }

    /// A frame that nothing points to any more: the entry that did is cleared and published. It was
    /// on the way to some of `pages`.
    pub fn add_frame<P: Platform, I: Invalidate>(
        &mut self,
        engine: &Engine<'_, P, I>,
        frame: TableFrame,
        pages: IovaRange,
    ) {
        self.add(
            engine,
            CpuResource::Frame(frame),
            pages,
            Caches::LeavesAndWalks,
        );
    }

    /// The allocation of a mapping comes last: all entries of its `pages` are cleared and
    /// published.
    #[inline(always)]
    pub fn end<P: Platform, I: Invalidate>(
        &mut self,
        engine: &Engine<'_, P, I>,
        alloc: IovaAlloc,
        pages: IovaRange,
        caches: Caches,
    ) {
        self.add(
            engine,
            CpuResource::alloc(self.origin, alloc),
            pages,
            caches,
        );
        self.under_way += 1;
    }

    /// A mapping of which nothing has to be invalidated. Where the invalidation of the others fails
    /// it counts as lost, too: it has its place among them, and of which it was nothing is kept.
    pub fn end_unflushed(&mut self) {
        self.under_way += 1;
    }

    /// Has pages invalidated of which nothing becomes free.
    pub fn also<P: Platform, I: Invalidate>(
        &mut self,
        engine: &Engine<'_, P, I>,
        pages: IovaRange,
    ) {
        if !self.together.also(pages, Caches::LeavesAndWalks) {
            self.complete(engine);
            self.together.also(pages, Caches::LeavesAndWalks);
        }
    }

    #[inline(always)]
    fn add<P: Platform, I: Invalidate>(
        &mut self,
        engine: &Engine<'_, P, I>,
        what: CpuResource,
        pages: IovaRange,
        caches: Caches,
    ) {
        if let Err(what) = self.together.add(what, pages, caches) {
            self.add_after_others(engine, what, pages, caches);
        }
    }

    #[cold]
    #[inline(never)]
    fn add_after_others<P: Platform, I: Invalidate>(
        &mut self,
        engine: &Engine<'_, P, I>,
        what: CpuResource,
        pages: IovaRange,
        caches: Caches,
    ) {
        self.complete(engine);
        let added = self.together.add(what, pages, caches);
        debug_assert!(added.is_ok(), "all is empty");
    }

    /// Asks for the invalidation that completes what is left, and does not wait for it.
    pub fn start<P: Platform, I: Invalidate>(
        mut self,
        engine: &Engine<'_, P, I>,
    ) -> PendingRound<I::Token> {
        if self.has_failed() || self.together.is_empty() {
            return PendingRound::over(self.finish(engine));
        }
        let Round {
            together,
            under_way: mappings,
            outcome,
            ..
        } = self;
        PendingRound::start(engine, together, mappings, outcome)
    }

    /// Completes what is left.
    pub fn finish<P: Platform, I: Invalidate>(
        &mut self,
        engine: &Engine<'_, P, I>,
    ) -> RoundOutcome {
        self.complete(engine);
        self.outcome
    }

    fn complete<P: Platform, I: Invalidate>(&mut self, engine: &Engine<'_, P, I>) {
        let mappings = core::mem::take(&mut self.under_way);
        let flushed = match self.outcome.failed {
            // caches may hold anything of what was cleared before: the rest of it follows
            Some(failed) => Err(failed),
            None if self.together.is_empty() => Ok(()),
            None => engine.flush_together(&mut self.together),
        };
        match flushed {
            Ok(()) => self.outcome.ended += mappings,
            Err(failed) => {
                engine.give_up(self.together.give_up());
                self.outcome.lost += mappings;
                self.outcome.failed = Some(failed);
            }
        }
    }
}

impl<P: Platform, I: Invalidate> Engine<'_, P, I> {
    /// Flushes all that is in `together` by one invalidation, and frees it.
    ///
    /// # Errors
    /// The invalidation failed; the things stay where they are.
    fn flush_together<const N: usize>(
        &self,
        together: &mut Together<CpuResource, N>,
    ) -> Result<(), Failed> {
        let patience = self.patience();
        let (p, sequence) = (self.p, self.sequence);
        let mut flushed = sequence.flush_together(p, self.unit, self.id, together, &patience)?;
        free_completed(self, || flushed.next());
        Ok(())
    }

    /// Quarantines what was waiting for an invalidation that failed.
    #[cold]
    pub(super) fn give_up(&self, things: impl Iterator<Item = CpuResource>) {
        let mut held = Held::default();
        things.for_each(|what| what.add_to(&mut held));
        self.quarantine.lose(held);
    }
}
