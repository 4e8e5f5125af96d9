// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Laying a span of pages out anew.

use super::{
    writer::{Dead, Edit},
    *,
};

/// A slot: the root, or a word of a table; and the pages that it stands for.
#[derive(Clone, Copy)]
struct At {
    slot: Option<Addr>,
    region: Span,
}

/// What is laid out: `hole` belongs to `owner` from now on, or to no run; any other run that had
/// pages there keeps the rest.
pub(super) struct Layout {
    pub hole: Span,
    pub owner: Option<Owner>,
}

/// The run that is to have the hole.
#[derive(Clone, Copy)]
pub(super) struct Owner {
    /// As it is to be, the hole in it.
    pub fields: Fields,
    /// Its record, filled in already. A run that a slot can be has none until it comes to a slot
    /// that cannot be it.
    pub record: Option<Addr>,
}

/// A run that had pages in the hole.
#[derive(Clone, Copy)]
pub(super) enum Touched {
    Record(Addr),
    Page(Fields),
}

impl Owner {
    fn span(&self) -> Span {
        let (first, end) = (self.fields.first, self.fields.end);
        Span { first, end }
    }
}

impl<P: TreeMemory, S: Shape> Edit<'_, P, S> {
    /// Lays `layout` out, then trims the runs that had pages there. There are tables and records
    /// for it: see `Edit::reserve`.
    pub fn lay_out(&mut self, mut layout: Layout, cause: RemovalCause) {
        let root = At {
            slot: None,
            region: Span {
                first: 0,
                end: 1 << (S::BITS * S::LEVELS),
            },
        };
        self.paint(root, &mut layout);
        self.trim(&layout, cause);
    }

    /// What a slot of `region` says whose only run is `owner`.
    fn leaf(&mut self, owner: &mut Owner, region: Span) -> Slot {
        let record = match (owner.record, owner.fields.as_page()) {
            (Some(record), _) => record,
            (None, Some(page)) if region.is_page() => return page,
            (None, _) => self.new_run(owner.fields),
        };
        owner.record = Some(record);
        Slot::Leaf(record)
    }

    /// The same for a run that has a record, which goes where the slot can be the run.
    fn leaf_of(&mut self, record: Addr, region: Span) -> Slot {
        if region.is_page()
            && let Some(page) = self.tree.run(record).as_page()
        {
            self.retire(Dead::Run(record));
            return page;
        }
        Slot::Leaf(record)
    }

    fn paint(&mut self, at: At, layout: &mut Layout) {
        let Some(hole) = layout.hole.and(at.region) else {
            return;
        };
        let old = self.tree.slot(at.slot);
        match &mut layout.owner {
            Some(owner) if owner.span().contains(at.region) => {
                let new = self.leaf(owner, at.region);
                if old != new {
                    self.tree.set_slot(at.slot, new);
                    self.drop_below(old, at.region);
                }
                return;
            }
            None if layout.hole.contains(at.region) => {
                self.tree.set_slot(at.slot, Slot::Empty);
                self.drop_below(old, at.region);
                return;
            }
            _ => {}
        }
        match old {
            Slot::Empty => {
                if let Some(owner) = &mut layout.owner {
                    let new = self.leaf(owner, at.region);
                    self.tree.set_slot(at.slot, new);
                }
            }
            // a slot of one page, which is in the hole, or not
            Slot::Page { .. } => {}
            Slot::Leaf(run) => self.paint_leaf(at, run, layout),
            Slot::Table(table, shift) => {
                let mut inner = self.region(table, shift);
                let mut table = (table, shift);
                if layout.owner.is_some() && !inner.contains(hole) {
                    // the table is too small: one above it, which has it in one of its slots
                    let all = Span {
                        first: inner.first.min(hole.first),
                        end: inner.end.max(hole.end),
                    };
                    let (above, shift) = self.new_table(all);
                    let region = self.region(above, shift);
                    self.tree
                        .set_slot(Some(slot_of::<S>(above, shift, inner.first)), old);
                    self.tree.set_slot(at.slot, Slot::Table(above, shift));
                    (table, inner) = ((above, shift), region);
                }
                let Some(hole) = hole.and(inner) else { return };
                for below in slots(table, inner, hole) {
                    self.paint(below, layout);
                }
                self.collapse(at.slot, table.0);
            }
        }
    }

    /// A slot that one other run had for itself.
    fn paint_leaf(&mut self, at: At, other: Addr, layout: &mut Layout) {
        if layout
            .owner
            .is_some_and(|owner| owner.record == Some(other))
        {
            return;
        }
        self.touched.push(Touched::Record(other));
        let fields = self.tree.run(other);
        let kept = fields.span().and_then(|span| span.minus(layout.hole));
        let kept = kept.and_then(|kept| kept.and(at.region));
        let slot = match (&mut layout.owner, kept) {
            (None, Some(_)) => return,
            (None, None) => Slot::Empty,
            (Some(owner), None) => self.leaf(owner, at.region),
            (Some(owner), Some(kept)) => {
                let span = owner.span().and(at.region).unwrap_or(kept);
                self.two((other, kept), span, owner)
            }
        };
        self.tree.set_slot(at.slot, slot);
    }

    /// A table for another run, for `span` of the owner, and for no third run.
    fn two(&mut self, other: (Addr, Span), span: Span, owner: &mut Owner) -> Slot {
        let (other, kept) = other;
        let all = Span {
            first: kept.first.min(span.first),
            end: kept.end.max(span.end),
        };
        let (table, shift) = self.new_table(all);
        let region = self.region(table, shift);
        for at in slots((table, shift), region, all) {
            let slot = match (kept.and(at.region), span.and(at.region)) {
                (None, None) => continue,
                (Some(_), None) => self.leaf_of(other, at.region),
                (None, Some(_)) => self.leaf(owner, at.region),
                (Some(kept), Some(span)) => self.two((other, kept), span, owner),
            };
            self.tree.set_slot(at.slot, slot);
        }
        Slot::Table(table, shift)
    }

    /// An empty table, not in the tree yet, just large enough for `all`, which has
    /// two pages or more.
    fn new_table(&mut self, all: Span) -> (Addr, u32) {
        let differ = 63 - (all.first ^ (all.end - 1)).leading_zeros();
        let shift = differ / S::BITS * S::BITS;
        let base = all.first & !((1u64 << (shift + S::BITS)) - 1);
        (self.alloc_table(base), shift)
    }

    /// Whether a run goes when `span` becomes another one's, and how many tables go with it: those
    /// of which it has all pages.
    pub(super) fn replaced_by(&self, span: Span) -> (bool, u64) {
        self.replaced_below(None, span)
    }
    fn replaced_below(&self, at: Option<Addr>, span: Span) -> (bool, u64) {
        let Slot::Table(table, shift) = self.tree.slot(at) else {
            let run = self.tree.span_in(at);
            return (run.is_some_and(|run| span.contains(run)), 0);
        };
        let region = self.region(table, shift);
        let Some(both) = region.and(span) else {
            return (false, 0);
        };
        let mut all = (false, u64::from(span.contains(region)));
        for below in slots((table, shift), region, both) {
            let (run, tables) = self.replaced_below(below.slot, span);
            all = (all.0 || run, all.1 + tables);
        }
        all
    }

    /// The pages of a table.
    fn region(&self, table: Addr, shift: u32) -> Span {
        let first = self.tree.base(table);
        Span {
            first,
            end: first + (1 << (shift + S::BITS)),
        }
    }

    /// What was in a slot is not any more: its runs are touched, its tables retired.
    fn drop_below(&mut self, old: Slot, region: Span) {
        match old {
            Slot::Empty => {}
            Slot::Leaf(run) => self.touched.push(Touched::Record(run)),
            Slot::Page { host, perm } => {
                let fields = Fields::of_page(region.first, host, perm);
                self.touched.push(Touched::Page(fields));
            }
            Slot::Table(table, shift) => {
                let region = self.region(table, shift);
                for at in slots((table, shift), region, region) {
                    self.drop_below(self.tree.slot(at.slot), at.region);
                }
                self.retire(Dead::Table(table));
            }
        }
    }

    /// A table in which nothing branches any more goes; but one of a single page stays, as a slot
    /// above could not be that run.
    fn collapse(&mut self, at: Option<Addr>, table: Addr) {
        let mut only = Slot::Empty;
        for index in 0..1 << S::BITS {
            match self.tree.slot(Some(table + index)) {
                Slot::Empty => {}
                Slot::Page { .. } => return,
                slot if only == Slot::Empty => only = slot,
                slot if only != slot => return,
                _ => {}
            }
        }
        self.tree.set_slot(at, only);
        self.retire(Dead::Table(table));
    }

    /// Takes the pages of the hole from the runs that had them.
    fn trim(&mut self, layout: &Layout, cause: RemovalCause) {
        while let Some(touched) = self.touched.pop() {
            let (fields, gone) = match touched {
                Touched::Page(fields) => {
                    self.writer.runs -= 1;
                    (fields, fields.span())
                }
                Touched::Record(run) if layout.owner.is_some_and(|o| o.record == Some(run)) => {
                    continue;
                }
                Touched::Record(run) => {
                    let fields = self.tree.run(run);
                    (fields, self.trim_record(run, &fields, layout.hole))
                }
            };
            let Some(gone) = gone else {
                continue; // trimmed already
            };
            // what the new run translates as the old one did has not gone
            if !layout
                .owner
                .is_some_and(|owner| owner.fields.is_like(&fields))
            {
                self.replaced = true;
                self.writer.removed(gone, cause);
            }
        }
    }

    /// Takes the pages of the hole from a record; which it had.
    fn trim_record(&mut self, run: Addr, fields: &Fields, hole: Span) -> Option<Span> {
        let span = fields.span()?;
        let gone = span.and(hole)?;
        match span.minus(hole) {
            None => {
                self.tree.set_end(run, 0);
                self.writer.runs -= 1;
                self.retire(Dead::Run(run));
            }
            Some(kept) if kept.first == span.first => self.tree.set_end(run, kept.end),
            Some(kept) => self.tree.set_first(run, kept.first, fields.perm),
        }
        Some(gone)
    }
}

/// Where the slot for `page` is.
fn slot_of<S: Shape>(table: Addr, shift: u32, page: u64) -> Addr {
    table + (page >> shift & ((1 << S::BITS) - 1))
}

/// The slots of a table of these pages that have any of `span`.
fn slots((table, shift): (Addr, u32), region: Span, span: Span) -> impl Iterator<Item = At> {
    let first = (span.first - region.first) >> shift;
    let last = (span.end - 1 - region.first) >> shift;
    (first..=last).map(move |index| At {
        slot: Some(table + index),
        region: Span {
            first: region.first + (index << shift),
            end: region.first + ((index + 1) << shift),
        },
    })
}
