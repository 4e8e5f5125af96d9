// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Errors of the queue: whose submission fails, whose does not, and that no caller waits for ever.

use crate::common::bench::*;
use ioatlas_dma::invalidation::{InvalidateError, WaitLimit};
use ioatlas_vtd::layout::Words;
use ioatlas_vtd::queue::{QueueErrorInfo, Ticket};

/// Asks until the answer is not "not yet".
fn outcome(bench: &Bench, ticket: Ticket) -> Result<bool, InvalidateError> {
    let mut answers = std::iter::repeat_with(|| bench.done(ticket)).take(50);
    let last = answers.find(|answer| *answer != Ok(false));
    last.unwrap_or(Ok(false))
}

/// Removes everything from one device's TLB.
fn of_device(sid: u64) -> Words {
    Words {
        low: 0x3 | sid << 32,
        high: 0x7fff_ffff_ffff_f001,
    }
}

const QUEUE_ERROR: Result<bool, InvalidateError> = Err(InvalidateError::QueueError { head: 2 });

#[test]
fn a_refused_descriptor_fails_its_submission_and_no_other() {
    let bench = Bench::held();
    let tickets = [0, 1, 2].map(|n| bench.submit(&[invalidation(n)]).unwrap());
    bench.unit.state().bad = Some(2);
    bench.unit.step(1000);
    // the first caller does the work for all, in whatever order they come
    assert_eq!(outcome(&bench, tickets[2]), Ok(true));
    assert_eq!(outcome(&bench, tickets[1]), QUEUE_ERROR);
    assert_eq!(outcome(&bench, tickets[1]), QUEUE_ERROR, "asked again");
    assert_eq!(outcome(&bench, tickets[0]), Ok(true));
    assert_eq!(
        tickets.map(|t| outcome(&bench, t).is_ok()),
        [true, false, true]
    );
    let incidents = bench.queue.incidents();
    assert_eq!(incidents.queue_errors, 1);
    assert_eq!(incidents.last_queue_error, QueueErrorInfo::Type);
    let after = bench.submit(&[invalidation(3)]).unwrap();
    assert_eq!(bench.done(after), Ok(true), "the queue goes on");
    let ran: Vec<u64> = bench
        .unit
        .taken()
        .iter()
        .map(|d| d.0 as u32 >> 16)
        .map(u64::from)
        .collect();
    assert!(ran.contains(&2) && ran.contains(&3) && !ran.contains(&1));
}

#[test]
fn of_a_submission_of_several_the_others_still_run() {
    let bench = Bench::held();
    let ticket = bench
        .submit(&[invalidation(5), invalidation(6), invalidation(7)])
        .unwrap();
    bench.unit.state().bad = Some(1);
    bench.unit.step(1000);
    let error = InvalidateError::QueueError { head: 1 };
    assert_eq!(outcome(&bench, ticket), Err(error));
    let ran: Vec<_> = bench
        .unit
        .taken()
        .iter()
        .map(|d| d.0 as u16 as u64 | d.0 & 0xf_0000)
        .collect();
    assert!(ran.contains(&0x7_0022), "{ran:x?}");
    assert!(!ran.contains(&0x6_0022), "{ran:x?}");
}

#[test]
fn what_was_done_just_before_the_error_is_done() {
    let bench = Bench::held();
    let [first, second] = [0, 1].map(|n| bench.submit(&[invalidation(n)]).unwrap());
    // the unit runs between our look at the status word and our look at the fault status
    bench.unit.state().bad = Some(2);
    bench.unit.state().late = 10;
    assert_eq!(outcome(&bench, first), Ok(true));
    assert_eq!(outcome(&bench, second), QUEUE_ERROR);
}

#[test]
fn a_unit_that_refuses_everything_is_out_of_service() {
    let bench = Bench::held();
    let tickets = [0, 1].map(|n| bench.submit(&[invalidation(n)]).unwrap());
    bench.unit.state().broken = true;
    bench.unit.step(1000);
    let causes = tickets.map(|t| outcome(&bench, t).unwrap_err());
    assert!(matches!(causes[0], InvalidateError::QueueError { .. }));
    assert_eq!(causes[1], InvalidateError::OutOfService);
    let after = bench.submit(&[invalidation(3)]);
    assert_eq!(after, Err(InvalidateError::OutOfService));
}

#[test]
fn a_wait_for_room_recovers_the_queue() {
    let bench = Bench::held();
    assert_eq!(bench.fill(), 127);
    bench.unit.state().bad = Some(0);
    bench.unit.state().credit = u64::MAX;
    bench.unit.step(0);
    let ticket = bench.submit(&[invalidation(9)]).unwrap();
    assert_eq!(outcome(&bench, ticket), Ok(true));
}

