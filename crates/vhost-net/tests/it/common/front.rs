// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A front end with a guest behind it: rings and buffers by IOVA, misses answered from the guest's
//! own table.

use super::{driver::*, guest::*, nic::*};
use ioatlas_dma::units::*;
use ioatlas_vhost::protocol::message::FrontAddr;
use ioatlas_vhost::runner::{ACCESS_PLATFORM, EVENT_IDX, RING_PACKED, VERSION_1};
use ioatlas_vhost::server::*;
use ioatlas_vhost_net::{MRG_RXBUF, Wakeup};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use vm_memory::{FileOffset, MmapRegion};
use vmm_sys_util::eventfd::EventFd;

/// How long is waited for what must come. No test depends on how soon it does.
pub const SOON: Duration = Duration::from_secs(60);
const MEMORY_PAGES: u64 = 4096;
const BUFFER: u32 = 1526;

/// What a test runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Case {
    pub terms: Terms,
    pub wakeup: Wakeup,
    pub answer: Answer,
    pub unmap: Unmap,
    pub pairs: u16,
}

/// The guest's page table, as the front end walks it.
pub struct Table {
    guest: Arc<Guest>,
    /// Where its memory begins for the front end.
    start: Arc<OnceLock<u64>>,
}

impl IoPageTable for Table {
    fn lookup(&self, iova: Iova) -> Option<Mapping> {
        let page = iova.page().addr();
        let (at, perm) = self.guest.find(page)?;
        Some(Mapping {
            iova: page,
            len: ByteCount(PAGE),
            front: FrontAddr(self.start.get()? + at),
            perm,
        })
    }
}

/// A front end, with its guest and the guest's drivers.
pub struct Front {
    pub guest: Arc<Guest>,
    pub end: FrontEnd<Table>,
    /// The guest's memory.
    pub file: File,
    pub nics: Vec<Nic>,
    pub events: Vec<(QueueEvents, QueueEvents)>,
}

pub fn features(terms: &Terms) -> u64 {
    let bit = |set: bool, bit: u64| if set { bit } else { 0 };
    VERSION_1
        | ACCESS_PLATFORM
        | 1 << 30
        | bit(terms.kind == Kind::Packed, RING_PACKED)
        | bit(terms.events == Events::Index, EVENT_IDX)
        | bit(terms.mergeable, MRG_RXBUF)
}

impl Front {
    pub fn new(socket: UnixStream, case: &Case) -> Self {
        Front::with_memory(socket, case, Sealed::Yes)
    }

    /// One whose guest's memory can be truncated, or not.
    pub fn with_memory(socket: UnixStream, case: &Case, sealed: Sealed) -> Self {
        // Twice the same file: `FrontEnd` shares it by its own mapping, the guest uses another.
        let len = ByteCount(MEMORY_PAGES * PAGE);
        let file = memory_file(len, sealed).unwrap();
        let config = FrontEndConfig::new(features(&case.terms), 2 * case.pairs)
            .server(ServerConfig::default().answer(case.answer))
            .answer(SOON);
        let ours = file.try_clone().unwrap();
        let mapped = FileOffset::new(file.try_clone().unwrap(), 0);
        let memory = MmapRegion::from_file(mapped, len.0 as usize).unwrap();
        let guest = Arc::new(Guest::new(memory));
        let start = Arc::new(OnceLock::new());
        let table = Table {
            guest: guest.clone(),
            start: start.clone(),
        };
        let end = FrontEnd::connect(socket, config, vec![(0, len, file)], table).unwrap();
        start.set(end.front_addr(0).0).unwrap();
        let mut front = Front {
            guest,
            end,
            file: ours,
            nics: Vec::new(),
            events: Vec::new(),
        };
        for pair in 0..case.pairs {
            let nic = Nic::new(&front.guest, case.terms, BUFFER);
            let receive = front.start(2 * pair, &nic.receive);
            let transmit = front.start(2 * pair + 1, &nic.transmit);
            front.events.push((receive, transmit));
            front.nics.push(nic);
        }
        front
    }

