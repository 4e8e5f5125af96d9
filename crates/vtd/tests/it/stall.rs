// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A unit that stops for good without any error: what it costs to hand it more (P11).

use crate::common::{
    BY,
    bench::*,
    rig::{ROOT, up_with},
    shut_down,
};
use ioatlas_dma::invalidation::{Invalidate, InvalidateError, Scope};
use ioatlas_dma::translator::{AttachError, RemappingUnit};
use ioatlas_dma::units::{DomainId, SourceId};

const MORE: u64 = 64;
const ID: DomainId = DomainId(5);
const TIMED_OUT: InvalidateError = InvalidateError::TimedOut { turns: LIMIT.0 };
const AT_ONCE: InvalidateError = InvalidateError::TimedOut { turns: 0 };

#[test]
fn submissions_without_room_wait_out_the_limit_once() {
    let bench = Bench::held();
    bench.fill(); // the last of these waits for room, in vain
    let looks = || bench.unit.state().fault_status_reads;
    let before = looks();
    for nth in 1..=MORE {
        let said = bench.submit(&[invalidation(0)]);
        let looked = looks() - before;
        assert!(
            looked <= nth,
            "P11: {nth} submissions looked {looked} times at a unit that takes nothing"
        );
        assert_eq!(said, Err(AT_ONCE));
    }
    // it has done one submission: room for one, and it is waited for again
    bench.unit.step(2);
    let ticket = bench.submit(&[invalidation(1)]);
    let ticket = ticket.expect("P11: the unit reports again, and there is room");
    let none = bench.submit(&[invalidation(2), invalidation(2)]);
    assert_eq!(none, Err(TIMED_OUT));
    bench.unit.step(1000);
    assert_eq!(bench.done(ticket), Ok(true));
}

/// The same without a queue.
#[test]
fn registers_without_room_are_waited_for_once() {
    let (_host, fake, unit) = up_with(|s| s.ecap &= !2);
    let submit = || unit.submit(ID, Scope::DOMAIN);
    fake.state().slow_registers = u32::MAX;
    let full = (0..1000).find_map(|_| submit().err());
    assert_eq!(full, Some(TIMED_OUT), "this one waits for room, in vain");
    let before = fake.state().busy;
    for nth in 1..=MORE {
        let said = submit();
        let looked = before - fake.state().busy;
        assert!(
            u64::from(looked) <= nth,
            "P11: {nth} submissions looked {looked} times at a unit that takes nothing"
        );
        assert_eq!(said, Err(AT_ONCE));
    }
    // it has done one invalidation: room for one, and it is waited for again
    fake.state().busy = 0;
    let ticket = submit().expect("P11: the unit answers again, and there is room");
    assert_eq!(submit(), Err(TIMED_OUT));
    let mut state = fake.state();
    (state.busy, state.slow_registers) = (0, 0);
    drop(state);
    assert_eq!(unit.done(ticket), Ok(true));
}

/// Each unmap on such a unit flushes its write buffers first, and each map flushes them, too.
#[test]
fn write_buffers_that_are_never_flushed_are_waited_for_once() {
    let (_, fake, unit) = up_with(|s| s.cap |= 1 << 4); // RWBF
    let submit = || unit.submit(ID, Scope::DOMAIN);
    fake.state().slow_buffers = u32::MAX;
    let told = "P1: the unit may not see yet what was cleared";
    assert_eq!(submit(), Err(TIMED_OUT), "{told}");
    let before = fake.state().flushing;
    for nth in 1..=MORE {
        let said = match nth % 2 {
            0 => submit().map(drop),
            _ => unit.flush_write_buffers(),
        };
        let looked = before - fake.state().flushing;
        assert!(
            u64::from(looked) <= nth,
            "P11: {nth} flushes of write buffers looked {looked} times at a unit that ends none"
        );
        assert_eq!(said, Err(AT_ONCE));
    }
    // that flush ends, and so do later ones
    let mut state = fake.state();
    (state.flushing, state.slow_buffers) = (0, 3);
    drop(state);
    let ticket = submit().expect("P11: the unit flushes again");
    assert_eq!(unit.done(ticket), Ok(true));
    // and it is waited for again
    fake.state().slow_buffers = u32::MAX;
    assert_eq!(submit(), Err(TIMED_OUT));
}

