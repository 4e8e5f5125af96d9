// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The unit under schedules: an unmapping CPU, a device, and where asked for an agent that
//! processes the queue.

use crate::unit::rig::*;
use ioatlas_dma::platform::{Ordering, Platform};
use ioatlas_sim::platform::{Schedule, Sim, SimConfig, World};
use ioatlas_viommu::{config::*, queue::Progress};
use std::{cell::Cell, sync::Arc};

const ROUNDS: u32 = 8;

/// Accesses that got through although they began after an unmap was flushed, and ended before the
/// next map.
fn stale_accesses(flush: [u64; 2], processing: Processing, schedule: Schedule) -> u32 {
    let sim = Arc::new(Sim::new(SimConfig {
        frames: 32,
        cpus: 1,
    }));
    let mut config = UnitConfig::new(TOY);
    config.processing = processing;
    let rig = Rig::over(sim.clone(), &config, None);
    let (table, index) = rig.map_here(9, 100);
    // odd while the page is unmapped and flushed
    let (epoch, stale, ended) = (Cell::new(0), Cell::new(0), Cell::new(false));
    let cpu = || {
        for round in 1..=ROUNDS {
            rig.poke(table, index, 0);
            sim.fence(Ordering::SeqCst);
            rig.send(&[flush, wait(rig.status << 12, round)]);
            while rig.peek(rig.status, 0) != u64::from(round) {
                sim.relax();
            }
            epoch.set(epoch.get() + 1);
            (0..4).for_each(|_| sim.relax()); // a while for the device to do wrong
            epoch.set(epoch.get() + 1);
            rig.poke(table, index, 100 << 12 | RW);
        }
        ended.set(true);
    };
    let device = || {
        while !ended.get() {
            let began = epoch.get();
            let through = target(&rig.read(9)).is_some();
            let late = began % 2 == 1 && epoch.get() == began;
            stale.set(stale.get() + u32::from(late && through));
            sim.relax();
        }
    };
    let queue = || {
        while !ended.get() {
            if rig.unit.service() != Progress::Did {
                sim.relax();
            }
        }
    };
    let world = World::new(schedule).expect_accesses(600).cpu(cpu);
    let world = world.agent("device", device);
    let _ = match processing {
        Processing::Asynchronous => world.agent("queue", queue).run(),
        _ => world.run(),
    };
    rig.check();
    assert_eq!(rig.unit.in_flight(), 0);
    stale.get()
}

fn schedules(seeds: u64) -> impl Iterator<Item = Schedule> {
    (0..seeds).flat_map(|seed| {
        let sticky = Schedule::Sticky {
            seed,
            switch_one_in: 24,
        };
        let bounded = Schedule::Bounded {
            seed,
            preemptions: 12,
        };
        [sticky, bounded]
    })
}

#[test]
fn a_drained_flush_leaves_no_stale_access_in_any_schedule() {
    for processing in [Processing::Inline, Processing::Asynchronous] {
        for flush in [flush_domain(DOMAIN), flush_pages(DOMAIN, 9, 0, 1)] {
            for schedule in schedules(100) {
                let stale = stale_accesses(flush, processing, schedule);
                assert_eq!(stale, 0, "{flush:x?} {processing:?} {schedule:?}");
            }
        }
    }
}

#[test]
fn an_undrained_flush_is_caught_in_some_schedule() {
    for processing in [Processing::Inline, Processing::Asynchronous] {
        let flush = undrained(flush_pages(DOMAIN, 9, 0, 1));
        // about one in a hundred shows it
        let caught = schedules(2000).find(|s| stale_accesses(flush, processing, *s) > 0);
        assert!(caught.is_some(), "{processing:?}");
    }
}
