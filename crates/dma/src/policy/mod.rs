// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Invalidation policies: *when* an invalidation starts, and *who* drains what it settles.
//!
//! # Theory
//!
//! Whatever the policy, unmap clears entries, retires what it cleared ([`Grace::retire`]), and things come home only
//! against a completion; the policies differ in nothing else.
//!
//! * **strict** starts an invalidation of just the pages and waits for it: when unmap returns, no access succeeds (P1).
//! * **deferred-percpu** (ATC'15 §5) queues the retired things on this CPU and starts one domain-wide invalidation
//!   every `batch` of them, or when [`crate::domain::Domain::tick`] finds that `window` has passed. Until then a
//!   stale access can succeed (P2). Each queue has its own lock, almost always its own CPU's.
//!
//! An invalidation that fails quarantines what it should have freed, for good.
//!
//! Waiting happens with no lock held and not pinned; so an unmap in an interrupt handler may flush while the
//! interrupted CPU is anywhere in map or unmap. Lock order: `queue` alone, `timer` alone.

mod deferred;
mod strict;

pub(crate) use deferred::Deferred;
pub use deferred::{DeferredConfig, MAX_BATCH, TickReport};
pub(crate) use strict::Strict;

use crate::{
    grace::*,
    iova::{Assign, Assigner, Lease},
    platform::*,
    units::*,
};

/// Which policy, and its bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PolicyConfig {
    /// Invalidate and wait in every unmap (ATC'15 §3.2, "strict").
    Strict,
    /// Batch on each CPU (ATC'15 §5).
    DeferredPerCpu(DeferredConfig),
}

impl PolicyConfig {
    /// The name used on command lines and in tables.
    pub fn name(&self) -> &'static str {
        match self {
            PolicyConfig::Strict => "strict",
            PolicyConfig::DeferredPerCpu(_) => "deferred-percpu",
        }
    }
}

/// A policy, chosen at run time.
pub(crate) enum Policy<P: Platform> {
    Strict,
    Deferred(Deferred<P>),
}

impl<P: Platform> Policy<P> {
    pub fn new(p: &P, config: PolicyConfig) -> Self {
        match config {
            PolicyConfig::Strict => Policy::Strict,
            PolicyConfig::DeferredPerCpu(bounds) => Policy::Deferred(Deferred::new(p, bounds)),
        }
    }

    /// Begins to retire what one call unmaps: some of `range`.
    #[inline]
    pub fn begin(&self, range: IovaRange) -> Batch<'_, P> {
        match self {
            Policy::Strict => Batch::Strict(Strict::new(range)),
            Policy::Deferred(queues) => Batch::Deferred {
                queues,
                range,
                caches: Caches::Leaves,
                failed: None,
            },
        }
    }

    /// Flushes, and drains everything that is retired. The last resort of an exhausted assigner.
    pub fn drain_all<I: Invalidate>(&self, engine: &Engine<'_, P, I>) -> Result<(), Failed> {
        match self {
            Policy::Strict => Ok(()),
            Policy::Deferred(queues) => queues.drain_all(engine),
        }
    }

    /// Pages and frames that are retired and not flushed yet; exact when nobody else is active.
    pub fn retired(&self) -> Held {
        match self {
            Policy::Strict => Held::default(),
            Policy::Deferred(queues) => queues.retired(),
        }
    }
}

/// What can be retired. One list serves them all.
#[derive(Debug)]
pub(crate) enum Resource {
    Iova(Lease),
    Frame(TableFrame),
}

/// How much of each resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    /// IOVA pages.
    pub pages: PageCount,
    /// Frames.
    pub frames: u64,
}

impl Held {
    pub(crate) fn add(&mut self, what: &Resource) {
        match what {
            Resource::Iova(lease) => self.pages.0 += lease.owned().0,
            Resource::Frame(_) => self.frames += 1,
        }
    }
}

/// What one unmap retires, until it is settled or queued.
#[allow(clippy::large_enum_variant)] // it lives on the stack of one unmap, which must not allocate
pub(crate) enum Batch<'a, P: Platform> {
    Strict(Strict),
    Deferred {
        queues: &'a Deferred<P>,
        range: IovaRange,
        caches: Caches,
        failed: Option<Failed>,
    },
}

