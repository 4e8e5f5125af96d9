// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Learning which road is cheaper here: mapping, or copying.
//!
//! # Theory
//!
//! What a map and its unmap take together is measured, for each size (in powers of two of pages) and direction, on both roads. A *cell* first
//! *learns*: operations take the roads in turn, all of them timed, until each has [`LEARN`] samples, of which the first [`FIRST`] do not count, as they pay for what is
//! made once (slots, tables, what caches hold); a cell that is used knows after 512 operations. Then it is *settled* on the cheaper one. One
//! operation in [`EVERY`] on it is timed, and moves its estimate by a part in [`WEIGHT`]. Seldom, a burst of [`BURST`] operations takes the other road, to see whether that
//! has become better, and moves its estimate by parts in [`WEIGHT_OTHER`]: the more it costs the more seldom, so that looking costs about half a hundredth. The cell changes roads when the other one is
//! better by more than 1/32, and learns anew when its own has become half as dear again.
//!
//! Means, not medians: under a deferred invalidation policy one unmap in 250 pays for all. What took longer than [`OUTLIER_NS`], and [`OUTLIER_PAGE_NS`] more for each
//! page, is not counted, since that was most likely not the CPU's time.
//!
//! Locking: none. Each CPU counts operations in words of its own; the words of a cell are written by timed operations only, and two at a time may lose a
//! sample, which does no harm.

use crate::{platform::*, units::*};
use alloc::vec::Vec;

/// Samples of each road before a cell decides.
const LEARN: u64 = 256;
/// Samples of each road that do not count.
const FIRST: u64 = 64;
/// One operation in so many is timed once a cell has decided; a power of two.
const EVERY: u64 = 128;
/// How many operations look at the other road, in a row.
const BURST: u64 = 16;
/// The shortest and the longest interval between two looks, in operations of one CPU.
const LOOK_MIN: u64 = 1 << 12;
const LOOK_MAX: u64 = 1 << 20;
/// A sample's part of the estimate of the road that a cell has settled on.
const WEIGHT: u64 = 32;
/// The same of the other road: smaller, since looks are so short that most of them miss what is paid for once in 250 operations, and few of them must not make it look cheap.
const WEIGHT_OTHER: u64 = 128;
/// Longer operations are not counted. A translator that takes 10 us for each page's map and unmap stays within it at every size.
const OUTLIER_NS: u64 = 1_000_000;
const OUTLIER_PAGE_NS: u64 = 20_000;
/// Estimates are in parts of a nanosecond, as they are averages.
const PART: u64 = 16;

/// Sizes: 1 to 2^8 pages.
const SIZES: usize = 9;
const CELLS: usize = 3 * SIZES;

/// Reads the host's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock(pub fn() -> TimeNs);

impl PartialEq for Clock {
    /// Two clocks are the same where the function is.
    fn eq(&self, other: &Self) -> bool {
        core::ptr::fn_addr_eq(self.0, other.0)
    }
}
impl Eq for Clock {}

/// The two roads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Road {
    /// Mapping the buffer.
    Direct = 0,
    /// Copying it.
    Bounce = 1,
}

impl Road {
    fn other(self) -> Self {
        match self {
            Road::Direct => Road::Bounce,
            Road::Bounce => Road::Direct,
        }
    }
}

/// What one operation is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Advice {
    pub road: Road,
    /// Where its time is to be noted, if it is to be taken.
    pub timed: Option<CellIndex>,
}

/// One of the cells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CellIndex(u8);

/// What is known of each size and direction.
pub(crate) struct Learner<P: Platform> {
    cells: [Cell<P>; CELLS],
    seen: PerCpu<[P::A64; CELLS]>,
}

struct Cell<P: Platform> {
    /// 0 while it learns; else 1 and the road.
    settled: P::A64,
    /// By road: samples since it began to learn, and the estimate.
    samples: [P::A64; 2],
    estimate: [P::A64; 2],
    /// The estimate of the road that it settled on, when it did.
    settled_at: P::A64,
    /// Operations of one CPU between two looks at the other road; a power of two.
    look: P::A64,
}

