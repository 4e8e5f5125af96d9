// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Unmaps that are started, and finished later: until then a device may reach what they had, and
//! nothing else has its addresses; after it no device does.

use crate::suite::rig::*;
use ioatlas_dma::{domain::*, invalidation::InvalidateError, table::Format, units::*};
use ioatlas_viommu::{config::Processing, unit::Injection};
use std::{collections::BTreeSet, sync::Mutex};

on_wide_machines! {
    pending::a_device_may_reach_it_until_it_is_finished_and_never_after,
    pending::a_unit_that_has_not_answered_frees_nothing,
    pending::other_calls_go_on_between_start_and_finish,
    pending::what_several_cpus_started_ends_in_any_order,
    pending::a_failed_invalidation_quarantines_what_was_started,
    pending::one_that_is_dropped_is_finished,
    pending::one_that_is_forgotten_frees_nothing,
    pending::detached_tables_are_freed_after_the_answer,
    pending::another_domains_mapping_is_told_by_finish,
}

fn strict() -> impl Iterator<Item = DomainConfig> {
    let designs = designs().into_iter();
    designs.filter(|design| design.policy == PolicyConfig::Strict)
}

fn map<B: Base, F: Format>(domain: &Dom<B, F>, first: u64) -> Mapping {
    let mapping = domain.map(buffer(first, 1), Direction::ToDevice);
    mapping.expect("room")
}

fn map_many<B: Base, F: Format>(domain: &Dom<B, F>, first: u64, count: u64) -> Vec<Mapping> {
    (first..first + count).map(|nth| map(domain, nth)).collect()
}

fn ranges(mappings: &[Mapping]) -> Vec<IovaRange> {
    mappings.iter().map(Mapping::range).collect()
}

/// How many of them the device reaches; the oracle judges whether it may.
fn reached<B: Base>(rig: &Rig<B>, ranges: &[IovaRange]) -> usize {
    let access = |range: &&IovaRange| rig.access(range.first, AccessKind::Read).is_some();
    ranges.iter().filter(access).count()
}

/// Nothing of these is reached.
fn gone<B: Base>(rig: &Rig<B>, ranges: &[IovaRange], context: &str) {
    assert_eq!(reached(rig, ranges), 0, "P1: {context}");
}

/// Maps more than the domain has cached, and no address among those that are held.
fn others_only<B: Base, F: Format>(domain: &Dom<B, F>, held: &[IovaRange], context: &str) {
    let held: BTreeSet<_> = held.iter().flat_map(|range| range.iter()).collect();
    let others = map_many(domain, 0x600, 70);
    for range in ranges(&others) {
        let given = range.iter().find(|page| held.contains(page));
        assert_eq!(given, None, "P3: it is held, {context}");
    }
    for range in &held {
        let again = domain.map_at(range.addr(), buffer(0x700, 1), Direction::ToDevice);
        let refused = matches!(again, Err(MapError::NoReserve(_)));
        assert!(refused, "P3: {range} is held, {context}");
    }
    domain
        .unmap_batch(&mut others.into_iter())
        .expect("unmapped");
}

fn held<B: Base, F: Format>(domain: &Dom<B, F>) -> u64 {
    domain.domain().stats().retired.pages.0
}

