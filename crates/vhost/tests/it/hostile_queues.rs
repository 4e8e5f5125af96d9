// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A guest, or a front end, that misuses queues: the queue stops with a reason and an event, the
//! rest goes on, and it can be started anew.

use crate::common::{raw::*, *};
use ioatlas_dma::units::*;
use ioatlas_vhost::{
    cache::IotlbReader,
    runner::{self, Device, End, Event, Failure, Next, QueueWorker, Stop},
    server::*,
};
use std::sync::{Arc, Mutex};
use vm_memory::{Bytes, GuestAddress};

const FROM: u64 = GUEST + 0x10_0000;
const TO: u64 = GUEST + 0x20_0000;

/// Queue 0 runs into what `spoil` made; returns why it stopped. Then queue 1 still works, and queue
/// 0 does when started anew.
#[track_caller]
fn stops(spoil: impl FnOnce(&mut FrontEnd<PageMap>, &mut Driver)) -> String {
    stops_with(patient(), spoil)
}

#[track_caller]
fn stops_with(
    config: runner::Config,
    spoil: impl FnOnce(&mut FrontEnd<PageMap>, &mut Driver),
) -> String {
    log_to_stderr();
    let back = Back::new(config);
    let mut front = front_end(&back, front_config(WITH_IOMMU));
    map(&front, FROM, FROM, 0x2000, Perm::Read);
    map(&front, TO, TO, 0x2000, Perm::Write);
    let mut driver = Driver::by_iova(&mut front, 0);
    let mut other = Driver::by_iova(&mut front, 1);
    // All that the other queue needs is in the cache then: no miss of its own can be what waits for
    // too long.
    let got = other.invert(&front, (FROM, FROM), (TO, TO), b"before");
    assert_eq!(got, inverted(b"before"));
    spoil(&mut front, &mut driver);
    let why = back.why_stopped();
    eventually("the error event", || driver.events.err.read().ok());
    let got = other.invert(&front, (FROM, FROM), (TO, TO), b"the other queue");
    assert_eq!(got, inverted(b"the other queue"));
    front.stop_queue(0).unwrap();
    let mut driver = Driver::by_iova(&mut front, 0);
    let got = driver.invert(&front, (FROM, FROM), (TO, TO), b"started anew");
    assert_eq!(got, inverted(b"started anew"));
    why
}

fn a_miss_that_is_never_answered_stops_the_queue() {
    let why = stops_with(without_answers(), |front, driver| {
        driver.descriptor(front, 0, (0xdead_0000, 100, Way::Read), None);
        driver.offer(front, 0);
    });
    assert!(
        why.starts_with("0: no answer to a miss at IOVA 0xdead0000 for Read"),
        "{why}"
    );
}

fn an_answer_that_does_not_permit_the_access_stops_the_queue_at_once() {
    let why = stops(|front, driver| {
        driver.descriptor(front, 0, (FROM, 8, Way::Read), Some(1));
        driver.descriptor(front, 1, (FROM + 0x100, 8, Way::Write), None);
        front
            .memory()
            .write_slice(b"old text", GuestAddress(FROM + 0x100))
            .unwrap();
        driver.offer(front, 0);
        let server = front.server().clone();
        eventually("the front end is told", || {
            (server.stats().access_failures > 0).then_some(())
        });
        let mut kept = [0; 8];
        front
            .memory()
            .read_slice(&mut kept, GuestAddress(FROM + 0x100))
            .unwrap();
        assert_eq!(&kept, b"old text", "read-only memory was written");
    });
    assert!(
        why.contains("needs Write, which its mapping does not permit"),
        "{why}"
    );
}

fn a_loop_of_descriptors_stops_the_queue() {
    let why = stops(|front, driver| {
        driver.descriptor(front, 3, (FROM, 8, Way::Read), Some(4));
        driver.descriptor(front, 4, (FROM, 8, Way::Read), Some(3));
        driver.offer(front, 3);
    });
    assert_eq!(
        why,
        "0: the descriptor chain at 3 is broken, a loop, or too long"
    );
}

fn links_to_nowhere_stop_the_queue() {
    for head in [0, SIZE, u16::MAX] {
        let why = stops(|front, driver| {
            driver.descriptor(front, 0, (FROM, 8, Way::Read), Some(SIZE));
            driver.offer(front, head);
        });
        assert_eq!(
            why,
            format!("0: the descriptor chain at {head} is broken, a loop, or too long")
        );
    }
}