impl<P: Platform> Batch<'_, P> {
    /// A frame that nothing points to any more: the entry that did is cleared and published.
    pub fn add_frame<I: Invalidate>(&mut self, engine: &Engine<'_, P, I>, frame: TableFrame) {
        #[cfg(ioatlas_mutants)]
        if crate::mutant::active(crate::mutant::Mutant::FreeTableAtOnce) {
            let home = engine.p.pinned(|cpu| cpu.index());
            return engine.free(home, Flushed::forged(Resource::Frame(frame)));
        }
        match self {
            Batch::Strict(batch) => batch.add_frame(engine, frame),
            Batch::Deferred {
                queues,
                range,
                caches,
                failed,
            } => {
                *caches = Caches::LeavesAndWalks;
                let what = Resource::Frame(frame);
                let retired = engine.grace.retire(engine.p, what, Scope::tables(*range));
                *failed = failed.or(queues.push(engine, retired).err());
            }
        }
    }

    /// The lease comes last: all entries of its range are cleared and published.
    #[inline]
    pub fn finish<I: Invalidate>(
        self,
        engine: &Engine<'_, P, I>,
        lease: Lease,
    ) -> Result<(), Failed> {
        match self {
            Batch::Strict(batch) => batch.finish(engine, lease),
            Batch::Deferred {
                queues,
                range,
                caches,
                failed,
            } => {
                let need = Scope {
                    pages: Some(range),
                    caches,
                };
                let retired = engine.grace.retire(engine.p, Resource::Iova(lease), need);
                let last = queues.push(engine, retired);
                failed.map_or(last, Err)
            }
        }
    }

    /// Ends a batch of frames alone. Those of a failed flush are quarantined.
    pub fn finish_frames<I: Invalidate>(self, engine: &Engine<'_, P, I>) {
        if let Batch::Strict(batch) = self {
            batch.settle_all(engine).ok(); // quarantined
        }
    }
}

/// What policies need of a domain: how to flush, and where things go.
pub(crate) struct Engine<'d, P: Platform, I> {
    pub p: &'d P,
    pub grace: &'d Grace<P>,
    pub unit: &'d I,
    pub id: DomainId,
    pub assigner: &'d Assigner<P>,
    pub quarantine: &'d Quarantine<P>,
    pub limit: WaitLimit,
}

impl<P: Platform, I: Invalidate> Engine<'_, P, I> {
    /// Invalidates and waits.
    pub fn flush(&self, scope: Scope) -> Result<Completion, Failed> {
        self.grace
            .flush(self.p, self.unit, self.id, scope, self.limit)
    }

    /// Settles `retired` by `completion` and sends it home.
    pub fn settle(&self, home: CpuIndex, retired: Retired<Resource>, completion: &Completion) {
        match retired.settle(completion) {
            Ok(flushed) => self.free(home, flushed),
            // Callers pair things with completions that cover them, so this is a bug; losing the resource is safe.
            Err((retired, why)) => {
                debug_assert!(false, "{why}");
                self.quarantine.put(retired);
            }
        }
    }

    pub fn free(&self, home: CpuIndex, flushed: Flushed<Resource>) {
        match flushed.split() {
            Split::Iova(lease) => self.assigner.release(self.p, home, lease),
            Split::Frame(frame) => self.p.frame_free(frame.into_fresh()),
        }
    }
}

enum Split {
    Iova(Flushed<Lease>),
    Frame(Flushed<TableFrame>),
}

impl Flushed<Resource> {
    /// Keeps the proof while taking the variant apart.
    fn split(self) -> Split {
        match self.get() {
            Resource::Iova(_) => Split::Iova(self.map(|what| match what {
                Resource::Iova(lease) => lease,
                Resource::Frame(_) => unreachable!("just looked"),
            })),
            Resource::Frame(_) => Split::Frame(self.map(|what| match what {
                Resource::Frame(frame) => frame,
                Resource::Iova(_) => unreachable!("just looked"),
            })),
        }
    }
}

/// What failed invalidations should have freed. It is counted and never used again.
pub(crate) struct Quarantine<P: Platform> {
    pages: P::A64,
    frames: P::A64,
}

impl<P: Platform> Quarantine<P> {
    pub fn new() -> Self {
        Quarantine {
            pages: P::A64::new(0),
            frames: P::A64::new(0),
        }
    }
    pub fn put(&self, retired: Retired<Resource>) {
        let mut held = Held::default();
        held.add(&retired.quarantine());
        self.pages.fetch_add(held.pages.0, Ordering::Relaxed);
        self.frames.fetch_add(held.frames, Ordering::Relaxed);
    }
    /// Frames that no `Retired` stands for.
    pub fn lose_frames(&self, frames: u64) {
        self.frames.fetch_add(frames, Ordering::Relaxed);
    }
    pub fn held(&self) -> Held {
        Held {
            pages: PageCount(self.pages.load(Ordering::Relaxed)),
            frames: self.frames.load(Ordering::Relaxed),
        }
    }
}
