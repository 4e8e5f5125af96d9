// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The threads that process queues.
//!
//! A worker waits for events, takes the lock of its queues, and calls the device for each. The
//! control thread changes a worker under the same lock; so that it gets it from a worker that
//! polls, it says so in `wanted` first, and the worker lets it pass. Readers that wait for answers
//! in the worker are told to give up ([`Urgency::All`]).

use super::{Config, Device, Event, Failure, Next, QueueWorker, Ring, Stop, event_fd, ring::Kick};
use crate::{
    cache::IotlbReader,
    log_limit::peer_log,
    protocol::misses::{MissChannel, Urgency},
};
use ioatlas_dma::platform::{Ordering, Platform};
use ioatlas_host::Host;
use rustix::{
    event::epoll::{self, CreateFlags, EventData, EventFlags},
    io::Errno,
};
use std::{
    cell::Cell,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

type Word = <Host as Platform>::A64;

/// Events that one wait returns.
const EVENTS: usize = 32;
/// How long a thread pauses that was interrupted or has to let another pass.
const PAUSE: Duration = Duration::from_micros(50);

/// The token of the thread's own event.
const WAKE: u64 = u64::MAX;
/// Tokens from here on are the device's.
const OWN: u64 = 1 << 32;

/// A worker, and what is needed to share it.
pub(super) struct Shared<R> {
    worker: Mutex<QueueWorker<R>>,
    epoll: OwnedFd,
    wake: OwnedFd,
    wanted: Word,
    exit: Word,
    misses: Arc<MissChannel>,
    /// The device's own events, which must stay open.
    own: Vec<(OwnedFd, u64)>,
}

/// What is to be done, in the order of arrival.
type Due = Vec<Event>;

thread_local! {
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

/// Whether the caller is on a thread that processes queues: then it has a worker, and must
/// not wait for one.
pub(super) fn is_worker() -> bool {
    IS_WORKER.get()
}

impl<R: IotlbReader> Shared<R> {
    pub fn new(
        worker: QueueWorker<R>,
        misses: Arc<MissChannel>,
        own: Vec<(OwnedFd, u64)>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let wake = event_fd::new()?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        for (number, (fd, _)) in own.iter().enumerate() {
            let token = EventData::new_u64(OWN + number as u64);
            epoll::add(&epoll, fd, token, EventFlags::IN)?;
        }
        Ok(Shared {
            worker: Mutex::new(worker),
            epoll,
            wake,
            wanted: Word::new(0),
            exit: Word::new(0),
            misses,
            own,
        })
    }

    /// Takes the worker from its thread.
    pub fn take(&self) -> MutexGuard<'_, QueueWorker<R>> {
        self.wanted.fetch_add(1, Ordering::AcqRel);
        let _hurry = self.misses.interrupt_waiters(Urgency::All);
        let worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        self.wanted.fetch_add(u64::MAX, Ordering::AcqRel);
        worker
    }

    /// Makes the thread look at all its queues.
    pub fn wake(&self) {
        if let Err(e) = event_fd::raise(&self.wake) {
            log::error!("cannot wake a queue's thread: {e}");
        }
    }

    /// Makes the thread end, and does not wait for it.
    pub fn end(&self) {
        self.exit.store(1, Ordering::Release);
        self.wake();
    }

    /// Waits for kicks of a ring from now on.
    pub fn watch(&self, ring: u16, kick: &OwnedFd) -> io::Result<()> {
        let token = EventData::new_u64(ring.into());
        Ok(epoll::add(&self.epoll, kick, token, EventFlags::IN)?)
    }

    /// Waits for them no more. Closing would not do: the front end keeps the file open.
    pub fn unwatch(&self, kick: &OwnedFd) {
        let _ = epoll::delete(&self.epoll, kick);
    }

    /// What the thread runs, until it is ended.
    ///
    /// # Errors
    /// It cannot wait for events any more.
    pub fn run<D: Device>(&self, device: &D, config: &Config) -> io::Result<()> {
        IS_WORKER.set(true);
        let mut events = Vec::with_capacity(EVENTS);
        let (mut due, mut again) = (Due::new(), Due::new());
        while self.exit.load(Ordering::Acquire) == 0 {
            let timeout = match again.is_empty() {
                true => None,
                false => Some(&ZERO),
            };
            events.clear();
            let buffer = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, buffer, timeout) {
                Ok(_) | Err(Errno::INTR) => (),
                Err(e) => return Err(e.into()),
            }
            while self.wanted.load(Ordering::Acquire) > 0 {
                std::thread::sleep(PAUSE);
            }
            let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
            due.append(&mut again);
            for event in &events {
                self.note(event.data.u64(), &mut worker, &mut due, device);
            }
            due.sort_unstable_by_key(|event| match event {
                Event::Queue(queue) => u64::from(*queue),
                Event::Own(token) => OWN.saturating_add(*token),
            });
            due.dedup();
            for event in due.drain(..) {
                // The thread that ended us takes all rings out of service; a request that was still
                // being handled may have brought one back since.
                if self.exit.load(Ordering::Acquire) != 0 {
                    return Ok(());
                }
                if call(device, event, &mut worker) {
                    again.push(event);
                }
                worker.rings_lost(device);
            }
            drop(worker);
            if !again.is_empty() && config.pause_between_polls > Duration::ZERO {
                std::thread::sleep(config.pause_between_polls);
            }
        }
        Ok(())
    }

    /// Turns what epoll says into events for the device.
    fn note<D: Device>(&self, token: u64, worker: &mut QueueWorker<R>, due: &mut Due, device: &D) {
        if token == WAKE {
            event_fd::clear(&self.wake);
            let live = worker.rings.iter().filter(|ring| ring.live);
            due.extend(live.map(|ring| Event::Queue(ring.index())));
        } else if token >= OWN {
            let token = self.own[(token - OWN) as usize].1;
            due.push(Event::Own(token));
        } else {
            let ring = worker
                .rings
                .iter_mut()
                .find(|r| u64::from(r.index()) == token);
            // Set anew or taken back since the wait: then this is an event of the past.
            let Some(ring) = ring else { return };
            let Kick::Event(kick) = &ring.kick else {
                return;
            };
            if let Err(e) = event_fd::clear_foreign(kick) {
                self.unwatch(kick);
                let why = Stop::Kick(e);
                ring.fail(&why);
                device.stopped(ring.index(), &why);
            } else if ring.live {
                due.push(Event::Queue(ring.index()));
            }
        }
    }
}

