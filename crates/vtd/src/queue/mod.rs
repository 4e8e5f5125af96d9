// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The invalidation queue of one unit (VT-d 4.1 §6.5.2).
//!
//! # Theory
//!
//! The queue is a ring of 256 descriptors in one frame (several would have to be physically
//! contiguous, which no platform promises). A submission is its invalidations and one wait
//! descriptor that writes the low half of the submission's number, its *ticket*, to the one status
//! word of the queue.
//!
//! **One word serves all waiters**: the unit reports a wait descriptor done only after everything
//! ahead of it in the queue (§6.5.2.11), and tickets are given in queue order under the lock, so
//! the word only ever rises. (After an error descriptors run again with the tickets they had;
//! `recovery` says why the word does not fall then, nor runs ahead of them.) Ticket *t* is done iff
//! the word has reached it, compared with wrap-around: the queue never holds more than 127 tickets,
//! so a ticket that is not done is never mistaken for one that is. It may be asked for at any later
//! time, as one whose unmap was started and not finished is: what the word is not just behind of,
//! by those 127 at most, is done. (One that is held while 2^32 later ones are given, less up to
//! 127, reads as not done until some more are.)
//!
//! **Room** is counted by the same word: the slots of a submission are free again when it is done,
//! not when the unit has fetched them. So what is not done can always be read again from the ring,
//! which recovery needs, and no register is read to find room. Two slots stay free: one since
//! head = tail is empty, one since the unit may report a wait before its head moves past it.
//!
//! **Order**: within a submission the unit runs IOTLB invalidations only after the context-cache
//! ones ahead of them, and device-TLB ones after both (§6.5.2.11), so no fence flag is needed.
//! Descriptors are in memory before the tail register is written, under one lock, so submissions of
//! several CPUs never interleave. The status word is read with acquire.
//!
//! **Waiting** for room, and for a unit that stopped with an error to finish what it had
//! fetched, is outside the lock and bounded. Where it was in vain the unit is *suspect*: until
//! the status word moves, no caller waits for it any longer than one look. The lock is alone:
//! nothing else is taken inside.
//!
//! **Errors**: a caller that waits looks at the fault status register, and recovers the queue for
//! all: see `recovery`. The register is read only when something is not done or does not fit, never
//! on the warm path.
//!
//! Not handled: completion by interrupt.

mod failures;
mod recovery;

pub(crate) use failures::Failures;
pub use recovery::{Incidents, QueueErrorInfo};

use crate::authority::OURS;
use crate::{
    layout::{PER_FRAME, StatusWait, WORDS, WaitOrder, Words},
    registers::*,
};
use alloc::boxed::Box;
use ioatlas_dma::{
    invalidation::{InvalidateError, WaitLimit},
    platform::{Atomic64, Lock, Ordering, Platform, TableFrame},
    units::{PhysAddr, SourceId},
};
use recovery::Silent;

/// Invalidations that go into one submission at most. What is more goes into several, in order.
pub const BATCH: usize = 32;
/// Slots that stay free: see the module's theory.
const GAP: usize = 2;
/// Submissions that can be under way at once: each has a slot of [`Place::starts`].
const UNDER_WAY: u64 = 127;

/// Names one submission, or several in a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    pub(crate) first: u64,
    pub(crate) last: u64,
}

impl Ticket {
    pub(crate) fn one(number: u64) -> Self {
        Ticket {
            first: number,
            last: number,
        }
    }
    /// Everything from this submission to `later`: it fails where one of them fails. (Those of
    /// others in between count too, which errs on the safe side.)
    pub fn to(self, later: Ticket) -> Self {
        Ticket {
            first: self.first,
            last: later.last,
        }
    }
}

/// The queue's memory and what software knows of it.
pub struct Queue<P: Platform> {
    ring: TableFrame,
    /// Word 0 is the status word; the rest is where recovery puts descriptors aside.
    status: TableFrame,
    place: P::Lock<Place>,
    stopped: P::A64,
    /// The highest ticket that failed; those above need not ask.
    failed: P::A64,
    /// How many devices wait to be fenced.
    silent: P::A64,
    /// The [progress](Self::progress) when a wait last ran out of time; 0 where none has.
    stalled: P::A64,
    /// How many looks a unit that stopped with an error has to finish what it had fetched.
    limit: WaitLimit,
}

/// Where software is in the ring.
struct Place {
    /// The next descriptor to write.
    tail: usize,
    /// The last ticket given.
    last: u64,
    /// The last known to be done. More may be.
    done: u64,
    /// Where the submissions begin that are not done, by ticket.
    starts: Box<[u16]>,
    failures: Failures,
    incidents: Incidents,
    silent: Silent,
    /// How often the unit was found stopped, not finished, and no further than before, in a row.
    looks: u64,
}