/// A device whose driver makes a head that is none available while it works on the first chain.
struct Interrupted {
    inner: Inverter,
}

impl Device for Interrupted {
    fn queues(&self) -> u16 {
        self.inner.queues()
    }
    fn features(&self) -> u64 {
        self.inner.features()
    }
    fn process<R: IotlbReader>(
        &self,
        event: Event,
        worker: &mut QueueWorker<R>,
    ) -> Result<Next, Failure> {
        let Event::Queue(queue) = event else {
            return Ok(Next::Wait);
        };
        worker.each_chain(queue, |memory, chain| {
            let available = GUEST + IOVA + 0x1000;
            memory
                .write_obj(u16::MAX, GuestAddress(available + 6))
                .map_err(|e| Stop::Device(e.into()))?;
            memory
                .write_obj(2u16, GuestAddress(available + 2))
                .map_err(|e| Stop::Device(e.into()))?;
            invert(memory, chain)
        })
    }
    fn stopped(&self, queue: u16, why: &Stop) {
        self.inner.stopped(queue, why);
    }
}

fn a_chain_that_comes_in_the_middle_of_a_guard_is_checked_as_well() {
    let stopped: Arc<Mutex<Vec<String>>> = Arc::default();
    let inner = Inverter {
        stopped: stopped.clone(),
    };
    let back = Back::of(Interrupted { inner }, patient());
    let mut front = front_end(&back, front_config(WITH_IOMMU));
    map(&front, FROM, FROM, 0x2000, Perm::Read);
    map(&front, TO, TO, 0x2000, Perm::Write);
    let mut driver = Driver::by_iova(&mut front, 0);
    let got = driver.invert(&front, (FROM, FROM), (TO, TO), b"the first chain");
    assert_eq!(got, inverted(b"the first chain"));
    let why = eventually("the queue stops", || stopped.lock().unwrap().pop());
    assert_eq!(
        why,
        "0: the descriptor chain at 65535 is broken, a loop, or too long"
    );
}

fn an_indirect_table_that_is_none_stops_the_queue() {
    for len in [15, 0, 16 * 0x1_0000] {
        let why = stops(|front, driver| {
            let start = GuestAddress(GUEST);
            let mut raw = FROM.to_le_bytes().to_vec();
            raw.extend((len as u32).to_le_bytes());
            raw.extend(4u16.to_le_bytes());
            raw.extend(0u16.to_le_bytes());
            front.memory().write_slice(&raw, start).unwrap();
            driver.offer(front, 0);
        });
        assert!(why.ends_with("is broken, a loop, or too long"), "{why}");
    }
}

fn an_indirect_table_without_end_stops_the_queue() {
    let why = stops(|front, driver| {
        // 65,535 descriptors, all of which name the same buffer: the table lies on one page, mapped
        // again and again
        let table = GUEST + 0x30_0000;
        for n in 0..256u64 {
            let mut raw = FROM.to_le_bytes().to_vec();
            raw.extend(1u32.to_le_bytes());
            raw.extend(1u16.to_le_bytes());
            raw.extend((n as u16 + 1).to_le_bytes());
            front
                .memory()
                .write_slice(&raw, GuestAddress(table + 16 * n))
                .unwrap();
        }
        let iova = 0x6000_0000;
        for page in 0..256 {
            map(front, iova + page * 0x1000, table, 0x1000, Perm::Read);
        }
        let mut raw = iova.to_le_bytes().to_vec();
        raw.extend((16 * 65_535u32).to_le_bytes());
        raw.extend(4u16.to_le_bytes());
        raw.extend(0u16.to_le_bytes());
        front
            .memory()
            .write_slice(&raw, GuestAddress(GUEST))
            .unwrap();
        driver.offer(front, 0);
    });
    assert!(why.ends_with("is broken, a loop, or too long"), "{why}");
}

fn lengths_that_wrap_stop_the_queue() {
    for (addr, len) in [(u64::MAX - 10, 100), (u64::MAX, 2)] {
        let why = stops(|front, driver| {
            driver.descriptor(front, 0, (addr, len, Way::Read), None);
            driver.offer(front, 0);
        });
        assert!(why.ends_with("wraps around"), "{why}");
    }
}

