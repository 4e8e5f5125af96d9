// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Promotion: making room for large leaves where emptied tables stand.
//!
//! A walk cache that still holds the pointer to such a table would lead a device past the large leaf, into nothing (P14). So
//! the tables are detached, retired and flushed, whatever the policy, before the map goes on: this is the one map that
//! waits for an invalidation. It costs small maps one predicted branch.

use super::*;
use crate::{
    iova::{Lease, LeaseKind},
    policy::{Lot, Resource, Way},
};

impl<P: Platform, T: Translator<P>> Domain<P, T> {
    /// Returns the lease when nothing stands in the way of the large leaves of `range`, which it covers, any more.
    ///
    /// # Errors
    /// The invalidation failed; lease and tables are quarantined.
    #[inline]
    pub(super) fn make_room(
        &self,
        lease: Lease,
        range: IovaRange,
        runs: impl Iterator<Item = PhysRun>,
    ) -> Result<Lease, MapError> {
        // nobody owns what is shared, and its leaves are of one page
        if !self.translator.may_promote(range) || lease.kind() == LeaseKind::Shared {
            return Ok(lease);
        }
        self.promote(lease, range, runs)
    }

    #[cold]
    fn promote(
        &self,
        lease: Lease,
        range: IovaRange,
        runs: impl Iterator<Item = PhysRun>,
    ) -> Result<Lease, MapError> {
        let p = &*self.platform;
        let engine = self.engine();
        let mut tables = None;
        self.translator.make_room(OURS, p, range, runs, |frame| {
            let tables = tables.get_or_insert_with(|| Lot::new(Way::Whole, Some(range)));
            tables.add_frame(&engine, frame);
        });
        match tables.map_or(Ok(()), |tables| tables.finish_frames(&engine)) {
            Ok(()) => Ok(lease),
            Err(failed) => {
                // A walk cache may point to a table that is no more: nothing mapped there would be sure to be reached.
                let need = Scope::tables(range);
                let retired = self.grace.retire(p, Resource::Iova(lease), need);
                self.quarantine.put(retired);
                Err(MapError::Invalidate(failed.cause))
            }
        }
    }
}
