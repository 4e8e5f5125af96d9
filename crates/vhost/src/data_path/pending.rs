// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Misses that were asked for and not answered yet, shared by all readers of a cache: what is there
//! is not asked for again.

use crate::cache::*;
use ioatlas_dma::units::*;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A question under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // its fields say it
pub struct PendingMiss {
    pub span: Span,
    pub need: Perm,
    /// When it was asked.
    pub since: TimeNs,
}

/// What became of a miss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// It is to be sent.
    New,
    /// The same, or more, was asked for already.
    Already,
    /// Too many are under way; try again later.
    Full,
}

/// Questions under way, by range and permission. Bounded; ranges are whole pages.
pub struct PendingMisses {
    pending: Mutex<Vec<PendingMiss>>,
    limit: usize,
}

impl PendingMisses {
    /// At most `limit` at once.
    pub fn new(limit: usize) -> Self {
        PendingMisses {
            pending: Mutex::new(Vec::new()),
            limit,
        }
    }
    fn all(&self) -> MutexGuard<'_, Vec<PendingMiss>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes `miss`, unless one under way includes it.
    pub fn ask(&self, miss: &Miss, now: TimeNs) -> Asked {
        let Ok(span) = Span::touched(miss.iova, miss.len) else {
            return Asked::Already; // no message could name it
        };
        let mut all = self.all();
        if includes(&all, span, miss.need) {
            return Asked::Already;
        }
        if all.len() >= self.limit {
            return Asked::Full;
        }
        let need = miss.need;
        all.push(PendingMiss {
            span,
            need,
            since: now,
        });
        Asked::New
    }

    /// Whether one under way includes `miss`. Notes nothing: a caller that is told that a question
    /// is under way may rely on it.
    pub fn includes(&self, miss: &Miss) -> bool {
        let Ok(span) = Span::touched(miss.iova, miss.len) else {
            return true; // as `ask` says
        };
        includes(&self.all(), span, miss.need)
    }

    /// An update came, or was given up: every question of which it answers a part is over; says how
    /// many those are. What of the range is still missing is asked for again by the
    /// reader that needs it.
    pub fn answered(&self, iova: Iova, len: ByteCount, perm: Perm) -> usize {
        let Ok(span) = Span::touched(iova, len) else {
            return 0;
        };
        let mut all = self.all();
        let (before, mut at) = (all.len(), 0);
        // In no order: nothing is moved but the last.
        while let Some(known) = all.get(at) {
            match known.span.and(span).is_some() && covers(perm, known.need) {
                true => drop(all.swap_remove(at)),
                false => at += 1,
            }
        }
        before - all.len()
    }

    /// Gives up what was asked before `since`; says how many those are.
    pub fn expire(&self, since: TimeNs) -> usize {
        let mut all = self.all();
        let before = all.len();
        all.retain(|known| known.since >= since);
        before - all.len()
    }

    /// Gives up everything: the front end is gone.
    pub fn clear(&self) {
        self.all().clear()
    }

    /// When the oldest was asked.
    pub fn oldest(&self) -> Option<TimeNs> {
        self.all().iter().map(|known| known.since).min()
    }

    /// How many questions are under way.
    pub fn len(&self) -> usize {
        self.all().len()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn includes(all: &[PendingMiss], span: Span, need: Perm) -> bool {
    all.iter()
        .any(|known| known.span.contains(span) && covers(known.need, need))
}
