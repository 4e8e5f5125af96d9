// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What one unmap retires, where an invalidation of just its pages completes it.
//!
//! **strict** and **freebsd** wait for it: unmap returns when it is done. **macos** has it started
//! and hands the things to [`Outstanding`]. **solaris** does without, for what its [`RetiredCache`]
//! keeps; the rest it does as strict.
//!
//! An unmap that detaches many tables completes them in batches of [`BATCH_MAX`], so that nothing
//! is allocated. The allocation is always in the last batch: no IOVA is free before every table of
//! its range has been flushed.

use super::*;

/// Things retired before one flush. An unmap of up to 8 MiB detaches at most four
/// tables, and flushes once.
const BATCH_MAX: usize = 8;

/// How a batch is completed.
pub(crate) enum Way<'a, P: Platform, K: Copy + Send> {
    /// By one invalidation, waited for.
    Whole,
    /// By one for each page, each waited for; batches before the last, of tables only, as `Whole`.
    PageByPage,
    /// By one that is not waited for.
    Queued(&'a Outstanding<P, K>),
    /// At the next map of the range, if the cache keeps it; else as `Whole`.
    AtMap(&'a RetiredCache<P>),
}

/// What of one unmap a batch brings to its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Completed {
    /// The tables so far.
    SoFar,
    /// All that is left, and with it the unmap.
    All,
}

pub(crate) struct UnmapBatch<'a, P: Platform, K: Copy + Send> {
    way: Way<'a, P, K>,
    /// What is unmapped: pages, or `None` where that is not known.
    pages: Option<IovaRange>,
    caches: Caches,
    batch: [Option<Retired<Resource>>; BATCH_MAX],
    held: usize,
    failed: Option<Failed>,
}

impl<'a, P: Platform, K: Copy + Send> UnmapBatch<'a, P, K> {
    #[inline]
    pub fn new(way: Way<'a, P, K>, pages: Option<IovaRange>) -> Self {
        UnmapBatch {
            way,
            pages,
            caches: Caches::Leaves,
            batch: [const { None }; BATCH_MAX],
            held: 0,
            failed: None,
        }
    }

    pub fn add_frame<I: Invalidate<Token = K>>(
        &mut self,
        engine: &Engine<'_, P, I>,
        frame: TableFrame,
    ) {
        self.caches = Caches::LeavesAndWalks;
        self.add(engine, Resource::Frame(frame));
        if self.held == BATCH_MAX {
            self.complete(engine, Completed::SoFar);
        }
    }

    #[inline]
    pub fn finish<I: Invalidate<Token = K>>(
        &mut self,
        engine: &Engine<'_, P, I>,
        alloc: IovaAlloc,
    ) -> Result<(), Failed> {
        if let Way::AtMap(cache) = self.way
            && self.caches == Caches::Leaves
            && cache.takes(&alloc)
        {
            let what = Resource::Iova(alloc);
            let retired = engine.sequence.retire(engine.p, what, self.scope());
            match cache.keep(engine, retired) {
                Ok(()) => return Ok(()),
                Err(not_kept) => self.hold(not_kept),
            }
        } else {
            self.add(engine, Resource::Iova(alloc));
        }
        self.complete(engine, Completed::All);
        self.failed.map_or(Ok(()), Err)
    }

    pub fn finish_frames<I: Invalidate<Token = K>>(
        mut self,
        engine: &Engine<'_, P, I>,
    ) -> Result<(), Failed> {
        if self.held > 0 {
            self.complete(engine, Completed::All);
        }
        self.failed.map_or(Ok(()), Err)
    }

    fn scope(&self) -> Scope {
        Scope {
            pages: self.pages,
            caches: self.caches,
        }
    }

    #[inline]
    fn add<I: Invalidate<Token = K>>(&mut self, engine: &Engine<'_, P, I>, what: Resource) {
        self.hold(engine.sequence.retire(engine.p, what, self.scope()));
    }

    #[inline]
    fn hold(&mut self, retired: Retired<Resource>) {
        self.batch[self.held] = Some(retired);
        self.held += 1;
    }

    fn complete<I: Invalidate<Token = K>>(
        &mut self,
        engine: &Engine<'_, P, I>,
        completed: Completed,
    ) {
        let scope = self.scope();
        let batch = self.batch[..self.held].iter_mut().filter_map(Option::take);
        self.held = 0;
        // Once one batch failed, caches may hold anything of this range: the rest follows it into
        // quarantine.
        let flushed = match (self.failed, &self.way) {
            (Some(failed), _) => Err(failed),
            (None, Way::Whole | Way::AtMap(_)) => engine.flush(scope),
            // page by page once, or the work would grow with the square of what is unmapped
            (None, Way::PageByPage) if completed == Completed::SoFar => engine.flush(scope),
            (None, Way::PageByPage) => engine.flush_page_by_page(scope),
            (None, Way::Queued(outstanding)) => {
                self.failed = outstanding.start(engine, scope, batch).err();
                return;
            }
        };
        match flushed {
            Ok(completion) => {
                let origin = engine.p.pinned(|cpu| cpu.index());
                batch.for_each(|retired| engine.complete(origin, retired, &completion));
            }
            Err(failed) => {
                batch.for_each(|retired| engine.quarantine.put(retired));
                self.failed = Some(failed);
            }
        }
    }
}
