// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! One remapping unit, in legacy mode: brought up, devices attached to domains, caches flushed,
//! shut down.
//!
//! # Theory
//!
//! The unit reads three kinds of memory of ours: the root table and its context tables (which table
//! translates which device), the invalidation queue, and the domains' own tables. The first two
//! belong to the [`Unit`]; once the unit has been told of a frame, the frame goes back to the
//! platform only by [`Unit::shut_down`], against the same kind of proof as everywhere
//! ([`ioatlas_dma::invalidation`]): a global invalidation for the tables, the disabled queue for
//! the queue.
//!
//! * **Attach** writes a context entry: high word, then the low one with the present bit, then
//!   write-back. Absent entries are never cached, so nothing need be flushed, except in caching
//!   mode (VT-d 4.1 §6.1), where an absent one is cached with domain id 0.
//! * **Detach** clears the present bit and marks the entry *detaching*; then, with no lock held,
//!   context-cache invalidation of the device, IOTLB invalidation of the domain and, where the
//!   device has one, invalidation of its TLB, in this order in one submission (§6.5.2.11); then the
//!   entry is free. Where the flush fails the mark stays: the device is blocked, and cannot be
//!   attached before a detach succeeds.
//! * **Invalidation** is [`plan`](mod@crate::plan), by the [queue](crate::queue) or, where the unit
//!   has none, by [registers](crate::direct).
//! * **A device that does not answer** an invalidation of its own TLB is *fenced*: its entry is
//!   cleared and marked, context cache and IOTLB are flushed, and it is attached again only after
//!   [`Unit::unfence`]. Callers that waited for it get an error; every other invalidation is done.
//!
//! Locks: `contexts`, `ids`, `tlbs`, the commands' and the queue's, each alone; never is one taken
//! inside another, nor held while waiting. All waiting is bounded by [`Config::limit`]. Every
//! method may be called from any CPU, with interrupts on or off.
//!
//! Not handled: scalable mode, page requests, protected memory regions (they stay as firmware left
//! them), completion by interrupt.

mod bring_up;
mod check;
mod commands;
mod contexts;
mod device_tlbs;
mod engine;
mod error;
mod explain;
mod firmware;
mod ids;
mod shut_down;

pub use error::{
    BringUpError, Command, DeviceTlbError, FirmwareIdsError, RegisterGroup, ShutDownError, Stuck,
    UnfenceError,
};
pub use explain::Explanation;

use crate::authority::OURS;
use crate::{
    fault::{FaultRecord, Overflow, drain_faults},
    layout::*,
    plan::{AtsDevice, Blocks, Change, Invalidation, InvalidationCosts, plan},
    queue::{Incidents, Ticket},
    registers::*,
};
use alloc::{sync::Arc, vec::Vec};
use contexts::{Contexts, Fill};
use core::fmt;
use device_tlbs::{Activation, DeviceTlbs};
use engine::{Engine, Path};
use ids::Ids;
use ioatlas_dma::{
    invalidation::{Caches, FlushSequence, Invalidate, InvalidateError, OnMap, Scope, WaitLimit},
    platform::{Authority, Lock, Platform, TableFrame},
    table::{Format, TableShape, fmt::VtdSecond48},
    translator::{AttachError, RemappingUnit},
    units::{DomainId, IovaRange, PhysPage, SourceId},
};

/// What the host decides about a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Config {
    /// How long to wait for the unit, each time.
    pub limit: WaitLimit,
    /// What to do with a unit that firmware left in use.
    pub live: Live,
    /// What its invalidations cost.
    pub costs: InvalidationCosts,
}

ioatlas_dma::setters!(const Config {
    limit: WaitLimit,
    live: Live,
    costs: InvalidationCosts,
});

impl Config {
    /// [`WaitLimit::DEFAULT`], a unit in use is refused, costs as assumed.
    pub const DEFAULT: Self = Config {
        limit: WaitLimit::DEFAULT,
        live: Live::Refuse,
        costs: InvalidationCosts::ASSUMED,
    };
}

/// A unit whose translation or queue is enabled before we come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Live {
    /// Such a unit is refused.
    #[default]
    Refuse,
    /// It is taken over: see [`Unit::prepare`], and for domains that are made before
    /// it is activated [`Unit::reserve_firmware_ids`].
    TakeOver,
}

/// A remapping unit. Dropped without [`shut_down`](Self::shut_down) it goes on, and
/// its frames are lost.
pub struct Unit<P: Platform, R> {
    engine: Engine<P, R>,
    root: TableFrame,
    contexts: P::Lock<Contexts>,
    ids: P::Lock<Ids>,
    tlbs: DeviceTlbs<P>,
    sequence: FlushSequence<P>,
    costs: InvalidationCosts,
    /// Held while one fault record is read.
    faults: P::Lock<()>,
    stage: P::A64,
}

