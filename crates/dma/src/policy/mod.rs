// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Invalidation policies: *when* an invalidation starts, and *which* call drains what it completes.
//!
//! # Theory
//!
//! Whatever the policy, unmap clears entries, retires what it cleared ([`FlushSequence::retire`]),
//! and things are freed only against a completion; the policies differ in nothing else. A strict
//! unmap that flushes at once does without the stamp: what it flushes is what it cleared
//! (`Engine::flush_retired`).
//!
//! | policy | an invalidation starts | and is waited for | exposure |
//! |---|---|---|---|
//! | **strict** | in each unmap, of its pages | there | none (P1) |
//! | **freebsd** | in each unmap, of each of its pages | there, one after the other | none (P1) |
//! | **deferred-percpu** (ATC'15 §5) | every `batch` things of this CPU, or by a tick after `window`, of the domain | there | bounded (P2) |
//! | **deferred-global** | the same, in one queue of all CPUs | there | bounded (P2) |
//! | **macos** | in each unmap, of its pages | later, by any call that comes by | what the unit takes; `depth` unmaps (P2) |
//! | **solaris** | in each map, of its pages | there | unbounded |
//!
//! A domain of a deferred policy may be made strict, and deferred again, while it runs: `switch`.
//!
//! Several mappings unmapped at once are one unmap under `strict`, with one invalidation of the
//! pages of all (`Round`); under the others they are several.
//!
//! All but `deferred-percpu` and `strict` are those of the systems in ATC'15 §3.4 and its table 1.
//! What must be invalidated, whatever the policy, is in [`rules`].
//!
//! An invalidation that fails quarantines what it should have freed, for good.
//!
//! Waiting happens with no lock held and not pinned; so an unmap in an interrupt handler may flush
//! while the interrupted CPU is anywhere in map or unmap. Lock order: `turn -> queue`, `timer`
//! alone.

mod batch;
mod config;
mod deferred;
mod engine;
mod gate;
mod outstanding;
mod pending;
mod queue;
mod retired_cache;
mod round;
pub mod rules;
mod switch;
mod unmap_batch;

pub(crate) use batch::{CpuResource, Queued};
pub use config::{DeferredConfig, Exposure, MacOsConfig, PolicyConfig};
pub(crate) use deferred::Deferred;
pub use deferred::{MAX_BATCH, TickReport};
pub use engine::Held;
pub(crate) use engine::{Engine, Quarantine, Resource};
pub(crate) use pending::{InFlight, PendingRound};
pub use round::UNMAP_ROUND;
pub(crate) use round::{Round, RoundOutcome};
pub use switch::InvalidationMode;
pub(crate) use unmap_batch::{UnmapBatch, Way};

use crate::{
    invalidation::*,
    iova::{Chunked, IovaAlloc, IovaAllocator, Request},
    platform::*,
    units::*,
};
use alloc::boxed::Box;
use deferred::Sharing;
use outstanding::Outstanding;
use retired_cache::RetiredCache;

/// A policy, chosen at run time. `K` names an invalidation of the unit's.
#[repr(u8)] // a tag of its own: one comparison tells
pub(crate) enum Policy<P: Platform, K: Copy + Send> {
    Strict,
    FreeBsd,
    Deferred(Deferred<P>),
    MacOs(Outstanding<P, K>),
    Solaris(RetiredCache<P>),
}

impl<P: Platform, K: Copy + Send> Policy<P, K> {
    pub fn new(p: &P, config: PolicyConfig, key: DomainKey) -> Self {
        match config {
            PolicyConfig::Strict => Policy::Strict,
            PolicyConfig::FreeBsd => Policy::FreeBsd,
            PolicyConfig::DeferredPerCpu(bounds) => {
                Policy::Deferred(Deferred::new(p, bounds, Sharing::PerCpu, key))
            }
            PolicyConfig::DeferredGlobal(bounds) => {
                Policy::Deferred(Deferred::new(p, bounds, Sharing::Global, key))
            }
            PolicyConfig::MacOs(bounds) => Policy::MacOs(Outstanding::new(bounds)),
            PolicyConfig::Solaris => Policy::Solaris(RetiredCache::new()),
        }
    }

