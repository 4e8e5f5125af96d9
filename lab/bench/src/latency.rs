// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What batches are worth where a unit takes its time: two threads that share one domain and one
//! serial unit of [`LATENCY`] ([`crate::subjects`] has its arithmetic), strict one by one, strict
//! by [`BURST`], and deferred.
//!
//! All three run in turns in one group, so ratios are of the same rounds. Deferred flushes too, by
//! its bound in operations, and waits for none but the last: it is what strict is to come near to.

use crate::{
    Effort, Pattern, Row, Sizes, Spec, Spread, What, measure,
    pattern::BURST,
    plan::{deferred, strict},
};
use std::time::Duration;

/// From a request to its answer.
pub const LATENCY: Duration = Duration::from_micros(1);
/// Threads that map and unmap.
pub const THREADS: usize = 2;

/// One by one, in batches, and deferred.
pub fn specs() -> [Spec; 3] {
    let ring = Pattern::Ring(crate::pattern::BURST_RING);
    [
        (strict(), ring),
        (strict(), Pattern::Bursts),
        (deferred(), ring),
    ]
    .map(|(design, pattern)| Spec {
        what: What::Late(design),
        pattern,
        sizes: Sizes::One,
        threads: THREADS,
    })
}

/// What was measured.
#[derive(Clone, Debug)]
#[allow(missing_docs)] // its fields say it
pub struct Latency {
    pub strict: Row,
    pub batches: Row,
    pub deferred: Row,
}

impl Latency {
    /// Measures all three, in turns.
    pub fn measure(effort: Effort) -> Self {
        let mut rows = measure(&specs(), effort).into_iter();
        // there is a row for each
        let mut next = |at: usize| rows.next().unwrap_or_else(|| Row::late(specs()[at]));
        Latency {
            strict: next(0),
            batches: next(1),
            deferred: next(2),
        }
    }

    /// All, in order, each with its name.
    pub fn rows(&self) -> [(String, &Row); 3] {
        [
            ("strict, one by one".into(), &self.strict),
            (format!("strict, batches of {BURST}"), &self.batches),
            ("deferred".into(), &self.deferred),
        ]
    }

    /// The rate of `row` by that of strict one by one, of the same rounds.
    pub fn by_strict(&self, row: &Row) -> Option<Spread> {
        faster(row, &self.strict)
    }

    /// The rate of `row` by that of deferred, of the same rounds.
    pub fn by_deferred(&self, row: &Row) -> Option<Spread> {
        faster(row, &self.deferred)
    }
}

/// Pairs a second of all of a row's threads.
pub fn per_second(row: &Row) -> Option<f64> {
    let figure = row.figure.as_ref().ok()?;
    Some(row.spec.threads as f64 * 1e9 / figure.ns.median)
}

/// The rate of `row` by that of `than`: the inverse of their times' ratio.
fn faster(row: &Row, than: &Row) -> Option<Spread> {
    let (row, than) = (row.figure.as_ref().ok()?, than.figure.as_ref().ok()?);
    than.ratio(row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Figure,
        probe::Mode,
        slices::{Quality, Slice},
    };

    fn row(spec: Spec, ns: f64) -> Row {
        let slice = |round| Slice {
            round,
            ns: ns * (1 + round) as f64,
            quality: Quality::Clean,
            mode: Some(Mode::Near),
        };
        let slices: Vec<Slice> = (0..9).map(slice).collect();
        let figure = Figure {
            ns: Spread::of(slices.iter().map(|slice| slice.ns).collect()).unwrap(),
            mode: Some(Mode::Near),
            slices,
        };
        Row {
            figure: Ok(figure),
            ..Row::late(spec)
        }
    }

    #[test]
    fn ratios_are_of_rates_and_of_the_same_rounds() {
        let [strict, batches, deferred] = specs();
        let fast = Latency {
            strict: row(strict, 2000.0),
            batches: row(batches, 200.0),
            deferred: row(deferred, 100.0),
        };
        assert_eq!(fast.by_strict(&fast.batches).unwrap().median, 10.0);
        assert_eq!(fast.by_deferred(&fast.batches).unwrap().median, 0.5);
        // two threads, and a median of five times the first slice
        assert_eq!(per_second(&fast.batches), Some(2e6));
        let unknown = Latency {
            batches: Row::late(batches),
            ..fast
        };
        assert!(unknown.by_strict(&unknown.batches).is_none());
        assert_eq!(per_second(&unknown.batches), None);
    }
}
