// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a peer does in a loop does not fill the log.
//!
//! The log is the program's: other tests' lines are counted, too, and they are few.

use crate::common::{raw::*, *};
use vm_memory::{Bytes, GuestAddress};

/// Enough for loops that take an hour, and far below one line each time.
const FEW: u64 = 300;
const OFTEN: usize = 1000;

#[track_caller]
fn few(text: &str) {
    let lines = lines_with(text);
    assert!((1..=FEW).contains(&lines), "{lines} lines with '{text}'");
}

#[test]
fn rings_outside_memory_make_few_lines() {
    log_to_stderr();
    let back = Back::new(patient());
    let mut raw = Raw::negotiate(&back, WITHOUT);
    let table = Raw::table(&[[GUEST, MEMORY, 0x7000_0000, 0]]);
    assert_eq!(raw.ask(SET_MEM_TABLE, &table, &[&memory(MEMORY)]), 0);
    let enable = [0u32.to_ne_bytes(), 1u32.to_ne_bytes()].concat();
    assert_eq!(raw.ask(SET_VRING_ENABLE, &enable, &[]), 0);
    assert_eq!(raw.ask(SET_VRING_KICK, &words(&[1 << 8]), &[]), 0);
    for _ in 0..OFTEN {
        let nowhere = words(&[0, 0x1000, 0x2000, 0x3000, 0]);
        assert_eq!(raw.ask(SET_VRING_ADDR, &nowhere, &[]), 0);
    }
    few("are not in guest memory");
}

#[test]
fn front_ends_that_come_and_go_make_few_lines() {
    log_to_stderr();
    let back = Back::new(patient());
    for n in 0..OFTEN {
        // Each that waits has a descriptor.
        let served = || (back.observer.stats().control.connections + 64 >= n as u64).then_some(());
        eventually("it keeps up", served);
        let raw = Raw::connect(&back);
        if n % 2 == 0 {
            raw.send(99, &[], &[]);
        }
    }
    back.ends();
    few("hung up");
    few("connection closed");
}

#[test]
fn queues_that_stop_again_and_again_make_few_lines() {
    log_to_stderr();
    let back = Back::new(patient());
    let mut front = front_end(&back, front_config(WITH_IOMMU));
    for n in 1..=OFTEN / 2 {
        let driver = Driver::by_iova(&mut front, 0);
        let index = GuestAddress(GUEST + 0x1002);
        front.memory().write_obj(SIZE + 1, index).unwrap();
        driver.events.kick.write(1).unwrap();
        eventually("the queue stops", || {
            (back.stopped.lock().unwrap().len() >= n).then_some(())
        });
        front.stop_queue(0).unwrap();
    }
    few("queue 0 stops");
}
