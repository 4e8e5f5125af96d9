// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The deferred policy's window: in time by ticks, in operations by the batch; bounded work;
//! entries are freed.

use crate::suite::rig::*;
use ioatlas_dma::{domain::*, table::Format, units::*};
use ioatlas_host::Host;
use ioatlas_sim::platform::Sim;
use ioatlas_viommu::oracle::{Exposure, Oracle};
use std::sync::{Arc, Mutex};

on_every_machine! {
    ticks::strict_has_nothing_to_do,
    ticks::nothing_pending_starts_nothing,
    ticks::the_window_is_kept_to_the_nanosecond,
    ticks::a_tick_does_bounded_work,
    ticks::a_budget_of_nothing_still_gets_on,
    ticks::a_completion_completes_nothing_that_came_later,
    ticks::the_batch_starts_at_exactly_its_size,
    ticks::exposure_in_operations_is_bounded_by_the_batch,
    ticks::exposure_in_time_is_bounded_by_window_and_interval,
}

const MS: u64 = 1_000_000;
/// As `designs` says.
const BATCH: u64 = 5;
const WINDOW: u64 = 10 * MS;
const BUDGET: u32 = 4;

fn deferred(run: impl FnMut(DomainConfig)) {
    designs().into_iter().filter(is_batched).for_each(run);
}

fn map_unmap<B: Base, F: Format>(domain: &Dom<B, F>, page: u64) {
    let mapping = domain.map(buffer(page, 1), Direction::ToDevice).unwrap();
    domain.unmap(mapping).unwrap();
}

fn counts<B: Base, F: Format>(domain: &Dom<B, F>) -> (u64, u64) {
    let stats = domain.domain().stats();
    (stats.invalidations, stats.retired.pages.0)
}

fn report(invalidations: u32, drained: u32) -> TickReport {
    TickReport {
        invalidations,
        drained,
        ..TickReport::default()
    }
}

