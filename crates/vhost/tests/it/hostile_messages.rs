// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A front end that breaks the protocol: the connection ends with a reason, or the message is
//! refused; the back end serves the next one.

use crate::common::{raw::*, *};
use ioatlas_dma::units::*;
use ioatlas_vhost::{
    Limits,
    protocol::{
        memory::Shrink,
        message::{FrontAddr, Header, IotlbMessage},
    },
    runner::{Config, End, Iommu},
};
use std::{
    fs::File,
    os::{
        fd::OwnedFd,
        unix::{fs::FileExt, net::UnixStream},
    },
    time::{Duration, Instant},
};

/// What a connection that `spoil` breaks ends with; after it another front end is served.
#[track_caller]
fn broken(config: Config, spoil: impl FnOnce(&Back) -> Raw) -> String {
    log_to_stderr();
    let back = Back::new(config);
    let mut raw = spoil(&back);
    while !raw.is_closed() {}
    serves_another(&back);
    match &back.ends()[0] {
        End::Broken(why) => why.to_string(),
        other => panic!("ended as {other:?}"),
    }
}

#[track_caller]
fn serves_another(back: &Back) {
    let mut front = front_end(back, front_config(WITH_IOMMU));
    let mut driver = Driver::by_iova(&mut front, 0);
    let (from, to) = (GUEST + 0x10_0000, GUEST + 0x20_0000);
    map(&front, from, from, 0x1000, Perm::Read);
    map(&front, to, to, 0x1000, Perm::Write);
    let got = driver.invert(&front, (from, from), (to, to), b"the next front end");
    assert_eq!(got, inverted(b"the next front end"));
}

fn negotiated(back: &Back) -> Raw {
    Raw::negotiate(back, WITH_IOMMU)
}

fn an_iotlb_message_of_another_size_ends_the_connection() {
    for size in [0, 31, 33, 4096, u32::MAX as usize] {
        let why = broken(patient(), |back| {
            let raw = negotiated(back);
            raw.bytes(&Header::request(IOTLB, size).encode(), &[]);
            raw
        });
        assert_eq!(
            why,
            format!("IOTLB message of {} bytes, not 32", size as u32)
        );
    }
}

fn descriptors_with_an_iotlb_message_end_the_connection() {
    let why = broken(patient(), |back| {
        let raw = negotiated(back);
        let message = IotlbMessage::invalidate(Iova(0), ByteCount(4096));
        raw.send(IOTLB, &message.encode(), &[&memory(4096)]);
        raw
    });
    assert_eq!(why, "file descriptors with a message that has none");
}

fn a_reply_where_a_request_should_be_ends_the_connection() {
    let why = broken(patient(), |back| {
        let raw = negotiated(back);
        raw.bytes(&Header::request(IOTLB, 32).reply(32).encode(), &[]);
        raw
    });
    assert!(why.starts_with("not a request"), "{why}");
}

fn half_a_message_is_not_waited_for_long() {
    let header = Header::request(IOTLB, 32).encode();
    let known = Header::request(SET_FEATURES, 8).encode();
    let cases: [(&[u8], &str); 4] = [
        (&header[..5], "stopped in the middle of a message (5 of 12"),
        (&header, "stopped in the middle of a message (12 of 44"),
        (&known[..11], "stopped in the middle of a message (11 of 12"),
        (&known, "stopped in the middle of a message (12 of 20"),
    ];
    for (bytes, expected) in cases {
        let why = broken(without_ends(), |back| {
            let raw = negotiated(back);
            raw.bytes(bytes, &[]);
            raw
        });
        assert!(why.contains(expected), "{why}");
    }
}

/// While the rest is waited for no other front end is served. There is none where its sender is
/// dead, or the runner is to stop.
fn half_a_header_is_waited_for_only_as_long_as_more_may_come() {
    log_to_stderr();
    // For ever, as far as this test is concerned.
    let config = || patient().message(10 * SOON);
    for len in [1, 5, 11] {
        let half = &Header::request(SET_FEATURES, 8).encode()[..len];
        let back = Back::new(config());
        let raw = negotiated(&back);
        raw.bytes(half, &[]);
        drop(raw);
        serves_another(&back);
        let raw = negotiated(&back);
        raw.bytes(half, &[]);
        back.stop.stop();
        let (over, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || over.send(back.ends()));
        ended.recv_timeout(SOON).expect("it stops");
        drop(raw);
    }
}

