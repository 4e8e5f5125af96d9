// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! One I/O address space: a translator, an allocator and an invalidation policy.
//!
//! # Theory
//!
//! ```text
//! map(buffer, direction)                       unmap(mapping)
//!   allocate IOVA -> install -> Mapping            clear leaves -> Retired -> [policy] -> Flushed
//!                                                  -> IOVA to the allocator, frames to the platform
//! ```
//!
//! **One undo path.** Undoing a half-made map is an unmap of what was written; it retires and
//! completes as any other.
//!
//! **Two interfaces of unmap.** [`Domain::unmap`] consumes the [`Mapping`] that map returned; it
//! cannot be called twice, or for a part. For interfaces that pass addresses, [`Domain::into_raw`]
//! gives the token up, and [`Domain::unmap_raw`] takes an address and a length and checks them by
//! marks in the leaves. A mapping has one of the two at a time, so the interfaces cannot be mixed.
//!
//! **Buffers are bytes, translations are granules.** A buffer is rounded out to granules and the
//! address returned keeps its offset; so a device can reach what else lies in the first and last
//! granule. That is a stated weakness of direct mapping.
//!
//! **What is mapped is vouched for**: by its caller, or by the platform for all memory ([`Lend`]).
//!
//! **Chunks.** A driver may take a range of IOVAs at once and map into it, piece by piece; a piece
//! is a mapping as any other ([`chunk`](Chunk)).
//!
//! **Maps may invalidate.** Where the unit caches absent entries, or has write buffers of its own,
//! what must follow the installation follows before map returns (`OnMap`); a map whose
//! invalidation fails is undone. The policy `solaris` invalidates *before* the installation: it
//! must prove its allocation clean to have one to install with, while a unit that caches absent
//! entries must forget them after. So one place serves each, and both call one flush.
//!
//! Ordering: when map returns, the unit sees the translation (P14). When a strict unmap returns, no
//! access that the unmap revoked succeeds any more (P1). Concurrent map and unmap of different
//! mappings need no synchronisation; that one mapping is unmapped once is what `Mapping` is for.
//!
//! Locking: no lock is held while waiting, and none across install or clear, so unmap may run in an
//! interrupt that hit a map.

mod attrs;
mod chunk;
mod colours;
mod consistent;
mod devices;
mod error;
mod fast_path;
mod frames;
mod lent;
mod map;
mod mapping;
mod pending;
mod promote;
mod reclaim;
mod region;
mod reserved;
mod stats;
mod switch;
mod unmap;
mod unmap_batch;

pub use attrs::{ListOrder, MapAttrs, Offset};
pub use chunk::Chunk;
pub(crate) use chunk::OpenChunk;
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub use colours::{COLOUR_SPAN, COLOURS_MAX, Colours};
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub use consistent::Consistent;
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub use error::OutsideAperture;
pub use error::{
    BufferError, CloseError, DomainError, Lost, MapError, ReserveError, SwitchError,
    UnmapBatchError, UnmapError,
};
pub(crate) use frames::{free, zeroed_frames, zeroed_list};
pub use lent::{Lend, Lent};
pub use mapping::Mapping;
pub use pending::PendingUnmap;
pub(crate) use region::Region;
pub use stats::{DomainAudit, DomainStats};

pub use crate::invalidation::{InvalidateError, WaitLimit};
pub use crate::iova::{
    AllocError, AllocErrorCause, AllocatorConfig, AllocatorError, FixedRangeError, Limits,
    MagazineConfig,
};
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub use crate::policy::MacOsConfig;
pub use crate::policy::{
    DeferredConfig, Exposure, Held, InvalidationMode, MAX_BATCH, PolicyConfig, TickReport,
    UNMAP_ROUND,
};
pub use crate::table::Lifetime;

use crate::{
    invalidation::*,
    iova::{AllocKind, AnyAllocator, Backing, BackingConfig, Chunked, IovaAllocator},
    platform::*,
    policy::{Engine, InFlight, Policy, Quarantine},
    translator::{AttachError, Translator},
    units::*,
};
use alloc::{sync::Arc, vec::Vec};
use colours::Colour;
use devices::Devices;
use reserved::Reserved;
use stats::Counters;

