// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A queue pair: frames that the guest transmits go to a port, and what the port has is received.
//!
//! # A burst
//! 1. Look at both queues: read what is available ahead, translate it, collect what is missing.
//! 2. Move frames in order, as long as frame *and* receive buffers are ready.
//! 3. Publish what was used, in both queues; the guard has been dropped, and invalidations may be
//!    acknowledged.
//! 4. Ask for what is missing, both queues' at once; then call the driver.
//!
//! # What is never lost
//! A frame whose translation, or whose receive buffer's, is on its way stays in the transmit queue,
//! and keeps those behind it waiting. Receive buffers are looked at before there is a frame for
//! them. In loopback a frame also waits for the guest to make receive buffers available: the guest
//! waits for itself. Under TAP such a frame is dropped and counted, as network cards do.
//!
//! A TAP interface from which reading fails is not read again: both queues stop, one a burst, with
//! that as the reason.
//!
//! Lost are frames that fit nowhere ([`PairStats::too_long`]) and such as are none
//! ([`PairStats::too_short`]).

use crate::{
    frame::*,
    guest::GuestGuard,
    port::{Port, Receiver},
    queue::*,
    ring::{Call, Kicks, RingError},
    stats::PairStats,
    tap::TapLost,
    waits::Waits,
};
use ioatlas_dma::units::*;
use ioatlas_vhost::{
    IotlbReader, Miss,
    guest_memory::{Fault, IovaMemory},
    protocol::misses::{Answering, Asked},
    runner::{self, Stop},
};
use std::time::Duration;

/// `VIRTIO_NET_F_MRG_RXBUF` (virtio 1.2, 5.1.3): a frame may take several receive buffers.
pub const MRG_RXBUF: u64 = 1 << 15;

/// What a burst did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Turn {
    /// Frames that went anywhere.
    pub moved: u64,
    /// Whether a translation is missing.
    pub blocked: bool,
    /// A translation that has been missing for long, where that is worth a line in a log.
    pub late: Option<Late>,
    /// Whether the driver of the receive queue is to be called.
    pub call_receive: bool,
    /// The same for the transmit queue.
    pub call_transmit: bool,
}

/// A queue that has waited long for a translation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // its fields say it
pub struct Late {
    pub side: Side,
    /// What it waits for.
    pub miss: Miss,
    /// How often that was so in this pair.
    pub times: u64,
}

/// One of the queues, while it is live.
#[derive(Debug)]
struct Live {
    queue: Queue,
    /// The runner's number of this start.
    start: u64,
    missing: Vec<Miss>,
    waits: Waits,
    kicks: Option<Kicks>,
}

/// A queue pair. See the module.
#[derive(Debug)]
pub struct Pair {
    port: Port,
    depth: Depth,
    patience: Option<Duration>,
    header: Header,
    mergeable: bool,
    receive: Option<Live>,
    transmit: Option<Live>,
    /// Hits and misses of queues that are gone are in here, of the living ones not yet.
    stats: PairStats,
    /// Frames that there had been when something was missing last.
    missed_at: u64,
    failed_calls: u64,
    long_waits: u64,
}

impl Pair {
    /// A pair without queues. `patience` is how long a translation may take before a queue stops;
    /// without, it may take any time.
    pub fn new(port: Port, depth: Depth, patience: Option<Duration>) -> Self {
        Pair {
            port,
            depth,
            patience,
            header: Header::Modern,
            mergeable: false,
            receive: None,
            transmit: None,
            stats: PairStats::default(),
            missed_at: 0,
            failed_calls: 0,
            long_waits: 0,
        }
    }

    /// What it has done.
    pub fn stats(&self) -> PairStats {
        let mut stats = self.stats;
        for live in self.receive.iter().chain(&self.transmit) {
            stats.hits += live.queue.hits;
            stats.missed += live.queue.missed;
        }
        stats.since_miss = self.frames() - self.missed_at;
        stats
    }

    fn frames(&self) -> u64 {
        self.stats.transmitted + self.stats.received
    }

    /// Counts a queue that stopped.
    pub fn count_stop(&mut self) {
        self.stats.stopped += 1;
    }

    /// Counts a call of the driver that failed. The front end can make every one fail, so only the
    /// 1st, 2nd, 4th, 8th, ... are worth a line in a log: then returns how many there were.
    pub fn count_failed_call(&mut self) -> Option<u64> {
        self.failed_calls += 1;
        let times = self.failed_calls;
        times.is_power_of_two().then_some(times)
    }

    /// Counts a long wait, as rarely worth a line as a failed call: the front end can
    /// make every one long.
    fn count_long_wait(&mut self, side: Side, miss: Miss) -> Option<Late> {
        self.long_waits += 1;
        let times = self.long_waits;
        let worth = times.is_power_of_two();
        worth.then_some(Late { side, miss, times })
    }

