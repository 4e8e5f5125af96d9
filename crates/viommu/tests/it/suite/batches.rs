// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Several mappings unmapped by one call: all of them end, by one invalidation under `strict`, and
//! what goes wrong with some takes no others along.

use crate::suite::rig::*;
use ioatlas_dma::{domain::*, invalidation::InvalidateError, table::Format, units::*};
use ioatlas_viommu::{
    config::{Answer, AtsDevice, Refetch},
    device::Ats,
};
use ioatlas_vtd::layout::QueueDepth;
use std::cell::RefCell;

on_wide_machines! {
    batches::a_batch_of_any_size_ends_all_of_its_mappings,
    batches::neighbours_are_one_range_and_what_is_in_a_gap_stays_cached,
    batches::few_ranges_go_one_by_one_and_many_as_the_domain,
    batches::detached_tables_are_freed_after_the_flush_of_their_batch,
    batches::an_invalidation_that_fails_loses_its_round_and_no_other,
    batches::another_domains_mapping_comes_back_and_the_rest_is_left,
    batches::mappings_of_one_page_end_in_one_batch,
    batches::an_empty_batch_is_nothing,
}

const SIZES: [u64; 5] = [1, 2, 16, 64, 65];

fn strict() -> impl Iterator<Item = DomainConfig> {
    let designs = designs().into_iter();
    designs.filter(|design| design.policy == PolicyConfig::Strict)
}

fn map<B: Base, F: Format>(domain: &Dom<B, F>, first: u64, pages: u64) -> Mapping {
    let mapping = domain.map(buffer(first, pages), Direction::ToDevice);
    mapping.expect("room")
}

fn map_at<B: Base, F: Format>(domain: &Dom<B, F>, page: u64, pages: u64) -> Mapping {
    let buffer = buffer(0x1000 + page, pages);
    let mapping = domain.map_at(IovaPage(page).addr(), buffer, Direction::ToDevice);
    mapping.expect("free")
}

fn ranges(mappings: &[Mapping]) -> Vec<IovaRange> {
    mappings.iter().map(Mapping::range).collect()
}

/// The device reads the first and the last page of each: all of them there, or none.
fn reach<B: Base>(rig: &Rig<B>, ranges: &[IovaRange], there: bool, context: &str) {
    for range in ranges {
        for page in [range.first, IovaPage(range.end().0 - 1)] {
            let reached = rig.access(page, AccessKind::Read).is_some();
            let property = if there { "P14" } else { "P1" };
            assert_eq!(reached, there, "{property}: {page}, {context}");
        }
    }
}

fn invalidations<B: Base, F: Format>(domain: &Dom<B, F>) -> u64 {
    domain.domain().stats().invalidations
}

