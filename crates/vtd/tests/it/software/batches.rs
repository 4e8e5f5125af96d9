// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a batch of unmaps puts into the queue, by the unit's own counters.

use crate::software::rig::*;
use ioatlas_dma::{domain::Mapping, units::*};
use ioatlas_viommu::{config::*, unit::Injection};

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

/// The queue has room for 127 submissions, and its numbers wrap around soon after the start.
#[test]
fn a_pending_unmap_is_answered_after_more_than_a_queue_of_others() {
    for processing in [Processing::Inline, Processing::Asynchronous] {
        for others in [1, 100, 300, 1000] {
            let rig = Rig::new(|c| c.processing = processing);
            let domain = rig.domain();
            rig.attach(&domain, NIC);
            let kept = [0x1000, 0x1003].map(|page| map_at(&domain, page));
            let iovas = kept.each_ref().map(Mapping::iova);
            for iova in iovas {
                assert_eq!(rig.reach(NIC, iova), Some(OLD), "P14: {iova}");
            }
            let mut pending = domain.unmap_start(&mut kept.into_iter());
            for nth in 0..others {
                asked(&rig, &domain, [0x40 + nth % 64].into_iter());
            }
            assert!(pending.is_done(), "{others} behind it are");
            assert_eq!(pending.finish(), Ok(2));
            for iova in iovas {
                assert_eq!(rig.reach(NIC, iova), None, "P1: {iova}");
            }
            rig.detach(&domain, NIC);
            domain.close().expect("closed");
            rig.end();
        }
    }
}

/// One that the unit refused is told from those behind it, whichever is asked for first.
#[test]
fn a_pending_unmap_that_the_unit_refused_is_lost_and_no_other() {
    for last_first in [false, true] {
        let rig = Rig::new(|_| {});
        let domain = rig.domain();
        rig.attach(&domain, NIC);
        let start = |page| domain.unmap_start(&mut [map_at(&domain, page)].into_iter());
        rig.soft.inject(Injection::QueueErrors(1));
        let refused = start(0x1000);
        let behind = start(0x1003);
        let (refused, behind) = match last_first {
            true => {
                let behind = behind.finish();
                (refused.finish(), behind)
            }
            false => (refused.finish(), behind.finish()),
        };
        assert_eq!(behind, Ok(1));
        let lost = refused.expect_err("P1: it was refused").lost;
        assert_eq!(lost.map(|lost| lost.mappings), Some(1));
        assert_eq!(domain.stats().quarantined.pages, PageCount(1), "P10");
        assert_eq!(asked(&rig, &domain, 0x40..0x50), (1, 1), "the unit goes on");
        rig.detach(&domain, NIC);
        domain.close().expect("closed");
        rig.end();
    }
}
