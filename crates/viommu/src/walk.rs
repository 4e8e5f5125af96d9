// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! One access: lookups, then a walk in separable steps.
//!
//! Root entry, context entry, one entry a level, then what is read ahead. Each step reads one entry
//! from memory without the lock, then takes it in under the lock: there the caches are filled at
//! once, unless an invalidation has overtaken the walk. Rights narrow on the way down (VT-d 4.1
//! §3.7.1); a faulting walk caches nothing of the entry that stopped it.

mod fill;
mod take_in;

use crate::{
    active::{Active, Pointer as Reading, Ticket},
    decode::{Context, Rights},
    device::AddressType,
    observe::*,
    unit::SoftUnit,
};
use ioatlas_dma::{
    platform::{Lock, PhysMemory, Platform},
    units::*,
};

/// An access under way. It is in flight until [`finish`](Self::finish), or until dropped: then
/// it is given up.
#[must_use = "a dropped access is given up"]
pub struct InFlight<'u, P: Platform, M: PhysMemory<P>> {
    unit: &'u SoftUnit<P, M>,
    ticket: Option<Ticket>,
    began: Moment,
    request: Request,
    stage: Stage,
    from: From,
    reads: u32,
}

/// What an access in flight does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Another entry is to be read.
    Reading,
    /// Nothing: the access can be finished.
    Ready,
}

#[derive(Clone, Copy)]
struct Request {
    id: AccessId,
    source: SourceId,
    page: IovaPage,
    kind: AccessKind,
    address_type: AddressType,
}

#[derive(Clone, Copy)]
enum Stage {
    Root {
        table: PhysPage,
    },
    Context {
        table: PhysPage,
    },
    Table {
        context: Context,
        level: u32,
        table: PhysPage,
        rights: Rights,
    },
    /// The outcome is known; neighbours in the same table are read too.
    Ahead {
        context: Context,
        table: PhysPage,
        rights: Rights,
        next: IovaPage,
        outcome: Outcome,
    },
    Ready(Outcome),
}

impl<'u, P: Platform, M: PhysMemory<P>> InFlight<'u, P, M> {
    pub(crate) fn begin(
        unit: &'u SoftUnit<P, M>,
        source: SourceId,
        page: IovaPage,
        kind: AccessKind,
    ) -> Self {
        unit.state.with(|s| {
            s.maybe_evict();
            let id = AccessId(s.accesses_named);
            s.accesses_named += 1;
            s.stats.accesses += 1;
            let began = s.emit(Event::AccessBegan {
                id,
                source,
                page,
                kind,
            });
            let ticket = s.active.enter(Active {
                id,
                source,
                kind,
                page,
                first: page,
                last: s.reach(page),
                domain: None,
                own: false,
                pointer: Reading::None,
                overtaken: false,
                context_overtaken: false,
                blocks: false,
            });
            let request = Request {
                id,
                source,
                page,
                kind,
                address_type: s.devices.address_type(source, page, kind),
            };
            let (stage, from) = s.start(ticket, request);
            InFlight {
                unit,
                ticket: Some(ticket),
                began,
                request,
                stage,
                from,
                reads: 0,
            }
        })
    }

    /// Reads one entry from memory and takes it in. Does nothing once ready.
    pub fn step(&mut self) -> Step {
        let Some(ticket) = self.ticket else {
            return Step::Ready;
        };
        let request = self.request;
        match self.stage {
            Stage::Ready(_) => return Step::Ready,
            Stage::Root { table } => {
                let entry = self.read_pair(table, u64::from(request.source.0 >> 8));
                self.stage = self
                    .unit
                    .state
                    .with(|s| s.root_read(ticket, request, entry));
            }
            Stage::Context { table } => {
                let entry = self.read_pair(table, u64::from(request.source.0 & 0xff));
                (self.stage, self.from) = self
                    .unit
                    .state
                    .with(|s| s.context_read(ticket, request, entry));
            }
            Stage::Table { level, table, .. } => {
                let entry = self.read(table, self.unit.geometry.index(request.page.0, level));
                let stage = self.stage;
                self.stage = self
                    .unit
                    .state
                    .with(|s| s.table_read(ticket, request, stage, entry));
            }
            Stage::Ahead { table, next, .. } => {
                let entry = self.read(table, self.unit.geometry.index(next.0, 1));
                let stage = self.stage;
                self.stage = self
                    .unit
                    .state
                    .with(|s| s.ahead_read(ticket, request, stage, entry));
            }
        }
        match self.stage {
            Stage::Ready(_) => Step::Ready,
            _ => Step::Reading,
        }
    }

    /// Whether anything is left to read.
    pub fn next(&self) -> Step {
        match self.stage {
            Stage::Ready(_) => Step::Ready,
            _ => Step::Reading,
        }
    }

    /// Where its data go, once that is known. They move before [`finish`](Self::finish): until
    /// then, an invalidation waits for it.
    pub fn outcome(&self) -> Option<Outcome> {
        match self.stage {
            Stage::Ready(outcome) => Some(outcome),
            _ => None,
        }
    }

    /// Goes on until it is known where its data go, or why it is blocked.
    pub fn run(&mut self) -> Outcome {
        loop {
            match self.stage {
                Stage::Ready(outcome) => return outcome,
                _ => self.step(),
            };
        }
    }

    /// Goes to the end, and ends the access: the data has moved.
    pub fn finish(mut self) -> Access {
        let outcome = self.run();
        let ticket = self.ticket.take();
        let (access, resume) = self.unit.state.with(|s| {
            s.count(&outcome);
            let access = Access {
                id: self.request.id,
                source: self.request.source,
                page: self.request.page,
                kind: self.request.kind,
                outcome,
                from: self.from,
                reads: self.reads,
                began: self.began,
                ended: s.next_moment(),
            };
            s.emit(Event::AccessFinished(access));
            (access, ticket.is_some_and(|t| s.leave(t)))
        });
        if resume {
            self.unit.run_queue();
        }
        access
    }

    fn read(&mut self, table: PhysPage, index: usize) -> Option<u64> {
        self.reads += 1;
        self.unit.seen_word(table, index)
    }
    /// Hardware fetches the 16 bytes of a root or context entry at once. Two loads cannot,
    /// so they are repeated while the low word changes meanwhile; a writer that never stops
    /// is not waited for.
    fn read_pair(&mut self, table: PhysPage, index: u64) -> Option<(u64, u64)> {
        self.reads += 1;
        let at = index as usize * 2;
        let mut first = self.unit.seen_word(table, at)?;
        for _ in 0..8 {
            let second = self.unit.seen_word(table, at + 1)?;
            let again = self.unit.seen_word(table, at)?;
            if again == first {
                return Some((first, second));
            }
            first = again;
        }
        Some((first, self.unit.seen_word(table, at + 1)?))
    }
}

impl<P: Platform, M: PhysMemory<P>> Drop for InFlight<'_, P, M> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.take() else {
            return;
        };
        let resume = self.unit.state.with(|s| {
            s.stats.aborted += 1;
            s.emit(Event::AccessAborted {
                id: self.request.id,
            });
            s.leave(ticket)
        });
        if resume {
            self.unit.run_queue();
        }
    }
}
