// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Strict: unmap returns when the invalidation of its pages is done.
//!
//! An unmap that detaches many tables settles them in lots of [`LOT`], so that nothing is allocated. The
//! lease is always in the last lot: no IOVA is free before every table of its range has been flushed.

use super::*;

/// Tables retired before one flush. An unmap of up to 8 MiB detaches at most four, and flushes once.
const LOT: usize = 8;

pub(crate) struct Strict {
    range: IovaRange,
    caches: Caches,
    lot: [Option<Retired<Resource>>; LOT],
    held: usize,
    failed: Option<Failed>,
}

impl Strict {
    #[inline]
    pub fn new(range: IovaRange) -> Self {
        Strict {
            range,
            caches: Caches::Leaves,
            lot: [const { None }; LOT],
            held: 0,
            failed: None,
        }
    }

    pub fn add_frame<P: Platform, I: Invalidate>(
        &mut self,
        engine: &Engine<'_, P, I>,
        frame: TableFrame,
    ) {
        self.caches = Caches::LeavesAndWalks;
        self.add(engine, Resource::Frame(frame));
        if self.held == LOT {
            self.settle(engine);
        }
    }

    #[inline]
    pub fn finish<P: Platform, I: Invalidate>(
        mut self,
        engine: &Engine<'_, P, I>,
        lease: Lease,
    ) -> Result<(), Failed> {
        self.add(engine, Resource::Iova(lease));
        self.settle(engine);
        self.failed.map_or(Ok(()), Err)
    }

    pub fn settle_all<P: Platform, I: Invalidate>(
        mut self,
        engine: &Engine<'_, P, I>,
    ) -> Result<(), Failed> {
        if self.held > 0 {
            self.settle(engine);
        }
        self.failed.map_or(Ok(()), Err)
    }

    fn scope(&self) -> Scope {
        Scope {
            pages: Some(self.range),
            caches: self.caches,
        }
    }

    #[inline]
    fn add<P: Platform, I: Invalidate>(&mut self, engine: &Engine<'_, P, I>, what: Resource) {
        let retired = engine.grace.retire(engine.p, what, self.scope());
        self.lot[self.held] = Some(retired);
        self.held += 1;
    }

    fn settle<P: Platform, I: Invalidate>(&mut self, engine: &Engine<'_, P, I>) {
        let scope = self.scope();
        let lot = self.lot[..self.held].iter_mut().filter_map(Option::take);
        self.held = 0;
        // Once one lot failed, caches may hold anything of this range: the rest follows it into quarantine.
        let flushed = match self.failed {
            Some(failed) => Err(failed),
            None => engine.flush(scope),
        };
        match flushed {
            Ok(completion) => {
                let home = engine.p.pinned(|cpu| cpu.index());
                lot.for_each(|retired| engine.settle(home, retired, &completion));
            }
            Err(failed) => {
                lot.for_each(|retired| engine.quarantine.put(retired));
                self.failed = Some(failed);
            }
        }
    }
}