#[test]
fn a_head_outside_the_ring_at_an_error_stops_the_queue() {
    let bench = Bench::held();
    let ticket = bench.submit(&[invalidation(0)]).unwrap();
    bench.unit.state().fsts = 0x10;
    bench.unit.state().head = 0x7fff;
    let error = InvalidateError::QueueError { head: 0x7fff };
    assert_eq!(bench.done(ticket), Err(error));
    assert_eq!(bench.done(ticket), Err(InvalidateError::OutOfService));
}

#[test]
fn a_device_that_does_not_answer_fails_what_asked_it_and_nothing_else() {
    for position in 0..3 {
        let bench = Bench::held();
        bench.unit.state().silent = vec![0x20];
        let tickets = [0, 1, 2].map(|n| {
            let sid = if n == position { 0x20 } else { 0x28 };
            bench.submit(&[invalidation(n), of_device(sid)]).unwrap()
        });
        bench.unit.step(1000);
        let device = ioatlas_dma::units::SourceId(0x20);
        let failed = Err(InvalidateError::DeviceTimedOut { device });
        for (n, ticket) in tickets.iter().enumerate().rev() {
            let said = outcome(&bench, *ticket);
            match n as u64 == position {
                true => assert_eq!(said, failed, "P1: the device may use what it kept"),
                false => assert_eq!(said, Ok(true), "{n} of {position}"),
            }
        }
        assert_eq!(bench.queue.incidents().time_outs, 1);
        // what precedes the silent device's descriptor ran, and was waited for again
        let taken = bench.unit.taken();
        let domains = taken.iter().filter(|d| d.0 & 0xf == 2);
        assert!(
            domains.map(|d| d.0 >> 16 & 0xf).eq([0, 1, 2]
                .into_iter()
                .take(position as usize + 1)
                .chain(position..3))
        );
    }
}

#[test]
fn a_time_out_that_names_no_device_fails_what_asked_any_device() {
    let bench = Bench::held();
    bench.unit.state().silent = vec![0x20];
    let asked = bench.submit(&[invalidation(1), of_device(0x20)]).unwrap();
    let plain = bench.submit(&[invalidation(2)]).unwrap();
    bench.unit.step(1000);
    bench.unit.state().iqercd = 0;
    assert_eq!(outcome(&bench, plain), Ok(true));
    let device = ioatlas_dma::units::SourceId(0x20);
    let failed = Err(InvalidateError::DeviceTimedOut { device });
    assert_eq!(outcome(&bench, asked), failed);
}

/// Of several invalidations sent to a device that is gone, each times out by itself.
#[test]
fn a_time_out_of_what_was_left_out_before_fails_nothing() {
    let bench = Bench::held();
    let asked = bench.submit(&[invalidation(1), of_device(0x28)]).unwrap();
    let plain = bench.submit(&[invalidation(2)]).unwrap();
    bench.unit.state().unanswered = 0x30;
    bench.unit.state().unanswered_later = 2;
    bench.unit.step(1000);
    assert_eq!(outcome(&bench, plain), Ok(true));
    assert_eq!(outcome(&bench, asked), Ok(true));
    assert_eq!(bench.queue.incidents().time_outs, 3);
}

/// A second error, of the other kind, in what runs again after the first: each costs its own
/// submission, whichever comes first.
#[test]
fn a_second_error_of_the_other_kind_costs_its_own_submission() {
    let device = ioatlas_dma::units::SourceId(0x20);
    let silent = Err(InvalidateError::DeviceTimedOut { device });
    for (refused, asks) in [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)] {
        for late in [false, true] {
            let bench = Bench::held();
            let mut state = bench.unit.state();
            (state.silent, state.reports_late) = (vec![device.0], late);
            state.reports_at_look = usize::from(late);
            drop(state);
            let tickets = [0, 1, 2, 3].map(|n| {
                let batch = [invalidation(n), of_device(0x20)];
                let len = if n == asks { 2 } else { 1 };
                bench.submit(&batch[..len]).unwrap()
            });
            bench.unit.state().refuses_domain = Some(refused);
            bench.unit.step(1000);
            for (n, ticket) in (0u64..).zip(tickets) {
                let answer = outcome(&bench, ticket);
                let refused_it = matches!(answer, Err(InvalidateError::QueueError { .. }));
                let as_it_should = match n {
                    _ if n == refused => refused_it,
                    _ if n == asks => answer == silent,
                    _ => answer == Ok(true),
                };
                assert!(
                    as_it_should,
                    "{n}: {answer:?} ({refused} refused, {asks} asks, late: {late})"
                );
            }
            let incidents = bench.queue.incidents();
            assert_eq!((incidents.queue_errors, incidents.time_outs), (1, 1));
        }
    }
}

