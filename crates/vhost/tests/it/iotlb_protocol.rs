// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Updates, invalidations, misses: their order against guards, and what reaches the device.

use crate::common::*;
use ioatlas_dma::units::*;
use ioatlas_vhost::{
    cache::IotlbReader, guest_memory::Patience, protocol::message::FrontAddr, runner::*, server::*,
};
use std::{
    os::{fd::AsRawFd, unix::fs::FileExt},
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    time::Duration,
};
use vhost::{VhostUserMemoryRegionInfo, vhost_user::VhostUserFrontend};
use vm_memory::{Bytes, GuestAddress, GuestMemory, Permissions};

const FROM: u64 = GUEST + 0x10_0000;
const TO: u64 = GUEST + 0x20_0000;

fn session() -> (Back, FrontEnd<PageMap>) {
    session_of(patient())
}

fn session_of(config: Config) -> (Back, FrontEnd<PageMap>) {
    log_to_stderr();
    let back = Back::new(config);
    let front = front_end(&back, front_config(WITH_IOMMU));
    (back, front)
}

fn pages_that_are_neighbours_only_as_iovas_come_as_pieces() {
    let (_back, mut front) = session();
    let mut driver = Driver::by_iova(&mut front, 0);
    // Three pages in a row for the device, in the wrong order in guest memory; each buffer crosses
    // two borders.
    for (n, place) in [5, 1, 3].into_iter().enumerate() {
        let n = n as u64 * 0x1000;
        map(
            &front,
            0x8000_0000 + n,
            FROM + place * 0x1000,
            0x1000,
            Perm::Read,
        );
        map(
            &front,
            0x9000_0000 + n,
            TO + place * 0x1000,
            0x1000,
            Perm::Write,
        );
    }
    let bytes: Vec<u8> = (0..0x2800u32).map(|i| (i % 253) as u8).collect();
    let memory = front.memory().clone();
    let at = |base: u64, offset: u64| {
        let place = [5u64, 1, 3][(offset / 0x1000) as usize];
        GuestAddress(base + place * 0x1000 + offset % 0x1000)
    };
    for (i, byte) in bytes.iter().enumerate() {
        memory.write_obj(*byte, at(FROM, 0x400 + i as u64)).unwrap();
    }
    let len = bytes.len() as u32;
    driver.descriptor(&front, 0, (0x8000_0400, len, Way::Read), Some(1));
    driver.descriptor(&front, 1, (0x9000_0300, len, Way::Write), None);
    driver.offer(&front, 0);
    eventually("used", || driver.used(&front));
    for (i, byte) in bytes.iter().enumerate() {
        let got: u8 = memory.read_obj(at(TO, 0x300 + i as u64)).unwrap();
        assert_eq!(got, !byte, "byte {i}");
    }
}

fn what_was_invalidated_is_asked_for_again() {
    let (back, mut front) = session();
    let mut driver = Driver::by_iova(&mut front, 0);
    map(&front, 0x8000_0000, FROM, 0x1000, Perm::Read);
    map(&front, 0x9000_0000, TO, 0x1000, Perm::Write);
    let got = driver.invert(&front, (0x8000_0000, FROM), (0x9000_0000, TO), b"first");
    assert_eq!(got, inverted(b"first"));
    let asked = back.observer.stats().misses.sent;
    // The same IOVAs, elsewhere.
    let (from, to) = (FROM + 0x5000, TO + 0x5000);
    map(&front, 0x8000_0000, from, 0x1000, Perm::Read);
    map(&front, 0x9000_0000, to, 0x1000, Perm::Write);
    let server = front.server().clone();
    server
        .invalidate(Iova(0x8000_0000), ByteCount(0x1000_1000))
        .unwrap();
    assert_eq!(server.stats().invalidations, 2, "just what is held");
    let got = driver.invert(&front, (0x8000_0000, from), (0x9000_0000, to), b"second");
    assert_eq!(got, inverted(b"second"));
    let mut first = [0; 5];
    front
        .memory()
        .read_slice(&mut first, GuestAddress(TO))
        .unwrap();
    assert_eq!(first[..], inverted(b"first"), "the old place was written");
    assert_eq!(back.observer.stats().misses.sent, asked + 2);
    assert_eq!(back.observer.stats().control.invalidations, 2);
}

fn nothing_is_sent_for_what_the_back_end_does_not_hold() {
    let (back, front) = session();
    map(&front, 0x8000_0000, FROM, 0x1000, Perm::Read);
    let server = front.server().clone();
    server.invalidate(Iova(0), ByteCount(0)).unwrap();
    assert_eq!(server.stats().skipped, 1);
    assert_eq!(back.observer.stats().control.invalidations, 0);
}

