// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Recovery while the unit still reports what it had fetched (VT-d 4.1 §6.5.2: head moves at
//! fetch), and room in the ring: nothing is ever reported done that the unit did not carry out.

use crate::common::bench::*;
use ioatlas_dma::invalidation::InvalidateError;
use ioatlas_vtd::layout::Words;
use ioatlas_vtd::queue::Ticket;
use std::collections::HashSet;

/// What was submitted, and what the unit was seen to take. Each submission has domain ids of its
/// own.
struct Ledger {
    bench: Bench,
    submitted: Vec<(Ticket, Vec<u64>)>,
    carried_out: HashSet<u64>,
    next: u64,
}

type Outcome = Result<bool, InvalidateError>;

impl Ledger {
    /// A unit that has carried out `before` submissions already, takes nothing until it is stepped,
    /// and reports late from then on.
    fn new(before: usize) -> Self {
        let bench = Bench::new();
        for _ in 0..before {
            bench.submit(&[invalidation(0)]).unwrap();
        }
        bench.unit.taken();
        let mut state = bench.unit.state();
        (state.credit, state.reports_late) = (0, true);
        drop(state);
        Ledger {
            bench,
            submitted: Vec::new(),
            carried_out: HashSet::new(),
            next: 1,
        }
    }

    /// Submits that many invalidations in one; whether there was room.
    fn submit(&mut self, invalidations: usize) -> bool {
        let ids: Vec<u64> = (self.next..).take(invalidations).collect();
        let batch: Vec<Words> = ids.iter().map(|id| invalidation(*id)).collect();
        let Ok(ticket) = self.bench.submit(&batch) else {
            return false;
        };
        self.next += invalidations as u64;
        self.submitted.push((ticket, ids));
        true
    }

    /// Asks for every submission, and holds what is reported done against what the unit took.
    fn ask(&mut self, when: &str) -> Vec<Outcome> {
        let answers = self.submitted.iter();
        let answers: Vec<_> = answers.map(|(t, _)| self.bench.done(*t)).collect();
        let taken = self.bench.unit.taken();
        let taken = taken.iter().filter(|d| d.0 & 0xf == 2);
        self.carried_out.extend(taken.map(|d| d.0 >> 16 & 0xffff));
        let missing = |(answer, (_, ids)): &(&Outcome, &(Ticket, Vec<u64>))| {
            **answer == Ok(true) && !ids.iter().all(|id| self.carried_out.contains(id))
        };
        let never = answers.iter().zip(&self.submitted).filter(missing).count();
        let all = answers.len();
        assert_eq!(
            never, 0,
            "P1: {all} submitted; reported done and never carried out: {never} ({when})"
        );
        answers
    }

    /// Asks until nothing changes any more, with a unit that does all that it can.
    fn complete(&mut self, when: &str) -> Vec<Outcome> {
        self.bench.unit.step(u64::MAX);
        for _ in 0..self.submitted.len() + 8 {
            self.bench.unit.report(usize::MAX);
            if self.ask(when).iter().all(|answer| *answer != Ok(false)) {
                break;
            }
        }
        self.ask(when)
    }

    /// The unit will refuse the next invalidation that is `descriptors` or more ahead.
    fn refuse(&self, descriptors: usize) {
        let mut state = self.bench.unit.state();
        state.bad = Some(state.ran + descriptors);
    }

    /// All of them are done, but those at `failed`, which fail as refused.
    fn assert_only(&self, answers: &[Outcome], failed: &[usize], when: &str) {
        for (n, answer) in answers.iter().enumerate() {
            let refused = matches!(answer, Err(InvalidateError::QueueError { .. }));
            let as_it_should = match failed.contains(&n) {
                true => refused,
                false => *answer == Ok(true),
            };
            assert!(as_it_should, "{n}: {answer:?} ({when})");
        }
    }
}

