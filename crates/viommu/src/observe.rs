// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What an observer is told, and what is counted.
//!
//! Events are delivered with the unit's lock held, so their order is the order in which the unit
//! acted. An observer must not call the unit or anything that the platform may switch at; it takes
//! note and returns.

use crate::{config::Ats, fault::FaultReason, invalidation::Invalidation, message::Message};
use core::fmt;
use ioatlas_dma::units::*;

/// A point in the life of a unit: how many times it had acted before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Moment(pub u64);

/// Names an access; never given twice by one unit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AccessId(pub u64);

/// Names an invalidation; never given twice by one unit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct InvalidationId(pub u64);

/// How an access ended.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It goes to `page`.
    Translated {
        page: PhysPage,
        /// The domain by whose tables.
        domain: DomainId,
        /// What the translation permits.
        perm: Perm,
        /// How many pages the leaf covers, naturally aligned around the access's: 1, or those
        /// of a large leaf.
        leaf: PageCount,
    },
    /// Nothing translates it: the IOVA is the physical address, whatever the direction.
    PassedThrough { page: PhysPage, why: PassThrough },
    /// It is blocked for this reason.
    Fault(FaultReason),
}

/// Why an access is not translated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PassThrough {
    /// Translation is disabled (GSTS.TES = 0): every device reaches all memory.
    TranslationDisabled,
    /// The context entry says so (TT = 10b).
    Context,
}

/// Where a translation came from.
#[allow(missing_docs)] // its variants say it
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum From {
    /// No translation was needed, or none was reached.
    Nowhere,
    Iotlb,
    /// The device's own TLB.
    DeviceTlb,
    /// An entry remembered as absent or faulty stopped it (caching mode).
    AbsentEntry,
    /// A walk that began below the root: an entry of a table at this level (2
    /// or higher) was cached.
    WalkCache(u32),
    /// A walk from the root.
    Walk,
}

/// An access that has ended.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    pub id: AccessId,
    pub source: SourceId,
    pub page: IovaPage,
    pub kind: AccessKind,
    pub outcome: Outcome,
    /// Where the translation came from.
    pub from: From,
    /// Entries read from memory for it, context and prefetches included.
    pub reads: u32,
    pub began: Moment,
    pub ended: Moment,
}

/// An entry that enters a cache.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Filled {
    /// Into the context cache.
    Context {
        source: SourceId,
        /// The domain it is attached to.
        domain: DomainId,
    },
    /// Into the context cache (caching mode): the device is attached nowhere, or
    /// its entry is faulty.
    AbsentContext { source: SourceId },
    /// An absent or faulty entry (caching mode).
    Absent {
        /// Level of the table that holds the entry.
        level: u32,
        domain: DomainId,
        /// A page below the entry.
        page: IovaPage,
    },
    /// Into the TLB of a device.
    DeviceTlb {
        source: SourceId,
        page: IovaPage,
        to: PhysPage,
        perm: Perm,
    },
    /// Into a walk cache.
    Walk {
        /// Level of the table that holds the entry, 2 or higher.
        level: u32,
        domain: DomainId,
        /// A page below the entry.
        page: IovaPage,
        /// The table that it points to.
        frame: PhysPage,
    },
    /// Into the IOTLB, tagged with `domain`.
    Iotlb {
        domain: DomainId,
        /// The page, or the first page of a large leaf.
        page: IovaPage,
        to: PhysPage,
        perm: Perm,
        /// How many pages the leaf covers.
        leaf: PageCount,
    },
}