impl<P: Platform> Cell<P> {
    fn new() -> Self {
        let zero = || P::A64::new(0);
        Cell {
            settled: zero(),
            samples: [zero(), zero()],
            estimate: [zero(), zero()],
            settled_at: zero(),
            look: P::A64::new(LOOK_MIN),
        }
    }

    fn settled(&self) -> Option<Road> {
        match self.settled.load(Ordering::Relaxed) {
            0 => None,
            1 => Some(Road::Direct),
            _ => Some(Road::Bounce),
        }
    }

    fn advise(&self, nth: u64) -> (Road, bool) {
        match self.settled() {
            None if nth.is_multiple_of(2) => (Road::Direct, true),
            None => (Road::Bounce, true),
            Some(road) => {
                let look = self.look.load(Ordering::Relaxed);
                if nth & (look - 1) < BURST {
                    return (road.other(), true);
                }
                (road, nth.is_multiple_of(EVERY))
            }
        }
    }

    fn estimate(&self, road: Road) -> u64 {
        self.estimate[road as usize].load(Ordering::Relaxed)
    }

    fn note(&self, road: Road, took_ns: u64) {
        let sample = took_ns * PART;
        let samples = self.samples[road as usize].load(Ordering::Relaxed);
        let before = self.estimate(road);
        let settled = self.settled();
        // a mean while it learns, a moving one after
        let weight = match settled {
            None => samples.saturating_sub(FIRST) + 1,
            Some(now) if now == road => WEIGHT,
            Some(_) => WEIGHT_OTHER,
        };
        let after = (before * (weight - 1) + sample) / weight;
        self.estimate[road as usize].store(after, Ordering::Relaxed);
        self.samples[road as usize].store(samples + 1, Ordering::Relaxed);
        match settled {
            None => self.decide(),
            Some(now) => self.reconsider(now),
        }
    }

    fn decide(&self) {
        let enough = |words: &P::A64| words.load(Ordering::Relaxed) >= LEARN;
        if self.samples.iter().all(enough) {
            let direct = self.estimate(Road::Direct) <= self.estimate(Road::Bounce);
            self.settle(if direct { Road::Direct } else { Road::Bounce });
        }
    }

    fn reconsider(&self, now: Road) {
        let (own, other) = (self.estimate(now), self.estimate(now.other()));
        if other + other / 32 < own {
            self.settle(now.other());
        } else if own > self.settled_at.load(Ordering::Relaxed) / 2 * 3 + PART {
            for road in [0, 1] {
                self.samples[road].store(0, Ordering::Relaxed);
                self.estimate[road].store(0, Ordering::Relaxed);
            }
            self.settled.store(0, Ordering::Relaxed);
        }
    }

    fn settle(&self, road: Road) {
        let (own, other) = (self.estimate(road), self.estimate(road.other()));
        // BURST * (other - own) / (look * own) is to be half a hundredth
        let dearer = other.saturating_sub(own);
        let look = (200 * BURST * dearer / own.max(1)).clamp(LOOK_MIN, LOOK_MAX);
        self.look.store(look.next_power_of_two(), Ordering::Relaxed);
        self.settled_at.store(own, Ordering::Relaxed);
        self.settled.store(1 + road as u64, Ordering::Relaxed);
    }
}

impl<P: Platform> Learner<P> {
    pub fn new(p: &P) -> Self {
        Learner {
            cells: core::array::from_fn(|_| Cell::new()),
            seen: PerCpu::new(p, || core::array::from_fn(|_| P::A64::new(0))),
        }
    }

    /// Bytes of what CPUs count in; the cells are part of it.
    pub fn bytes(&self) -> u64 {
        (self.seen.cpus() * size_of::<CachePadded<[P::A64; CELLS]>>()) as u64
    }

    /// For an operation of `len` bytes; none for what is larger than any cell.
    #[inline]
    pub fn advise(&self, p: &P, len: ByteCount, direction: Direction) -> Option<Advice> {
        p.pinned(|cpu| self.advise_on(&cpu, len, direction))
    }

