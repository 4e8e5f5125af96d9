// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Queues of retired things, each of which needs an invalidation of its own: what `macos` and
//! `solaris` keep. (The deferred policies, which flush the domain, have smaller things in
//! `batch.rs`.)
//!
//! A thing is in exactly one queue, or *in transit*: taken out under the lock and not yet freed.
//! Things are taken out under the lock, up to 16 at a time, and completed without it. They leave in
//! the order in which they came, but for those that [`RetiredQueue::take_newest`] picks. That is
//! nearly the order of their stamps (a CPU may be overtaken between stamp and push): what stands
//! behind a younger one leaves with it, later than it could.
//!
//! Each thing remembers the CPU that unmapped it, its *origin*, so any CPU that drains sends it
//! there.
//!
//! Memory: room doubles where a queue is full, up to the most that it may have.
//!
//! Locking: one lock a queue, taken alone, never held while waiting, completing or allocating.

use super::*;
use alloc::collections::VecDeque;

/// Queues, each on cache lines of its own.
pub(super) type Queues<P, K> = Box<[CachePadded<RetiredQueue<P, K>>]>;

/// One queue of things, each with a `K` beside it.
pub(super) struct RetiredQueue<P: Platform, K: Send>(P::Lock<Inner<K>>);

/// A retired thing in a queue.
pub(super) struct Item<K> {
    pub origin: CpuIndex,
    pub retired: Retired<Resource>,
    pub beside: K,
}

struct Inner<K> {
    items: VecDeque<Item<K>>,
    most: usize,
    /// Taken out, and not freed yet.
    in_transit: usize,
}

/// Things taken out under the lock at a time, to be freed without it.
const DRAIN_CHUNK: usize = 16;
type DrainChunk<K> = [Option<Item<K>>; DRAIN_CHUNK];

/// Turns to wait for other CPUs' chunks. One is freed within microseconds.
const TRANSIT_TURNS: u32 = 4096;

impl<K> Inner<K> {
    /// Takes up to a chunk of things that `which` names from the front. `origin` of an earlier
    /// chunk are freed now.
    fn pop_while(
        &mut self,
        which: impl Fn(&Item<K>) -> bool,
        most: usize,
        origin: usize,
    ) -> DrainChunk<K> {
        self.in_transit -= origin;
        let mut chunk = [const { None }; DRAIN_CHUNK];
        for place in chunk.iter_mut().take(most) {
            if !self.items.front().is_some_and(&which) {
                break;
            }
            *place = self.items.pop_front();
            self.in_transit += 1;
        }
        chunk
    }
}

impl<P: Platform, K: Send> RetiredQueue<P, K> {
    /// An empty one for at most so many, with room for the first of them.
    pub fn new(first: usize, most: usize) -> Self {
        RetiredQueue(Lock::new(Inner {
            items: VecDeque::with_capacity(first.min(most)),
            most,
            in_transit: 0,
        }))
    }

    /// Puts `item` at the end, with more room if that is what it takes.
    ///
    /// # Errors
    /// It comes back: there are the most that there may be, or the heap has no memory for more.
    #[inline]
    pub fn push(&self, item: Item<K>) -> Result<(), Item<K>> {
        let pushed = self
            .0
            .with(|q| match q.items.len() < q.most.min(q.items.capacity()) {
                true => {
                    q.items.push_back(item);
                    Ok(())
                }
                false => Err(item),
            });
        pushed.or_else(|item| self.push_growing(item))
    }

    /// The memory is allocated without the lock.
    #[cold]
    #[inline(never)]
    fn push_growing(&self, mut item: Item<K>) -> Result<(), Item<K>> {
        let mut larger = VecDeque::new();
        loop {
            let pushed = self.0.with(|q| {
                let full = q.items.capacity().min(q.most);
                if q.items.len() == full {
                    if larger.capacity() <= full {
                        return Err((item, full, q.most));
                    }
                    larger.append(&mut q.items);
                    core::mem::swap(&mut larger, &mut q.items);
                }
                q.items.push_back(item);
                Ok(())
            });
            let Err((back, full, most)) = pushed else {
                return Ok(());
            };
            item = back;
            let wanted = (2 * full + DRAIN_CHUNK).min(most);
            if wanted == full || larger.try_reserve_exact(wanted).is_err() {
                return Err(item);
            }
        }
    }

    /// Gives memory back that is not needed for what is there, to be freed without the lock.
    pub fn shrink(&self, first: usize) {
        let mut smaller = VecDeque::new();
        if smaller.try_reserve_exact(first).is_err() {
            return;
        }
        self.0.with(|q| {
            if q.items.is_empty() && q.items.capacity() > first {
                core::mem::swap(&mut smaller, &mut q.items);
            }
        });
    }

    /// Takes the newest thing that `which` names out of the last `look`. It is not in transit: it
    /// is not on its way to be freed.
    pub fn take_newest(&self, look: usize, which: impl Fn(&Resource) -> bool) -> Option<Item<K>> {
        self.0.with(|q| {
            let last = q.items.iter().rev().take(look);
            let back = last
                .map(|item| which(item.retired.get()))
                .position(|it| it)?;
            q.items.remove(q.items.len() - 1 - back)
        })
    }

