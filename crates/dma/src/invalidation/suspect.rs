// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! How long to wait for a unit that may be dead.
//!
//! A unit that let one invalidation run out of time is *suspect*: as long as that one is not
//! answered, a wait looks at its own invalidation once and fails if it is not done. When the old
//! one is answered, be it by an error, the unit moves again, and is waited for as before. So what
//! ends many mappings of a dead device waits out the limit once, not for each of them (P11), and a
//! unit that was only slow is not lost for good.
//!
//! The word that says so is read where a wait did not end at its first look, never before.

use super::*;

/// What a domain remembers of waits that ran out of time.
pub(crate) struct Suspect<P: Platform, K: Copy + Send> {
    /// Whether there is an unanswered invalidation: 0 or 1.
    is: P::A64,
    unanswered: P::Lock<Option<K>>,
}

/// How long to wait, and what is known of the unit.
pub(crate) struct Patience<'s, P: Platform, K: Copy + Send> {
    pub limit: WaitLimit,
    /// `None` where nothing is remembered.
    pub suspect: Option<&'s Suspect<P, K>>,
}

impl<P: Platform, K: Copy + Send> Suspect<P, K> {
    /// A unit that has answered every invalidation so far.
    pub fn new() -> Self {
        Suspect {
            is: P::A64::new(0),
            unanswered: P::Lock::new(None),
        }
    }

    /// Whether the unit still has not answered what it let run out of time.
    pub fn is_silent<I: Invalidate<Token = K>>(&self, unit: &I) -> bool {
        if self.is.load(Ordering::Relaxed) == 0 {
            return false;
        }
        // not under the lock: units have locks of their own
        let Some(token) = self.unanswered.with(|token| *token) else {
            return false;
        };
        if matches!(unit.done(token), Ok(false)) {
            return true;
        }
        self.unanswered.with(|token| *token = None);
        self.is.store(0, Ordering::Relaxed);
        false
    }

    /// The invalidation named `token` was waited for in vain. The oldest one counts: a unit carries
    /// them out in order.
    fn note(&self, token: K) {
        self.unanswered.with(|unanswered| {
            unanswered.get_or_insert(token);
        });
        self.is.store(1, Ordering::Relaxed);
    }
}

impl<P: Platform, K: Copy + Send> Patience<'_, P, K> {
    /// A wait of which nothing is remembered.
    #[inline(always)]
    pub fn of(limit: WaitLimit) -> Self {
        Patience {
            limit,
            suspect: None,
        }
    }

    /// How many turns a wait that begins now may take.
    pub(super) fn turns<I: Invalidate<Token = K>>(&self, unit: &I) -> u64 {
        match self.suspect.is_some_and(|suspect| suspect.is_silent(unit)) {
            true => 0,
            false => self.limit.0,
        }
    }
    pub(super) fn ran_out(&self, token: K) {
        if let Some(suspect) = self.suspect {
            suspect.note(token);
        }
    }
}
