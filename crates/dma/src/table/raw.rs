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
    pub fn give_up(&self, _: Authority, p: &P, page: IovaPage) {
        let only = IovaRange::new(page, PageCount(1));
        self.visit_leaves(p, only, Visitor::Outside, |leaf| {
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
    pub fn claim(&self, _: Authority, p: &P, range: IovaRange) -> Result<AllocKind, RawError> {
        let aperture = F::aperture();
        if range.pages.0 == 0 || !aperture.contains(&range) {
            return Err(RawError::Outside(range, aperture));
        }
        let in_one_table = pieces::<F>(range, 2).nth(1).is_none();
        loop {
            let taken = match in_one_table {
                // No more of it is seen from outside than from before it or after it.
                true => self.reading(p, || self.take(p, range, Visitor::Inside)),
                // Too long to keep interrupts masked.
                false => {
                    self.unsure.fetch_add(1, Ordering::SeqCst);
                    let taken = self.take(p, range, Visitor::Outside);
                    self.unsure.fetch_add(u64::MAX, Ordering::SeqCst);
                    taken
                }
            };
            match taken {
                Err(RawError::NotGivenUp(first)) if self.is_given_up(p, first) => (),
                taken => return taken,
            }
        }
    }

    fn take(&self, p: &P, range: IovaRange, visitor: Visitor) -> Result<AllocKind, RawError> {
        let first = range.first;
        let (entry, marks) = self.check(p, range, visitor)?;
        if !marks.has(LeafMarks::RAW) {
            return Err(RawError::NotGivenUp(first));
        }
        let claimed = F::marked(entry, marks.without(LeafMarks::RAW));
        self.exchange(p, first, entry, claimed, visitor)?;
        // Between check and claim the mapping may have ended and another begun whose first entry is
        // the same word.
        if let Err(error) = self.check(p, range, visitor) {
            self.exchange(p, first, claimed, entry, visitor)?;
            return Err(error);
        }
        Ok(marks.kind())
    }

    /// Whether the mapping that begins at `page` is given up, once no claim holds it by mistake: a
    /// claim for pages that were a mapping before may have taken it, and gives it back.
    #[cold]
    fn is_given_up(&self, p: &P, page: IovaPage) -> bool {
        self.wait_for_visitors();
        for _ in 0..TURNS {
            if self.unsure.load(Ordering::SeqCst) == 0 {
                break;
            }
            p.relax();
        }
        let only = IovaRange::new(page, PageCount(1));
        let mut given_up = false;
        let seen = self.visit_leaves(p, only, Visitor::Outside, |leaf| {
            given_up = leaf.marks.has(LeafMarks::RAW);
            Ok(())
        });
        seen.is_ok() && given_up
    }

    /// Whether the marks of `range` are those of exactly one mapping; returns its first leaf.
    fn check(
        &self,
        p: &P,
        range: IovaRange,
        visitor: Visitor,
    ) -> Result<(u64, LeafMarks), RawError> {
        let mut found = (0, LeafMarks::NONE);
        self.visit_leaves(p, range, visitor, |leaf| {
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
    fn exchange(
        &self,
        p: &P,
        page: IovaPage,
        old: u64,
        new: u64,
        visitor: Visitor,
    ) -> Result<(), RawError> {
        self.visit_leaves(p, IovaRange::new(page, PageCount(1)), visitor, |leaf| {
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
        visitor: Visitor,
        mut each: impl FnMut(Visited<'_, P::A64>) -> Result<(), RawError>,
    ) -> Result<(), RawError> {
        let mut at = range.first;
        for (_, piece) in pieces::<F>(range, 2) {
            let mut visit = || {
                // a large leaf may have covered pieces to come
                while at < piece.end() {
                    let leaf = self.visit(p, at).ok_or(RawError::NotMapped(at))?;
                    at = leaf.covers.end();
                    each(leaf)?;
                }
                Ok(())
            };
            match visitor {
                Visitor::Inside => visit()?,
                Visitor::Outside => self.reading(p, visit)?,
            }
        }
        Ok(())
    }

    /// Runs `f` as a reader of tables: none is detached meanwhile.
    fn reading<R>(&self, p: &P, f: impl FnOnce() -> R) -> R {
        p.pinned(|cpu| self.readers.get(&cpu).with(|()| f()))
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

/// Looks that a claim waits for another, which is not sure of what it holds. More are needed only
/// where that one's thread does not run; where it was interrupted by this one, none is enough.
const TURNS: usize = 4096;

/// Whether the caller of a visit is a reader already.
#[derive(Clone, Copy)]
enum Visitor {
    Inside,
    Outside,
}

/// A leaf as it was a moment ago.
struct Visited<'p, A> {
    entry: &'p A,
    word: u64,
    covers: IovaRange,
    marks: LeafMarks,
}