fn a_permission_is_upgraded_by_a_second_miss() {
    let (back, mut front) = session();
    let mut driver = Driver::by_iova(&mut front, 0);
    map(&front, 0x8000_0000, FROM, 0x1000, Perm::Read);
    map(&front, 0x9000_0000, TO, 0x1000, Perm::Write);
    driver.invert(&front, (0x8000_0000, FROM), (0x9000_0000, TO), b"read only");
    // More is permitted now. The back end need not be told; it asks.
    map(&front, 0x8000_0000, FROM, 0x1000, Perm::ReadWrite);
    let got = driver.invert(&front, (0x9000_0800, TO), (0x8000_0800, FROM), b"");
    assert!(got.is_empty());
    driver.descriptor(&front, 0, (0x8000_0000, 4, Way::Read), Some(1));
    driver.descriptor(&front, 1, (0x8000_0010, 4, Way::Write), None);
    driver.offer(&front, 0);
    assert_eq!(eventually("used", || driver.used(&front)), (0, 4));
    assert!(back.stopped.lock().unwrap().is_empty());
}

fn the_memory_table_may_change_under_a_live_device() {
    let (back, mut front) = session();
    let mut driver = Driver::by_iova(&mut front, 0);
    map(&front, 0x8000_0000, FROM, 0x1000, Perm::Read);
    map(&front, 0x9000_0000, TO, 0x1000, Perm::Write);
    for round in 0..10u8 {
        let bytes = [round; 700];
        let got = driver.invert(&front, (0x8000_0000, FROM), (0x9000_0000, TO), &bytes);
        assert_eq!(got, inverted(&bytes));
        let cleared = back.observer.stats().cache.runs;
        assert!(cleared > 0);
        front.share_memory().unwrap();
    }
    assert!(back.stopped.lock().unwrap().is_empty());
}

fn memory_regions_come_and_go_one_by_one() {
    let (back, mut front) = session_of(without_answers());
    let mut driver = Driver::by_iova(&mut front, 0);
    map(&front, 0x9000_0000, TO, 0x1000, Perm::Write);
    // A second piece of memory, which only the back end and this test map.
    let file = memory_file(ByteCount(0x1000), Sealed::Yes).unwrap();
    file.write_all_at(b"in the second region", 0).unwrap();
    let second = VhostUserMemoryRegionInfo {
        guest_phys_addr: 0x1_0000_0000,
        memory_size: 0x1000,
        userspace_addr: 0x1234_5000,
        mmap_offset: 0,
        mmap_handle: file.as_raw_fd(),
    };
    {
        let (vhost, _turn) = front.frontend();
        vhost.add_mem_region(&second).unwrap();
    }
    front.server().table().map(Mapping {
        iova: Iova(0x8000_0000),
        len: ByteCount(0x1000),
        front: FrontAddr(0x1234_5000),
        perm: Perm::Read,
    });
    driver.descriptor(&front, 0, (0x8000_0000, 20, Way::Read), Some(1));
    driver.descriptor(&front, 1, (0x9000_0000, 20, Way::Write), None);
    driver.offer(&front, 0);
    eventually("used", || driver.used(&front));
    let mut got = [0; 20];
    front
        .memory()
        .read_slice(&mut got, GuestAddress(TO))
        .unwrap();
    assert_eq!(got[..], inverted(b"in the second region"));
    {
        let (vhost, _turn) = front.frontend();
        vhost.remove_mem_region(&second).unwrap();
    }
    // The page table still names it; the back end does not take that any more, nor what it held of
    // it.
    let refused = back.observer.stats().control.refused;
    driver.descriptor(&front, 0, (0x8000_0000, 20, Way::Read), None);
    driver.offer(&front, 0);
    let why = back.why_stopped();
    assert!(
        why.contains("no answer to a miss at IOVA 0x80000000"),
        "{why}"
    );
    assert!(back.observer.stats().control.refused > refused);
}

fn a_queue_that_was_stopped_goes_on_where_it_stood() {
    for features in [WITH_IOMMU, WITHOUT, WITH_IOMMU | EVENT_IDX] {
        log_to_stderr();
        let back = Back::new(patient());
        let mut front = front_end(&back, front_config(features));
        let start = front.front_addr(GUEST).0;
        let mut driver = match features & ACCESS_PLATFORM {
            0 => Driver::start(&mut front, 0, |guest| guest - GUEST + start),
            _ => Driver::by_iova(&mut front, 0),
        };
        map(&front, FROM, FROM, 0x2000, Perm::Read);
        map(&front, TO, TO, 0x2000, Perm::Write);
        for n in 0..5 {
            driver.invert(&front, (FROM, FROM), (TO, TO), &[n; 9]);
        }
        assert_eq!(front.stop_queue(0).unwrap(), 5);
        let ring = match features & ACCESS_PLATFORM {
            0 => start,
            _ => GUEST + IOVA,
        };
        let ring = RingAddresses {
            descriptors: ring,
            driver: ring + 0x1000,
            device: ring + 0x2000,
        };
        driver.events = front.start_queue(0, SIZE, ring, 5).unwrap();
        let got = driver.invert(&front, (FROM, FROM), (TO, TO), b"goes on");
        assert_eq!(got, inverted(b"goes on"));
    }
}

