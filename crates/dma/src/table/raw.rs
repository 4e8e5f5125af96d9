// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The address API's check: whether a range that is given by address is exactly one mapping, by the
//! marks in its leaves.

use super::*;
use crate::iova::AllocKind;

/// Why a range given to the address API is not exactly one live mapping.
///
/// Not detected: a range that was unmapped and, before this call, mapped again with the same first
/// and last page, and given up again.
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
    /// The mapping's token is still held, or another call is just unmapping it.
    #[error("the mapping at IOVA page {0} was not given up, or is being unmapped")]
    NotGivenUp(IovaPage),
    /// Another mapping begins or ends inside the range.
    #[error("the mapping ends or another begins at IOVA page {0}, inside the range")]
    Several(IovaPage),
    /// Leaves there are shared and counted, so they have no room for the marks by which the address
    /// API knows a mapping.
    #[error("IOVA pages {0} are shared between mappings, which addresses cannot tell apart")]
    Shared(IovaRange),
    /// Empty, or outside what the table can translate.
    #[error("IOVA pages {0} are empty or outside the table's {1}")]
    Outside(IovaRange, IovaRange),
}

impl<P: Platform, F: Format> Table<P, F> {
    /// Lets the address API end the mapping that begins at `page`. The caller owns it; its
    /// leaves are not shared.
    pub fn give_up(&self, p: &P, page: IovaPage) {
        self.visit_leaves(p, IovaRange::new(page, PageCount(1)), |leaf| {
            let given_up = F::marked(leaf.word, leaf.marks.with(LeafMarks::RAW));
            leaf.entry.store(given_up, Ordering::Release);
            p.publish(core::slice::from_ref(leaf.entry));
            Ok(())
        })
        .unwrap_or_else(|error| debug_assert!(false, "{error}"));
    }

    /// Checks that `range` is exactly one live mapping that was given up, and takes it: of two
    /// racing callers one wins. No page of it is among those that are shared.
    ///
    /// # Errors
    /// [`RawError`]; nothing has changed then.
    pub fn claim(&self, p: &P, range: IovaRange) -> Result<AllocKind, RawError> {
        let aperture = F::aperture();
        if range.pages.0 == 0 || !aperture.contains(&range) {
            return Err(RawError::Outside(range, aperture));
        }
        let first = range.first;
        let (entry, marks) = self.check(p, range)?;
        if !marks.has(LeafMarks::RAW) {
            return Err(RawError::NotGivenUp(first));
        }
        let claimed = F::marked(entry, marks.without(LeafMarks::RAW));
        self.exchange(p, first, entry, claimed)?;
        // Between check and claim the mapping may have ended and another begun whose first entry is
        // the same word.
        if let Err(error) = self.check(p, range) {
            self.exchange(p, first, claimed, entry)?;
            return Err(error);
        }
        Ok(marks.kind())
    }

    /// Whether the marks of `range` are those of exactly one mapping; returns its first leaf.
    fn check(&self, p: &P, range: IovaRange) -> Result<(u64, LeafMarks), RawError> {
        let mut found = (0, LeafMarks::NONE);
        self.visit_leaves(p, range, |leaf| {
            let begins = leaf.marks.has(LeafMarks::FIRST);
            let ends = leaf.marks.has(LeafMarks::LAST);
            let IovaRange { first, .. } = leaf.covers;
            let last = IovaPage(leaf.covers.end().0 - 1);
            if first <= range.first {
                found = (leaf.word, leaf.marks);
                if first < range.first || !begins {
                    return Err(RawError::NotFirst(range.first));
                }
            } else if begins {
                return Err(RawError::Several(first));
            }
            if leaf.covers.end() >= range.end() {
                if leaf.covers.end() > range.end() || !ends {
                    return Err(RawError::NotLast(IovaPage(range.end().0 - 1)));
                }
            } else if ends {
                return Err(RawError::Several(last));
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Changes the leaf that covers `page` from `old` to `new`.
    fn exchange(&self, p: &P, page: IovaPage, old: u64, new: u64) -> Result<(), RawError> {
        self.visit_leaves(p, IovaRange::new(page, PageCount(1)), |leaf| {
            leaf.entry
                .compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed)
                .map(drop)
                .map_err(|_| RawError::NotGivenUp(page))
        })
    }

    /// Shows `each` every leaf of a range that the caller need not own, until it fails.
    fn visit_leaves(
        &self,
        p: &P,
        range: IovaRange,
        mut each: impl FnMut(Visited<'_, P::A64>) -> Result<(), RawError>,
    ) -> Result<(), RawError> {
        let mut at = range.first;
        for (_, piece) in pieces::<F>(range, 2) {
            p.pinned(|cpu| {
                self.readers.get(&cpu).with(|()| {
                    // a large leaf may have covered pieces to come
                    while at < piece.end() {
                        let leaf = self.visit(p, at).ok_or(RawError::NotMapped(at))?;
                        at = leaf.covers.end();
                        each(leaf)?;
                    }
                    Ok(())
                })
            })?;
        }
        Ok(())
    }

    /// The leaf that covers `page`. No table is being detached, or the caller is a reader.
    fn visit<'p>(&self, p: &'p P, page: IovaPage) -> Option<Visited<'p, P::A64>> {
        let (entry, level) = self.find(p, page)?;
        let word = entry.load(Ordering::Acquire);
        let Entry::Leaf(_, _, marks) = F::decode(word, level) else {
            return None;
        };
        let first = IovaPage(page.0 & !(F::span(level) - 1));
        Some(Visited {
            entry,
            word,
            covers: IovaRange::new(first, PageCount(F::span(level))),
            marks,
        })
    }

    /// Returns when every reader that could have seen an entry that is cleared now has gone.
    pub(super) fn wait_for_visitors(&self) {
        for (_, reader) in self.readers.iter() {
            reader.with(|()| ());
        }
    }
}

/// A leaf as it was a moment ago.
struct Visited<'p, A> {
    entry: &'p A,
    word: u64,
    covers: IovaRange,
    marks: LeafMarks,
}