    /// The same on a CPU that is pinned.
    #[inline]
    pub fn advise_on(&self, cpu: &Cpu<'_>, len: ByteCount, direction: Direction) -> Option<Advice> {
        let size = len.0.div_ceil(GRANULE).next_power_of_two().trailing_zeros() as usize;
        if size >= SIZES {
            return None;
        }
        let direction = match direction {
            Direction::ToDevice => 0,
            Direction::FromDevice => 1,
            Direction::Bidirectional => 2,
        };
        let index = direction * SIZES + size;
        let word = &self.seen.get(cpu)[index];
        let nth = word.load(Ordering::Relaxed);
        word.store(nth + 1, Ordering::Relaxed);
        let (road, timed) = self.cells[index].advise(nth);
        let timed = timed.then_some(CellIndex(index as u8));
        Some(Advice { road, timed })
    }

    /// An operation on `road` took so long, map and unmap together.
    pub fn note(&self, at: CellIndex, road: Road, took_ns: u64) {
        let at = usize::from(at.0);
        let pages = 1 << (at % SIZES);
        if took_ns <= OUTLIER_NS + pages * OUTLIER_PAGE_NS {
            self.cells[at].note(road, took_ns);
        }
    }

    pub fn learned(&self) -> Vec<Learned> {
        let directions = [
            Direction::ToDevice,
            Direction::FromDevice,
            Direction::Bidirectional,
        ];
        let of = |(index, cell): (usize, &Cell<P>)| Learned {
            pages: PageCount(1 << (index % SIZES)),
            direction: directions[index / SIZES],
            settled: cell.settled(),
            direct_ns: cell.estimate(Road::Direct) / PART,
            bounce_ns: cell.estimate(Road::Bounce) / PART,
            samples: cell.samples[0].load(Ordering::Relaxed)
                + cell.samples[1].load(Ordering::Relaxed),
        };
        let cells = self.cells.iter().enumerate();
        cells.map(of).filter(|cell| cell.samples > 0).collect()
    }
}

