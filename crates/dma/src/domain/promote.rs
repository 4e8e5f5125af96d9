// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Promotion: making room for large leaves where emptied tables stand.
//!
//! A walk cache that still holds the pointer to such a table would lead a device past the large
//! leaf, into nothing (P14). So the tables are detached, retired and flushed, whatever the policy,
//! before the map goes on: this is the one map that waits for an invalidation. It costs small maps
//! one predicted branch.

use super::*;
use crate::{
    iova::{AllocKind, IovaAlloc},
    policy::{Resource, UnmapBatch, Way},
};

impl<P: Platform, T: Translator<P>> Domain<P, T> {
    /// Returns the allocation when nothing stands in the way of the large leaves of `range`, which
    /// it covers, any more. Where the invalidation fails, allocation and tables are quarantined.
    #[inline]
    pub(super) fn make_room(
        &self,
        alloc: IovaAlloc,
        range: IovaRange,
        runs: impl Iterator<Item = PhysRun>,
    ) -> Result<IovaAlloc, MapError> {
        // a shared range has no owner, and its leaves are of one page
        if !self.translator.may_promote(range) || alloc.kind() == AllocKind::Shared {
            return Ok(alloc);
        }
        self.promote(alloc, range, runs)
    }

    #[cold]
    fn promote(
        &self,
        alloc: IovaAlloc,
        range: IovaRange,
        runs: impl Iterator<Item = PhysRun>,
    ) -> Result<IovaAlloc, MapError> {
        let p = &*self.platform;
        let engine = self.engine();
        let mut tables = None;
        self.translator.make_room(OURS, p, range, runs, |frame| {
            let tables = tables.get_or_insert_with(|| UnmapBatch::new(Way::Whole, Some(range)));
            tables.add_frame(&engine, frame);
        });
        match tables.map_or(Ok(()), |tables| tables.finish_frames(&engine)) {
            Ok(()) => Ok(alloc),
            Err(failed) => {
                // A walk cache may point to a table that is no more: nothing mapped there would be
                // sure to be reached.
                let need = Scope::tables(range);
                let retired = self.sequence.retire(p, Resource::Iova(alloc), need);
                self.quarantine.put(retired);
                Err(MapError::Invalidate(failed.cause))
            }
        }
    }
}
