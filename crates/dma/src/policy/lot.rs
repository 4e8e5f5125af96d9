// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What one unmap retires, where an invalidation of just its pages settles it.
//!
//! **strict** and **freebsd** wait for it: unmap returns when it is done. **macos** has it started and hands the things to
//! [`Outstanding`]. **solaris** does without, for what its [`Stock`] keeps; the rest it does as strict.
//!
//! An unmap that detaches many tables settles them in lots of [`LOT`], so that nothing is allocated. The
//! lease is always in the last lot: no IOVA is free before every table of its range has been flushed.

use super::*;

/// Things retired before one flush. An unmap of up to 8 MiB detaches at most four tables, and flushes once.
const LOT: usize = 8;

/// How a lot is settled.
pub(crate) enum Way<'a, P: Platform, K: Copy + Send> {
    /// By one invalidation, waited for.
    Whole,
    /// By one for each page, each waited for; lots before the last, of tables only, as `Whole`.
    PageByPage,
    /// By one that is not waited for.
    Queued(&'a Outstanding<P, K>),
    /// At the next map of the range, if the stock keeps it; else as `Whole`.
    AtMap(&'a Stock<P>),
}

/// What of one unmap a lot brings to its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Settled {
    /// The tables so far.
    SoFar,
    /// All that is left, and with it the unmap.
    All,
}

pub(crate) struct Lot<'a, P: Platform, K: Copy + Send> {
    way: Way<'a, P, K>,
    /// What is unmapped: pages, or `None` for who knows which.
    pages: Option<IovaRange>,
    caches: Caches,
    lot: [Option<Retired<Resource>>; LOT],
    held: usize,
    failed: Option<Failed>,
}

impl<'a, P: Platform, K: Copy + Send> Lot<'a, P, K> {
    #[inline]
    pub fn new(way: Way<'a, P, K>, pages: Option<IovaRange>) -> Self {
        Lot {
            way,
            pages,
            caches: Caches::Leaves,
            lot: [const { None }; LOT],
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
        if self.held == LOT {
            self.settle(engine, Settled::SoFar);
        }
    }

    #[inline]
    pub fn finish<I: Invalidate<Token = K>>(
        mut self,
        engine: &Engine<'_, P, I>,
        lease: Lease,
    ) -> Result<(), Failed> {
        if let Way::AtMap(stock) = self.way
            && self.caches == Caches::Leaves
            && stock.takes(&lease)
        {
            let what = Resource::Iova(lease);
            stock.keep(engine, engine.grace.retire(engine.p, what, self.scope()));
            return Ok(());
        }
        self.add(engine, Resource::Iova(lease));
        self.settle(engine, Settled::All);
        self.failed.map_or(Ok(()), Err)
    }

    pub fn finish_frames<I: Invalidate<Token = K>>(
        mut self,
        engine: &Engine<'_, P, I>,
    ) -> Result<(), Failed> {
        if self.held > 0 {
            self.settle(engine, Settled::All);
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
        let retired = engine.grace.retire(engine.p, what, self.scope());
        self.lot[self.held] = Some(retired);
        self.held += 1;
    }

    fn settle<I: Invalidate<Token = K>>(&mut self, engine: &Engine<'_, P, I>, settled: Settled) {
        let scope = self.scope();
        let lot = self.lot[..self.held].iter_mut().filter_map(Option::take);
        self.held = 0;
        // Once one lot failed, caches may hold anything of this range: the rest follows it into quarantine.
        let flushed = match (self.failed, &self.way) {
            (Some(failed), _) => Err(failed),
            (None, Way::Whole | Way::AtMap(_)) => engine.flush(scope),
            // page by page once, or the work would grow with the square of what is unmapped
            (None, Way::PageByPage) if settled == Settled::SoFar => engine.flush(scope),
            (None, Way::PageByPage) => engine.flush_page_by_page(scope),
            (None, Way::Queued(outstanding)) => {
                self.failed = outstanding.start(engine, scope, lot).err();
                return;
            }
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
