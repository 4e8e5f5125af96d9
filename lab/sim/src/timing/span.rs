// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! How long a run is, and when its throughput is known well enough.
//!
//! The measured time is cut into [`SLICES`] equal parts, and operations are counted in each. From
//! their spread follows how well the throughput is known (the method of batch means). Where that is
//! not good enough, all that was counted is thrown away, as warm-up that was too short, and twice
//! the time is measured: what is left is never the beginning, before queues have filled. The first
//! CPU that reaches the end decides for all.
//!
//! What a body does before it asks for the first time whether to go on, filling its rings say, is
//! no part of a run that is to be known well: there the warm-up begins when all have asked.

use crate::timing::params::Cycles;
use serde::Serialize;
use std::cell::{Cell, RefCell};

/// Parts of the measured time.
pub const SLICES: usize = 20;

/// How often [`Span::to_one_percent`] doubles the measured time at most. With what is thrown away a
/// run is up to 63 times as long as it would be at the least.
pub const DOUBLINGS: u32 = 5;

/// How long a run is.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Span {
    /// Before this nothing is counted: caches and magazines fill. From time 0, or, with a
    /// precision, from when every CPU has asked whether to go on.
    pub warm_up: Cycles,
    /// How long is counted, at least.
    pub measured: Cycles,
    /// When to go on for longer, if ever.
    pub precision: Option<Precision>,
}

/// How well the throughput is to be known.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Precision {
    /// Half the width of its interval of 95 % confidence, as a part of it.
    pub part: f64,
    /// The measured time is doubled this often at most.
    pub doublings: u32,
}

impl Span {
    /// Exactly so long, without looking at the precision.
    pub fn fixed(warm_up: Cycles, measured: Cycles) -> Self {
        Span {
            warm_up,
            measured,
            precision: None,
        }
    }
    /// So long, or up to [`DOUBLINGS`] times twice as long, until the throughput is known to 1 %.
    pub fn to_one_percent(warm_up: Cycles, measured: Cycles) -> Self {
        Span {
            warm_up,
            measured,
            precision: Some(Precision {
                part: 0.01,
                doublings: DOUBLINGS,
            }),
        }
    }
}

/// The measured time of a run, as it goes.
pub(crate) struct Window {
    /// Nothing is counted before. Never, until all CPUs that are waited for have asked.
    begin: Cell<u64>,
    warm_up: u64,
    /// CPUs that have not asked yet.
    missing: Cell<usize>,
    slice: Cell<u64>,
    counts: RefCell<[u64; SLICES]>,
    /// How often the measurement has begun.
    begun: Cell<u32>,
    precision: Option<Precision>,
    doublings: Cell<u32>,
}

impl Window {
    /// Of a run on `cpus` CPUs.
    pub(crate) fn new(span: Span, cpus: usize) -> Self {
        let waits = span.precision.is_some();
        Window {
            begin: Cell::new(if waits { u64::MAX } else { span.warm_up.0 }),
            warm_up: span.warm_up.0,
            missing: Cell::new(if waits { cpus } else { 0 }),
            slice: Cell::new(span.measured.0.div_ceil(SLICES as u64).max(1)),
            counts: RefCell::default(),
            begun: Cell::new(0),
            precision: span.precision,
            doublings: Cell::new(0),
        }
    }
    /// A CPU asks for the first time, at time `now`.
    pub(crate) fn ready(&self, now: u64) {
        match self.missing.get() {
            0 => {}
            left => {
                self.missing.set(left - 1);
                if left == 1 {
                    self.begin.set(now.saturating_add(self.warm_up));
                }
            }
        }
    }
    /// Whether some have not asked yet.
    pub(crate) fn waits(&self) -> bool {
        self.missing.get() > 0
    }
    /// Which measurement, counted from 1, what is done from `now` on belongs to:
    /// `None` before the first.
    pub(crate) fn measurement(&self, now: u64) -> Option<u32> {
        (now >= self.begin.get()).then(|| self.doublings.get() + 1)
    }
    /// Whether a CPU with clock `now` goes on.
    pub(crate) fn goes_on(&self, now: u64) -> bool {
        while now >= self.end() {
            let wanted = self.precision.filter(|p| {
                self.doublings.get() < p.doublings && uncertainty(&*self.counts.borrow()) > p.part
            });
            if wanted.is_none() {
                return false;
            }
            self.double();
        }
        true
    }
    /// An operation was done.
    pub(crate) fn count(&self, now: u64) {
        let Some(since) = now.checked_sub(self.begin.get()) else {
            return; // it began in an earlier measurement
        };
        let slice = since / self.slice.get();
        // the operation that is under way at the end ends after it
        if let Some(count) = self.counts.borrow_mut().get_mut(slice as usize) {
            *count += 1;
        }
    }
    /// Calls `f` the first time in a measurement.
    pub(crate) fn first(&self, measurement: u32, f: impl FnOnce()) {
        if self.begun.replace(measurement) != measurement {
            f();
        }
    }
    pub(crate) fn counts(&self) -> Vec<u64> {
        self.counts.borrow().to_vec()
    }