/// What a unit does.
#[allow(missing_docs)] // its variants and fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    AccessBegan {
        id: AccessId,
        source: SourceId,
        page: IovaPage,
        kind: AccessKind,
    },
    /// A walk has a pointer to the table in `frame`, and will read it.
    Pointed {
        id: AccessId,
        /// Level of the table, or `None` for a root or context table.
        level: Option<u32>,
        frame: PhysPage,
    },
    /// An entry was cached on behalf of an access.
    Filled {
        id: AccessId,
        entry: Filled,
    },
    AccessFinished(Access),
    /// An access was given up before its end.
    AccessAborted {
        id: AccessId,
    },
    /// Matching entries have just been removed.
    InvalidationBegan {
        id: InvalidationId,
        what: Invalidation,
        /// How many accesses it waits for.
        draining: usize,
    },
    /// The queue goes past it: what had to be drained has ended.
    InvalidationCompleted {
        id: InvalidationId,
    },
    /// A wait descriptor is about to write its status.
    Signalling {
        address: PhysAddr,
        data: u32,
    },
    /// The unit sends an interrupt.
    Message(Message),
    /// ATS of a device was switched.
    AtsSwitched {
        source: SourceId,
        ats: Ats,
    },
    /// A device does not answer an invalidation of its TLB that began: there will be no completion.
    DeviceUnanswered {
        source: SourceId,
        id: InvalidationId,
    },
    /// Walks see now what was written to tables before this flush was asked for.
    WriteBuffersFlushed,
    /// The queue stopped with an error.
    QueueError {
        /// Index of the descriptor.
        head: u32,
    },
}

/// Is told what a unit does; see the module.
pub trait Observer: Send + Sync {
    /// `event` happens at `at`.
    fn event(&self, at: Moment, event: &Event);
}

/// Several are told one after the other.
impl Observer for Vec<std::sync::Arc<dyn Observer>> {
    fn event(&self, at: Moment, event: &Event) {
        for observer in self {
            observer.event(at, event);
        }
    }
}

/// What a unit counted since it was made.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Accesses begun, whatever came of them.
    pub accesses: u64,
    /// Translated from the IOTLB.
    pub iotlb_hits: u64,
    /// Of those, by large leaves.
    pub large_hits: u64,
    /// Translated by the device's own TLB.
    pub device_tlb_hits: u64,
    /// Asked for by a device with ATS.
    pub translation_requests: u64,
    /// Invalidations of device TLBs.
    pub device_tlb_invalidations: u64,
    /// Stopped by entries remembered as absent or faulty; each is an IOTLB miss too, unless
    /// of the context cache.
    pub absent_hits: u64,
    /// Not in the IOTLB, though the device was attached and the page within the aperture.
    pub iotlb_misses: u64,
    /// Walks that began at a cached entry.
    pub walk_cache_hits: u64,
    /// Device found in the context cache.
    pub context_hits: u64,
    /// Context entries read from memory.
    pub context_misses: u64,
    /// Entries of translation tables read by walks.
    pub walk_reads: u64,
    pub prefetch_reads: u64,
    /// Entries displaced by a fill.
    pub displaced: u64,
    /// Entries evicted at random.
    pub evicted: u64,
    /// Accesses neither translated nor blocked.
    pub passed_through: u64,
    pub faults: u64,
    pub aborted: u64,
    pub context_invalidations: u64,
    /// IOTLB invalidations of everything.
    pub global_invalidations: u64,
    /// IOTLB invalidations of a domain.
    pub domain_invalidations: u64,
    /// IOTLB invalidations of pages.
    pub page_invalidations: u64,
    /// Of the latter, those that leave the walk caches alone.
    pub leaf_invalidations: u64,
    /// Entries removed by invalidations, of all caches.
    pub invalidated: u64,
    /// Accesses that an invalidation had to wait for.
    pub drained: u64,
    /// Fills dropped because an invalidation overtook the walk.
    pub fills_dropped: u64,
    pub write_buffer_flushes: u64,
    /// Wait descriptors that were done.
    pub waits: u64,
    /// Times the queue stopped with an error.
    pub queue_errors: u64,
    /// Invalidations of interrupt-remapping entries.
    pub interrupt_invalidations: u64,
    /// Interrupts that the unit sent.
    pub messages: u64,
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{}", self.0)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Translated { page, domain, .. } => write!(f, "to {page} by domain {domain}"),
            Outcome::PassedThrough { page, .. } => write!(f, "untranslated to {page}"),
            Outcome::Fault(reason) => write!(f, "blocked: {reason}"),
        }
    }
}