/// Which designs a domain is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DomainConfig {
    /// Which design chooses IOVAs.
    pub allocator: AllocatorConfig,
    /// When invalidations start, and when they are waited for.
    pub policy: PolicyConfig,
    /// IOVA pages to use, or `None` for all that the translator has. A device with an address mask
    /// gets a domain whose aperture lies below it.
    pub aperture: Option<IovaRange>,
    /// How far from the end of the aperture allocating begins.
    pub offset: Offset,
    /// In which order the segments of a list get their IOVAs.
    pub order: ListOrder,
    /// How long to wait for an invalidation.
    pub wait_limit: WaitLimit,
    /// How many [chunks](Domain::chunk) there can be at once for each CPU; all of them together are
    /// rounded up to a power of two. The first one takes a frame for the books of 128, and so on,
    /// until the domain ends.
    pub chunks_per_cpu: usize,
}

impl DomainConfig {
    /// Magazines and strict invalidation.
    pub const DEFAULT: Self = Self::new(
        AllocatorConfig::Magazine(crate::iova::MagazineConfig::DEFAULT),
        PolicyConfig::Strict,
    );

    /// These designs, over the translator's whole aperture, with the default bound on waiting.
    pub const fn new(allocator: AllocatorConfig, policy: PolicyConfig) -> Self {
        DomainConfig {
            allocator,
            policy,
            aperture: None,
            offset: Offset::None,
            order: ListOrder::Ascending,
            wait_limit: WaitLimit::DEFAULT,
            chunks_per_cpu: 32,
        }
    }
}

setters!(const DomainConfig {
    allocator: AllocatorConfig,
    policy: PolicyConfig,
    offset: Offset,
    order: ListOrder,
    wait_limit: WaitLimit,
    chunks_per_cpu: usize,
    ;
    aperture?: IovaRange,
});

impl Default for DomainConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// One I/O address space. See the module's theory.
pub struct Domain<P: Platform, T: Translator<P>> {
    platform: Arc<P>,
    translator: T,
    allocator: Chunked<P>,
    policy: Policy<P, <T::Unit as Invalidate>::Token>,
    sequence: FlushSequence<P>,
    key: DomainKey,
    quarantine: Quarantine<P>,
    suspect: Suspect<P, <T::Unit as Invalidate>::Token>,
    counters: Counters<P>,
    devices: Devices<P>,
    reserved: Reserved<P>,
    colour: Colour<P>,
    order: ListOrder,
    wait_limit: WaitLimit,
    /// As it was asked for.
    configured: PolicyConfig,
    aperture: IovaRange,
    closed: Closed,
    in_flight: InFlight<P>,
    reclaim_cursor: reclaim::Cursor<P>,
}

#[derive(PartialEq, Eq)]
enum Closed {
    No,
    Yes,
}

impl<P: Platform, T: Translator<P>> Domain<P, T> {
    /// A domain in which nothing is mapped and to which no device is attached.
    ///
    /// # Errors
    /// [`DomainError`]; the translator's frames and id are given back.
    pub fn new(platform: Arc<P>, translator: T, config: DomainConfig) -> Result<Self, DomainError> {
        Self::made(platform, translator, config, None)
    }

    /// The same, for one of several domains of a unit, whose offsets ([`DomainConfig::offset`])
    /// follow from each other.
    ///
    /// # Errors
    /// [`DomainError`], as from [`new`](Self::new).
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub fn coloured(
        platform: Arc<P>,
        translator: T,
        config: DomainConfig,
        colours: Arc<Colours<P>>,
    ) -> Result<Self, DomainError> {
        Self::made(platform, translator, config, Some(colours))
    }

