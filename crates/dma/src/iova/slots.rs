// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Things in the slots of one vector, each with two links for the one list that it is in.
//!
//! Links are indices, so lists need no unsafe code. Slots are never given back but chained as
//! spare, so that nothing is allocated once there have been as many things as ever will be.

use crate::platform::room::Larger;
use alloc::vec::Vec;

/// The number of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link(u32);

/// No slot: where a list ends.
pub(crate) const NIL: Link = Link(u32::MAX);

impl Link {
    pub(crate) fn some(self) -> Option<Link> {
        (self != NIL).then_some(self)
    }
}

pub struct Slot<T> {
    thing: T,
    next: Link,
    prev: Link,
}

pub(crate) struct Slots<T> {
    slots: Vec<Slot<T>>,
    spare: Link,
    len: usize,
}

impl<T> Slots<T> {
    pub(crate) fn new() -> Self {
        Slots {
            slots: Vec::new(),
            spare: NIL,
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
    /// Whether this many things have room.
    #[inline]
    pub(crate) fn has_room(&self, things: usize) -> bool {
        Larger::has(&self.slots, things)
    }
    /// What is needed to have this many things; `None` where they have room.
    pub(crate) fn short(&self, things: usize) -> Option<Larger<Slot<T>>> {
        Larger::of(&self.slots, things)
    }
    /// Grows into what was allocated.
    pub(crate) fn enlarge(&mut self, room: &mut Option<Larger<Slot<T>>>) {
        if let Some(room) = room {
            room.take_over(&mut self.slots);
        }
    }
    pub(crate) fn at(&self, at: Link) -> &T {
        &self.slots[at.0 as usize].thing
    }
    pub(crate) fn at_mut(&mut self, at: Link) -> &mut T {
        &mut self.slots[at.0 as usize].thing
    }
    /// The next in its list.
    pub(crate) fn next(&self, at: Link) -> Link {
        self.slots[at.0 as usize].next
    }
    /// The one before in its list, where lists go both ways.
    pub(crate) fn prev(&self, at: Link) -> Link {
        self.slots[at.0 as usize].prev
    }
    pub(crate) fn set_next(&mut self, at: Link, next: Link) {
        self.slots[at.0 as usize].next = next;
    }
    pub(crate) fn set_prev(&mut self, at: Link, prev: Link) {
        self.slots[at.0 as usize].prev = prev;
    }

    /// Adds a thing that is in no list, for which there is [room](Self::has_room).
    #[inline]
    pub(crate) fn add(&mut self, thing: T) -> Link {
        self.len += 1;
        let Some(at) = self.spare.some() else {
            let index = u32::try_from(self.slots.len()).ok();
            let at = index.map(Link).and_then(Link::some);
            self.slots.push(Slot {
                thing,
                next: NIL,
                prev: NIL,
            });
            return at.expect("below 2^32 - 1 things");
        };
        let slot = &mut self.slots[at.0 as usize];
        self.spare = slot.next;
        (slot.next, slot.prev) = (NIL, NIL);
        slot.thing = thing;
        at
    }

    /// Makes the slot spare; the thing in it must be in no list.
    pub(crate) fn remove(&mut self, at: Link) {
        self.set_next(at, self.spare);
        self.spare = at;
        self.len -= 1;
    }

    /// The next slot `after` this one whose thing is `wanted`; those of spare slots are asked, too.
    pub(crate) fn search(&self, after: Option<Link>, wanted: impl Fn(&T) -> bool) -> Option<Link> {
        let from = after.map_or(0, |at| at.0 as usize + 1);
        let mut rest = self.slots.iter().skip(from);
        let found = from + rest.position(|slot| wanted(&slot.thing))?;
        Some(Link(found as u32))
    }

    /// Whether each slot is in use or spare.
    pub(crate) fn adds_up(&self) -> bool {
        let spare = core::iter::successors(self.spare.some(), |at| self.next(*at).some());
        self.len + spare.take(self.slots.len() + 1).count() == self.slots.len()
    }
}
