// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Several things that one invalidation completes, with one fence for all of them.
//!
//! # Theory
//!
//! [`FlushSequence::flush_retired`] clears one thing, fences once, invalidates what that thing
//! needs, and frees it by that invalidation and by no other. Here are several things in its place,
//! and the argument is the same one for each of them:
//!
//! * A thing comes in by [`Together::add`] with the pages that it needs, when its entries have been
//!   cleared. So whatever is inside when [`FlushSequence::flush_together`] begins was cleared
//!   before, and the fence of the start lies between: the unit sees it cleared.
//! * What is invalidated is not said by the caller, but is what the things brought along. Their
//!   ranges are kept as a set of pages ([`Ranges`]): merging forgets none, and adds none but those
//!   of the things. Walk caches are invalidated too, for all, as soon as one of them needs it. So
//!   what each thing needs is covered.
//! * All ranges are one request to the unit with one answer
//!   ([`Invalidate::submit_ranges`]), so where the answer is yes every range is done.
//! * [`Flushed`] comes out of that one call alone, and the borrow keeps anything from coming in
//!   between the request and its answer. No stamp is taken, and so nothing else ever completes
//!   these things. After a failure they are still inside, to be given up; or flushed by another
//!   invalidation, which begins later and proves as much.
//!
//! That the caller has cleared what it adds is for the caller to say, as everywhere: see
//! [`FlushSequence::new`].
//!
//! # The answer may be asked for later
//!
//! [`FlushSequence::submit_together`] takes the things and returns them as [`Submitted`], which has
//! no way in: so what is inside when the answer comes was inside when the request was made, by
//! ownership where it was by a borrow above. [`Flushed`] comes out by [`Submitted::poll`] and
//! [`Submitted::wait`] alone, after the answer to just that request. Nothing in the argument says
//! when it is asked for, nor on which CPU: once a unit has said yes it always does
//! ([`Invalidate::done`]), and nothing is mapped at pages whose allocation is inside, so that they
//! come into no cache again. Other invalidations may begin and end meanwhile; as there is no stamp,
//! none of them completes what is inside, and none waits for it.

use super::{ranges::Ranges, *};

/// At most `N` things, whose entries are cleared. See the module's theory.
pub(crate) struct Together<T, const N: usize> {
    things: [Option<T>; N],
    held: usize,
    pages: Ranges<N>,
    caches: Caches,
}

impl<T, const N: usize> Together<T, N> {
    pub const fn new() -> Self {
        Together {
            things: [const { None }; N],
            held: 0,
            pages: Ranges::new(),
            caches: Caches::Leaves,
        }
    }

    /// Adds `what`, whose entries the caller has just cleared, and what must be invalidated for it.
    /// It comes back where there is no room.
    #[inline(always)] // once for each mapping
    pub fn add(&mut self, what: T, pages: IovaRange, caches: Caches) -> Result<(), T> {
        if self.held == N || !self.also(pages, caches) {
            return Err(what);
        }
        self.things[self.held] = Some(what);
        self.held += 1;
        Ok(())
    }

    /// Has pages invalidated of which nothing becomes free; returns whether there was room.
    #[inline(always)]
    pub fn also(&mut self, pages: IovaRange, caches: Caches) -> bool {
        let room = self.pages.add(pages);
        if room {
            self.caches = self.caches.max(caches);
        }
        room
    }

    /// Whether there is nothing to invalidate.
    pub fn is_empty(&self) -> bool {
        self.pages.as_slice().is_empty()
    }

    /// Gives up on all of them for good, because their invalidation failed. They are never used
    /// again.
    pub fn give_up(&mut self) -> impl Iterator<Item = T> + '_ {
        self.take()
    }

    /// Looks at them.
    pub fn things(&self) -> impl Iterator<Item = &T> {
        self.things[..self.held].iter().flatten()
    }

    fn take(&mut self) -> impl Iterator<Item = T> + '_ {
        let held = core::mem::take(&mut self.held);
        self.pages.clear();
        self.caches = Caches::Leaves;
        self.things[..held].iter_mut().filter_map(Option::take)
    }
}

