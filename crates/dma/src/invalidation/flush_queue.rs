// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Retired things that all wait for an invalidation of their whole domain, as small as they get.
//!
//! A [`Retired`] remembers its domain and what must be invalidated. Things that are flushed by the
//! domain need neither beside each: the queue has the one for all, and an invalidation of the
//! domain covers whatever any of them needs. So what is kept is the thing and its stamp.
//!
//! The proof stays what it was: [`FlushQueue::take`] gives a [`Flushed`] only for a [`Whole`],
//! which is a completion whose scope is the domain, of the queue's own domain, that began at or
//! after the thing's stamp. Things leave from the front, in the order in which they came. As that
//! is the order of their stamps, too, [`FlushQueue::completed`] need look at the newest alone.

use super::*;
use crate::platform::Element;
use alloc::{boxed::Box, vec::Vec};
use core::ops::Range;

/// Proof that an invalidation of a whole domain is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whole {
    key: DomainKey,
    seq: Seq,
}

impl Completion {
    /// As a proof for a whole domain, if that is what it is.
    pub(crate) fn whole(&self) -> Option<Whole> {
        let (key, seq) = self.of();
        self.scope()
            .covers(&Scope::DOMAIN)
            .then_some(Whole { key, seq })
    }
}

/// Retired things of one domain, oldest first, in a ring. Its room is what it was made with.
///
/// Things are stamped in the same critical section that puts them in, so no stamp is lower
/// than the one before.
pub(crate) struct FlushQueue<T> {
    key: DomainKey,
    /// There are things from `first` up to `end`; where that is not beyond it, up to the last
    /// place, and on from the first. None where the place at `first` is empty.
    things: Box<[Option<(T, Seq)>]>,
    first: u32,
    end: u32,
}

/// Room for one thing at the end of a queue.
pub(crate) struct Place<'p, T> {
    to: &'p mut Option<(T, Seq)>,
    end: &'p mut u32,
    key: DomainKey,
}

impl<T> Place<'_, T> {
    /// Puts `retired` there. It comes back if it is another domain's.
    #[inline]
    pub fn put(self, retired: Retired<T>) -> Result<(), Retired<T>> {
        if retired.key() != self.key {
            return Err(retired);
        }
        *self.to = Some(retired.queued());
        *self.end += 1;
        Ok(())
    }
}

/// Things of a queue, oldest first, which an invalidation has completed.
pub(crate) struct Completed<'p, T>(core::slice::IterMut<'p, Option<(T, Seq)>>);

impl<T> Iterator for Completed<'_, T> {
    type Item = Flushed<T>;
    #[inline]
    fn next(&mut self) -> Option<Flushed<T>> {
        let (thing, _) = self.0.next()?.take()?;
        Some(Flushed::by_its_own(thing))
    }
}

impl<T> Drop for Completed<'_, T> {
    /// The places are free, whatever became of the things.
    fn drop(&mut self) {
        self.0.by_ref().for_each(|place| *place = None);
    }
}