fn a_chain_of_four_gibibytes_of_nothing_stops_the_queue() {
    let why = stops_with(without_answers(), |front, driver| {
        for at in 0..8 {
            let next = (at < 7).then_some(at + 1);
            driver.descriptor(
                front,
                at,
                (0x9999_0000_0000, u32::MAX / 8, Way::Write),
                next,
            );
        }
        driver.offer(front, 0);
    });
    assert!(
        why.contains("no answer to a miss at IOVA 0x999900000000"),
        "{why}"
    );
}

fn an_available_index_too_far_ahead_stops_the_queue() {
    let why = stops(|front, driver| {
        let index = GuestAddress(GUEST + 0x1002);
        front.memory().write_obj(SIZE + 1, index).unwrap();
        driver.events.kick.write(1).unwrap();
    });
    assert!(why.starts_with("0: "), "{why}");
}

fn rings_that_are_not_mapped_stop_the_queue() {
    let back = Back::new(without_answers());
    let mut front = front_end(&back, front_config(WITH_IOMMU));
    let driver = Driver::start(&mut front, 0, |guest| guest + 0x5000_0000_0000);
    driver.events.kick.write(1).unwrap();
    let why = back.why_stopped();
    assert!(
        why.starts_with("0: no answer to a miss at IOVA 0x5000"),
        "{why}"
    );
}

fn rings_outside_guest_memory_never_start_without_an_iommu() {
    let back = Back::new(patient());
    let mut front = front_end(&back, front_config(WITHOUT));
    let driver = Driver::start(&mut front, 0, |guest| guest);
    driver.events.kick.write(1).unwrap();
    assert_eq!(front.stop_queue(0).unwrap(), 0, "nothing was taken");
}

fn buffers_outside_guest_memory_stop_the_queue_without_an_iommu() {
    let back = Back::new(patient());
    let mut front = front_end(&back, front_config(WITHOUT));
    let start = front.front_addr(GUEST).0;
    let mut driver = Driver::start(&mut front, 0, |guest| guest - GUEST + start);
    driver.descriptor(&front, 0, (GUEST + MEMORY - 8, 16, Way::Read), None);
    driver.offer(&front, 0);
    let why = back.why_stopped();
    assert!(
        why.contains("is not mapped, and no front end can be asked"),
        "{why}"
    );
}

fn a_front_end_without_back_channel_stops_queues_that_miss() {
    log_to_stderr();
    let back = Back::new(patient());
    let mut raw = Raw::negotiate(&back, WITH_IOMMU);
    let table = Raw::table(&[[GUEST, MEMORY, 0x7000_0000, 0]]);
    assert_eq!(raw.ask(SET_MEM_TABLE, &table, &[&memory(MEMORY)]), 0);
    let mut address = words(&[0, 0x1000, 0x2000, 0x3000, 0]);
    address[..8].fill(0);
    assert_eq!(raw.ask(9, &address, &[]), 0);
    let enable = [0u32.to_ne_bytes(), 1u32.to_ne_bytes()].concat();
    assert_eq!(raw.ask(18, &enable, &[]), 0);
    // polling: no kick
    assert_eq!(raw.ask(12, &words(&[1 << 8]), &[]), 0);
    let why = back.why_stopped();
    assert!(why.contains("no front end can be asked"), "{why}");
}

fn a_kick_that_is_at_its_end_stops_the_queue_and_does_not_spin() {
    log_to_stderr();
    let back = Back::new(patient());
    let mut raw = Raw::negotiate(&back, WITH_IOMMU);
    let (reader, writer) = pipe();
    assert_eq!(raw.ask(12, &words(&[0]), &[&reader]), 0);
    drop(writer);
    let why = back.why_stopped();
    assert!(why.starts_with("0: kick: "), "{why}");
    // a file that epoll does not take is refused
    assert_eq!(raw.ask(12, &words(&[1]), &[&memory(4096)]), 1);
    assert!(raw.is_closed());
}