/// Things whose invalidation has been asked for. No others come to them. See the module's theory.
#[must_use = "what is never asked for its answer is never free"]
pub(crate) struct Submitted<T, K, const N: usize> {
    together: Together<T, N>,
    token: K,
    seq: Seq,
}

impl<T, K: Copy + Send, const N: usize> Submitted<T, K, N> {
    /// The things, if the unit has done what it was asked for; it is not waited for.
    ///
    /// # Errors
    /// What the unit says. The things stay where they are.
    pub fn poll<I: Invalidate<Token = K>>(
        &mut self,
        unit: &I,
    ) -> Result<Option<impl Iterator<Item = Flushed<T>> + use<'_, T, K, I, N>>, Failed> {
        let done = is_done(unit, self.token, self.seq)?;
        Ok(done.then(|| self.together.take().map(Flushed::by_its_own)))
    }

    /// The things, when the unit has done it.
    ///
    /// # Errors
    /// As [`FlushSequence::wait`]. The things stay where they are.
    pub fn wait<P: Platform, I: Invalidate<Token = K>>(
        &mut self,
        p: &P,
        unit: &I,
        patience: &Patience<'_, P, K>,
    ) -> Result<impl Iterator<Item = Flushed<T>> + use<'_, T, K, P, I, N>, Failed> {
        if !is_done(unit, self.token, self.seq)? {
            wait_on(p, unit, self.token, self.seq, patience)?;
        }
        Ok(self.together.take().map(Flushed::by_its_own))
    }

    /// As [`Together::give_up`].
    pub fn give_up(&mut self) -> impl Iterator<Item = T> + '_ {
        self.together.give_up()
    }
}

impl<P: Platform> FlushSequence<P> {
    /// The first half of [`flush_together`](Self::flush_together), by a request that is
    /// [submitted unattended](Invalidate::submit_unattended).
    ///
    /// # Errors
    /// As [`start`](Self::start). The things come back.
    #[allow(clippy::result_large_err)] // the things, and nothing is allocated to box them
    pub(crate) fn submit_together<T, I: Invalidate, const N: usize>(
        &self,
        p: &P,
        unit: &I,
        domain: DomainId,
        together: Together<T, N>,
    ) -> Result<Submitted<T, I::Token, N>, (Together<T, N>, Failed)> {
        let (ranges, caches) = (together.pages.as_slice(), together.caches);
        match self.ask(p, || unit.submit_ranges_unattended(domain, ranges, caches)) {
            Ok((token, seq)) => Ok(Submitted {
                together,
                token,
                seq,
            }),
            Err(failed) => Err((together, failed)),
        }
    }

