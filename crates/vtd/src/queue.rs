// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The invalidation queue of one unit (VT-d 4.1 §6.5.2).
//!
//! # Theory
//!
//! The queue is a ring of 256 descriptors in one frame (several would have to be physically contiguous, which
//! no platform promises). Software owns *tail*, the unit owns *head*; head = tail is empty, so 255 can be used. A submission
//! is its invalidations and one wait descriptor that writes a 32-bit *ticket* to the one status word of the queue.
//!
//! **One word serves all waiters**: the unit reports a wait descriptor done only after everything ahead of it in the
//! queue (§6.5.2.11), and tickets are given in queue order under the lock, so the word only ever rises.
//! Ticket *t* is done iff the word has reached it, compared with wrap-around: the queue never holds more than 255 tickets, so
//! a ticket that is not done is never mistaken for one that is. (One that is held while 2^31 later ones are
//! given reads as not done, for as many again. Nobody does: waiting follows submitting.)
//!
//! **Order**: within a submission the unit runs IOTLB invalidations only after the context-cache ones ahead of them
//! (§6.5.2.11), so no fence flag is needed. Descriptors are in memory before the tail register is written, under
//! one lock, so submissions of several CPUs never interleave. The status word is read with acquire.
//!
//! **Waiting** for room is outside the lock and bounded. The lock is alone: nothing else is taken inside.
//!
//! **Errors**: a descriptor that the unit does not take stops the queue for good (§6.5.2.10): FSTS.IQE is set and head stays at it.
//! Whoever sees it first gets [`InvalidateError::QueueError`], everybody after that [`InvalidateError::OutOfService`].
//! The fault status register is read only when something is not done or does not fit, never on the warm path.
//!
//! Not handled: restarting the queue after an error, completion by interrupt, device-TLB time-outs (ICE, ITE).

use crate::{
    layout::{PER_FRAME, StatusWait, WORDS, WaitOrder, Words},
    registers::*,
};
use ioatlas_dma::{
    grace::{InvalidateError, WaitLimit},
    platform::{Atomic64, Lock, Ordering, Platform, TableFrame},
    units::PhysAddr,
};

/// Invalidations that go into one submission at most: a context-cache one and an IOTLB one.
pub const BATCH: usize = 2;

/// Names one submission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket(u32);

/// The queue's memory and what software knows of it.
pub struct Queue<P: Platform> {
    ring: TableFrame,
    status: TableFrame,
    place: P::Lock<Place>,
    stopped: P::A64,
}

/// Where software is in the ring.
struct Place {
    /// The next descriptor to write.
    tail: usize,
    /// Where the unit was when last asked. It may be further.
    head: usize,
    /// The last ticket given.
    last: u32,
}

impl Place {
    /// How many descriptors can be written, one always staying free.
    fn room(&self) -> usize {
        (self.head + PER_FRAME - self.tail - 1) % PER_FRAME
    }
}

/// The first ticket follows this one: soon after the start the count wraps around, so that it is never a rare event.
const BEFORE_FIRST: u32 = 0u32.wrapping_sub(64);

