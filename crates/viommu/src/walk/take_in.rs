// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a walk does under the unit's lock: look into the caches, take in the entry just read, fill, go on or end.

use super::{Request, Stage};
use crate::{
    active::{Pointer as Reading, Ticket},
    caches::Translation,
    decode::*,
    fault::{FaultReason, FaultRecord},
    observe::*,
    unit::State,
};
use ioatlas_dma::units::*;

impl State {
    /// The last page that a walk to `page` may fill: reading ahead stays within the table.
    pub(super) fn reach(&self, page: IovaPage) -> IovaPage {
        let table_end = page.0 | ((1 << self.geometry.entries_lg2) - 1);
        IovaPage(page.0.saturating_add(self.prefetch.into()).min(table_end))
    }

    pub(super) fn start(&mut self, ticket: Ticket, request: Request) -> (Stage, From) {
        if !self.registers.translating {
            let outcome = Outcome::PassedThrough {
                page: PhysPage(request.page.0),
                why: PassThrough::TranslationDisabled,
            };
            return (Stage::Ready(outcome), From::Nowhere);
        }
        if let Some(context) = self.caches.context.get(&request.source) {
            self.stats.context_hits += 1;
            return self.attached(ticket, request, context);
        }
        self.stats.context_misses += 1;
        let stage = match self.registers.root {
            Some(table) => {
                self.point(ticket, Reading::Context(table));
                Stage::Root { table }
            }
            None => self.fault(request, FaultReason::RootUnreachable, false),
        };
        (stage, From::Nowhere)
    }

    /// The device's domain is known: IOTLB, then walk caches, then the root.
    fn attached(&mut self, ticket: Ticket, request: Request, context: Context) -> (Stage, From) {
        let Request { page, kind, .. } = request;
        let domain = context.domain;
        if let Some(active) = self.active.get(ticket) {
            active.domain = Some(domain);
        }
        self.point(ticket, Reading::None);
        let Attachment::Tables(root) = context.attachment else {
            let outcome = Outcome::PassedThrough {
                page: PhysPage(page.0),
                why: PassThrough::Context,
            };
            return (Stage::Ready(outcome), From::Nowhere);
        };
        if page.0 >> self.geometry.aperture_lg2() != 0 {
            let stage = self.fault(request, FaultReason::BeyondAperture, context.silent);
            return (stage, From::Nowhere);
        }
        if let Some(hit) = self.caches.iotlb.get(domain, page) {
            self.stats.iotlb_hits += 1;
            let stage = if hit.perm.allows(kind) {
                Stage::Ready(Outcome::Translated {
                    page: hit.to,
                    domain,
                    perm: hit.perm,
                })
            } else {
                self.fault(request, FaultReason::NotPermitted { kind }, context.silent)
            };
            return (stage, From::Iotlb);
        }
        self.stats.iotlb_misses += 1;
        let (from, level, table, rights) = match self.caches.nearest(domain, page) {
            Some((level, entry)) => {
                self.stats.walk_cache_hits += 1;
                (From::WalkCache(level), level - 1, entry.to, entry.rights)
            }
            None => (From::Walk, self.geometry.levels, root, Rights::ALL),
        };
        if !rights.allow(kind) {
            let stage = self.fault(request, FaultReason::NotPermitted { kind }, context.silent);
            return (stage, from);
        }
        self.point(ticket, Reading::Table(table, level));
        let stage = Stage::Table {
            context,
            level,
            table,
            rights,
        };
        (stage, from)
    }

    pub(super) fn root_read(
        &mut self,
        ticket: Ticket,
        request: Request,
        entry: Option<(u64, u64)>,
    ) -> Stage {
        let decoded = entry
            .ok_or(FaultReason::RootUnreachable)
            .and_then(|(low, high)| root_entry(low, high, &self.features));
        match decoded {
            Ok(table) => {
                self.point(ticket, Reading::Context(table));
                Stage::Context { table }
            }
            Err(reason) => self.stop(ticket, request, reason, false),
        }
    }

    pub(super) fn context_read(
        &mut self,
        ticket: Ticket,
        request: Request,
        entry: Option<(u64, u64)>,
    ) -> (Stage, From) {
        let unreachable = BadContext {
            reason: FaultReason::ContextUnreachable,
            silent: false,
        };
        let decoded = entry
            .ok_or(unreachable)
            .and_then(|(low, high)| context_entry(low, high, self.geometry, &self.features));
        let context = match decoded {
            Ok(context) => context,
            Err(bad) => {
                let stage = self.stop(ticket, request, bad.reason, bad.silent);
                return (stage, From::Nowhere);
            }
        };
        if self.active.get(ticket).is_some_and(|a| a.context_overtaken) {
            self.stats.fills_dropped += 1;
        } else {
            self.stats.displaced += self.caches.context.insert(request.source, context);
            if self.caches.context.capacity() > 0 {
                let entry = Filled::Context {
                    source: request.source,
                    domain: context.domain,
                };
                self.emit(Event::Filled {
                    id: request.id,
                    entry,
                });
            }
        }
        self.attached(ticket, request, context)
    }