    /// Why nothing comes from its TAP interface any more.
    pub fn lost(&self) -> Option<&TapLost> {
        self.port.lost()
    }

    /// Whether it has a queue.
    pub fn is_live(&self) -> bool {
        self.receive.is_some() || self.transmit.is_some()
    }

    /// Fails where a queue has to stop because the TAP interface is lost.
    fn check_port(&mut self) -> Result<(), (Side, Stop)> {
        let Some(lost) = self.lost().cloned() else {
            return Ok(());
        };
        match self.sides().next() {
            Some((side, _)) => Err((side, Stop::Device(lost.into()))),
            None => Ok(()),
        }
    }

    fn side(&mut self, side: Side) -> &mut Option<Live> {
        match side {
            Side::Receive => &mut self.receive,
            Side::Transmit => &mut self.transmit,
        }
    }

    /// Begins with a ring that has gone live since it was last seen, and ends with one that is not.
    ///
    /// # Errors
    /// The ring cannot be.
    pub fn follow(&mut self, side: Side, ring: &runner::Ring) -> Result<(), RingError> {
        let known = self.side(side).as_ref().map(|live| live.start);
        if ring.is_live() && known == Some(ring.start()) {
            return Ok(());
        }
        self.drop_queue(side);
        if ring.is_live() {
            let access = match side {
                Side::Receive => AccessKind::Write,
                Side::Transmit => AccessKind::Read,
            };
            let queue = Queue::new(ring, access)?;
            self.put_queue(side, queue, ring.start(), ring.features());
        }
        Ok(())
    }

    /// Takes a queue that was made with `features`.
    pub fn put_queue(&mut self, side: Side, queue: Queue, start: u64, features: u64) {
        self.mergeable = features & MRG_RXBUF != 0;
        self.header = match features & (MRG_RXBUF | runner::VERSION_1) {
            0 => Header::Legacy,
            _ => Header::Modern,
        };
        *self.side(side) = Some(Live {
            queue,
            start,
            missing: Vec::new(),
            waits: Waits::new(self.patience),
            kicks: None,
        });
    }

    /// Ends with a queue; what was ahead stays with the driver.
    pub fn drop_queue(&mut self, side: Side) {
        if let Some(live) = self.side(side).take() {
            self.stats.hits += live.queue.hits;
            self.stats.missed += live.queue.missed;
        }
    }

    /// What `GET_VRING_BASE` answers for a queue.
    pub fn base(&self, side: Side) -> Option<u32> {
        let live = match side {
            Side::Receive => &self.receive,
            Side::Transmit => &self.transmit,
        };
        live.as_ref().map(|live| live.queue.base())
    }

    /// Moves what can be moved in one burst. See the module.
    ///
    /// # Errors
    /// The queue that must stop, and why. The other one is as it should be.
    pub fn burst<R: IotlbReader>(
        &mut self,
        memory: &mut IovaMemory<R>,
    ) -> Result<Turn, (Side, Stop)> {
        self.check_port()?;
        let answers = memory.misses().answers();
        let mut turn = Turn::default();
        let moved = {
            let guest = GuestGuard::begin(memory);
            let moved = self
                .look(&guest, answers)
                .and_then(|()| self.move_frames(&guest));
            // Whatever failed, what was given back is the driver's.
            let calls = self.publish(&guest);
            moved.and_then(|moved| calls.map(|calls| (moved, calls)))
        };
        let broken = |(side, error): (Side, RingError)| (side, Stop::Device(error.into()));
        let (moved, calls) = moved.map_err(broken)?;
        turn.moved = moved;
        (turn.call_receive, turn.call_transmit) = calls;
        self.stats.bursts += u64::from(moved > 0);
        self.stats.calls += u64::from(calls.0) + u64::from(calls.1);
        let mut late = None;
        for (side, live) in self.sides() {
            live.ask(memory, answers)
                .map_err(|fault| (side, fault.into()))?;
            turn.blocked |= live.waits.is_waiting();
            late = late.or_else(|| Some((side, live.waits.long()?)));
        }
        turn.late = late.and_then(|(side, miss)| self.count_long_wait(side, miss));
        if turn.blocked {
            self.missed_at = self.frames();
        }
        // Else the driver is to be called for what was moved before, and the next burst fails.
        if calls == (false, false) {
            self.check_port()?;
        }
        Ok(turn)
    }

