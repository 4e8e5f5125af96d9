// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a walk does under the unit's lock: look into the caches, take in the entry just read, go on
//! or end.

use super::{Request, Stage};
use crate::{
    active::{Pointer as Reading, Ticket},
    decode::*,
    device::AddressType,
    fault::FaultReason,
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
        self.enter_by(ticket, request.address_type);
        if let Some(known) = self.caches.context.get(&request.source) {
            self.stats.context_hits += 1;
            return match known {
                Ok(context) => self.attached(ticket, request, context),
                Err(bad) => {
                    self.stats.absent_hits += 1;
                    let stage = self.fault(request, bad.reason, bad.silent);
                    (stage, From::AbsentEntry)
                }
            };
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
        if request.address_type != AddressType::Untranslated {
            let allowed = matches!(context.attachment, Attachment::TablesAndDeviceTlb(_));
            if !allowed {
                let stage = self.fault(request, FaultReason::TranslationBlocked, context.silent);
                return (stage, From::Nowhere);
            }
        }
        if let AddressType::Translated(held) = request.address_type {
            let outcome = Outcome::Translated {
                page: held.to,
                domain: held.domain,
                perm: held.perm,
                leaf: PageCount(1),
            };
            return (Stage::Ready(outcome), From::DeviceTlb);
        }
        let Some(root) = context.attachment.tables() else {
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
        if let Some((level, hit)) = self.caches.translation(domain, page) {
            self.stats.iotlb_hits += 1;
            self.stats.large_hits += u64::from(level > 1);
            let leaf = self.uses_leaf(ticket, page, level);
            let stage = if hit.perm.allows(kind) {
                self.answer_device(ticket, request, domain, hit.to, hit.perm);
                Stage::Ready(Outcome::Translated {
                    page: hit.to,
                    domain,
                    perm: hit.perm,
                    leaf,
                })
            } else {
                self.fault(request, FaultReason::NotPermitted { kind }, context.silent)
            };
            return (stage, From::Iotlb);
        }
        self.stats.iotlb_misses += 1;
        if let Some(reason) = self.caches.absent.get(domain, page, kind) {
            self.stats.absent_hits += 1;
            let stage = self.fault(request, reason, context.silent);
            return (stage, From::AbsentEntry);
        }
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
            Err(reason) => {
                let silent = false;
                self.fill_absent_context(ticket, request, BadContext { reason, silent });
                self.stop(ticket, request, reason, silent)
            }
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
                self.fill_absent_context(ticket, request, bad);
                let stage = self.stop(ticket, request, bad.reason, bad.silent);
                return (stage, From::Nowhere);
            }
        };
        let (source, domain) = (request.source, context.domain);
        let entry = Filled::Context { source, domain };
        self.fill_context(ticket, request, Ok(context), entry);
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
        let denied = FaultReason::NotPermitted { kind };
        let (geometry, domain) = (self.geometry, context.domain);
        let decoded = entry
            .ok_or(FaultReason::TableUnreachable { level })
            .and_then(|word| second_stage(word, level, kind, geometry, &self.features));
        let narrowed = |found: Pointer| Pointer {
            rights: rights.and(found.rights),
            ..found
        };
        let leaf = match decoded {
            Err(reason) => {
                self.fill_absent(ticket, request.id, domain, page, reason);
                return self.stop(ticket, request, reason, context.silent);
            }
            Ok(Entry::Table(found)) => {
                let found = narrowed(found);
                if !found.rights.allow(kind) {
                    return self.stop(ticket, request, denied, context.silent);
                }
                self.fill_walk(ticket, request, domain, level, found);
                self.point(ticket, Reading::Table(found.to, level - 1));
                return Stage::Table {
                    context,
                    level: level - 1,
                    table: found.to,
                    rights: found.rights,
                };
            }
            Ok(Entry::Leaf(found)) => narrowed(found),
        };
        let covers = self.uses_leaf(ticket, page, level);
        let perm = leaf.rights.perm().filter(|perm| perm.allows(kind));
        let Some(perm) = perm else {
            return self.stop(ticket, request, denied, context.silent);
        };
        self.fill_leaf(ticket, request.id, domain, page, (level, leaf));
        let to = PhysPage(leaf.to.0 + (page.0 & (covers.0 - 1)));
        self.answer_device(ticket, request, domain, to, perm);
        let outcome = Outcome::Translated {
            page: to,
            domain,
            perm,
            leaf: covers,
        };
        if level > 1 {
            self.point(ticket, Reading::None);
            return Stage::Ready(outcome); // nothing of the kind is beside it in its table
        }
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
        let (geometry, domain) = (self.geometry, context.domain);
        let found = entry.map(|w| second_stage(w, 1, request.kind, geometry, &self.features));
        match found {
            Some(Ok(Entry::Leaf(found))) => {
                let rights = rights.and(found.rights);
                let leaf = Pointer { rights, ..found };
                self.fill_leaf(ticket, request.id, domain, next, (1, leaf));
            }
            Some(Err(reason)) => self.fill_absent(ticket, request.id, domain, next, reason),
            Some(Ok(Entry::Table(_))) | None => {}
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
}
