// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Frames to and from a TAP interface. What stands for the interface is a pair of sockets that keep
//! messages apart, as the interface keeps frames; the host behind it sends every frame back.

use crate::common::{device::*, driver::*, front::*};
use ioatlas_vhost::{DeviceIotlb, IntervalIotlb, ListIotlb, RadixIotlb};
use ioatlas_vhost_net::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::os::fd::OwnedFd;
use std::sync::Arc;

fn interface() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

/// Sends everything back, until the device is gone.
fn host(end: &OwnedFd) -> usize {
    let mut frame = vec![0; 1 << 16];
    let mut frames = 0;
    loop {
        let len = rustix::io::read(end, &mut frame).unwrap_or(0);
        if len == 0 {
            return frames;
        }
        assert_eq!(rustix::io::write(end, &frame[..len]), Ok(len));
        frames += 1;
    }
}

fn exchanges<T: DeviceIotlb>(cache: impl Fn() -> Arc<T>) {
    for kind in [Kind::Split, Kind::Packed] {
        for wakeup in [Wakeup::Poll, Wakeup::Notify] {
            let mut case = one_case();
            (case.terms.kind, case.wakeup) = (kind, wakeup);
            case.terms.swap = false;
            let (devices, hosts): (Vec<_>, Vec<_>) = (0..case.pairs).map(|_| interface()).unzip();
            let taps = devices.into_iter().map(|end| Tap::from_fd(end).unwrap());
            let config = net(&case).config().clone().mode(Mode::Tap("none".into()));
            let net = Net::with_taps(config, taps.collect()).unwrap();
            std::thread::scope(|scope| {
                let hosts = hosts.iter().map(|end| scope.spawn(|| host(end)));
                let hosts: Vec<_> = hosts.collect();
                let stats = with_net(net, cache(), |connect| {
                    let mut front = Front::new(connect(), &case);
                    // Never more under way than there are buffers posted: an interface drops what
                    // finds none.
                    for _ in 0..20 {
                        front.exchange(&case, 2);
                    }
                    front.stop(case.pairs);
                    front.guest.assert_canaries();
                });
                for (pair, host) in stats.iter().zip(hosts) {
                    assert_eq!((pair.transmitted, pair.received), (40, 40), "{case:?}");
                    assert_eq!((pair.tap_dropped, pair.stopped), (0, 0), "{case:?}");
                    assert_eq!(host.join().unwrap(), 40, "{case:?}");
                }
            });
        }
    }
}

#[test]
fn frames_go_out_and_come_in_over_the_radix_table() {
    exchanges(|| RadixIotlb::new(limits()));
}

#[test]
fn frames_go_out_and_come_in_over_the_list() {
    exchanges(|| ListIotlb::new(limits()));
}

#[test]
fn frames_go_out_and_come_in_over_the_interval_tree() {
    exchanges(|| IntervalIotlb::new(limits()));
}

#[test]
fn each_pair_has_a_queue_of_the_interface_and_other_modes_have_none() {
    let (tap, _host) = interface();
    let config = NetConfig::default().pairs(2).mode(Mode::Tap("none".into()));
    let one = Net::with_taps(config, vec![Tap::from_fd(tap).unwrap()]);
    let why = one.unwrap_err().to_string();
    assert_eq!(why, "1 TAP queues, where 2 are needed");
    let (tap, _host) = interface();
    let loopback = Net::with_taps(NetConfig::default(), vec![Tap::from_fd(tap).unwrap()]);
    let why = loopback.unwrap_err().to_string();
    assert_eq!(why, "1 TAP queues, where 0 are needed");
}

#[test]
fn an_interface_that_goes_away_stops_its_queues_and_not_the_device() {
    for wakeup in [Wakeup::Poll, Wakeup::Notify] {
        let mut case = one_case();
        (case.terms.swap, case.wakeup) = (false, wakeup);
        let (devices, mut hosts): (Vec<_>, Vec<_>) = (0..case.pairs).map(|_| interface()).unzip();
        let taps = devices.into_iter().map(|end| Tap::from_fd(end).unwrap());
        let config = net(&case).config().clone().mode(Mode::Tap("none".into()));
        let net = Net::with_taps(config, taps.collect()).unwrap();
        let stats = with_net(net, RadixIotlb::new(limits()), |connect| {
            let mut front = Front::new(connect(), &case);
            drop(hosts.remove(1));
            let (receive, transmit) = front.events.pop().unwrap();
            assert_eq!(raised(&[&receive.err]), 1, "{case:?}: it receives on");
            assert_eq!(raised(&[&transmit.err]), 1, "{case:?}: it sends on");
            // The other pair goes on.
            front.nics.pop();
            let host = hosts.pop().unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut frame = vec![0; 1 << 16];
                    let len = rustix::io::read(&host, &mut frame).unwrap();
                    assert_eq!(rustix::io::write(&host, &frame[..len]), Ok(len));
                });
                front.exchange(&case, 1);
            });
            front.stop(case.pairs);
            front.guest.assert_canaries();
        });
        assert_eq!((stats[0].received, stats[0].stopped), (1, 0), "{case:?}");
        assert_eq!(stats[1].stopped, 2, "{case:?}");
    }
}

/// Set in the process that the next test starts, whose threads have little stack.
const HAS_LITTLE_STACK: &str = "IOATLAS_TEST_HAS_LITTLE_STACK";

/// There it would be zeroed for every burst, however short its frames are.
#[test]
fn a_burst_needs_no_room_for_the_longest_frame_on_the_stack() {
    if std::env::var_os(HAS_LITTLE_STACK).is_some() {
        return exchanges(|| RadixIotlb::new(limits()));
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let this = "tap::a_burst_needs_no_room_for_the_longest_frame_on_the_stack";
    command.args(["--exact", this, "--nocapture"]);
    command.env(HAS_LITTLE_STACK, "1");
    // What a thread gets that does not say how much it wants. The longest frame has 65,550 bytes.
    let output = command.env("RUST_MIN_STACK", "65536").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let failed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{failed}");
    assert!(said.contains("1 passed"), "{said}{failed}");
}
