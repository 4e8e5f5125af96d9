// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A front end that makes its events block, and fills or empties them: nothing of ours waits for
//! it, whether it lives or is dead.
//!
//! `O_NONBLOCK` is of the open file, which front end and back end share; so the front end decides
//! whether a write or read of an event waits.

use crate::common::*;
use ioatlas_dma::units::*;
use ioatlas_vhost::server::*;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::{
    os::fd::{AsRawFd, BorrowedFd},
    sync::mpsc::channel,
    time::Duration,
};
use vhost::VhostBackend;
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::eventfd::EventFd;

const FROM: u64 = GUEST + 0x10_0000;
const TO: u64 = GUEST + 0x20_0000;
/// How long is waited for what must come.
const BOUND: Duration = SOON;

fn make_blocking(event: &EventFd) {
    // SAFETY: the event lives longer than this call.
    let fd = unsafe { BorrowedFd::borrow_raw(event.as_raw_fd()) };
    let flags = fcntl_getfl(fd).unwrap();
    fcntl_setfl(fd, flags - OFlags::NONBLOCK).unwrap();
}

/// The next write waits until the front end reads, which it never does.
fn block_and_fill(event: &EventFd) {
    let _ = event.read();
    event.write(u64::MAX - 1).unwrap();
    make_blocking(event);
}

fn two_queues(back: &Back) -> (FrontEnd<PageMap>, [Driver; 2]) {
    log_to_stderr();
    let config = front_config(WITH_IOMMU).answer(BOUND);
    let mut front = front_end(back, config);
    map(&front, FROM, FROM, 0x1000, Perm::Read);
    map(&front, TO, TO, 0x1000, Perm::Write);
    let drivers = [0, 1].map(|queue| Driver::by_iova(&mut front, queue));
    (front, drivers)
}

/// Two queues whose driver would have to be called, and cannot be.
fn with_full_calls(back: &Back) -> (FrontEnd<PageMap>, [Driver; 2]) {
    let (front, mut drivers) = two_queues(back);
    for driver in &mut drivers {
        block_and_fill(&driver.events.call);
        driver.invert(&front, (FROM, FROM), (TO, TO), b"one call is enough");
    }
    (front, drivers)
}

/// The same with the events that tell of errors.
fn with_full_errors(back: &Back) -> (FrontEnd<PageMap>, [Driver; 2]) {
    let (front, drivers) = two_queues(back);
    for (number, driver) in drivers.iter().enumerate() {
        block_and_fill(&driver.events.err);
        let index = GuestAddress(GUEST + 0x3000 * number as u64 + 0x1002);
        front.memory().write_obj(SIZE + 1, index).unwrap();
        driver.events.kick.write(1).unwrap();
    }
    (front, drivers)
}

/// Two queues, each with a thread, that are kicked by one event: what one thread reads, the other
/// waits for.
fn with_shared_kick(back: &Back) -> (FrontEnd<PageMap>, [Driver; 2]) {
    let (mut front, drivers) = two_queues(back);
    let kick = &drivers[0].events.kick;
    front.frontend().0.set_vring_kick(1, kick).unwrap();
    make_blocking(kick);
    for _ in 0..2000 {
        kick.write(1).unwrap();
        std::thread::sleep(Duration::from_micros(50));
    }
    (front, drivers)
}

type Attack = fn(&Back) -> (FrontEnd<PageMap>, [Driver; 2]);
const ATTACKS: [(&str, Attack); 3] = [
    ("call", with_full_calls),
    ("error", with_full_errors),
    ("kick", with_shared_kick),
];

/// What is done in time, or else.
fn in_time<T: Send + 'static>(what: &str, act: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = channel();
    std::thread::spawn(move || done.send(act()));
    match is_done.recv_timeout(BOUND) {
        Ok(result) => result,
        Err(e) => panic!("not within {BOUND:?}: {what}: {e}"),
    }
}

fn events_that_block_do_not_keep_queues_from_stopping() {
    for (event, attack) in ATTACKS {
        let back = Back::new(patient());
        let (mut front, drivers) = attack(&back);
        for queue in [0, 1] {
            if let Err(e) = front.stop_queue(queue) {
                // What waits would keep this process from ending, too.
                drivers.iter().for_each(release);
                panic!("P11: queue {queue} does not stop, with its {event} event blocked: {e}");
            }
        }
        let mut driver = Driver::by_iova(&mut front, 0);
        let got = driver.invert(&front, (FROM, FROM), (TO, TO), b"started anew");
        assert_eq!(got, inverted(b"started anew"));
    }
}

fn release(driver: &Driver) {
    let _ = driver.events.call.read();
    let _ = driver.events.err.read();
    let _ = driver.events.kick.write(1);
}

fn events_that_block_do_not_outlive_their_front_end() {
    for (event, attack) in ATTACKS {
        let back = Back::new(patient());
        let (front, drivers) = attack(&back);
        // The events live on in some process, and block.
        drop(front);
        let cache = cache();
        let what = format!("a front end after one whose {event} event blocks");
        in_time(&what, move || {
            with_cache(cache, move || {
                let (front, mut others) = two_queues(&back);
                let got = others[0].invert(&front, (FROM, FROM), (TO, TO), b"the next");
                assert_eq!(got, inverted(b"the next"));
            });
        });
        drop(drivers);
    }
}

fn events_that_block_do_not_keep_a_runner_from_stopping() {
    for (event, attack) in ATTACKS {
        let back = Back::new(patient());
        let (front, drivers) = attack(&back);
        let stop = back.stop.clone();
        in_time(
            &format!("stop, with the {event} event blocked"),
            move || {
                stop.stop();
            },
        );
        in_time("the end of the runner", move || back.ends());
        drop((front, drivers));
    }
}

with_every_cache! {
    events_that_block_do_not_keep_queues_from_stopping,
    events_that_block_do_not_outlive_their_front_end,
    events_that_block_do_not_keep_a_runner_from_stopping,
}