/// Detaching waits for the unit by itself, and each device is detached in turn.
#[test]
fn detaching_from_a_unit_that_takes_nothing_waits_out_the_limit_once() {
    let (host, fake, unit) = up_with(|_| {});
    let devices = || (0..16u16).map(SourceId);
    for device in devices() {
        unit.attach(BY, &*host, device, ID, ROOT, 4).unwrap();
    }
    fake.state().credit = 0;
    let before = fake.state().fault_status_reads;
    for (nth, device) in devices().enumerate() {
        let cause = match nth {
            0 => TIMED_OUT,
            _ => AT_ONCE,
        };
        let said = unit.detach(BY, &*host, device, ID);
        assert_eq!(said, Err(AttachError::Invalidate { device, cause }), "P11");
    }
    let looked = fake.state().fault_status_reads - before;
    let most = LIMIT.0 + 16;
    assert!(
        looked <= most,
        "P11: looked {looked} times at a dead unit, more than {most}"
    );
    fake.step(u64::MAX);
    for device in devices() {
        assert_eq!(unit.detach(BY, &*host, device, ID), Ok(()));
    }
}

/// The unit refuses a descriptor and does not report what it had fetched before, so the queue
/// cannot be recovered: a caller that waits runs out of time, and then the queue is out of service.
/// No device is said to be detached, and all of them are blocked.
#[test]
fn a_recovery_that_takes_too_long_ends_the_queue() {
    let (host, fake, unit) = up_with(|_| {});
    let devices = [SourceId(1), SourceId(2), SourceId(3), SourceId(4)];
    for device in devices {
        unit.attach(BY, &*host, device, ID, ROOT, 4).unwrap();
    }
    fake.state().reports_late = true;
    let fetched = unit.submit(ID, Scope::DOMAIN).unwrap();
    let mut state = fake.state();
    state.bad = Some(state.ran);
    let head = state.head as u32;
    drop(state);
    let stops = InvalidateError::QueueError { head };
    let over = InvalidateError::OutOfService;
    for (device, cause) in devices.into_iter().zip([TIMED_OUT, stops, over, over]) {
        let said = unit.detach(BY, &*host, device, ID);
        assert_eq!(said, Err(AttachError::Invalidate { device, cause }), "P11");
        assert_eq!(fake.context(device.0).unwrap().0 & 1, 0, "P1: blocked");
    }
    assert_eq!(unit.done(fetched), Err(over), "P1: it is not reported");
    fake.report(usize::MAX);
    assert_eq!(unit.done(fetched), Ok(true), "and then it is");
    assert_eq!(unit.submit(ID, Scope::DOMAIN), Err(over));
    assert_eq!(unit.incidents().queue_errors, 1);
}

/// The last flush of all is refused: nothing proves that the unit forgot the tables, and no frame
/// of them is used again (P4).
#[test]
fn a_shut_down_whose_flush_is_refused_gives_no_frame_back() {
    let (host, fake, unit) = up_with(|_| {});
    unit.attach(BY, &*host, SourceId(1), ID, ROOT, 4).unwrap();
    unit.detach(BY, &*host, SourceId(1), ID).unwrap();
    let frames = host.frames_in_use();
    let mut state = fake.state();
    state.bad = Some(state.ran);
    drop(state);
    let Err((error, _)) = shut_down(unit) else {
        panic!("P4: its flush was refused");
    };
    let said = error.to_string();
    assert!(said.contains("stopped with an error"), "{said}");
    assert_eq!(host.frames_in_use(), frames, "P4");
}