/// How many devices with TLBs go into one submission: with the two other invalidations they
/// fit into a batch.
const DEVICES: usize = 16;

impl<P: Platform, R: Registers> Unit<P, R> {
    /// What the unit says it can do.
    pub fn capabilities(&self) -> &Capabilities {
        &self.engine.capabilities
    }
    /// The unit's registers, for code that reports on it.
    ///
    /// # Safety
    /// What the driver has of them ([`Registers`]) is read, and not written.
    #[allow(unsafe_code)] // a promise of its caller's
    pub unsafe fn registers(&self) -> &R {
        &self.engine.registers
    }
    /// Its memory's, which is also that of its domains.
    pub(crate) fn shared_platform(&self) -> &Arc<P> {
        &self.engine.platform
    }
    /// What the unit can do and what this driver does because of it, as text.
    pub fn explain(&self) -> Explanation<'_> {
        Explanation(&self.engine.capabilities)
    }
    /// What has gone wrong with the invalidation queue so far; nothing ever, where there is none.
    pub fn incidents(&self) -> Incidents {
        match &self.engine.path {
            Path::Queue(queue) => queue.incidents(),
            Path::Direct(_) => Incidents::default(),
        }
    }

    /// Reads and clears the fault records, in the order in which they were
    /// filled (VT-d 4.1 §7.2.1).
    pub fn faults(&self) -> (Vec<FaultRecord>, Overflow) {
        let mut all = Vec::new();
        let overflow = self.drain_faults(|record| all.push(record));
        (all, overflow)
    }
    /// As [`faults`](Self::faults), allocating nothing, for an interrupt handler. `each` is called
    /// with no lock held.
    pub fn drain_faults(&self, each: impl FnMut(FaultRecord)) -> Overflow {
        drain_faults::<P, R>(
            &self.faults,
            &self.engine.registers,
            &self.engine.capabilities,
            each,
        )
    }

    /// Declares that `device` keeps translations of its own, as its ATS capability says: attached
    /// from now on, it may, and is invalidated with its domain. The host enables ATS in the device
    /// once it is attached, and disables it once it is detached: until then the device must answer,
    /// as detaching still invalidates what it keeps.
    ///
    /// # Errors
    /// The unit serves no device TLBs, or the device is attached ([`DeviceTlbError`]).
    pub fn declare_device_tlb(
        &self,
        device: SourceId,
        depth: QueueDepth,
    ) -> Result<(), DeviceTlbError> {
        let unit = &self.engine.capabilities;
        if !unit.device_tlb() || !unit.queued_invalidation() {
            let ecap = unit.ecap();
            return Err(DeviceTlbError::Unsupported { ecap });
        }
        self.tlbs
            .declare(AtsDevice { device, depth })
            .map_err(|domain| DeviceTlbError::Attached { device, domain })
    }
    /// Withdraws what [`declare_device_tlb`](Self::declare_device_tlb) declared.
    ///
    /// # Errors
    /// The device is attached ([`DeviceTlbError::Attached`]).
    pub fn withdraw_device_tlb(&self, device: SourceId) -> Result<(), DeviceTlbError> {
        self.tlbs
            .withdraw(device)
            .map_err(|domain| DeviceTlbError::Attached { device, domain })
    }

    /// Removes cached interrupt-remapping entries, `entries` from `first`, for a host that remaps
    /// interrupts, and waits. At least these are removed.
    ///
    /// # Errors
    /// The unit has no queue, and so no such cache, or failed.
    pub fn invalidate_interrupt_entries(
        &self,
        first: InterruptIndex,
        entries: u32,
    ) -> Result<(), InvalidateError> {
        let largest = self.engine.capabilities.max_interrupt_mask();
        self.invalidate_interrupts(InterruptInvalidate::covering(first, entries, largest))
    }
    /// Removes all cached interrupt-remapping entries.
    ///
    /// # Errors
    /// The unit has no queue, and so no such cache, or failed.
    pub fn invalidate_all_interrupt_entries(&self) -> Result<(), InvalidateError> {
        self.invalidate_interrupts(InterruptInvalidate::Global)
    }
    fn invalidate_interrupts(&self, which: InterruptInvalidate) -> Result<(), InvalidateError> {
        // the table is memory, too
        self.engine.flush_write_buffers()?;
        let all = [Invalidation::Interrupts(which)];
        let ticket = self.engine.submit_all(all.into_iter())?;
        let result = self.engine.wait(ticket);
        self.fence_silent();
        result
    }

    /// Whether `device` is fenced, since it did not answer an invalidation of its own TLB.
    pub fn is_fenced(&self, device: SourceId) -> bool {
        let p = &*self.engine.platform;
        self.contexts.with(|contexts| contexts.is_fenced(p, device))
    }
    /// Lets a fenced device be attached again, after it was reset. It must have been detached.
    ///
    /// # Errors
    /// The device is attached, or not fenced ([`UnfenceError`]).
    pub fn unfence(&self, device: SourceId) -> Result<(), UnfenceError> {
        let p = &*self.engine.platform;
        match self.contexts.with(|contexts| contexts.unfence(p, device)) {
            Ok(true) => self.engine.flush_write_buffers().or(Ok(())), // the entry was absent and is: nothing that the unit must see
            Ok(false) => Err(UnfenceError::NotFenced { device }),
            Err(domain) => Err(UnfenceError::Attached { device, domain }),
        }
    }

    /// Fences the devices that did not answer. The flush is queued and not waited for: the detach
    /// of a device waits for one of its own.
    fn fence_silent(&self) {
        let Path::Queue(queue) = &self.engine.path else {
            return;
        };
        while let Some(device) = queue.take_silent() {
            let p = &*self.engine.platform;
            let had = self.contexts.with(|contexts| contexts.fence(p, device));
            let flush = had.map(|domain| {
                let change = Change::ContextRemoved { device, domain };
                let plan = plan(&self.engine.capabilities, change, &[]);
                self.engine.begin(plan)
            });
            // an invalidation that leaves the device out is behind this flush; without the flush
            // the device is asked, and fails the caller that asks
            if !matches!(flush, Some(Err(_))) {
                self.tlbs.deactivate(device);
            }
        }
    }
}

