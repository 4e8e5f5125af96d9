// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a batch of unmaps puts into the queue, by the unit's own counters.

use crate::software::rig::*;
use ioatlas_dma::{domain::Mapping, units::*};
use ioatlas_viommu::config::*;

fn map_at(domain: &TestDomain, page: u64) -> Mapping {
    let mapping = domain.map_at(
        IovaPage(page).addr(),
        PhysRange::page(OLD),
        Direction::ToDevice,
    );
    mapping.expect("free")
}

/// Unmaps what is at `pages` by one call; how many invalidations and waits that took.
fn asked(rig: &Rig, domain: &TestDomain, pages: impl Iterator<Item = u64>) -> (u64, u64) {
    let all: Vec<_> = pages.map(|page| map_at(domain, page)).collect();
    let iovas: Vec<_> = all.iter().map(Mapping::iova).collect();
    for iova in &iovas {
        assert_eq!(rig.reach(NIC, *iova), Some(OLD), "P14: {iova}");
    }
    let before = rig.soft.stats();
    domain.unmap_batch(&mut all.into_iter()).expect("unmapped");
    let after = rig.soft.stats();
    for iova in &iovas {
        assert_eq!(rig.reach(NIC, *iova), None, "P1: {iova}");
    }
    let pages = after.page_invalidations - before.page_invalidations;
    let domains = after.domain_invalidations - before.domain_invalidations;
    (pages + domains, after.waits - before.waits)
}

#[test]
fn a_batch_over_one_chunk_is_one_range_and_one_wait_whatever_its_size_and_order() {
    for processing in [Processing::Inline, Processing::Asynchronous] {
        let rig = Rig::new(|c| c.processing = processing);
        let domain = rig.domain();
        rig.attach(&domain, NIC);
        for size in 1..=64 {
            for first in [0x40, 0x7d] {
                let chunk = first..first + size;
                assert_eq!(asked(&rig, &domain, chunk.clone()), (1, 1), "{size}");
                assert_eq!(asked(&rig, &domain, chunk.clone().rev()), (1, 1), "{size}");
                let shuffled = chunk.clone().map(|page| first + (page * 37 + 5) % size);
                let all_of_them = size % 37 != 0;
                if all_of_them {
                    assert_eq!(asked(&rig, &domain, shuffled), (1, 1), "{size}");
                }
            }
        }
        rig.detach(&domain, NIC);
        domain.close().expect("closed");
        rig.end();
    }
}

#[test]
fn a_unit_without_a_queue_is_asked_for_one_block_after_the_other() {
    let rig = Rig::new(|c| c.registers.interface = InvalidationInterface::Registers);
    let domain = rig.domain();
    rig.attach(&domain, NIC);
    for (size, blocks) in [(1, 1), (4, 4), (8, 8), (9, 1), (60, 1)] {
        let apart = (0..size).map(|nth| 0x40 + 2 * nth);
        assert_eq!(asked(&rig, &domain, apart), (blocks, 0), "{size}");
    }
    assert_eq!(asked(&rig, &domain, 0x40..0x60), (1, 0), "one chunk");
    rig.detach(&domain, NIC);
    domain.close().expect("closed");
    rig.end();
}
