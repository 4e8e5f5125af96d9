// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `Retired<T>` -> `complete(&Completion)` -> `Flushed<T>`: use before flush cannot be written
//! down. Within the crate there are three more ways to the last, each with its argument.

use super::Scope;
use crate::{
    platform::{FreshFrame, TableFrame},
    units::{IovaRange, PageCount},
};
use core::fmt;

/// Tells the sequences of domains apart, for good; unlike the hardware's domain id
/// it is never reused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DomainKey(u64);

impl DomainKey {
    pub(super) const fn new(unique: u64) -> Self {
        DomainKey(unique)
    }
}

/// A place in a domain's sequence.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Seq(pub(super) u64);

/// Unmapped, but perhaps still in some translation cache.
#[must_use = "a dropped `Retired` leaks its resource"]
#[derive(Debug)]
pub struct Retired<T> {
    what: T,
    key: DomainKey,
    seq: Seq,
    need: Scope,
}

/// In no translation cache any more.
#[must_use = "a dropped `Flushed` leaks its resource"]
#[derive(Debug)]
pub struct Flushed<T>(T);

/// Proof that an invalidation that began at sequence number `seq` is done.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    key: DomainKey,
    seq: Seq,
    scope: Scope,
}

/// Why a completion does not complete a retired thing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CompleteError {
    /// The completion is of another domain's sequence.
    #[error("the completion belongs to another domain")]
    ForeignDomain,
    /// The invalidation began before the thing was retired.
    #[error("the invalidation (number {began}) began before the unmap (stamp {stamp})")]
    Older {
        /// The number of the invalidation.
        began: Seq,
        /// The stamp of the thing.
        stamp: Seq,
    },
    /// The invalidation was of other pages, or left the walk caches alone.
    #[error("the invalidation covered {covered}, but {need} is needed")]
    NotCovered {
        /// The scope that was invalidated.
        covered: Scope,
        /// The scope that would have to be.
        need: Scope,
    },
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl Completion {
    pub(super) fn new(key: DomainKey, seq: Seq, scope: Scope) -> Self {
        Completion { key, seq, scope }
    }
    /// Whose it is, and its number.
    pub(super) fn of(&self) -> (DomainKey, Seq) {
        (self.key, self.seq)
    }
    /// When the invalidation began.
    pub fn seq(&self) -> Seq {
        self.seq
    }
    /// The scope that was invalidated.
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// One proof of two, where `next` is of the pages just after those of `self`: of both ranges,
    /// of what both reached, as of the earlier beginning. `None` where they are of different
    /// domains, do not adjoin, or one is of a whole domain.
    ///
    /// Why it proves no more than the two did: see the theory of [`crate::invalidation`].
    pub fn join(self, next: Completion) -> Option<Completion> {
        let (ours, theirs) = (self.scope.pages?, next.scope.pages?);
        let pages = PageCount(ours.pages.0.checked_add(theirs.pages.0)?);
        let adjoin = ours.end() == theirs.first && self.key == next.key;
        adjoin.then(|| Completion {
            key: self.key,
            seq: self.seq.min(next.seq),
            scope: Scope {
                pages: Some(IovaRange::new(ours.first, pages)),
                caches: self.scope.caches.min(next.scope.caches),
            },
        })
    }
}

impl<T> Retired<T> {
    pub(super) fn new(what: T, key: DomainKey, seq: Seq, need: Scope) -> Self {
        Retired {
            what,
            key,
            seq,
            need,
        }
    }

    /// The key of its domain.
    #[inline]
    pub(super) fn key(&self) -> DomainKey {
        self.key
    }
    /// For a [`FlushQueue`](super::FlushQueue) of its domain, which keeps the stamp and asks for no
    /// less than the whole domain.
    #[inline]
    pub(super) fn queued(self) -> (T, Seq) {
        (self.what, self.seq)
    }

    /// Turns into [`Flushed`] if `by` proves that no cache holds it.
    ///
    /// # Errors
    /// Gives `self` back with the reason.
    pub fn complete(self, by: &Completion) -> Result<Flushed<T>, (Self, CompleteError)> {
        let why = if by.key != self.key {
            CompleteError::ForeignDomain
        } else if by.seq < self.seq {
            CompleteError::Older {
                began: by.seq,
                stamp: self.seq,
            }
        } else if !by.scope.covers(&self.need) {
            CompleteError::NotCovered {
                covered: by.scope,
                need: self.need,
            }
        } else {
            return Ok(Flushed(self.what));
        };
        Err((self, why))
    }

