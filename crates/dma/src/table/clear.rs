// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Removing translations, detaching what one call covers whole, and the check of the raw door.

use super::*;
use crate::iova::LeaseKind;

/// Why a range given to the raw door is not exactly one live mapping.
///
/// Not detected: a range that was unmapped and, before this call, mapped again with the same first and last page.
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
    /// A detached table still holds its entries: a walk in flight may be reading it. Returns how many pages had a translation.
    #[inline]
    pub fn clear(
        &self,
        p: &P,
        range: IovaRange,
        mut detached: impl FnMut(TableFrame),
    ) -> PageCount {
        debug_assert!(
            F::aperture().contains(&range),
            "{range} is no lease of ours"
        );
        let root = TableFrame::from_entry(self.root.page());
        PageCount(Self::clear_in(p, &root, F::LEVELS, range, &mut detached))
    }

    fn clear_in(
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
                cleared += Self::take_apart(p, next, level - 1, detached);
            } else {
                cleared += Self::clear_in(p, &next, level - 1, below, detached);
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

    /// Checks that `range` is exactly one live mapping, and takes it: of two racing callers one wins.
    ///
    /// # Errors
    /// [`RawError`]; nothing has changed then.
    pub fn claim(&self, p: &P, range: IovaRange) -> Result<LeaseKind, RawError> {
        let aperture = F::aperture();
        let ends = range.first.0.checked_add(range.pages.0);
        if range.pages.0 == 0 || ends.is_none_or(|end| end > aperture.end().0) {
            return Err(RawError::Outside(range, aperture));
        }
        let last = IovaPage(range.end().0 - 1);
        for page in range.iter() {
            let (_, _, marks) = self.leaf(p, page).ok_or(RawError::NotMapped(page))?;
            let first = marks.has(LeafMarks::FIRST);
            let ends = marks.has(LeafMarks::LAST);
            match (page == range.first, page == last) {
                (true, _) if !first => return Err(RawError::NotFirst(page)),
                (_, true) if !ends => return Err(RawError::NotLast(page)),
                (false, _) if first => return Err(RawError::Several(page)),
                (_, false) if ends => return Err(RawError::Several(page)),
                _ => {}
            }
        }
        // The winner takes the mark of the first page away. Its entry stays until `clear`.
        let (slot, entry, marks) = self
            .leaf(p, range.first)
            .ok_or(RawError::NotMapped(range.first))?;
        let Entry::Leaf(to, perm, _) = F::decode(entry, 1) else {
            return Err(RawError::NotMapped(range.first));
        };
        if !marks.has(LeafMarks::FIRST) {
            return Err(RawError::NotFirst(range.first));
        }
        let rest = if marks.has(LeafMarks::LAST) {
            LeafMarks::LAST
        } else {
            LeafMarks::NONE
        };
        let claimed = F::leaf(to, perm, rest);
        slot.compare_exchange(entry, claimed, Ordering::AcqRel, Ordering::Relaxed)
            .map_err(|_| RawError::NotMapped(range.first))?;
        Ok(if marks.has(LeafMarks::FIXED) {
            LeaseKind::Fixed
        } else {
            LeaseKind::Assigned
        })
    }

    /// The word, content and marks of a present leaf.
    fn leaf<'p>(&self, p: &'p P, page: IovaPage) -> Option<(&'p P::A64, u64, LeafMarks)> {
        let mut frame = TableFrame::from_entry(self.root.page());
        for level in (1..=F::LEVELS).rev() {
            let word = &Self::words(p, &frame)[F::index(page, level)];
            let entry = word.load(Ordering::Acquire);
            match F::decode(entry, level) {
                Entry::Absent => return None,
                Entry::Table(next) => frame = TableFrame::from_entry(next),
                Entry::Leaf(_, _, marks) => return Some((word, entry, marks)),
            }
        }
        None
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
