// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The queue of a deferred policy: a pile of things under a lock, counted to a batch.
//!
//! Things are stamped under the lock, so their order is that of the stamps. What a flush settles leaves in one of two ways. Where that is
//! everything, as it is for the CPU whose batch is full, the whole pile is exchanged for an empty spare one, and sent home from without the lock. Else, and while
//! somebody else has the spare one, up to 16 things at a time are settled under the lock, and sent home from without it.
//!
//! What has been taken out and is not home yet is *in transit*. Each thing remembers the CPU that unmapped it, its *home*.
//!
//! Memory: pile and spare have room for two batches each, and 32 bytes a thing.
//!
//! Locking: one lock a queue, taken alone, never held while waiting, releasing or allocating.

use super::{queue::Drained, *};

/// A resource, and the home of what has one.
pub(crate) enum Homed {
    Iova(u32, Lease),
    Frame(TableFrame),
}

impl Homed {
    #[inline]
    pub fn new(home: CpuIndex, what: Resource) -> Self {
        match what {
            Resource::Iova(lease) => Homed::lease(home, lease),
            Resource::Frame(frame) => Homed::Frame(frame),
        }
    }
    #[inline]
    pub fn lease(home: CpuIndex, lease: Lease) -> Self {
        // fewer than 2^32 CPUs
        Homed::Iova(home.0 as u32, lease)
    }
    fn add_to(&self, held: &mut Held) {
        match self {
            Homed::Iova(_, lease) => held.pages.0 += lease.owned().0,
            Homed::Frame(..) => held.frames += 1,
        }
    }
}

impl Flushed<Homed> {
    /// A lease with its CPU; or a frame, which goes into `frames`.
    #[inline(always)]
    fn lease(self, frames: &mut Option<Flushed<TableFrame>>) -> Option<(CpuIndex, Flushed<Lease>)> {
        let parted = self.either(|what| match what {
            Homed::Iova(home, lease) => Ok((CpuIndex(home as usize), lease)),
            Homed::Frame(frame) => Err(frame),
        });
        match parted {
            Ok(both) => {
                let home = both.get().0;
                Some((home, both.map(|(_, lease)| lease)))
            }
            Err(frame) => {
                set_aside(frames, frame);
                None
            }
        }
    }
}

/// Out of line: few things are frames.
#[cold]
#[inline(never)]
fn set_aside(to: &mut Option<Flushed<TableFrame>>, frame: Flushed<TableFrame>) {
    *to = Some(frame);
}

/// What is due after something was queued.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Queued {
    Waits,
    BatchFull,
}

/// Why nothing was queued; nothing has happened.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NotQueued {
    Full,
    /// There was nothing to queue.
    Declined,
}

pub(super) struct BatchQueue<P: Platform>(P::Lock<Inner>);

struct Inner {
    pile: Pile<Homed>,
    /// What the pile is exchanged for, unless somebody has it.
    spare: Option<Pile<Homed>>,
    /// Things that start an invalidation.
    batch: u32,
    /// Things that are still to come until then.
    to_come: u32,
    /// Taken out, and not home yet.
    in_transit: usize,
}

/// Things settled under the lock at a time, to be released without it.
const HANDFUL: usize = 16;

impl<P: Platform> BatchQueue<P> {
    /// An empty one of the domain with `key`, with room for two batches.
    pub fn new(key: DomainKey, batch: u32) -> Self {
        let room = 2 * batch as usize;
        BatchQueue(Lock::new(Inner {
            pile: Pile::new(key, room),
            spare: Some(Pile::new(key, room)),
            batch,
            to_come: batch,
            in_transit: 0,
        }))
    }

    /// Puts what `retire` retires at the end, and counts. `None` where somebody else is at the queue; nothing has happened then.
    #[inline(always)]
    pub fn try_push(
        &self,
        retire: impl FnOnce() -> Option<Retired<Homed>>,
    ) -> Option<Result<Queued, NotQueued>> {
        self.0.try_with(|q| q.push::<P>(retire))
    }

    /// The same, but waits, and finds all room that there is.
    pub fn push(
        &self,
        retire: impl FnOnce() -> Option<Retired<Homed>>,
    ) -> Result<Queued, NotQueued> {
        self.0.with(|q| {
            q.pile.go_round();
            q.push::<P>(retire)
        })
    }