    fn start(&mut self, queue: u16, driver: &Driver) -> QueueEvents {
        let ring = RingAddresses {
            descriptors: driver.parts.descriptors.0,
            driver: driver.parts.driver.0,
            device: driver.parts.device.0,
        };
        let base = driver.base() as u16;
        let started = self.end.start_queue(queue.into(), driver.size, ring, base);
        started.unwrap()
    }

    /// Sends `frames` frames on every pair, of lengths that vary, and waits until they are back.
    pub fn exchange(&mut self, case: &Case, frames: usize) {
        let start = Instant::now();
        let mut sent = vec![0; self.nics.len()];
        let server = self.end.server().clone();
        let mut invalidate = |iova, len| server.invalidate(iova, len).unwrap();
        loop {
            let mut busy = false;
            for (number, nic) in self.nics.iter_mut().enumerate() {
                busy |= nic.reap(case.unmap, &mut invalidate) > 0;
                while nic.receive.in_ring() < 12 && nic.post(&[700], number % 2 == 0) {}
                for _ in 0..4 {
                    let n = sent[number];
                    if n == frames {
                        break;
                    }
                    // Now and then one that needs two or three buffers.
                    let len = match case.terms.mergeable && n % 7 == 3 {
                        true => 1600 + n * 13 % 2500,
                        false => 1 + n * 37 % 1500,
                    };
                    let cuts = [12, 60];
                    if !nic.send(len, &cuts[..n % 3], n.is_multiple_of(2), case.unmap) {
                        break;
                    }
                    sent[number] += 1;
                    busy = true;
                }
                let (receive, transmit) = &self.events[number];
                for (driver, events) in [(&mut nic.receive, receive), (&mut nic.transmit, transmit)]
                {
                    if driver.kick_due() {
                        events.kick.write(1).unwrap();
                    }
                }
            }
            let done = |nic: &Nic| nic.out() == 0 && nic.transmit.in_ring() == 0;
            if sent.iter().all(|n| *n == frames) && self.nics.iter().all(done) {
                return;
            }
            if !busy {
                self.await_call(case);
            }
            let out: Vec<_> = self.nics.iter().map(Nic::out).collect();
            assert!(start.elapsed() < SOON, "{case:?}: {out:?} frames are out");
        }
    }

    /// Asks for calls, and waits for one if nothing came meanwhile.
    fn await_call(&mut self, case: &Case) {
        for nic in &mut self.nics {
            nic.receive.want_call();
            nic.transmit.want_call();
        }
        let server = self.end.server().clone();
        let mut invalidate = |iova, len| server.invalidate(iova, len).unwrap();
        let mut came = 0;
        for nic in &mut self.nics {
            came += nic.reap(case.unmap, &mut invalidate);
        }
        if came > 0 {
            return;
        }
        let fds = self.events.iter().flat_map(|(r, t)| [&r.call, &t.call]);
        let fds: Vec<_> = fds.collect();
        let ready = raised(&fds);
        assert!(ready > 0, "{case:?}: the driver waits, and is not called");
        for fd in fds {
            let _ = fd.read();
        }
    }

    /// Stops all queues. One that is live when the front end hangs up may miss, have no front end
    /// to ask any more, and stop with an error; whether it does depends on which side is faster.
    pub fn stop(&mut self, pairs: u16) {
        for queue in 0..2 * pairs {
            self.end.stop_queue(queue.into()).unwrap();
        }
    }

    /// Moves every page of the guest while its device is at work.
    pub fn migrate_everything(&mut self) {
        let server = self.end.server().clone();
        for page in self.guest.pages() {
            let mut invalidate = |iova, len| server.invalidate(iova, len).unwrap();
            self.guest.migrate(page, &mut invalidate);
        }
    }
}

/// Waits until one of them is raised; returns how many are.
pub fn raised(events: &[&EventFd]) -> usize {
    let mut polled: Vec<_> = events
        .iter()
        // SAFETY: the events live longer than this call.
        .map(|event| unsafe { BorrowedFd::borrow_raw(event.as_raw_fd()) })
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    let timeout = Timespec::try_from(SOON).unwrap();
    rustix::event::poll(&mut polled, Some(&timeout)).unwrap()
}