fn unknown_requests_end_the_connection() {
    for request in [0, 23, 45, 99, u32::MAX] {
        let why = broken(patient(), |back| {
            let raw = negotiated(back);
            raw.send(request, &[], &[]);
            raw
        });
        assert!(why.starts_with(&format!("request {request}: ")), "{why}");
    }
}

fn a_back_channel_that_is_no_socket_ends_the_connection() {
    let why = broken(patient(), |back| {
        let raw = negotiated(back);
        raw.send(21, &[], &[&memory(4096)]);
        raw
    });
    assert!(why.starts_with("request 21: "), "{why}");
    let why = broken(patient(), |back| {
        let raw = negotiated(back);
        raw.send(21, &[], &[]);
        raw
    });
    assert!(why.starts_with("request 21: "), "{why}");
}

fn wrong_numbers_of_descriptors_end_the_connection() {
    let region = words(&[0, 0x10_0000, 0x10000, 0x7000_0000, 0]);
    let socket = || -> OwnedFd { UnixStream::pair().unwrap().0.into() };
    let file = || memory(0x10000);
    let cases: Vec<(u32, Vec<u8>, Vec<OwnedFd>)> = vec![
        (SET_FEATURES, words(&[WITH_IOMMU]), vec![file()]),
        (SET_VRING_KICK, words(&[0]), vec![]),
        (SET_VRING_KICK, words(&[0]), vec![pipe().0, pipe().0]),
        (SET_VRING_CALL, words(&[0]), vec![]),
        (SET_VRING_CALL, words(&[0]), vec![pipe().1, pipe().1]),
        (SET_VRING_ERR, words(&[1]), vec![pipe().1, pipe().1]),
        (SET_BACKEND_REQ_FD, vec![], vec![]),
        (SET_BACKEND_REQ_FD, vec![], vec![socket(), socket()]),
        (ADD_MEM_REG, region.clone(), vec![]),
        (ADD_MEM_REG, region, vec![file(), file()]),
    ];
    for (request, payload, fds) in cases {
        let why = broken(patient(), |back| {
            let raw = negotiated(back);
            let fds: Vec<_> = fds.iter().collect();
            raw.send(request, &payload, &fds);
            raw
        });
        assert!(why.starts_with(&format!("request {request}: ")), "{why}");
    }
}

fn memory_tables_that_cannot_be_are_refused() {
    let good = || memory(0x10000);
    let two = |a: RegionWords, b: RegionWords| Raw::table(&[a, b]);
    let region: RegionWords = [0x10_0000, 0x10000, 0x7000_0000, 0];
    let (reader, _writer) = pipe();
    let cases: Vec<(&str, Vec<u8>, Vec<OwnedFd>)> = vec![
        ("overlaps", two(region, region), vec![good(), good()]),
        (
            "overlaps",
            two(region, [0x20_0000, 0x10000, 0x7000_8000, 0]),
            vec![good(), good()],
        ),
        (
            "of a file of 0x10000",
            Raw::table(&[[0, 0x10001, 0, 0]]),
            vec![good()],
        ),
        (
            "of a file of 0x10000",
            Raw::table(&[[0, 0x10000, 0, 0x1000]]),
            vec![good()],
        ),
        ("regular file", Raw::table(&[region]), vec![reader]),
        // these `vhost` finds
        ("invalid message", Raw::table(&[region]), vec![]),
        (
            "invalid message",
            Raw::table(&[region]),
            vec![good(), good()],
        ),
        ("invalid message", Raw::table(&[[0, 0, 0, 0]]), vec![good()]),
        (
            "invalid message",
            Raw::table(&[[u64::MAX - 0xfff, 0x10000, 0, 0]]),
            vec![good()],
        ),
        ("invalid message", Raw::table(&[]), vec![]),
        (
            "invalid message",
            Raw::table(&[region])[..39].to_vec(),
            vec![good()],
        ),
    ];
    for (expected, payload, fds) in cases {
        let why = broken(patient(), |back| {
            let raw = negotiated(back);
            let fds: Vec<_> = fds.iter().collect();
            raw.send(SET_MEM_TABLE, &payload, &fds);
            raw
        });
        assert!(why.contains(expected), "{why}, not {expected}");
    }
}

