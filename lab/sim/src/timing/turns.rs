// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Whose turn it is: the least of a few moments, each of which changes often. A tree of winners: a
//! change costs the depth.

pub(crate) struct Turns {
    /// The tree's leaves are the second half; each node above has the lesser of its two children.
    /// Node 0 is unused.
    nodes: Vec<Turn>,
    leaves: usize,
}

/// A moment and a slot, so that of equal moments the lower slot comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Turn(u64);

/// Bits of a [`Turn`] for the slot; 55 bits of cycles are 170 days.
const SLOT_BITS: u32 = 9;

impl Turn {
    pub(crate) const NEVER: Turn = Turn(u64::MAX);

    pub(crate) fn new(time: u64, slot: usize) -> Turn {
        Turn(time << SLOT_BITS | slot as u64)
    }
    pub(crate) fn time(self) -> u64 {
        self.0 >> SLOT_BITS
    }
    pub(crate) fn slot(self) -> usize {
        (self.0 & ((1 << SLOT_BITS) - 1)) as usize
    }
}

impl Turns {
    /// `slots` slots, none of which has a turn.
    pub(crate) fn new(slots: usize) -> Self {
        let leaves = slots.next_power_of_two();
        Turns {
            nodes: vec![Turn::NEVER; 2 * leaves],
            leaves,
        }
    }
    /// The slot's turn is at `time`.
    pub(crate) fn set(&mut self, slot: usize, time: u64) {
        self.put(slot, Turn::new(time, slot));
    }
    /// The slot has no turn.
    pub(crate) fn clear(&mut self, slot: usize) {
        self.put(slot, Turn::NEVER);
    }
    /// The first, or [`Turn::NEVER`].
    pub(crate) fn first(&self) -> Turn {
        self.nodes[1]
    }

    fn put(&mut self, slot: usize, turn: Turn) {
        let mut node = self.leaves + slot;
        self.nodes[node] = turn;
        while node > 1 {
            let least = self.nodes[node].min(self.nodes[node ^ 1]);
            node /= 2;
            if self.nodes[node] == least {
                return;
            }
            self.nodes[node] = least;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_turn_is_the_least_and_of_equals_the_lowest_slot() {
        let mut turns = Turns::new(5);
        assert_eq!(turns.first(), Turn::NEVER);
        for (slot, time) in [(3, 7), (1, 9), (4, 7)] {
            turns.set(slot, time);
        }
        assert_eq!((turns.first().time(), turns.first().slot()), (7, 3));
        turns.clear(3);
        assert_eq!((turns.first().time(), turns.first().slot()), (7, 4));
        turns.set(4, 10);
        assert_eq!((turns.first().time(), turns.first().slot()), (9, 1));
    }
}
