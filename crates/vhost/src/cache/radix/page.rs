// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The fast path of an edit: one page that a slot stands for, and that neither was nor becomes a
//! part of a larger run. One slot is written, so nothing is in between that a reader should look at
//! again.

use super::{writer::Edit, *};

impl<P: TreeMemory, S: Shape> Edit<'_, P, S> {
    /// Puts `new`, a run of one page, into its slot; `None` where that is not all there is to do.
    #[inline]
    pub(super) fn put_page(
        &mut self,
        new: &Fields,
        alike: impl Fn(&Fields) -> bool,
    ) -> Option<Updated> {
        let page = new.first;
        let slot = new.as_page()?;
        let (at, old) = self.tree.slot_of_page(page)?;
        let fresh = match old {
            Slot::Empty => true,
            Slot::Page { .. } if old == slot => return Some(Updated::Unchanged),
            Slot::Page { .. } => false,
            _ => return None,
        };
        if fresh && !self.writer.has_room() {
            return None;
        }
        let index = at & ((1 << S::BITS) - 1);
        let left = match index {
            0 => page.checked_sub(1).and_then(|page| self.fields_of(page)),
            _ => self.fields_in(at - 1, page - 1),
        };
        let right = match (index + 1) >> S::BITS {
            0 => self.fields_in(at + 1, page + 1),
            _ => self.fields_of(page + 1),
        };
        if left.is_some_and(|left| alike(&left)) || right.is_some_and(|right| alike(&right)) {
            return None;
        }
        self.tree.set_slot(Some(at), slot);
        match fresh {
            true => self.writer.runs += 1,
            false => {
                let (first, end) = (page, page + 1);
                self.writer
                    .removed(Span { first, end }, RemovalCause::Replaced);
                self.tree.epochs.advance(); // remembered translations are looked up again
            }
        }
        self.writer.upkeep.stats.updates += 1;
        Some(Updated::Done)
    }

    /// Takes the run of one page out of its slot; says whether that was all there is to do.
    #[inline]
    pub(super) fn take_page(&mut self, span: Span) -> bool {
        let Some((at, Slot::Page { .. })) = self.tree.slot_of_page(span.first) else {
            return false;
        };
        let table = at >> S::BITS << S::BITS;
        let mut others = (table..table + (1 << S::BITS)).filter(|other| *other != at);
        let is_page = |slot: u64| matches!(self.tree.slot(Some(slot)), Slot::Page { .. });
        // else the table may have to go
        if !others.any(is_page) {
            return false;
        }
        self.tree.set_slot(Some(at), Slot::Empty);
        self.writer.runs -= 1;
        self.writer.removed(span, RemovalCause::Invalidated);
        true
    }

    fn fields_of(&self, page: u64) -> Option<Fields> {
        self.tree.find(page).map(|(_, fields)| fields)
    }
    /// The run that has `page`, whose slot this is.
    #[inline]
    fn fields_in(&self, slot: Addr, page: u64) -> Option<Fields> {
        match self.tree.slot(Some(slot)) {
            Slot::Page { host, perm } => Some(Fields::of_page(page, host, perm)),
            Slot::Leaf(run) => Some(self.tree.run(run)).filter(|run| run.has(page)),
            _ => None,
        }
    }
}
