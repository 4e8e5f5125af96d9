// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! How long acknowledgements take: a histogram whose classes are an eighth of a power of two.

use serde::Serialize;
use std::time::Duration;

const SUB_LG2: u32 = 3;
const CLASSES: usize = (64 - SUB_LG2 as usize + 1) << SUB_LG2;

#[derive(Clone)]
pub(crate) struct Latency {
    classes: Vec<u64>,
    count: u64,
    sum: u128,
    max: u64,
}

/// Round trips in nanoseconds: from sending a message to its acknowledgement. Of misses that are
/// answered in one go, each counts as their mean.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
#[allow(missing_docs)] // its fields say it
pub struct RoundTrips {
    /// How many there were.
    pub count: u64,
    pub mean_ns: f64,
    /// Half of them took at most this long (to an eighth).
    pub median_ns: u64,
    /// 99 of 100 took at most this long (to an eighth).
    pub p99_ns: u64,
    pub max_ns: u64,
}

impl Latency {
    pub(crate) fn new() -> Self {
        Latency {
            classes: vec![0; CLASSES],
            count: 0,
            sum: 0,
            max: 0,
        }
    }

    /// Records round trips that took so long one after the other, each by their mean.
    pub(crate) fn record(&mut self, took: Duration, trips: u64) {
        if trips == 0 {
            return;
        }
        let all = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let ns = all / trips;
        self.classes[class(ns)] += trips;
        self.count += trips;
        self.sum += u128::from(all);
        self.max = self.max.max(ns);
    }

    pub(crate) fn summary(&self) -> RoundTrips {
        if self.count == 0 {
            return RoundTrips::default();
        }
        RoundTrips {
            count: self.count,
            mean_ns: self.sum as f64 / self.count as f64,
            median_ns: self.at(self.count.div_ceil(2)),
            p99_ns: self.at(self.count - self.count / 100),
            max_ns: self.max,
        }
    }

    /// The largest value of the class in which the n-th smallest is.
    fn at(&self, n: u64) -> u64 {
        let mut before = 0;
        for (class, count) in self.classes.iter().enumerate() {
            before += count;
            if before >= n {
                return last(class).min(self.max);
            }
        }
        self.max
    }
}

/// The class of a value: itself below 8, then eight to each power of two.
fn class(ns: u64) -> usize {
    let lg2 = ns.max(1).ilog2();
    if lg2 < SUB_LG2 {
        return ns as usize;
    }
    let shift = lg2 - SUB_LG2;
    ((shift as usize) << SUB_LG2) + (ns >> shift) as usize
}

/// The largest value of a class.
fn last(class: usize) -> u64 {
    let shift = (class >> SUB_LG2).saturating_sub(1) as u32;
    let first = (class as u64 - (u64::from(shift) << SUB_LG2)) << shift;
    first + ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_narrow_and_in_order() {
        for ns in (0..200).chain([1000, 4095, 4096, 1 << 40, u64::MAX]) {
            let class = class(ns);
            assert!(class < CLASSES);
            assert!(last(class) >= ns && last(class) - ns <= ns / 8, "{ns}");
        }
    }

    #[test]
    fn percentiles_are_of_what_was_recorded() {
        let mut latency = Latency::new();
        assert_eq!(latency.summary(), RoundTrips::default());
        for ns in 1..=1000 {
            latency.record(Duration::from_nanos(ns), 1);
        }
        let summary = latency.summary();
        assert_eq!((summary.count, summary.max_ns), (1000, 1000));
        assert!((500..=563).contains(&summary.median_ns), "{summary:?}");
        assert!((990..=1000).contains(&summary.p99_ns), "{summary:?}");
        assert_eq!(summary.mean_ns, 500.5);
    }
}