/// Guest memory is in a file of which the test has a copy. A queue works; then `truncate` gets that
/// copy, and nothing of the guest's is there any more.
#[track_caller]
fn truncated(
    back: &Back,
    truncate: impl FnOnce(std::fs::File, &mut FrontEnd<PageMap>, &mut Driver),
) {
    let file = memory_file(ByteCount(MEMORY), Sealed::No).unwrap();
    let ours = file.try_clone().unwrap();
    let regions = vec![(GUEST, ByteCount(MEMORY), file)];
    let table = PageMap::default();
    let mut front =
        FrontEnd::connect(back.socket(), front_config(WITH_IOMMU), regions, table).unwrap();
    map(&front, FROM, FROM, 0x2000, Perm::Read);
    let mut driver = Driver::by_iova(&mut front, 0);
    driver.descriptor(&front, 0, (FROM, 0x2000, Way::Read), None);
    driver.offer(&front, 0);
    eventually("it works before", || driver.used(&front));
    truncate(ours, &mut front, &mut driver);
    let why = back.why_stopped();
    assert!(
        why.ends_with("guest memory is gone: its file was truncated, or has no page left"),
        "{why}"
    );
}

fn memory_that_shrinks_stops_the_device_and_not_the_process() {
    log_to_stderr();
    let back = Back::new(patient());
    truncated(&back, |file, front, driver| {
        // The ring stays, the buffer goes.
        driver.descriptor(front, 1, (FROM, 0x2000, Way::Read), None);
        file.set_len(0x8_0000).unwrap();
        driver.offer(front, 1);
    });
    let mut front = front_end(&back, front_config(WITH_IOMMU));
    map(&front, FROM, FROM, 0x1000, Perm::Read);
    map(&front, TO, TO, 0x1000, Perm::Write);
    let mut driver = Driver::by_iova(&mut front, 0);
    let got = driver.invert(&front, (FROM, FROM), (TO, TO), b"with good memory");
    assert_eq!(got, inverted(b"with good memory"));
}

/// The same when the rings themselves are gone. (The front end does not touch them any more: its
/// own mapping is not guarded.)
fn rings_that_vanish_stop_the_device_and_not_the_process() {
    log_to_stderr();
    truncated(&Back::new(patient()), |file, _, driver| {
        file.set_len(0).unwrap();
        driver.events.kick.write(1).unwrap();
    });
}

fn a_front_end_that_dies_while_queues_run_leaves_nothing() {
    log_to_stderr();
    let back = Back::new(patient());
    for round in 0..20 {
        let mut front = front_end(&back, front_config(WITH_IOMMU));
        map(&front, FROM, FROM, 0x2000, Perm::Read);
        map(&front, TO, TO, 0x2000, Perm::Write);
        let mut drivers = [0, 1].map(|queue| Driver::by_iova(&mut front, queue));
        for n in 0..round {
            let driver = &mut drivers[n % 2];
            // Every third misses for good: the front end dies with a question under way.
            let source = if n % 3 == 2 { 0xdead_0000 } else { FROM };
            driver.descriptor(&front, 2, (source, 64, Way::Read), Some(3));
            driver.descriptor(&front, 3, (TO, 64, Way::Write), None);
            driver.offer(&front, 2);
        }
    }
    let observer = back.observer.clone();
    let ends = back.ends();
    assert!(
        ends.iter().all(|end| matches!(end, End::HungUp)),
        "{ends:?}"
    );
    assert_eq!((ends.len(), observer.audit().unwrap().runs), (20, 0));
}

with_every_cache! {
    a_miss_that_is_never_answered_stops_the_queue,
    an_answer_that_does_not_permit_the_access_stops_the_queue_at_once,
    a_loop_of_descriptors_stops_the_queue,
    links_to_nowhere_stop_the_queue,
    a_chain_that_comes_in_the_middle_of_a_guard_is_checked_as_well,
    an_indirect_table_that_is_none_stops_the_queue,
    an_indirect_table_without_end_stops_the_queue,
    lengths_that_wrap_stop_the_queue,
    a_chain_of_four_gibibytes_of_nothing_stops_the_queue,
    an_available_index_too_far_ahead_stops_the_queue,
    rings_that_are_not_mapped_stop_the_queue,
    rings_outside_guest_memory_never_start_without_an_iommu,
    buffers_outside_guest_memory_stop_the_queue_without_an_iommu,
    a_front_end_without_back_channel_stops_queues_that_miss,
    a_kick_that_is_at_its_end_stops_the_queue_and_does_not_spin,
    memory_that_shrinks_stops_the_device_and_not_the_process,
    rings_that_vanish_stop_the_device_and_not_the_process,
    a_front_end_that_dies_while_queues_run_leaves_nothing,
}
