// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! [`Pieces`] of a domain without a policy: every completion is tried on everything.

use crate::explorer::{crowd::*, pieces::*, plan::Plan};
use ioatlas_dma::{
    invalidation::*,
    iova::{AllocKind, IovaAlloc, IovaAllocator, Request},
    platform::{Platform, TableFrame},
    table::Format,
    units::*,
};
use ioatlas_sim::platform::{Sim, World};
use std::{
    cell::{Cell, RefCell},
    sync::Arc,
};

struct Bench {
    pieces: Pieces<Sim>,
    /// What any CPU got last.
    last: RefCell<Option<Completion>>,
    maps: Cell<u64>,
}

impl Bench {
    fn new(plan: &Plan) -> Self {
        Bench {
            pieces: Pieces::new(Arc::new(plan.platform())),
            last: RefCell::new(None),
            maps: Cell::new(0),
        }
    }

    /// By the last completion if it does, and else by an invalidation of what is needed.
    fn complete<T>(&self, retired: Retired<T>) -> Flushed<T> {
        // there is no switch meanwhile: there is no shared access in between
        let last = self.last.take();
        let tried = match &last {
            None => Err(retired),
            Some(last) => retired.complete(last).map_err(|(retired, _)| retired),
        };
        self.last.replace(last);
        let retired = match tried {
            Ok(flushed) => return flushed,
            Err(retired) => retired,
        };
        let (flushed, fresh) = self.pieces.complete_anew(retired);
        self.last.replace(Some(fresh));
        flushed
    }

    /// Maps, lets the device reach it, unmaps, and gives all back once it is completed.
    fn round(&self, random: &mut Random, to: PhysPage) {
        let pieces = &self.pieces;
        let p = pieces.p();
        let pages = PageCount([1, 1, 4][random.below(3) as usize]);
        let Ok(alloc) = pieces.allocator.alloc(p, &Request::pages(pages)) else {
            return;
        };
        let range = alloc.range();
        pieces.install(&alloc, to);
        self.maps.set(self.maps.get() + 1);
        for (page, to) in range.iter().zip(to.0..) {
            let reached = pieces.reach(page);
            let expected = Some(PhysPage(to));
            assert_eq!(
                reached, expected,
                "P3: {page} was freed while a cache held it"
            );
        }
        let mut detached = Vec::new();
        let mut take = |frame: TableFrame| detached.push(frame);
        pieces
            .table
            .clear(crate::BY, p, range, AllocKind::Dynamic, &mut take);
        for frame in detached {
            let page = frame.page();
            let retired = pieces.sequence.retire(p, frame, Scope::tables(range));
            let flushed = self.complete(retired);
            let unit = pieces.machine.unit();
            let held = unit.holds_pointer_to(page);
            assert!(!held, "P4: table {page} was freed while a cache held it");
            p.frame_free(crate::BY, flushed.into_fresh());
        }
        let retired: Retired<IovaAlloc> = pieces.sequence.retire(p, alloc, Scope::leaves(range));
        if random.below(3) == 0 {
            // something else is flushed
            let other = IovaPage(random.below(Small::aperture().pages.0));
            let other = IovaRange::new(other, PageCount(1));
            let flushed = pieces.flush(Scope::leaves(other));
            self.last.replace(Some(flushed));
        }
        let flushed = self.complete(retired);
        let origin = p.pinned(|cpu| cpu.index());
        pieces.allocator.free(p, origin, flushed);
    }
}

pub fn run(plan: &Plan) -> Checked {
    let bench = &Bench::new(plan);
    let mut world = World::new(plan.schedule);
    for cpu in 0..plan.cpus as u64 {
        world = world.cpu(move || {
            let mut random = Random(plan.seed * 3 + cpu);
            for round in 0..8 {
                bench.round(&mut random, PhysPage(0x1000 * (cpu + 1) + 8 * round));
            }
        });
    }
    if let Err(failure) = world.try_run() {
        panic!("{failure}");
    }
    Checked {
        maps: bench.maps.get(),
        ..Checked::default()
    }
}
