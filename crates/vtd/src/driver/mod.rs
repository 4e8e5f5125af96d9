// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! One remapping unit, in legacy mode: brought up, devices attached to domains, caches flushed, shut down.
//!
//! # Theory
//!
//! The unit reads three kinds of memory of ours: the root table and its context tables (which table translates which
//! device), the invalidation queue, and the domains' own tables. The first two belong to the [`Unit`]; once the
//! unit has been told of a frame, the frame goes back to the platform only by [`Unit::shut_down`], against the same
//! kind of proof as everywhere ([`ioatlas_dma::grace`]): a global invalidation for the tables, the
//! disabled queue for the queue.
//!
//! * **Attach** writes a context entry: high word, then the low one with the present bit, then write-back. Absent entries
//!   are never cached, so nothing need be flushed, except in caching mode (VT-d 4.1 §6.1), where an absent one is
//!   cached with domain id 0.
//! * **Detach** clears the present bit and marks the entry *detaching*; then, with no lock held, context-cache invalidation
//!   of the device and IOTLB invalidation of the domain, in this order in one submission (§6.5.2.11); then the entry is free.
//!   Where the flush fails the mark stays: the device is blocked, and nobody attaches it before a detach succeeds.
//! * **Invalidation** is [`plan`](crate::plan::plan) and [`Queue`].
//!
//! Locks: `contexts`, `ids` and the queue's, each alone; never is one taken inside another, nor held while waiting. All
//! waiting is bounded by [`Config::limit`]. Every method may be called from any CPU, with interrupts on or off.
//!
//! Not handled: units that are live already, or without a queue, write-buffer flushes, fault records, device TLBs, queue errors
//! other than by giving up.

mod contexts;
mod engine;
mod error;
mod ids;

pub use error::{BringUpError, Command, ShutDownError, Stuck};

use crate::{
    layout::*,
    queue::{Queue, Ticket},
    registers::*,
};
use alloc::{boxed::Box, sync::Arc, vec::Vec};
use contexts::{Contexts, Fill};
use core::fmt;
use engine::{Engine, Everything, QueueOff, command};
use ids::Ids;
use ioatlas_dma::{
    grace::{Grace, Invalidate, InvalidateError, Scope, WaitLimit},
    platform::{FreshFrame, Lock, Platform, TableFrame},
    translator::{AttachError, RemappingUnit},
    units::{DomainId, PhysPage, SourceId},
};

/// What the host decides about a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Config {
    /// How long to wait for the unit, each time.
    pub limit: WaitLimit,
    /// What to do with a unit that caches absent entries.
    pub caching_mode: CachingMode,
}

/// A unit in caching mode (VT-d 4.1 §6.1) does not see a new mapping before an invalidation of its pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CachingMode {
    /// Such a unit is refused.
    #[default]
    Refuse,
    /// The host flushes whatever it maps.
    FlushedOnMap,
}

/// A remapping unit that is translating. Dropped without [`shut_down`](Self::shut_down) it goes on, and its frames are lost.
pub struct Unit<P: Platform, R> {
    engine: Engine<P, R>,
    root: TableFrame,
    contexts: P::Lock<Contexts>,
    ids: P::Lock<Ids>,
    grace: Grace<P>,
}

impl<P: Platform, R: Registers> Unit<P, R> {
    /// Takes a unit into use: root table, queue, empty caches, translation on. No device is attached, so all are blocked.
    ///
    /// All three frames are lost where a step after the first register write fails: nothing proves that the unit let go of them.
    ///
    /// # Errors
    /// What the unit cannot do or did not do.
    pub fn bring_up(platform: Arc<P>, registers: R, config: Config) -> Result<Self, BringUpError> {
        let capabilities = Capabilities::new(registers.read64(CAP), registers.read64(ECAP));
        let domain_ids = check(&capabilities, config)?;
        let status = registers.read32(GSTS);
        if status & (GCMD_TE | GCMD_QIE) != 0 {
            return Err(BringUpError::Live { status });
        }
        let p = &*platform;
        let [root, ring, status] = frames(p).ok_or(BringUpError::NoFrame)?;
        let (root, limit) = (root.publish(), config.limit);
        p.publish(p.entries(&root));
        let queue = Queue::new(p, ring.publish(), status.publish());

        // legacy mode: the mode bits of the address stay 0 (§11.4.5)
        registers.write64(RTADDR, root.page().addr().0);
        command(p, &registers, Command::SetRootTable, limit)?;
        // an error that somebody else left behind would look like ours
        registers.write32(FSTS, FSTS_IQE | FSTS_ICE | FSTS_ITE);
        registers.write64(IQT, 0);
        registers.write64(IQA, queue.ring().0 | IQA_ONE_FRAME);
        command(p, &registers, Command::EnableQueue, limit)?;

        let grace = Grace::new(p);
        let engine = Engine {
            platform,
            registers,
            capabilities,
            queue,
            limit,
        };
        // setting the root table leaves the caches as they are, unless ESRTPS says so (§11.4.2); it never hurts
        engine.wait(engine.queue_everything()?)?;
        command(
            &*engine.platform,
            &engine.registers,
            Command::EnableTranslation,
            limit,
        )?;
        Ok(Unit {
            engine,
            root,
            contexts: P::Lock::new(Contexts::new()),
            ids: P::Lock::new(Ids::new(domain_ids)),
            grace,
        })
    }

