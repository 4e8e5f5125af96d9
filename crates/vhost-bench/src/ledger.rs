// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Which frames are out, back, or lost.
//!
//! Frames are numbered in the order in which they were made available, and a back end keeps it. So
//! a frame is *missing* once a later one came back; should it come after all, it is not lost.
//! Whatever is out when the back end has given every transmit buffer back and stays quiet is
//! *written off*: missing, too.
//!
//! A missing frame is lost *for want of a translation* if a miss arrived between its being sent and
//! its being missed. There was a receive buffer for it (the generator sends no more than there
//! are), so nothing but the back end's own queues can explain it otherwise.

/// Frames for which it is remembered what became of them.
const REMEMBERED: u64 = 1 << 16;

/// What a ledger counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    pub sent: u64,
    pub back: u64,
    pub lost: u64,
    pub lost_for_translation: u64,
}

/// Whether a frame was waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arrival {
    Expected,
    /// It was never sent, or that is too long ago to tell.
    Unknown,
    /// It was back already.
    Again,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Back,
    Missing,
    MissingForTranslation,
}

pub(crate) struct Ledger {
    /// Number of the next frame that is sent.
    next: u64,
    /// All before are back or missing.
    expected: u64,
    counts: Counts,
    /// By number, modulo their own length: misses that had arrived when it was sent;
    /// what became of it.
    misses: Vec<u32>,
    fates: Vec<Fate>,
}

fn slot(number: u64) -> usize {
    (number % REMEMBERED) as usize
}

impl Ledger {
    pub(crate) fn new() -> Self {
        Ledger {
            next: 0,
            expected: 0,
            counts: Counts::default(),
            misses: vec![0; REMEMBERED as usize],
            fates: vec![Fate::Back; REMEMBERED as usize],
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// Frames that were sent, and are neither back nor missing.
    #[inline]
    pub(crate) fn out(&self) -> u64 {
        self.next - self.expected
    }

    /// The number of a frame that is sent now, when `misses` misses have arrived.
    #[inline]
    pub(crate) fn send(&mut self, misses: u64) -> u64 {
        let number = self.next;
        self.next += 1;
        self.counts.sent += 1;
        self.misses[slot(number)] = misses as u32;
        number
    }

    /// A frame came back, when `misses` misses have arrived.
    #[inline]
    pub(crate) fn back(&mut self, number: u64, misses: u64) -> Arrival {
        if number >= self.next || number + REMEMBERED <= self.next {
            return Arrival::Unknown;
        }
        let fate = &mut self.fates[slot(number)];
        if number < self.expected {
            match std::mem::replace(fate, Fate::Back) {
                Fate::Back => return Arrival::Again,
                Fate::Missing => (),
                Fate::MissingForTranslation => self.counts.lost_for_translation -= 1,
            }
            self.counts.lost -= 1;
        } else {
            *fate = Fate::Back;
            self.miss_until(number, misses);
            self.expected = number + 1;
        }
        self.counts.back += 1;
        Arrival::Expected
    }

    /// Misses all that is out.
    pub(crate) fn write_off(&mut self, misses: u64) {
        self.miss_until(self.next, misses);
        self.expected = self.next;
    }

    fn miss_until(&mut self, end: u64, misses: u64) {
        for number in self.expected..end {
            let slot = slot(number);
            self.counts.lost += 1;
            self.fates[slot] = match self.misses[slot] == misses as u32 {
                true => Fate::Missing,
                false => {
                    self.counts.lost_for_translation += 1;
                    Fate::MissingForTranslation
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_lost_until_it_comes_late() {
        let mut ledger = Ledger::new();
        for _ in 0..6 {
            ledger.send(0);
        }
        assert_eq!(ledger.back(0, 0), Arrival::Expected);
        assert_eq!(ledger.back(3, 0), Arrival::Expected);
        assert_eq!((ledger.counts().lost, ledger.out()), (2, 2));
        assert_eq!(ledger.back(1, 0), Arrival::Expected);
        assert_eq!(ledger.back(1, 0), Arrival::Again);
        assert_eq!(ledger.back(6, 0), Arrival::Unknown);
        assert_eq!(ledger.counts().lost, 1);
        ledger.write_off(0);
        let counts = ledger.counts();
        assert_eq!((counts.sent, counts.back, counts.lost), (6, 3, 3));
        assert_eq!(ledger.out(), 0);
    }

    #[test]
    fn a_frame_is_lost_for_a_translation_if_one_was_asked_for_meanwhile() {
        let mut ledger = Ledger::new();
        ledger.send(4);
        ledger.send(5);
        ledger.send(5);
        assert_eq!(ledger.back(2, 5), Arrival::Expected);
        let counts = ledger.counts();
        assert_eq!((counts.lost, counts.lost_for_translation), (2, 1));
        assert_eq!(ledger.back(0, 5), Arrival::Expected);
        let counts = ledger.counts();
        assert_eq!((counts.lost, counts.lost_for_translation), (1, 0));
    }
}
