// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The queue of a deferred policy: retired things in a queue under a lock, counted to a batch.
//!
//! Things are stamped under the lock, so their order is that of the stamps. What a flush completes
//! leaves in one of two ways. Where that is everything, as it is for the CPU whose batch is full,
//! the whole queue is exchanged for an empty spare one, and freed without the lock. Else, and while
//! the spare one is in use, up to 16 things at a time are completed under the lock, and freed
//! without it.
//!
//! What has been taken out and is not freed yet is *in transit*. Each thing remembers the CPU that
//! unmapped it, its *origin*.
//!
//! A queue that is *closed* ([`super::switch`]) takes nothing: in its place is one without room,
//! and what it held is set aside, whence it leaves in the second way.
//!
//! Memory: none until something is queued. Where a queue is full it gets room for four times as
//! many things, up to two batches, and its spare as much; 32 bytes a thing. An idle queue gives all
//! of it back ([`BatchQueue::shrink`]).
//!
//! Locking: one lock a queue, taken alone, never held while waiting, freeing or allocating.

use super::{queue::Drained, *};

/// A resource, and the origin of what has one.
pub(crate) enum CpuResource {
    Iova(u32, IovaAlloc),
    Frame(TableFrame),
}

impl CpuResource {
    #[inline]
    pub fn new(origin: CpuIndex, what: Resource) -> Self {
        match what {
            Resource::Iova(alloc) => CpuResource::alloc(origin, alloc),
            Resource::Frame(frame) => CpuResource::Frame(frame),
        }
    }
    #[inline]
    pub fn alloc(origin: CpuIndex, alloc: IovaAlloc) -> Self {
        // fewer than 2^32 CPUs
        CpuResource::Iova(origin.0 as u32, alloc)
    }
    pub(super) fn add_to(&self, held: &mut Held) {
        match self {
            CpuResource::Iova(_, alloc) => held.pages.0 += alloc.owned().0,
            CpuResource::Frame(..) => held.frames += 1,
        }
    }
}

