// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Strict and deferred, switched while the domain runs, both ways.
//!
//! A domain of a deferred policy is in one of two *modes*. The words are Linux's, whose domains of
//! type `DMA` invalidate in each unmap, and those of type `DMA-FQ` defer that by a flush queue.
//! (Linux leaves the first for the second while a driver is bound, and not the other way.)
//!
//! # Theory
//!
//! **What decides is the queue.** A deferred unmap that needs no help clears its leaves, stamps and
//! queues in one critical section of its queue's lock, and asks for room first. To *close* a queue,
//! what it holds is set aside under that lock and a queue without any room is put in its place. So
//! the fast path finds it full, as it finds a full one, and comes nowhere before it has cleared
//! anything: it has no instruction for this. Behind it the *phase* is looked at:
//!
//! | phase | queues | an unmap | exposed |
//! |---|---|---|---|
//! | deferred | open | queues | within the policy's bounds |
//! | closing | closed | flushes the domain before it returns | what was queued before, until it is drained |
//! | strict | closed | flushes its pages before it returns | nothing |
//!
//! *Strict* is the way of a domain made strict. In the other phases an unmap goes to its queue, and
//! where it finds that closed it retires and flushes there and then, with the domain all that is
//! set aside: so a switch that is held up half-way lengthens no window (P2). No safety rests on
//! when the phase is read: who reads *strict* late flushes where it would not have to, and who
//! reads *deferred* late comes to a closed queue.
//!
//! **To strict**: the phase becomes *closing* and all queues are closed; then one invalidation of
//! the domain starts and is waited for, whether or not anything is queued; then all that is set
//! aside is freed by it; then the phase becomes *strict*, and the call returns.
//!
//! **Why no unmap that returns after that leaves anything exposed (P1).** Let an unmap have cleared
//! leaves. What it cleared it hands to a queue, or flushes before it returns: nothing else is done
//! with it. If it is handed to a queue, that is before the queue was closed or after, as both hold
//! its lock. After: there is no room, so it is not. Before: it was stamped in that critical
//! section, so its stamp was read before the switch's invalidation took its number, which is
//! therefore no lower; the leaves were cleared before the fence of the stamp. So that invalidation
//! completes it (`crate::invalidation`), and is complete before the switch returns. This is so
//! wherever the thing is by then: set aside; taken out by a tick, another flush or another switch,
//! which do so against a completion, or to quarantine it, and then it is flushed all the same. And
//! it is so whenever the unmap began, and whether it has returned.
//!
//! That the invalidation starts where queues are empty, too, is for what another call has
//! quarantined: its unmap has returned without an error, its invalidation has failed, and nothing
//! stands in a queue for it.
//!
//! **To deferred**: the phase becomes *deferred*, then all queues are opened, each with what is
//! still set aside, in its order. Who has read *strict* before flushes once more than it must.
//! Things that are queued from now on find the phase *deferred*, for it was written before their
//! queue's lock was released: so who has seen an unmap return that was deferred, and reads the
//! phase, does not read *strict* of before.
//!
//! **Two at once.** Phase and queues change under `turn` alone, and together; so the last one wins,
//! for all queues. Two switches to strict both flush and both drain, and neither returns before
//! what was queued when it came is flushed by its own invalidation. A switch to deferred may come
//! while another to strict is still flushing: what that one promises is then void, since the domain
//! is deferred again, and it finds so by the number of openings in the word, and does not write
//! *strict* over it.
//!
//! **A failure** quarantines what the invalidation should have completed, is returned, and leaves
//! the phase *closing*: unmaps flush, the domain each time, and what was deferred before may be
//! exposed until one of these, or a later switch to strict, has succeeded. So the domain's exposure
//! stays what its policy says until then.
//!
//! In an interrupt handler a switch may come at any place of an unmap, or of another switch, on its
//! CPU but inside of a lock. It waits for the unit; and for what other CPUs have taken out of a
//! queue, which is flushed already, for a while at most.
//!
//! Not handled: an unmap that was started and is not finished (`PendingUnmap`) has an invalidation
//! of its own, and has not returned. What an IOMMU's caches hold of *maps* is of no concern here.
//!
//! Lock order: `turn -> queue`. Neither is held while waiting, freeing or allocating.

use super::{queue, *};

/// When a domain of a deferred policy invalidates. See [`Domain::set_mode`].
///
/// [`Domain::set_mode`]: crate::domain::Domain::set_mode
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InvalidationMode {
    /// In each unmap, before it returns: Linux's domain type `DMA`.
    Strict,
    /// Later, for many at once, as the domain's policy says: Linux's domain type `DMA-FQ`.
    Deferred,
}

