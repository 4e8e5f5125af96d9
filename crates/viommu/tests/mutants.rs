// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a completion must not settle, seen by a device.
//!
//! The shipped policies pair everything with a completion that settles it, so they never ask. Here is one that asks with
//! every completion it can get, and gives back whatever is settled; then the device looks. (Of the planted bugs,
//! `settle-older` and `settle-uncovered` show nowhere else.)

use ioatlas_dma::{
    grace::*,
    iova::{Assign, Lease, LeaseKind, Rbtree, Request},
    platform::{Platform, TableFrame, host::*},
    table::{Format, LeafAttrs, Table, TableConfig, fmt::Toy},
    translator::RemappingUnit,
    units::*,
};
use ioatlas_viommu::{
    config::{Geometry, UnitConfig},
    machine::{Driver, Machine},
    observe::Outcome,
};
use std::sync::Arc;

type Small = Toy<2, 3>;

const NIC: SourceId = SourceId(0x0020);
const LIMIT: WaitLimit = WaitLimit(1_000);
/// Pages that one leaf table maps.
const SPAN: PageCount = PageCount(4);
const OLD: PhysPage = PhysPage(0x100);
const NEW: PhysPage = PhysPage(0x200);

/// A table under a unit, with an assigner and a sequence, and no policy.
struct Bench {
    machine: Machine<Host>,
    table: Table<Host, Small>,
    grace: Grace<Host>,
    assigner: Rbtree<Host>,
    id: DomainId,
}

impl Bench {
    fn new() -> Self {
        let platform = Arc::new(Host::new(HostConfig {
            frames: 32,
            slots: 1,
        }));
        let config = UnitConfig::new(Geometry::of::<Small>());
        let machine = Machine::new(platform.clone(), &config).expect("a machine");
        let p = &*platform;
        let table = Table::new(p, TableConfig::default()).expect("a root table");
        let driver = machine.driver();
        let id = driver.domain_id(p).expect("an id");
        let attached = driver.attach(p, NIC, id, table.root(), Small::LEVELS);
        attached.expect("attached");
        Bench {
            table,
            grace: Grace::new(p),
            assigner: Rbtree::new(Small::aperture()),
            id,
            machine,
        }
    }
    fn p(&self) -> &Host {
        self.machine.platform()
    }
    fn driver(&self) -> &Driver<Host> {
        self.machine.driver()
    }
    /// Maps `pages` from `to` on; what is free comes highest first, so what was just released comes again.
    fn map(&self, pages: PageCount, to: PhysPage) -> Lease {
        let lease = self
            .assigner
            .assign(self.p(), &Request::pages(pages))
            .expect("free pages");
        let run = core::iter::once(PhysRun::new(to, pages));
        let leaf = LeafAttrs::new(Perm::ReadWrite, lease.kind());
        let done = self.table.install(self.p(), lease.range(), run, leaf);
        done.expect("installed");
        lease
    }
    /// Where the device's access to the first page of `range` goes.
    fn reach(&self, range: IovaRange) -> Option<PhysPage> {
        let access = self
            .machine
            .access(NIC, range.first.addr(), AccessKind::Read);
        match access.outcome {
            Outcome::Translated { page, .. } => Some(page),
            _ => None,
        }
    }
    fn clear(&self, range: IovaRange) -> Vec<TableFrame> {
        let mut detached = Vec::new();
        self.table
            .clear(self.p(), range, LeaseKind::Assigned, |frame| {
                detached.push(frame);
            });
        detached
    }
    fn flush(&self, scope: Scope) -> Completion {
        let flushed = self
            .grace
            .flush(self.p(), self.driver(), self.id, scope, LIMIT);
        flushed.expect("this unit does not fail")
    }
    /// Settles by `early` if that does it, and else by an invalidation of what is needed; the refusal, if there was one.
    fn settle<T>(
        &self,
        retired: Retired<T>,
        early: &Completion,
    ) -> (Flushed<T>, Option<Unsettled>) {
        let (retired, why) = match retired.settle(early) {
            Ok(flushed) => return (flushed, None),
            Err(refused) => refused,
        };
        let fresh = self.flush(retired.need());
        match retired.settle(&fresh) {
            Ok(flushed) => (flushed, Some(why)),
            Err((_, why)) => panic!("the right completion settles: {why}"),
        }
    }
    /// Gives `lease` back by `early` or better, and lets the device reach whoever gets the pages next.
    fn reuse(&self, retired: Retired<Lease>, early: &Completion) -> Option<Unsettled> {
        let range = retired.get().range();
        let (flushed, refusal) = self.settle(retired, early);
        self.assigner.release(self.p(), CpuIndex(0), flushed);
        let next = self.map(range.pages, NEW);
        assert_eq!(next.range(), range, "the same pages again");
        assert_eq!(
            self.reach(range),
            Some(NEW),
            "P3: the pages came home while a cache still held them"
        );
        refusal
    }
}