impl Flushed<CpuResource> {
    /// An allocation with its CPU; or a frame, which goes into `frames`.
    #[inline(always)]
    fn alloc(
        self,
        frames: &mut Option<Flushed<TableFrame>>,
    ) -> Option<(CpuIndex, Flushed<IovaAlloc>)> {
        let parted = self.either(|what| match what {
            CpuResource::Iova(origin, alloc) => Ok((CpuIndex(origin as usize), alloc)),
            CpuResource::Frame(frame) => Err(frame),
        });
        match parted {
            Ok(both) => {
                let origin = both.get().0;
                Some((origin, both.map(|(_, alloc)| alloc)))
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

/// What a full queue got.
pub(super) enum Growth {
    /// Room; or others have made some, or have closed it.
    Grown,
    /// Nothing: it has what it may have, or some and the heap has no more.
    Largest,
    /// Nothing, and it has none: the heap has no memory.
    NoMemory,
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
    queue: FlushQueue<CpuResource>,
    /// What the queue is exchanged for, unless it is in use. It has as much room.
    spare: Option<FlushQueue<CpuResource>>,
    /// While it is closed: the queue, for which one without room stands in.
    aside: Option<FlushQueue<CpuResource>>,
    /// Things that start an invalidation.
    batch: u32,
    /// Things that are still to come until then.
    to_come: u32,
    /// Taken out, and not freed yet.
    in_transit: usize,
}

/// For how many things a queue first has room.
const FIRST_ROOM: u32 = 16;

/// Things completed under the lock at a time, to be freed without it.
const DRAIN_CHUNK: usize = 16;

impl<P: Platform> BatchQueue<P> {
    /// An empty one of the domain with `key`.
    pub fn new(key: DomainKey, batch: u32) -> Self {
        BatchQueue(Lock::new(Inner {
            queue: FlushQueue::roomless(key),
            spare: None,
            aside: None,
            batch,
            to_come: batch,
            in_transit: 0,
        }))
    }

    /// Puts what `retire` retires at the end, and counts. `None` where the lock of the queue is
    /// held; nothing has happened then.
    #[inline(always)]
    pub fn try_push(
        &self,
        retire: impl FnOnce() -> Option<Retired<CpuResource>>,
    ) -> Option<Result<Queued, NotQueued>> {
        self.0.try_with(|q| q.push::<P>(retire))
    }

    /// The same, but waits, and finds all room that there is.
    pub fn push(
        &self,
        retire: impl FnOnce() -> Option<Retired<CpuResource>>,
    ) -> Result<Queued, NotQueued> {
        self.0.with(|q| {
            q.queue.go_round();
            q.push::<P>(retire)
        })
    }

    /// Makes room where there is none, if it may have more; allocated, and what it had freed,
    /// without the lock.
    pub fn grow(&self) -> Growth {
        let (had, wanted, key) = match self.0.with(|q| q.wants()) {
            Ok(wants) => wants,
            Err(growth) => return growth,
        };
        let both = [(); 2].map(|()| FlushQueue::with_room(key, wanted));
        let [Some(mut larger), spare @ Some(_)] = both else {
            return match had {
                0 => Growth::NoMemory,
                _ => Growth::Largest,
            };
        };
        let unused = self.0.with(|q| {
            if q.aside.is_some() || q.queue.room() >= wanted {
                return [Some(larger), spare]; // others were faster
            }
            larger.take_over(&mut q.queue);
            larger.each_element(|element| P::A64::touches(|| Some(element)));
            let queue = core::mem::replace(&mut q.queue, larger);
            [Some(queue), core::mem::replace(&mut q.spare, spare)]
        });
        free_memory::<P>(unused);
        Growth::Grown
    }

    /// Gives the memory of an empty queue back, unless something of it is still in transit.
    pub fn shrink(&self) {
        let unused = self.0.with(|q| {
            let idle = q.aside.is_none() && q.queue.len() == 0 && q.in_transit == 0;
            idle.then(|| {
                let queue = q.take_queue();
                [Some(queue), q.spare.take()]
            })
        });
        unused.into_iter().for_each(free_memory::<P>);
    }

    /// Takes no more from now on: it looks full.
    pub fn close(&self) {
        self.0.with(|q| {
            if q.aside.is_none() {
                q.aside = Some(q.take_queue());
            }
        });
    }

    /// Ends that. What is still set aside keeps its places, and the bound of the oldest thing.
    pub fn open(&self) {
        self.0.with(|q| {
            if let Some(queue) = q.aside.take() {
                let least = q.batch.saturating_sub(queue.len() as u32).max(1);
                q.to_come = q.to_come.min(least);
                q.queue = queue;
            }
        });
    }

    /// Frees what `by` completes, at most `budget` things; returns how many.
    pub fn complete<I: Invalidate>(
        &self,
        engine: &Engine<'_, P, I>,
        by: &Whole,
        budget: usize,
    ) -> usize {
        let Some(mut queue) = self.0.with(|q| q.take_all(by, budget)) else {
            return self.complete_chunks(engine, by, budget);
        };
        let things = queue.len();
        queue.each_element(|element| P::A64::touches(|| Some(element)));
        for mut completed in queue.completed(by) {
            free_completed(engine, || completed.next());
        }
        let unused = self.0.with(|q| {
            q.in_transit -= things;
            // while it was away the queue may have grown, and got a spare one then
            let is_as_large = q.spare.is_none() && q.held().room() == queue.room();
            match is_as_large {
                true => {
                    q.spare = Some(queue);
                    None
                }
                false => Some(queue),
            }
        });
        free_memory::<P>([unused]);
        things
    }

    fn complete_chunks<I: Invalidate>(
        &self,
        engine: &Engine<'_, P, I>,
        by: &Whole,
        budget: usize,
    ) -> usize {
        let (mut taken, mut last) = (0, 0);
        loop {
            let mut chunk = [const { None }; DRAIN_CHUNK];
            last = self.0.with(|q| {
                q.in_transit -= last;
                let places = chunk.iter_mut().take(budget - taken);
                let completed = core::iter::from_fn(|| take::<P>(q.held_mut(), by));
                let now = places.zip(completed).map(|(to, it)| *to = Some(it)).count();
                q.took(now);
                now
            });
            if last == 0 {
                return taken;
            }
            let mut completed = chunk.into_iter().flatten();
            free_completed(engine, || completed.next());
            taken += last;
        }
    }
}

/// Frees the memory of queues in which there is nothing.
fn free_memory<P: Platform>(queues: impl IntoIterator<Item = Option<FlushQueue<CpuResource>>>) {
    let queues = queues.into_iter().flatten();
    queues.for_each(|queue| P::A64::frees(queue.memory()));
}

/// Takes the first thing of `queue`, if `by` completes it.
#[inline]
fn take<P: Platform>(
    queue: &mut FlushQueue<CpuResource>,
    by: &Whole,
) -> Option<Flushed<CpuResource>> {
    P::A64::touches(|| queue.comes_first());
    queue.take(by)
}

/// Frees what `next` has, until it has nothing.
#[inline]
pub(super) fn free_completed<P: Platform, I: Invalidate>(
    engine: &Engine<'_, P, I>,
    mut next: impl FnMut() -> Option<Flushed<CpuResource>>,
) {
    let p = engine.p;
    loop {
        let mut frame = None;
        // the allocator may hold a lock here, under which nothing is freed: so a frame ends what it
        // gets at one go
        let allocs = || next()?.alloc(&mut frame);
        engine.allocator.free_many(p, allocs);
        match frame {
            Some(frame) => p.frame_free(OURS, frame.into_fresh()),
            None => return,
        }
    }
}

impl Inner {
    #[inline(always)]
    fn push<P: Platform>(
        &mut self,
        retire: impl FnOnce() -> Option<Retired<CpuResource>>,
    ) -> Result<Queued, NotQueued> {
        let place = self.queue.place().ok_or(NotQueued::Full)?;
        let put = place.put(retire().ok_or(NotQueued::Declined)?);
        debug_assert!(put.is_ok(), "there is room, and it is of this domain");
        P::A64::touches(|| self.queue.came_last());
        self.to_come -= 1;
        if self.to_come > 0 {
            return Ok(Queued::Waits);
        }
        self.to_come = self.batch;
        Ok(Queued::BatchFull)
    }

    /// Takes the queue, for which one without room stands in.
    fn take_queue(&mut self) -> FlushQueue<CpuResource> {
        let roomless = FlushQueue::roomless(self.queue.key());
        core::mem::replace(&mut self.queue, roomless)
    }

    /// For how many things there is room and should be, and of which domain they are.
    fn wants(&self) -> Result<(u32, u32, DomainKey), Growth> {
        if self.aside.is_some() {
            return Err(Growth::Grown); // closed meanwhile: nothing to be done here
        }
        let (room, most) = (self.queue.room(), self.batch.saturating_mul(2));
        let wanted = room.saturating_mul(4).max(FIRST_ROOM).min(most);
        match room < wanted {
            true => Ok((room, wanted, self.queue.key())),
            false => Err(Growth::Largest),
        }
    }

    /// The whole queue, if `by` completes it, there is a spare one, and it is no more than `most`.
    fn take_all(&mut self, by: &Whole, most: usize) -> Option<FlushQueue<CpuResource>> {
        let things = self.queue.len();
        if things == 0 || things > most || !self.queue.is_completed(by) {
            return None;
        }
        let queue = core::mem::replace(&mut self.queue, self.spare.take()?);
        self.took(things);
        Some(queue)
    }

    /// Where its things are.
    fn held(&self) -> &FlushQueue<CpuResource> {
        self.aside.as_ref().unwrap_or(&self.queue)
    }
    fn held_mut(&mut self) -> &mut FlushQueue<CpuResource> {
        self.aside.as_mut().unwrap_or(&mut self.queue)
    }

    fn took(&mut self, things: usize) {
        self.in_transit += things;
        // what a tick or another CPU's flush freed needs no start any more
        let least = self.batch.saturating_sub(self.queue.len() as u32);
        self.to_come = self.to_come.max(least);
    }
}

impl<P: Platform> Drained<P> for BatchQueue<P> {
    fn complete_all<I: Invalidate>(&self, engine: &Engine<'_, P, I>, by: &Completion) {
        match by.whole() {
            Some(by) => {
                self.complete(engine, &by, usize::MAX);
            }
            None => debug_assert!(false, "{} is not the domain", by.scope()),
        }
    }
    /// Gives up on what a failed invalidation should have completed.
    fn quarantine<I: Invalidate>(&self, engine: &Engine<'_, P, I>, failed: Failed) {
        let mut held = Held::default();
        self.0.with(|q| {
            while let Some(thing) = q.held_mut().give_up(failed.seq) {
                thing.add_to(&mut held);
            }
            q.took(0);
        });
        engine.quarantine.lose(held);
    }
    fn is_empty(&self) -> bool {
        self.0.with(|q| q.held().len() == 0)
    }
    fn in_transit(&self) -> usize {
        self.0.with(|q| q.in_transit)
    }
    fn add_to(&self, held: &mut Held) {
        self.0
            .with(|q| q.held().iter().for_each(|thing| thing.add_to(held)));
    }
}
