// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! CPUs that open domains at the same time: each gets a colour of its own (WIOSCA'10 §4.2), and its
//! device the domain's pages.

use crate::explorer::{crowd::*, plan::Plan, rig::*};
use ioatlas_dma::{domain::*, units::*};
use ioatlas_sim::platform::{Sim, World};
use ioatlas_viommu::oracle::{Failing, Oracle};
use std::cell::RefCell;

/// Pages of a colour.
const EACH: u64 = 8;

pub fn run(plan: &Plan) -> Checked {
    let design = DomainConfig::new(AllocatorConfig::RBTREE, plan.design.domain.policy)
        .offset(Offset::Fixed(PageCount(EACH)))
        .wait_limit(LIMIT);
    let base = Failing::new(plan.platform());
    let rig = &Rig {
        machine: machine_on::<Sim, Small>(base, Oracle::new(), |_| ()).expect("a machine"),
    };
    let opened = &RefCell::new(Vec::new());
    let mut world = World::new(plan.schedule);
    for cpu in 0..plan.cpus {
        world = world.cpu(move || {
            let domain = rig.machine.domain::<Small>(design).expect("a domain");
            let device = SourceId(0x0020 + 8 * cpu as u16);
            domain.attach(device).expect("attached");
            let ring = domain.alloc_consistent(ByteCount(GRANULE)).expect("room");
            let at = ring.iova().page();
            let reached = rig.access_by(device, at, AccessKind::Write);
            assert!(reached.is_some(), "P14: allocated");
            opened.borrow_mut().push((device, domain, ring));
        });
    }
    if let Err(failure) = world.try_run() {
        panic!("{failure}");
    }
    let opened = opened.take();
    let colour = |(_, _, ring): &(_, _, Consistent)| ring.iova().page().0 / EACH;
    let mut colours: Vec<u64> = opened.iter().map(colour).collect();
    colours.sort_unstable();
    colours.dedup();
    assert_eq!(
        colours.len(),
        plan.cpus,
        "WIOSCA'10 4.2: two domains have one colour"
    );
    for (device, domain, ring) in opened {
        domain.free_consistent(ring).expect("P14: it was live");
        rig.close(domain, &[device]);
    }
    Checked {
        maps: plan.cpus as u64,
        ..Checked::default()
    }
}
