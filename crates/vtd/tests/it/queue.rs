// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The queue: order, wrap, room, several submitters, and every way in which a unit does not answer.

use crate::common::bench::*;
use ioatlas_dma::{
    invalidation::{InvalidateError, WaitLimit},
    platform::Ordering,
};

#[test]
fn a_submission_is_its_invalidations_in_order_and_one_wait() {
    let bench = Bench::new();
    let ticket = bench.submit(&[invalidation(3), invalidation(4)]).unwrap();
    assert_eq!(bench.done(ticket), Ok(true));
    let taken = bench.unit.taken();
    assert_eq!(taken[..2], [(0x3_0022, 0), (0x4_0022, 0)]);
    assert_eq!(taken.len(), 3);
    assert_eq!(taken[2].0 as u32, 0x25, "wait with status write, no fence");
    assert_eq!(taken[2].1, bench.queue.status().0);
}

#[test]
fn tickets_are_done_one_after_the_other_as_the_unit_goes() {
    let bench = Bench::held();
    let tickets: Vec<_> = (0..8)
        .map(|n| bench.submit(&[invalidation(n)]).unwrap())
        .collect();
    for done in 0..=tickets.len() {
        for (n, ticket) in tickets.iter().enumerate() {
            assert_eq!(bench.done(*ticket), Ok(n < done), "{n} after {done}");
        }
        bench.unit.step(1);
        if let Some(next) = tickets.get(done) {
            let early = bench.done(*next);
            assert_eq!(early, Ok(false), "an invalidation taken is not one done");
        }
        bench.unit.step(1);
    }
}

/// The ring wraps after 256 descriptors and the ticket after 64 submissions; 1,000 submissions of 2
/// and 3 descriptors pass both often, at every offset.
#[test]
fn ring_and_ticket_wrap_around_and_nothing_is_lost() {
    let bench = Bench::held();
    let mut waiting = std::collections::VecDeque::new();
    let mut sent = Vec::new();
    let mut smallest_data = u64::MAX;
    for n in 0..1000u64 {
        let batch = [invalidation(n), invalidation(n + 1)];
        let batch = &batch[..1 + n as usize % 2];
        sent.extend(batch.iter().map(|w| (w.low, w.high)));
        waiting.push_back((bench.submit(batch).unwrap(), batch.len() as u64 + 1));
        if waiting.len() > 40 {
            let (ticket, descriptors) = waiting.pop_front().unwrap();
            assert_eq!(bench.done(ticket), Ok(false), "submission {n}");
            bench.unit.step(descriptors);
            assert_eq!(bench.done(ticket), Ok(true), "submission {n}");
        }
    }
    bench.unit.step(1000);
    assert!(waiting.iter().all(|(t, _)| bench.done(*t) == Ok(true)));
    let taken = bench.unit.taken();
    for wait in taken.iter().filter(|d| d.0 & 0xf == 5) {
        smallest_data = smallest_data.min(wait.0 >> 32);
    }
    assert!(smallest_data < 2, "the ticket wrapped: {smallest_data:#x}");
    let invalidations: Vec<_> = taken.into_iter().filter(|d| d.0 & 0xf == 2).collect();
    assert_eq!(invalidations, sent);
}

#[test]
fn a_full_queue_is_an_error_after_the_bound_and_works_again_later() {
    let bench = Bench::held();
    assert_eq!(bench.fill(), 127, "254 usable descriptors, two each");
    let error = InvalidateError::TimedOut { turns: LIMIT.0 };
    // it was waited for once, and has reported nothing since
    let at_once = Err(InvalidateError::TimedOut { turns: 0 });
    assert_eq!(bench.submit(&[invalidation(0)]), at_once);
    // what was fetched is not done, and may have to be read again
    bench.unit.step(1);
    assert_eq!(bench.submit(&[invalidation(0)]), at_once);
    // one submission is done: room for another of its size
    bench.unit.step(1);
    let three = [invalidation(1), invalidation(1)];
    assert_eq!(bench.submit(&three), Err(error));
    let ticket = bench.submit(&[invalidation(1)]).unwrap();
    bench.unit.step(1000);
    assert_eq!(bench.done(ticket), Ok(true));
}

#[test]
fn a_submission_waits_for_room_without_holding_the_lock() {
    let bench = Bench::held();
    // as many as there is room for: no caller has waited in vain yet
    for _ in 0..127 {
        bench.submit(&[invalidation(0)]).unwrap();
    }
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..3)
            .map(|n| {
                let bench = &bench;
                scope.spawn(move || {
                    let (p, limit) = (&*bench.host, WaitLimit(u64::MAX));
                    let batch = [invalidation(n)];
                    bench.queue.submit(p, &bench.unit, batch.into_iter(), limit)
                })
            })
            .collect();
        while waiters.iter().any(|w| !w.is_finished()) {
            bench.unit.step(1);
            std::thread::yield_now();
        }
        for waiter in waiters {
            assert!(waiter.join().unwrap().is_ok());
        }
    });
}

