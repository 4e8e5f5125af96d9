// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A unit that answers late.
//!
//! # Theory
//!
//! [`Late`] hands every request to the unit under it, and says "done" no earlier than a latency
//! after it has taken the request. It is *serial*, as an invalidation queue is: a request is taken
//! when the one before is answered ([`Answers`]), so threads that wait for it wait for each other.
//! One submission takes one latency, whatever it covers: that of one wait descriptor.
//!
//! It needs no thread. When a request will be answered is known when it is made, so those who wait
//! compare that moment with the clock. A thread of its own would be no truer, and on a machine with
//! as many CPUs as there are threads that map it would take theirs.
//!
//! Memory ordering: that moment carries none; what orders is the unit underneath.

use ioatlas_dma::{
    invalidation::{Caches, Invalidate, InvalidateError, OnMap, Scope},
    platform::{Atomic64, Authority, Ordering, Platform},
    table::TableShape,
    translator::{AttachError, RemappingUnit, TransientHint},
    units::*,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// When a serial unit answers, in nanoseconds.
pub struct Answers<P: Platform> {
    latency: u64,
    /// When the last request taken will be answered.
    last: P::A64,
}

impl<P: Platform> Answers<P> {
    /// Of a unit that takes so long for each request.
    pub fn new(latency: Duration) -> Self {
        Answers {
            latency: u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX),
            last: Atomic64::new(0),
        }
    }
    /// When a request made at `now` is answered.
    pub fn to(&self, now: u64) -> u64 {
        let mut last = self.last.load(Ordering::Relaxed);
        loop {
            let at = last.max(now).saturating_add(self.latency);
            let order = Ordering::Relaxed;
            match self.last.compare_exchange(last, at, order, order) {
                Ok(_) => return at,
                Err(other) => last = other,
            }
        }
    }
}

/// A unit that takes its time for each request.
pub struct Late<P: Platform, U> {
    inner: U,
    answers: Answers<P>,
    began: Instant,
}

/// A request: that of the unit underneath, and when it is answered.
#[derive(Clone, Copy, Debug)]
pub struct Due<T> {
    inner: T,
    at: u64,
}

impl<P: Platform, U> Late<P, U> {
    /// `inner`, later by `latency`.
    pub fn new(inner: U, latency: Duration) -> Self {
        Late {
            inner,
            answers: Answers::new(latency),
            began: Instant::now(),
        }
    }
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
    fn due<T>(&self, inner: T) -> Due<T> {
        let at = self.answers.to(self.now());
        Due { inner, at }
    }
}

#[allow(unsafe_code)] // a promise
// SAFETY: it says "done" where the one inside does, or later.
unsafe impl<P: Platform, U: Invalidate> Invalidate for Late<P, U> {
    type Token = Due<U::Token>;

    fn submit(&self, domain: DomainId, scope: Scope) -> Result<Self::Token, InvalidateError> {
        Ok(self.due(self.inner.submit(domain, scope)?))
    }
    fn submit_ranges(
        &self,
        domain: DomainId,
        ranges: &[IovaRange],
        caches: Caches,
    ) -> Result<Self::Token, InvalidateError> {
        Ok(self.due(self.inner.submit_ranges(domain, ranges, caches)?))
    }
    fn submit_unattended(
        &self,
        domain: DomainId,
        scope: Scope,
    ) -> Result<Self::Token, InvalidateError> {
        Ok(self.due(self.inner.submit_unattended(domain, scope)?))
    }
    fn submit_ranges_unattended(
        &self,
        domain: DomainId,
        ranges: &[IovaRange],
        caches: Caches,
    ) -> Result<Self::Token, InvalidateError> {
        let inner = &self.inner;
        Ok(self.due(inner.submit_ranges_unattended(domain, ranges, caches)?))
    }
    fn done(&self, token: Self::Token) -> Result<bool, InvalidateError> {
        Ok(self.now() >= token.at && self.inner.done(token.inner)?)
    }
    fn on_map(&self) -> OnMap {
        self.inner.on_map()
    }
    fn flush_write_buffers(&self) -> Result<(), InvalidateError> {
        self.inner.flush_write_buffers()
    }
}

#[allow(unsafe_code)] // a promise
// SAFETY: the one inside does all of it.
unsafe impl<P: Platform, U: RemappingUnit<P>> RemappingUnit<P> for Late<P, U> {
    fn walks(&self, shape: TableShape) -> bool {
        self.inner.walks(shape)
    }
    fn platform(&self) -> Option<&Arc<P>> {
        self.inner.platform()
    }
    fn attach(
        &self,
        by: Authority,
        p: &P,
        device: SourceId,
        domain: DomainId,
        root: PhysPage,
        levels: u32,
    ) -> Result<(), AttachError> {
        self.inner.attach(by, p, device, domain, root, levels)
    }
    fn detach(
        &self,
        by: Authority,
        p: &P,
        device: SourceId,
        domain: DomainId,
    ) -> Result<(), AttachError> {
        self.inner.detach(by, p, device, domain)
    }
    fn largest_leaf(&self) -> u32 {
        self.inner.largest_leaf()
    }
    fn transient_hint(&self) -> TransientHint {
        self.inner.transient_hint()
    }
    fn domain_id(&self, p: &P) -> Option<DomainId> {
        self.inner.domain_id(p)
    }
    fn release_domain_id(&self, by: Authority, p: &P, id: DomainId) {
        self.inner.release_domain_id(by, p, id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ioatlas_host::Host;

    #[test]
    fn requests_are_answered_one_after_the_other() {
        let answers = Answers::<Host>::new(Duration::from_micros(1));
        // idle; busy with that one; busy with both; idle again
        let made = [500, 600, 2_499, 10_000];
        assert_eq!(
            made.map(|now| answers.to(now)),
            [1_500, 2_500, 3_500, 11_000]
        );
        let never = Answers::<Host>::new(Duration::MAX);
        assert_eq!(never.to(1), u64::MAX, "and no overflow");
    }

    #[test]
    fn an_answer_is_never_early() {
        struct Done;
        #[allow(unsafe_code)] // a promise
        // SAFETY: there is no cache.
        unsafe impl Invalidate for Done {
            fn on_map(&self) -> ioatlas_dma::invalidation::OnMap {
                ioatlas_dma::invalidation::OnMap::Nothing
            }
            type Token = ();
            fn submit(&self, _: DomainId, _: Scope) -> Result<(), InvalidateError> {
                Ok(())
            }
            fn done(&self, _: ()) -> Result<bool, InvalidateError> {
                Ok(true)
            }
        }
        let late = Late::<Host, _>::new(Done, Duration::from_micros(50));
        let before = Instant::now();
        let asked = [(); 2].map(|()| late.submit(DomainId(1), Scope::DOMAIN).unwrap());
        for (nth, token) in (1..).zip(asked) {
            while !late.done(token).unwrap() {}
            assert!(before.elapsed() >= Duration::from_micros(50) * nth);
        }
        let never = Late::<Host, _>::new(Done, Duration::MAX);
        let token = never
            .submit_ranges(DomainId(1), &[], Caches::LeavesAndWalks)
            .unwrap();
        assert!(!never.done(token).unwrap());
    }
}
