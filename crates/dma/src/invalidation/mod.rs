// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Invalidation: proof that no translation cache holds what was unmapped.
//!
//! # Theory
//!
//! Each domain owns one sequence, `next`. Three events matter:
//!
//! * **retire**: the entries of a thing are cleared; then a full fence; then the thing is stamped
//!   with the value of `next` (call it *s*), and becomes [`Retired`].
//! * **start**: an invalidation takes *n* = `next`, adding one; then a full fence; then it is
//!   submitted.
//! * **complete**: the hardware says that the invalidation is done; the proof is a [`Completion`]
//!   with *n* and the scope that was submitted.
//!
//! A completion *n* completes a stamp *s* iff *n* >= *s* and its [`Scope`] covers what the thing
//! needs. Why this is enough: retire and start are a store-buffering pair. If the stamp's load did
//! not see the start's addition (that is, *s* <= *n*), then by the two fences the unit, which acts
//! after the start's fence, sees the cleared entries; whatever it caches from then on is clean, and
//! what it cached before, the invalidation removes. If the load did see it, *s* > *n*, and the
//! older invalidation proves nothing. The two rules of ATC'15 §5 (no IOVA reuse, no table
//! reclamation before the invalidation is done) then hold in every policy, since
//! `AnyAllocator::free` and the freeing of table frames take [`Flushed`] and nothing else.
//!
//! Memory ordering: both accesses to `next` are relaxed; the fences carry the order.
//! (`tests/it/loom/invalidation.rs` is a model of just this pair, with the unit's read in it; it
//! fails without either fence.)
//!
//! # Two proofs make one
//!
//! An invalidation may be made in pieces, a page at a time. [`Completion::join`] takes two, *n1* of
//! pages *A* and *n2* of the pages *B* just after, for one of *A* and *B* with the lesser of *n1*
//! and *n2*, that reached what both reached. It is no stronger than the two: let a thing stamped
//! *s* <= min(*n1*, *n2*) need pages of both. Each page of it lies in *A* or in *B*, and the
//! invalidation of that piece began after the stamp, so from its completion on no cache holds that
//! page's leaf nor, if it reached walk caches, an entry on the way to it; and as the entries in
//! memory are cleared nothing comes back, whatever order the pieces are in and whatever lies
//! between them. All its pages clean is what an invalidation of the whole would have proved. A
//! stamp taken between the two is later than the lesser number, and is completed by neither. Ranges
//! with a gap do not join, since a scope is one range; nor does the scope of a whole domain, which
//! needs no help.
//!
//! Several things may be completed by one invalidation with one fence, which may be asked for its
//! answer later: see `together`.
//!
//! # Use before flush does not compile
//!
//! An IOVA is released against a flush:
//!
//! ```
//! # use ioatlas_dma::{invalidation::*, iova::*, platform::*, translator::Uncached, units::*};
//! # use ioatlas_host::*;
//! # let p = &Host::new(HostConfig::default().frames(0));
//! # let (unit, limit) = (Uncached::<Host>::new(), WaitLimit::default());
//! # let sequence = unsafe { FlushSequence::new(p) }; // nothing is ever translated here
//! # let aperture = IovaRange::new(IovaPage(0), PageCount(64));
//! let allocator = Rbtree::new(aperture);
//! let alloc = allocator.alloc(p, &Request::pages(PageCount(1)))?;
//! let scope = Scope::leaves(alloc.range());
//! let retired = sequence.retire(p, alloc, scope);
//! let completion = sequence.flush(p, &unit, DomainId(1), scope, limit).unwrap();
//! let flushed = retired.complete(&completion).unwrap();
//! allocator.free(p, CpuIndex(0), flushed);
//! # Ok::<(), AllocError>(())
//! ```
//!
//! What is only retired is not taken:
//!
//! ```compile_fail,E0308
//! # use ioatlas_dma::{invalidation::*, iova::*, platform::*, translator::Uncached, units::*};
//! # use ioatlas_host::*;
//! # let p = &Host::new(HostConfig::default().frames(0));
//! # let (unit, limit) = (Uncached::<Host>::new(), WaitLimit::default());
//! # let sequence = unsafe { FlushSequence::new(p) }; // nothing is ever translated here
//! # let aperture = IovaRange::new(IovaPage(0), PageCount(64));
//! let allocator = Rbtree::new(aperture);
//! let alloc = allocator.alloc(p, &Request::pages(PageCount(1)))?;
//! let scope = Scope::leaves(alloc.range());
//! let retired = sequence.retire(p, alloc, scope);
//! let completion = sequence.flush(p, &unit, DomainId(1), scope, limit).unwrap();
//! let flushed = retired;
//! allocator.free(p, CpuIndex(0), flushed);
//! # Ok::<(), AllocError>(())
//! ```
//!
//! And what was completed is gone:
//!
//! ```compile_fail,E0382
//! # use ioatlas_dma::{invalidation::*, iova::*, platform::*, translator::Uncached, units::*};
//! # use ioatlas_host::*;
//! # let p = &Host::new(HostConfig::default().frames(0));
//! # let (unit, limit) = (Uncached::<Host>::new(), WaitLimit::default());
//! # let sequence = unsafe { FlushSequence::new(p) }; // nothing is ever translated here
//! # let aperture = IovaRange::new(IovaPage(0), PageCount(64));
//! let allocator = Rbtree::new(aperture);
//! let alloc = allocator.alloc(p, &Request::pages(PageCount(1)))?;
//! let scope = Scope::leaves(alloc.range());
//! let retired = sequence.retire(p, alloc, scope);
//! let completion = sequence.flush(p, &unit, DomainId(1), scope, limit).unwrap();
//! let flushed = retired.complete(&completion).unwrap();
//! allocator.free(p, CpuIndex(0), flushed);
//! let again = retired.get();
//! # Ok::<(), AllocError>(())
//! ```
//!
//! # A unit that does not answer
//!
//! Each wait is bounded, and a domain whose unit let one wait run out of time no longer waits until
//! the unit has answered that one: see `suspect`.
//!
//! Not handled: a unit that says "done" and is not. The software unit's oracle detects it (P13),
//! nothing here can.