pub fn a_batch_of_any_size_ends_all_of_its_mappings<B: Base, F: Format>() {
    for design in core_designs::<F>() {
        let rig = Rig::<B>::new::<F>(1024);
        let domain = rig.domain::<F>(design);
        for size in SIZES {
            let context = format!("{}, {size}", name(&design));
            let all: Vec<_> = (0..size)
                .map(|nth| map(&domain, 0x100 + 4 * nth, 1 + nth % 3))
                .collect();
            let ranges = ranges(&all);
            reach(&rig, &ranges, true, &context);
            let before = invalidations(&domain);
            domain.unmap_batch(&mut all.into_iter()).expect(&context);
            let pages: u64 = ranges.iter().map(|range| range.pages.0).sum();
            let made = invalidations(&domain) - before;
            match design.policy {
                PolicyConfig::Strict => assert_eq!(made, size.div_ceil(64), "{context}"),
                PolicyConfig::FreeBsd => assert_eq!(made, pages, "{context}"),
                PolicyConfig::MacOs(_) => assert_eq!(made, size, "{context}"),
                _ => {}
            }
            if is_strict(&design) {
                reach(&rig, &ranges, false, &context);
            }
            domain.domain().flush().expect("flushed");
            reach(&rig, &ranges, false, &context);
            let audit = domain.domain().audit().expect("P10");
            assert_eq!(audit.stats.live, PageCount(0), "{context}");
            assert_eq!(audit.stats.unmaps, audit.stats.maps, "{context}");
            assert_eq!(audit.usage.allocated, PageCount(0), "P10: {context}");
        }
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn neighbours_are_one_range_and_what_is_in_a_gap_stays_cached<B: Base, F: Format>() {
    for design in strict() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let all = [(18, 2), (16, 1), (21, 1), (17, 1)];
        let all = all.map(|(page, pages)| map_at(&domain, page, pages));
        let between = map_at(&domain, 20, 1);
        let (ranges, there) = (ranges(&all), [between.range()]);
        reach(&rig, &ranges, true, "mapped");
        reach(&rig, &there, true, "mapped");
        let unit = rig.machine.machine().unit();
        let before = unit.stats();
        domain.unmap_batch(&mut all.into_iter()).expect("unmapped");
        let after = unit.stats();
        reach(&rig, &ranges, false, "in one batch");
        assert_eq!(after.page_invalidations - before.page_invalidations, 2);
        assert_eq!(after.leaf_invalidations - before.leaf_invalidations, 2);
        assert_eq!(after.domain_invalidations, before.domain_invalidations);
        assert_eq!(after.waits - before.waits, 1, "one wait for all");
        let cached = unit.iotlb_holds(domain.domain().id(), between.range().first);
        assert!(cached.is_some(), "it was not in the batch");
        reach(&rig, &there, true, "in the gap");
        domain.unmap(between).expect("unmapped");
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

/// What the unit was asked, of the IOTLB and of device TLBs, for so many single pages with gaps
/// between.
fn asked<B: Base, F: Format>(devices: bool, count: u64) -> [u64; 4] {
    let design = strict().next().expect("a strict design");
    let rig = Rig::<B>::with::<F>(256, |config| {
        config.features.device_tlbs = devices;
        if devices {
            config.devices = vec![AtsDevice {
                source: NIC,
                entries: 64,
                answer: Answer::WhenDrained,
                refetch: Refetch::OnDemand,
            }];
        }
    });
    let unit = rig.machine.machine().unit();
    if devices {
        let depth = QueueDepth::from_capability(4);
        let driver = rig.machine.machine().driver();
        driver.declare_device_tlb(NIC, depth).expect("of this unit");
    }
    let domain = rig.domain::<F>(design);
    if devices {
        unit.switch_ats(NIC, Ats::On).expect("a device with ATS");
    }
    let all: Vec<_> = (0..count)
        .map(|nth| map_at(&domain, 16 + 2 * nth, 1))
        .collect();
    let ranges = ranges(&all);
    reach(&rig, &ranges, true, "mapped");
    let before = unit.stats();
    domain.unmap_batch(&mut all.into_iter()).expect("unmapped");
    let after = unit.stats();
    reach(&rig, &ranges, false, &format!("{count} ranges"));
    rig.close(domain, &[NIC]);
    rig.assert_clean();
    [
        after.page_invalidations - before.page_invalidations,
        after.domain_invalidations - before.domain_invalidations,
        after.device_tlb_invalidations - before.device_tlb_invalidations,
        after.waits - before.waits,
    ]
}

pub fn few_ranges_go_one_by_one_and_many_as_the_domain<B: Base, F: Format>() {
    for (count, pages, whole) in [(1, 1, 0), (2, 2, 0), (8, 8, 0), (9, 0, 1), (40, 0, 1)] {
        assert_eq!(asked::<B, F>(false, count), [pages, whole, 0, 1], "{count}");
        let of_device = pages + whole;
        let with_device = [pages, whole, of_device, 1];
        assert_eq!(asked::<B, F>(true, count), with_device, "{count}");
    }
}

pub fn detached_tables_are_freed_after_the_flush_of_their_batch<B: Base, F: Format>() {
    let span = span::<F>();
    for design in designs() {
        let rig = Rig::<B>::new::<F>(256);
        let domain = rig.domain::<F>(design);
        let kept = map_at(&domain, span - 1, 1); // and with it the tables above
        let frames = rig.frames_in_use();
        // mappings of a whole table each; the second is more than one invalidation frees
        for (count, made) in [(8, 1), (45, 2)] {
            let context = format!("{}, {count}", name(&design));
            let all: Vec<_> = (1..=count)
                .map(|nth| map_at(&domain, nth * span, span))
                .collect();
            let ranges = ranges(&all);
            reach(&rig, &ranges, true, &context);
            let before = invalidations(&domain);
            domain.unmap_batch(&mut all.into_iter()).expect(&context);
            if design.policy == PolicyConfig::Strict {
                assert_eq!(invalidations(&domain) - before, made, "{context}");
                reach(&rig, &ranges, false, &context);
            }
            domain.domain().flush().expect("flushed");
            reach(&rig, &ranges, false, &context);
            let tables = rig.frames_in_use() - frames;
            let above = 45 / span as usize + 1; // those are not covered whole
            assert!(tables <= above, "P10: {tables} frames left, {context}");
        }
        domain.unmap(kept).expect("unmapped");
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn an_invalidation_that_fails_loses_its_round_and_no_other<B: Base, F: Format>() {
    for design in designs().into_iter().filter(is_strict) {
        let rig = Rig::<B>::new::<F>(256);
        let domain = rig.domain::<F>(design);
        let context = name(&design);
        let all: Vec<_> = (0..70).map(|nth| map(&domain, 0x100 + nth, 1)).collect();
        let ranges = ranges(&all);
        let unit = rig.machine.machine().unit().clone();
        // an access that goes on holds up each invalidation that is to drain it
        let hangs = RefCell::new(None);
        let mut all = all.into_iter().enumerate().map(|(nth, mapping)| {
            if nth == UNMAP_ROUND {
                let page = mapping.range().first;
                hangs.replace(Some(unit.begin(NIC, page, AccessKind::Read)));
            }
            mapping
        });
        let error = domain
            .unmap_batch(&mut all)
            .expect_err("P1: that access is not over");
        let (lost, left) = match design.policy {
            PolicyConfig::Strict => (6, 0),
            _ => (1, 5),
        };
        assert_eq!(error.ended, UNMAP_ROUND, "{context}");
        assert_eq!(
            error.lost.map(|lost| lost.mappings),
            Some(lost),
            "{context}"
        );
        let timed_out = InvalidateError::TimedOut { turns: LIMIT.0 };
        assert_eq!(error.lost.map(|lost| lost.cause), Some(timed_out));
        assert_eq!(error.stopped, None);
        let text = error.to_string();
        let said = format!("64 mappings ended, then {lost} within IOVA pages ");
        assert!(
            text.starts_with(&said) && text.ends_with("they are quarantined"),
            "{text}"
        );
        let lost_pages = &ranges[UNMAP_ROUND..][..lost];
        let within = error.lost.expect("some").range;
        assert!(
            lost_pages.iter().all(|range| within.contains(range)),
            "{within}"
        );
        let quarantined = domain.domain().stats().quarantined.pages;
        assert_eq!(quarantined, PageCount(lost as u64), "P10: {context}");
        drop(hangs.take());
        // the others come home by another call
        assert_eq!(all.len(), left);
        domain.unmap_batch(&mut all).expect("the unit goes on");
        reach(&rig, &ranges, false, &context);
        // and what is lost is never had again
        let again: Vec<_> = (0..80).map(|nth| map(&domain, 0x400 + nth, 1)).collect();
        for mapping in &again {
            let range = mapping.range();
            assert!(
                lost_pages.iter().all(|lost| !lost.overlaps(&range)),
                "P3: {range} was quarantined, {context}"
            );
        }
        domain
            .unmap_batch(&mut again.into_iter())
            .expect("unmapped");
        let audit = domain.domain().audit().expect("P10");
        assert_eq!(audit.stats.quarantined.pages, quarantined);
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn another_domains_mapping_comes_back_and_the_rest_is_left<B: Base, F: Format>() {
    for design in core_designs::<F>() {
        let rig = Rig::<B>::new::<F>(256);
        let (domain, other) = (rig.domain::<F>(design), rig.machine.domain::<F>(design));
        let other = other.expect("a domain");
        let context = name(&design);
        let theirs = map(&other, 0x800, 1);
        let at = theirs.range();
        let ours: Vec<_> = (0..5).map(|nth| map(&domain, 0x100 + nth, 1)).collect();
        let ranges = ranges(&ours);
        reach(&rig, &ranges, true, &context);
        let mut all = ours;
        all.insert(2, theirs);
        let mut all = all.into_iter();
        let error = domain.unmap_batch(&mut all).expect_err("not ours");
        assert_eq!((error.ended, error.lost), (2, None), "{context}");
        let text = error.to_string();
        let Some(UnmapError::Foreign(theirs)) = error.stopped else {
            panic!("{text}")
        };
        assert!(text.contains("2 mappings ended") && text.contains("another domain"));
        assert_eq!((theirs.range(), all.len()), (at, 3), "{context}");
        if is_strict(&design) {
            reach(&rig, &ranges[..2], false, &context);
        }
        reach(&rig, &ranges[2..], true, &context);
        domain.unmap_batch(&mut all).expect("all are ours");
        domain.domain().flush().expect("flushed");
        reach(&rig, &ranges, false, &context);
        other
            .unmap_batch(&mut [theirs].into_iter())
            .expect("theirs");
        rig.close(other, &[]);
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

/// Buffers that share their leaves (`identity`): a page is reached until the last of them ends.
pub fn mappings_of_one_page_end_in_one_batch<B: Base, F: Format>() {
    for design in by_address::<F>() {
        let rig = Rig::<B>::new::<F>(256);
        let domain = rig.domain::<F>(design);
        if domain.domain().shared().is_none() {
            rig.close(domain, &[NIC]);
            continue;
        }
        let context = name(&design);
        let stays = map(&domain, 0x20, 2);
        let there = stays.range();
        let all = [(0x20, 1), (0x30, 2), (0x20, 3), (0x30, 1)];
        let all = all.map(|(first, pages)| map(&domain, first, pages));
        let alone = [ranges(&all)[1], IovaRange::new(there.end(), PageCount(1))];
        reach(&rig, &ranges(&all), true, &context);
        domain.unmap_batch(&mut all.into_iter()).expect(&context);
        reach(&rig, &[there], true, &context);
        if is_strict(&design) {
            reach(&rig, &alone, false, &context);
        }
        let last = [stays, map(&domain, 0x21, 1)];
        domain.unmap_batch(&mut last.into_iter()).expect(&context);
        domain.domain().flush().expect("flushed");
        reach(&rig, &[there, alone[0], alone[1]], false, &context);
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn an_empty_batch_is_nothing<B: Base, F: Format>() {
    for design in core_designs::<F>() {
        let rig = Rig::<B>::new::<F>(256);
        let domain = rig.domain::<F>(design);
        let before = domain.domain().stats();
        assert_eq!(domain.unmap_batch(&mut std::iter::empty()), Ok(()));
        assert_eq!(domain.domain().stats(), before);
        rig.close(domain, &[NIC]);
        rig.end();
    }
}