pub fn a_device_may_reach_it_until_it_is_finished_and_never_after<B: Base, F: Format>() {
    for design in core_designs::<F>() {
        let rig = Rig::<B>::new::<F>(1024);
        let domain = rig.domain::<F>(design);
        for size in [0, 1, 2, 16, 64, 65] {
            let context = format!("{}, {size}", name(&design));
            let all = map_many(&domain, 0x100, size);
            let ranges = ranges(&all);
            assert_eq!(reached(&rig, &ranges), ranges.len(), "P14: {context}");
            let mut all = all.into_iter();
            let pending = domain.unmap_start(&mut all);
            reached(&rig, &ranges);
            domain.domain().audit().expect("P10");
            let taken = ranges.len().min(UNMAP_ROUND);
            assert_eq!(all.len(), ranges.len() - taken, "{context}");
            assert_eq!(pending.finish(), Ok(taken), "{context}");
            if is_strict(&design) {
                gone(&rig, &ranges[..taken], &context);
                assert_eq!(held(&domain), 0, "P10: {context}");
            }
            domain.unmap_batch(&mut all).expect("the rest");
            domain.domain().flush().expect("flushed");
            gone(&rig, &ranges, &context);
            let audit = domain.domain().audit().expect("P10");
            assert_eq!(audit.stats.unmaps, audit.stats.maps, "{context}");
            assert_eq!(audit.usage.allocated, PageCount(0), "P10: {context}");
        }
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

/// The unit takes nothing from its queue meanwhile.
pub fn a_unit_that_has_not_answered_frees_nothing<B: Base, F: Format>() {
    for design in strict() {
        let context = name(&design);
        let rig = Rig::<B>::new::<F>(256);
        let domain = rig.domain::<F>(design);
        let all = map_many(&domain, 0x100, 20);
        let ranges = ranges(&all);
        assert_eq!(reached(&rig, &ranges), 20, "P14: {context}");
        let unit = rig.machine.machine().unit();
        let before = domain.domain().stats().invalidations;
        unit.set_processing(Processing::Stuck);
        let mut pending = domain.unmap_start(&mut all.into_iter());
        for _ in 0..3 {
            assert!(!pending.is_done(), "P1: nothing is invalidated, {context}");
            assert_eq!(held(&domain), 20, "P1: {context}");
        }
        assert!(reached(&rig, &ranges) > 0, "caches have not forgotten it");
        domain.domain().audit().expect("P10");
        unit.set_processing(Processing::Inline);
        assert!(pending.is_done() && pending.is_done(), "{context}");
        // what it says before it is finished holds already
        gone(&rig, &ranges, &context);
        assert_eq!(held(&domain), 0, "P10: {context}");
        let made = domain.domain().stats().invalidations - before;
        assert_eq!(made, 1, "{context}");
        let again = map_many(&domain, 0x200, 20);
        assert_eq!(pending.finish(), Ok(20), "{context}");
        domain
            .unmap_batch(&mut again.into_iter())
            .expect("unmapped");
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn other_calls_go_on_between_start_and_finish<B: Base, F: Format>() {
    for design in strict() {
        let context = name(&design);
        let rig = Rig::<B>::new::<F>(1024);
        let domain = rig.domain::<F>(design);
        let all = map_many(&domain, 0x100, 10);
        let ranges = ranges(&all);
        assert_eq!(reached(&rig, &ranges), 10, "P14: {context}");
        let pending = domain.unmap_start(&mut all.into_iter());
        // more than the queue has room for
        for nth in 0..300 {
            let other = map(&domain, 0x200 + nth);
            let range = [other.range()];
            assert_eq!(reached(&rig, &range), 1, "P14: {context}");
            domain.unmap(other).expect("unmapped");
            gone(&rig, &range, &context);
        }
        let second = map_many(&domain, 0x300, 5);
        let second = domain.unmap_start(&mut second.into_iter());
        domain.domain().flush().expect("flushed");
        domain.tick(TimeNs(1_000_000)).expect("a tick");
        assert_eq!(held(&domain), 15, "P3: only their answer ends them");
        others_only(&domain, &ranges, &context);
        assert_eq!(second.finish(), Ok(5), "{context}");
        assert_eq!(held(&domain), 10, "{context}");
        assert_eq!(pending.finish(), Ok(10), "{context}");
        gone(&rig, &ranges, &context);
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn what_several_cpus_started_ends_in_any_order<B: Base, F: Format>() {
    for design in core_designs::<F>() {
        let context = name(&design);
        let rig = Rig::<B>::new::<F>(256);
        let domain = rig.domain::<F>(design);
        let all: Vec<_> = (0..4)
            .map(|n| map_many(&domain, 0x100 + 8 * n, 6))
            .collect();
        let ranges: Vec<_> = all.iter().map(|mappings| ranges(mappings)).collect();
        assert!(ranges.iter().all(|ranges| reached(&rig, ranges) == 6));
        let started = Mutex::new(Vec::new());
        for (nth, mappings) in all.into_iter().enumerate() {
            let start = || {
                let pending = domain.unmap_start(&mut mappings.into_iter());
                locked(&started).push((nth, pending));
            };
            match nth % 2 {
                0 => start(),
                _ => rig.failing().inner().on_another_cpu(start),
            }
        }
        let mut started = started.into_inner().expect("no panic");
        // the order in which they end, and on which CPU, is another
        for (turn, which) in [2, 2, 0, 0].into_iter().enumerate() {
            let (nth, pending) = started.remove(which);
            let finish = || assert_eq!(pending.finish(), Ok(6));
            match turn % 2 {
                0 => rig.failing().inner().on_another_cpu(finish),
                _ => finish(),
            }
            if is_strict(&design) {
                gone(&rig, &ranges[nth], &context);
            }
        }
        drop(started);
        domain.domain().flush().expect("flushed");
        assert_eq!(held(&domain), 0, "P10: {context}");
        ranges
            .iter()
            .for_each(|ranges| gone(&rig, ranges, &context));
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn a_failed_invalidation_quarantines_what_was_started<B: Base, F: Format>() {
    for design in strict() {
        for asks in [false, true] {
            let context = name(&design);
            let rig = Rig::<B>::new::<F>(256);
            let domain = rig.domain::<F>(design);
            let all = map_many(&domain, 0x100, 6);
            let mut lost = ranges(&all);
            assert_eq!(reached(&rig, &lost), 6, "P14: {context}");
            let unit = rig.machine.machine().unit().clone();
            // refused
            unit.inject(Injection::QueueErrors(1));
            let mut pending = domain.unmap_start(&mut all.into_iter());
            if asks {
                while !pending.is_done() {}
            }
            let error = pending.finish().expect_err("P1: it was refused");
            assert_eq!((error.ended, error.stopped), (0, None), "{context}");
            assert_eq!(error.lost.map(|lost| lost.mappings), Some(6), "{context}");
            // not done in time: an access goes on that it has to drain
            let more = map_many(&domain, 0x180, 3);
            let slow = ranges(&more);
            let hangs = unit.begin(NIC, slow[0].first, AccessKind::Read);
            let mut pending = domain.unmap_start(&mut more.into_iter());
            if asks {
                assert!(!pending.is_done(), "P5: that access is not over");
            }
            let error = pending.finish().expect_err("P5: that access is not over");
            let cause = error.lost.map(|lost| lost.cause);
            let timed_out = InvalidateError::TimedOut { turns: LIMIT.0 };
            assert_eq!(cause, Some(timed_out), "{context}");
            drop(hangs);
            lost.extend(slow);
            let quarantined = domain.domain().stats().quarantined.pages;
            assert_eq!(quarantined, PageCount(9), "P10: {context}");
            assert_eq!(held(&domain), 0, "P10: {context}");
            others_only(&domain, &lost, &context);
            rig.close(domain, &[NIC]);
            rig.end();
        }
    }
}

pub fn one_that_is_dropped_is_finished<B: Base, F: Format>() {
    for design in core_designs::<F>() {
        let context = name(&design);
        let rig = Rig::<B>::new::<F>(256);
        let domain = rig.domain::<F>(design);
        let all = map_many(&domain, 0x100, 20);
        let ranges = ranges(&all);
        assert_eq!(reached(&rig, &ranges), 20, "P14: {context}");
        drop(domain.unmap_start(&mut all.into_iter()));
        if is_strict(&design) {
            gone(&rig, &ranges, &context);
            let audit = domain.domain().audit().expect("P10");
            assert_eq!(audit.usage.allocated, PageCount(0), "P10: {context}");
        }
        if design.policy == PolicyConfig::Strict && chooses_freely(&design) {
            // by a unit that does not answer
            let more = map_many(&domain, 0x200, 4);
            rig.machine
                .machine()
                .unit()
                .set_processing(Processing::Stuck);
            drop(domain.unmap_start(&mut more.into_iter()));
            let quarantined = domain.domain().stats().quarantined.pages;
            assert_eq!(quarantined, PageCount(4), "P1: {context}");
            rig.machine
                .machine()
                .unit()
                .set_processing(Processing::Inline);
        }
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn one_that_is_forgotten_frees_nothing<B: Base, F: Format>() {
    for design in strict() {
        let context = name(&design);
        let rig = Rig::<B>::new::<F>(256);
        let domain = rig.domain::<F>(design);
        let all = map_many(&domain, 0x100, 20);
        let ranges = ranges(&all);
        std::mem::forget(domain.unmap_start(&mut all.into_iter()));
        domain.domain().flush().expect("flushed");
        assert_eq!(held(&domain), 20, "P3: {context}");
        others_only(&domain, &ranges, &context);
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn detached_tables_are_freed_after_the_answer<B: Base, F: Format>() {
    let span = span::<F>();
    for design in strict() {
        // the last is more than one invalidation frees
        for count in [1, 8, 45] {
            let context = format!("{}, {count}", name(&design));
            let rig = Rig::<B>::new::<F>(256);
            let domain = rig.domain::<F>(design);
            let map_at = |page, pages| {
                let buffer = buffer(0x1000 + page, pages);
                let at = IovaPage(page).addr();
                domain
                    .map_at(at, buffer, Direction::ToDevice)
                    .expect("free")
            };
            let kept = map_at(span - 1, 1); // and with it the tables above
            let all: Vec<_> = (1..=count).map(|nth| map_at(nth * span, span)).collect();
            let ranges = ranges(&all);
            assert_eq!(reached(&rig, &ranges), ranges.len(), "P14: {context}");
            let frames = rig.frames_in_use();
            let pending = domain.unmap_start(&mut all.into_iter());
            let retired = domain.domain().stats().retired;
            assert!(retired.frames > 0, "{context}");
            let freed = (frames - rig.frames_in_use()) as u64;
            if count < 45 {
                assert_eq!(freed, 0, "P4: {context}");
            }
            reached(&rig, &ranges);
            assert_eq!(pending.finish(), Ok(count as usize), "{context}");
            let freed = (frames - rig.frames_in_use()) as u64;
            assert!(freed >= retired.frames, "P10: {context}");
            gone(&rig, &ranges, &context);
            domain.unmap(kept).expect("unmapped");
            rig.close(domain, &[NIC]);
            rig.end();
        }
    }
}

pub fn another_domains_mapping_is_told_by_finish<B: Base, F: Format>() {
    for design in core_designs::<F>() {
        let context = name(&design);
        let rig = Rig::<B>::new::<F>(256);
        let (domain, other) = (rig.domain::<F>(design), rig.machine.domain::<F>(design));
        let other = other.expect("a domain");
        let mut all = map_many(&domain, 0x100, 5);
        all.insert(2, map(&other, 0x800));
        let mut all = all.into_iter();
        let pending = domain.unmap_start(&mut all);
        assert_eq!(all.len(), 3, "{context}");
        let error = pending.finish().expect_err("not ours");
        assert_eq!((error.ended, error.lost), (2, None), "{context}");
        let Some(UnmapError::Foreign(theirs)) = error.stopped else {
            panic!("{context}")
        };
        assert_eq!(domain.unmap_start(&mut all).finish(), Ok(3), "{context}");
        let pending = other.unmap_start(&mut [theirs].into_iter());
        assert_eq!(pending.finish(), Ok(1), "{context}");
        rig.close(other, &[]);
        rig.close(domain, &[NIC]);
        rig.end();
    }
}
