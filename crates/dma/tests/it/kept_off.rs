// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A range is reserved where nobody keeps record of leases, while another CPU leases there: one of the two gives way.

use ioatlas_dma::{
    grace::{Flushed, Grace, Scope, WaitLimit},
    iova::*,
    platform::sim::{Schedule, Sim, SimConfig, World},
    translator::Uncached,
    units::*,
};
use std::cell::Cell;

/// The IOVA page of physical page 5, to be read: regions have 16 pages.
const PAGE: IovaRange = IovaRange {
    first: IovaPage(16 + 5),
    pages: PageCount(1),
};

fn flushed(p: &Sim, grace: &Grace<Sim>, lease: Lease) -> Flushed<Lease> {
    let retired = grace.retire(p, lease, Scope::DOMAIN);
    let (unit, limit) = (Uncached::<Sim>::new(), WaitLimit::default());
    let done = grace.flush(p, &unit, DomainId(1), Scope::DOMAIN, limit);
    let settled = retired.settle(&done.expect("a flush"));
    settled.map_err(|(_, why)| why).expect("all is covered")
}

/// Who holds the page: leases by its own address, and whether it is reserved.
#[derive(Default)]
struct Held {
    shared: Cell<u32>,
    reserved: Cell<bool>,
}

impl Held {
    fn check(&self) {
        let both = self.shared.get() > 0 && self.reserved.get();
        assert!(!both, "P3: page {} is leased and reserved", PAGE.first);
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

fn lessee(p: &Sim, assigner: &Assigner<Sim>, grace: &Grace<Sim>, held: &Held, seen: &Seen) {
    let request = Request {
        contiguous: Some((PhysPage(5), Perm::Read)),
        ..Request::pages(PageCount(1))
    };
    for _ in 0..2 {
        let lease = assigner.assign(p, &request).expect("the fallback has room");
        let own = lease.kind() == LeaseKind::Shared;
        held.shared.set(u32::from(own));
        held.check();
        more(if own { &seen.own } else { &seen.diverted });
        let lease = flushed(p, grace, lease); // others go on meanwhile
        held.shared.set(0); // before it is home
        assigner.release(p, CpuIndex(0), lease);
    }
}

fn reserver(p: &Sim, assigner: &Assigner<Sim>, grace: &Grace<Sim>, held: &Held, seen: &Seen) {
    for _ in 0..2 {
        match assigner.reserve(p, PAGE) {
            Ok(lease) => {
                held.reserved.set(true);
                held.check();
                more(&seen.reserved);
                let lease = flushed(p, grace, lease);
                held.reserved.set(false);
                assigner.release(p, CpuIndex(1), lease);
            }
            Err(NoReserve::NoRecord { .. }) => more(&seen.refused),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_page_is_never_leased_and_reserved() {
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
        let config = AssignerConfig::Identity(IdentityConfig {
            phys_bits: 16,
            ..IdentityConfig::default()
        });
        let aperture = IovaRange::new(IovaPage(0), PageCount(64));
        let assigner = Assigner::new(&p, config, aperture).expect("two bits are left");
        // SAFETY: nothing is ever translated here.
        let (grace, held) = (unsafe { Grace::new(&p) }, Held::default());
        World::new(schedule)
            .cpu(|| lessee(&p, &assigner, &grace, &held, &seen))
            .cpu(|| reserver(&p, &assigner, &grace, &held, &seen))
            .run();
        assigner.audit(&p).expect("sound");
        let usage = assigner.usage(&p);
        assert_eq!((usage.shared.0, usage.leased.0), (0, 0));
    }
    for (what, count) in [
        ("leased by its own address", &seen.own),
        ("diverted", &seen.diverted),
        ("reserved", &seen.reserved),
        ("refused", &seen.refused),
    ] {
        assert!(count.get() > 0, "no schedule in which the page was {what}");
    }
}
