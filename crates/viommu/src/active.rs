// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Accesses in flight: what an invalidation marks and drains.
//!
//! An access is in flight from its begin to its finish, because data still moves after the
//! translation is done. An invalidation concerns it if it may still fill, or still use, an entry
//! that the invalidation names: a page within its reach (its own, those it reads ahead, those of
//! the large leaf that it uses or may be about to read), or, where walk caches are meant too, any
//! page below the table that it is about to read. While its domain is not known yet, every domain
//! may be its own.

use crate::{
    config::Geometry,
    invalidation::{ContextSelection, Drain, Selection},
    observe::AccessId,
};
use ioatlas_dma::{invalidation::Caches, units::*};

/// Where a walk is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pointer {
    /// About to read a root or context table.
    Context(PhysPage),
    /// About to read a table at a level.
    Table(PhysPage, u32),
    /// Nowhere: translated, blocked, or read ahead to the end.
    None,
}

pub(crate) struct Active {
    pub(crate) id: AccessId,
    pub(crate) source: SourceId,
    pub(crate) kind: AccessKind,
    pub(crate) page: IovaPage,
    /// The first and the last page that it may fill, once it is known which leaf it uses;
    /// before that, of pages.
    pub(crate) first: IovaPage,
    pub(crate) last: IovaPage,
    pub(crate) domain: Option<DomainId>,
    /// The device has the translation. Unless it still reads ahead, only an invalidation of the
    /// device's TLB waits for it.
    pub(crate) own: bool,
    pub(crate) pointer: Pointer,
    /// An invalidation overtook it: it must not fill IOTLB or walk caches.
    pub(crate) overtaken: bool,
    /// The same for the context cache.
    pub(crate) context_overtaken: bool,
    /// The invalidation at the head of the queue waits for it.
    pub(crate) blocks: bool,
}

impl Active {
    fn concerned(&self, selection: &Selection, caches: Caches, shape: Shape) -> bool {
        let domain = match (self.domain, selection) {
            (Some(domain), _) => domain,
            (None, Selection::Global) => return true,
            (None, Selection::Domain(d) | Selection::Pages(d, _)) => *d,
        };
        let below = |span: u32| selection.meets_span(domain, self.page.0 >> span, span);
        // what it reads next may be a leaf as large as they come
        let leaf = |level: u32| {
            let level = level.min(shape.largest_leaf);
            below(shape.geometry.leaf_span_lg2(level))
        };
        let ahead = match (self.pointer, caches) {
            (Pointer::Context(_), Caches::LeavesAndWalks) => true,
            (Pointer::Context(_), Caches::Leaves) => leaf(shape.largest_leaf),
            (Pointer::Table(_, level), Caches::LeavesAndWalks) => {
                below(shape.geometry.table_span_lg2(level))
            }
            (Pointer::Table(_, level), Caches::Leaves) => leaf(level),
            (Pointer::None, _) => false,
        };
        ahead || selection.meets(domain, self.first, self.last)
    }
}

/// What bounds the pages that a walk may fill.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) geometry: Geometry,
    pub(crate) largest_leaf: u32,
}

/// Names an access while it is in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ticket(usize);

/// The accesses in flight.
#[derive(Default)]
pub(crate) struct InFlightSet {
    slots: Vec<Option<Active>>,
    free: Vec<usize>,
}

impl InFlightSet {
    pub(crate) fn enter(&mut self, active: Active) -> Ticket {
        Ticket(match self.free.pop() {
            Some(slot) => {
                self.slots[slot] = Some(active);
                slot
            }
            None => {
                self.slots.push(Some(active));
                self.slots.len() - 1
            }
        })
    }
    pub(crate) fn get(&mut self, ticket: Ticket) -> Option<&mut Active> {
        self.slots[ticket.0].as_mut()
    }
    pub(crate) fn leave(&mut self, ticket: Ticket) -> Option<Active> {
        let active = self.slots[ticket.0].take();
        if active.is_some() {
            self.free.push(ticket.0);
        }
        active
    }
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Active> {
        self.slots.iter().flatten()
    }
    /// Marks what the invalidation concerns and drains; returns how many that were.
    pub(crate) fn drain(
        &mut self,
        selection: &Selection,
        caches: Caches,
        drain: Drain,
        shape: Shape,
    ) -> usize {
        let mut marked = 0;
        for active in self.slots.iter_mut().flatten() {
            let beyond = active.own && active.pointer == Pointer::None;
            if !beyond && drain.covers(active.kind) && active.concerned(selection, caches, shape) {
                (active.overtaken, active.blocks) = (true, true);
                marked += 1;
            }
        }
        marked
    }
    /// Marks the accesses of a device by translations of its own; returns how many that were.
    pub(crate) fn drain_device(&mut self, source: SourceId, pages: IovaRange) -> usize {
        let mut marked = 0;
        for active in self.slots.iter_mut().flatten() {
            let named = pages.first <= active.page && active.page < pages.end();
            if active.own && active.source == source && named {
                active.blocks = true;
                marked += 1;
            }
        }
        marked
    }
    /// Keeps what is reading an entry that the invalidation names from caching it.
    pub(crate) fn overtake_contexts(&mut self, selection: &ContextSelection) {
        for active in self.slots.iter_mut().flatten() {
            active.context_overtaken |= selection.names(active.source, active.domain);
        }
    }
    /// The queue waits for none any more.
    pub(crate) fn unblock(&mut self) {
        for active in self.slots.iter_mut().flatten() {
            active.blocks = false;
        }
    }
    pub(crate) fn blocking(&self) -> usize {
        self.iter().filter(|a| a.blocks).count()
    }
    pub(crate) fn points_to(&self, frame: PhysPage) -> bool {
        self.iter().any(|a| match a.pointer {
            Pointer::Context(at) | Pointer::Table(at, _) => at == frame,
            Pointer::None => false,
        })
    }
}