/// `count` submissions wait in the ring, the one at `offender` is refused, and `late` of those
/// before it are reported only after the first look at the error. Ten more submissions follow.
fn refused(before: usize, count: usize, offender: usize, late: usize) {
    for fetches in [Fetches::AtOnce, Fetches::Later] {
        refused_by(fetches, before, count, offender, late);
    }
}

/// When a unit whose error was cleared fetches what is in the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fetches {
    AtOnce,
    Later,
}

fn refused_by(fetches: Fetches, before: usize, count: usize, offender: usize, late: usize) {
    let when = format!(
        "{before} before, {count} waiting, {offender} refused, {late} late, fetches {fetches:?}"
    );
    let mut ledger = Ledger::new(before);
    assert!((0..count).all(|_| ledger.submit(1)), "{when}");
    ledger.refuse(2 * offender);
    ledger.bench.unit.step(u64::MAX);
    if fetches == Fetches::Later {
        ledger.bench.unit.state().credit = 0;
    }
    ledger.bench.unit.report(offender - late);
    ledger.ask(&when);
    for _ in 0..late {
        ledger.bench.unit.report(1);
        ledger.ask(&when);
    }
    for _ in 0..10 {
        let room = ledger.submit(1);
        assert!(room || count > 110, "{when}");
        ledger.ask(&when);
    }
    let answers = ledger.complete(&when);
    ledger.assert_only(&answers, &[offender], &when);
    let errors = ledger.bench.queue.incidents().queue_errors;
    assert_eq!(errors, 1, "one error is counted once ({when})");
}

#[test]
fn what_is_reported_after_the_error_is_not_taken_for_what_runs_again() {
    refused(0, 127, 10, 10);
}

#[test]
fn every_offender_of_a_few_with_every_number_of_late_reports_wherever_the_ring_wraps() {
    for before in [0, 121, 122, 124, 126, 127] {
        for offender in 0..7 {
            for late in 0..=offender {
                refused(before, 7, offender, late);
            }
        }
    }
}

#[test]
fn an_offender_anywhere_in_a_ring_that_is_full() {
    for before in [0, 37, 127] {
        for offender in (0..127).step_by(9) {
            for late in [0, 1, offender / 2, offender] {
                refused(before, 127, offender, late.min(offender));
            }
        }
    }
}

/// What of the refused submission ran ahead of the refused descriptor runs again; nothing of it was
/// reported.
#[test]
fn an_offender_in_the_middle_of_its_submission() {
    for place in 0..3 {
        for late in 0..=5 {
            let when = format!("descriptor {place} of the sixth submission, {late} late");
            let mut ledger = Ledger::new(120);
            assert!((0..20).all(|_| ledger.submit(3)));
            ledger.refuse(4 * 5 + place);
            ledger.bench.unit.step(u64::MAX);
            ledger.bench.unit.report(5 - late);
            ledger.ask(&when);
            let answers = ledger.complete(&when);
            ledger.assert_only(&answers, &[5], &when);
        }
    }
}

#[test]
fn several_recoveries_in_a_row_each_with_late_reports() {
    for distance in 0..9 {
        for late in 0..4 {
            let when = format!("{distance} between the errors, {late} late each");
            let mut ledger = Ledger::new(100);
            assert!((0..100).all(|_| ledger.submit(1)));
            let mut failed = Vec::new();
            let mut next = 0;
            for _ in 0..5 {
                // after a recovery the unit begins with the submission behind the refused one
                ledger.refuse(2 * distance);
                next += distance;
                failed.push(next);
                next += 1;
                ledger.bench.unit.step(u64::MAX);
                // whatever look recovers, the unit does not go on before the next round
                ledger.bench.unit.state().credit = 0;
                let pending = ledger.bench.unit.state().unreported.len();
                ledger.bench.unit.report(pending.saturating_sub(late));
                ledger.ask(&when);
                ledger.bench.unit.report(usize::MAX);
                ledger.ask(&when);
            }
            let answers = ledger.complete(&when);
            ledger.assert_only(&answers, &failed, &when);
            let errors = ledger.bench.queue.incidents().queue_errors;
            assert_eq!(errors, 5, "{when}");
        }
    }
}