impl Place {
    /// Where the oldest descriptor lies that may have to be read again.
    fn begin(&self) -> usize {
        match self.done == self.last {
            true => self.tail,
            false => self.start(self.done + 1),
        }
    }
    fn start(&self, ticket: u64) -> usize {
        usize::from(self.starts[(ticket % self.starts.len() as u64) as usize])
    }
    fn set_start(&mut self, ticket: u64, at: usize) {
        let slot = (ticket % self.starts.len() as u64) as usize;
        self.starts[slot] = at as u16;
    }
    /// Slots between the oldest descriptor that is not done and the tail.
    fn used(&self) -> usize {
        (self.tail + PER_FRAME - self.begin()) % PER_FRAME
    }
    /// Whether that many more descriptors can be written.
    fn fits(&self, needed: usize) -> bool {
        self.used() + needed <= PER_FRAME - GAP && self.last - self.done < UNDER_WAY
    }
}

/// The first ticket follows this one: soon after the start its low half wraps around, so that it is
/// never a rare event.
const BEFORE_FIRST: u64 = (1 << 32) - 64;

impl<P: Platform> Queue<P> {
    /// An empty queue in two zeroed frames: the ring and the status word's. Where a unit that
    /// stopped with an error does not report what it had fetched, the queue is out of service after
    /// `limit` looks at it, of all CPUs together, without any report.
    pub fn new(p: &P, ring: TableFrame, status: TableFrame, limit: WaitLimit) -> Self {
        let word = &p.entries(OURS, status.by_ref())[..1];
        word[0].store(BEFORE_FIRST & u64::from(u32::MAX), Ordering::Relaxed);
        p.publish(word);
        p.publish(p.entries(OURS, ring.by_ref()));
        Queue {
            ring,
            status,
            place: P::Lock::new(Place {
                tail: 0,
                last: BEFORE_FIRST,
                done: BEFORE_FIRST,
                starts: core::iter::repeat_n(0, UNDER_WAY as usize + 1).collect(),
                failures: Failures::new(),
                incidents: Incidents::default(),
                silent: Silent::default(),
                looks: 0,
            }),
            stopped: P::A64::new(0),
            failed: P::A64::new(0),
            silent: P::A64::new(0),
            stalled: P::A64::new(0),
            limit,
        }
    }

    /// Where the ring is.
    pub fn ring(&self) -> PhysAddr {
        self.ring.page().addr()
    }
    /// Where the status word is. The unit writes its low half.
    pub fn status(&self) -> PhysAddr {
        self.status.page().addr()
    }
    /// What has gone wrong so far.
    pub fn incidents(&self) -> Incidents {
        self.place.with(|place| place.incidents)
    }
    /// The frames, when the unit no longer uses them.
    pub(crate) fn into_frames(self) -> [TableFrame; 2] {
        [self.ring, self.status]
    }

    /// Queues `batch`, at most [`BATCH`] invalidations, and a wait descriptor. Waits at most
    /// `limit` turns for room, with no lock held; once a wait was in vain, it looks for room once a
    /// call, until the unit has reported anything.
    ///
    /// # Errors
    /// The queue stopped for good, or there was no room in time.
    pub fn submit<R: Registers>(
        &self,
        p: &P,
        registers: &R,
        batch: impl Iterator<Item = Words> + Clone,
        limit: WaitLimit,
    ) -> Result<Ticket, InvalidateError> {
        let mut progress = 0;
        for turns in 0..limit.0 {
            if self.stopped.load(Ordering::Relaxed) != 0 {
                return Err(InvalidateError::OutOfService);
            }
            progress = self.progress(p);
            let ticket = self
                .place
                .with(|place| self.try_submit(p, registers, batch.clone(), place));
            if let Some(ticket) = ticket {
                return Ok(ticket);
            }
            self.check(p, registers)?;
            if self.is_stalled_at(self.progress(p)) {
                return Err(InvalidateError::TimedOut { turns });
            }
            p.relax();
        }
        self.stalled_at(progress);
        Err(InvalidateError::TimedOut { turns: limit.0 })
    }

    /// Changes whenever the unit reports anything; never 0.
    pub(crate) fn progress(&self, p: &P) -> u64 {
        u64::from(self.word(p)) + 1
    }
    /// Whether a wait ran out of time when the unit was no less far than `progress`.
    pub(crate) fn is_stalled_at(&self, progress: u64) -> bool {
        self.stalled.load(Ordering::Relaxed) == progress
    }
    /// A wait ran out of time. `progress` is from before its last look, so that what it waited for
    /// is still to come.
    pub(crate) fn stalled_at(&self, progress: u64) {
        self.stalled.store(progress, Ordering::Relaxed);
    }

