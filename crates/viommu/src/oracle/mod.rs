// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The oracle: checks the safety properties against what domains, devices and the platform really
//! did.
//!
//! # Theory
//!
//! Wrappers and the unit report to one [`Oracle`], so that the shipped `Domain` has no hooks:
//! [`Watched`] around a domain (before and after each call), [`WatchedDma`] around its DMA API,
//! [`WatchedPlatform`] around the platform (frames freed), and the software unit, whose
//! [`Observer`] the oracle is (accesses and invalidations). Each report gets the next number of one
//! event clock, under one lock. One oracle watches one unit and any number of its domains.
//!
//! Per domain and page the oracle keeps *records*: one for each mapping, with the numbers of four
//! events (map called, map returned, unmap called, unmap returned). A page is *stale* from the
//! return of its unmap until an invalidation that covers it and began after the call of unmap is
//! complete; how long that lasted, in unmaps and in nanoseconds, is its *exposure*.
//!
//! What an access that succeeded, begun at `b` and moving its data now, must find:
//!
//! | record | verdict |
//! |---|---|
//! | same page, permitted, unmap not returned | fine |
//! | same page, permitted, unmap returned, domain deferred or unbounded, page not mapped anew before `b` | stale, fine within the window if there is one (P2) |
//! | the same, and an invalidation of the domain that began after the return of unmap was complete | P2 |
//! | the same, strict, `b` before the return of unmap | P5: the walk should have been drained |
//! | the same, strict, `b` after it | P1 |
//! | the same, deferred, unmap returned before the end of a time in which the domain had been made strict | as strict, from when that time began |
//! | mapped anew before `b` to another page | P9 |
//! | same page, but this kind of access was not permitted | P6 |
//! | none, or of another physical page | P9, or P8 where another domain maps it there |
//!
//! A domain of a deferred policy that has been made strict (`ledger::modes`) must have flushed what
//! was unmapped, too, when the switch or the unmap returns, whether or not a device looks (P1).
//!
//! Mappings may *share* a page ([`ioatlas_dma::domain::Domain::shared`]): each has a record of the
//! same translation. An access is fine while one of them is live, and late by the table from the
//! return of the last unmap on; it must succeed while one is live all along (P14). An unmap ends
//! the newest record, for as long as two live they are the same. A shared page may be mapped to
//! where it led, for the same use, before it is flushed, and to nothing else (P3). Only an unmap
//! that leaves no mapping of some page counts for P2. A map that gave up its shared page may have
//! been reached there until it returned: it counts as a map that failed, too.
//!
//! A map that is still in its call has no record, so a success that finds none is kept undecided
//! until the maps then in progress have returned. An access that fails, although a record permitted
//! it from before `b` until now, violates P14.
//!
//! Where devices keep translations (ATS), an invalidation is complete for the oracle when their
//! TLBs have been invalidated after the IOTLB.
//!
//! A large leaf lets its device reach every page that it covers, so its first and its last page are
//! judged as if they had been reached too.
//!
//! Under the DMA API ([`WatchedDma`]) a mapping may lead to bounce buffers: the oracle takes where
//! from the tables when map has returned. While the mapping lives, its pages are judged as any
//! others; what no mapping explains, by the frame that was reached (`ledger::frames`).
//! What named a frame before it was allocated meant another: neither records nor maps that failed
//! speak of a bounce buffer whose frame was a caller's before.
//!
//! A frame that is freed must not be led to (P4): by no walk cache and no walk; by no translation
//! in an IOTLB or a device's TLB; and as memory of a typed buffer or consistent memory, of which
//! the oracle is told, by no record that is live, or ended and not flushed since: hardware may have
//! cached it. Caches are asked again when it is allocated. What is freed all the same must not be
//! reached, nor become a table. A caller's pages may have any numbers, those of frames too: a
//! translation that may be of such a page is let pass.
//!
//! Not checked here: P7 (what is in bounce buffers), P11, P12; P10 is
//! [`ioatlas_dma::domain::Domain::audit`].