    /// Begins to retire what one call unmaps: some of `pages`, or `None` where that is not known.
    #[inline]
    pub fn begin(&self, pages: Option<IovaRange>) -> Batch<'_, P, K> {
        let way = match self {
            Policy::Strict => Way::Whole,
            Policy::FreeBsd => Way::PageByPage,
            Policy::MacOs(outstanding) => Way::Queued(outstanding),
            Policy::Solaris(cache) => Way::AtMap(cache),
            Policy::Deferred(queues) if queues.switch.is_strict() => Way::Whole,
            Policy::Deferred(queues) => {
                return Batch::Deferred {
                    queues,
                    pages,
                    caches: Caches::Leaves,
                    failed: None,
                };
            }
        };
        Batch::Immediate(UnmapBatch::new(way, pages))
    }

    /// Whether each unmap flushes its own pages before it returns, by one invalidation.
    #[inline]
    pub fn is_strict(&self) -> bool {
        match self {
            Policy::Strict => true,
            Policy::Deferred(queues) => queues.switch.is_strict(),
            Policy::FreeBsd | Policy::MacOs(_) | Policy::Solaris(_) => false,
        }
    }

    /// Whether an unmap that has returned may have left something to be flushed: what it promised
    /// aside, as long as no invalidation fails.
    pub fn exposes(&self) -> bool {
        match self {
            Policy::Strict | Policy::FreeBsd => false,
            Policy::Deferred(queues) => !queues.switch.is_strict(),
            Policy::MacOs(_) | Policy::Solaris(_) => true,
        }
    }

    /// Whether maps go by way of [`Policy::alloc`] and [`Policy::on_alloc`].
    #[inline]
    pub fn minds_maps(&self) -> bool {
        matches!(self, Policy::MacOs(_) | Policy::Solaris(_))
    }

    /// What a map does first: an allocation from the policy's own cache, if it has one that serves.
    pub fn alloc<I: Invalidate<Token = K>>(
        &self,
        engine: &Engine<'_, P, I>,
        request: &Request,
    ) -> Result<Option<IovaAlloc>, Failed> {
        match self {
            Policy::Solaris(cache) => cache.alloc(engine, request),
            Policy::MacOs(outstanding) => {
                // a failure is for the next unmap, tick or flush to report
                let _ = outstanding.collect(engine);
                Ok(None)
            }
            Policy::Strict | Policy::FreeBsd | Policy::Deferred(_) => Ok(None),
        }
    }

    /// What a map does with an allocation that comes from the allocator.
    pub fn on_alloc<I: Invalidate<Token = K>>(
        &self,
        engine: &Engine<'_, P, I>,
        alloc: IovaAlloc,
    ) -> Result<IovaAlloc, Failed> {
        match self {
            Policy::Solaris(cache) => cache.flush_fresh(engine, alloc),
            _ => Ok(alloc),
        }
    }

    /// Bounded work of the host's timer.
    pub fn tick<I: Invalidate<Token = K>>(
        &self,
        engine: &Engine<'_, P, I>,
        now: TimeNs,
    ) -> Result<TickReport, Failed> {
        match self {
            Policy::Strict | Policy::FreeBsd | Policy::Solaris(_) => Ok(TickReport::default()),
            Policy::Deferred(queues) => queues.tick(engine, now),
            Policy::MacOs(outstanding) => outstanding.tick(engine),
        }
    }

    /// Flushes, and drains everything that is retired. The last resort of an exhausted allocator.
    pub fn drain_all<I: Invalidate<Token = K>>(
        &self,
        engine: &Engine<'_, P, I>,
    ) -> Result<(), Failed> {
        match self {
            Policy::Strict | Policy::FreeBsd => Ok(()),
            Policy::Deferred(queues) => queues.drain_all(engine),
            Policy::MacOs(outstanding) => outstanding.drain_all(engine),
            Policy::Solaris(cache) => cache.drain_all(engine),
        }
    }

    /// Gives memory back in which nothing is kept.
    pub fn shrink(&self) {
        match self {
            Policy::Strict | Policy::FreeBsd => {}
            Policy::Deferred(queues) => queues.shrink(),
            Policy::MacOs(outstanding) => outstanding.shrink(),
            Policy::Solaris(cache) => cache.shrink(),
        }
    }

    /// Pages and frames that are retired and not flushed yet; exact only while
    /// nothing else is active.
    pub fn retired(&self) -> Held {
        match self {
            Policy::Strict | Policy::FreeBsd => Held::default(),
            Policy::Deferred(queues) => queues.retired(),
            Policy::MacOs(outstanding) => outstanding.retired(),
            Policy::Solaris(cache) => cache.retired(),
        }
    }
}

/// What one unmap retires, until it is completed or queued.
#[allow(clippy::large_enum_variant)] // it lives on the stack of one unmap, which must not allocate
pub(crate) enum Batch<'a, P: Platform, K: Copy + Send> {
    Immediate(UnmapBatch<'a, P, K>),
    Deferred {
        queues: &'a Deferred<P>,
        pages: Option<IovaRange>,
        caches: Caches,
        failed: Option<Failed>,
    },
}

impl<P: Platform, K: Copy + Send> Batch<'_, P, K> {
    /// A frame that nothing points to any more: the entry that did is cleared and published.
    pub fn add_frame<I: Invalidate<Token = K>>(
        &mut self,
        engine: &Engine<'_, P, I>,
        frame: TableFrame,
    ) {
        match self {
            Batch::Immediate(batch) => batch.add_frame(engine, frame),
            Batch::Deferred {
                queues,
                pages,
                caches,
                failed,
            } => {
                *caches = Caches::LeavesAndWalks;
                let need = Scope {
                    pages: *pages,
                    caches: *caches,
                };
                let pushed = queues.push(engine, Resource::Frame(frame), need);
                *failed = failed.or(pushed.err());
            }
        }
    }

    /// The allocation comes last: all entries of its range are cleared and published. The batch,
    /// which is large, stays where it is.
    #[inline]
    pub fn finish<I: Invalidate<Token = K>>(
        &mut self,
        engine: &Engine<'_, P, I>,
        alloc: IovaAlloc,
    ) -> Result<(), Failed> {
        match self {
            Batch::Immediate(batch) => batch.finish(engine, alloc),
            Batch::Deferred {
                queues,
                pages,
                caches,
                failed,
            } => {
                let need = Scope {
                    pages: *pages,
                    caches: *caches,
                };
                let last = queues.push(engine, Resource::Iova(alloc), need);
                failed.map_or(last, Err)
            }
        }
    }

    /// Ends a batch of frames alone. Those of a failed flush are quarantined.
    pub fn finish_frames<I: Invalidate<Token = K>>(self, engine: &Engine<'_, P, I>) {
        if let Batch::Immediate(batch) = self {
            batch.finish_frames(engine).ok(); // quarantined
        }
    }
}
