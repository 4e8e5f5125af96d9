// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Epochs: which guards have been dropped.
//!
//! # Theory
//!
//! One word, the *epoch*, grows by one when something was removed: by then it is out of the tree. A
//! guard reads the epoch, writes it to its reader's own word, does a light fence, and only then
//! looks anything up; at its end it writes that it is idle. A thread that wants to know that what
//! was removed before epoch *e* is out of use does a heavy fence after the removal, once, and then
//! waits until each reader is idle or began at *e* or later.
//!
//! Why this is enough. If a reader's word says idle or *e*, seen after the heavy fence, consider
//! its guards. One that ended wrote idle with release, and the next one *e*, too, so what it read
//! and copied is over. One that began and was not seen to: by the two fences its lookups see what
//! the writer did before the heavy fence. One that read *e* sees what was removed before *e* was
//! written, by release and acquire.
//!
//! The core's `FlushSequence` proves the same for invalidations that any CPU may start; here
//! removal and start are the writer's, under its lock, so the pair of fences between them, 16 ns of
//! each insertion and removal, is not needed; what is left is the pair with the readers. The
//! *generation* that rings are remembered by is the epoch.

use super::*;

/// What an idle reader's word says. The epoch begins at 1.
const IDLE: u64 = 0;

pub(super) struct Epochs<P: Platform> {
    epoch: CachePadded<P::A64>,
    readers: Box<[CachePadded<P::A64>]>,
}

impl<P: TreeMemory> Epochs<P> {
    pub fn new(readers: usize) -> Self {
        Epochs {
            epoch: CachePadded(P::A64::new(1)),
            readers: (0..readers)
                .map(|_| CachePadded(P::A64::new(IDLE)))
                .collect(),
        }
    }

    /// Reader `number` pins the reader; the generation it is in.
    #[inline(always)]
    pub fn begin(&self, p: &P, number: usize) -> (&P::A64, u64) {
        let own = &self.readers[number].0;
        // a release, since a writer that sees it and not the idle before must see that what was
        // read before is over
        own.store(self.epoch.0.load(Ordering::Acquire), Ordering::Release);
        p.light_fence();
        (own, self.epoch.0.load(Ordering::Acquire))
    }
    /// Its guard has been dropped.
    #[inline(always)]
    pub fn end(own: &P::A64) {
        own.store(IDLE, Ordering::Release);
    }

    // what follows is for the writer

    pub fn epoch(&self) -> u64 {
        self.epoch.0.load(Ordering::Relaxed)
    }
    /// Begins the next epoch, after something was removed, and returns it.
    pub fn advance(&self) -> u64 {
        let next = self.epoch() + 1;
        self.epoch.0.store(next, Ordering::Release);
        next
    }
    /// What was removed before the epoch returned is out of use, as far as these readers go. A
    /// heavy fence came after the removal.
    pub fn settled(&self, readers: impl Iterator<Item = usize>) -> u64 {
        let began = readers.map(|number| self.readers[number].0.load(Ordering::Acquire));
        let oldest = began.filter(|began| *began != IDLE).min();
        oldest.unwrap_or(u64::MAX).min(self.epoch())
    }
}