    fn made(
        asked: Arc<P>,
        translator: T,
        config: DomainConfig,
        colours: Option<Arc<Colours<P>>>,
    ) -> Result<Self, DomainError> {
        // what is over another platform ends there
        let platform = translator.platform().unwrap_or(&asked).clone();
        let is_ours = same(&platform, &asked);
        let p = &*platform;
        let colour = Colour::new(colours, config.offset);
        let whole = translator.aperture();
        let wanted = config.aperture.unwrap_or(whole);
        let fits = whole.contains(&wanted);
        let aperture = if fits { wanted } else { whole };
        let (allocator, refused) =
            match AnyAllocator::with_offset(p, config.allocator, aperture, colour.offset) {
                Ok(allocator) => (allocator, None),
                // any will do to end the domain by
                Err(why) => {
                    let any = Backing::new(p, BackingConfig::Rbtree, aperture);
                    (AnyAllocator::Plain(any), Some(why))
                }
            };
        let sequence = FlushSequence::of_domain(p);
        let domain = Domain {
            allocator: Chunked::new(p, allocator, config.chunks_per_cpu),
            policy: Policy::new(p, config.policy, sequence.key()),
            key: sequence.key(),
            sequence,
            quarantine: Quarantine::new(),
            suspect: Suspect::new(),
            counters: Counters::new(p),
            devices: Devices::new(),
            reserved: Reserved::new(),
            colour,
            order: config.order,
            wait_limit: config.wait_limit,
            configured: config.policy,
            aperture,
            closed: Closed::No,
            in_flight: InFlight::new(),
            reclaim_cursor: reclaim::Cursor::new(),
            translator,
            platform,
        };
        let why = match refused {
            _ if !is_ours => DomainError::OtherPlatform,
            None if fits => return Ok(domain),
            None => OutsideAperture { wanted, whole }.into(),
            Some(why) => why.into(),
        };
        drop(domain); // on the path of every domain: its root and its id are freed after a flush
        Err(why)
    }

    /// The tag by which hardware knows this domain.
    pub fn id(&self) -> DomainId {
        self.translator.id()
    }
    /// The platform that it runs on.
    pub fn platform(&self) -> &Arc<P> {
        &self.platform
    }
    /// The translator, to be looked at: its methods that change
    /// anything take an [`Authority`].
    pub fn translator(&self) -> &T {
        &self.translator
    }
    /// What empties the caches in front of it; the remapping unit, where there is one. What changes
    /// it takes an [`Authority`], too.
    pub fn unit(&self) -> &T::Unit {
        self.translator.unit()
    }

    /// Tells this domain from every other, for good.
    pub(crate) fn key(&self) -> DomainKey {
        self.key
    }
    /// Whether caches may lead to what an unmap that succeeded has removed: where the policy defers
    /// invalidations, or one has failed, perhaps of a map that was undone.
    pub(crate) fn may_be_cached(&self) -> bool {
        self.policy.exposes() || self.quarantine.held() != Default::default()
    }
    /// Waits until no cache leads to what was unmapped before; nothing is freed by it.
    pub(crate) fn flush_unmapped(&self) -> Result<(), InvalidateError> {
        let flushed = self.engine().flush(Scope::DOMAIN);
        flushed.map(drop).map_err(|failed| failed.cause)
    }
    /// The pages from which IOVAs are allocated.
    pub(crate) fn aperture(&self) -> IovaRange {
        self.aperture
    }

    /// Lets `device` reach what is mapped here.
    ///
    /// # Errors
    /// [`AttachError`]; the device is then as it was before. After a failed invalidation it is
    /// blocked and counts as attached: detach it.
    pub fn attach(&self, device: SourceId) -> Result<(), AttachError> {
        self.devices.attach(device, self.id(), || {
            self.translator.attach(OURS, &self.platform, device)
        })
    }

    /// Ends that; when it returns, no access of `device` succeeds.
    ///
    /// # Errors
    /// [`AttachError`]. After a failed invalidation the device is blocked and counts as attached
    /// still: detach it again.
    pub fn detach(&self, device: SourceId) -> Result<(), AttachError> {
        self.devices.detach(device, self.id(), || {
            self.translator.detach(OURS, &self.platform, device)
        })
    }

    /// The host's timer calls this, every few milliseconds at best; it is what bounds the
    /// deferred policy's window in time. It waits for one invalidation at most and then frees a
    /// bounded number of things, the rest in later ticks; after a failed invalidation it
    /// quarantines everything at once. Under `macos` it frees what the unit has done meanwhile,
    /// and waits for nothing. Where nothing is retired for long, or all of it until the next map
    /// (`strict`, `freebsd`, `solaris`), that is nothing. It also gives a bounded part of the
    /// IOVA ranges that no map has asked for in a while back to the backing allocator, and frees
    /// what they were kept in; and it [frees emptied tables](Self::reclaim_tables), if the domain's
    /// tables are to be reclaimed so, for which it waits for one more. After an invalidation that
    /// ran out of time it looks whether that is done (`Invalidate::done`).
    ///
    /// # Errors
    /// An invalidation failed; what it should have freed is quarantined.
    pub fn tick(&self, now: TimeNs) -> Result<TickReport, InvalidateError> {
        self.allocator.tick(&self.platform, now);
        // a unit that answers again is waited for again, and its old token is not kept for long
        self.suspect.is_silent(self.translator.unit());
        let ticked = self.policy.tick(&self.engine(), now);
        let report = ticked.map_err(|failed| failed.cause)?;
        let tables = self.reclaim_tables()?;
        Ok(TickReport { tables, ..report })
    }