fn an_answer_gives_what_is_contiguous_or_a_page() {
    for (answer, sent) in [
        (Answer::Contiguous(ByteCount(1 << 30)), 1),
        (Answer::Contiguous(ByteCount(0x2000)), 4),
        (Answer::Page(ByteCount(GRANULE)), 8),
    ] {
        let back = Back::new(patient());
        let mut config = front_config(WITH_IOMMU);
        config.server.answer = answer;
        let mut front = front_end(&back, config);
        let mut driver = Driver::by_iova(&mut front, 0);
        map(&front, 0x9000_0000, TO, 0x1000, Perm::Write);
        map(&front, 0, FROM, 0x1000, Perm::Read);
        driver.invert(&front, (0, FROM), (0x9000_0000, TO), b"the rings are known");
        let before = front.server().stats().updates;
        for page in 0..8 {
            let n = page * 0x1000;
            map(&front, 0x8000_0000 + n, FROM + n, 0x1000, Perm::Read);
        }
        // one page at a time, so that nothing is asked for ahead
        for page in 0..8 {
            let at = page * 0x1000;
            let source = (0x8000_0000 + at, FROM + at);
            driver.invert(&front, source, (0x9000_0000, TO), b"page");
        }
        let updates = front.server().stats().updates - before;
        assert_eq!(updates, sent, "{answer:?}");
    }
}

fn a_batch_is_asked_for_ahead_all_at_once() {
    let (back, mut front) = session();
    let mut driver = Driver::by_iova(&mut front, 0);
    map(&front, 0, FROM, 0x1000, Perm::ReadWrite);
    driver.invert(&front, (0, FROM), (64, FROM + 64), b"the rings are known");
    // Eight chains, each of a page that has no neighbour.
    for n in 0..8u16 {
        let (iova, page) = (
            0x8000_0000 + u64::from(n) * 0x10_0000,
            u64::from(n) * 0x1000,
        );
        map(&front, iova, FROM + page, 0x1000, Perm::Read);
        driver.descriptor(&front, n, (iova, 16, Way::Read), None);
    }
    // While another thread has the turn on the control socket, no answer goes out.
    let before = back.observer.stats().misses.sent;
    let turn = front.turn_handle();
    let held = turn.lock().unwrap();
    driver.offer_all(&front, &[0, 1, 2, 3, 4, 5, 6, 7]);
    eventually("eight questions under way", || {
        (back.observer.stats().misses.sent == before + 8).then_some(())
    });
    drop(held);
    for _ in 0..8 {
        eventually("used", || driver.used(&front));
    }
    assert_eq!(back.observer.stats().misses.sent, before + 8);
}

/// Holds on to the first readable buffer of each chain until it is told to go on; then tries to
/// read the second.
struct Holder {
    holds: Sender<()>,
    go_on: Mutex<Receiver<()>>,
    failed: Arc<Mutex<Vec<String>>>,
}

impl Device for Holder {
    fn queues(&self) -> u16 {
        2
    }
    fn features(&self) -> u64 {
        0
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
            let buffer = chain.clone().readable().next().expect("a buffer");
            let len = buffer.len() as usize;
            let slices = memory.get_slices(buffer.addr(), len, Permissions::Read);
            let slices: Vec<_> = slices.expect("translated ahead").collect();
            self.holds.send(()).unwrap();
            self.go_on.lock().unwrap().recv().unwrap();
            // Something that was not translated ahead, while slices are held.
            if let Some(late) = chain.writable().next() {
                let mut bytes = [0; 8];
                let read = memory.read_slice(&mut bytes, GuestAddress(late.addr().0 + 0x10_0000));
                if let Err(e) = read {
                    self.failed.lock().unwrap().push(e.to_string());
                }
            }
            drop(slices);
            Ok(0)
        })
    }
}

struct Held {
    front: FrontEnd<PageMap>,
    driver: Driver,
    holds: Receiver<()>,
    go_on: Sender<()>,
    failed: Arc<Mutex<Vec<String>>>,
    back: Back,
}

