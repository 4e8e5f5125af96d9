// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Leaf tables that are known without a walk.
//!
//! # Theory
//!
//! A walk of four levels costs more than all else that map and unmap do in a table, so both do
//! without where they can. A *known* leaf table is the frame that holds the leaves of some pages.
//! Why none is ever used after it was detached rests on one fact: **a leaf table is detached only
//! by the owner of all its span** (see the theory of [`crate::table`]; leaves that have no owner
//! are shared, their tables are never detached, and they have no part in this).
//!
//! **Unmap** takes it from the mapping: [`LeafTable`] is in the token. While a mapping lives the
//! allocation of its pages is held, so no other caller owns the whole span, and the table stays
//! where it is. The one mapping whose own unmap may detach the table is one that covers the whole
//! span; it has none in its token, and walks. This needs no check at all, on whatever CPU the unmap
//! runs.
//!
//! **Map** takes it from what its CPU remembers: a few *slots*, each with a span, its leaf table,
//! and the number of detachments that there had been when the slot was filled (`detached`, one word
//! a table: read by all, written only where a table is detached). A slot serves if the span is that
//! of the allocation at issue and the number is still the same. The argument: let a slot for span
//! *s* be filled by a map that holds an allocation in *s*, with the number *g* read meanwhile, and
//! used by a map that holds an allocation in *s*, too. Take any detachment *d* of a table of *s*.
//! It holds all allocations in *s*, so it lies before the first map's allocation, between the two,
//! or after the second's. Before the first: then the table that the slot was filled with was
//! installed after it. After the second: then it does no harm. Between: allocations change hands by
//! the allocator, which orders the one holder's accesses before the next one's; so the first map's
//! read of `detached` came before *d*'s addition, and the second's comes after it. By coherence the
//! second reads more than *g*, and the slot does not serve. A count of 64 bits does not come round.
//!
//! So both accesses to `detached` are relaxed. Slots are written and read by their own CPU alone,
//! pinned, so their three words belong together; where a slot does not serve, the map walks and
//! fills it. A table is in a slot only after this CPU has walked to it, and written back what was
//! not yet, as a neighbour does that finds it (P14, units that do not snoop).
//!
//! What a slot never does is speak of a leaf: whether those are absent is looked up in the table
//! itself, as on the slow path.
//!
//! Not handled: detachments of one span make every CPU forget all of them. They come with an unmap
//! of 2 MiB at least, or a promotion.

use super::{install::hint, *};
use crate::iova::AllocKind;
use core::num::NonZeroU64;

/// The leaf table of a live mapping that has all of its leaves in it, and does not fill it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeafTable(NonZeroU64);

impl LeafTable {
    /// `None` for the last page number there is, which has no successor.
    fn new(frame: PhysPage) -> Option<Self> {
        frame
            .0
            .checked_add(1)
            .and_then(NonZeroU64::new)
            .map(LeafTable)
    }
    #[inline]
    fn frame(self) -> TableFrame {
        TableFrame::from_entry(PhysPage(self.0.get() - 1))
    }
}

/// What one CPU remembers. Consecutive spans have consecutive slots, so traffic within 64 MiB
/// (VT-d) meets no other of its own.
const SLOTS: usize = 32;

/// The leaf tables that one CPU has used lately.
pub(super) struct Known<P: Platform>([Slot<P>; SLOTS]);

#[repr(align(32))] // one shift away
struct Slot<P: Platform> {
    /// Which span; none has the number with all bits set.
    span: P::A64,
    /// A [`LeafTable`], if there is one.
    table: P::A64,
    /// [`Table::detached`] as it was.
    detached: P::A64,
}

impl<P: Platform> Known<P> {
    pub fn new() -> Self {
        Known(core::array::from_fn(|_| Slot {
            span: P::A64::new(u64::MAX),
            table: P::A64::new(0),
            detached: P::A64::new(0),
        }))
    }
    #[inline]
    fn slot(&self, span: u64) -> &Slot<P> {
        &self.0[span as usize % SLOTS]
    }
}