    /// Flushes, and frees everything that is retired.
    ///
    /// # Errors
    /// The invalidation failed; what it should have freed is quarantined.
    pub fn flush(&self) -> Result<(), InvalidateError> {
        let drained = self.policy.drain_all(&self.engine());
        drained.map_err(|failed| failed.cause)
    }

    /// Gives IOVA ranges that are kept for reuse back to the backing allocator, and frees the
    /// memory of queues in which nothing waits for a flush; returns how many pages it was.
    pub fn shrink(&self) -> PageCount {
        self.policy.shrink();
        self.allocator.drain(&self.platform)
    }

    /// Ends the domain: detaches every device, flushes, frees every table. Mappings that are
    /// still alive end with it. The frames of consistent memory that is still alive are
    /// lost: free it before.
    ///
    /// # Errors
    /// [`CloseError`]; what may still be cached is never freed then.
    pub fn close(mut self) -> Result<(), CloseError> {
        self.shut()
    }

    #[inline]
    fn engine(&self) -> Engine<'_, P, T::Unit> {
        Engine {
            p: &self.platform,
            sequence: &self.sequence,
            unit: self.translator.unit(),
            id: self.translator.id(),
            allocator: &self.allocator,
            quarantine: &self.quarantine,
            suspect: &self.suspect,
            limit: self.wait_limit,
        }
    }

    fn shut(&mut self) -> Result<(), CloseError> {
        if self.closed == Closed::Yes {
            return Ok(());
        }
        self.closed = Closed::Yes;
        let ended = self.end_all();
        self.allocator.forget_chunks(&self.platform);
        ended
    }

    fn end_all(&mut self) -> Result<(), CloseError> {
        // all of them are blocked, whatever the first failure is
        let mut detached = Ok(());
        for device in self.devices.take() {
            detached = detached.and(self.translator.detach(OURS, &self.platform, device));
        }
        detached?;
        let lost = |failed: Failed| CloseError::Invalidate(failed.cause);
        self.policy.drain_all(&self.engine()).map_err(lost)?;
        let p = &*self.platform;
        let mut borrowed = Vec::new();
        if let Some(within) = self.allocator.borrowed() {
            // stamped before the tables go, but completed by the flush that follows that
            let mut lend_back = |alloc| {
                borrowed.push(self.sequence.retire(p, alloc, Scope::DOMAIN));
            };
            self.translator.mappings(p, within, |range, kind| {
                // a piece's pages are its chunk's
                if !self.allocator.has_chunk_at(p, range.first) {
                    lend_back(self.alloc_of(range, kind));
                }
            });
            let chunks = self.allocator.chunks(p);
            chunks
                .filter(|chunk| within.contains(chunk))
                .for_each(|chunk| lend_back(self.alloc_of(chunk, AllocKind::Dynamic)));
        }
        let mut frames = Vec::new();
        self.translator.dismantle(OURS, p, |frame| {
            frames.push(self.sequence.retire(p, frame, Scope::DOMAIN));
        });
        let flushed = self.engine().flush(Scope::DOMAIN);
        let completion = flushed.map_err(lost)?;
        for frame in frames {
            // an unsettled frame is leaked: the domain-wide flush above covers all, so that would
            // be a bug
            match frame.complete(&completion) {
                Ok(frame) => p.frame_free(OURS, frame.into_fresh()),
                Err((_, why)) => debug_assert!(false, "{why}"),
            }
        }
        let origin = p.pinned(|cpu| cpu.index());
        for alloc in borrowed {
            match alloc.complete(&completion) {
                Ok(alloc) => self.allocator.free(p, origin, alloc),
                Err((_, why)) => debug_assert!(false, "{why}"),
            }
        }
        self.translator.retire_id(OURS, p);
        Ok(())
    }
}

impl<P: Platform, T: Translator<P>> Drop for Domain<P, T> {
    /// As [`Domain::close`]; what cannot be freed safely is leaked.
    fn drop(&mut self) {
        let _ = self.shut();
    }
}