    /// Takes things that `which` names out of the front, a chunk at a time and at most `budget`,
    /// and gives them to `each` without the lock; returns how many.
    pub fn take_out(
        &self,
        budget: usize,
        which: impl Fn(&Item<K>) -> bool,
        mut each: impl FnMut(Item<K>),
    ) -> usize {
        let (mut taken, mut last) = (0, 0);
        loop {
            let chunk = self.0.with(|q| q.pop_while(&which, budget - taken, last));
            last = chunk.into_iter().flatten().map(&mut each).count();
            if last == 0 {
                return taken;
            }
            taken += last;
        }
    }

    /// What is beside the first thing.
    pub fn first(&self) -> Option<K>
    where
        K: Copy,
    {
        self.0.with(|q| q.items.front().map(|item| item.beside))
    }
}

impl<P: Platform, K: Copy + Send> RetiredQueue<P, K> {
    /// What is beside the first `N` things.
    pub fn firsts<const N: usize>(&self) -> [Option<K>; N] {
        self.0.with(|q| {
            let mut firsts = [None; N];
            let places = firsts.iter_mut().zip(&q.items);
            places.for_each(|(place, item)| *place = Some(item.beside));
            firsts
        })
    }
}

impl<P: Platform, K: Send> Drained<P> for RetiredQueue<P, K> {
    fn complete_all<I: Invalidate>(&self, engine: &Engine<'_, P, I>, by: &Completion) {
        let stamped_by = |item: &Item<K>| item.retired.seq() <= by.seq();
        self.take_out(usize::MAX, stamped_by, |item| {
            engine.complete(item.origin, item.retired, by);
        });
    }
    fn quarantine<I: Invalidate>(&self, engine: &Engine<'_, P, I>, failed: Failed) {
        let stamped_by = |item: &Item<K>| item.retired.seq() <= failed.seq;
        self.take_out(usize::MAX, stamped_by, |item| {
            engine.quarantine.put(item.retired);
        });
    }
    fn is_empty(&self) -> bool {
        self.0.with(|q| q.items.is_empty())
    }
    fn in_transit(&self) -> usize {
        self.0.with(|q| q.in_transit)
    }
    fn add_to(&self, held: &mut Held) {
        self.0.with(|q| {
            let things = q.items.iter().map(|item| item.retired.get());
            things.for_each(|thing| held.add(thing));
        });
    }
}

/// What can be drained by one flush of its domain.
pub(super) trait Drained<P: Platform> {
    /// Frees what `by`, of the whole domain, completes.
    fn complete_all<I: Invalidate>(&self, engine: &Engine<'_, P, I>, by: &Completion);
    /// Gives up on what a failed invalidation should have completed.
    fn quarantine<I: Invalidate>(&self, engine: &Engine<'_, P, I>, failed: Failed);
    fn is_empty(&self) -> bool;
    /// How many things are taken out, and not freed yet.
    fn in_transit(&self) -> usize;
    /// Counts what it holds.
    fn add_to(&self, held: &mut Held);
}

/// Flushes the domain, and frees everything that is in the queues.
pub(super) fn drain_all<P: Platform, I: Invalidate>(
    queues: &[CachePadded<impl Drained<P>>],
    engine: &Engine<'_, P, I>,
) -> Result<(), Failed> {
    if !all_empty(queues) {
        return flush_all(queues, engine);
    }
    await_transit(queues, engine.p);
    Ok(())
}

/// The same, also where nothing is in the queues.
pub(super) fn flush_all<P: Platform, I: Invalidate>(
    queues: &[CachePadded<impl Drained<P>>],
    engine: &Engine<'_, P, I>,
) -> Result<(), Failed> {
    let flushed = engine.flush(Scope::DOMAIN);
    for CachePadded(queue) in queues {
        match &flushed {
            Ok(completion) => queue.complete_all(engine, completion),
            Err(failed) => queue.quarantine(engine, *failed),
        }
    }
    await_transit(queues, engine.p);
    flushed.map(drop)
}

/// Waits until what others have taken out of the queues is freed, or the caller would find IOVAs
/// missing that are as good as free. The bound is for a caller in an interrupt that hit such a
/// drain on its own CPU.
fn await_transit<P: Platform>(queues: &[CachePadded<impl Drained<P>>], p: &P) {
    for _ in 0..TRANSIT_TURNS {
        if queues.iter().all(|q| q.0.in_transit() == 0) {
            return;
        }
        p.relax();
    }
}

pub(super) fn all_empty<P: Platform>(queues: &[CachePadded<impl Drained<P>>]) -> bool {
    queues.iter().all(|q| q.0.is_empty())
}

pub(super) fn held<P: Platform>(queues: &[CachePadded<impl Drained<P>>]) -> Held {
    let mut held = Held::default();
    queues.iter().for_each(|q| q.0.add_to(&mut held));
    held
}
