// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The front end's half by itself: what is held, what an answer gives, and the kernel's message
//! format.

use ioatlas_dma::units::*;
use ioatlas_vhost::{
    protocol::message::{FrontAddr, IotlbMessage, KERNEL_BYTES, MessageError, VhostIotlbType},
    server::*,
};
use proptest::prelude::*;
use std::{
    io::{self, Read, Write},
    os::unix::net::UnixDatagram,
    sync::{Arc, Mutex},
};

/// Remembers what was sent.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<IotlbMessage>>>);

impl IotlbChannel for Recorder {
    fn send(&mut self, message: &IotlbMessage) -> Result<(), ChannelError> {
        self.0.lock().unwrap().push(*message);
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Map(u64, u64, u64, Perm),
    Unmap(u64, u64),
    Miss(u64, Perm),
}

fn op() -> impl Strategy<Value = Op> {
    let perm = prop_oneof![Just(Perm::Read), Just(Perm::Write), Just(Perm::ReadWrite)];
    let perm2 = perm.clone();
    prop_oneof![
        (0..32u64, 1..6u64, 0..4u64, perm)
            .prop_map(|(at, len, to, perm)| Op::Map(at, len, to, perm)),
        (0..32u64, 1..6u64).prop_map(|(at, len)| Op::Unmap(at, len)),
        (0..32u64, perm2).prop_map(|(at, perm)| Op::Miss(at, perm)),
    ]
}

proptest! {
    /// A back end that does what it is told never holds what the table does not say, whatever is
    /// mapped, unmapped and asked for; and it is told to forget nothing that it does not hold.
    #[test]
    fn a_back_end_holds_only_what_the_table_says(
        ops in prop::collection::vec(op(), 1..80),
        answer in prop_oneof![
            Just(Answer::Page(ByteCount(GRANULE))),
            Just(Answer::Contiguous(ByteCount(1))),
            Just(Answer::Contiguous(ByteCount(GRANULE))),
            Just(Answer::Contiguous(ByteCount(2 * GRANULE))),
            Just(Answer::Contiguous(ByteCount(2 * GRANULE + 512))),
            Just(Answer::Contiguous(ByteCount(1 << 30))),
        ],
        held_ranges in 1..6usize,
    ) {
        let sent = Recorder::default();
        let config = ServerConfig::default().answer(answer).held_ranges(held_ranges);
        let server = IotlbServer::new(PageMap::default(), sent.clone(), config);
        // page -> where, and for what: the back end's device IOTLB
        let mut back: std::collections::BTreeMap<u64, (u64, Perm)> = Default::default();
        let mut seen = 0;
        for op in ops {
            match op {
                Op::Map(at, len, to, perm) => {
                    server.table().map(Mapping {
                        iova: Iova(at * GRANULE),
                        len: ByteCount(len * GRANULE),
                        front: FrontAddr((at + 100 * to) * GRANULE),
                        perm,
                    });
                    server.invalidate(Iova(at * GRANULE), ByteCount(len * GRANULE)).unwrap();
                }
                Op::Unmap(at, len) => {
                    server.table().unmap(Iova(at * GRANULE), ByteCount(len * GRANULE));
                    server.invalidate(Iova(at * GRANULE), ByteCount(len * GRANULE)).unwrap();
                }
                Op::Miss(at, perm) => {
                    server.handle(&IotlbMessage::miss(Iova(at * GRANULE + 5), perm)).unwrap();
                }
            }
            for message in &sent.0.lock().unwrap()[seen..] {
                prop_assert_eq!((message.iova.offset(), message.len.0 % GRANULE), (0, 0), "whole pages");
                let first = message.iova.0 / GRANULE;
                let pages = message.len.0 / GRANULE;
                for page in first..first + pages {
                    if message.kind == VhostIotlbType::Update {
                        let place = message.front.0 / GRANULE + (page - first);
                        let perm = message.as_update().unwrap().3;
                        back.insert(page, (place, perm));
                    } else {
                        back.remove(&page);
                    }
                }
                if let (Op::Miss(at, _), VhostIotlbType::Update) = (op, message.kind) {
                    prop_assert!((first..first + pages).contains(&at), "{message:?} answers {at}");
                    match answer {
                        Answer::Page(_) => prop_assert_eq!(pages, 1),
                        Answer::Contiguous(limit) => {
                            prop_assert!(pages <= limit.0.div_ceil(GRANULE), "{message:?}")
                        }
                    }
                }
            }
            seen = sent.0.lock().unwrap().len();
            for (&page, &(place, perm)) in &back {
                let says = server.table().lookup(Iova(page * GRANULE));
                let says = says.map(|m| ((m.front.0 + page * GRANULE - m.iova.0) / GRANULE, m.perm));
                prop_assert_eq!(says, Some((place, perm)), "page {}", page);
                let held = server.held();
                prop_assert!(!held.within(page * GRANULE, page * GRANULE).is_empty(), "held");
                prop_assert!(held.ranges().count() <= held_ranges);
            }
        }
    }

    /// What is held is what was put in and not taken out, as long as it is not full.
    #[test]
    fn held_ranges_are_a_set(ops in prop::collection::vec((any::<bool>(), 0..60u64, 0..20u64), 1..60)) {
        let mut held = Held::new(1000);
        let mut set = std::collections::BTreeSet::new();
        for (put, first, more) in ops {
            let last = first + more;
            if put {
                held.insert(first, last);
                set.extend(first..=last);
            } else {
                held.remove(first, last);
                set.retain(|x| *x < first || *x > last);
            }
            let all: Vec<u64> = held.ranges().flat_map(|(f, l)| f..=l).collect();
            prop_assert_eq!(&all, &set.iter().copied().collect::<Vec<_>>());
            let ranges: Vec<_> = held.ranges().collect();
            prop_assert!(ranges.windows(2).all(|w| w[0].1 + 1 < w[1].0), "joined: {ranges:?}");
        }
    }

    /// Bytes that decode encode to themselves, but for padding; and no bytes make it panic.
    #[test]
    fn messages_survive_the_wire(raw in prop::collection::vec(any::<u8>(), 0..80)) {
        if let Ok(message) = IotlbMessage::decode(&raw) {
            prop_assert_eq!(&message.encode()[..26], &raw[..26]);
            prop_assert_eq!(IotlbMessage::decode_kernel(&message.encode_kernel()), Ok(message));
            let _ = message.as_update();
            let (first, last) = message.invalidated();
            prop_assert!(first <= last);
        }
        let _ = IotlbMessage::decode_kernel(&raw);
    }
}

#[test]
fn the_largest_range_is_found_from_its_middle() {
    let sent = Recorder::default();
    let server = IotlbServer::new(PageMap::default(), sent.clone(), ServerConfig::default());
    for page in 0..9u64 {
        // page 3 is elsewhere, page 7 has another permission
        let front = if page == 3 {
            0x1000
        } else {
            0x7000_0000 + page * GRANULE
        };
        let perm = if page == 7 {
            Perm::Read
        } else {
            Perm::ReadWrite
        };
        server.table().map(Mapping {
            iova: Iova(page * GRANULE),
            len: ByteCount(GRANULE),
            front: FrontAddr(front),
            perm,
        });
    }
    server
        .handle(&IotlbMessage::miss(Iova(5 * GRANULE + 77), Perm::Read))
        .unwrap();
    let expected = IotlbMessage::update(
        Iova(4 * GRANULE),
        ByteCount(3 * GRANULE),
        FrontAddr(0x7000_4000),
        Perm::ReadWrite,
    );
    assert_eq!(*sent.0.lock().unwrap(), [expected]);
}

/// What is sent for a miss at `iova` in one mapping.
fn answer_to(iova: u64, mapping: Mapping, limit: u64) -> IotlbMessage {
    let sent = Recorder::default();
    let config = ServerConfig::default().answer(Answer::Contiguous(ByteCount(limit)));
    let server = IotlbServer::new(PageMap::default(), sent.clone(), config);
    server.table().map(mapping);
    let miss = IotlbMessage::miss(Iova(iova), Perm::Read);
    server.handle(&miss).unwrap();
    let last = mapping.iova.0 + (mapping.len.0 - 1);
    assert!(!server.held().within(iova, iova).is_empty(), "held");
    server.invalidate(Iova(last), ByteCount(1)).unwrap();
    let sent = sent.0.lock().unwrap();
    sent[0]
}

#[test]
fn an_answer_has_the_page_that_missed_whatever_the_limit() {
    let mapping = Mapping {
        iova: Iova(0),
        len: ByteCount(32 * GRANULE),
        front: FrontAddr(0x7000_0000),
        perm: Perm::Read,
    };
    for limit in [
        0,
        1,
        4095,
        4096,
        4097,
        5000,
        8192,
        3 * 4096,
        0x1_0001,
        1 << 30,
        u64::MAX,
    ] {
        for page in [0, 1, 5, 31] {
            let iova = page * GRANULE + 0x10;
            let update = answer_to(iova, mapping, limit);
            let (first, len) = (update.iova.0, update.len.0);
            assert_eq!((first % GRANULE, len % GRANULE), (0, 0), "limit {limit}");
            let has = first <= iova && iova - first < len;
            assert!(
                has,
                "limit {limit}: {first:#x} and {len:#x} bytes for {iova:#x}"
            );
            assert!(
                len <= limit.clamp(1, 1 << 40).div_ceil(GRANULE) * GRANULE,
                "limit {limit}"
            );
        }
    }
}

#[test]
fn a_mapping_may_end_with_the_address_space() {
    let pages = |n: u64| ByteCount(n * GRANULE);
    let mapping = Mapping {
        iova: Iova(0u64.wrapping_sub(4 * GRANULE)),
        len: pages(4),
        front: FrontAddr(0x7000_0000),
        perm: Perm::Read,
    };
    for limit in [GRANULE, 1 << 30, u64::MAX] {
        let update = answer_to(u64::MAX - 5, mapping, limit);
        let len = pages(4).min(ByteCount(limit));
        assert_eq!(update.iova.0.wrapping_add(len.0), 0, "limit {limit}");
        assert_eq!(update.len, len);
    }
}

/// A device file: each message is one write or read.
struct Device(UnixDatagram);

impl Read for Device {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.recv(buf)
    }
}