fn unsealed_memory_is_refused_where_a_seal_is_demanded() {
    let config = patient().shrink(Shrink::DemandSeal);
    let why = broken(config, |back| {
        let raw = negotiated(back);
        let file = ioatlas_vhost::server::memory_file(
            ByteCount(0x10000),
            ioatlas_vhost::server::Sealed::No,
        );
        let table = Raw::table(&[[0, 0x10000, 0x7000_0000, 0]]);
        raw.send(SET_MEM_TABLE, &table, &[&file.unwrap().into()]);
        raw
    });
    assert!(why.contains("no F_SEAL_SHRINK"), "{why}");
}

fn a_device_that_demands_an_iommu_does_not_run_without() {
    let config = patient().iommu(Iommu::Demanded);
    let why = broken(config, |back| Raw::negotiate(back, WITHOUT));
    assert!(why.starts_with("request 2: "), "{why}");
}

/// Memory whose first page has rings with one chain available, which the inverter would use; and
/// what sets queue 0 up to use it by guest-physical address, but for features and enabling.
fn start_with_work(raw: &mut Raw) -> File {
    let memory = file(memory(0x10000));
    let descriptor = [
        &0x10_4000u64.to_le_bytes()[..],
        &8u32.to_le_bytes(),
        &2u16.to_le_bytes(),
        &0u16.to_le_bytes(),
    ];
    memory.write_all_at(&descriptor.concat(), 0).unwrap();
    memory.write_all_at(&1u16.to_le_bytes(), 0x1002).unwrap();
    let table = Raw::table(&[[0x10_0000, 0x10000, 0x7000_0000, 0]]);
    let shared = OwnedFd::from(memory.try_clone().unwrap());
    assert_eq!(raw.ask(SET_MEM_TABLE, &table, &[&shared]), 0);
    let parts = words(&[0, 0x7000_0000, 0x7000_2000, 0x7000_1000, 0]);
    assert_eq!(raw.ask(SET_VRING_ADDR, &parts, &[]), 0);
    assert_eq!(raw.ask(SET_VRING_NUM, &enable(0, 16), &[]), 0);
    // No kick: the queue is polled, so it is looked at as soon as it is live.
    assert_eq!(raw.ask(SET_VRING_KICK, &words(&[1 << 8]), &[]), 0);
    memory
}

/// How many chains of [`start_with_work`] were used.
fn used(memory: &File) -> u16 {
    let mut index = [0; 2];
    memory.read_exact_at(&mut index, 0x2002).unwrap();
    u16::from_le_bytes(index)
}

/// Whether there is an IOMMU is not known before: a front end that never says so gets no way around
/// it.
fn queues_do_not_run_before_features_are_set() {
    log_to_stderr();
    for iommu in [Iommu::Demanded, Iommu::Offered] {
        let back = Back::new(patient().iommu(iommu));
        let mut raw = before_features(&back);
        raw.send(SET_PROTOCOL_FEATURES, &words(&[1 << 3 | 1 << 5]), &[]);
        assert_eq!(raw.ask(SET_VRING_ENABLE, &enable(0, 1), &[]), 0);
        let memory = start_with_work(&mut raw);
        for _ in 0..100 {
            let told = "guest memory was accessed, of which nothing is mapped";
            assert_eq!(used(&memory), 0, "P9: {iommu:?}: {told}");
            std::thread::sleep(Duration::from_millis(1));
        }
        let pages = back.observer.audit().unwrap().pages;
        assert_eq!(pages, 0, "P9: {iommu:?}: guest memory is in the cache");
        if iommu == Iommu::Offered {
            assert_eq!(raw.ask(SET_FEATURES, &words(&[WITHOUT]), &[]), 0);
            eventually("it runs then", || (used(&memory) == 1).then_some(()));
        }
        drop(raw);
        serves_another(&back);
    }
}

