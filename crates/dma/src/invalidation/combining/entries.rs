// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the requests of a round ask for, each on a line of its own.
//!
//! Rounds use two sets in turn, by their number: a round opens when the one before it is taken, and
//! by then the one before that is over, so what is in its set is needed no more. A late submission
//! of that may read some of both; it is one that no request waits for.
//!
//! A request may come late, too: its CPU was stopped after it had joined, its round was submitted
//! as the whole domain, and others have come since. So an entry is *claimed* before it is written,
//! by a request of a later round than it is of, and nothing else writes it until that is done; a
//! request that finds it claimed, or of a later round, writes nothing, and its round is of the
//! whole domain.

use super::*;

/// Requests of a round whose ranges are kept.
pub(super) const RANGES: usize = 8;

/// In the word that says of which round an entry is: it is being written.
const CLAIMED: u64 = 1 << 63;

pub(super) struct Entry<P: Platform> {
    /// The number of the round that it is of, and 1; and [`CLAIMED`].
    of: P::A64,
    first: P::A64,
    /// The pages' count, and in the lowest bit whether walk caches are reached.
    pages_and_caches: P::A64,
}

pub(super) struct Entries<P: Platform>(Box<[CachePadded<Entry<P>>]>);

impl<P: Platform> Entries<P> {
    pub fn new() -> Self {
        let entry = |_| CachePadded(Entry::new());
        Entries((0..2 * RANGES).map(entry).collect())
    }
    /// That of the `nth` request of round `number`, below [`RANGES`].
    pub fn at(&self, number: u64, nth: u64) -> &Entry<P> {
        let set = number as usize % 2;
        &self.0[set * RANGES + nth as usize].0
    }
}

impl<P: Platform> Entry<P> {
    fn new() -> Self {
        Entry {
            of: P::A64::new(0),
            first: P::A64::new(0),
            pages_and_caches: P::A64::new(0),
        }
    }

    /// What a request of round `number` asks for, unless the entry is another's.
    pub fn fill(&self, number: u64, pages: IovaRange, caches: Caches) {
        let (of, before) = (number + 1, self.of.load(Ordering::Relaxed));
        if before & CLAIMED != 0 || before >= of {
            return;
        }
        let claimed = self.of.compare_exchange(
            before,
            of | CLAIMED,
            // what is written next is written after the claim
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        if claimed.is_err() {
            return;
        }
        let walks = u64::from(caches == Caches::LeavesAndWalks);
        self.first.store(pages.first.0, Ordering::Relaxed);
        self.pages_and_caches
            .store(pages.pages.0 << 1 | walks, Ordering::Relaxed);
        self.of.store(of, Ordering::Release);
    }

    /// That again.
    pub fn read(&self, number: u64) -> Read {
        let of = self.of.load(Ordering::Acquire);
        if of & CLAIMED != 0 && of & !CLAIMED != number + 1 {
            return Read::Never;
        }
        if of != number + 1 {
            return Read::NotYet;
        }
        let first = IovaPage(self.first.load(Ordering::Relaxed));
        let pages = self.pages_and_caches.load(Ordering::Relaxed);
        let caches = match pages & 1 {
            0 => Caches::Leaves,
            _ => Caches::LeavesAndWalks,
        };
        Read::Asked(IovaRange::new(first, PageCount(pages >> 1)), caches)
    }
}

/// What is in the entry of a request.
pub(super) enum Read {
    Asked(IovaRange, Caches),
    NotYet,
    /// It will not be there while the round is waited for: a late request has the entry.
    Never,
}
