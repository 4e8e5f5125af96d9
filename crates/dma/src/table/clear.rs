// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Removing translations, and detaching what one call covers whole.

use super::*;
use crate::iova::AllocKind;

impl<P: Platform, F: Format> Table<P, F> {
    /// Removes the translations of `range`, whose allocation of `kind` the caller holds; under
    /// [`Reclaim::Covered`] and [`Reclaim::Emptied`], tables that the range covers whole come out by
    /// `detached`.
    ///
    /// A detached table still holds its entries: a walk in flight may be reading it. A large leaf
    /// goes only if all of it is in the range.
    ///
    /// # Panics
    /// If `range` is not within the format's aperture.
    #[inline]
    pub fn clear(
        &self,
        _: Authority,
        p: &P,
        range: IovaRange,
        kind: AllocKind,
        mut detached: impl FnMut(TableFrame),
    ) -> Cleared {
        assert!(
            F::aperture().contains(&range),
            "{range} is no allocation of ours"
        );
        if kind == AllocKind::Shared {
            return self.unshare(p, range);
        }
        let root = TableFrame::from_entry(self.root.page());
        let found = PageCount(self.clear_in(p, &root, F::LEVELS, range, &mut detached));
        Cleared { found, gone: found }
    }

    fn clear_in(
        &self,
        p: &P,
        frame: &TableFrame,
        level: u32,
        range: IovaRange,
        detached: &mut impl FnMut(TableFrame),
    ) -> u64 {
        let words = Self::words(p, frame);
        if level == 1 {
            let first = F::index(range.first, 1);
            let leaves = &words[first..first + range.pages.0 as usize];
            let mut cleared = 0;
            for leaf in leaves {
                cleared += u64::from(leaf.load(Ordering::Relaxed) != 0);
                leaf.store(0, Ordering::Relaxed);
            }
            p.publish(leaves);
            return cleared;
        }
        let mut cleared = 0;
        for (entry, below) in pieces::<F>(range, level) {
            let entry = &words[entry];
            let whole = below.pages.0 == F::span(level);
            match F::decode(entry.load(Ordering::Acquire), level) {
                Entry::Leaf(..) if whole => {
                    entry.store(0, Ordering::Relaxed);
                    p.publish(core::slice::from_ref(entry));
                    cleared += below.pages.0;
                }
                Entry::Table(next) if whole && self.config.reclaim != Reclaim::Never => {
                    cleared += self.detach(p, entry, next, level, detached);
                }
                Entry::Table(next) => {
                    let next = TableFrame::from_entry(next);
                    cleared += self.clear_in(p, &next, level - 1, below, detached);
                }
                Entry::Absent | Entry::Leaf(..) => {}
            }
        }
        cleared
    }

    /// Takes the table `next` out of `entry` at `level`, all of which the caller owns; counts
    /// the translations it held.
    pub(super) fn detach(
        &self,
        p: &P,
        entry: &P::A64,
        next: PhysPage,
        level: u32,
        detached: &mut impl FnMut(TableFrame),
    ) -> u64 {
        entry.store(0, Ordering::Relaxed);
        p.publish(core::slice::from_ref(entry));
        self.detached.fetch_add(1, Ordering::Relaxed); // no CPU knows it any more
        self.wait_for_visitors();
        Self::take_apart(p, TableFrame::from_entry(next), level - 1, detached)
    }

    /// Hands out a table that nothing points to any more, and all below it; counts
    /// the translations it held.
    fn take_apart(
        p: &P,
        frame: TableFrame,
        level: u32,
        detached: &mut impl FnMut(TableFrame),
    ) -> u64 {
        let mut held = 0;
        for entry in Self::words(p, &frame) {
            match F::decode(entry.load(Ordering::Acquire), level) {
                Entry::Absent => {}
                Entry::Leaf(..) => held += F::span(level),
                Entry::Table(next) => {
                    let next = TableFrame::from_entry(next);
                    held += Self::take_apart(p, next, level - 1, detached);
                }
            }
        }
        detached(frame);
        held
    }

    /// Hands out every table, the root last. The table is not used afterwards, and
    /// no device reaches it.
    pub fn dismantle(&mut self, _: Authority, p: &P, mut detached: impl FnMut(TableFrame)) {
        let root = TableFrame::from_entry(self.root.page());
        Self::take_apart(p, root, F::LEVELS, &mut detached);
    }
}

/// The entries of one table at `level` that `range` touches, each with the part of
/// the range below it.
pub(super) fn pieces<F: Format>(
    range: IovaRange,
    level: u32,
) -> impl Iterator<Item = (usize, IovaRange)> {
    let span = F::span(level);
    let mut at = range.first.0;
    core::iter::from_fn(move || {
        if at >= range.end().0 {
            return None;
        }
        let end = ((at / span + 1) * span).min(range.end().0);
        let piece = IovaRange::new(IovaPage(at), PageCount(end - at));
        at = end;
        Some((F::index(piece.first, level), piece))
    })
}
