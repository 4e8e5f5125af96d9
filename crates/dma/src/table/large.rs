// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Leaves above level 1: where one fits, writing it, and making room for it.

use super::*;

impl<P: Platform, F: Format> Table<P, F> {
    /// Whether a mapping of `range` could have a large leaf, so that [`make_room`](Self::make_room)
    /// may find something to do.
    #[inline]
    pub fn may_promote(&self, range: IovaRange) -> bool {
        self.config.largest_leaf > 1 && range.pages.0 >= F::span(2)
    }

    /// Detaches the empty tables that stand where an [`install`](Self::install) of the same `range`
    /// and `runs` would write large leaves. The caller owns the range, and must have flushed what
    /// comes out by `detached` from leaf and walk caches before that install: until then the pages
    /// are reached by neither.
    pub fn make_room(
        &self,
        _: Authority,
        p: &P,
        range: IovaRange,
        runs: impl Iterator<Item = PhysRun>,
        mut detached: impl FnMut(TableFrame),
    ) {
        let end = range.end().0;
        let mut at = range.first.0;
        for mut run in runs {
            while run.pages.0 > 0 && at < end {
                let page = IovaPage(at);
                let level = self.leaf_level(page, range.end(), run);
                if level > 1 {
                    self.empty_entry(p, page, level, &mut detached);
                }
                // on to where the next large leaf could begin
                let span = F::span(level.max(2));
                let step = run.pages.0.min(span - at % span);
                at += step;
                run.first.0 += step;
                run.pages.0 -= step;
            }
        }
    }

    /// The level of the largest leaf for `at` with `run` still to map, below `end`.
    #[inline]
    pub(super) fn leaf_level(&self, at: IovaPage, end: IovaPage, run: PhysRun) -> u32 {
        let left = run.pages.0.min(end.0 - at.0);
        if left < F::span(2) {
            return 1; // most mappings
        }
        let edges = at.0 | run.first.0;
        let fits = |level: &u32| left >= F::span(*level) && edges.is_multiple_of(F::span(*level));
        (2..=self.config.largest_leaf).rev().find(fits).unwrap_or(1)
    }

    /// Writes the leaf of `range` at `at`, to `to`, at `level`, or, where a table stands in the
    /// way, at the next level that has room. Returns the level; 1 if nothing was written, and
    /// leaves of one page are to be.
    #[cold]
    pub(super) fn install_large(
        &self,
        p: &P,
        range: IovaRange,
        at: IovaPage,
        level: u32,
        to: PhysPage,
        leaf: LeafAttrs,
    ) -> Result<u32, At<InstallCause>> {
        let mut frame = TableFrame::from_entry(self.root.page());
        for above in (level + 1..=F::LEVELS).rev() {
            frame = Self::table_below(p, &frame, above, at)?;
        }
        for level in (2..=level).rev() {
            let entry = &Self::words(p, &frame)[F::index(at, level)];
            if entry.load(Ordering::Acquire) == 0 {
                let marks = marks(range, at, F::span(level), leaf.kind);
                let new = F::leaf(to, leaf.perm, marks, level) | hint::<F>(leaf.lifetime);
                // nothing fills it meanwhile: all that it covers is ours
                entry.store(new, Ordering::Release);
                p.publish(core::slice::from_ref(entry));
                return Ok(level);
            }
            frame = Self::table_below(p, &frame, level, at)?;
        }
        Ok(1)
    }

    /// Detaches the table at the entry of `level` that covers `at`, if there is one,
    /// and it maps nothing.
    fn empty_entry(&self, p: &P, at: IovaPage, level: u32, detached: &mut impl FnMut(TableFrame)) {
        let mut frame = TableFrame::from_entry(self.root.page());
        for above in (level..=F::LEVELS).rev() {
            let entry = &Self::words(p, &frame)[F::index(at, above)];
            let Entry::Table(next) = F::decode(entry.load(Ordering::Acquire), above) else {
                return;
            };
            frame = TableFrame::from_entry(next);
            // a translation below would be a bug of the allocator's; the install will name it
            if above == level && Self::maps_nothing(p, &frame, level - 1) {
                self.detach(p, entry, next, level, detached);
            }
        }
    }

    fn maps_nothing(p: &P, frame: &TableFrame, level: u32) -> bool {
        Self::words(p, frame).iter().all(|entry| {
            match F::decode(entry.load(Ordering::Acquire), level) {
                Entry::Absent => true,
                Entry::Leaf(..) => false,
                Entry::Table(next) => {
                    Self::maps_nothing(p, &TableFrame::from_entry(next), level - 1)
                }
            }
        })
    }
}