/// The bound ends in an error for all that is not done, never in a report; and what the unit
/// reports later still holds.
#[test]
fn a_unit_that_never_finishes_what_it_fetched_is_out_of_service() {
    let mut ledger = Ledger::new(7);
    assert!((0..20).all(|_| ledger.submit(1)));
    ledger.refuse(2 * 10);
    ledger.bench.unit.step(u64::MAX);
    ledger.bench.unit.report(4);
    for _ in 0..LOOKS.0 {
        ledger.ask("the unit hangs");
    }
    let answers = ledger.ask("the unit hung");
    assert_eq!(answers[..4], [Ok(true); 4]);
    assert_eq!(answers[4..], [Err(InvalidateError::OutOfService); 16]);
    assert!(!ledger.submit(1), "no room, for good");
    ledger.bench.unit.report(usize::MAX);
    let answers = ledger.ask("it reports after all");
    assert_eq!(answers[..10], [Ok(true); 10]);
    assert_eq!(answers[10..], [Err(InvalidateError::OutOfService); 10]);
    assert_eq!(ledger.bench.queue.incidents().queue_errors, 1);
}

/// A submission that waits for room sees to the recovery, and the unit finishes meanwhile.
#[test]
fn a_submission_that_waits_for_room_outlasts_late_reports() {
    let mut ledger = Ledger::new(3);
    while ledger.submit(1) {}
    ledger.refuse(2 * 20);
    ledger.bench.unit.step(u64::MAX);
    ledger.bench.unit.state().reports_at_look = 1;
    assert!(ledger.submit(1), "once 20 waits were reported one by one");
    let answers = ledger.complete("after the wait for room");
    ledger.assert_only(&answers, &[20], "after the wait for room");
}

/// A device among what was fetched does not answer: the unit drops its wait descriptors, and none
/// is waited for.
#[test]
fn a_time_out_during_the_wait_ends_it() {
    let mut ledger = Ledger::new(0);
    assert!((0..12).all(|_| ledger.submit(1)));
    ledger.refuse(2 * 6);
    ledger.bench.unit.step(u64::MAX);
    ledger.ask("all six are late");
    let mut state = ledger.bench.unit.state();
    state.fsts |= 0x40;
    state.iqercd |= 0x20 << 32;
    state.unreported.clear();
    drop(state);
    let answers = ledger.complete("after the time-out");
    ledger.assert_only(&answers, &[6], "after the time-out");
}

/// As everywhere, but the error is a device's time-out: the unit drops what it has not reported,
/// and all of it runs again.
#[test]
fn after_a_time_out_what_was_fetched_and_dropped_runs_again() {
    for position in 0..40 {
        for reported in [0, position / 2, position] {
            let when = format!("{position} is silent, {reported} reported");
            let mut ledger = Ledger::new(110);
            assert!((0..60).all(|_| ledger.submit(1)));
            ledger.bench.unit.step(2 * position as u64);
            ledger.bench.unit.report(reported);
            ledger.ask(&when);
            ledger.bench.unit.state().unanswered = 0x20;
            ledger.bench.unit.step(u64::MAX);
            let answers = ledger.complete(&when);
            ledger.assert_only(&answers, &[], &when);
        }
    }
}

#[test]
fn submissions_of_every_size_fill_the_ring_and_none_is_lost() {
    for invalidations in 1..=32 {
        for before in [0, 1, 50] {
            let when = format!("{invalidations} invalidations each, {before} before");
            let mut ledger = Ledger::new(before);
            while ledger.submit(invalidations) {
                let (used, each) = (ledger.submitted.len(), invalidations + 1);
                assert!(used * each <= 254, "P1: {used} of {each} are too many");
            }
            ledger.ask(&when);
            let answers = ledger.complete(&when);
            ledger.assert_only(&answers, &[], &when);
        }
    }
}
