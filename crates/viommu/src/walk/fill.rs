// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a walk leaves behind: cache entries, unless an invalidation has overtaken it, events, fault
//! records, counts.

use super::{Request, Stage};
use crate::{
    active::{Pointer as Reading, Ticket},
    caches::{KnownContext, Translation},
    decode::{BadContext, Pointer},
    device::{AddressType, Held},
    fault::{FaultReason, FaultRecord},
    observe::*,
    unit::State,
};
use ioatlas_dma::units::*;

impl State {
    pub(super) fn fill_walk(
        &mut self,
        ticket: Ticket,
        request: Request,
        domain: DomainId,
        level: u32,
        entry: Pointer,
    ) {
        if self.overtaken(ticket) {
            return;
        }
        let page = request.page;
        if let Some(displaced) = self.caches.fill_walk(level, domain, page, entry) {
            self.stats.displaced += displaced;
            let frame = entry.to;
            self.emit(Event::Filled {
                id: request.id,
                entry: Filled::Walk {
                    level,
                    domain,
                    page,
                    frame,
                },
            });
        }
    }

    /// Enters the leaf that translates `page`, found at a level, where it permits anything.
    pub(super) fn fill_leaf(
        &mut self,
        ticket: Ticket,
        id: AccessId,
        domain: DomainId,
        page: IovaPage,
        (level, leaf): (u32, Pointer),
    ) {
        let Some(perm) = leaf.rights.perm() else {
            return;
        };
        if self.overtaken(ticket) || level == 1 && self.caches.iotlb.capacity() == 0 {
            return;
        }
        let to = leaf.to;
        let displaced = match level {
            1 => Some(self.caches.iotlb.fill(Translation {
                domain,
                page,
                to,
                perm,
            })),
            _ => self.caches.large.fill(level, domain, page, leaf),
        };
        let Some(displaced) = displaced else { return };
        self.stats.displaced += displaced;
        let pages = 1 << self.geometry.leaf_span_lg2(level);
        let entry = Filled::Iotlb {
            domain,
            page: IovaPage(page.0 & !(pages - 1)),
            to,
            perm,
            leaf: PageCount(pages),
        };
        self.emit(Event::Filled { id, entry });
    }

    /// In caching mode: remembers the absent or faulty entry that stopped a walk to `page`.
    pub(super) fn fill_absent(
        &mut self,
        ticket: Ticket,
        id: AccessId,
        domain: DomainId,
        page: IovaPage,
        reason: FaultReason,
    ) {
        if !self.features.caching_mode || self.overtaken(ticket) {
            return;
        }
        if let Some((level, displaced)) = self.caches.absent.fill(domain, page, reason) {
            self.stats.displaced += displaced;
            let entry = Filled::Absent {
                level,
                domain,
                page,
            };
            self.emit(Event::Filled { id, entry });
        }
    }

    /// In caching mode: remembers that the device is attached nowhere. What could not be read at
    /// all is not remembered.
    pub(super) fn fill_absent_context(
        &mut self,
        ticket: Ticket,
        request: Request,
        bad: BadContext,
    ) {
        use FaultReason::*;
        let unreachable = matches!(bad.reason, RootUnreachable | ContextUnreachable);
        if self.features.caching_mode && !unreachable {
            let source = request.source;
            let entry = Filled::AbsentContext { source };
            self.fill_context(ticket, request, Err(bad), entry);
        }
    }

    pub(super) fn fill_context(
        &mut self,
        ticket: Ticket,
        request: Request,
        known: KnownContext,
        entry: Filled,
    ) {
        if self.active.get(ticket).is_some_and(|a| a.context_overtaken) {
            self.stats.fills_dropped += 1;
            return;
        }
        self.stats.displaced += self.caches.context.insert(request.source, known);
        if self.caches.context.capacity() > 0 {
            let id = request.id;
            self.emit(Event::Filled { id, entry });
        }
    }

    /// Counts how an access comes; by a translation of its own it needs none of the unit's.
    pub(super) fn enter_by(&mut self, ticket: Ticket, address_type: AddressType) {
        match address_type {
            AddressType::Untranslated => {}
            AddressType::TranslationRequest => self.stats.translation_requests += 1,
            AddressType::Translated(_) => {
                self.stats.device_tlb_hits += 1;
                if let Some(active) = self.active.get(ticket) {
                    active.own = true;
                }
            }
        }
    }
    /// A translation request is answered: from now on it is the device's.
    pub(super) fn answer_device(
        &mut self,
        ticket: Ticket,
        request: Request,
        domain: DomainId,
        to: PhysPage,
        perm: Perm,
    ) {
        let Request {
            id, source, page, ..
        } = request;
        if request.address_type != AddressType::TranslationRequest {
            return;
        }
        if let Some(active) = self.active.get(ticket) {
            active.own = true;
        }
        let held = Held { to, perm, domain };
        if let Some(displaced) = self.devices.keep(source, page, held) {
            self.stats.displaced += displaced;
            let entry = Filled::DeviceTlb {
                source,
                page,
                to,
                perm,
            };
            self.emit(Event::Filled { id, entry });
        }
    }

    /// The access uses a leaf of `level`, whose pages it may fill and its data move in; returns
    /// how many these are.
    pub(super) fn uses_leaf(&mut self, ticket: Ticket, page: IovaPage, level: u32) -> PageCount {
        let pages = 1 << self.geometry.leaf_span_lg2(level);
        if let Some(active) = self.active.get(ticket).filter(|_| level > 1) {
            active.first = IovaPage(page.0 & !(pages - 1));
            active.last = IovaPage(page.0 | (pages - 1));
        }
        PageCount(pages)
    }

    fn overtaken(&mut self, ticket: Ticket) -> bool {
        let overtaken = self.active.get(ticket).is_some_and(|a| a.overtaken);
        self.stats.fills_dropped += u64::from(overtaken);
        overtaken
    }

    pub(super) fn point(&mut self, ticket: Ticket, to: Reading) {
        let Some(active) = self.active.get(ticket) else {
            return;
        };
        active.pointer = to;
        let id = active.id;
        let (frame, level) = match to {
            Reading::Context(frame) => (frame, None),
            Reading::Table(frame, level) => (frame, Some(level)),
            Reading::None => return,
        };
        self.emit(Event::Pointed { id, level, frame });
    }

    /// A walk ends in a fault.
    pub(super) fn stop(
        &mut self,
        ticket: Ticket,
        request: Request,
        reason: FaultReason,
        silent: bool,
    ) -> Stage {
        self.point(ticket, Reading::None);
        self.fault(request, reason, silent)
    }
    pub(super) fn fault(&mut self, request: Request, reason: FaultReason, silent: bool) -> Stage {
        // a translation request that finds nothing is answered so
        let nothing = matches!(
            reason,
            FaultReason::NotPresent { .. } | FaultReason::NotPermitted { .. }
        );
        let answered = nothing && request.address_type == AddressType::TranslationRequest;
        if !silent && !answered {
            self.record_fault(FaultRecord {
                source: request.source,
                page: request.page,
                kind: request.kind,
                reason,
            });
        }
        Stage::Ready(Outcome::Fault(reason))
    }

    pub(super) fn count(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Translated { .. } => {}
            Outcome::PassedThrough { .. } => self.stats.passed_through += 1,
            Outcome::Fault(_) => self.stats.faults += 1,
        }
    }
    /// The access is in flight no more; returns whether the caller is to run the queue.
    pub(super) fn leave(&mut self, ticket: Ticket) -> bool {
        let blocked = self.active.leave(ticket).is_some_and(|a| a.blocks);
        blocked && self.drained_one()
    }
}