    /// What the unit says it can do.
    pub fn capabilities(&self) -> &Capabilities {
        &self.engine.capabilities
    }
    /// Its registers.
    pub fn registers(&self) -> &R {
        &self.engine.registers
    }

    /// Ends translation, flushes everything, disables the queue and gives all frames back.
    ///
    /// Without translation the unit lets every device reach all of memory, so none may be attached.
    ///
    /// # Errors
    /// The first step that failed; the unit itself comes back where nothing was done yet.
    #[allow(clippy::type_complexity)]
    pub fn shut_down(self) -> Result<(), (ShutDownError, Option<Box<Self>>)> {
        let devices = self.contexts.with(|contexts| contexts.devices());
        if devices != 0 {
            let error = ShutDownError::Attached { devices };
            return Err((error, Some(Box::new(self))));
        }
        self.dismantle().map_err(|error| (error, None))
    }

    fn dismantle(self) -> Result<(), ShutDownError> {
        let Unit {
            engine,
            root,
            contexts,
            grace,
            ..
        } = self;
        let platform = engine.platform.clone();
        let p = &*platform;
        let mut tables: Vec<TableFrame> = contexts.with(|all| all.take_tables().collect());
        tables.push(root);
        let lost = tables.len() + 2;
        command(
            p,
            &engine.registers,
            Command::DisableTranslation,
            engine.limit,
        )
        .map_err(|cause| ShutDownError::Stuck { cause, lost })?;
        let failed = |cause| ShutDownError::Invalidate { cause, lost };
        release(p, &grace, &Everything(&engine), engine.limit, tables).map_err(failed)?;
        let Engine {
            registers,
            queue,
            limit,
            ..
        } = engine;
        let frames = queue.into_frames();
        let failed = |cause| ShutDownError::Invalidate { cause, lost: 2 };
        release(p, &grace, &QueueOff(registers), limit, frames).map_err(failed)
    }
}

/// Gives `frames` back to the platform, against proof by `unit` that it holds no pointer to them. Where there is no
/// proof they are lost.
fn release<P: Platform>(
    p: &P,
    grace: &Grace<P>,
    unit: &impl Invalidate,
    limit: WaitLimit,
    frames: impl IntoIterator<Item = TableFrame>,
) -> Result<(), InvalidateError> {
    let retired: Vec<_> = frames
        .into_iter()
        .map(|frame| grace.retire(p, frame, Scope::DOMAIN))
        .collect();
    let done = grace
        .flush(p, unit, DomainId(0), Scope::DOMAIN, limit)
        .map_err(|failed| failed.cause)?;
    for frame in retired {
        // retired just before the flush began, which was of everything: it always settles
        if let Ok(flushed) = frame.settle(&done) {
            p.frame_free(flushed.into_fresh());
        }
    }
    Ok(())
}

/// Whether this driver can serve the unit; how many domain ids it has.
fn check(unit: &Capabilities, config: Config) -> Result<u32, BringUpError> {
    let (cap, ecap) = (unit.cap(), unit.ecap());
    if unit.is_absent() {
        return Err(BringUpError::Absent { cap });
    }
    if !unit.queued_invalidation() {
        return Err(BringUpError::NoQueue { ecap });
    }
    if !AddressWidth::ALL.iter().any(|w| unit.supports_width(*w)) {
        return Err(BringUpError::NoWidth { cap });
    }
    if unit.needs_write_buffer_flush() {
        return Err(BringUpError::WriteBufferFlush { cap });
    }
    if unit.caching_mode() && config.caching_mode == CachingMode::Refuse {
        return Err(BringUpError::CachingMode { cap });
    }
    unit.domain_ids().ok_or(BringUpError::DomainIds { cap })
}