mod combining;
mod flush_queue;
mod invalidate;
mod ranges;
mod retired;
mod scope;
mod suspect;
mod together;

pub use combining::{CombinedToken, Combining, CombiningConfig};
pub(crate) use flush_queue::{FlushQueue, Whole};
pub use invalidate::{Invalidate, InvalidateError, OnMap};
pub use retired::{CompleteError, Completion, DomainKey, Flushed, Retired, Seq};
pub use scope::{Caches, Scope};
pub(crate) use suspect::{Patience, Suspect};
pub(crate) use together::{Submitted, Together};

use crate::{platform::*, units::*};

/// The sequence of one domain.
pub struct FlushSequence<P: Platform> {
    /// Alone on its lines: each unmap reads it, and each start of an invalidation takes
    /// it from all CPUs.
    next: CachePadded<P::A64>,
    key: DomainKey,
}

/// An invalidation under way.
#[must_use = "an invalidation that is not waited for proves nothing"]
#[derive(Clone, Copy, Debug)]
pub struct Started<K> {
    token: K,
    seq: Seq,
    scope: Scope,
}

impl<K> Started<K> {
    /// Its number in the sequence.
    pub fn seq(&self) -> Seq {
        self.seq
    }
}

/// An invalidation that failed. What it should have freed is to be quarantined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failed {
    /// Things stamped up to here were waiting for it.
    pub seq: Seq,
    /// Why the invalidation failed.
    pub cause: InvalidateError,
}

impl<P: Platform> FlushSequence<P> {
    /// A new sequence, with a key that no other ever had.
    ///
    /// # Safety
    /// What a sequence completes counts as being in no cache, and a frame that is completed may
    /// become anything. So its owner sees to it, for as long as it is used, that
    ///
    /// * what is given to [`retire`](Self::retire) has been cleared wherever it was, and `need`
    ///   names all that caches may hold of it;
    /// * [`start`](Self::start) and [`flush`](Self::flush) are given the unit in whose caches that
    ///   may be, and the id by which it tags them;
    /// * what was started is waited for, and polled, with the sequence and the unit that
    ///   it was started with.
    ///
    /// (Nothing checks that but the software unit's oracle: a unit is not known by its type. A
    /// [`Domain`](crate::domain::Domain) has a sequence of its own, which it shows to nothing.)
    ///
    /// ```
    /// # use ioatlas_dma::{invalidation::*, platform::*};
    /// # use ioatlas_host::*;
    /// # let p = &Host::new(HostConfig::default().frames(1));
    /// // SAFETY: nothing is ever translated here.
    /// let sequence = unsafe { FlushSequence::new(p) };
    /// # assert_eq!(sequence.started(), 0);
    /// ```
    ///
    /// A frame does not be freed by any unit that says "done", of any domain:
    ///
    /// ```compile_fail,E0133
    /// # use ioatlas_dma::{invalidation::*, platform::*};
    /// # use ioatlas_host::*;
    /// # let p = &Host::new(HostConfig::default().frames(1));
    /// let sequence = FlushSequence::new(p);
    /// # assert_eq!(sequence.started(), 0);
    /// ```
    #[allow(unsafe_code)] // a promise of its caller's
    pub unsafe fn new(p: &P) -> Self {
        Self::of_domain(p)
    }

