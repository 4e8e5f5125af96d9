// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A hash table of things in [`Slots`], by a number: chained through the things themselves.
//!
//! It doubles when there are more things than chains, so that a chain has one thing on average;
//! that is the one moment at which it is not constant. It never shrinks. Several things may have
//! one number.

use super::slots::*;
use crate::platform::room::Larger;
use alloc::vec::Vec;

pub(crate) struct Chains {
    heads: Vec<Link>,
    len: usize,
}

/// Chains at first; a power of two.
const CHAINS: usize = 16;

impl Chains {
    /// Of nothing, which takes no memory.
    pub(crate) fn new() -> Self {
        Chains {
            heads: Vec::new(),
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Multiplication by 2^64 / golden ratio spreads numbers that differ in a few bits only, as
    /// aligned ones do.
    #[inline]
    fn chain(&self, number: u64) -> usize {
        let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (spread >> (u64::BITS - self.heads.len().trailing_zeros())) as usize
    }

    /// The first of the chain in which `number` would be.
    #[inline]
    fn head(&self, number: u64) -> Link {
        self.heads.get(self.chain(number)).copied().unwrap_or(NIL)
    }

    /// Adds what is in a slot and in no list; there is [room](Self::has_room).
    pub(crate) fn add<T>(&mut self, slots: &mut Slots<T>, number: u64, at: Link) {
        self.len += 1;
        self.link(slots, number, at);
    }

    /// Removes the one of that number that is `it`, if it is there.
    pub(crate) fn remove<T>(
        &mut self,
        slots: &mut Slots<T>,
        number: u64,
        mut it: impl FnMut(Link, &T) -> bool,
    ) -> Option<Link> {
        let (mut before, mut at) = (NIL, self.head(number));
        while at != NIL {
            let next = slots.next(at);
            if it(at, slots.at(at)) {
                match before.some() {
                    Some(before) => slots.set_next(before, next),
                    None => {
                        let chain = self.chain(number);
                        self.heads[chain] = next;
                    }
                }
                self.len -= 1;
                return Some(at);
            }
            (before, at) = (at, next);
        }
        None
    }

    /// What is in the chain of that number, others among it.
    pub(crate) fn chained<'s, T>(
        &self,
        slots: &'s Slots<T>,
        number: u64,
    ) -> impl Iterator<Item = Link> + use<'s, T> {
        core::iter::successors(self.head(number).some(), |at| slots.next(*at).some())
    }

    #[inline]
    fn link<T>(&mut self, slots: &mut Slots<T>, number: u64, at: Link) {
        let chain = self.chain(number);
        let next = core::mem::replace(&mut self.heads[chain], at);
        slots.set_next(at, next);
    }

    /// Whether so many things have chains.
    #[inline]
    pub(crate) fn has_room(&self, things: usize) -> bool {
        things <= self.heads.len()
    }
    /// What is needed to have so many things; `None` where they have chains.
    pub(crate) fn short(&self, things: usize) -> Option<Larger<Link>> {
        let chains = || things.max(CHAINS).checked_next_power_of_two();
        (!self.has_room(things)).then(|| Larger::new(chains().unwrap_or(usize::MAX)))
    }

    /// Grows into what was allocated.
    pub(crate) fn enlarge<T>(
        &mut self,
        slots: &mut Slots<T>,
        room: &mut Option<Larger<Link>>,
        number: impl Fn(&T) -> u64,
    ) {
        let Some(room) = room.as_mut().filter(|room| !self.has_room(room.places())) else {
            return;
        };
        for mut at in room.replace(&mut self.heads, NIL).iter().copied() {
            while at != NIL {
                let next = slots.next(at);
                self.link(slots, number(slots.at(at)), at);
                at = next;
            }
        }
    }
}