#[test]
fn an_invalidation_that_began_before_the_unmap_does_not_settle_it() {
    let bench = Bench::new();
    let lease = bench.map(PageCount(1), OLD);
    let older = bench.flush(Scope::DOMAIN);
    assert_eq!(bench.reach(lease.range()), Some(OLD), "cached anew");
    bench.clear(lease.range());
    let scope = Scope::leaves(lease.range());
    let retired = bench.grace.retire(bench.p(), lease, scope);
    let refusal = bench.reuse(retired, &older);
    assert!(matches!(refusal, Some(Unsettled::Older { .. })));
}

#[test]
fn an_invalidation_of_other_pages_does_not_settle() {
    let bench = Bench::new();
    let other = bench.map(PageCount(1), PhysPage(0x300));
    let lease = bench.map(PageCount(1), OLD);
    assert_eq!(bench.reach(lease.range()), Some(OLD), "cached");
    bench.clear(lease.range());
    let scope = Scope::leaves(lease.range());
    let retired = bench.grace.retire(bench.p(), lease, scope);
    let of_others = bench.flush(Scope::tables(other.range()));
    let refusal = bench.reuse(retired, &of_others);
    assert!(matches!(refusal, Some(Unsettled::NotCovered { .. })));
}

#[test]
fn an_invalidation_of_leaves_alone_does_not_settle_a_table() {
    let bench = Bench::new();
    let lease = bench.map(SPAN, OLD);
    let range = lease.range();
    assert_eq!(bench.reach(range), Some(OLD), "walked");
    let table = bench.clear(range).pop().expect("the leaf table");
    let page = table.page();
    let retired = bench.grace.retire(bench.p(), table, Scope::tables(range));
    let leaves = bench.flush(Scope::leaves(range));
    let (flushed, refusal) = bench.settle(retired, &leaves);
    assert!(
        !bench.machine.unit().holds_pointer_to(page),
        "P4: table {page} came home while a walk cache pointed to it"
    );
    bench.p().frame_free(flushed.into_fresh());
    assert!(matches!(refusal, Some(Unsettled::NotCovered { .. })));
}

#[test]
fn a_completion_of_another_domain_does_not_settle() {
    let (bench, elsewhere) = (Bench::new(), Bench::new());
    let lease = bench.map(PageCount(1), OLD);
    assert_eq!(bench.reach(lease.range()), Some(OLD), "cached");
    bench.clear(lease.range());
    let scope = Scope::leaves(lease.range());
    let retired = bench.grace.retire(bench.p(), lease, scope);
    elsewhere.flush(Scope::DOMAIN); // so that its numbers are ahead
    let foreign = elsewhere.flush(Scope::DOMAIN);
    let refusal = bench.reuse(retired, &foreign);
    assert_eq!(refusal, Some(Unsettled::ForeignDomain));
}