    /// Sends home what `by` settles, at most `budget` things; returns how many.
    pub fn settle<I: Invalidate>(
        &self,
        engine: &Engine<'_, P, I>,
        by: &Whole,
        budget: usize,
    ) -> usize {
        let Some(mut pile) = self.0.with(|q| q.take_all(by, budget)) else {
            return self.settle_handfuls(engine, by, budget);
        };
        let things = pile.len();
        pile.each_element(|element| P::touches(|| Some(element)));
        for mut settled in pile.settled(by) {
            send_home(engine, || settled.next());
        }
        self.0.with(|q| {
            q.in_transit -= things;
            q.spare = Some(pile);
        });
        things
    }

    fn settle_handfuls<I: Invalidate>(
        &self,
        engine: &Engine<'_, P, I>,
        by: &Whole,
        budget: usize,
    ) -> usize {
        let (mut taken, mut last) = (0, 0);
        loop {
            let mut handful = [const { None }; HANDFUL];
            last = self.0.with(|q| {
                q.in_transit -= last;
                let places = handful.iter_mut().take(budget - taken);
                let settled = core::iter::from_fn(|| take::<P>(&mut q.pile, by));
                let now = places.zip(settled).map(|(to, it)| *to = Some(it)).count();
                q.took(now);
                now
            });
            if last == 0 {
                return taken;
            }
            let mut settled = handful.into_iter().flatten();
            send_home(engine, || settled.next());
            taken += last;
        }
    }
}

/// Takes the first thing of `pile`, if `by` settles it.
#[inline]
fn take<P: Platform>(pile: &mut Pile<Homed>, by: &Whole) -> Option<Flushed<Homed>> {
    P::touches(|| pile.comes_first());
    pile.take(by)
}

/// Sends home what `next` has, until it has nothing.
#[inline]
fn send_home<P: Platform, I: Invalidate>(
    engine: &Engine<'_, P, I>,
    mut next: impl FnMut() -> Option<Flushed<Homed>>,
) {
    let p = engine.p;
    loop {
        let mut frame = None;
        // the assigner may hold a lock here, under which nothing is freed: so a frame ends what it gets at one go
        let leases = || next()?.lease(&mut frame);
        engine.assigner.release_many(p, leases);
        match frame {
            Some(frame) => p.frame_free(frame.into_fresh()),
            None => return,
        }
    }
}

impl Inner {
    #[inline(always)]
    fn push<P: Platform>(
        &mut self,
        retire: impl FnOnce() -> Option<Retired<Homed>>,
    ) -> Result<Queued, NotQueued> {
        let place = self.pile.place().ok_or(NotQueued::Full)?;
        let put = place.put(retire().ok_or(NotQueued::Declined)?);
        debug_assert!(put.is_ok(), "there is room, and it is of this domain");
        P::touches(|| self.pile.came_last());
        self.to_come -= 1;
        if self.to_come > 0 {
            return Ok(Queued::Waits);
        }
        self.to_come = self.batch;
        Ok(Queued::BatchFull)
    }

    /// The whole pile, if `by` settles it, there is a spare one, and it is no more than `most`.
    fn take_all(&mut self, by: &Whole, most: usize) -> Option<Pile<Homed>> {
        let things = self.pile.len();
        if things == 0 || things > most || !self.pile.is_settled(by) {
            return None;
        }
        let pile = core::mem::replace(&mut self.pile, self.spare.take()?);
        self.took(things);
        Some(pile)
    }

    fn took(&mut self, things: usize) {
        self.in_transit += things;
        // what a tick or another CPU's flush took home needs no start any more
        let least = self.batch.saturating_sub(self.pile.len() as u32);
        self.to_come = self.to_come.max(least);
    }
}

impl<P: Platform> Drained<P> for BatchQueue<P> {
    fn settle_all<I: Invalidate>(&self, engine: &Engine<'_, P, I>, by: &Completion) {
        match by.whole() {
            Some(by) => {
                self.settle(engine, &by, usize::MAX);
            }
            None => debug_assert!(false, "{} is not the domain", by.scope()),
        }
    }
    /// Gives up on what a failed invalidation should have settled.
    fn quarantine<I: Invalidate>(&self, engine: &Engine<'_, P, I>, failed: Failed) {
        let mut held = Held::default();
        self.0.with(|q| {
            while let Some(thing) = q.pile.give_up(failed.seq) {
                thing.add_to(&mut held);
            }
            q.took(0);
        });
        engine.quarantine.lose(held);
    }
    fn is_empty(&self) -> bool {
        self.0.with(|q| q.pile.len() == 0)
    }
    fn in_transit(&self) -> usize {
        self.0.with(|q| q.in_transit)
    }
    fn add_to(&self, held: &mut Held) {
        self.0
            .with(|q| q.pile.iter().for_each(|thing| thing.add_to(held)));
    }
}