/// Three frames, or none.
fn frames<P: Platform>(p: &P) -> Option<[FreshFrame; 3]> {
    match [p.frame_alloc(), p.frame_alloc(), p.frame_alloc()] {
        [Some(a), Some(b), Some(c)] => Some([a, b, c]),
        some => {
            some.into_iter().flatten().for_each(|f| p.frame_free(f));
            None
        }
    }
}

impl<P: Platform, R: Registers> Invalidate for Unit<P, R> {
    type Token = Ticket;
    #[inline]
    fn submit(&self, domain: DomainId, scope: Scope) -> Result<Ticket, InvalidateError> {
        self.engine.submit(domain, scope)
    }
    #[inline]
    fn done(&self, ticket: Ticket) -> Result<bool, InvalidateError> {
        self.engine.done(ticket)
    }
}

impl<P: Platform, R: Registers> RemappingUnit<P> for Unit<P, R> {
    fn attach(
        &self,
        p: &P,
        device: SourceId,
        domain: DomainId,
        root: PhysPage,
        levels: u32,
    ) -> Result<(), AttachError> {
        let unit = &self.engine.capabilities;
        let width = AddressWidth::from_levels(levels)
            // addresses above MGAW fault whatever the table says (§11.4.2)
            .filter(|w| unit.supports_width(*w) && unit.iova_bits() >= w.bits())
            .ok_or(AttachError::Levels { levels })?;
        let entry = ContextEntry {
            table: root,
            width,
            domain,
            translation: TranslationType::Untranslated,
            faults: FaultRecording::On,
        };
        self.fill(p, device, entry.encode())?;
        if !unit.caching_mode() {
            return Ok(());
        }
        let absent = ContextInvalidate::Device {
            domain: DomainId(0),
            device,
            functions: FunctionMask::Exact,
        };
        self.engine.flush_context(absent, domain).map_err(|cause| {
            // the unit failed: block the device for good
            self.contexts
                .with(|contexts| contexts.begin_detach(p, device, domain));
            AttachError::Invalidate { device, cause }
        })
    }

    fn detach(&self, p: &P, device: SourceId, domain: DomainId) -> Result<(), AttachError> {
        let attached = self
            .contexts
            .with(|contexts| contexts.begin_detach(p, device, domain));
        if !attached {
            return Err(AttachError::NotAttached { device, domain });
        }
        let context = ContextInvalidate::Device {
            domain,
            device,
            functions: FunctionMask::Exact,
        };
        self.engine
            .flush_context(context, domain)
            .map_err(|cause| AttachError::Invalidate { device, cause })?;
        self.contexts
            .with(|contexts| contexts.end_detach(p, device, domain));
        Ok(())
    }

    fn domain_id(&self, _: &P) -> Option<DomainId> {
        self.ids.with(Ids::take)
    }

    fn release_domain_id(&self, _: &P, id: DomainId) {
        self.ids.with(|ids| ids.give_back(id));
    }
}

impl<P: Platform, R: Registers> Unit<P, R> {
    /// Makes the context entry of `device` present, with a table for its bus if there is none.
    fn fill(&self, p: &P, device: SourceId, entry: Words) -> Result<(), AttachError> {
        let bus = (device.0 >> 8) as u8;
        let mut spare = None;
        let fill = |spare: &mut _| {
            self.contexts
                .with(|contexts| contexts.fill(p, &self.root, device, entry, spare))
        };
        let mut outcome = fill(&mut spare);
        if let Fill::NeedsTable = outcome {
            // not under the lock; whoever comes second finds the first one's table, and frees its own
            spare = Some(p.frame_alloc().ok_or(AttachError::NoFrame { bus })?);
            outcome = fill(&mut spare);
        }
        if let Some(frame) = spare {
            p.frame_free(frame);
        }
        match outcome {
            Fill::Done => Ok(()),
            Fill::Taken(domain) => Err(AttachError::Attached { device, domain }),
            // it was given a table; an error all the same rather than a panic
            Fill::NeedsTable => Err(AttachError::NoFrame { bus }),
        }
    }
}

impl<P: Platform, R> fmt::Debug for Unit<P, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = self.contexts.with(|contexts| contexts.devices());
        f.debug_struct("Unit")
            .field("root", &self.root.page())
            .field("queue", &self.engine.queue.ring())
            .field("devices", &devices)
            .finish_non_exhaustive()
    }
}