    /// When it was stamped: an invalidation with this number or a later one may complete it.
    pub fn seq(&self) -> Seq {
        self.seq
    }
    /// What must be invalidated before it is flushed.
    pub fn need(&self) -> Scope {
        self.need
    }
    /// Looks at it; it stays retired.
    pub fn get(&self) -> &T {
        &self.what
    }
    /// Gives up on it for good, because its invalidation failed. It is never used again.
    pub(crate) fn quarantine(self) -> T {
        self.what
    }
}

impl Flushed<TableFrame> {
    /// No cache holds a pointer to the frame: the platform may have it back.
    pub fn into_fresh(self) -> FreshFrame {
        FreshFrame::kept(self.into_inner().page())
    }
}

impl<T> Flushed<T> {
    /// Of an invalidation that began after the clearing, covered what was needed, and is complete.
    pub(super) fn by_its_own(what: T) -> Self {
        Flushed(what)
    }
    /// The thing, which stays flushed.
    #[inline]
    pub fn get(&self) -> &T {
        &self.0
    }
    #[inline]
    pub(crate) fn into_inner(self) -> T {
        self.0
    }
    #[inline]
    pub(crate) fn map<U>(self, f: impl FnOnce(T) -> U) -> Flushed<U> {
        Flushed(f(self.0))
    }
    /// The same, for what is one thing or another.
    #[inline]
    pub(crate) fn either<A, B>(
        self,
        f: impl FnOnce(T) -> Result<A, B>,
    ) -> Result<Flushed<A>, Flushed<B>> {
        f(self.0).map(Flushed).map_err(Flushed)
    }
    /// Of a whole each part of which has been flushed, or was never translated: the argument is in
    /// `iova::chunks`.
    pub(crate) fn by_its_parts(what: T) -> Self {
        Flushed(what)
    }
    /// For what no table ever pointed to, nor could: see [`crate::iova::Alone`].
    #[inline]
    pub(crate) fn untranslated(what: T) -> Self {
        Flushed(what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{invalidation::Caches, units::IovaPage};

    fn scope(first: u64, pages: u64, caches: Caches) -> Scope {
        Scope {
            pages: Some(IovaRange::new(IovaPage(first), PageCount(pages))),
            caches,
        }
    }
    fn done(seq: u64, scope: Scope) -> Completion {
        Completion::new(DomainKey(1), Seq(seq), scope)
    }
    fn leaves(first: u64, pages: u64) -> Scope {
        scope(first, pages, Caches::Leaves)
    }

    #[test]
    fn a_joined_proof_settles_what_its_parts_settle_together() {
        let joined = done(4, leaves(8, 1)).join(done(5, leaves(9, 2))).unwrap();
        assert_eq!((joined.seq(), joined.scope()), (Seq(4), leaves(8, 3)));
        let retired = |seq, need| Retired::new((), DomainKey(1), Seq(seq), need);
        assert!(retired(4, leaves(8, 3)).complete(&joined).is_ok());
        assert!(retired(4, leaves(8, 4)).complete(&joined).is_err());
        // retired between the two: the first had begun
        let (_, why) = retired(5, leaves(8, 3)).complete(&joined).unwrap_err();
        assert!(matches!(why, CompleteError::Older { .. }), "{why}");
        // whichever began first
        let joined = done(5, leaves(8, 1)).join(done(4, leaves(9, 1))).unwrap();
        assert_eq!(joined.seq(), Seq(4));
    }

    #[test]
    fn one_part_that_left_walk_caches_alone_leaves_them_unproved() {
        let walks = scope(9, 1, Caches::LeavesAndWalks);
        for (one, two) in [
            (leaves(8, 1), walks),
            (scope(8, 1, walks.caches), leaves(9, 1)),
        ] {
            let joined = done(4, one).join(done(4, two)).unwrap();
            assert_eq!(joined.scope(), leaves(8, 2));
        }
    }

    #[test]
    fn what_does_not_adjoin_does_not_join() {
        let one = done(4, leaves(8, 2));
        for other in [leaves(11, 1), leaves(9, 1), leaves(7, 1), Scope::DOMAIN] {
            assert!(one.join(done(4, other)).is_none(), "{other}");
        }
        assert!(done(4, Scope::DOMAIN).join(one).is_none());
        let foreign = Completion::new(DomainKey(2), Seq(4), leaves(10, 1));
        assert!(one.join(foreign).is_none());
        assert!(one.join(done(4, leaves(10, u64::MAX))).is_none(), "wraps");
    }
}