pub fn strict_has_nothing_to_do<B: Base, F: Format>() {
    for design in designs().into_iter().filter(is_strict) {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        map_unmap(&domain, 0x10);
        for now in [0, WINDOW, u64::MAX] {
            assert_eq!(domain.tick(TimeNs(now)), Ok(TickReport::default()));
        }
        assert_eq!(counts(&domain), (1, 0), "that of unmap");
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn nothing_pending_starts_nothing<B: Base, F: Format>() {
    deferred(|design| {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let live = domain.map(buffer(0x10, 1), Direction::ToDevice).unwrap();
        for now in [0, WINDOW, 5 * WINDOW, u64::MAX] {
            assert_eq!(domain.tick(TimeNs(now)), Ok(TickReport::default()));
        }
        domain.domain().flush().unwrap();
        assert_eq!(counts(&domain), (0, 0));
        domain.unmap(live).unwrap();
        rig.close(domain, &[NIC]);
        rig.end();
    });
}

pub fn the_window_is_kept_to_the_nanosecond<B: Base, F: Format>() {
    deferred(|design| {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let tick = |now| domain.tick(TimeNs(now)).unwrap();
        let start = 7 * MS;
        assert_eq!(tick(start), report(0, 0), "the window begins");
        for round in 0..3 {
            let begins = start + round * WINDOW;
            let mapping = domain.map(buffer(0x10, 1), Direction::ToDevice).unwrap();
            let at = mapping.iova().page();
            assert!(rig.access(at, AccessKind::Read).is_some());
            domain.unmap(mapping).unwrap();
            for early in [begins, begins + 5 * MS, begins + WINDOW - 1] {
                assert_eq!(tick(early), report(0, 0));
            }
            assert!(rig.access(at, AccessKind::Read).is_some(), "stale");
            assert_eq!(tick(begins + WINDOW), report(1, 1));
            assert_eq!(rig.access(at, AccessKind::Read), None);
            assert_eq!(counts(&domain), (round + 1, 0));
        }
        // a clock at its end does not begin again
        map_unmap(&domain, 0x20);
        assert_eq!(tick(u64::MAX), report(1, 1));
        map_unmap(&domain, 0x30);
        assert_eq!(tick(u64::MAX), report(1, 1));
        rig.close(domain, &[NIC]);
        rig.end();
    });
}

pub fn a_tick_does_bounded_work<B: Base, F: Format>() {
    deferred(|design| {
        let rig = Rig::<B>::new::<F>(64);
        let bounds = DeferredConfig::default()
            .batch(2 * BATCH as u32)
            .window(TimeNs(WINDOW))
            .tick_budget(BUDGET);
        let domain = rig.domain::<F>(with_bounds(design, bounds));
        // a whole batch but one on each of two CPUs, which may share a queue
        (0..BATCH - 1).for_each(|i| map_unmap(&domain, 0x10 + i));
        rig.failing().inner().on_another_cpu(|| {
            (0..BATCH - 1).for_each(|i| map_unmap(&domain, 0x20 + i));
        });
        assert_eq!(counts(&domain), (0, 2 * (BATCH - 1)));
        // one start for both queues; what is above the budget is freed in the next tick, without
        // another start
        assert_eq!(domain.tick(TimeNs(0)), Ok(report(1, BUDGET)));
        assert_eq!(counts(&domain), (1, 4));
        domain.domain().audit().unwrap();
        assert_eq!(domain.tick(TimeNs(1)), Ok(report(0, BUDGET)));
        assert_eq!(counts(&domain), (1, 0));
        assert_eq!(domain.tick(TimeNs(2)), Ok(report(0, 0)));
        rig.close(domain, &[NIC]);
        rig.end();
    });
}

pub fn a_budget_of_nothing_still_gets_on<B: Base, F: Format>() {
    deferred(|design| {
        let rig = Rig::<B>::new::<F>(64);
        let bounds = DeferredConfig::default().batch(0).tick_budget(0);
        let domain = rig.domain::<F>(with_bounds(design, bounds));
        map_unmap(&domain, 0x10);
        assert_eq!(counts(&domain), (1, 0), "a batch of 0 is one of 1");
        let bounds = DeferredConfig::default().tick_budget(0);
        let other = rig.machine.domain::<F>(with_bounds(design, bounds));
        let other = other.unwrap();
        (0..3).for_each(|i| map_unmap(&other, 0x20 + i));
        for (now, starts) in [(0, 1), (1, 0), (2, 0)] {
            assert_eq!(other.tick(TimeNs(now)), Ok(report(starts, 1)));
        }
        assert_eq!(counts(&other), (1, 0));
        rig.close(other, &[]);
        rig.close(domain, &[NIC]);
        rig.end();
    });
}

pub fn a_completion_completes_nothing_that_came_later<B: Base, F: Format>() {
    deferred(|design| {
        let rig = Rig::<B>::new::<F>(64);
        // room for all of it in one queue
        let bounds = DeferredConfig::default()
            .batch(100)
            .window(TimeNs(WINDOW))
            .tick_budget(BUDGET);
        let domain = rig.domain::<F>(with_bounds(design, bounds));
        (0..6).for_each(|i| map_unmap(&domain, 0x10 + i));
        assert_eq!(domain.tick(TimeNs(0)), Ok(report(1, 4)));
        // two are completed and still queued; one more comes after the start
        let late = domain.map(buffer(0x50, 1), Direction::ToDevice).unwrap();
        let at = late.iova().page();
        assert!(rig.access(at, AccessKind::Read).is_some());
        domain.unmap(late).unwrap();
        assert_eq!(domain.tick(TimeNs(1)), Ok(report(0, 2)));
        assert_eq!(counts(&domain), (1, 1), "the late one waits");
        assert_eq!(domain.tick(TimeNs(WINDOW - 1)), Ok(report(0, 0)));
        assert_eq!(domain.tick(TimeNs(WINDOW)), Ok(report(1, 1)));
        assert_eq!(rig.access(at, AccessKind::Read), None);
        rig.close(domain, &[NIC]);
        rig.end();
    });
}

pub fn the_batch_starts_at_exactly_its_size<B: Base, F: Format>() {
    deferred(|design| {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        for done in 0..4 * BATCH {
            assert_eq!(counts(&domain), (done / BATCH, done % BATCH));
            map_unmap(&domain, 0x10 + done);
        }
        // what a flush or a tick freed does not count
        (0..BATCH - 1).for_each(|i| map_unmap(&domain, 0x40 + i));
        domain.domain().flush().unwrap();
        assert_eq!(counts(&domain), (5, 0));
        (0..BATCH - 1).for_each(|i| map_unmap(&domain, 0x50 + i));
        assert_eq!(counts(&domain), (5, BATCH - 1));
        domain.tick(TimeNs(0)).unwrap();
        assert_eq!(counts(&domain), (6, 0));
        (0..BATCH - 1).for_each(|i| map_unmap(&domain, 0x60 + i));
        assert_eq!(counts(&domain), (6, BATCH - 1));
        map_unmap(&domain, 0x70);
        assert_eq!(counts(&domain), (7, 0));
        rig.close(domain, &[NIC]);
        rig.end();
    });
}

pub fn exposure_in_operations_is_bounded_by_the_batch<B: Base, F: Format>() {
    deferred(|design| {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        for round in 0..7 * BATCH + 3 {
            let mapping = domain
                .map(buffer(0x10 + round, 1), Direction::ToDevice)
                .unwrap();
            let at = mapping.iova().page();
            assert!(rig.access(at, AccessKind::Read).is_some());
            domain.unmap(mapping).unwrap();
            // what is stale is reached until its batch is full
            let stale = rig.access(at, AccessKind::Read).is_some();
            assert_eq!(stale, (round + 1) % BATCH != 0, "round {round}");
        }
        let summary = rig.machine.oracle().summary();
        // the first of a batch sees the returns of all others but the last, in whose call the flush
        // is
        let expected = Exposure {
            unmaps: BATCH - 2,
            time: TimeNs(0),
        };
        assert_eq!(summary.exposure, expected);
        assert_eq!(summary.stale, 7 * (BATCH - 1) + 3);
        rig.close(domain, &[NIC]);
        rig.end();
    });
}

pub fn exposure_in_time_is_bounded_by_window_and_interval<B: Base, F: Format>() {
    deferred(|design| {
        let clock = Arc::new(Mutex::new(TimeNs(0)));
        let read = clock.clone();
        let oracle = Oracle::with_clock(move || *read.lock().unwrap());
        let rig = Rig::<B>::watched_by::<F>(oracle, 64, |_| ());
        let domain = rig.domain::<F>(design);
        let interval = 3 * MS;
        // one unmap each 2 ms and a tick each 3 ms, for 120 ms of virtual time
        for now in (0..120).map(|ms| ms * MS) {
            *clock.lock().unwrap() = TimeNs(now);
            if now % (2 * MS) == 0 && now % (7 * MS) != 0 {
                map_unmap(&domain, 0x10 + now / MS);
            }
            if now % interval == 0 {
                domain.tick(TimeNs(now)).unwrap();
            }
        }
        let longest = rig.machine.oracle().summary().exposure.time;
        assert!(longest <= TimeNs(WINDOW + interval), "{longest:?}");
        assert!(longest > TimeNs(0), "the clock was read");
        rig.close(domain, &[NIC]);
        rig.end();
    });
}

/// What another CPU unmapped and a tick here drained is in the other CPU's magazine.
fn entries_return<B: Base, F: Format>() {
    deferred(|design| {
        if !matches!(design.allocator, AllocatorConfig::Magazine(_)) {
            return; // a tree has no homes
        }
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let other = |f: &mut (dyn FnMut() + Send)| rig.failing().inner().on_another_cpu(f);
        // mapped here, unmapped there: so that it is where it was unmapped that counts
        let mapping = domain.map(buffer(0x10, 1), Direction::ToDevice).unwrap();
        let at = mapping.iova().page();
        let mut mapping = Some(mapping);
        other(&mut || domain.unmap(mapping.take().unwrap()).unwrap());
        assert_eq!(domain.tick(TimeNs(0)), Ok(report(1, 1)));
        let here = domain.map(buffer(0x20, 1), Direction::ToDevice).unwrap();
        assert_ne!(here.iova().page(), at);
        let mut there = None;
        other(&mut || there = Some(domain.map(buffer(0x30, 1), Direction::ToDevice).unwrap()));
        let there = there.unwrap();
        assert_eq!(there.iova().page(), at, "the last that was freed there");
        domain.unmap(here).unwrap();
        domain.unmap(there).unwrap();
        rig.close(domain, &[NIC]);
        rig.end();
    });
}

#[test]
fn entries_return_to_the_virtual_cpu_that_unmapped_them() {
    entries_return::<Sim, Vtd>();
    entries_return::<Sim, Small>();
}

#[test]
fn entries_of_a_thread_that_is_gone_are_found_when_they_are_needed() {
    // its slot may be another thread's by now, or free: an exhausted allocator drains every
    // magazine
    for design in designs() {
        let aperture = Some(IovaRange::new(IovaPage(8), PageCount(8)));
        let rig = Rig::<Host>::new::<Small>(64);
        let domain = rig.domain::<Small>(design.aperture(aperture));
        for round in 0..5 {
            let all: Vec<_> = (0..8)
                .map(|i| domain.map(buffer(0x10 + i + 8 * round, 1), Direction::ToDevice))
                .collect::<Result<_, _>>()
                .unwrap();
            rig.failing().inner().on_another_cpu(|| {
                all.into_iter().for_each(|m| domain.unmap(m).unwrap());
            });
        }
        rig.close(domain, &[NIC]);
        rig.end();
    }
}