/// What is known of one size and direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Learned {
    /// Operations of up to so many pages, and more than half of it.
    pub pages: PageCount,
    /// In this direction.
    pub direction: Direction,
    /// The road that they take; none while it is being learned.
    pub settled: Option<Road>,
    /// What a direct map and its unmap take together, in nanoseconds.
    pub direct_ns: u64,
    /// What a bounced one takes, its copies included, in nanoseconds.
    pub bounce_ns: u64,
    /// Operations timed.
    pub samples: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::host::*;

    /// Runs `ops` operations whose roads take so long; returns how many took each road.
    fn run(
        learner: &Learner<Host>,
        p: &Host,
        ops: u64,
        cost: impl Fn(u64, Road) -> u64,
    ) -> [u64; 2] {
        let mut took = [0, 0];
        for nth in 0..ops {
            let advice = learner
                .advise(p, ByteCount(4096), Direction::ToDevice)
                .unwrap();
            took[advice.road as usize] += 1;
            if let Some(cell) = advice.timed {
                learner.note(cell, advice.road, cost(nth, advice.road));
            }
        }
        took
    }

    fn host() -> (Host, Learner<Host>) {
        let p = Host::new(HostConfig {
            frames: 0,
            slots: 1,
        });
        let learner = Learner::new(&p);
        (p, learner)
    }

    #[test]
    fn the_cheaper_road_is_found_within_a_thousand_operations_and_kept() {
        for (direct, bounce) in [(100, 900), (900, 100), (100, 104), (104, 100), (50, 20_000)] {
            let (p, learner) = host();
            let cost = |_, road| match road {
                Road::Direct => direct,
                Road::Bounce => bounce,
            };
            run(&learner, &p, 999, cost);
            let learned = learner.learned()[0];
            let better = if direct < bounce {
                Road::Direct
            } else {
                Road::Bounce
            };
            assert_eq!(learned.settled, Some(better), "{learned:?}");
            let ops = 1_000_000;
            let took = run(&learner, &p, ops, cost);
            let spent = took[0] * direct + took[1] * bounce;
            let best = ops * direct.min(bounce);
            assert!(spent * 100 <= best * 103, "{spent} of {best}: {took:?}");
        }
    }

    #[test]
    fn what_is_made_once_does_not_count() {
        let (p, learner) = host();
        let cost = |nth, road| match road {
            Road::Direct => 200,
            Road::Bounce if nth < 128 => 5_000,
            Road::Bounce => 150,
        };
        run(&learner, &p, 600, cost);
        assert_eq!(learner.learned()[0].settled, Some(Road::Bounce));
    }

    #[test]
    fn what_is_paid_for_once_in_250_counts() {
        let (p, learner) = host();
        // 40 most of the time, and 25,040 once in 250: 140 on average
        run(&learner, &p, 999, |nth, road| match road {
            Road::Direct if nth / 2 % 250 == 0 => 25_040,
            Road::Direct => 40,
            Road::Bounce => 90,
        });
        assert_eq!(learner.learned()[0].settled, Some(Road::Bounce));
    }

    #[test]
    fn what_is_paid_for_once_in_250_counts_in_short_looks_too() {
        let (p, learner) = host();
        let (ops, mut direct, mut spent) = (1_000_000, 0u64, 0);
        for _ in 0..ops {
            let advice = learner.advise(&p, ByteCount(4096), Direction::ToDevice);
            let advice = advice.unwrap();
            direct += u64::from(advice.road == Road::Direct);
            // by the operations that took the road, looks and all
            let took = match advice.road {
                Road::Direct if direct.is_multiple_of(250) => 25_040,
                Road::Direct => 40,
                Road::Bounce => 90,
            };
            spent += took;
            if let Some(cell) = advice.timed {
                learner.note(cell, advice.road, took);
            }
        }
        assert!(spent * 100 <= ops * 90 * 105, "{spent} of {}", ops * 90);
    }

    #[test]
    fn it_learns_anew_when_its_road_becomes_dear_and_when_the_other_becomes_cheap() {
        let (p, learner) = host();
        run(&learner, &p, 1000, |_, road| {
            if road == Road::Direct { 100 } else { 300 }
        });
        assert_eq!(learner.learned()[0].settled, Some(Road::Direct));
        run(&learner, &p, 10_000, |_, road| {
            if road == Road::Direct { 900 } else { 300 }
        });
        assert_eq!(learner.learned()[0].settled, Some(Road::Bounce));
        run(&learner, &p, 200_000, |_, road| {
            if road == Road::Direct { 100 } else { 300 }
        });
        assert_eq!(learner.learned()[0].settled, Some(Road::Direct));
    }

    #[test]
    fn a_lost_time_slice_is_not_counted() {
        let (p, learner) = host();
        run(&learner, &p, 999, |nth, road| match road {
            Road::Bounce if nth % 100 == 1 => 4_000_000,
            Road::Bounce => 100,
            Road::Direct => 200,
        });
        assert_eq!(learner.learned()[0].settled, Some(Road::Bounce));
    }

    #[test]
    fn operations_that_take_long_because_they_are_large_are_learned() {
        let (p, learner) = host();
        let largest = ByteCount(256 * GRANULE);
        for _ in 0..999 {
            let advice = learner.advise(&p, largest, Direction::FromDevice).unwrap();
            // 256 pages, 10 us each; and a copy
            let took = match advice.road {
                Road::Direct => 2_560_000,
                Road::Bounce => 130_000,
            };
            if let Some(cell) = advice.timed {
                learner.note(cell, advice.road, took);
            }
        }
        assert_eq!(learner.learned()[0].settled, Some(Road::Bounce));
    }

    #[test]
    fn what_is_larger_than_any_cell_gets_no_advice() {
        let (p, learner) = host();
        let advise = |len| learner.advise(&p, ByteCount(len), Direction::FromDevice);
        assert!(advise(1 << 20).is_some() && advise((1 << 20) + 1).is_none());
        assert!(advise(1 << 52).is_none());
    }
}
