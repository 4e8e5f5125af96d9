// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The way round a walk, for translators that have tables to know.

use super::*;
use crate::table::LeafTable;

/// How a domain installs and clears what lies in a leaf table that this CPU has met before. Each may
/// do nothing, which is what all do by themselves: then [`Translator`]'s own methods are asked.
///
/// # Safety
/// * What is installed and cleared is leaves of one page, as [`Translator::install`] and
///   [`Translator::clear`] would, with the same rights. No table comes or goes, so that caches hold
///   no more of what was cleared than leaves of its range.
/// * A [`LeafTable`] that is given is one that the tables lead to. It stays so while an allocation
///   in its span is held, or a part of one, whatever is mapped of it; and at that time
///   [`leaves_in`](Self::leaves_in) gives words of it.
/// * Where something has to follow an installation ([`Invalidate::on_map`] of the unit),
///   [`knows`](Self::knows) and [`get_to_know`](Self::get_to_know) give nothing.
///
/// Maps ask with this CPU pinned and the lock of its magazines held, unmaps with that of its
/// queue. So nothing here allocates, locks, pins or waits.
#[allow(unsafe_code)]
pub unsafe trait FastPath<P: Platform>: Send + Sync + Sized + 'static {
    /// The leaf table of the allocation that begins at `first`, if this CPU knows it, and nothing
    /// has to follow an installation ([`Invalidate::on_map`]).
    #[inline]
    fn knows(&self, _by: Authority, _cpu: &Cpu<'_>, _first: IovaPage) -> Option<LeafTable> {
        None
    }
    /// The same, by a walk if that is what it takes. The caller holds the allocation, or is about
    /// to take it and no other call can.
    fn get_to_know(
        &self,
        _by: Authority,
        _p: &P,
        _cpu: &Cpu<'_>,
        _first: IovaPage,
    ) -> Option<LeafTable> {
        None
    }
    /// [`Translator::install`] of one run in `table`; returns whether. Nothing is written if
    /// not. As to `MOST`, see [`clear_known`](Self::clear_known).
    #[inline]
    fn install_known<const MOST: usize>(
        &self,
        _by: Authority,
        _p: &P,
        _range: IovaRange,
        _to: PhysPage,
        _leaf: LeafAttrs,
        _table: LeafTable,
    ) -> bool {
        false
    }
    /// Where the leaves of `range` are, some of which the caller has just installed, if that is one
    /// table. It serves as long as the caller has the allocation.
    #[inline]
    fn learn(
        &self,
        _by: Authority,
        _p: &P,
        _cpu: &Cpu<'_>,
        _range: IovaRange,
        _kind: AllocKind,
    ) -> Option<LeafTable> {
        None
    }
    /// The leaves of a mapping that are in `table`.
    #[inline]
    fn leaves_in<'p>(
        &self,
        _by: Authority,
        _p: &'p P,
        _range: IovaRange,
        _table: LeafTable,
    ) -> Option<&'p [P::A64]> {
        None
    }
    /// [`Translator::clear`] of a mapping with `leaves`; returns whether all were there, as
    /// the first and the last one tell, and are not any more. Else nothing has changed. With
    /// `MOST` leaves, or more than half as many, it is fastest, and may do nothing with others
    /// where that is 1.
    #[inline]
    fn clear_known<const MOST: usize>(&self, _by: Authority, _p: &P, _leaves: &[P::A64]) -> bool {
        false
    }
}
