// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Learning which route is cheaper here: mapping, or copying.
//!
//! # Theory
//!
//! What a map and its unmap take together is measured, for each size (in powers of two of pages)
//! and direction, on both routes. A *cell* first *learns*: of every two operations one takes each
//! route, in an order that is in step with no driver's own, all of them timed, until each has
//! [`LEARN`] samples, of which the first [`FIRST`] do not count, as they pay for what is made once
//! (slots, tables, what caches hold); a cell that is used knows after 512 operations, or after 896
//! where something happened once and may be about to happen again. Then it is *settled* on the
//! cheaper route. One operation in [`EVERY`] on it is timed, and moves its estimate by a part in
//! [`WEIGHT`]. Seldom, a burst of [`BURST`] operations takes the other route, to see whether that
//! has become better, and moves its estimate by parts in [`WEIGHT_OTHER`]: the more it costs the
//! more seldom, so that looking costs about half a hundredth. The cell changes routes when the
//! other one is better by more than 1/32, and learns anew when its own has become half as dear
//! again and costs a quarter of the other at least: while a cell learns only every second operation
//! copies, so caches hold more of what it copies than later, and the estimate may be too low by
//! that.
//!
//! # What is rare
//!
//! Under a deferred invalidation policy one unmap in 250 pays for all, and must count. A CPU that
//! is taken away for a while is a matter of the machine, and must not. Both look the same: a sample
//! far above what is usual ([`is_odd`]). So an estimate has two parts. One is the mean of the usual
//! samples. The other is what odd ones add: nothing as long as there was one only; from the second
//! on their number, each as long as the *shortest* of them: batches take about the same time each,
//! and of lost slices the shortest is short. If [`CHANGED`] in a row are odd on the route that the
//! cell has settled on, that is usual now, and it learns anew. What took longer than
//! [`OUTLIER_NS`], and [`OUTLIER_PAGE_NS`] more for each page, is not looked at, unless all of that
//! route seems to: where half as long is usual, or nothing is known, it counts as so long; and to
//! [`CHANGED`] in a row it belongs as well.
//!
//! Locking: none. Each CPU counts operations in words of its own; the words of a cell are written
//! by timed operations only, and two at a time may lose a sample, which does no harm.

use crate::{platform::*, units::*};
use alloc::vec::Vec;

/// Samples of each route before a cell decides.
const LEARN: u64 = 256;
/// The same, of a route on which something happened once: a batch of 250 comes again within
/// these and the first.
const LEARN_LONGER: u64 = 448;
/// Samples of each route that do not count.
const FIRST: u64 = 64;
/// One operation in so many is timed once a cell has decided; a power of two.
const EVERY: u64 = 128;
/// How many operations look at the other route, in a row.
const BURST: u64 = 16;
/// The shortest and the longest interval between two looks, in operations of one CPU.
const LOOK_MIN: u64 = 1 << 12;
const LOOK_MAX: u64 = 1 << 20;
/// A sample's part of the estimate of the route that a cell has settled on.
const WEIGHT: u64 = 32;
/// The same of the other route: smaller, since looks are so short that most of them miss what is
/// paid for once in 250 operations, and few of them must not make it look cheap.
const WEIGHT_OTHER: u64 = 128;
/// A sample is odd that takes so many times what is usual, and so much more.
const ODD_TIMES: u64 = 8;
const ODD_NS: u64 = 2_000;
/// So many odd samples in a row are a change.
const CHANGED: u64 = 4;
/// A route that costs less than this part of the other is not learned anew
/// for having become dearer.
const NEAR: u64 = 4;
/// Samples of a route after which older ones weigh half, as to how often odd ones come.
const RECENT: u64 = 1 << 12;
/// Longer operations are not counted, or as so long. A translator that takes 10 us for each page's
/// map and unmap stays within it at every size.
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

/// By which memory a device is served.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Route {
    /// The buffer itself is mapped.
    Direct = 0,
    /// The bytes are copied through a bounce buffer.
    Bounce = 1,
}

impl Route {
    fn other(self) -> Self {
        match self {
            Route::Direct => Route::Bounce,
            Route::Bounce => Route::Direct,
        }
    }
}

/// What one operation is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Advice {
    pub route: Route,
    /// Where its time is to be noted, if it is to be taken.
    pub timed: Option<CellIndex>,
}

/// One of the cells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CellIndex(u8);

/// What is known of each size and direction.
pub(crate) struct CostModel<P: Platform> {
    cells: [Cell<P>; CELLS],
    seen: PerCpu<[P::A64; CELLS]>,
}

