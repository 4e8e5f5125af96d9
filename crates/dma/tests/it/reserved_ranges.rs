// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A range is reserved where no record of allocations is kept, while another CPU allocates there:
//! one of the two gives way.

use ioatlas_dma::{
    invalidation::{FlushSequence, Flushed, Scope, WaitLimit},
    iova::*,
    translator::Uncached,
    units::*,
};
use ioatlas_sim::platform::{Schedule, Sim, SimConfig, World};
use std::cell::Cell;

/// The IOVA page of physical page 5, to be read: regions have 16 pages.
const PAGE: IovaRange = IovaRange {
    first: IovaPage(16 + 5),
    pages: PageCount(1),
};

fn flushed(p: &Sim, sequence: &FlushSequence<Sim>, alloc: IovaAlloc) -> Flushed<IovaAlloc> {
    let retired = sequence.retire(p, alloc, Scope::DOMAIN);
    let (unit, limit) = (Uncached::<Sim>::new(), WaitLimit::default());
    let done = sequence.flush(p, &unit, DomainId(1), Scope::DOMAIN, limit);
    let completed = retired.complete(&done.expect("a flush"));
    completed.map_err(|(_, why)| why).expect("all is covered")
}

/// What holds the page: allocations by its own address, and whether it is reserved.
#[derive(Default)]
struct Held {
    shared: Cell<u32>,
    reserved: Cell<bool>,
}

impl Held {
    fn check(&self) {
        let both = self.shared.get() > 0 && self.reserved.get();
        assert!(!both, "P3: page {} is allocated and reserved", PAGE.first);
    }
}

/// What happened over all schedules.
#[derive(Default)]
struct Seen {
    own: Cell<u32>,
    diverted: Cell<u32>,
    reserved: Cell<u32>,
    refused: Cell<u32>,
}

fn more(count: &Cell<u32>) {
    count.set(count.get() + 1);
}

fn lessee(
    p: &Sim,
    allocator: &AnyAllocator<Sim>,
    sequence: &FlushSequence<Sim>,
    held: &Held,
    seen: &Seen,
) {
    let request = Request {
        contiguous: Some((PhysPage(5), Perm::Read)),
        ..Request::pages(PageCount(1))
    };
    for _ in 0..2 {
        let alloc = allocator.alloc(p, &request).expect("the fallback has room");
        let own = alloc.kind() == AllocKind::Shared;
        held.shared.set(u32::from(own));
        held.check();
        more(if own { &seen.own } else { &seen.diverted });
        let alloc = flushed(p, sequence, alloc); // others go on meanwhile
        held.shared.set(0); // before it is freed
        allocator.free(p, CpuIndex(0), alloc);
    }
}

fn reserver(
    p: &Sim,
    allocator: &AnyAllocator<Sim>,
    sequence: &FlushSequence<Sim>,
    held: &Held,
    seen: &Seen,
) {
    for _ in 0..2 {
        match allocator.reserve(p, PAGE) {
            Ok(alloc) => {
                held.reserved.set(true);
                held.check();
                more(&seen.reserved);
                let alloc = flushed(p, sequence, alloc);
                held.reserved.set(false);
                allocator.free(p, CpuIndex(1), alloc);
            }
            Err(FixedRangeError::NoRecord { .. }) => more(&seen.refused),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_page_is_never_allocated_and_reserved() {
    let seen = Seen::default();
    let sticky = (0..400).map(|seed| Schedule::Sticky {
        seed,
        switch_one_in: 2 + seed as u32 % 6,
    });
    let bounded = (0..400).map(|seed| Schedule::Bounded {
        seed,
        preemptions: 3,
    });
    for schedule in sticky.chain(bounded) {
        let p = Sim::new(SimConfig::default());
        let config = AllocatorConfig::Identity(IdentityConfig::default().phys_bits(16));
        let aperture = IovaRange::new(IovaPage(0), PageCount(64));
        let allocator = AnyAllocator::new(&p, config, aperture).expect("two bits are left");
        // SAFETY: nothing is ever translated here.
        let (sequence, held) = (unsafe { FlushSequence::new(&p) }, Held::default());
        World::new(schedule)
            .cpu(|| lessee(&p, &allocator, &sequence, &held, &seen))
            .cpu(|| reserver(&p, &allocator, &sequence, &held, &seen))
            .run();
        allocator.audit(&p).expect("sound");
        let usage = allocator.usage(&p);
        assert_eq!((usage.shared.0, usage.allocated.0), (0, 0));
    }
    for (what, count) in [
        ("allocated by its own address", &seen.own),
        ("diverted", &seen.diverted),
        ("reserved", &seen.reserved),
        ("refused", &seen.refused),
    ] {
        assert!(count.get() > 0, "no schedule in which the page was {what}");
    }
}
