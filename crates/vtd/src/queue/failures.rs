// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Submissions that failed, so that the callers that wait for one are told, and no others.
//!
//! Room is bounded. What is pushed out is remembered as a bound: everything up to it is reported as
//! failed when asked again, since it is no longer known which failed. That is the safe side, and
//! takes 32 failures that no caller asked for.

use ioatlas_dma::invalidation::InvalidateError;

/// How many failures are remembered one by one.
const REMEMBERED: usize = 32;

/// Failed submissions, by their number.
pub(crate) struct Failures {
    recent: [Option<(u64, InvalidateError)>; REMEMBERED],
    next: usize,
    /// The highest that was pushed out.
    forgotten: u64,
}

impl Failures {
    pub(crate) const fn new() -> Self {
        Failures {
            recent: [None; REMEMBERED],
            next: 0,
            forgotten: 0,
        }
    }

    /// Submission `number` failed. Of several causes the first stays.
    pub(crate) fn add(&mut self, number: u64, cause: InvalidateError) {
        if self.recent.iter().flatten().any(|(n, _)| *n == number) {
            return;
        }
        let pushed_out = self.recent[self.next].replace((number, cause));
        if let Some((old, _)) = pushed_out {
            self.forgotten = self.forgotten.max(old);
        }
        self.next = (self.next + 1) % REMEMBERED;
    }

    /// Why one of the submissions `first` to `last` failed, if one did.
    pub(crate) fn of(&self, first: u64, last: u64) -> Option<InvalidateError> {
        let known = |(n, _): &&(u64, InvalidateError)| (first..=last).contains(n);
        let found = self.recent.iter().flatten().find(known);
        match found {
            Some((_, cause)) => Some(*cause),
            None => (first <= self.forgotten).then_some(InvalidateError::OutOfService),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_of_its_submission_alone() {
        let mut failures = Failures::new();
        failures.add(7, InvalidateError::Refused);
        failures.add(7, InvalidateError::OutOfService);
        assert_eq!(failures.of(7, 7), Some(InvalidateError::Refused));
        assert_eq!(failures.of(5, 9), Some(InvalidateError::Refused));
        assert_eq!(failures.of(6, 6), None);
        assert_eq!(failures.of(8, 80), None);
    }

    #[test]
    fn what_is_pushed_out_is_never_taken_for_success() {
        let mut failures = Failures::new();
        let count = 3 * REMEMBERED as u64;
        for n in 0..count {
            failures.add(10 * n + 1, InvalidateError::Refused);
        }
        for n in 0..count {
            assert!(failures.of(10 * n + 1, 10 * n + 1).is_some(), "{n}");
        }
        let newest = 10 * (count - 1) + 1;
        assert_eq!(failures.of(newest + 1, newest + 1), None);
    }
}
