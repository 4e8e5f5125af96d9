// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A front end that takes memory and translations away while frames are on their way: queues stop
//! or go on, the process lives, and what is mapped nowhere is not written to.

use crate::common::{device::*, driver::*, front::*, guest::*, nic::*};
use ioatlas_dma::units::*;
use ioatlas_vhost::server::*;
use ioatlas_vhost::{DeviceIotlb, IntervalIotlb, ListIotlb, RadixIotlb};
use ioatlas_vhost_net::*;
use std::sync::{Arc, mpsc::channel};

/// Frames on their way, kicked, that the test does not wait for.
fn begin_work(front: &mut Front) {
    for (nic, events) in front.nics.iter_mut().zip(&front.events) {
        for _ in 0..8 {
            nic.post(&[], false);
            nic.send(900, &[], false, Unmap::Always);
        }
        events.1.kick.write(1).unwrap();
    }
}

/// Sends more frames than there can be receive buffers for, so that some of them wait however fast
/// the device is. Returns a buffer that is not posted: as soon as it is, one of those frames is
/// read.
fn leave_frames_waiting(nic: &mut Nic) -> Part {
    for _ in 0..=nic.receive.in_ring() {
        assert!(nic.send(900, &[], false, Unmap::Always));
    }
    Part {
        iova: nic.guest.alloc(PAGE, Perm::Write, Lie::Contiguous),
        len: 1526,
        access: AccessKind::Write,
    }
}

/// Every ring layout and way of waking up.
fn cases() -> impl Iterator<Item = Case> {
    let ways = [Kind::Split, Kind::Packed].map(|kind| {
        [Wakeup::Poll, Wakeup::Notify].map(|wakeup| {
            let mut case = one_case();
            case.terms.kind = kind;
            case.wakeup = wakeup;
            case
        })
    });
    ways.into_iter().flatten()
}

fn truncated_memory<T: DeviceIotlb>(cache: impl Fn() -> Arc<T>) {
    for case in cases() {
        let stats = with_device(cache(), &case, |connect| {
            // All of it goes, then all but the rings, which are what the guest allocated first.
            for left in [0, 64 * PAGE] {
                let mut front = Front::with_memory(connect(), &case, Sealed::No);
                front.exchange(&case, 10);
                // What follows lies behind what is left.
                front.guest.alloc(64 * PAGE, Perm::Read, Lie::Contiguous);
                begin_work(&mut front);
                let late: Vec<Part> = front.nics.iter_mut().map(leave_frames_waiting).collect();
                front.file.set_len(left).unwrap();
                // From here on our own mapping is not to be touched either, but for the rings that
                // are left.
                if left > 0 {
                    for (nic, late) in front.nics.iter_mut().zip(&late) {
                        assert!(nic.receive.add(u64::MAX, &[*late], false));
                    }
                }
                for (receive, transmit) in &front.events {
                    receive.kick.write(1).unwrap();
                    transmit.kick.write(1).unwrap();
                    let ready = raised(&[&receive.err, &transmit.err]);
                    assert!(ready > 0, "{case:?}: nothing stops");
                }
            }
            let mut front = Front::new(connect(), &case);
            front.exchange(&case, 20);
            front.stop(case.pairs);
            front.guest.assert_canaries();
        });
        assert!(stats.iter().all(|pair| pair.stopped >= 2), "{stats:?}");
    }
}

fn memory_given_anew<T: DeviceIotlb>(cache: impl Fn() -> Arc<T>) {
    for case in cases() {
        let stats = with_device(cache(), &case, |connect| {
            let mut front = Front::new(connect(), &case);
            for _ in 0..6 {
                begin_work(&mut front);
                // Every region is unmapped in the back end, and mapped somewhere else.
                front.end.share_memory().unwrap();
                front.exchange(&case, 10);
            }
            front.stop(case.pairs);
            front.guest.assert_canaries();
        });
        let frames = 6 * (8 + 10);
        for pair in stats {
            let counts = (pair.transmitted, pair.received, pair.stopped);
            assert_eq!(counts, (frames, frames, 0), "{case:?}");
        }
    }
}

fn storm_of_invalidations<T: DeviceIotlb>(cache: impl Fn() -> Arc<T>) {
    for case in cases() {
        let stats = with_device(cache(), &case, |connect| {
            let mut front = Front::new(connect(), &case);
            let server = front.end.server().clone();
            let guest = front.guest.clone();
            let (done, is_done) = channel::<()>();
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    // Pages that stay where they are: the device has to ask again, and again.
                    while is_done.try_recv().is_err() {
                        for page in guest.pages() {
                            server.invalidate(page, ByteCount(PAGE)).unwrap();
                        }
                        server.invalidate(Iova(0), ByteCount(u64::MAX)).unwrap();
                        std::thread::yield_now();
                    }
                });
                front.exchange(&case, 40);
                done.send(()).unwrap();
            });
            front.stop(case.pairs);
            front.guest.assert_canaries();
        });
        for pair in stats {
            assert_eq!((pair.received, pair.stopped), (40, 0), "{case:?}");
        }
    }
}

macro_rules! kinds {
    ($($name:ident: $cache:expr;)*) => {$(
        mod $name {
            use super::*;
            #[test]
            fn memory_that_is_truncated_stops_queues_and_not_the_process() {
                truncated_memory(|| $cache);
            }
            #[test]
            fn memory_given_anew_under_live_rings_loses_no_frame() {
                memory_given_anew(|| $cache);
            }
            #[test]
            fn frames_survive_a_storm_of_invalidations() {
                storm_of_invalidations(|| $cache);
            }
        }
    )*};
}

kinds! {
    radix: RadixIotlb::new(limits());
    list: ListIotlb::new(limits());
    interval: IntervalIotlb::new(limits());
}