const ZERO: rustix::event::Timespec = rustix::event::Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Calls the device once; says whether it is to be called again.
fn call<D: Device, R: IotlbReader>(device: &D, event: Event, worker: &mut QueueWorker<R>) -> bool {
    if let Event::Queue(queue) = event
        && !worker.rings.iter().any(|r| r.index() == queue && r.live)
    {
        return false;
    }
    match device.process(event, worker) {
        Ok(Next::Wait) => false,
        Ok(Next::Again) => true,
        Err(failure) if failure.why.is_interruption() => {
            std::thread::sleep(PAUSE);
            true
        }
        Err(Failure { queue, why }) => {
            let why = match worker.memory_is_gone() {
                true => Stop::MemoryGone,
                false => why,
            };
            let ring = worker.rings.iter_mut().find(|r| r.index() == queue);
            match ring {
                Some(ring) => ring.fail(&why),
                None => peer_log!(
                    Error,
                    "the device names queue {queue} of another thread: {why}"
                ),
            }
            device.stopped(queue, &why);
            false
        }
    }
}

impl<R: IotlbReader> QueueWorker<R> {
    /// Stops every queue if memory was lost under one: what it reads from now on
    /// is not the guest's.
    fn rings_lost<D: Device>(&mut self, device: &D) {
        if self.memory_is_gone() {
            for ring in self.rings.iter_mut().filter(|ring: &&mut Ring| ring.live) {
                ring.fail(&Stop::MemoryGone);
                device.stopped(ring.index(), &Stop::MemoryGone);
            }
        }
    }
}

impl<R> AsFd for Shared<R> {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