    pub(super) fn table_read(
        &mut self,
        ticket: Ticket,
        request: Request,
        stage: Stage,
        entry: Option<u64>,
    ) -> Stage {
        let Stage::Table {
            context,
            level,
            table,
            rights,
        } = stage
        else {
            return stage;
        };
        self.stats.walk_reads += 1;
        let Request { page, kind, .. } = request;
        let decoded = entry
            .ok_or(FaultReason::TableUnreachable { level })
            .and_then(|word| second_stage(word, level, kind, &self.features))
            .and_then(|found| {
                let rights = rights.and(found.rights);
                let denied = FaultReason::NotPermitted { kind };
                rights
                    .allow(kind)
                    .then_some(Pointer { rights, ..found })
                    .ok_or(denied)
            });
        let found = match decoded {
            Ok(found) => found,
            Err(reason) => return self.stop(ticket, request, reason, context.silent),
        };
        if level > 1 {
            self.fill_walk(ticket, request, context.domain, level, found);
            self.point(ticket, Reading::Table(found.to, level - 1));
            return Stage::Table {
                context,
                level: level - 1,
                table: found.to,
                rights: found.rights,
            };
        }
        let Some(perm) = found.rights.perm() else {
            let denied = FaultReason::NotPermitted { kind };
            return self.stop(ticket, request, denied, context.silent);
        };
        let domain = context.domain;
        self.fill_iotlb(ticket, request.id, domain, page, found.to, perm);
        let outcome = Outcome::Translated {
            page: found.to,
            domain,
            perm,
        };
        self.ahead(ticket, page, context, table, rights, outcome)
    }

    pub(super) fn ahead_read(
        &mut self,
        ticket: Ticket,
        request: Request,
        stage: Stage,
        entry: Option<u64>,
    ) -> Stage {
        let Stage::Ahead {
            context,
            table,
            rights,
            next,
            outcome,
        } = stage
        else {
            return stage;
        };
        self.stats.prefetch_reads += 1;
        // what is wrong with a neighbour is no fault of this access
        let found = entry.and_then(|w| second_stage(w, 1, request.kind, &self.features).ok());
        let perm = found.and_then(|f| rights.and(f.rights).perm());
        if let (Some(found), Some(perm)) = (found, perm) {
            self.fill_iotlb(ticket, request.id, context.domain, next, found.to, perm);
        }
        self.ahead(ticket, next, context, table, rights, outcome)
    }

    /// The stage after `done` was read at level 1: the next page within reach, or the end.
    fn ahead(
        &mut self,
        ticket: Ticket,
        done: IovaPage,
        context: Context,
        table: PhysPage,
        rights: Rights,
        outcome: Outcome,
    ) -> Stage {
        let last = self.active.get(ticket).map_or(done, |a| a.last);
        if done >= last {
            self.point(ticket, Reading::None);
            return Stage::Ready(outcome);
        }
        Stage::Ahead {
            context,
            table,
            rights,
            next: IovaPage(done.0 + 1),
            outcome,
        }
    }

    fn fill_walk(
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

    fn fill_iotlb(
        &mut self,
        ticket: Ticket,
        id: AccessId,
        domain: DomainId,
        page: IovaPage,
        to: PhysPage,
        perm: Perm,
    ) {
        if self.overtaken(ticket) || self.caches.iotlb.capacity() == 0 {
            return;
        }
        self.stats.displaced += self.caches.iotlb.fill(Translation {
            domain,
            page,
            to,
            perm,
        });
        let entry = Filled::Iotlb {
            domain,
            page,
            to,
            perm,
        };
        self.emit(Event::Filled { id, entry });
    }

    fn overtaken(&mut self, ticket: Ticket) -> bool {
        let overtaken = self.active.get(ticket).is_some_and(|a| a.overtaken);
        self.stats.fills_dropped += u64::from(overtaken);
        overtaken
    }

    fn point(&mut self, ticket: Ticket, to: Reading) {
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
    fn stop(
        &mut self,
        ticket: Ticket,
        request: Request,
        reason: FaultReason,
        silent: bool,
    ) -> Stage {
        self.point(ticket, Reading::None);
        self.fault(request, reason, silent)
    }
    fn fault(&mut self, request: Request, reason: FaultReason, silent: bool) -> Stage {
        if !silent {
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
