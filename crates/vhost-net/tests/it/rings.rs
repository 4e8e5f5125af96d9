// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Both rings, driven step by step by a naive driver: every frame comes back exactly once and in
//! order, whatever is cut, missing, answered late, invalidated or moved meanwhile; and no byte is
//! written that no IOVA names at that time.

use crate::common::{driver::*, guest::*, nic::*};
use ioatlas_dma::units::*;
use ioatlas_vhost::guest_memory::{Fault, IovaMemory, Patience};
use ioatlas_vhost::protocol::message::{HEADER_BYTES, IOTLB_BYTES, IotlbMessage, perm_of};
use ioatlas_vhost::protocol::misses::MissChannel;
use ioatlas_vhost::runner::{EVENT_IDX, RING_PACKED, Stop, VERSION_1};
use ioatlas_vhost::*;
use ioatlas_vhost_net::pair::Pair;
use ioatlas_vhost_net::port::{Port, TapPort};
use ioatlas_vhost_net::queue::{Depth, Queue, Side};
use ioatlas_vhost_net::ring::Kicks;
use ioatlas_vhost_net::{MRG_RXBUF, NetConfig, PairStats, Tap};
use proptest::prelude::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How the front end answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answers {
    Pages,
    Ranges,
}

/// A device and a driver in one thread, and the front end between them.
struct Bench {
    guest: Arc<Guest>,
    nic: Nic,
    pair: Pair,
    cache: Arc<ListIotlb>,
    misses: Arc<MissChannel>,
    memory: IovaMemory<<ListIotlb as DeviceIotlb>::Reader>,
    back: UnixStream,
    answers: Answers,
    /// Questions that were read and not answered.
    asked: Vec<IotlbMessage>,
}

fn features(terms: &Terms) -> u64 {
    let bit = |set: bool, bit: u64| if set { bit } else { 0 };
    VERSION_1
        | bit(terms.kind == Kind::Packed, RING_PACKED)
        | bit(terms.events == Events::Index, EVENT_IDX)
        | bit(terms.mergeable, MRG_RXBUF)
}

impl Bench {
    /// Each question is put once, however slow the machine: what is put again and answered may be
    /// unmapped when it is read again.
    fn new(terms: Terms, answers: Answers, depth: usize, buffer: u32) -> Self {
        let misses = MissChannel::repeating(Duration::from_secs(3600));
        Bench::with_misses(misses, terms, answers, depth, buffer)
    }

    fn with_misses(
        misses: MissChannel,
        terms: Terms,
        answers: Answers,
        depth: usize,
        buffer: u32,
    ) -> Self {
        let guest = Arc::new(Guest::anonymous(4096));
        let nic = Nic::new(&guest, terms, buffer);
        let cache = ListIotlb::new(Limits::default());
        let misses = Arc::new(misses);
        let (ours, back) = UnixStream::pair().unwrap();
        back.set_nonblocking(true).unwrap();
        misses.connect(Some(ours.into()));
        let reader = cache.reader().unwrap();
        // SAFETY: entries are made below, from the guest's memory, which outlives the bench.
        let memory = unsafe { IovaMemory::new(reader, misses.clone(), Patience::default()) };
        let port = match terms.swap {
            true => Port::MacSwap,
            false => Port::Loopback,
        };
        let mut pair = Pair::new(port, Depth(depth), NetConfig::default().patience);
        let bits = features(&terms);
        for (side, driver, access) in [
            (Side::Receive, &nic.receive, AccessKind::Write),
            (Side::Transmit, &nic.transmit, AccessKind::Read),
        ] {
            let queue = Queue::at(driver.parts, terms.size, driver.base(), bits, access);
            pair.put_queue(side, queue.unwrap(), 1, bits);
        }
        Bench {
            guest,
            nic,
            pair,
            cache,
            misses,
            memory,
            back,
            answers,
            asked: Vec::new(),
        }
    }