    /// Invalidates what all that is in `together` needs, by one request, and waits for it.
    ///
    /// # Errors
    /// As [`flush`](Self::flush). The things stay where they are.
    pub(crate) fn flush_together<'t, T, I: Invalidate, const N: usize>(
        &self,
        p: &P,
        unit: &I,
        domain: DomainId,
        together: &'t mut Together<T, N>,
        patience: &Patience<'_, P, I::Token>,
    ) -> Result<impl Iterator<Item = Flushed<T>> + use<'t, T, P, I, N>, Failed> {
        let (ranges, caches) = (together.pages.as_slice(), together.caches);
        let (token, seq) = self.ask(p, || unit.submit_ranges(domain, ranges, caches))?;
        self.await_done(p, unit, token, seq, patience)?;
        Ok(together.take().map(Flushed::by_its_own))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::one_cpu::OneCpu;
    use alloc::vec::Vec;
    use std::sync::Mutex;

    /// Remembers what it was asked.
    #[derive(Default)]
    struct Unit {
        requests: Mutex<Vec<(Vec<IovaRange>, Caches)>>,
        is_dead: bool,
    }

    #[allow(unsafe_code)] // a promise
    // SAFETY: there is no cache.
    unsafe impl Invalidate for Unit {
        fn on_map(&self) -> crate::invalidation::OnMap {
            crate::invalidation::OnMap::Nothing
        }
        type Token = ();
        fn submit(&self, _: DomainId, scope: Scope) -> Result<(), InvalidateError> {
            panic!("{scope}: not as ranges");
        }
        fn submit_ranges(
            &self,
            _: DomainId,
            ranges: &[IovaRange],
            caches: Caches,
        ) -> Result<(), InvalidateError> {
            let mut requests = self.requests.lock().expect("no panic");
            requests.push((ranges.to_vec(), caches));
            Ok(())
        }
        fn done(&self, (): ()) -> Result<bool, InvalidateError> {
            Ok(!self.is_dead)
        }
    }

    fn range(first: u64, pages: u64) -> IovaRange {
        IovaRange::new(IovaPage(first), PageCount(pages))
    }

    fn flush<const N: usize>(
        unit: &Unit,
        together: &mut Together<u64, N>,
    ) -> Result<Vec<u64>, Failed> {
        let p = &OneCpu::new(0);
        let sequence = FlushSequence::of_domain(p);
        let patience = Patience::of(WaitLimit(5));
        let flushed = sequence.flush_together(p, unit, DomainId(1), together, &patience)?;
        Ok(flushed.map(Flushed::into_inner).collect())
    }

    /// P1: what any of them needs is in the one request, neighbours merged, gaps left.
    #[test]
    fn one_request_names_the_pages_of_all() {
        let unit = Unit::default();
        let mut together = Together::<u64, 8>::new();
        let leaves = Caches::Leaves;
        for (thing, pages) in [(1, range(8, 1)), (2, range(5, 2)), (3, range(7, 1))] {
            assert_eq!(together.add(thing, pages, leaves), Ok(()));
        }
        assert_eq!(together.add(4, range(10, 1), leaves), Ok(()));
        assert!(together.also(range(2, 1), leaves));
        assert_eq!(flush(&unit, &mut together), Ok([1, 2, 3, 4].into()));
        assert!(together.is_empty());
        // P4: as soon as one of them needs the walk caches flushed, they are
        for (thing, caches) in [(5, leaves), (6, Caches::LeavesAndWalks), (7, leaves)] {
            assert_eq!(together.add(thing, range(20, 1), caches), Ok(()));
        }
        assert_eq!(flush(&unit, &mut together), Ok([5, 6, 7].into()));
        assert_eq!(together.add(8, range(9, 1), leaves), Ok(()));
        assert_eq!(flush(&unit, &mut together), Ok([8].into()));
        let requests = [
            ([range(2, 1), range(5, 4), range(10, 1)].to_vec(), leaves),
            ([range(20, 1)].to_vec(), Caches::LeavesAndWalks),
            ([range(9, 1)].to_vec(), leaves),
        ];
        assert_eq!(*unit.requests.lock().expect("no panic"), requests);
    }

    #[test]
    fn after_a_failure_all_are_inside_still() {
        let unit = Unit {
            is_dead: true,
            ..Unit::default()
        };
        let mut together = Together::<u64, 2>::new();
        for thing in [1, 2] {
            assert_eq!(together.add(thing, range(thing, 1), Caches::Leaves), Ok(()));
        }
        assert_eq!(together.add(3, range(3, 1), Caches::Leaves), Err(3), "full");
        let failed = flush(&unit, &mut together).expect_err("the unit is dead");
        assert_eq!(failed.cause, InvalidateError::TimedOut { turns: 5 });
        assert_eq!(together.give_up().collect::<Vec<_>>(), [1, 2]);
        assert!(together.is_empty());
        assert_eq!(together.give_up().count(), 0);
    }
}