impl Write for Device {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.send(buf)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The bytes are those of `struct vhost_msg_v2`: type at 0, IOVA at 8, size, address, permission at
/// 32, type at 33.
#[test]
fn vhost_in_the_kernel_is_spoken_to_in_its_format() {
    let (ours, kernel) = UnixDatagram::pair().unwrap();
    let mut misses = KernelChannel::new(Device(ours.try_clone().unwrap()));
    let server = IotlbServer::new(
        PageMap::default(),
        KernelChannel::new(Device(ours)),
        ServerConfig::default(),
    );
    server.table().map(Mapping {
        iova: Iova(0x5000),
        len: ByteCount(0x2000),
        front: FrontAddr(0x7f00_0000_0000),
        perm: Perm::Read,
    });
    let mut miss = [0u8; KERNEL_BYTES];
    miss[0..4].copy_from_slice(&2u32.to_ne_bytes());
    miss[8..16].copy_from_slice(&0x6010u64.to_ne_bytes());
    (miss[32], miss[33]) = (1, 1);
    kernel.send(&miss).unwrap();
    server.handle(&misses.receive().unwrap()).unwrap();
    let mut update = [0; 100];
    assert_eq!(kernel.recv(&mut update).unwrap(), KERNEL_BYTES);
    let word = |raw: &[u8], at: usize| u64::from_ne_bytes(raw[at..at + 8].try_into().unwrap());
    assert_eq!(update[..4], 2u32.to_ne_bytes());
    let fields = (word(&update, 8), word(&update, 16), word(&update, 24));
    assert_eq!(fields, (0x5000, 0x2000, 0x7f00_0000_0000));
    assert_eq!((update[32], update[33]), (1, 2));
    server
        .invalidate(Iova(0x6000), ByteCount(0x1_0000))
        .unwrap();
    kernel.recv(&mut update).unwrap();
    assert_eq!(
        (word(&update, 8), word(&update, 16)),
        (0x6000, 0x1000),
        "just what it holds"
    );
    assert_eq!(update[33], 3);

    for (at, value, expected) in [
        (0, 1, MessageError::Envelope(1)),
        (33, 0, MessageError::Kind(0)),
        (32, 9, MessageError::Access(9)),
    ] {
        let mut bad = miss;
        bad[at] = value;
        kernel.send(&bad).unwrap();
        match misses.receive() {
            Err(ChannelError::Bad(e)) => assert_eq!(e, expected),
            other => panic!("{other:?}"),
        }
    }
    kernel.send(&miss[..71]).unwrap();
    assert!(matches!(
        misses.receive(),
        Err(ChannelError::Bad(MessageError::Length(71)))
    ));
}

#[test]
fn a_back_end_that_says_nothing_is_given_up() {
    let (front, _back) = std::os::unix::net::UnixStream::pair().unwrap();
    let waited = std::time::Duration::from_millis(50);
    let config = FrontEndConfig::new(0, 2).answer(waited);
    let file = memory_file(ByteCount(1 << 20), Sealed::Yes).unwrap();
    let regions = vec![(0, ByteCount(1 << 20), file)];
    let refused = FrontEnd::connect(front, config, regions, PageMap::default()).map(drop);
    let Err(FrontEndError::Silent { what, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(what, "the session's set-up");
}
