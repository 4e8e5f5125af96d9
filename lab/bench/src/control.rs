// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The control: what a map and an unmap are made of, in private memory.
//!
//! # Theory
//!
//! A figure in nanoseconds is of a machine at a moment: a busy neighbour on the same core makes
//! everything that runs on it slower, by half or more. So each slice has a control slice near it,
//! and the ratio of the two is what can be compared. The control does what the fast path of a map
//! and unmap has to do, and shares nothing:
//!
//! * take: pops a number off a stack, as from a magazine; follows three dependent loads to a leaf
//!   table; tests and stores one entry a page; adds to three counters.
//! * give: follows the same three loads; tests and stores one entry a page; a full fence; adds to
//!   three counters; pushes the number.
//!
//! The pattern around it is the subject's own, so that rings and random places are in both. Leaf
//! tables have 512 entries of 8 bytes, as real ones, and are as many as the numbers need; a
//! private table is what no other thread's CPU ever touches, so two threads of it slow down only
//! as the machine makes them.

use crate::{Failure, Subject, platform::Slots, stack::Stacks};
use ioatlas_dma::{
    platform::Ordering,
    units::{IovaRange, PageCount},
};
use std::sync::Arc;

/// Entries of a table of any level, as log2.
const ENTRIES_LG2: u32 = 9;
const ENTRIES: usize = 1 << ENTRIES_LG2;

/// The control loop as a subject; what a thread touches is in its hand.
pub struct Control<P: Slots> {
    platform: Arc<P>,
}

impl<P: Slots> Control<P> {
    /// With the fences of `platform`.
    pub fn new(platform: Arc<P>) -> Self {
        Control { platform }
    }
}

/// All that a thread touches.
pub struct Private {
    numbers: Stacks,
    tables: Tables,
    counters: [u64; 6],
}

/// Whether an entry is expected to be there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Present {
    Yes,
    No,
}

/// Three levels of indices over leaf tables, each in a vector of its own.
#[derive(Default)]
struct Tables {
    root: Vec<u32>,
    middle: Vec<u32>,
    leaves: Vec<[u64; ENTRIES]>,
}

impl Tables {
    /// The leaf table of page `page`, and where in it the page is.
    #[inline]
    fn leaf(&mut self, page: u64) -> (usize, usize) {
        let table = (page >> ENTRIES_LG2) as usize;
        if table >= self.leaves.len() {
            self.grow(table);
        }
        let middle = self.root[table >> ENTRIES_LG2] as usize;
        let leaf = self.middle[middle + (table & (ENTRIES - 1))] as usize;
        (leaf, page as usize & (ENTRIES - 1))
    }
    #[cold]
    fn grow(&mut self, table: usize) {
        while self.leaves.len() <= table {
            if self.leaves.len().is_multiple_of(ENTRIES) {
                self.root.push(self.middle.len() as u32);
            }
            self.middle.push(self.leaves.len() as u32);
            self.leaves.push([0; ENTRIES]);
        }
    }
    /// Exchanges the entries of `range`, whose ranges are aligned, so that all are in one table.
    /// True if all were as expected.
    #[inline]
    fn write(&mut self, range: IovaRange, entry: impl Fn(u64) -> u64, present: Present) -> bool {
        let (leaf, first) = self.leaf(range.first.0);
        let mut fine = true;
        for (nth, place) in (0..range.pages.0).zip(&mut self.leaves[leaf][first..]) {
            fine &= (*place != 0) == (present == Present::Yes);
            *place = entry(nth);
        }
        fine
    }
}

impl<P: Slots> Subject for Control<P> {
    type Token = IovaRange;
    type Hand = Private;

    fn hand(&self, _: usize) -> Private {
        self.platform.enter();
        Private {
            numbers: Stacks::of_thread(0),
            tables: Tables::default(),
            counters: [0; 6],
        }
    }
    #[inline]
    fn take(&self, own: &mut Private, pages: PageCount) -> Result<IovaRange, Failure> {
        let first = own.numbers.pop(pages)?;
        let range = IovaRange::new(first, pages);
        let entry = |nth: u64| (first.0 + nth) << 12 | 3;
        if !own.tables.write(range, entry, Present::No) {
            return Err(Failure::new(format!("{range} is in use")));
        }
        own.counters[0] += 1;
        own.counters[1] += pages.0;
        own.counters[2] += pages.0.next_power_of_two();
        Ok(range)
    }
    #[inline]
    fn give(&self, own: &mut Private, range: IovaRange) -> Result<(), Failure> {
        if !own.tables.write(range, |_| 0, Present::Yes) {
            return Err(Failure::new(format!("{range} is not in use")));
        }
        self.platform.fence(Ordering::SeqCst);
        own.counters[3] += 1;
        own.counters[4] += range.pages.0;
        own.counters[5] += range.pages.0.next_power_of_two();
        own.numbers.push(range)
    }
}