    fn burst(&mut self) -> u64 {
        let turn = self.pair.burst(&mut self.memory);
        turn.unwrap_or_else(|(side, why)| panic!("{side:?}: {why}"))
            .moved
    }

    /// Reads questions, and answers all but the last `but`.
    fn answer(&mut self, but: usize) {
        let mut raw = [0; HEADER_BYTES + IOTLB_BYTES];
        loop {
            match self.back.read(&mut raw) {
                Ok(n) => assert_eq!(n, raw.len()),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => panic!("{e}"),
            }
            let question = IotlbMessage::decode(&raw[HEADER_BYTES..]).unwrap();
            let mapped = self.guest.find(question.iova.page().addr());
            assert!(mapped.is_some(), "only mapped pages are asked for");
            // A channel that repeats may ask again before this answers.
            if !self.asked.contains(&question) {
                self.asked.push(question);
            }
        }
        let now = self.asked.len().saturating_sub(but);
        for miss in self.asked.drain(..now).collect::<Vec<_>>() {
            let need = perm_of(miss.access).unwrap();
            let page = miss.iova.page();
            // The answer to another question may have covered this one, and its buffer been used
            // and unmapped since.
            let Some((at, perm)) = self.guest.find(page.addr()) else {
                continue;
            };
            assert!(
                perm == Perm::ReadWrite || perm == need,
                "asked for {need:?}"
            );
            let mut pages = 1;
            if self.answers == Answers::Ranges {
                let next = |pages| self.guest.find(Iova((page.0 + pages) * PAGE));
                while next(pages) == Some((at + pages * PAGE, perm)) {
                    pages += 1;
                }
            }
            let (iova, len) = (page.addr(), ByteCount(pages * PAGE));
            let host = HostAddr(self.guest.memory.as_ptr() as usize as u64 + at);
            let entry = Entry {
                iova,
                len,
                host,
                perm,
            };
            let updated = self.cache.update(entry).unwrap();
            assert_ne!(updated, Updated::Beaten);
            self.misses.answered(iova, len);
        }
    }

    fn reap(&mut self, unmap: Unmap) -> usize {
        let cache = self.cache.clone();
        let mut invalidate = |iova, len| cache.invalidate(iova, len);
        self.nic.reap(unmap, &mut invalidate)
    }

    /// Until nothing moves any more.
    fn settle(&mut self) {
        let mut idle = 0;
        while idle < 8 {
            let moved = self.burst();
            self.answer(0);
            let reaped = self.reap(Unmap::Never);
            idle = match moved > 0 || reaped > 0 {
                true => 0,
                false => idle + 1,
            };
        }
    }

    fn finish(mut self) {
        // Everything that was sent comes back, if there are buffers for it.
        for _ in 0..10_000 {
            if self.nic.out() == 0 && self.nic.transmit.in_ring() == 0 {
                break;
            }
            while self.nic.post(&[], false) {}
            self.settle();
        }
        assert_eq!(self.nic.out(), 0, "frames were lost");
        assert_eq!(self.nic.transmit.in_ring(), 0, "buffers were kept");
        let stats = self.pair.stats();
        assert_eq!(stats.received, self.nic.returned);
        assert_eq!((stats.too_long, stats.too_short), (0, 0));
        self.guest.assert_canaries();
    }
}

#[test]
fn what_was_not_mapped_when_it_was_asked_for_is_asked_for_again() {
    let terms = Terms {
        kind: Kind::Split,
        events: Events::Index,
        mergeable: true,
        swap: false,
        size: 16,
        lie: Lie::Scattered,
    };
    let mut bench = Bench::with_misses(MissChannel::default(), terms, Answers::Pages, 16, 1526);
    assert!(bench.nic.post(&[], false));
    assert!(bench.nic.send(500, &[], false, Unmap::Never));
    bench.burst();
    // The front end takes the questions, and says nothing: none of it is mapped just now.
    let mut raw = [0; HEADER_BYTES + IOTLB_BYTES];
    let mut taken = 0;
    while bench.back.read(&mut raw).is_ok() {
        taken += 1;
    }
    assert!(taken > 0, "rings have to be asked for");
    // No answer comes, so nothing else makes the device look. How soon it asks is its own affair,
    // but it is before it gives up.
    let start = std::time::Instant::now();
    while bench.nic.out() > 0 {
        bench.burst();
        bench.answer(0);
        bench.reap(Unmap::Never);
        assert!(start.elapsed().as_secs() < 60, "never asked again");
    }
    bench.finish();
}