impl<P: Platform> Queue<P> {
    /// An empty queue in two zeroed frames: the ring and the status word's.
    pub fn new(p: &P, ring: TableFrame, status: TableFrame) -> Self {
        let word = &p.entries(&status)[..1];
        word[0].store(u64::from(BEFORE_FIRST), Ordering::Relaxed);
        p.publish(word);
        p.publish(p.entries(&ring));
        Queue {
            ring,
            status,
            place: P::Lock::new(Place {
                tail: 0,
                head: 0,
                last: BEFORE_FIRST,
            }),
            stopped: P::A64::new(0),
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
    /// The frames, when the unit no longer uses them.
    pub(crate) fn into_frames(self) -> [TableFrame; 2] {
        [self.ring, self.status]
    }

    /// Queues `batch` and a wait descriptor. Waits at most `limit` turns for room, with no lock held.
    ///
    /// # Errors
    /// The queue stopped, or there was no room in time.
    pub fn submit<R: Registers>(
        &self,
        p: &P,
        registers: &R,
        batch: &[Words],
        limit: WaitLimit,
    ) -> Result<Ticket, InvalidateError> {
        debug_assert!(batch.len() <= BATCH);
        for _ in 0..limit.0 {
            if self.stopped.load(Ordering::Relaxed) != 0 {
                return Err(InvalidateError::OutOfService);
            }
            let ticket = self
                .place
                .with(|place| self.try_submit(p, registers, batch, place));
            if let Some(ticket) = ticket {
                return Ok(ticket);
            }
            self.check(registers)?;
            p.relax();
        }
        Err(InvalidateError::TimedOut { turns: limit.0 })
    }

    /// The part of [`submit`](Self::submit) under the lock; `None` where there is no room.
    fn try_submit<R: Registers>(
        &self,
        p: &P,
        registers: &R,
        batch: &[Words],
        place: &mut Place,
    ) -> Option<Ticket> {
        let needed = batch.len() + 1;
        if place.room() < needed {
            // a head outside the ring is no answer of a working unit; the old one stays
            if let Some(head) = self.head(registers) {
                place.head = head;
            }
            if place.room() < needed {
                return None;
            }
        }
        place.last = place.last.wrapping_add(1);
        let wait = StatusWait {
            address: self.status(),
            data: place.last,
            order: WaitOrder::Unfenced,
        };
        let words = p.entries(&self.ring);
        for descriptor in batch.iter().copied().chain([wait.encode()]) {
            let slot = &words[place.tail * WORDS..][..WORDS];
            slot[0].store(descriptor.low, Ordering::Relaxed);
            slot[1].store(descriptor.high, Ordering::Relaxed);
            p.publish(slot);
            place.tail = (place.tail + 1) % PER_FRAME;
        }
        registers.write64(IQT, (place.tail as u64) << IQ_INDEX_SHIFT);
        Some(Ticket(place.last))
    }

    /// Whether everything up to `ticket` is done.
    ///
    /// # Errors
    /// It is not, and the queue has stopped.
    pub fn done<R: Registers>(
        &self,
        p: &P,
        registers: &R,
        ticket: Ticket,
    ) -> Result<bool, InvalidateError> {
        if self.reached(p, ticket) {
            return Ok(true);
        }
        match self.check(registers) {
            Ok(()) => Ok(false),
            // it may have been done between the two looks, before the error
            Err(_) if self.reached(p, ticket) => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn reached(&self, p: &P, ticket: Ticket) -> bool {
        let status = p.entries(&self.status)[0].load(Ordering::Acquire) as u32;
        status.wrapping_sub(ticket.0) <= u32::MAX / 2
    }

    /// Whether the queue still runs (VT-d 4.1 §11.4.7.1, IQE).
    fn check<R: Registers>(&self, registers: &R) -> Result<(), InvalidateError> {
        if self.stopped.load(Ordering::Relaxed) != 0 {
            return Err(InvalidateError::OutOfService);
        }
        if registers.read32(FSTS) & FSTS_IQE == 0 {
            return Ok(());
        }
        let head = registers.read64(IQH) >> IQ_INDEX_SHIFT & IQ_INDEX_MASK;
        match self.stopped.swap(1, Ordering::Relaxed) {
            0 => Err(InvalidateError::QueueError { head: head as u32 }),
            _ => Err(InvalidateError::OutOfService),
        }
    }

    /// Where the unit is in the ring (VT-d 4.1 §11.4.9.1), `None` where that is outside.
    fn head<R: Registers>(&self, registers: &R) -> Option<usize> {
        let head = (registers.read64(IQH) >> IQ_INDEX_SHIFT & IQ_INDEX_MASK) as usize;
        (head < PER_FRAME).then_some(head)
    }
}