#[allow(unsafe_code)] // a promise
// SAFETY: each change is followed by the invalidations of its plan, device TLBs included, and
// "done" is what the unit wrote after the last (VT-d 4.1 §6.5).
unsafe impl<P: Platform, R: Registers> Invalidate for Unit<P, R> {
    type Token = Ticket;
    #[inline]
    fn submit(&self, domain: DomainId, scope: Scope) -> Result<Ticket, InvalidateError> {
        let mut room = [AtsDevice::NONE; DEVICES];
        let devices = self.tlbs.of_domain(domain, None, &mut room);
        let change = Change::Translations { domain, scope };
        let plan = plan(&self.engine.capabilities, change, devices);
        let ticket = self.engine.begin(plan)?;
        self.and_of_more(domain, ticket, devices, |more| {
            self.engine.begin(plan.devices_only(more))
        })
    }
    fn submit_ranges(
        &self,
        domain: DomainId,
        ranges: &[IovaRange],
        caches: Caches,
    ) -> Result<Ticket, InvalidateError> {
        let unit = &self.engine.capabilities;
        let Some(blocks) = Blocks::around(unit, &self.costs, ranges) else {
            return self.submit(domain, Scope::DOMAIN);
        };
        if let pages @ Some(_) = blocks.only() {
            return self.submit(domain, Scope { pages, caches });
        }
        let mut room = [AtsDevice::NONE; DEVICES];
        let devices = self.tlbs.of_domain(domain, None, &mut room);
        let plan = blocks.plan(unit, domain, caches, devices);
        self.engine.flush_write_buffers()?;
        let ticket = self.engine.submit_all(plan.invalidations())?;
        self.and_of_more(domain, ticket, devices, |more| {
            let rest = plan.devices_only(more);
            self.engine.submit_all(rest.invalidations())
        })
    }
    #[inline]
    fn done(&self, ticket: Ticket) -> Result<bool, InvalidateError> {
        let result = self.engine.done(ticket);
        // the caller that waited for the device may have given up
        self.fence_silent();
        result
    }

    fn on_map(&self) -> OnMap {
        let unit = &self.engine.capabilities;
        match (unit.caching_mode(), unit.needs_write_buffer_flush()) {
            // an invalidation flushes write buffers first
            (true, _) => OnMap::Invalidate,
            (false, true) => OnMap::FlushWriteBuffers,
            (false, false) => OnMap::Nothing,
        }
    }

    fn flush_write_buffers(&self) -> Result<(), InvalidateError> {
        self.engine.flush_write_buffers()
    }
}

#[allow(unsafe_code)] // a promise
// SAFETY: one context entry a device, under one lock, invalidated before it is used again; ids are
// free, or in use, or unknown and not given (`ids.rs`).
unsafe impl<P: Platform, R: Registers> RemappingUnit<P> for Unit<P, R> {
    fn platform(&self) -> Option<&Arc<P>> {
        Some(self.shared_platform())
    }
    fn attach(
        &self,
        _: Authority,
        p: &P,
        device: SourceId,
        domain: DomainId,
        root: PhysPage,
        levels: u32,
    ) -> Result<(), AttachError> {
        let width = self.width_of(levels);
        let width = width.ok_or(AttachError::Levels { levels })?;
        let translation = match self.tlbs.activate(p, device, domain) {
            Activation::Undeclared => TranslationType::Untranslated,
            Activation::Active => TranslationType::DeviceTlb,
            Activation::Before(domain) => return Err(AttachError::Attached { device, domain }),
        };
        let entry = ContextEntry {
            table: root,
            width,
            domain,
            translation,
            faults: FaultRecording::On,
        };
        if let Err(error) = self.fill(p, device, entry) {
            if translation == TranslationType::DeviceTlb {
                self.tlbs.deactivate(device);
            }
            return Err(error);
        }
        let made = Change::ContextMade { device, domain };
        self.engine.follow(made).map_err(|cause| {
            self.fence_silent();
            // the unit failed: block the device for good
            self.contexts
                .with(|contexts| contexts.begin_detach(p, device, domain));
            AttachError::Invalidate { device, cause }
        })
    }