/// A session in which the device holds a buffer at 0x8000_0000.
fn held(patience: Duration, second: Option<Buffer>) -> Held {
    log_to_stderr();
    let (holds, held) = channel();
    let (go_on, told) = channel();
    let failed: Arc<Mutex<Vec<String>>> = Arc::default();
    let device = Holder {
        holds,
        go_on: Mutex::new(told),
        failed: failed.clone(),
    };
    let config = patient().patience(Patience { answer: patience });
    let back = Back::of(device, config);
    let mut front = front_end(&back, front_config(WITH_IOMMU));
    let mut driver = Driver::by_iova(&mut front, 0);
    map(&front, 0x8000_0000, FROM, 0x1000, Perm::Read);
    map(&front, 0x9000_0000, TO, 0x1000, Perm::Write);
    let next = second.is_some().then_some(1);
    driver.descriptor(&front, 0, (0x8000_0000, 64, Way::Read), next);
    if let Some(second) = second {
        driver.descriptor(&front, 1, second, None);
    }
    driver.offer(&front, 0);
    Held {
        front,
        driver,
        holds: held,
        go_on,
        failed,
        back,
    }
}

fn an_invalidation_is_acknowledged_only_after_the_guard() {
    let mut session = held(SOON, None);
    session.holds.recv_timeout(SOON).unwrap();
    let server = session.front.server().clone();
    let (acknowledged, done) = channel();
    let invalidating = std::thread::spawn(move || {
        server
            .invalidate(Iova(0x8000_0000), ByteCount(0x1000))
            .unwrap();
        acknowledged.send(()).unwrap();
    });
    let early = done.recv_timeout(Duration::from_millis(500));
    assert!(
        early.is_err(),
        "P12: acknowledged while the device held the old translation"
    );
    session.go_on.send(()).unwrap();
    done.recv_timeout(SOON).unwrap();
    invalidating.join().unwrap();
    eventually("used", || session.driver.used(&session.front));
    drop(session.front);
    assert!(matches!(session.back.ends()[..], [End::HungUp]));
}

fn a_reader_that_waits_under_a_guard_makes_way_for_an_invalidation() {
    // Patience beyond the test's: were the invalidation to wait for it, the front end would give up
    // first.
    let second = Some((0x9000_0000, 8, Way::Write));
    let mut session = held(SOON * 10, second);
    session.holds.recv_timeout(SOON).unwrap();
    session.go_on.send(()).unwrap();
    let server = session.front.server().clone();
    eventually("the late miss", || {
        (server.stats().unresolved > 0).then_some(())
    });
    let invalidating =
        std::thread::spawn(move || server.invalidate(Iova(0x8000_0000), ByteCount(0x1000)));
    let Held {
        front,
        driver,
        holds,
        go_on,
        ..
    } = &mut session;
    // Whatever interrupts the guard, the chain is tried again from its start: late answers to
    // earlier questions do so as well.
    eventually("the invalidation is acknowledged", || {
        if holds.try_recv().is_ok() {
            go_on.send(()).unwrap();
        }
        invalidating.is_finished().then_some(())
    });
    invalidating.join().unwrap().unwrap();
    // It finds what it needs sooner or later.
    map(front, 0x9010_0000, FROM, 0x1000, Perm::Read);
    eventually("used", || {
        if holds.try_recv().is_ok() {
            go_on.send(()).unwrap();
        }
        driver.used(front)
    });
    let failed = session.failed.lock().unwrap().clone();
    let interrupted = |why: &String| why.contains("interrupted at IOVA 0x90100000");
    assert!(
        !failed.is_empty() && failed.iter().all(interrupted),
        "P12: the guard was dropped while slices were held: {failed:?}"
    );
}

fn an_answer_reaches_a_reader_that_waits_under_a_guard() {
    let second = Some((0x9000_0000, 8, Way::Write));
    let mut session = held(SOON * 10, second);
    map(&session.front, 0x9010_0000, FROM, 0x1000, Perm::Read);
    session.holds.recv_timeout(SOON).unwrap();
    session.go_on.send(()).unwrap();
    eventually("used", || {
        if session.holds.try_recv().is_ok() {
            session.go_on.send(()).unwrap();
        }
        session.driver.used(&session.front)
    });
    let failed = session.failed.lock().unwrap().len();
    match cache() {
        Cache::Radix => assert_eq!(failed, 0, "its updates go on beside guards"),
        _ => assert!(
            failed > 0,
            "its updates wait for guards, which must be dropped"
        ),
    }
}

with_every_cache! {
    an_answer_reaches_a_reader_that_waits_under_a_guard,
    pages_that_are_neighbours_only_as_iovas_come_as_pieces,
    what_was_invalidated_is_asked_for_again,
    nothing_is_sent_for_what_the_back_end_does_not_hold,
    a_permission_is_upgraded_by_a_second_miss,
    the_memory_table_may_change_under_a_live_device,
    memory_regions_come_and_go_one_by_one,
    a_queue_that_was_stopped_goes_on_where_it_stood,
    an_answer_gives_what_is_contiguous_or_a_page,
    a_batch_is_asked_for_ahead_all_at_once,
    an_invalidation_is_acknowledged_only_after_the_guard,
    a_reader_that_waits_under_a_guard_makes_way_for_an_invalidation,
}