/// There is room for sixteen devices that wait to be fenced. One more, and the queue stops: no
/// submission is reported done that was not carried out.
#[test]
fn more_silent_devices_than_can_be_noted_stop_the_queue() {
    let bench = Bench::held();
    let devices = || (0x20..).step_by(8).take(17);
    bench.unit.state().silent = devices().collect();
    let asks = |sid: u16| {
        bench
            .submit(&[invalidation(1), of_device(sid.into())])
            .unwrap()
    };
    let tickets: Vec<_> = devices().map(asks).collect();
    let last = bench.submit(&[invalidation(2)]).unwrap();
    bench.unit.step(1000);
    for (sid, ticket) in devices().zip(tickets) {
        let device = ioatlas_dma::units::SourceId(sid);
        let silent = Err(InvalidateError::DeviceTimedOut { device });
        assert_eq!(outcome(&bench, ticket), silent, "{sid:#x}");
    }
    let stopped = Err(InvalidateError::OutOfService);
    assert_eq!(outcome(&bench, last), stopped);
    assert_eq!(
        bench.submit(&[invalidation(3)]),
        Err(InvalidateError::OutOfService)
    );
    let second = |d: &(u64, u64)| d.0 >> 16 & 0xffff == 2;
    assert!(!bench.unit.taken().iter().any(second), "it never ran");
}

#[test]
fn an_answer_to_no_question_is_counted_and_stops_nothing() {
    let bench = Bench::held();
    let ticket = bench.submit(&[invalidation(1)]).unwrap();
    bench.unit.state().fsts |= 0x20;
    bench.unit.state().iqercd = 0x30 << 48;
    assert_eq!(bench.done(ticket), Ok(false));
    assert_eq!(bench.unit.state().fsts, 0);
    bench.unit.step(10);
    assert_eq!(bench.done(ticket), Ok(true));
    let incidents = bench.queue.incidents();
    assert_eq!(incidents.completion_errors, 1);
    assert_eq!(incidents.last_completion_error.map(|d| d.0), Some(0x30));
}

/// More failures than are remembered one by one, each seen to by the next caller.
#[test]
fn failures_that_were_not_asked_for_in_time_are_no_successes() {
    let bench = Bench::new();
    let refused: Vec<_> = (0..100)
        .map(|n| {
            let ran = bench.unit.state().ran;
            bench.unit.state().bad = Some(ran);
            let ticket = bench.submit(&[invalidation(n)]).unwrap();
            let next = bench.submit(&[invalidation(n)]).unwrap();
            assert_eq!(outcome(&bench, next), Ok(true));
            ticket
        })
        .collect();
    for (n, ticket) in refused.into_iter().enumerate() {
        let said = outcome(&bench, ticket);
        assert!(said.is_err(), "P1: {n} was refused, and is said to be done");
    }
}

/// Errors at every place of a ring that is full, wrapped at every offset.
#[test]
fn recovery_works_wherever_the_ring_wraps() {
    for start in (0..256).step_by(7) {
        let bench = Bench::new();
        for n in 0..start / 2 {
            bench.submit(&[invalidation(n)]).unwrap();
        }
        bench.unit.state().credit = 0;
        let ran = bench.unit.state().ran;
        let tickets: Vec<_> = (0..100)
            .map(|n| bench.submit(&[invalidation(n)]).unwrap())
            .collect();
        let bad = (start as usize * 3) % 100;
        bench.unit.state().bad = Some(ran + 2 * bad);
        bench.unit.state().credit = u64::MAX;
        bench.unit.step(0);
        for (n, ticket) in tickets.iter().enumerate() {
            assert_eq!(
                outcome(&bench, *ticket).is_err(),
                n == bad,
                "{n} at {start}"
            );
        }
    }
}

#[test]
fn several_cpus_with_errors_under_way_all_come_to_an_end() {
    let bench = Bench::new();
    let limit = WaitLimit(1 << 40);
    let failed: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4u64)
            .map(|thread| {
                let bench = &bench;
                scope.spawn(move || {
                    let mut failed = 0;
                    for n in 0..300 {
                        if n % 50 == 7 {
                            let ran = bench.unit.state().ran;
                            bench.unit.state().bad = Some(ran + 1);
                        }
                        let batch = [invalidation(thread), invalidation(thread)];
                        let (p, unit) = (&*bench.host, &bench.unit);
                        let ticket = bench.queue.submit(p, unit, batch.into_iter(), limit);
                        let Ok(ticket) = ticket else {
                            return usize::MAX;
                        };
                        failed += loop {
                            match bench.done(ticket) {
                                Ok(false) => std::thread::yield_now(),
                                Ok(true) => break 0,
                                Err(InvalidateError::QueueError { .. }) => break 1,
                                Err(_) => return usize::MAX,
                            }
                        };
                    }
                    failed
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    assert!(failed > 0, "no error hit");
    let errors = bench.queue.incidents().queue_errors as usize;
    assert!(failed <= errors, "{failed} failures of {errors} errors");
}