    fn detach(
        &self,
        _: Authority,
        p: &P,
        device: SourceId,
        domain: DomainId,
    ) -> Result<(), AttachError> {
        let attached = self
            .contexts
            .with(|contexts| contexts.begin_detach(p, device, domain));
        if !attached {
            return Err(AttachError::NotAttached { device, domain });
        }
        let own = self.tlbs.of_device(device, domain);
        let change = Change::ContextRemoved { device, domain };
        let plan = plan(&self.engine.capabilities, change, own.as_slice());
        let finished = self.engine.finish(plan);
        self.fence_silent();
        finished.map_err(|cause| AttachError::Invalidate { device, cause })?;
        let ended = self
            .contexts
            .with(|contexts| contexts.end_detach(p, device, domain));
        // not by a second detach of the same: the device may be attached anew since
        if ended {
            self.tlbs.deactivate(device);
        }
        Ok(())
    }

    fn walks(&self, shape: TableShape) -> bool {
        shape.layout == VtdSecond48::LAYOUT
            && shape.entries_lg2 == self.engine.registers.table_entries_lg2()
            && self.width_of(shape.levels).is_some()
    }

    fn largest_leaf(&self) -> u32 {
        self.engine.capabilities.largest_leaf()
    }

    fn domain_id(&self, _: &P) -> Option<DomainId> {
        self.ids.with(Ids::take)
    }

    fn release_domain_id(&self, _: Authority, _: &P, id: DomainId) {
        self.ids.with(|ids| ids.give_back(id));
    }
}

impl<P: Platform, R: Registers> Unit<P, R> {
    /// What tables of so many levels translate, where the unit walks them.
    fn width_of(&self, levels: u32) -> Option<AddressWidth> {
        let unit = &self.engine.capabilities;
        // addresses above MGAW fault whatever the table says (§11.4.2)
        AddressWidth::from_levels(levels)
            .filter(|w| unit.supports_width(*w) && unit.iova_bits() >= w.bits())
    }
    /// Goes on with the device TLBs that did not go into the submission of `ticket`, which has
    /// those of `devices`.
    #[inline]
    fn and_of_more(
        &self,
        domain: DomainId,
        mut ticket: Ticket,
        devices: &[AtsDevice],
        submit: impl Fn(&[AtsDevice]) -> Result<Ticket, InvalidateError>,
    ) -> Result<Ticket, InvalidateError> {
        let mut last = devices.get(DEVICES - 1).map(|full| full.device);
        while last.is_some() {
            let mut room = [AtsDevice::NONE; DEVICES];
            let more = self.tlbs.of_domain(domain, last, &mut room);
            if !more.is_empty() {
                ticket = ticket.to(submit(more)?);
            }
            last = more.get(DEVICES - 1).map(|full| full.device);
        }
        Ok(ticket)
    }

    /// Makes the context entry of `device` present, with a table for its bus if there is none.
    fn fill(&self, p: &P, device: SourceId, entry: ContextEntry) -> Result<(), AttachError> {
        let words = entry.encode();
        let bus = (device.0 >> 8) as u8;
        let mut spare = None;
        let fill = |spare: &mut _| {
            self.contexts
                .with(|contexts| contexts.fill(p, &self.root, device, words, spare))
        };
        let mut outcome = fill(&mut spare);
        if let Fill::NeedsTable = outcome {
            // not under the lock; the second caller finds the first one's table, and frees its own
            spare = Some(p.frame_alloc().ok_or(AttachError::NoFrame { bus })?);
            outcome = fill(&mut spare);
        }
        if let Some(frame) = spare {
            p.frame_free(OURS, frame);
        }
        match outcome {
            Fill::Done => Ok(()),
            Fill::Taken(domain) => Err(AttachError::Attached { device, domain }),
            Fill::Fenced => Err(AttachError::Fenced { device }),
            Fill::IdInUse => Err(AttachError::IdInUse {
                device,
                domain: entry.domain,
                root: entry.table,
            }),
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
            .field("devices", &devices)
            .finish_non_exhaustive()
    }
}
