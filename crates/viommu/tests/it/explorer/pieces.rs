// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a domain is made of, without a policy: a table under a unit, an allocator and a flush
//! sequence.
//!
//! The shipped policies pair what they retire with a completion that completes it, so they never
//! meet a refusal. Code that uses this tries what they do not.

use ioatlas_dma::{
    invalidation::*,
    iova::{IovaAlloc, Rbtree},
    platform::{Authority, PhysMemory, Platform},
    table::{Format, LeafAttrs, Table, TableConfig, fmt::Toy},
    translator::RemappingUnit,
    units::*,
};
use ioatlas_viommu::{
    config::{Geometry, UnitConfig},
    machine::Machine,
    observe::Outcome,
};
use std::sync::Arc;

pub type Small = Toy<2, 3>;

const NIC: SourceId = SourceId(0x0020);
const LIMIT: WaitLimit = WaitLimit(1_000);

pub struct Pieces<P: Platform + PhysMemory<P>> {
    pub machine: Machine<P>,
    pub table: Table<P, Small>,
    pub sequence: FlushSequence<P>,
    pub allocator: Rbtree<P>,
    id: DomainId,
}

impl<P: Platform + PhysMemory<P>> Pieces<P> {
    pub fn new(platform: Arc<P>) -> Self {
        let config = UnitConfig::new(Geometry::of::<Small>());
        let machine = Machine::new(platform.clone(), &config).expect("a machine");
        let p = &*platform;
        let table = Table::new(p, TableConfig::default()).expect("a root table");
        let driver = machine.driver();
        let id = driver.domain_id(p).expect("an id");
        // SAFETY: the table lives as long as the machine; its id is its own.
        let by = unsafe { Authority::assume() };
        let attached = driver.attach(by, p, NIC, id, table.root(), Small::LEVELS);
        attached.expect("attached");
        Pieces {
            table,
            // SAFETY: of this machine's unit, by the id of the one table; the tests say what is
            // retired, and complete it as a domain does.
            sequence: unsafe { FlushSequence::new(p) },
            allocator: Rbtree::new(Small::aperture()),
            id,
            machine,
        }
    }

    pub fn p(&self) -> &P {
        self.machine.platform()
    }

    /// Leaves of an allocation, for pages from `to` on.
    pub fn install(&self, alloc: &IovaAlloc, to: PhysPage) {
        let run = std::iter::once(PhysRun::new(to, alloc.range().pages));
        let leaf = LeafAttrs::new(Perm::ReadWrite, alloc.kind());
        let installed = self
            .table
            .install(crate::BY, self.p(), alloc.range(), run, leaf);
        installed.expect("P3: free pages have no leaf");
    }

    /// Where the device's access to `page` goes.
    pub fn reach(&self, page: IovaPage) -> Option<PhysPage> {
        let access = self.machine.access(NIC, page.addr(), AccessKind::Read);
        match access.outcome {
            Outcome::Translated { page, .. } => Some(page),
            _ => None,
        }
    }

    pub fn flush(&self, scope: Scope) -> Completion {
        let (p, driver) = (self.p(), self.machine.driver());
        let flushed = self.sequence.flush(p, driver, self.id, scope, LIMIT);
        flushed.expect("this unit does not fail")
    }

    /// By an invalidation of what is needed, which completes it.
    pub fn complete_anew<T>(&self, retired: Retired<T>) -> (Flushed<T>, Completion) {
        let fresh = self.flush(retired.need());
        match retired.complete(&fresh) {
            Ok(flushed) => (flushed, fresh),
            Err((_, why)) => panic!("the right completion completes: {why}"),
        }
    }
}
