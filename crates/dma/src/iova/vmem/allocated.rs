// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The hash table of allocated segments, by first page.
//!
//! Chained through the segments themselves. It doubles when there are more segments than chains, so
//! that a chain has one segment on average; that is the one moment at which it is not constant. It
//! never shrinks.

use super::segments::Segments;
use crate::{iova::slots::*, platform::room::Larger, units::*};
use alloc::{vec, vec::Vec};

pub(super) struct Allocated {
    chains: Vec<Link>,
    len: usize,
}

/// Chains at first; a power of two.
const CHAINS: usize = 16;

impl Allocated {
    pub(super) fn new() -> Self {
        Allocated {
            chains: vec![NIL; CHAINS],
            len: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Multiplication by 2^64 / golden ratio spreads first pages that differ in a few bits only,
    /// as aligned ones do.
    fn chain(&self, first: IovaPage) -> usize {
        let spread = first.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (spread >> (u64::BITS - self.chains.len().trailing_zeros())) as usize
    }

    pub(super) fn add(&mut self, segments: &mut Segments, at: Link) {
        self.len += 1;
        self.link(segments, at);
    }

    /// Removes the segment of exactly `range`, if it is there. `looked` grows by the segments of
    /// the chain that were looked at.
    pub(super) fn remove(
        &mut self,
        segments: &mut Segments,
        range: IovaRange,
        looked: &mut u64,
    ) -> Option<Link> {
        let chain = self.chain(range.first);
        let (mut before, mut at) = (NIL, self.chains[chain]);
        while at != NIL {
            *looked += 1;
            let next = segments.slots.next(at);
            if segments.range(at) == range {
                match before.some() {
                    Some(before) => segments.slots.set_next(before, next),
                    None => self.chains[chain] = next,
                }
                self.len -= 1;
                return Some(at);
            }
            (before, at) = (at, next);
        }
        None
    }

    /// Whether the segment of exactly `range` is there.
    pub(super) fn holds(&self, segments: &Segments, range: IovaRange) -> bool {
        let head = self.chains[self.chain(range.first)].some();
        core::iter::successors(head, |at| segments.slots.next(*at).some())
            .any(|at| segments.range(at) == range)
    }

    fn link(&mut self, segments: &mut Segments, at: Link) {
        let chain = self.chain(segments.range(at).first);
        let next = core::mem::replace(&mut self.chains[chain], at);
        segments.slots.set_next(at, next);
    }

    /// Whether this many segments have chains.
    #[inline]
    pub(super) fn has_room(&self, segments: usize) -> bool {
        segments <= self.chains.len()
    }
    /// What is needed to have this many segments; `None` where they have chains.
    pub(super) fn short(&self, segments: usize) -> Option<Larger<Link>> {
        let short = !self.has_room(segments);
        short.then(|| Larger::new(segments.checked_next_power_of_two().unwrap_or(usize::MAX)))
    }

    /// Grows into what was allocated.
    pub(super) fn enlarge(&mut self, segments: &mut Segments, room: &mut Option<Larger<Link>>) {
        let Some(room) = room.as_mut().filter(|room| !self.has_room(room.places())) else {
            return;
        };
        for mut at in room.replace(&mut self.chains, NIL).iter().copied() {
            while at != NIL {
                let next = segments.slots.next(at);
                self.link(segments, at);
                at = next;
            }
        }
    }
}
