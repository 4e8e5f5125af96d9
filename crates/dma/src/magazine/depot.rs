// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The global store of full and of empty magazines, and how often CPUs came.

use crate::platform::*;
use alloc::vec::Vec;

/// How often a CPU had to go beyond its own magazines, summed over all CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Visits {
    /// To the depot, to take; in vain or not.
    pub depot_to_take: u64,
    /// To the depot, to give.
    pub depot_to_give: u64,
    /// Takes for which nothing was kept, so that the owner was asked.
    pub misses: u64,
    /// Full magazines that had no room in the depot, each of which went to the owner.
    pub overflows: u64,
}

/// The depot. Both vectors have room for `depot_full_max` magazines, and there are no
/// more in both together.
pub(super) struct Depot<T> {
    pub(super) full: Vec<Vec<T>>,
    pub(super) empty: Vec<Vec<T>>,
    /// The smallest lengths of both since [`Depot::idle`] was asked.
    pub(super) seen_min: (usize, usize),
    pub(super) visits: Visits,
}

/// What the depot does for a CPU whose magazines are both full.
pub(super) enum Exchange {
    Done,
    NoRoom,
    NoEmpty,
}

impl<T> Depot<T> {
    /// Exchanges an empty magazine, or none, for a full one, if there is one.
    pub(super) fn swap_if_full<P: Platform>(&mut self, magazine: &mut Vec<T>) -> bool {
        !self.full.is_empty() && self.swap_for_full::<P>(magazine)
    }

    /// Exchanges an empty magazine, or none, for a full one.
    pub(super) fn swap_for_full<P: Platform>(&mut self, magazine: &mut Vec<T>) -> bool {
        self.visits.depot_to_take += 1;
        let Some(full) = self.pop_full::<P>() else {
            self.visits.misses += 1;
            return false;
        };
        let empty = core::mem::replace(magazine, full);
        if empty.capacity() > 0 {
            self.put_empty::<P>(empty);
        }
        true
    }

    /// Exchanges a full magazine, or none, for an empty one, from the depot or `spare`.
    pub(super) fn swap_for_empty<P: Platform>(
        &mut self,
        magazine: &mut Vec<T>,
        spare: &mut Vec<T>,
        max: usize,
    ) -> Exchange {
        self.visits.depot_to_give += 1;
        if magazine.capacity() > 0 && self.full.len() == max {
            self.visits.overflows += 1;
            return Exchange::NoRoom;
        }
        let empty = match self.pop_empty::<P>() {
            Some(empty) => empty,
            None if spare.capacity() > 0 => core::mem::take(spare),
            None => return Exchange::NoEmpty,
        };
        let full = core::mem::replace(magazine, empty);
        if full.capacity() > 0 {
            P::A64::touches(|| Some((&self.full, self.full.len())));
            self.full.push(full);
        }
        Exchange::Done
    }

    pub(super) fn pop_full<P: Platform>(&mut self) -> Option<Vec<T>> {
        let full = self.full.pop();
        P::A64::touches(|| full.as_ref().map(|_| (&self.full[..], self.full.len())));
        self.seen_min.0 = self.seen_min.0.min(self.full.len());
        full
    }

    /// Takes the full magazine at `nth` out; the last one takes its place.
    pub(super) fn take_full<P: Platform>(&mut self, nth: usize) -> Vec<T> {
        P::A64::touches(|| Some((&self.full, self.full.len())));
        let full = self.full.swap_remove(nth);
        self.seen_min.0 = self.seen_min.0.min(self.full.len());
        full
    }

    pub(super) fn put_empty<P: Platform>(&mut self, empty: Vec<T>) {
        P::A64::touches(|| Some((&self.empty, self.empty.len())));
        self.empty.push(empty);
    }

    pub(super) fn pop_empty<P: Platform>(&mut self) -> Option<Vec<T>> {
        let empty = self.empty.pop();
        P::A64::touches(|| empty.as_ref().map(|_| (&self.empty[..], self.empty.len())));
        self.seen_min.1 = self.seen_min.1.min(self.empty.len());
        empty
    }

    /// How many full and empty magazines were never touched since this was last asked.
    pub(super) fn idle(&mut self) -> (usize, usize) {
        core::mem::replace(&mut self.seen_min, (self.full.len(), self.empty.len()))
    }
}