/// One step of driver, front end or device.
#[derive(Clone, Debug)]
enum Step {
    Send(usize, Vec<u32>, bool, Unmap),
    Post(Vec<u32>, bool),
    Guard,
    /// Answer all questions but so many.
    Answer(usize),
    Reap(Unmap),
    /// Invalidate one of the mapped pages, by its number.
    Invalidate(u16),
    /// Move one elsewhere.
    Migrate(u16),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let cuts = || prop::collection::vec(0..4000u32, 0..4);
    let unmap = || prop_oneof![Just(Unmap::Never), Just(Unmap::Always)];
    let step = prop_oneof![
        6 => (1..1600usize, cuts(), any::<bool>(), unmap())
            .prop_map(|(len, cuts, indirect, unmap)| Step::Send(len, cuts, indirect, unmap)),
        1 => (1600..5000usize, cuts(), any::<bool>(), unmap())
            .prop_map(|(len, cuts, indirect, unmap)| Step::Send(len, cuts, indirect, unmap)),
        6 => (cuts(), any::<bool>()).prop_map(|(cuts, indirect)| Step::Post(cuts, indirect)),
        6 => Just(Step::Guard),
        4 => (0..4usize).prop_map(Step::Answer),
        3 => unmap().prop_map(Step::Reap),
        2 => any::<u16>().prop_map(Step::Invalidate),
        2 => any::<u16>().prop_map(Step::Migrate),
    ];
    prop::collection::vec(step, 1..120)
}