    /// For a domain, which keeps that promise.
    pub(crate) fn of_domain(p: &P) -> Self {
        FlushSequence {
            next: CachePadded(P::A64::new(0)),
            key: DomainKey::new(p.unique()),
        }
    }

    /// Tells this sequence from every other.
    pub fn key(&self) -> DomainKey {
        self.key
    }

    /// How many invalidations have been started.
    pub fn started(&self) -> u64 {
        self.next.0.load(Ordering::Relaxed)
    }

    /// Stamps `what`, whose entries the caller has just cleared. Contains the full fence.
    #[inline]
    pub fn retire<T>(&self, p: &P, what: T, need: Scope) -> Retired<T> {
        p.fence(Ordering::SeqCst);
        let seq = Seq(self.next.0.load(Ordering::Relaxed));
        Retired::new(what, self.key, seq, need)
    }

    /// Starts an invalidation of `scope`, which may be asked for its answer at any later time: it
    /// is [submitted unattended](Invalidate::submit_unattended). It completes everything within the
    /// scope that was retired before.
    ///
    /// # Errors
    /// What the unit says when it does not take the request.
    pub fn start<I: Invalidate>(
        &self,
        p: &P,
        unit: &I,
        domain: DomainId,
        scope: Scope,
    ) -> Result<Started<I::Token>, Failed> {
        let (token, seq) = self.ask(p, || unit.submit_unattended(domain, scope))?;
        Ok(Started { token, seq, scope })
    }

    /// Begins an invalidation, for which `submit` asks the unit.
    #[inline(always)] // callers have a budget
    fn ask<K>(
        &self,
        p: &P,
        submit: impl FnOnce() -> Result<K, InvalidateError>,
    ) -> Result<(K, Seq), Failed> {
        let seq = self.begin(p);
        let token = submit().map_err(|cause| Failed { seq, cause })?;
        Ok((token, seq))
    }

    /// The number of an invalidation that is submitted next. Contains the full fence.
    #[inline]
    fn begin(&self, p: &P) -> Seq {
        let seq = Seq(self.next.0.fetch_add(1, Ordering::Relaxed));
        p.fence(Ordering::SeqCst);
        seq
    }

    /// Waits until `started` is done, for at most `limit` turns of [`Platform::relax`].
    ///
    /// # Errors
    /// What the unit says, or [`InvalidateError::TimedOut`].
    pub fn wait<I: Invalidate>(
        &self,
        p: &P,
        unit: &I,
        started: Started<I::Token>,
        limit: WaitLimit,
    ) -> Result<Completion, Failed> {
        self.wait_with(p, unit, started, &Patience::of(limit))
    }

    /// The same, for a domain, which remembers whether its unit answers.
    #[inline(always)] // the strict policy's way
    pub(crate) fn wait_with<I: Invalidate>(
        &self,
        p: &P,
        unit: &I,
        started: Started<I::Token>,
        patience: &Patience<'_, P, I::Token>,
    ) -> Result<Completion, Failed> {
        self.await_done(p, unit, started.token, started.seq, patience)?;
        Ok(Completion::new(self.key, started.seq, started.scope))
    }

    /// Waits until the invalidation with number `seq`, which the unit calls `token`, is done.
    #[inline(always)] // most are done at the first look
    fn await_done<I: Invalidate>(
        &self,
        p: &P,
        unit: &I,
        token: I::Token,
        seq: Seq,
        patience: &Patience<'_, P, I::Token>,
    ) -> Result<(), Failed> {
        match is_done(unit, token, seq)? {
            true => Ok(()),
            false => wait_on(p, unit, token, seq, patience),
        }
    }