/// Whether a sample is far above what is usual.
fn is_odd(sample: u64, usual: u64) -> bool {
    sample > ODD_TIMES * usual + ODD_NS * PART
}

/// Two numbers in one word.
struct Halves<P: Platform>(P::A64);

impl<P: Platform> Halves<P> {
    fn new(low: u64, high: u64) -> Self {
        Halves(P::A64::new(low | high << 32))
    }
    fn get(&self) -> (u64, u64) {
        let both = self.0.load(Ordering::Relaxed);
        (both & u64::from(u32::MAX), both >> 32)
    }
    /// What is too large is the largest: no sample is, and counts stay there.
    fn set(&self, low: u64, high: u64) {
        let most = u64::from(u32::MAX);
        let both = low.min(most) | high.min(most) << 32;
        self.0.store(both, Ordering::Relaxed);
    }
}

struct Cell<P: Platform> {
    /// 0 while it learns; else 1 and the route. And odd samples in a row of that route.
    settled: Halves<P>,
    /// The estimate of the route that it settled on, when it did; operations of one CPU between two
    /// looks at the other route, a power of two.
    terms: Halves<P>,
    routes: [Seen<P>; 2],
}

/// What was seen of one route since its cell began to learn.
struct Seen<P: Platform> {
    /// The mean of the usual samples, of the first ones the shortest; how many there
    /// were of all kinds.
    usual: Halves<P>,
    /// The longest of the first ones; by how much the shortest odd one was longer than usual.
    long: Halves<P>,
    /// Samples that count; how many of them were odd.
    counted: Halves<P>,
}

impl<P: Platform> Seen<P> {
    fn new() -> Self {
        let zero = || Halves::new(0, 0);
        Seen {
            usual: zero(),
            long: zero(),
            counted: zero(),
        }
    }

    fn forget(&self) {
        for both in [&self.usual, &self.long, &self.counted] {
            both.set(0, 0);
        }
    }

    fn samples(&self) -> u64 {
        self.usual.get().1
    }

    /// Odd samples, with one of the first.
    fn odd(&self) -> u64 {
        let first = is_odd(self.long.get().0, self.usual.get().0);
        self.counted.get().1 + u64::from(first)
    }

    fn estimate(&self) -> u64 {
        let (usual, _) = self.usual.get();
        if self.odd() < 2 {
            return usual;
        }
        let ((first, mut by), (counted, odd)) = (self.long.get(), self.counted.get());
        if is_odd(first, usual) {
            // it is one of them: what was made once, and one lost slice, are no two batches
            by = by.min(first - usual);
        }
        usual + odd * by / counted.max(1)
    }

    /// One more, where a settled cell gives it a part in `weight`, and a learning one takes the
    /// mean; whether it is odd.
    fn note(&self, sample: u64, weight: Option<u64>) -> bool {
        let (usual, samples) = self.usual.get();
        let (first, by) = self.long.get();
        if weight.is_none() && samples < FIRST {
            let shortest = if samples == 0 {
                sample
            } else {
                usual.min(sample)
            };
            self.usual.set(shortest, samples + 1);
            self.long.set(first.max(sample), 0);
            return false;
        }
        let (mut counted, mut odd) = self.counted.get();
        if counted >= RECENT {
            // half of one is one: else what is as rare as that would be forgotten
            (counted, odd) = (counted / 2, odd.div_ceil(2));
        }
        let is_odd = is_odd(sample, usual);
        if is_odd {
            let least = if odd == 0 { u64::MAX } else { by };
            self.usual.set(usual, samples + 1);
            self.long.set(first, least.min(sample - usual));
            odd += 1;
        } else {
            let weight = weight.unwrap_or(counted.saturating_sub(odd) + 1);
            let mean = (usual * (weight - 1) + sample) / weight;
            self.usual.set(mean, samples + 1);
        }
        self.counted.set(counted + 1, odd);
        is_odd
    }

    /// Whether a cell that learns has seen enough of it.
    fn is_known(&self) -> bool {
        let once = self.counted.get().1 == 1 && self.odd() == 1;
        self.samples() >= if once { LEARN_LONGER } else { LEARN }
    }
}

impl<P: Platform> Cell<P> {
    fn new() -> Self {
        Cell {
            settled: Halves::new(0, 0),
            terms: Halves::new(0, LOOK_MIN),
            routes: [Seen::new(), Seen::new()],
        }
    }

    fn settled(&self) -> Option<Route> {
        match self.settled.get().0 {
            0 => None,
            1 => Some(Route::Direct),
            _ => Some(Route::Bounce),
        }
    }

