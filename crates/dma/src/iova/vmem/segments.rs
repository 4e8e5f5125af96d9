// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Segments with boundary tags: the aperture, cut into free and allocated pieces, in the order of
//! their addresses.
//!
//! A segment knows its neighbours by address (its *boundary tags*), so that coalescing looks at two
//! slots and no more. Besides, it is in one list: a free list, or a chain of the hash table.

use crate::{iova::slots::*, units::*};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    Free,
    Allocated,
}

/// With its links, 40 bytes.
#[derive(Clone, Copy)]
pub struct Segment {
    pub(super) range: IovaRange,
    pub(super) state: State,
    /// The neighbour that ends where this one begins.
    pub(super) below: Link,
    /// The neighbour that begins where this one ends.
    pub(super) above: Link,
}

/// All segments, in order.
pub(super) struct Segments {
    pub(super) slots: Slots<Segment>,
    lowest: Link,
}

impl Segments {
    /// One free segment, which is all of `aperture`; none where that is empty.
    pub(super) fn new(aperture: IovaRange) -> Self {
        let mut slots = Slots::new();
        let whole = Segment {
            range: aperture,
            state: State::Free,
            below: NIL,
            above: NIL,
        };
        let lowest = if aperture.pages.0 > 0 {
            slots.add(whole)
        } else {
            NIL
        };
        Segments { slots, lowest }
    }

    pub(super) fn at(&self, at: Link) -> &Segment {
        self.slots.at(at)
    }
    pub(super) fn range(&self, at: Link) -> IovaRange {
        self.at(at).range
    }
    pub(super) fn set(&mut self, at: Link, state: State) {
        self.slots.at_mut(at).state = state;
    }
    pub(super) fn lowest(&self) -> Option<Link> {
        self.lowest.some()
    }
    /// From the lowest up.
    pub(super) fn iter(&self) -> impl Iterator<Item = Link> {
        core::iter::successors(self.lowest(), |at| self.at(*at).above.some())
    }
    /// The neighbours below and above that are free.
    pub(super) fn free_neighbours(&self, at: Link) -> [Option<Link>; 2] {
        let Segment { below, above, .. } = *self.at(at);
        let free = |at: &Link| self.at(*at).state == State::Free;
        [below, above].map(|at| at.some().filter(free))
    }

    /// Cuts `at` so that it ends at `end`, which lies inside; returns the new segment above,
    /// of the same state.
    pub(super) fn split(&mut self, at: Link, end: IovaPage) -> Link {
        let lower = *self.at(at);
        let pages = PageCount(end.0 - lower.range.first.0);
        let new = self.slots.add(Segment {
            range: IovaRange::new(end, PageCount(lower.range.pages.0 - pages.0)),
            below: at,
            ..lower
        });
        if let Some(above) = lower.above.some() {
            self.slots.at_mut(above).below = new;
        }
        let lower = self.slots.at_mut(at);
        lower.range.pages = pages;
        lower.above = new;
        new
    }

    /// Adds the segment `gone`, which is right above, to `at`.
    pub(super) fn join(&mut self, at: Link, gone: Link) {
        let Segment { range, above, .. } = *self.at(gone);
        if let Some(above) = above.some() {
            self.slots.at_mut(above).below = at;
        }
        let lower = self.slots.at_mut(at);
        lower.range.pages.0 += range.pages.0;
        lower.above = above;
        self.slots.remove(gone);
    }
}
