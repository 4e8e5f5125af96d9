// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a completion must not complete, seen by a device.
//!
//! The shipped policies pair everything with a completion that completes it, so they never ask.
//! Here is one that asks with every completion it can get, and gives back whatever is completed;
//! then the device looks. (Of the planted bugs, `settle-older` and `settle-uncovered` show nowhere
//! else.)

use crate::explorer::pieces::Pieces;
use ioatlas_dma::{
    invalidation::*,
    iova::{AllocKind, IovaAlloc, IovaAllocator, Request},
    platform::{Platform, TableFrame},
    units::*,
};
use ioatlas_host::*;
use std::sync::Arc;

/// Pages that one leaf table maps.
const SPAN: PageCount = PageCount(4);
const OLD: PhysPage = PhysPage(0x100);
const NEW: PhysPage = PhysPage(0x200);

/// Pieces of a domain on this host.
struct Bench(Pieces<Host>);

impl Bench {
    fn new() -> Self {
        let (frames, slots) = (32, 1);
        Bench(Pieces::new(Arc::new(Host::new(
            HostConfig::default().frames(frames).slots(slots),
        ))))
    }
    fn p(&self) -> &Host {
        self.0.p()
    }
    /// Maps `pages` from `to` on; what is free comes highest first, so what was just released comes
    /// again.
    fn map(&self, pages: PageCount, to: PhysPage) -> IovaAlloc {
        let alloc = self.0.allocator.alloc(self.p(), &Request::pages(pages));
        let alloc = alloc.expect("free pages");
        self.0.install(&alloc, to);
        alloc
    }
    /// Where the device's access to the first page of `range` goes.
    fn reach(&self, range: IovaRange) -> Option<PhysPage> {
        self.0.reach(range.first)
    }
    fn clear(&self, range: IovaRange) -> Vec<TableFrame> {
        let mut detached = Vec::new();
        self.0
            .table
            .clear(crate::BY, self.p(), range, AllocKind::Dynamic, |frame| {
                detached.push(frame);
            });
        detached
    }
    /// Completes by `early` if that does it, and else by an invalidation of what is needed; the
    /// refusal, if there was one.
    fn complete<T>(
        &self,
        retired: Retired<T>,
        early: &Completion,
    ) -> (Flushed<T>, Option<CompleteError>) {
        let (retired, why) = match retired.complete(early) {
            Ok(flushed) => return (flushed, None),
            Err(refused) => refused,
        };
        let (flushed, _) = self.0.complete_anew(retired);
        (flushed, Some(why))
    }
    /// Gives `alloc` back by `early` or better, and lets the device reach the mapping that
    /// gets the pages next.
    fn reuse(&self, retired: Retired<IovaAlloc>, early: &Completion) -> Option<CompleteError> {
        let range = retired.get().range();
        let (flushed, refusal) = self.complete(retired, early);
        self.0.allocator.free(self.p(), CpuIndex(0), flushed);
        let next = self.map(range.pages, NEW);
        assert_eq!(next.range(), range, "the same pages again");
        assert_eq!(
            self.reach(range),
            Some(NEW),
            "P3: the pages were freed while a cache still held them"
        );
        refusal
    }
}

#[test]
fn an_invalidation_that_began_before_the_unmap_does_not_complete_it() {
    let bench = Bench::new();
    let alloc = bench.map(PageCount(1), OLD);
    let older = bench.0.flush(Scope::DOMAIN);
    assert_eq!(bench.reach(alloc.range()), Some(OLD), "cached anew");
    bench.clear(alloc.range());
    let scope = Scope::leaves(alloc.range());
    let retired = bench.0.sequence.retire(bench.p(), alloc, scope);
    let refusal = bench.reuse(retired, &older);
    assert!(matches!(refusal, Some(CompleteError::Older { .. })));
}

#[test]
fn an_invalidation_of_other_pages_does_not_complete() {
    let bench = Bench::new();
    let other = bench.map(PageCount(1), PhysPage(0x300));
    let alloc = bench.map(PageCount(1), OLD);
    assert_eq!(bench.reach(alloc.range()), Some(OLD), "cached");
    bench.clear(alloc.range());
    let scope = Scope::leaves(alloc.range());
    let retired = bench.0.sequence.retire(bench.p(), alloc, scope);
    let of_others = bench.0.flush(Scope::tables(other.range()));
    let refusal = bench.reuse(retired, &of_others);
    assert!(matches!(refusal, Some(CompleteError::NotCovered { .. })));
}

#[test]
fn an_invalidation_of_leaves_alone_does_not_complete_a_table() {
    let bench = Bench::new();
    let alloc = bench.map(SPAN, OLD);
    let range = alloc.range();
    assert_eq!(bench.reach(range), Some(OLD), "walked");
    let table = bench.clear(range).pop().expect("the leaf table");
    let page = table.page();
    let retired = bench
        .0
        .sequence
        .retire(bench.p(), table, Scope::tables(range));
    let leaves = bench.0.flush(Scope::leaves(range));
    let (flushed, refusal) = bench.complete(retired, &leaves);
    assert!(
        !bench.0.machine.unit().holds_pointer_to(page),
        "P4: table {page} was freed while a walk cache pointed to it"
    );
    bench.p().frame_free(crate::BY, flushed.into_fresh());
    assert!(matches!(refusal, Some(CompleteError::NotCovered { .. })));
}

#[test]
fn a_completion_of_another_domain_does_not_complete() {
    let (bench, elsewhere) = (Bench::new(), Bench::new());
    let alloc = bench.map(PageCount(1), OLD);
    assert_eq!(bench.reach(alloc.range()), Some(OLD), "cached");
    bench.clear(alloc.range());
    let scope = Scope::leaves(alloc.range());
    let retired = bench.0.sequence.retire(bench.p(), alloc, scope);
    elsewhere.0.flush(Scope::DOMAIN); // so that its numbers are ahead
    let foreign = elsewhere.0.flush(Scope::DOMAIN);
    let refusal = bench.reuse(retired, &foreign);
    assert_eq!(refusal, Some(CompleteError::ForeignDomain));
}