    /// The part of [`submit`](Self::submit) under the lock; `None` where there is no room.
    fn try_submit<R: Registers>(
        &self,
        p: &P,
        registers: &R,
        batch: impl Iterator<Item = Words> + Clone,
        place: &mut Place,
    ) -> Option<Ticket> {
        let needed = batch.clone().count() + 1;
        if !place.fits(needed) {
            self.catch_up(p, place);
            if !place.fits(needed) {
                return None;
            }
        }
        place.last += 1;
        let (last, tail) = (place.last, place.tail);
        place.set_start(last, tail);
        for descriptor in batch.chain([self.wait_for(last)]) {
            self.write(p, place.tail, descriptor);
            place.tail = (place.tail + 1) % PER_FRAME;
        }
        registers.write64(IQT, (place.tail as u64) << IQ_INDEX_SHIFT);
        Some(Ticket::one(last))
    }

    /// The wait descriptor that ends submission `number`.
    fn wait_for(&self, number: u64) -> Words {
        StatusWait {
            address: self.status(),
            data: number as u32,
            order: WaitOrder::Unfenced,
        }
        .encode()
    }

    fn write(&self, p: &P, at: usize, descriptor: Words) {
        let slot = &p.entries(OURS, self.ring.by_ref())[at * WORDS..][..WORDS];
        slot[0].store(descriptor.low, Ordering::Relaxed);
        slot[1].store(descriptor.high, Ordering::Relaxed);
        p.publish(slot);
    }

    /// Takes from the status word how far the unit is.
    fn catch_up(&self, p: &P, place: &mut Place) {
        let newly = u64::from(self.word(p).wrapping_sub(place.done as u32));
        // a word beyond the last ticket was not written by a working unit
        if newly <= place.last - place.done {
            place.done += newly;
        }
    }

    fn word(&self, p: &P) -> u32 {
        p.entries(OURS, self.status.by_ref())[0].load(Ordering::Acquire) as u32
    }

    /// Whether everything up to `ticket` is done.
    ///
    /// # Errors
    /// It failed, or the queue has stopped for good before.
    pub fn done<R: Registers>(
        &self,
        p: &P,
        registers: &R,
        ticket: Ticket,
    ) -> Result<bool, InvalidateError> {
        if self.reached(p, ticket) {
            return self.outcome(ticket);
        }
        match self.check(p, registers) {
            Ok(()) if self.is_long_past(p, ticket) => self.outcome(ticket),
            Ok(()) => Ok(false),
            // it may have been done between the two looks, before the error
            Err(_) if self.reached(p, ticket) => self.outcome(ticket),
            Err(error) => match self.outcome(ticket) {
                Ok(_) => Err(error),
                Err(its_own) => Err(its_own),
            },
        }
    }

    fn reached(&self, p: &P, ticket: Ticket) -> bool {
        self.word(p).wrapping_sub(ticket.last as u32) <= u32::MAX / 2
    }

    /// Whether the word is so far from `ticket` that it can only have passed it, long ago: it is
    /// never further behind one that was given than there are under way.
    fn is_long_past(&self, p: &P, ticket: Ticket) -> bool {
        let behind = (ticket.last as u32).wrapping_sub(self.word(p));
        u64::from(behind) > UNDER_WAY
    }

    /// How a submission ended that the unit is past.
    fn outcome(&self, ticket: Ticket) -> Result<bool, InvalidateError> {
        // recorded before the unit could go on, so that a caller that sees it past sees the record
        if ticket.first > self.failed.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let failure = self
            .place
            .with(|place| place.failures.of(ticket.first, ticket.last));
        failure.map_or(Ok(true), Err)
    }

    /// Whether the queue still runs, if need be after recovery (VT-d 4.1 §11.4.7.1, IQE, ITE, ICE).
    fn check<R: Registers>(&self, p: &P, registers: &R) -> Result<(), InvalidateError> {
        if self.stopped.load(Ordering::Relaxed) != 0 {
            return Err(InvalidateError::OutOfService);
        }
        if registers.read32(FSTS) & FSTS_QUEUE == 0 {
            return Ok(());
        }
        self.place.with(|place| self.recover(p, registers, place))
    }

    /// A device that did not answer and is not fenced yet.
    pub(crate) fn take_silent(&self) -> Option<SourceId> {
        if self.silent.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.place.with(|place| {
            let device = place.silent.take();
            self.silent.store(place.silent.len(), Ordering::Relaxed);
            device
        })
    }
}