mod chunk;
mod failing;
mod forward;
mod ledger;
mod pending;
mod platform;
mod watched;
mod watched_dma;

pub use chunk::WatchedChunk;
pub use failing::Failing;
pub use ledger::{Bounds, Deadline, DomainSerial, Exposure, Property, Summary, Violation};
pub use pending::WatchedPending;
pub use platform::{Holders, WatchedPlatform};
pub use watched::Watched;
pub use watched_dma::{WatchedBuffer, WatchedClient, WatchedDma, WatchedMapping};

use crate::{
    device::Ats,
    invalidation::{Invalidation, Selection},
    observe::{Access, Event, Moment, Observer, Outcome},
};
use ioatlas_dma::units::*;
use ledger::Ledger;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Collects reports and violations. Its lock is never held across an access to the platform.
pub struct Oracle {
    ledger: Mutex<Ledger>,
}

impl Oracle {
    /// An oracle that measures exposure in unmaps only.
    pub fn new() -> Arc<Self> {
        Self::with_clock(|| TimeNs(0))
    }

    /// An oracle that measures exposure in nanoseconds of `clock` too.
    pub fn with_clock(clock: impl Fn() -> TimeNs + Send + 'static) -> Arc<Self> {
        Arc::new(Oracle {
            ledger: Mutex::new(Ledger::new(Box::new(clock))),
        })
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what may retire things of the domain that no mapping names.
    fn retiring(&self, domain: DomainSerial, act: impl FnOnce()) {
        self.ledger().retiring(domain);
        act();
        self.ledger().retired(domain);
    }

    /// What was seen so far. Call it when no agent is active: undecided
    /// accesses count as violations.
    pub fn summary(&self) -> Summary {
        self.ledger().summary()
    }

    /// Panics with every violation, if there is any.
    ///
    /// # Panics
    /// If there is any violation.
    pub fn assert_clean(&self) {
        let summary = self.summary();
        assert!(summary.violations.is_empty(), "{summary}");
    }

    /// Adds a violation that the caller found.
    pub fn report(&self, property: Property, text: String) {
        self.ledger().violation(property, text);
    }
}

/// Called with the unit's lock held; takes note and returns.
impl Observer for Oracle {
    fn event(&self, _at: Moment, event: &Event) {
        let mut ledger = self.ledger();
        match event {
            Event::AccessBegan { id, source, .. } => ledger.access_began(*id, *source),
            Event::AccessAborted { id } => ledger.access_dropped(*id),
            Event::Pointed { frame, .. } => ledger.pointed(*frame),
            Event::AccessFinished(access) => finished(&mut ledger, access),
            Event::InvalidationBegan {
                id,
                what: Invalidation::Iotlb { selection, .. },
                ..
            } => ledger.invalidation_began(*id, *selection),
            Event::InvalidationBegan {
                id,
                what: Invalidation::DeviceTlb { source, pages },
                ..
            } => ledger.device_invalidation_began(*id, (*source, *pages)),
            Event::AtsSwitched { source, ats } => ledger.ats_switched(*source, *ats == Ats::On),
            Event::InvalidationCompleted { id } => ledger.invalidation_completed(*id),
            _ => {}
        }
    }
}

fn finished(ledger: &mut Ledger, access: &Access) {
    match access.outcome {
        Outcome::Translated {
            page, domain, leaf, ..
        } => ledger.access_succeeded(access, domain, page, leaf),
        Outcome::Fault(reason) => ledger.access_faulted(access, reason),
        // nothing protects anything yet, or on purpose: no property speaks of it
        Outcome::PassedThrough { .. } => ledger.access_dropped(access.id),
    }
}

/// What an IOTLB invalidation names, for the ledger: domain and pages (`None`: all).
fn named(selection: Selection) -> (Option<DomainId>, Option<IovaRange>) {
    match selection {
        Selection::Global => (None, None),
        Selection::Domain(id) => (Some(id), None),
        Selection::Pages(id, range) => (Some(id), Some(range)),
    }
}