/// Where a domain is between its modes. See the module's theory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Deferred,
    Closing,
    Strict,
}

/// The phase in the low bits, and the number of openings above.
#[derive(Clone, Copy, PartialEq, Eq)]
struct State(u64);

impl State {
    const BITS: u32 = 2;
    fn phase(self) -> Phase {
        match self.0 & 3 {
            0 => Phase::Deferred,
            1 => Phase::Closing,
            _ => Phase::Strict,
        }
    }
    /// After as many openings.
    fn with(self, phase: Phase) -> State {
        State(self.0 >> Self::BITS << Self::BITS | phase as u64)
    }
    fn opened(self) -> State {
        State(self.0.wrapping_add(1 << Self::BITS)).with(Phase::Deferred)
    }
}

pub(super) struct Switch<P: Platform> {
    /// Of whom changes phase and queues.
    turn: P::Lock<()>,
    state: P::A64,
}

impl<P: Platform> Switch<P> {
    pub fn new() -> Self {
        Switch {
            turn: Lock::new(()),
            state: P::A64::new(0),
        }
    }

    fn state(&self) -> State {
        State(self.state.load(Ordering::Acquire))
    }

    /// Whether the queues are closed, so that unmaps flush before they return.
    pub fn is_closed(&self) -> bool {
        self.state().phase() != Phase::Deferred
    }

    /// Whether nothing that was deferred before is left either.
    #[inline]
    pub fn is_strict(&self) -> bool {
        self.state().phase() == Phase::Strict
    }

    fn close(&self, queues: impl FnOnce()) -> State {
        self.turn.with(|()| {
            let now = self.state();
            if now.phase() != Phase::Deferred {
                return now; // they are closed
            }
            let closing = now.with(Phase::Closing);
            self.state.store(closing.0, Ordering::Release);
            queues();
            closing
        })
    }

    fn open(&self, queues: impl FnOnce()) {
        self.turn.with(|()| {
            let now = self.state();
            if now.phase() != Phase::Deferred {
                self.state.store(now.opened().0, Ordering::Release);
                queues();
            }
        });
    }

    /// What was closed as `closed` is drained; unless it has been opened since.
    fn drained(&self, closed: State) {
        self.turn.with(|()| {
            if self.state() == closed.with(Phase::Closing) {
                let strict = closed.with(Phase::Strict);
                self.state.store(strict.0, Ordering::Release);
            }
        });
    }
}

impl<P: Platform> Deferred<P> {
    /// The mode of unmaps that are called now.
    pub fn mode(&self) -> InvalidationMode {
        match self.switch.is_closed() {
            true => InvalidationMode::Strict,
            false => InvalidationMode::Deferred,
        }
    }

    /// Switches all queues.
    ///
    /// # Errors
    /// The invalidation failed; what was queued is quarantined, and the queues are closed.
    pub fn set_mode<I: Invalidate>(
        &self,
        engine: &Engine<'_, P, I>,
        mode: InvalidationMode,
    ) -> Result<(), Failed> {
        let queues = self.queues();
        match mode {
            InvalidationMode::Deferred => {
                self.switch
                    .open(|| queues.iter().for_each(|queue| queue.0.open()));
            }
            InvalidationMode::Strict => {
                let closed = self
                    .switch
                    .close(|| queues.iter().for_each(|queue| queue.0.close()));
                queue::flush_all(queues, engine)?;
                self.switch.drained(closed);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::one_cpu::OneCpu;

    /// An opening takes what is closing, or strict, back; and no drain of before it makes the
    /// domain strict.
    #[test]
    fn what_was_drained_is_strict_unless_it_was_opened_since() {
        let switch = Switch::<OneCpu>::new();
        let state = |switch: &Switch<OneCpu>| (switch.is_closed(), switch.is_strict());
        assert_eq!(state(&switch), (false, false));
        switch.open(|| panic!("P2: they are open"));
        let mut closed = 0;
        let first = switch.close(|| closed += 1);
        assert_eq!(state(&switch), (true, false), "P1: nothing is drained");
        let second = switch.close(|| closed += 1);
        assert!(first == second && closed == 1, "they are closed");
        switch.drained(second);
        assert_eq!(state(&switch), (true, true));
        switch.drained(first);
        assert_eq!(state(&switch), (true, true));
        let mut opened = false;
        switch.open(|| opened = true);
        assert!(opened);
        assert_eq!(state(&switch), (false, false));
        let third = switch.close(|| closed += 1);
        switch.drained(first);
        assert_eq!(state(&switch), (true, false), "P1: of before");
        switch.drained(third);
        assert_eq!(state(&switch), (true, true));
    }
}