    fn end(&self) -> u64 {
        let length = self.slice.get().saturating_mul(SLICES as u64);
        self.begin.get().saturating_add(length)
    }
    fn double(&self) {
        self.begin.set(self.end());
        self.doublings.set(self.doublings.get() + 1);
        self.slice.set(self.slice.get().saturating_mul(2));
        self.counts.replace([0; SLICES]);
    }
}

/// Half the width of the interval that holds the mean with 95 % confidence, as a part of the mean.
/// Infinite where nothing was counted.
pub(crate) fn uncertainty(counts: &[u64]) -> f64 {
    let n = counts.len() as f64;
    let mean = counts.iter().sum::<u64>() as f64 / n;
    if mean == 0.0 {
        return f64::INFINITY;
    }
    let squares = counts.iter().map(|&s| (s as f64 - mean).powi(2));
    let deviation = (squares.sum::<f64>() / (n - 1.0)).sqrt();
    // Student's t for 19 degrees of freedom
    2.093 * deviation / n.sqrt() / mean
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(span: Span) -> Window {
        let window = Window::new(span, 2);
        window.ready(20);
        assert_eq!(window.measurement(u64::MAX - 1), None, "one has not asked");
        window.ready(40);
        window
    }

    #[test]
    fn a_steady_window_ends_and_what_an_unsteady_one_counted_is_thrown_away() {
        let span = Span::to_one_percent(Cycles(60), Cycles(2000));
        let steady = ready(span);
        assert_eq!(
            (steady.measurement(99), steady.measurement(100)),
            (None, Some(1))
        );
        (100..2100).step_by(10).for_each(|now| steady.count(now));
        assert!(steady.goes_on(2099));
        assert!(!steady.goes_on(2100));

        let unsteady = ready(span);
        (100..1100).step_by(10).for_each(|now| unsteady.count(now));
        assert!(unsteady.goes_on(2100));
        assert_eq!(unsteady.counts(), [0; SLICES]);
        assert_eq!(
            (unsteady.measurement(2099), unsteady.measurement(2100)),
            (None, Some(2))
        );
        unsteady.count(2099);
        (2100..6100).step_by(10).for_each(|now| unsteady.count(now));
        assert_eq!(unsteady.counts(), [20; SLICES]);
        assert!(!unsteady.goes_on(6100));
    }

    #[test]
    fn a_window_is_not_doubled_for_ever() {
        let idle = ready(Span::to_one_percent(Cycles(0), Cycles(20)));
        let end = 40 + 20 * ((1 << (DOUBLINGS + 1)) - 1);
        assert!(idle.goes_on(end - 1));
        assert!(!idle.goes_on(end));
    }

    #[test]
    fn a_fixed_window_waits_for_no_other_cpu() {
        let fixed = Window::new(Span::fixed(Cycles(100), Cycles(20)), 2);
        assert_eq!(
            (fixed.measurement(99), fixed.measurement(100)),
            (None, Some(1))
        );
        assert!(!fixed.goes_on(120));
    }
}
