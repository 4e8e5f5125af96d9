// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The device behind a socket, on threads of the test.

use super::{driver::*, front::*, guest::*, nic::*};
use ioatlas_dma::units::*;
use ioatlas_vhost::runner::{self, Runner};
use ioatlas_vhost::server::Answer;
use ioatlas_vhost::{DeviceIotlb, Limits, guest_memory::Patience};
use ioatlas_vhost_net::*;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

pub fn net(case: &Case) -> Net {
    let config = NetConfig::default()
        .pairs(case.pairs)
        .mode(match case.terms.swap {
            true => Mode::MacSwap,
            false => Mode::Loopback,
        })
        .wakeup(case.wakeup)
        .patience(SOON);
    Net::new(config).unwrap()
}

pub fn runner_config() -> runner::Config {
    runner::Config::default().patience(Patience { answer: SOON })
}

/// Runs a front end against a device with a cache of this kind, and returns what the device
/// counted.
pub fn with_device<T: DeviceIotlb, F>(cache: Arc<T>, case: &Case, front: F) -> Vec<PairStats>
where
    F: FnOnce(&mut dyn FnMut() -> UnixStream) + Send,
{
    with_net(net(case), cache, front)
}

/// The same of a device that is there.
pub fn with_net<T: DeviceIotlb, F>(net: Net, cache: Arc<T>, front: F) -> Vec<PairStats>
where
    F: FnOnce(&mut dyn FnMut() -> UnixStream) + Send,
{
    let mut runner = Runner::new(net, cache, runner_config()).unwrap();
    let stop = runner.stop_handle();
    let (send, streams) = std::sync::mpsc::channel::<UnixStream>();
    std::thread::scope(|scope| {
        let front = scope.spawn(move || {
            let mut connect = || {
                let (ours, theirs) = UnixStream::pair().unwrap();
                send.send(theirs).unwrap();
                ours
            };
            front(&mut connect);
            drop(send);
            stop.stop();
        });
        for stream in streams {
            runner.serve_stream(stream);
        }
        if let Err(panic) = front.join() {
            std::panic::resume_unwind(panic);
        }
    });
    runner.observer().audit().expect("the cache is whole");
    runner.device().stats()
}

pub fn limits() -> Limits {
    Limits::default().runs(4096).readers(8).pins(64)
}

pub fn one_case() -> Case {
    Case {
        terms: Terms {
            kind: Kind::Split,
            events: Events::Index,
            mergeable: true,
            swap: true,
            size: 64,
            lie: Lie::Scattered,
        },
        wakeup: Wakeup::Notify,
        answer: Answer::Page(ByteCount(PAGE)),
        unmap: Unmap::Always,
        pairs: 2,
    }
}