/// Front ends of old send it to stop all queues, and go on with memory and features as they are.
fn an_owner_that_is_reset_stops_queues_and_forgets_nothing() {
    log_to_stderr();
    let back = Back::new(patient());
    let mut raw = Raw::negotiate(&back, WITHOUT);
    let memory = start_with_work(&mut raw);
    assert_eq!(raw.ask(RESET_OWNER, &[], &[]), 0);
    assert_eq!(raw.ask(SET_OWNER, &[], &[]), 0);
    assert_eq!(used(&memory), 0, "not enabled yet");
    assert_eq!(raw.ask(SET_VRING_ENABLE, &enable(0, 1), &[]), 0);
    eventually("it runs on with what it had", || {
        (used(&memory) == 1).then_some(())
    });
    assert_eq!(raw.ask(RESET_OWNER, &[], &[]), 0);
    memory.write_all_at(&2u16.to_le_bytes(), 0x1002).unwrap();
    for _ in 0..50 {
        assert_eq!(used(&memory), 1, "its queues are stopped");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(raw);
    // With an IOMMU: updates are still obeyed.
    let mut raw = with_memory(&back, WITH_IOMMU);
    assert_eq!(raw.ask(RESET_OWNER, &[], &[]), 0);
    let front = FrontAddr(0x7000_0000);
    let update = IotlbMessage::update(Iova(0), ByteCount(0x1000), front, Perm::Read);
    assert_eq!(raw.iotlb(update), 0);
}

fn protocol_features_that_were_not_offered_are_refused() {
    for bit in [1, 8, 12, 63] {
        let why = broken(patient(), |back| {
            let raw = before_features(back);
            raw.send(SET_PROTOCOL_FEATURES, &words(&[1 << 3 | 1 << bit]), &[]);
            raw
        });
        assert!(why.starts_with("request 16: "), "{why}");
    }
}

fn features_that_were_not_offered_are_refused() {
    let why = broken(patient(), |back| Raw::negotiate(back, WITH_IOMMU | 1 << 26));
    assert!(why.starts_with("request 2: "), "{why}");
}

fn queues_that_do_not_exist_are_refused() {
    for queue in [2u32, 63, 64, 255, u32::MAX] {
        let why = broken(patient(), |back| {
            let raw = negotiated(back);
            let payload = [queue.to_ne_bytes(), 16u32.to_ne_bytes()].concat();
            raw.send(8, &payload, &[]);
            raw
        });
        assert!(why.starts_with("request 8: "), "{why}");
    }
}

/// A queue to enable, and how.
fn enable(queue: u32, how: u32) -> Vec<u8> {
    [queue.to_ne_bytes(), how.to_ne_bytes()].concat()
}

/// Up to where QEMU enables queues: features are read, and not yet set.
fn before_features(back: &Back) -> Raw {
    let mut raw = Raw::connect(back);
    raw.send(SET_OWNER, &[], &[]);
    raw.send(GET_FEATURES, &[], &[]);
    raw.code(&Header::request(GET_FEATURES, 0));
    raw
}

fn queues_can_be_enabled_before_features_are_set() {
    let back = Back::new(patient());
    let mut raw = before_features(&back);
    raw.send(SET_PROTOCOL_FEATURES, &words(&[1 << 3 | 1 << 5]), &[]);
    for queue in [0, 1] {
        assert_eq!(raw.ask(SET_VRING_ENABLE, &enable(queue, 1), &[]), 0);
    }
    raw.send(SET_VRING_ENABLE, &enable(1, 0), &[]);
    assert_eq!(raw.ask(SET_FEATURES, &words(&[WITH_IOMMU]), &[]), 0);
    assert_eq!(raw.ask(SET_VRING_ENABLE, &enable(1, 1), &[]), 0);
    drop(raw);
    serves_another(&back);
}

fn queues_that_cannot_be_enabled_early_are_refused() {
    let early = |payload: Vec<u8>| {
        move |back: &Back| {
            let raw = before_features(back);
            raw.send(SET_PROTOCOL_FEATURES, &words(&[1 << 3 | 1 << 5]), &[]);
            raw.send(SET_VRING_ENABLE, &payload, &[]);
            raw
        }
    };
    for payload in [enable(0, 2), enable(9, 1), vec![], vec![0; 12]] {
        let why = broken(patient(), early(payload));
        assert!(why.starts_with("request 18: "), "{why}");
    }
    // Without protocol features there is nothing to enable: queues begin enabled.
    let why = broken(patient(), |back| {
        let raw = before_features(back);
        raw.send(SET_VRING_ENABLE, &enable(0, 1), &[]);
        raw
    });
    assert!(why.starts_with("request 18: "), "{why}");
}

fn ring_sizes_that_cannot_be_are_refused() {
    for size in [0u32, 3, 512, 0x10010, u32::MAX] {
        let why = broken(patient(), |back| {
            let raw = negotiated(back);
            let payload = [0u32.to_ne_bytes(), size.to_ne_bytes()].concat();
            raw.send(8, &payload, &[]);
            raw
        });
        assert!(why.starts_with("request 8: "), "{why}");
    }
}

/// A session with 64 KiB of memory at front-end address 0x7000_0000.
fn with_memory(back: &Back, features: u64) -> Raw {
    let mut raw = Raw::negotiate(back, features);
    let table = Raw::table(&[[0x10_0000, 0x10000, 0x7000_0000, 0]]);
    assert_eq!(raw.ask(SET_MEM_TABLE, &table, &[&memory(0x10000)]), 0);
    raw
}

fn updates_that_cannot_be_are_refused_and_the_session_goes_on() {
    log_to_stderr();
    let back = Back::new(patient());
    let mut raw = with_memory(&back, WITH_IOMMU);
    let update = |iova, len, front| {
        IotlbMessage::update(
            Iova(iova),
            ByteCount(len),
            FrontAddr(front),
            Perm::ReadWrite,
        )
    };
    let none = IotlbMessage {
        access: ioatlas_vhost::protocol::message::VhostAccess::No,
        ..update(0, 0x1000, 0x7000_0000)
    };
    let bad = [
        ("outside", update(0, 0x1000, 0x6fff_f000)),
        ("begins outside", update(0, 0x2000, 0x6fff_f000)),
        ("ends outside", update(0, 0x2000, 0x7000_f000)),
        ("far outside", update(0, 0x1000, u64::MAX - 0xfff)),
        ("larger than everything", update(0, u64::MAX, 0x7000_0000)),
        ("IOVA wraps", update(u64::MAX - 0xfff, 0x2000, 0x7000_0000)),
        (
            "front-end address wraps",
            update(0, 0x2000, u64::MAX - 0xfff),
        ),
        ("no bytes", update(0, 0, 0x7000_0000)),
        ("no permission", none),
        ("unaligned", update(0x10, 0x1000, 0x7000_0000)),
        ("part of a page", update(0, 0x800, 0x7000_0000)),
        ("a miss", IotlbMessage::miss(Iova(0), Perm::Read)),
        (
            "a failure",
            IotlbMessage::access_fail(Iova(0), ByteCount(1), Perm::Read),
        ),
    ];
    for (what, message) in bad {
        assert_eq!(raw.iotlb(message), 1, "{what}");
    }
    let mut strange = update(0, 0x1000, 0x7000_0000).encode();
    for (at, value) in [(24, 4), (24, 255), (25, 0), (25, 7), (25, 255)] {
        let kept = std::mem::replace(&mut strange[at], value);
        assert_eq!(raw.ask(IOTLB, &strange, &[]), 1, "byte {at} is {value}");
        strange[at] = kept;
    }
    assert_eq!(raw.iotlb(update(0x5000, 0x10000, 0x7000_0000)), 0);
    let stats = back.observer.stats();
    assert_eq!((stats.control.refused, stats.control.updates), (18, 1));
    assert_eq!(
        back.observer.audit().unwrap().pages,
        16,
        "only the good one"
    );
}

/// The first piece of the update is good, the second is half a page.
fn a_refused_update_leaves_nothing() {
    log_to_stderr();
    let back = Back::new(patient());
    let mut raw = Raw::negotiate(&back, WITH_IOMMU);
    let table = Raw::table(&[
        [0x10_0000, 0x1000, 0x7000_0000, 0],
        [0x20_0000, 0x1000, 0x7000_1000, 0],
    ]);
    let files = [memory(0x1000), memory(0x1000)];
    assert_eq!(raw.ask(SET_MEM_TABLE, &table, &[&files[0], &files[1]]), 0);
    let front = FrontAddr(0x7000_0000);
    let update = IotlbMessage::update(Iova(0), ByteCount(0x1800), front, Perm::ReadWrite);
    assert_eq!(raw.iotlb(update), 1);
    let pages = back.observer.audit().unwrap().pages;
    assert_eq!(pages, 0, "P9: pages of a refused update are mapped");
}

/// The first piece of the update finds room, a later one does not: what else is there may not go,
/// as it is a queue's ring, and pinned.
fn an_update_that_finds_no_room_leaves_nothing() {
    log_to_stderr();
    const REGIONS: u64 = 8;
    let device = Inverter {
        stopped: Default::default(),
    };
    let limits = Limits::default().runs(4).readers(2);
    let back = Back::of_limits(device, limits, patient());
    let mut raw = Raw::negotiate(&back, WITH_IOMMU);
    // Neighbours for the front end, each in a mapping of its own here: as many pieces.
    let front = |page| 0x7000_0000 + page * 0x1000;
    let regions: Vec<_> = (0..REGIONS)
        .map(|page| [0x10_0000 + 2 * page * 0x1000, 0x1000, front(page), 0x1000])
        .collect();
    let files: Vec<_> = regions.iter().map(|_| memory(0x3000)).collect();
    let files: Vec<_> = files.iter().collect();
    assert_eq!(raw.ask(SET_MEM_TABLE, &Raw::table(&regions), &files), 0);
    let update = |iova, page, pages| {
        let (len, front) = (ByteCount(pages * 0x1000), FrontAddr(front(page)));
        IotlbMessage::update(Iova(iova), len, front, Perm::ReadWrite)
    };
    let rings = [0x10_0000, 0x20_0000, 0x30_0000];
    let parts = words(&[0, rings[0], rings[2], rings[1], 0]);
    assert_eq!(raw.ask(9, &parts, &[]), 0);
    assert_eq!(raw.ask(8, &enable(0, 16), &[]), 0);
    assert_eq!(raw.ask(SET_VRING_ENABLE, &enable(0, 1), &[]), 0);
    let flags = rustix::event::EventfdFlags::CLOEXEC;
    let kick = rustix::event::eventfd(0, flags).unwrap();
    assert_eq!(raw.ask(SET_VRING_KICK, &words(&[0]), &[&kick]), 0);
    for iova in &rings[..2] {
        assert_eq!(raw.iotlb(update(*iova, 0, 1)), 0);
    }
    assert_eq!(raw.iotlb(update(rings[2], 0, REGIONS)), 1);
    let pages = back.observer.audit().unwrap().pages;
    assert_eq!(pages, 2, "P9: pages of a refused update are mapped");
    assert_eq!(raw.iotlb(update(rings[2], 0, 1)), 0, "one piece has room");
}

fn an_update_may_span_regions_that_are_neighbours_for_the_front_end() {
    let back = Back::new(patient());
    let mut raw = Raw::negotiate(&back, WITH_IOMMU);
    let table = Raw::table(&[
        [0x10_0000, 0x2000, 0x7000_0000, 0],
        [0x20_0000, 0x2000, 0x7000_2000, 0],
    ]);
    let files = [memory(0x2000), memory(0x2000)];
    assert_eq!(raw.ask(SET_MEM_TABLE, &table, &[&files[0], &files[1]]), 0);
    let all = |len, front| {
        IotlbMessage::update(Iova(0), ByteCount(len), FrontAddr(front), Perm::ReadWrite)
    };
    assert_eq!(raw.iotlb(all(0x4000, 0x7000_0000)), 0);
    assert_eq!(back.observer.audit().unwrap().pages, 4);
    assert_eq!(raw.iotlb(all(0x4000, 0x7000_1000)), 1, "its end is outside");
}

fn iotlb_messages_without_an_iommu_are_refused() {
    let back = Back::new(patient());
    let mut raw = with_memory(&back, WITHOUT);
    let update = IotlbMessage::update(Iova(0), ByteCount(4096), FrontAddr(0x7000_0000), Perm::Read);
    assert_eq!(raw.iotlb(update), 1);
    assert_eq!(
        raw.iotlb(IotlbMessage::invalidate(Iova(0), ByteCount(4096))),
        1
    );
    assert_eq!(
        back.observer.audit().unwrap().pages,
        16,
        "the memory table, and it alone"
    );
}

fn an_invalidation_that_wraps_or_is_empty_invalidates_more_not_less() {
    let back = Back::new(patient());
    let mut raw = with_memory(&back, WITH_IOMMU);
    let top = u64::MAX - 0xfff;
    let map = |iova| {
        let front = FrontAddr(0x7000_0000);
        IotlbMessage::update(Iova(iova), ByteCount(0x1000), front, Perm::ReadWrite)
    };
    let cases = [
        (0x1000, 0),
        (0x1000, u64::MAX),
        (0x1000, u64::MAX - 0x1000),
        (0, 0),
        (0, u64::MAX),
    ];
    for (iova, len) in cases {
        for at in [0x1000, 0x5000_0000, top] {
            assert_eq!(raw.iotlb(map(at)), 0);
        }
        assert_eq!(
            raw.iotlb(IotlbMessage::invalidate(Iova(iova), ByteCount(len))),
            0
        );
        let left = back.observer.audit().unwrap();
        assert_eq!(left.pages, 0, "{len:#x} bytes at {iova:#x}");
    }
}

fn a_storm_of_messages_is_obeyed_in_bounded_memory() {
    let back = Back::new(patient());
    let mut raw = with_memory(&back, WITH_IOMMU);
    for n in 0..6000u64 {
        let (iova, front) = (
            Iova(n << 33 | n << 13),
            FrontAddr(0x7000_0000 + (n % 16) * 0x1000),
        );
        let update = IotlbMessage::update(iova, ByteCount(0x1000), front, Perm::Read);
        assert_eq!(raw.iotlb(update), 0);
        if n % 3 == 0 {
            let all = IotlbMessage::invalidate(Iova((n / 2) << 33), ByteCount(1 << 33));
            assert_eq!(raw.iotlb(all), 0);
        }
    }
    let census = back.observer.audit().unwrap();
    assert!(census.runs <= 4096, "{census}");
    drop(raw);
    let observer = back.observer.clone();
    assert!(matches!(back.ends()[..], [End::HungUp]));
    assert_eq!(
        observer.audit().unwrap().runs,
        0,
        "nothing outlives its session"
    );
}

fn a_front_end_that_reads_no_answers_does_not_keep_a_runner_from_stopping() {
    // The runner gives no write up: only the stop ends it.
    let back = Back::new(patient().message(10 * SOON));
    let raw = Raw::connect(&back);
    raw.socket.set_nonblocking(true).unwrap();
    let question = Header::request(GET_FEATURES, 0).encode();
    // Until nothing more goes out for a while: then both directions are full.
    let mut full_since = None;
    eventually("the sockets are full", || {
        use std::io::Write;
        match (&raw.socket).write(&question) {
            Ok(n) => {
                assert_eq!(n, question.len(), "small messages go whole");
                full_since = None;
                while (&raw.socket).write(&question).is_ok() {}
            }
            Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::WouldBlock),
        }
        let since = *full_since.get_or_insert_with(Instant::now);
        (since.elapsed() > Duration::from_secs(1)).then_some(())
    });
    back.stop.stop();
    let (over, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || over.send(back.ends()));
    let ends = ended.recv_timeout(SOON).expect("it stops");
    assert!(matches!(ends[..], [End::Stopped]), "{ends:?}");
    drop(raw);
}