    fn advise(&self, nth: u64) -> (Route, bool) {
        match self.settled() {
            // Thue-Morse: one of each pair, and half of every second, fourth and eighth operation
            None if nth.count_ones().is_multiple_of(2) => (Route::Direct, true),
            None => (Route::Bounce, true),
            Some(route) => {
                let (_, look) = self.terms.get();
                if nth & (look - 1) < BURST {
                    return (route.other(), true);
                }
                // in no step with anything that comes again every so often (Fibonacci hashing)
                let drawn = nth.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - EVERY.ilog2());
                (route, drawn == 0)
            }
        }
    }

    fn of(&self, route: Route) -> &Seen<P> {
        &self.routes[route as usize]
    }

    fn estimate(&self, route: Route) -> u64 {
        self.of(route).estimate()
    }

    /// One more. Longer than `most_ns` it is a lost slice, unless the route has
    /// shown nothing much shorter.
    fn note(&self, route: Route, took_ns: u64, most_ns: u64) {
        let (seen, sample) = (self.of(route), took_ns.min(most_ns) * PART);
        let (usual, samples) = seen.usual.get();
        let is_lost = took_ns > most_ns && samples > 0 && sample > 2 * usual;
        let (settled, in_a_row) = self.settled.get();
        match self.settled() {
            None if is_lost => {}
            None => {
                seen.note(sample, None);
                self.decide();
            }
            Some(now) if now == route => {
                let odd = is_lost || seen.note(sample, Some(WEIGHT));
                let now_in_a_row = if odd { in_a_row + 1 } else { 0 };
                if now_in_a_row != in_a_row {
                    self.settled.set(settled, now_in_a_row);
                }
                self.reconsider(now, now_in_a_row);
            }
            Some(_) if is_lost => {}
            Some(now) => {
                seen.note(sample, Some(WEIGHT_OTHER));
                self.reconsider(now, 0);
            }
        }
    }

    fn decide(&self) {
        if self.routes.iter().all(Seen::is_known) {
            let direct = self.estimate(Route::Direct) <= self.estimate(Route::Bounce);
            self.settle(if direct { Route::Direct } else { Route::Bounce });
        }
    }

    fn reconsider(&self, now: Route, in_a_row: u64) {
        let (own, other) = (self.estimate(now), self.estimate(now.other()));
        // what is still far cheaper than the other is only remembered wrongly: to learn anew would
        // cost more than it could tell, for looks go on
        let dearer = own > self.terms.get().0 / 2 * 3 + PART && own > other / NEAR;
        if other + other / 32 < own {
            self.settle(now.other());
        } else if dearer || in_a_row >= CHANGED {
            self.routes.iter().for_each(Seen::forget);
            self.settled.set(0, 0);
        }
    }

    fn settle(&self, route: Route) {
        let (own, other) = (self.estimate(route), self.estimate(route.other()));
        // BURST * (other - own) / (look * own) is to be half a hundredth
        let dearer = other.saturating_sub(own);
        let look = (200 * BURST * dearer / own.max(1)).clamp(LOOK_MIN, LOOK_MAX);
        self.terms.set(own, look.next_power_of_two());
        self.settled.set(1 + route as u64, 0);
    }
}

impl<P: Platform> CostModel<P> {
    pub fn new(p: &P) -> Self {
        CostModel {
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
        let (route, timed) = self.cells[index].advise(nth);
        let timed = timed.then_some(CellIndex(index as u8));
        Some(Advice { route, timed })
    }

    /// An operation on `route` took so long, map and unmap together.
    pub fn note(&self, at: CellIndex, route: Route, took_ns: u64) {
        let at = usize::from(at.0);
        let pages = 1 << (at % SIZES);
        let most_ns = OUTLIER_NS + pages * OUTLIER_PAGE_NS;
        self.cells[at].note(route, took_ns, most_ns);
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
            direct_ns: cell.estimate(Route::Direct) / PART,
            bounce_ns: cell.estimate(Route::Bounce) / PART,
            samples: cell.routes.iter().map(Seen::samples).sum(),
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
    /// The direction of these operations.
    pub direction: Direction,
    /// The route that they take; none while it is being learned.
    pub settled: Option<Route>,
    /// What a direct map and its unmap take together, in nanoseconds.
    pub direct_ns: u64,
    /// What a bounced one takes, its copies included, in nanoseconds.
    pub bounce_ns: u64,
    /// Operations timed, of both routes together.
    pub samples: u64,
}

#[cfg(test)]
mod tests;