    fn look<R: IotlbReader>(
        &mut self,
        guest: &GuestGuard<'_, R>,
        answers: u64,
    ) -> Result<(), (Side, RingError)> {
        let depth = self.depth;
        for (side, live) in self.sides() {
            live.missing.clear();
            let look = live.queue.look(guest, depth, answers, &mut live.missing);
            let look = look.map_err(|error| (side, error))?;
            live.waits.saw(&look);
        }
        Ok(())
    }

    fn publish<R: IotlbReader>(
        &mut self,
        guest: &GuestGuard<'_, R>,
    ) -> Result<(bool, bool), (Side, RingError)> {
        let mut due = |side: Side| match self.side(side) {
            Some(live) => match live.queue.publish(guest) {
                Ok(call) => Ok(call == Call::Due),
                Err(error) => Err((side, error)),
            },
            None => Ok(false),
        };
        let (receive, transmit) = (due(Side::Receive), due(Side::Transmit));
        Ok((receive?, transmit?))
    }

    fn move_frames<R: IotlbReader>(
        &mut self,
        guest: &GuestGuard<'_, R>,
    ) -> Result<u64, (Side, RingError)> {
        let Pair {
            port,
            depth,
            header,
            mergeable,
            receive,
            transmit,
            stats,
            ..
        } = self;
        let receive = receive.as_mut().map(|live| Receiver {
            queue: &mut live.queue,
            blocked: live.waits.is_waiting(),
            depth: *depth,
            header: *header,
            mergeable: *mergeable,
        });
        let transmit = transmit.as_mut().map(|live| &mut live.queue);
        port.move_frames(guest, transmit, receive, *header, stats)
    }

    /// Says for both queues whether kicks are wanted; after asking for them looks again, and says
    /// whether there is something after all.
    ///
    /// # Errors
    /// The same as for [`burst`](Self::burst).
    pub fn want<R: IotlbReader>(
        &mut self,
        memory: &mut IovaMemory<R>,
        kicks: Kicks,
    ) -> Result<bool, (Side, Stop)> {
        let known = |live: &Option<Live>| live.as_ref().is_none_or(|l| l.kicks == Some(kicks));
        if kicks == Kicks::Unwanted && known(&self.receive) && known(&self.transmit) {
            return Ok(false);
        }
        let broken = |(side, error): (Side, RingError)| (side, Stop::Device(error.into()));
        let answers = memory.misses().answers();
        let before = self.ahead();
        {
            let guest = GuestGuard::begin(memory);
            for (side, live) in self.sides() {
                if live.kicks == Some(kicks) && kicks == Kicks::Unwanted {
                    continue;
                }
                let wanted = live.queue.want(&guest, kicks);
                live.kicks = wanted.map_err(|e| broken((side, e)))?.then_some(kicks);
            }
            if kicks == Kicks::Unwanted {
                return Ok(false);
            }
            self.look(&guest, answers).map_err(broken)?;
        }
        let (mut undone, mut blocked) = (self.ahead() != before, false);
        for (side, live) in self.sides() {
            live.ask(memory, answers)
                .map_err(|fault| (side, fault.into()))?;
            blocked |= live.waits.is_waiting();
            undone |= live.kicks.is_none();
        }
        if blocked {
            self.missed_at = self.frames();
        }
        Ok(undone | blocked)
    }

    fn sides(&mut self) -> impl Iterator<Item = (Side, &mut Live)> {
        let receive = self.receive.iter_mut().map(|l| (Side::Receive, l));
        receive.chain(self.transmit.iter_mut().map(|l| (Side::Transmit, l)))
    }

    fn ahead(&self) -> usize {
        let lives = self.receive.iter().chain(&self.transmit);
        lives.map(|live| live.queue.ahead()).sum()
    }
}

impl Live {
    /// Asks for what is missing, and gives up on what will not come. `answers` is how many had
    /// come before the look.
    fn ask<R: IotlbReader>(&mut self, memory: &IovaMemory<R>, answers: u64) -> Result<(), Fault> {
        let misses = memory.misses();
        // Where one answer may be for many, the first is enough: the next look, after it, finds
        // what is left.
        let most = match misses.answering() {
            Answering::Ranges => 1,
            Answering::Pages => self.missing.len(),
        };
        for (number, miss) in self.missing.iter().take(most).enumerate() {
            let again = number == 0 && self.queue.is_repeated();
            // It is the next to be answered: that may have been since the look, and it would be
            // asked for twice.
            if again && misses.answers() != answers {
                continue;
            }
            match self.waits.ask(misses, miss) {
                Asked::Later => self.queue.look_again(),
                Asked::Sent if again => self.queue.look_again(),
                _ => (),
            }
        }
        if most < self.missing.len() {
            self.queue.collect_again();
        }
        if self.waits.is_overdue(misses) {
            self.queue.look_again();
        }
        self.waits.check(misses)
    }
}
