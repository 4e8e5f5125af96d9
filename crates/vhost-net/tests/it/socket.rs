// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The device behind its socket, driven by a front end with rings by IOVA: every ring layout, mode,
//! wakeup, kind of IOTLB, with and without mergeable buffers; fresh IOVAs and invalidations for
//! every frame; payloads checked.

use crate::common::{device::*, driver::*, front::*, guest::*, nic::*};
use ioatlas_dma::units::*;
use ioatlas_vhost::protocol::message::{HEADER_BYTES, Header};
use ioatlas_vhost::runner::Runner;
use ioatlas_vhost::server::*;
use ioatlas_vhost::{DeviceIotlb, IntervalIotlb, ListIotlb, RadixIotlb};
use ioatlas_vhost_net::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// All the ways of rings, modes and answers, for one kind of cache and of waking up.
fn every_way<T: DeviceIotlb>(cache: impl Fn() -> Arc<T>, wakeup: Wakeup) {
    let page = Answer::Page(ByteCount(PAGE));
    let range = Answer::Contiguous(ByteCount(1 << 30));
    let mut number = 0;
    for kind in [Kind::Split, Kind::Packed] {
        for swap in [false, true] {
            for mergeable in [false, true] {
                for events in [Events::Flags, Events::Index] {
                    // Answers and layouts in memory take turns over the ways of rings.
                    number += 1;
                    let case = Case {
                        terms: Terms {
                            kind,
                            events,
                            mergeable,
                            swap,
                            size: 64,
                            lie: [Lie::Contiguous, Lie::Scattered][number % 2],
                        },
                        wakeup,
                        answer: [page, range][number / 2 % 2],
                        unmap: [Unmap::Always, Unmap::Never][number / 4 % 2],
                        pairs: 1 + (number % 2) as u16,
                    };
                    let stats = with_device(cache(), &case, |connect| {
                        let mut front = Front::new(connect(), &case);
                        front.exchange(&case, 60);
                        front.stop(case.pairs);
                        front.guest.assert_canaries();
                    });
                    for pair in stats {
                        assert_eq!((pair.transmitted, pair.received), (60, 60), "{case:?}");
                        assert_eq!((pair.too_long, pair.too_short, pair.stopped), (0, 0, 0));
                        assert!(
                            pair.missed > 0 && pair.hits > 0,
                            "rings and buffers by IOVA"
                        );
                    }
                }
            }
        }
    }
}

macro_rules! kinds {
    ($($name:ident: $cache:expr;)*) => {$(
        mod $name {
            use super::*;
            #[test]
            fn polling() {
                every_way(|| $cache, Wakeup::Poll);
            }
            #[test]
            fn notified() {
                every_way(|| $cache, Wakeup::Notify);
            }
        }
    )*};
}

kinds! {
    radix: RadixIotlb::new(limits());
    list: ListIotlb::new(limits());
    interval: IntervalIotlb::new(limits());
}

#[test]
fn a_front_end_that_dies_in_mid_burst_is_followed_by_another() {
    for kind in [Kind::Split, Kind::Packed] {
        for wakeup in [Wakeup::Poll, Wakeup::Notify] {
            let mut case = one_case();
            case.terms.kind = kind;
            case.wakeup = wakeup;
            with_device(RadixIotlb::new(limits()), &case, |connect| {
                for _ in 0..4 {
                    let mut front = Front::new(connect(), &case);
                    front.exchange(&case, 20);
                    // More work, kicked, and then the front end is gone.
                    for (nic, events) in front.nics.iter_mut().zip(&front.events) {
                        for _ in 0..8 {
                            nic.post(&[], false);
                            nic.send(900, &[], false, Unmap::Always);
                        }
                        events.1.kick.write(1).unwrap();
                    }
                }
                let mut front = Front::new(connect(), &case);
                front.exchange(&case, 20);
                front.guest.assert_canaries();
            });
        }
    }
}

#[test]
fn everything_may_move_while_the_device_works() {
    for kind in [Kind::Split, Kind::Packed] {
        let mut case = one_case();
        case.terms.kind = kind;
        case.wakeup = Wakeup::Poll;
        with_device(RadixIotlb::new(limits()), &case, |connect| {
            let mut front = Front::new(connect(), &case);
            for _ in 0..4 {
                front.exchange(&case, 20);
                for nic in &mut front.nics {
                    for _ in 0..8 {
                        nic.post(&[], false);
                        nic.send(900, &[], false, Unmap::Always);
                    }
                }
                front.migrate_everything();
            }
            front.exchange(&case, 20);
            front.guest.assert_canaries();
        });
    }
}

#[test]
fn a_queue_that_names_what_it_must_not_read_stops_and_the_others_go_on() {
    let mut case = one_case();
    case.terms.swap = false;
    let mut runner = Runner::new(net(&case), ListIotlb::new(limits()), runner_config()).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        let front = scope.spawn(move || {
            let mut front = Front::new(ours, &case);
            front.exchange(&case, 10);
            // The front end's answer says so, and no time passes; what is mapped nowhere is in
            // `rings.rs`, where it takes no time either.
            let secret = Part {
                iova: front.guest.alloc(PAGE, Perm::Write, Lie::Contiguous),
                len: 100,
                access: AccessKind::Read,
            };
            assert!(front.nics[1].transmit.add(u64::MAX, &[secret], false));
            let events = &front.events[1].1;
            events.kick.write(1).unwrap();
            let ready = raised(&[&events.err]);
            assert_eq!(ready, 1, "the front end is told");
            front.nics.truncate(1);
            front.events.truncate(1);
            front.exchange(&case, 10);
            front.stop(2);
        });
        runner.serve_stream(theirs);
        if let Err(panic) = front.join() {
            std::panic::resume_unwind(panic);
        }
    });
    let stats = runner.device().stats();
    assert_eq!((stats[0].stopped, stats[1].stopped), (0, 1));
    assert_eq!((stats[0].received, stats[1].received), (20, 10));
}

/// QEMU compares the number with the pairs that it was told to use; and with one pair no front end
/// is to ask, since other front ends take it for a number of queues.
#[test]
fn the_number_of_queues_that_front_ends_are_told_is_that_of_pairs() {
    const MQ: u64 = 1;
    for pairs in [1u16, 3] {
        let config = NetConfig::default().pairs(pairs);
        let net = Net::new(config).unwrap();
        let limits = limits().readers(3);
        let mut runner = Runner::new(net, RadixIotlb::new(limits), runner_config()).unwrap();
        std::thread::scope(|scope| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            ours.set_read_timeout(Some(SOON)).unwrap();
            let served = scope.spawn(move || runner.serve_stream(theirs));
            let ask = |request| -> u64 {
                let header = Header::request(request, 0).encode();
                (&ours).write_all(&header).unwrap();
                let mut reply = [0; HEADER_BYTES + 8];
                (&ours).read_exact(&mut reply).unwrap();
                u64::from_ne_bytes(reply[HEADER_BYTES..].try_into().unwrap())
            };
            // GET_FEATURES, GET_PROTOCOL_FEATURES
            ask(1);
            let offered = ask(15);
            assert_eq!(offered & MQ != 0, pairs > 1);
            if pairs > 1 {
                let header = Header::request(16, 8).encode();
                let set = [&header[..], &MQ.to_ne_bytes()].concat();
                (&ours).write_all(&set).unwrap();
                // GET_QUEUE_NUM
                assert_eq!(ask(17), u64::from(pairs));
            }
            ours.shutdown(std::net::Shutdown::Both).unwrap();
            served.join().unwrap();
        });
    }
}
