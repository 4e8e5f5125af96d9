// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Removing translations, detaching what one call covers whole, and the check of the raw door.

use super::*;
use crate::iova::LeaseKind;

/// Why a range given to the raw door is not exactly one live mapping.
///
/// Not detected: a range that was unmapped and, before this call, mapped again with the same first and last page, and given up again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RawError {
    /// Nothing is mapped there; perhaps it was unmapped before.
    #[error("IOVA page {0} is not mapped")]
    NotMapped(IovaPage),
    /// The mapping begins earlier.
    #[error("IOVA page {0} is not the first page of its mapping")]
    NotFirst(IovaPage),
    /// The mapping goes on.
    #[error("IOVA page {0} is not the last page of its mapping")]
    NotLast(IovaPage),
    /// The mapping's token is still held, or somebody else is just unmapping it.
    #[error("the mapping at IOVA page {0} was not given up, or is being unmapped")]
    NotGivenUp(IovaPage),
    /// Another mapping begins or ends inside the range.
    #[error("the mapping ends or another begins at IOVA page {0}, inside the range")]
    Several(IovaPage),
    /// Empty, or outside what the table can translate.
    #[error("IOVA pages {0} are empty or outside the table's {1}")]
    Outside(IovaRange, IovaRange),
}

impl<P: Platform, F: Format> Table<P, F> {
    /// Removes the translations of `range`, which the caller owns; tables that the range covers whole come out by `detached`.
    ///
    /// A detached table still holds its entries: a walk in flight may be reading it.
    ///
    /// # Panics
    /// If `range` is not within the format's aperture.
    #[inline]
    pub fn clear(
        &self,
        p: &P,
        range: IovaRange,
        _kind: LeaseKind,
        mut detached: impl FnMut(TableFrame),
    ) -> Cleared {
        assert!(
            F::aperture().contains(&range),
            "{range} is no lease of ours"
        );
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
            let Entry::Table(next) = F::decode(entry.load(Ordering::Acquire), level) else {
                continue;
            };
            let next = TableFrame::from_entry(next);
            if below.pages.0 == 1 << F::span_lg2(level) {
                entry.store(0, Ordering::Relaxed);
                p.publish(core::slice::from_ref(entry));
                self.wait_for_visitors();
                cleared += Self::take_apart(p, next, level - 1, detached);
            } else {
                cleared += self.clear_in(p, &next, level - 1, below, detached);
            }
        }
        cleared
    }

    /// Hands out a table that nothing points to any more, and all below it; counts the translations it held.
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
                Entry::Leaf(..) => held += 1,
                Entry::Table(next) => {
                    let next = TableFrame::from_entry(next);
                    held += Self::take_apart(p, next, level - 1, detached);
                }
            }
        }
        detached(frame);
        held
    }

    /// Hands out every table, the root last. The table is not used afterwards, and no device reaches it.
    pub fn dismantle(&mut self, p: &P, mut detached: impl FnMut(TableFrame)) {
        let root = TableFrame::from_entry(self.root.page());
        Self::take_apart(p, root, F::LEVELS, &mut detached);
    }

    /// Lets the raw door end the mapping that begins at `page`. The caller owns it.
    pub fn give_up(&self, p: &P, page: IovaPage) {
        self.visit_leaves(p, IovaRange::new(page, PageCount(1)), |leaf, _| {
            let entry = leaf.load(Ordering::Relaxed);
            if let Entry::Leaf(to, perm, marks) = F::decode(entry, 1) {
                let given_up = F::leaf(to, perm, marks.with(LeafMarks::RAW));
                leaf.store(given_up, Ordering::Release);
                p.publish(core::slice::from_ref(leaf));
            }
            Ok(())
        })
        .unwrap_or_else(|error| debug_assert!(false, "{error}"));
    }

    /// Checks that `range` is exactly one live mapping that was given up, and takes it: of two racing callers one wins.
    ///
    /// # Errors
    /// [`RawError`]; nothing has changed then.
    pub fn claim(&self, p: &P, range: IovaRange) -> Result<LeaseKind, RawError> {
        let aperture = F::aperture();
        if range.pages.0 == 0 || !aperture.contains(&range) {
            return Err(RawError::Outside(range, aperture));
        }
        let first = range.first;
        let (entry, marks) = self.check(p, range)?;
        if !marks.has(LeafMarks::RAW) {
            return Err(RawError::NotGivenUp(first));
        }
        let claimed = self.remark(p, first, entry, marks.without(LeafMarks::RAW))?;
        // Between check and claim the mapping may have ended and another begun whose first entry is the same word.
        if let Err(error) = self.check(p, range) {
            self.remark(p, first, claimed, marks)?;
            return Err(error);
        }
        Ok(if marks.has(LeafMarks::FIXED) {
            LeaseKind::Fixed
        } else {
            LeaseKind::Assigned
        })
    }

    /// Whether the marks of `range` are those of exactly one mapping; returns its first leaf.
    fn check(&self, p: &P, range: IovaRange) -> Result<(u64, LeafMarks), RawError> {
        let last = IovaPage(range.end().0 - 1);
        let mut found = (0, LeafMarks::NONE);
        self.visit_leaves(p, range, |leaf, page| {
            let entry = leaf.load(Ordering::Acquire);
            let Entry::Leaf(_, _, marks) = F::decode(entry, 1) else {
                return Err(RawError::NotMapped(page));
            };
            let begins = marks.has(LeafMarks::FIRST);
            let ends = marks.has(LeafMarks::LAST);
            if page == range.first {
                found = (entry, marks);
            }
            match (page == range.first, page == last) {
                (true, _) if !begins => Err(RawError::NotFirst(page)),
                (_, true) if !ends => Err(RawError::NotLast(page)),
                (false, _) if begins => Err(RawError::Several(page)),
                (_, false) if ends => Err(RawError::Several(page)),
                _ => Ok(()),
            }
        })?;
        Ok(found)
    }

    /// Changes the marks of a leaf that still is `entry`; returns the new one.
    fn remark(&self, p: &P, page: IovaPage, entry: u64, marks: LeafMarks) -> Result<u64, RawError> {
        let Entry::Leaf(to, perm, _) = F::decode(entry, 1) else {
            return Err(RawError::NotMapped(page));
        };
        let new = F::leaf(to, perm, marks);
        self.visit_leaves(p, IovaRange::new(page, PageCount(1)), |leaf, page| {
            leaf.compare_exchange(entry, new, Ordering::AcqRel, Ordering::Relaxed)
                .map(drop)
                .map_err(|_| RawError::NotGivenUp(page))
        })?;
        Ok(new)
    }

    /// Shows `each` every leaf of a range that the caller need not own, until it fails.
    fn visit_leaves(
        &self,
        p: &P,
        range: IovaRange,
        mut each: impl FnMut(&P::A64, IovaPage) -> Result<(), RawError>,
    ) -> Result<(), RawError> {
        for (_, piece) in pieces::<F>(range, 2) {
            p.pinned(|cpu| {
                self.visitors.get(&cpu).with(|()| {
                    let leaves = self
                        .find_leaves(p, piece.first)
                        .ok_or(RawError::NotMapped(piece.first))?;
                    let first = F::index(piece.first, 1);
                    let leaves = &leaves[first..first + piece.pages.0 as usize];
                    piece
                        .iter()
                        .zip(leaves)
                        .try_for_each(|(page, leaf)| each(leaf, page))
                })
            })?;
        }
        Ok(())
    }

    /// Returns when every visitor that could have seen an entry that is cleared now has gone.
    fn wait_for_visitors(&self) {
        for (_, visitor) in self.visitors.iter() {
            visitor.with(|()| ());
        }
    }
}

/// The entries of one table at `level` that `range` touches, each with the part of the range below it.
fn pieces<F: Format>(range: IovaRange, level: u32) -> impl Iterator<Item = (usize, IovaRange)> {
    let span = 1u64 << F::span_lg2(level);
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