impl<P: Platform, F: Format> Table<P, F> {
    /// What this CPU knows, or finds by a walk and knows from then on; the caller holds an
    /// allocation that has `page`.
    pub fn get_to_know(&self, p: &P, cpu: &Cpu<'_>, page: IovaPage) -> Option<LeafTable> {
        if let known @ Some(_) = self.knows(cpu, page) {
            return known;
        }
        // as long as the allocation is held nothing of this span is detached, so the order of the
        // two reads does not matter
        let detached = self.detached.load(Ordering::Relaxed);
        let table = LeafTable::new(self.find_leaf_frame(p, page)?)?;
        let span = page.0 >> F::ENTRIES_LG2;
        let slot = self.known.get(cpu).slot(span);
        slot.span.store(span, Ordering::Relaxed);
        slot.table.store(table.0.get(), Ordering::Relaxed);
        slot.detached.store(detached, Ordering::Relaxed);
        Some(table)
    }

    /// The leaf table of `range`, which the caller has just installed there. `None` where the
    /// leaves are in several tables, fill one, or are shared or large.
    pub fn learn(
        &self,
        p: &P,
        cpu: &Cpu<'_>,
        range: IovaRange,
        kind: AllocKind,
    ) -> Option<LeafTable> {
        let first = F::index(range.first, 1) as u64;
        let alone = range.pages.0 < 1 << F::ENTRIES_LG2;
        if kind == AllocKind::Shared || !alone || first + range.pages.0 > 1 << F::ENTRIES_LG2 {
            return None;
        }
        self.get_to_know(p, cpu, range.first)
    }

    /// The frame of the leaf table that covers `page`. What is on the way to it has
    /// been written back then.
    fn find_leaf_frame(&self, p: &P, page: IovaPage) -> Option<PhysPage> {
        let mut frame = TableFrame::from_entry(self.root.page());
        for level in (2..=F::LEVELS).rev() {
            let entry = &Self::words(p, &frame)[F::index(page, level)];
            let word = entry.load(Ordering::Acquire);
            let Entry::Table(next) = F::decode(word, level) else {
                return None;
            };
            if word & F::WRITTEN_BACK == 0 {
                p.publish(core::slice::from_ref(entry));
            }
            frame = TableFrame::from_entry(next);
        }
        Some(frame.page())
    }

    /// The leaf table of the allocation that begins at `first`, if this CPU knows it.
    #[inline]
    pub fn knows(&self, cpu: &Cpu<'_>, first: IovaPage) -> Option<LeafTable> {
        let span = first.0 >> F::ENTRIES_LG2;
        let slot = self.known.try_get(cpu)?.slot(span);
        let serves = slot.span.load(Ordering::Relaxed) == span
            && slot.detached.load(Ordering::Relaxed) == self.detached.load(Ordering::Relaxed);
        if !serves {
            return None;
        }
        NonZeroU64::new(slot.table.load(Ordering::Relaxed)).map(LeafTable)
    }

    /// [`install`](Self::install) without a walk: makes `range`, which the caller owns, translate
    /// to the pages from `to` on. Returns whether. Nothing is written where the range is not in
    /// `table` alone, or fills it, or a translation is in the way.
    ///
    /// Compiled apart for each `MOST`: there are no loops where the range has as many pages, and
    /// short ones where it has more than half as many.
    #[inline(always)] // on the fast path, which calls nothing
    pub fn install_known<const MOST: usize>(
        &self,
        p: &P,
        range: IovaRange,
        to: PhysPage,
        leaf: LeafAttrs,
        table: LeafTable,
    ) -> bool {
        let never_fills = MOST > 0 && MOST < 1 << F::ENTRIES_LG2;
        if !never_fills && range.pages.0 >= 1 << F::ENTRIES_LG2 {
            return false;
        }
        let Some(leaves) = Self::leaves_in(p, range, table) else {
            return false;
        };
        let begins = match leaf.kind {
            AllocKind::Fixed => LeafMarks::FIRST.with(LeafMarks::FIXED),
            AllocKind::Dynamic | AllocKind::Shared | AllocKind::Piece => LeafMarks::FIRST,
        };
        let bare = F::leaf(to, leaf.perm, LeafMarks::NONE, 1) | hint::<F>(leaf.lifetime);
        // two calls, or one code would serve both, with loops
        let written = match <&[P::A64; MOST]>::try_from(leaves) {
            Ok(all) => set::<P, F>(all, &[], bare, begins),
            Err(_) => {
                let (head, rest) = parted::<P::A64, MOST>(leaves);
                set::<P, F>(head, rest, bare, begins)
            }
        };
        if !written {
            return false;
        }
        p.publish(leaves);
        true
    }