#[test]
fn submissions_of_several_cpus_stay_whole_and_each_is_done_in_its_turn() {
    const EACH: u64 = 500;
    let bench = Bench::new();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let bench = &bench;
            scope.spawn(move || {
                for n in 0..EACH {
                    let id = thread * EACH + n;
                    let ticket = bench.submit(&[invalidation(id), invalidation(id)]);
                    assert_eq!(bench.done(ticket.unwrap()), Ok(true));
                }
            });
        }
    });
    let taken = bench.unit.taken();
    let mut seen = std::collections::BTreeSet::new();
    for submission in taken.chunks(3) {
        assert_eq!(submission[0], submission[1], "two of one caller, in a row");
        assert_eq!(submission[2].0 & 0xf, 5, "and then its wait");
        seen.insert(submission[0].0 >> 16);
    }
    assert_eq!(seen.len() as u64, 4 * EACH);
}

#[test]
fn the_fault_status_is_not_read_while_all_goes_well() {
    let bench = Bench::new();
    for n in 0..600 {
        let ticket = bench.submit(&[invalidation(n)]).unwrap();
        assert_eq!(bench.done(ticket), Ok(true));
    }
    assert_eq!(bench.unit.state().fault_status_reads, 0);
}

/// A device that fell off its bus reads all ones.
#[test]
fn a_head_outside_the_ring_makes_no_room() {
    let bench = Bench::held();
    bench.fill();
    let head = std::mem::replace(&mut bench.unit.state().head, 0x7fff);
    // filling it up ran out of time already
    let error = InvalidateError::TimedOut { turns: 0 };
    assert_eq!(bench.submit(&[invalidation(0)]), Err(error));
    bench.unit.state().head = head;
    bench.unit.step(4);
    assert!(bench.submit(&[invalidation(0)]).is_ok());
}

/// What was submitted may be asked for late, as by an unmap that was started and not finished.
#[test]
fn a_ticket_is_answered_right_however_many_came_after_it() {
    let bench = Bench::held();
    let first = bench.submit(&[invalidation(0)]).unwrap();
    assert_eq!(bench.done(first), Ok(false), "P1");
    bench.unit.step(u64::MAX);
    let mut last = first;
    for n in 1..2000 {
        last = bench.submit(&[invalidation(n)]).unwrap();
        assert_eq!(bench.done(first), Ok(true), "after {n} others");
    }
    bench.unit.state().credit = 0;
    let next = bench.submit(&[invalidation(2)]).unwrap();
    let word = bench.host.word(bench.queue.status().0);
    let now = word.load(Ordering::Relaxed) as u32;
    // as far as the unit might have come meanwhile
    for others in [0, 1 << 20, 1 << 31, (1 << 31) + 5, u32::MAX - 2200] {
        let later = now.wrapping_add(others);
        word.store(u64::from(later), Ordering::Relaxed);
        assert_eq!(bench.done(last), Ok(true), "{others} others");
        assert_eq!(bench.done(first), Ok(true), "{others} others");
    }
    // what is not done is told from all of that
    for behind in [1, 2, 100, 127] {
        let before = (now + 1).wrapping_sub(behind);
        word.store(u64::from(before), Ordering::Relaxed);
        assert_eq!(bench.done(next), Ok(false), "P1: {behind} are to come");
    }
}

#[test]
fn a_ticket_that_failed_is_told_so_however_many_came_after_it() {
    let bench = Bench::held();
    let before = bench.submit(&[invalidation(0)]).unwrap();
    bench.unit.state().bad = Some(2);
    let refused = bench.submit(&[invalidation(1)]).unwrap();
    let behind = bench.submit(&[invalidation(2)]).unwrap();
    bench.unit.step(u64::MAX);
    let _ = bench.done(behind); // this look makes the queue go on
    for n in 3..1000 {
        let ticket = bench.submit(&[invalidation(n)]).unwrap();
        assert_eq!(bench.done(ticket), Ok(true));
    }
    assert_eq!(
        (bench.done(behind), bench.done(before)),
        (Ok(true), Ok(true))
    );
    let error = bench.done(refused);
    let queue_error = matches!(error, Err(InvalidateError::QueueError { .. }));
    assert!(queue_error, "P1: it was left out: {error:?}");
}