with_every_cache! {
    an_iotlb_message_of_another_size_ends_the_connection,
    descriptors_with_an_iotlb_message_end_the_connection,
    a_reply_where_a_request_should_be_ends_the_connection,
    half_a_message_is_not_waited_for_long,
    half_a_header_is_waited_for_only_as_long_as_more_may_come,
    unknown_requests_end_the_connection,
    a_back_channel_that_is_no_socket_ends_the_connection,
    wrong_numbers_of_descriptors_end_the_connection,
    memory_tables_that_cannot_be_are_refused,
    unsealed_memory_is_refused_where_a_seal_is_demanded,
    a_device_that_demands_an_iommu_does_not_run_without,
    queues_do_not_run_before_features_are_set,
    an_owner_that_is_reset_stops_queues_and_forgets_nothing,
    protocol_features_that_were_not_offered_are_refused,
    features_that_were_not_offered_are_refused,
    queues_that_do_not_exist_are_refused,
    queues_can_be_enabled_before_features_are_set,
    queues_that_cannot_be_enabled_early_are_refused,
    ring_sizes_that_cannot_be_are_refused,
    updates_that_cannot_be_are_refused_and_the_session_goes_on,
    a_refused_update_leaves_nothing,
    an_update_that_finds_no_room_leaves_nothing,
    an_update_may_span_regions_that_are_neighbours_for_the_front_end,
    iotlb_messages_without_an_iommu_are_refused,
    an_invalidation_that_wraps_or_is_empty_invalidates_more_not_less,
    a_front_end_that_reads_no_answers_does_not_keep_a_runner_from_stopping,
    a_storm_of_messages_is_obeyed_in_bounded_memory,
}