    /// The leaves of `range`, if all are in `table`.
    #[inline]
    pub fn leaves_in(p: &P, range: IovaRange, table: LeafTable) -> Option<&[P::A64]> {
        let first = F::index(range.first, 1);
        let after = Self::words(p, &table.frame()).get(first..)?;
        after.get(..range.pages.0 as usize)
    }

    /// [`clear`](Self::clear) without a walk, for a mapping whose token says where its leaves are;
    /// returns whether. Where the first or the last is absent, which is a bug, all stay as they
    /// are. Those between were found absent and written with these two by the one map that made the
    /// token, and only the holder of its allocation may clear any: they are not looked at again.
    ///
    /// Compiled apart for each `MOST`, as [`install_known`](Self::install_known).
    #[inline(always)] // on the fast path, which calls nothing
    pub fn clear_known<const MOST: usize>(p: &P, leaves: &[P::A64]) -> bool {
        let cleared = match <&[P::A64; MOST]>::try_from(leaves) {
            Ok(all) => unset::<P>(all, &[]),
            Err(_) => {
                let (head, rest) = parted::<P::A64, MOST>(leaves);
                unset::<P>(head, rest)
            }
        };
        if !cleared {
            return false;
        }
        p.publish(leaves);
        true
    }
}

/// Half of `MOST` leaves, and the rest: how many the former are is known to the compiler. None at
/// all where there are fewer, or `MOST` is 1.
#[inline(always)]
fn parted<A, const MOST: usize>(leaves: &[A]) -> (&[A], &[A]) {
    if MOST == 1 {
        return (&[], &[]);
    }
    let parted = leaves.split_at_checked((MOST / 2).max(1));
    parted.unwrap_or((&[], &[]))
}

/// What marks add to a leaf of one page that has none.
#[inline(always)]
fn marking<F: Format>(marks: LeafMarks) -> u64 {
    let with = |marks| F::leaf(PhysPage(0), Perm::Read, marks, 1);
    with(marks) - with(LeafMarks::NONE)
}

/// Writes the leaves of `head` and `rest`, which lie in a row, the first one being `bare` without
/// marks, unless one of them is not absent, or there are none; returns whether.
#[inline(always)]
fn set<P: Platform, F: Format>(
    head: &[P::A64],
    rest: &[P::A64],
    bare: u64,
    begins: LeafMarks,
) -> bool {
    let taken = |all, leaf: &P::A64| all | leaf.load(Ordering::Relaxed);
    if rest.iter().fold(head.iter().fold(0, taken), taken) != 0 {
        return false;
    }
    let write = |next, leaf: &P::A64| {
        leaf.store(next, Ordering::Release);
        F::next_leaf(next)
    };
    let ends = marking::<F>(LeafMarks::LAST);
    let begins = bare + marking::<F>(begins);
    match (head, rest) {
        ([only], []) => only.store(begins + ends, Ordering::Release),
        ([first, inner @ .., last], []) => {
            first.store(begins, Ordering::Release);
            let next = inner.iter().fold(F::next_leaf(bare), write);
            last.store(next + ends, Ordering::Release);
        }
        ([first, inner @ ..], [beyond @ .., last]) => {
            first.store(begins, Ordering::Release);
            let next = inner.iter().fold(F::next_leaf(bare), write);
            let next = beyond.iter().fold(next, write);
            last.store(next + ends, Ordering::Release);
        }
        ([], _) => return false,
    }
    true
}

/// Clears the leaves of `head` and `rest`, unless the first or the last one is absent, or there
/// are none; returns whether.
#[inline(always)]
fn unset<P: Platform>(head: &[P::A64], rest: &[P::A64]) -> bool {
    let is_absent = |leaf: &P::A64| leaf.load(Ordering::Relaxed) == 0;
    let (first, last) = match (head, rest) {
        ([only], []) => (only, None),
        ([first, .., last], []) | ([first, ..], [.., last]) => (first, Some(last)),
        ([], _) => return false,
    };
    if is_absent(first) || last.is_some_and(is_absent) {
        return false;
    }
    let clear = |leaf: &P::A64| leaf.store(0, Ordering::Relaxed);
    head.iter().for_each(clear);
    rest.iter().for_each(clear);
    true
}
