// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Giving back tables that were emptied in pieces.
//!
//! # Theory
//!
//! A table is freed where the caller owns all that it maps, since no other call can be installing
//! below it then ([`crate::table`]). One unmap of a whole span owns it anyway. For a span that was
//! mapped and unmapped a buffer at a time there is no owner; so one is made: the allocator is asked
//! for *exactly this range*, and what its magazines keep of it is given up first. If it has it to
//! give, nothing in the span is mapped, being mapped, or unmapped and not yet flushed, as each of
//! these holds an allocation. From there on it is an unmap of the span, in which nothing is found:
//! the table is detached, walk caches are flushed, the frame is freed, and last the range.
//!
//! So neither map nor unmap does anything for it, and no lock is taken that they would not take:
//! whether a table is empty is *looked at* without owning it, and if that was wrong, or is not so
//! any more, the range is not to be had. A leaf table that a CPU remembers does not serve it once a
//! table was detached (`table::leaf_cache`): what was detached since lies between two allocations
//! of the span, as with any owner.
//!
//! A table above comes when those below it have gone: tables are looked at in such an order.
//!
//! Work is bounded: a call looks at [`LOOKS`] tables, frees [`FREED`] of them at most, and waits
//! for one invalidation, of all of them, whatever the policy. The next call goes on where it ended.
//! What was freed too early, because its CPUs were idle for a moment, costs them a table and a
//! refill of a magazine.
//!
//! Where an invalidation fails, frames and ranges are quarantined, as those of an unmap are. A
//! domain whose unit does not answer looks for nothing.
//!
//! Locking: the cursor's, alone. An interrupt handler may map and unmap meanwhile, and reclaim too;
//! of two calls that find the same table one gets its range.
//!
//! Not handled: regions without a record of what is allocated (`identity`'s, `kmalloc`'s arena);
//! spans of which a part is reserved, or lies beyond an [`Offset`].

use super::*;
use crate::{policy::Round, table::Contents};

/// Tables that a call looks at.
const LOOKS: usize = 64;
/// Tables that a call frees, so that one invalidation of a few ranges is all that it waits for.
const FREED: usize = 16;

/// The table that was looked at last.
pub(super) struct Cursor<P: Platform>(P::Lock<Option<IovaRange>>);

impl<P: Platform> Cursor<P> {
    pub fn new() -> Self {
        Cursor(Lock::new(None))
    }
}

impl<P: Platform, T: Translator<P>> Domain<P, T> {
    /// Frees some of the tables in which nothing is mapped any more, under
    /// [`Reclaim::Emptied`](crate::table::Reclaim::Emptied); returns how many. Each
    /// [`tick`](Self::tick) does so; a host that runs out of memory may call it until it returns 0
    /// for a while: a call looks at 64 tables, and the next one goes on from there.
    ///
    /// It waits for one invalidation at most, and may be called anywhere an unmap may.
    ///
    /// # Errors
    /// The invalidation failed; the tables and their ranges are quarantined.
    pub fn reclaim_tables(&self) -> Result<u32, InvalidateError> {
        if self.suspect.is_silent(self.translator.unit()) {
            return Ok(0);
        }
        let (p, engine) = (&*self.platform, self.engine());
        let mut round: Option<Round> = None;
        let mut freed = 0;
        let mut at = self.reclaim_cursor.0.with(|last| *last);
        for _ in 0..LOOKS {
            let table = self.translator.next_table(p, at);
            at = table.map(|table| table.pages);
            let Some(table) = table else {
                break; // from the first one on again, in the next call
            };
            if table.contents == Contents::Something {
                continue;
            }
            let alloc = self
                .within_aperture(table.pages)
                .and_then(|pages| self.allocator.reserve_idle(p, pages));
            let Some(alloc) = alloc else {
                continue;
            };
            // ranges that were asked for exactly go to no CPU, and a timer need not be on one
            let round = round.get_or_insert_with(|| Round::new(CpuIndex(0)));
            let kind = alloc.kind();
            self.translator.clear(OURS, p, table.pages, kind, |frame| {
                round.add_frame(&engine, frame, table.pages);
                freed += 1;
            });
            round.end(&engine, alloc, table.pages, Caches::LeavesAndWalks);
            if freed as usize >= FREED {
                break;
            }
        }
        self.reclaim_cursor.0.with(|last| *last = at);
        match round.and_then(|mut round| round.finish(&engine).failed) {
            None => Ok(freed),
            Some(failed) => Err(failed.cause),
        }
    }

    /// What of `pages` can be allocated.
    fn within_aperture(&self, pages: IovaRange) -> Option<IovaRange> {
        let first = pages.first.max(self.aperture.first);
        let end = pages.end().min(self.aperture.end());
        let len = end.0.checked_sub(first.0).filter(|len| *len > 0)?;
        Some(IovaRange::new(first, PageCount(len)))
    }
}