    /// The proof, if `started` is done.
    ///
    /// # Errors
    /// What the unit says.
    #[inline]
    pub fn poll<I: Invalidate>(
        &self,
        unit: &I,
        started: &Started<I::Token>,
    ) -> Result<Option<Completion>, Failed> {
        let done = is_done(unit, started.token, started.seq)?;
        Ok(done.then(|| Completion::new(self.key, started.seq, started.scope)))
    }

    /// Starts an invalidation, and waits for it.
    ///
    /// # Errors
    /// As [`start`](Self::start) and [`wait`](Self::wait).
    pub fn flush<I: Invalidate>(
        &self,
        p: &P,
        unit: &I,
        domain: DomainId,
        scope: Scope,
        limit: WaitLimit,
    ) -> Result<Completion, Failed> {
        self.flush_with(p, unit, domain, scope, &Patience::of(limit))
    }

    /// The same, for a domain, which remembers whether its unit answers.
    #[inline(always)] // the strict policy's way, which nothing else may lengthen
    pub(crate) fn flush_with<I: Invalidate>(
        &self,
        p: &P,
        unit: &I,
        domain: DomainId,
        scope: Scope,
        patience: &Patience<'_, P, I::Token>,
    ) -> Result<Completion, Failed> {
        let (token, seq) = self.ask(p, || unit.submit(domain, scope))?;
        self.wait_with(p, unit, Started { token, seq, scope }, patience)
    }

    /// Retires `what`, whose entries the caller has just cleared, and flushes it at once, with one
    /// fence where [`retire`](Self::retire) and [`flush`](Self::flush) have two: that of the start
    /// comes after the clearing, too, and so the unit sees the entries cleared. No other
    /// completion would prove that, for there is no fence between clearing and number; so none is
    /// ever held against it.
    ///
    /// # Errors
    /// As [`flush`](Self::flush). What comes back is completed by no completion at all, and
    /// is to be quarantined.
    #[inline]
    pub(crate) fn flush_retired<T, I: Invalidate>(
        &self,
        p: &P,
        unit: &I,
        domain: DomainId,
        what: T,
        need: Scope,
        patience: &Patience<'_, P, I::Token>,
    ) -> Result<Flushed<T>, (Retired<T>, Failed)> {
        match self.flush_with(p, unit, domain, need, patience) {
            Ok(_) => Ok(Flushed::by_its_own(what)),
            Err(failed) => {
                let never = Seq(u64::MAX);
                Err((Retired::new(what, self.key, never, need), failed))
            }
        }
    }
}

#[inline]
fn is_done<I: Invalidate>(unit: &I, token: I::Token, seq: Seq) -> Result<bool, Failed> {
    unit.done(token).map_err(|cause| Failed { seq, cause })
}

#[inline(never)]
fn wait_on<P: Platform, I: Invalidate>(
    p: &P,
    unit: &I,
    token: I::Token,
    seq: Seq,
    patience: &Patience<'_, P, I::Token>,
) -> Result<(), Failed> {
    let turns = patience.turns(unit);
    for _ in 0..turns {
        p.relax();
        if is_done(unit, token, seq)? {
            return Ok(());
        }
    }
    // what was looked at once says nothing of the unit, and may be younger than its answer to what
    // had run out of time
    if turns > 0 {
        patience.ran_out(token);
    }
    let cause = InvalidateError::TimedOut { turns };
    Err(Failed { seq, cause })
}

/// How many turns of [`Platform::relax`] to wait for an invalidation before it counts as lost.
///
/// The core reads no clock, so the bound is in turns. The default, 2^26, is about two seconds of
/// `pause`, and longer where a turn asks the hardware too.
///
/// A domain waits as long as this for a dead unit once, not for each of its mappings: until the
/// unit has answered what it let run out of time, further waits look once and fail with
/// [`InvalidateError::TimedOut`] after 0 turns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaitLimit(pub u64);

impl WaitLimit {
    /// 2^26 turns.
    pub const DEFAULT: Self = WaitLimit(1 << 26);
}

impl Default for WaitLimit {
    fn default() -> Self {
        Self::DEFAULT
    }
}