fn terms() -> impl Strategy<Value = Terms> {
    let kind = prop_oneof![Just(Kind::Split), Just(Kind::Packed)];
    let events = prop_oneof![Just(Events::Flags), Just(Events::Index)];
    let lie = prop_oneof![Just(Lie::Contiguous), Just(Lie::Scattered)];
    let size = prop_oneof![Just(16u16), Just(512)];
    (kind, events, any::<bool>(), any::<bool>(), size, lie).prop_map(
        |(kind, events, mergeable, swap, size, lie)| Terms {
            kind,
            events,
            mergeable,
            swap,
            size,
            lie,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_frame_comes_back_once_and_in_order(
        terms in terms(),
        ranges in any::<bool>(),
        depth in 1..40usize,
        steps in steps(),
    ) {
        let answers = if ranges { Answers::Ranges } else { Answers::Pages };
        // Mergeable: small buffers, so that long frames need several (the longest no more than are
        // ahead); else large ones.
        let (depth, buffer) = match terms.mergeable {
            true => (depth.max(8), 1526),
            false => (depth, 5100),
        };
        let mut bench = Bench::new(terms, answers, depth, buffer);
        for step in steps {
            match step {
                Step::Send(len, cuts, indirect, unmap) => {
                    bench.nic.send(len, &cuts, indirect, unmap);
                }
                Step::Post(cuts, indirect) => {
                    bench.nic.post(&cuts, indirect);
                }
                Step::Guard => {
                    bench.burst();
                }
                Step::Answer(but) => bench.answer(but),
                Step::Reap(unmap) => {
                    bench.reap(unmap);
                }
                Step::Invalidate(number) => {
                    let pages = bench.guest.pages();
                    let page = pages[usize::from(number) % pages.len()];
                    bench.cache.invalidate(page, ByteCount(PAGE));
                }
                Step::Migrate(number) => {
                    let pages = bench.guest.pages();
                    let page = pages[usize::from(number) % pages.len()];
                    // An answer on its way would name the old place.
                    bench.answer(0);
                    let cache = bench.cache.clone();
                    bench.guest.migrate(page, &mut |iova, len| cache.invalidate(iova, len));
                }
            }
        }
        bench.finish();
    }
}

/// All the ways of a ring.
fn each_terms(mut each: impl FnMut(Terms)) {
    for kind in [Kind::Split, Kind::Packed] {
        for events in [Events::Flags, Events::Index] {
            for mergeable in [false, true] {
                each(Terms {
                    kind,
                    events,
                    mergeable,
                    swap: false,
                    size: 8,
                    lie: Lie::Contiguous,
                });
            }
        }
    }
}

#[test]
fn indices_and_wrap_counters_go_round() {
    each_terms(|terms| {
        let mut bench = Bench::new(terms, Answers::Ranges, 64, 2000);
        for round in 0..60 {
            for cuts in 0..8 {
                bench.nic.post(&[], cuts % 2 == 0);
                bench.nic.send(40 + cuts, &[], false, Unmap::Never);
            }
            bench.settle();
            assert_eq!(bench.nic.out(), 0, "round {round} of {terms:?}");
        }
        bench.finish();
    });
}

#[test]
fn all_that_a_burst_misses_is_asked_for_at_once_and_once() {
    each_terms(|terms| {
        let mut bench = Bench::new(terms, Answers::Pages, 64, 2000);
        for _ in 0..4 {
            assert!(bench.nic.post(&[], false));
            assert!(bench.nic.send(60, &[], false, Unmap::Always));
        }
        // The rings: the first part of each, whose answers say that an answer is for a page; then
        // the other two of each.
        for parts in [2, 4] {
            let before = bench.misses.stats();
            assert_eq!(bench.burst(), 0, "nothing is translated yet");
            let questions = bench.misses.stats().sent - before.sent;
            assert!(questions <= parts, "{questions} questions for the rings");
            bench.answer(0);
        }
        let before = bench.misses.stats();
        assert_eq!(bench.burst(), 0, "nothing is translated yet");
        let asked = bench.misses.stats();
        // four frames in a page or two each, four buffers in one or two
        let questions = asked.sent - before.sent;
        assert!((8..=16).contains(&questions), "{questions} questions");
        for _ in 0..100 {
            assert_eq!(bench.burst(), 0);
        }
        assert_eq!(bench.misses.stats().sent, asked.sent, "asked for again");
        bench.answer(0);
        assert_eq!(bench.burst(), 4, "all at once when the answers are there");
        bench.finish();
    });
}

/// What was answered and taken away again before the device looked: it asks for the first, and as
/// that question is a new one, for the others as well, without waiting for an answer each.
#[test]
fn what_was_lost_with_its_answer_is_asked_for_together_again() {
    each_terms(|terms| {
        let mut bench = Bench::new(terms, Answers::Pages, 64, 2000);
        for _ in 0..2 {
            bench.burst();
            bench.answer(0);
        }
        let rings = bench.guest.pages();
        for _ in 0..4 {
            assert!(bench.nic.post(&[], false));
            assert!(bench.nic.send(60, &[], false, Unmap::Always));
        }
        let before = bench.misses.stats().sent;
        assert_eq!(bench.burst(), 0, "nothing is translated yet");
        let questions = bench.misses.stats().sent - before;
        bench.answer(0);
        for page in bench.guest.pages() {
            if !rings.contains(&page) {
                bench.cache.invalidate(page, ByteCount(PAGE));
            }
        }
        let before = bench.misses.stats().sent;
        for _ in 0..2 {
            assert_eq!(bench.burst(), 0, "nothing is translated any more");
        }
        let again = bench.misses.stats().sent - before;
        assert_eq!(again, questions, "{terms:?}: one after the other");
        bench.answer(0);
        assert_eq!(bench.burst(), 4, "all at once when the answers are there");
        bench.finish();
    });
}

/// Whatever a port does with frames: a burst says how many it moved, and the pair's counters what
/// became of them.
#[test]
fn what_a_burst_moves_is_what_is_counted() {
    each_terms(|terms| {
        for mode in ["loopback", "swap", "tap"] {
            let terms = Terms {
                swap: mode == "swap",
                ..terms
            };
            let mut bench = Bench::new(terms, Answers::Pages, 64, 2000);
            let (near, host) = socketpair(
                AddressFamily::UNIX,
                SocketType::SEQPACKET,
                SocketFlags::CLOEXEC,
                None,
            )
            .unwrap();
            if mode == "tap" {
                let tap = TapPort::new(Tap::from_fd(near).unwrap());
                bench.restart(Port::Tap(Box::new(tap)));
            }
            for _ in 0..4 {
                bench.burst();
                bench.answer(0);
            }
            for frame in 1..=4 {
                assert!(bench.nic.post(&[], false));
                assert!(bench.nic.send(100 * frame, &[], false, Unmap::Always));
            }
            assert_eq!(bench.burst(), 0, "{mode}, {terms:?}: nothing is translated");
            bench.answer(0);
            assert_eq!(bench.burst(), 4, "{mode}, {terms:?}");
            if mode == "tap" {
                assert_eq!(bench.pair.stats().received, 0);
                let mut frame = [0; 2000];
                for _ in 0..4 {
                    let len = rustix::io::read(&host, &mut frame).unwrap();
                    assert_eq!(rustix::io::write(&host, &frame[..len]), Ok(len));
                }
                assert_eq!(bench.burst(), 4, "{mode}, {terms:?}");
            }
            assert_eq!(bench.burst(), 0, "{mode}, {terms:?}: there is no more");
            let stats = bench.pair.stats();
            let counted = PairStats {
                transmitted: 4,
                received: 4,
                received_bytes: 100 + 200 + 300 + 400,
                bursts: if mode == "tap" { 2 } else { 1 },
                hits: stats.hits,
                missed: stats.missed,
                since_miss: stats.since_miss,
                calls: stats.calls,
                ..PairStats::default()
            };
            assert_eq!(stats, counted, "{mode}, {terms:?}");
            bench.finish();
        }
    });
}

#[test]
fn frames_are_counted_from_the_last_miss_on() {
    each_terms(|terms| {
        let mut bench = Bench::new(terms, Answers::Pages, 64, 2000);
        let exchange = |bench: &mut Bench, unmap| {
            assert!(bench.nic.post(&[], false));
            assert!(bench.nic.send(60, &[], false, unmap));
            bench.settle();
            assert_eq!(bench.nic.out(), 0);
        };
        exchange(&mut bench, Unmap::Never);
        let one = bench.pair.stats();
        assert_eq!((one.since_miss, one.transmitted), (2, 1), "out and back");
        // whatever is missing: the page of a ring will do
        let ring = bench.guest.pages()[0];
        bench.cache.invalidate(ring, ByteCount(PAGE));
        bench.burst();
        assert_eq!(bench.pair.stats().since_miss, 0);
        bench.answer(0);
        bench.finish();
    });
}

#[test]
fn buffers_are_asked_for_before_a_frame_comes() {
    each_terms(|terms| {
        let mut bench = Bench::new(terms, Answers::Pages, 64, 2000);
        for _ in 0..4 {
            assert!(bench.nic.post(&[], false));
        }
        for _ in 0..4 {
            bench.burst();
            bench.answer(0);
        }
        let before = bench.misses.stats().sent;
        assert!(bench.nic.send(60, &[], false, Unmap::Always));
        bench.burst();
        let pages = bench.misses.stats().sent - before;
        assert!(
            pages <= 2,
            "only the frame itself was missing, not {pages} pages"
        );
        bench.answer(0);
        assert_eq!(bench.burst(), 1);
        bench.finish();
    });
}

#[test]
fn what_was_invalidated_is_not_used_any_more() {
    each_terms(|terms| {
        let mut bench = Bench::new(terms, Answers::Pages, 64, 2000);
        bench.nic.post(&[], false);
        for _ in 0..4 {
            bench.burst();
            bench.answer(0);
        }
        // Rings and buffer are translated and remembered. Everything moves.
        for page in bench.guest.pages() {
            let cache = bench.cache.clone();
            let mut invalidate = |iova, len| cache.invalidate(iova, len);
            bench.guest.migrate(page, &mut invalidate);
        }
        bench.nic.send(60, &[], false, Unmap::Never);
        bench.finish();
    });
}

#[test]
fn kicks_and_calls_come_when_they_were_asked_for() {
    each_terms(|terms| {
        let mut bench = Bench::new(terms, Answers::Ranges, 64, 2000);
        bench.nic.post(&[], false);
        bench.settle();
        for round in 0..200 {
            let more = bench.pair.want(&mut bench.memory, Kicks::Wanted).unwrap();
            if more {
                bench.settle();
                continue;
            }
            bench.nic.transmit.want_call();
            bench.nic.receive.want_call();
            bench.nic.receive.kick_due();
            assert!(bench.nic.send(60, &[], false, Unmap::Never));
            assert!(
                bench.nic.transmit.kick_due(),
                "round {round} of {terms:?}: a lost kick"
            );
            assert!(!bench.pair.want(&mut bench.memory, Kicks::Unwanted).unwrap());
            bench.answer(0);
            let mut turn = bench.pair.burst(&mut bench.memory).unwrap();
            while turn.moved == 0 {
                bench.answer(0);
                turn = bench.pair.burst(&mut bench.memory).unwrap();
            }
            assert!(
                turn.call_transmit && turn.call_receive,
                "round {round} of {terms:?}: a lost call"
            );
            bench.settle();
            bench.nic.post(&[], false);
            assert!(
                !bench.nic.receive.kick_due(),
                "round {round}: kicks were not wanted"
            );
            bench.settle();
        }
        bench.finish();
    });
}

#[test]
fn a_queue_goes_on_where_it_stopped() {
    each_terms(|terms| {
        let mut bench = Bench::new(terms, Answers::Ranges, 64, 2000);
        let bits = features(&terms);
        for round in 0..50 {
            for _ in 0..3 {
                bench.nic.post(&[], false);
                bench.nic.send(100, &[], false, Unmap::Never);
            }
            if round % 2 == 0 {
                bench.settle();
            }
            for (side, access) in [
                (Side::Receive, AccessKind::Write),
                (Side::Transmit, AccessKind::Read),
            ] {
                let driver = match side {
                    Side::Receive => &bench.nic.receive,
                    Side::Transmit => &bench.nic.transmit,
                };
                let base = bench.pair.base(side).unwrap();
                bench.pair.drop_queue(side);
                let queue = Queue::at(driver.parts, terms.size, base, bits, access).unwrap();
                bench.pair.put_queue(side, queue, round + 2, bits);
            }
        }
        bench.finish();
    });
}

/// Pages that `CHAIN_BYTES` from the start of a page on touch.
const USED_PAGES: u64 = 17;

#[test]
fn of_a_huge_chain_only_what_a_frame_can_fill_is_translated() {
    each_terms(|terms| {
        let mut bench = Bench::new(terms, Answers::Pages, 64, 2000);
        // Nothing is mapped behind the first pages; `answer` fails if that is asked for.
        let huge = |access| {
            let perm = match access {
                AccessKind::Read => Perm::Read,
                AccessKind::Write => Perm::Write,
            };
            let iova = bench.guest.alloc(USED_PAGES * PAGE, perm, Lie::Scattered);
            let first = Part {
                iova,
                len: 1 << 30,
                access,
            };
            let second = Part {
                iova: Iova(1 << 60),
                ..first
            };
            [first, second]
        };
        let (received, sent) = (huge(AccessKind::Write), huge(AccessKind::Read));
        assert!(bench.nic.receive.add(1, &received, false));
        assert!(bench.nic.transmit.add(2, &sent, false));
        let frame: Vec<u8> = (0..HEADER + 3000).map(|n| n as u8).collect();
        let short = bench.guest.alloc(PAGE, Perm::Read, Lie::Contiguous);
        bench.guest.write(short, &frame);
        let part = Part {
            iova: short,
            len: frame.len() as u32,
            access: AccessKind::Read,
        };
        assert!(bench.nic.transmit.add(3, &[part], false));
        for _ in 0..8 {
            bench.burst();
            bench.answer(0);
        }
        let rings = 6;
        let most = rings + 2 * USED_PAGES + 1;
        assert!(
            bench.misses.stats().sent <= most,
            "{:?}",
            bench.misses.stats()
        );
        assert_eq!(bench.nic.transmit.take(), Some((2, 0)), "{terms:?}");
        assert_eq!(bench.nic.transmit.take(), Some((3, 0)), "{terms:?}");
        assert_eq!(bench.pair.stats().too_long, 1, "dropped, and counted");
        let len = frame.len() as u32;
        assert_eq!(bench.nic.receive.take(), Some((1, len)), "{terms:?}");
        let got = bench.guest.read(received[0].iova, frame.len());
        assert_eq!(got[HEADER..], frame[HEADER..]);
        bench.guest.assert_canaries();
    });
}

fn small_terms() -> Terms {
    Terms {
        kind: Kind::Split,
        events: Events::Index,
        mergeable: true,
        swap: false,
        size: 16,
        lie: Lie::Scattered,
    }
}

impl Bench {
    /// Reads questions until there is none; returns how many there were.
    fn take_questions(&mut self) -> usize {
        let mut raw = [0; HEADER_BYTES + IOTLB_BYTES];
        let mut taken = 0;
        while self.back.read(&mut raw).is_ok() {
            taken += 1;
        }
        taken
    }

    /// Posts a buffer whose pages are translated, but not for writing. Returns these.
    fn post_forbidden(&mut self) -> Vec<Iova> {
        self.settle();
        let before = self.guest.pages();
        assert!(self.nic.post(&[], false));
        let mut pages = self.guest.pages();
        pages.retain(|page| !before.contains(page));
        for page in &pages {
            self.translate(*page, Perm::Read);
        }
        pages
    }

    /// The same queues with a pair that has another port, before anything was moved.
    fn restart(&mut self, port: Port) {
        let bits = features(&self.nic.terms);
        self.pair = Pair::new(port, Depth(64), NetConfig::default().patience);
        for (side, driver, access) in [
            (Side::Receive, &self.nic.receive, AccessKind::Write),
            (Side::Transmit, &self.nic.transmit, AccessKind::Read),
        ] {
            let size = self.nic.terms.size;
            let queue = Queue::at(driver.parts, size, driver.base(), bits, access);
            self.pair.put_queue(side, queue.unwrap(), 2, bits);
        }
    }

    fn translate(&self, iova: Iova, perm: Perm) {
        let (at, _) = self.guest.find(iova).unwrap();
        let entry = Entry {
            iova,
            len: ByteCount(PAGE),
            host: HostAddr(self.guest.memory.as_ptr() as usize as u64 + at),
            perm,
        };
        assert_ne!(self.cache.update(entry).unwrap(), Updated::Beaten);
    }
}

#[test]
fn a_slow_answer_to_a_question_for_more_permission_is_no_refusal() {
    // One that withdraws as soon as it is told to, and one that does as a runner's.
    for after in [Duration::from_millis(1), Duration::from_millis(250)] {
        let misses = MissChannel::repeating(after);
        let mut bench = Bench::with_misses(misses, small_terms(), Answers::Pages, 16, 1526);
        bench.post_forbidden();
        let (start, mut rounds) = (std::time::Instant::now(), 0);
        // The front end says nothing until it was asked again twice, which is before the queue
        // gives up.
        while rounds < 3 {
            bench.burst();
            rounds += usize::from(bench.take_questions() > 0);
            assert!(start.elapsed().as_secs() < 60, "asked {rounds} times");
        }
        assert!(bench.misses.stats().unanswered > 0, "withdrawn meanwhile");
        assert!(bench.nic.send(500, &[], false, Unmap::Never));
        while bench.nic.out() > 0 {
            bench.burst();
            bench.answer(0);
            bench.reap(Unmap::Never);
            assert!(start.elapsed().as_secs() < 60, "never asked again");
        }
        bench.finish();
    }
}

/// A paused VMM, a debugger, slow storage: QEMU ignores the error event, so a queue that stopped
/// would be gone until the guest resets its device.
#[test]
fn a_miss_that_is_answered_late_is_not_the_end_of_the_queue() {
    let misses = MissChannel::default();
    let mut bench = Bench::with_misses(misses, small_terms(), Answers::Pages, 16, 1526);
    assert!(bench.nic.post(&[], false));
    assert!(bench.nic.send(500, &[], false, Unmap::Never));
    // It asks every quarter of a second, and once gave up before the eighth time.
    let (start, mut asked) = (Instant::now(), 0);
    while asked < 8 {
        let turn = bench.pair.burst(&mut bench.memory);
        if let Err((side, why)) = turn {
            panic!("{side:?} stopped for good after {asked} questions: {why}");
        }
        asked += usize::from(bench.take_questions() > 0);
        assert!(start.elapsed().as_secs() < 60, "asked {asked} times");
        std::thread::sleep(Duration::from_millis(1));
    }
    while bench.nic.out() > 0 {
        bench.burst();
        bench.answer(0);
        bench.reap(Unmap::Never);
        assert!(start.elapsed().as_secs() < 60, "never asked again");
    }
    bench.finish();
}

#[test]
fn an_answer_that_still_does_not_permit_stops_the_queue() {
    let mut bench = Bench::new(small_terms(), Answers::Pages, 16, 1526);
    let pages = bench.post_forbidden();
    let turn = bench.pair.burst(&mut bench.memory);
    assert!(turn.is_ok(), "the front end may permit it yet");
    assert!((1..=pages.len()).contains(&bench.take_questions()));
    for page in &pages {
        bench.translate(*page, Perm::Read);
        bench.misses.answered(*page, ByteCount(PAGE));
    }
    let (side, why) = bench.pair.burst(&mut bench.memory).unwrap_err();
    assert_eq!(side, Side::Receive);
    let Stop::Fault(Fault::Forbidden { iova, need }) = why else {
        panic!("{why}");
    };
    assert_eq!(need, Perm::Write);
    assert!(pages.contains(&iova.page().addr()), "{iova:?}");
}

#[test]
fn a_frame_that_is_never_mapped_stops_the_queue_when_patience_ends() {
    let mut bench = Bench::new(small_terms(), Answers::Pages, 16, 1526);
    bench.settle();
    let nowhere = Part {
        iova: Iova(1 << 60),
        len: 100,
        access: AccessKind::Read,
    };
    assert!(bench.nic.transmit.add(u64::MAX, &[nowhere], false));
    // From here on no queue waits at all; the rings are translated.
    let bits = features(&bench.nic.terms);
    let base = bench.pair.base(Side::Transmit).unwrap();
    let parts = bench.nic.transmit.parts;
    let queue = Queue::at(parts, 16, base, bits, AccessKind::Read).unwrap();
    bench.pair = Pair::new(Port::Loopback, Depth(16), Some(Duration::ZERO));
    bench.pair.put_queue(Side::Transmit, queue, 2, bits);
    let (side, why) = bench.pair.burst(&mut bench.memory).unwrap_err();
    assert_eq!(side, Side::Transmit);
    assert!(
        matches!(why, Stop::Fault(Fault::Unanswered { .. })),
        "{why}"
    );
}

#[test]
fn calls_that_fail_are_logged_ever_more_rarely() {
    let mut pair = Pair::new(Port::Loopback, Depth(1), Some(Duration::ZERO));
    let logged: Vec<u64> = (0..1000).filter_map(|_| pair.count_failed_call()).collect();
    assert_eq!(logged, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]);
}