impl<T> FlushQueue<T> {
    /// One that is full, always. It allocates nothing.
    pub fn roomless(key: DomainKey) -> Self {
        FlushQueue {
            key,
            things: Box::default(),
            first: 0,
            end: 0,
        }
    }
    /// An empty one with room for so many things; `None` where the heap has no memory for it.
    pub fn with_room(key: DomainKey, room: u32) -> Option<Self> {
        let mut things = Vec::new();
        things.try_reserve_exact(room as usize).ok()?;
        things.resize_with(room as usize, || None);
        Some(FlushQueue {
            things: things.into_boxed_slice(),
            ..Self::roomless(key)
        })
    }
    /// Of which domain its things are.
    pub fn key(&self) -> DomainKey {
        self.key
    }
    /// For how many things it was made.
    pub fn room(&self) -> u32 {
        self.things.len() as u32
    }
    /// Takes all things of `smaller`, in their order. There is none here, and room for them.
    pub fn take_over(&mut self, smaller: &mut Self) {
        debug_assert!(self.key == smaller.key && self.len() == 0);
        let (older, newer) = smaller.places();
        let things = older.chain(newer);
        for (to, from) in self.things.iter_mut().zip(things) {
            *to = smaller.things[from].take();
            self.end += 1;
        }
        (smaller.first, smaller.end) = (0, 0);
    }
    /// The memory of all places, for a platform that [is told](crate::platform::Atomic64::frees)
    /// what is freed.
    pub fn memory(&self) -> &[impl Sized] {
        &self.things
    }
    pub fn len(&self) -> usize {
        let (older, newer) = self.places();
        older.len() + newer.len()
    }
    /// Room for one more, if there is any before the last place; if not, there
    /// may be after [`go_round`](Self::go_round).
    #[inline]
    pub fn place(&mut self) -> Option<Place<'_, T>> {
        let to = self.things.get_mut(self.end as usize)?;
        to.is_none().then_some(Place {
            to,
            end: &mut self.end,
            key: self.key,
        })
    }
    /// After the last place comes the first, if what was there has left.
    pub fn go_round(&mut self) {
        if self.end as usize == self.things.len()
            && self.things.first().is_some_and(Option::is_none)
        {
            self.end = 0;
        }
    }
    /// Where things are, oldest first: two runs of places.
    fn places(&self) -> (Range<usize>, Range<usize>) {
        let (first, end) = (self.first as usize, self.end as usize);
        if self.things.get(first).is_none_or(Option::is_none) {
            return (0..0, 0..0);
        }
        match first < end {
            true => (first..end, 0..0),
            false => (first..self.things.len(), 0..end),
        }
    }
    /// The thing that came last, for a platform that [asks](crate::platform::Atomic64::touches).
    #[inline]
    pub fn came_last(&self) -> Option<Element<'_, impl Sized>> {
        Some((&self.things, self.end.checked_sub(1)? as usize))
    }
    /// The thing that leaves first.
    pub fn comes_first(&self) -> Option<Element<'_, impl Sized>> {
        let first = self.first as usize;
        let there = self.things.get(first)?.is_some();
        there.then_some((&self.things, first))
    }
    /// Shows `each` every thing.
    #[inline]
    pub fn each_element(&self, mut each: impl FnMut(Element<'_, Option<(T, Seq)>>)) {
        let (older, newer) = self.places();
        older.for_each(|at| each((&self.things, at)));
        newer.for_each(|at| each((&self.things, at)));
    }
    /// The things, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let (older, newer) = self.places();
        let things = self.things[older].iter().chain(&self.things[newer]);
        things.flatten().map(|(thing, _)| thing)
    }

    /// Whether `by` completes everything that is here: it completes the newest thing.
    pub fn is_completed(&self, by: &Whole) -> bool {
        let before_end = match self.end {
            0 => self.things.last(),
            end => self.things.get(end as usize - 1),
        };
        let newest = before_end.and_then(Option::as_ref);
        newest.is_none_or(|(_, seq)| *seq <= by.seq) && self.key == by.key
    }

    /// Takes everything, oldest first, if `by` completes it; else nothing. What is left
    /// in either is lost.
    pub fn completed(&mut self, by: &Whole) -> [Completed<'_, T>; 2] {
        let (older, newer) = match self.is_completed(by) {
            true => self.places(),
            false => (0..0, 0..0),
        };
        if !older.is_empty() {
            (self.first, self.end) = (0, 0);
        }
        let (front, back) = self.things.split_at_mut(older.start);
        let runs = [&mut back[..older.len()], &mut front[newer]];
        runs.map(|run| Completed(run.iter_mut()))
    }

    /// Takes the first thing, if `by` proves that no cache holds it.
    #[inline]
    pub fn take(&mut self, by: &Whole) -> Option<Flushed<T>> {
        if self.key != by.key {
            return None;
        }
        self.take_if(|stamp| stamp <= by.seq)
            .map(Flushed::by_its_own)
    }

    /// Takes the first thing if it was stamped by `seq`, because the invalidation with that number
    /// failed. It is never used again.
    pub fn give_up(&mut self, seq: Seq) -> Option<T> {
        self.take_if(|stamp| stamp <= seq)
    }

    #[inline]
    fn take_if(&mut self, which: impl FnOnce(Seq) -> bool) -> Option<T> {
        let first = self.things.get_mut(self.first as usize)?;
        let (thing, _) = first.take_if(|(_, seq)| which(*seq))?;
        self.first += 1;
        if self.first == self.end {
            (self.first, self.end) = (0, 0); // nothing is left
        }
        if self.first as usize == self.things.len() {
            self.first = 0;
        }
        Some(thing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::VecDeque;

    const KEY: DomainKey = DomainKey::new(1);

    fn retired(seq: u64) -> Retired<u64> {
        Retired::new(seq, KEY, Seq(seq), Scope::DOMAIN)
    }
    fn put(flush_queue: &mut FlushQueue<u64>, retired: Retired<u64>) -> bool {
        flush_queue.go_round();
        let place = flush_queue.place();
        place.is_some_and(|place| place.put(retired).is_ok())
    }
    fn done(key: DomainKey, seq: u64) -> Whole {
        let completion = Completion::new(key, Seq(seq), Scope::DOMAIN);
        completion.whole().expect("the domain")
    }

    #[test]
    fn things_leave_by_a_flush_that_began_after_them_and_in_order() {
        let mut flush_queue = FlushQueue::with_room(KEY, 3).expect("memory");
        for seq in [4, 5, 5] {
            assert!(put(&mut flush_queue, retired(seq)), "room");
        }
        assert!(!put(&mut flush_queue, retired(6)), "no room");
        assert!(flush_queue.take(&done(KEY, 3)).is_none());
        assert!(!flush_queue.is_completed(&done(KEY, 4)));
        assert_eq!(
            flush_queue.take(&done(KEY, 4)).map(Flushed::into_inner),
            Some(4)
        );
        assert!(flush_queue.take(&done(KEY, 4)).is_none());
        assert!(flush_queue.is_completed(&done(KEY, 5)));
        assert_eq!(flush_queue.give_up(Seq(4)), None);
        assert_eq!(flush_queue.give_up(Seq(5)), Some(5));
        assert_eq!(flush_queue.len(), 1);
        // what has left makes room for as many
        for seq in [6, 7] {
            assert!(put(&mut flush_queue, retired(seq)), "room");
        }
        assert!(!put(&mut flush_queue, retired(8)), "no room");
        let left = core::iter::from_fn(|| flush_queue.take(&done(KEY, 9)).map(Flushed::into_inner));
        assert_eq!(left.collect::<Vec<_>>(), [5, 6, 7]);
    }

    /// Beside a plain queue: whatever comes and goes, in whatever part, a queue has the same things
    /// in the same order, and all of its room.
    #[test]
    fn however_it_goes_round_a_pile_is_a_queue() {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut below = |n: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 32) % n
        };
        let mut went_round = 0;
        for room in 1..6 {
            let mut flush_queue = FlushQueue::with_room(KEY, room).expect("memory");
            let mut queue = VecDeque::new();
            for seq in 0..2_000 {
                match below(8) {
                    0..4 => {
                        let fits = queue.len() < room as usize;
                        assert_eq!(
                            put(&mut flush_queue, retired(seq)),
                            fits,
                            "{room} {queue:?}"
                        );
                        queue.extend(fits.then_some(seq));
                    }
                    4..7 => {
                        let by = seq - below(seq + 1).min(3);
                        let due = queue.front().is_some_and(|oldest| *oldest <= by);
                        let completed = if due { queue.pop_front() } else { None };
                        let took = flush_queue.take(&done(KEY, by)).map(Flushed::into_inner);
                        assert_eq!(took, completed, "{room}");
                    }
                    _ => {
                        let by = seq - below(seq + 1).min(3);
                        let all = queue.iter().all(|seq| *seq <= by);
                        let completed: Vec<u64> = match all {
                            true => queue.drain(..).collect(),
                            false => Vec::new(),
                        };
                        went_round += u64::from(!flush_queue.places().1.is_empty());
                        let runs = flush_queue.completed(&done(KEY, by));
                        let things = runs.into_iter().flatten().map(Flushed::into_inner);
                        assert_eq!(things.collect::<Vec<_>>(), completed, "{room}");
                    }
                }
                assert!(flush_queue.iter().eq(&queue), "{room}: {queue:?}");
                assert_eq!(flush_queue.len(), queue.len());
                let mut seen = 0;
                flush_queue.each_element(|(places, at)| seen += u64::from(places[at].is_some()));
                assert_eq!(seen, queue.len() as u64);
            }
        }
        assert!(went_round > 100, "{went_round}: the test tests nothing");
    }

    #[test]
    fn other_domains_and_smaller_flushes_prove_nothing() {
        let other = DomainKey::new(2);
        let mut flush_queue = FlushQueue::with_room(KEY, 3).expect("memory");
        let foreign = Retired::new(1, other, Seq(1), Scope::DOMAIN);
        assert!(!put(&mut flush_queue, foreign));
        assert!(put(&mut flush_queue, retired(1)), "room");
        assert!(
            flush_queue.take(&done(other, 9)).is_none()
                && !flush_queue.is_completed(&done(other, 9))
        );
        let pages = IovaRange::new(IovaPage(0), PageCount(u64::MAX));
        let less = [
            Scope::tables(pages),
            Scope {
                pages: None,
                caches: Caches::Leaves,
            },
        ];
        for scope in less {
            assert!(Completion::new(KEY, Seq(9), scope).whole().is_none());
        }
    }
}
