// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Threads of this host: two CPUs, a device, a timer, and in some variants the unit itself, all at
//! once.
//!
//! Every design x variant of the unit. The host schedules, so a failure is not replayable;
//! `schedules` is.

use crate::suite::{crowd::*, interface::Interface, rig::*};
use ioatlas_dma::{
    design::Design,
    platform::{Atomic64, Ordering, Platform},
    table::{Format, Reclaim, TableConfig},
};
use ioatlas_host::{Host, register};
use ioatlas_viommu::config::*;
use std::{num::NonZeroU32, thread};

const OPS: u64 = 1_200;
const ACCESSES: u64 = 12_000;
const TICKS: u64 = 400;

type Adjust = fn(&mut UnitConfig);

fn plain(_: &mut UnitConfig) {}

fn evicting(unit: &mut UnitConfig) {
    unit.caches.eviction = Some(Eviction {
        seed: 7,
        one_in: NonZeroU32::MIN.saturating_add(2),
    });
}

fn prefetching(unit: &mut UnitConfig) {
    unit.caches.prefetch = 3;
    unit.processing = Processing::Asynchronous;
}

fn tiny(unit: &mut UnitConfig) {
    unit.caches.context = 1;
    unit.caches.iotlb = SetGeometry {
        entries: 2,
        ways: 1,
    };
    unit.caches.walk = vec![1; unit.geometry.levels as usize - 1];
    unit.processing = Processing::Asynchronous;
}

/// No page-selective invalidation.
fn coarse(unit: &mut UnitConfig) {
    unit.features.page_selective = None;
    evicting(unit);
}

/// Kinds of units.
const UNITS: usize = 5;

/// The `nth` of the units, changed by `adjust`. Each design has one of them: schedules are where
/// each has all.
fn all_at_once<F: Format>(interface: Interface, nth: usize, adjust: Adjust) {
    for design in designs().into_iter().skip(nth).step_by(UNITS) {
        let design = Design {
            domain: design,
            tables: TableConfig::default().reclaim(Reclaim::Emptied),
        };
        let crowd = Crowd::<Host, F>::by(interface, design, PATIENT, adjust);
        crowd.domain.attach(DISK).expect("attached");
        let (left, right) = exchange();
        let over = <Host as Platform>::A64::new(0);
        let ends = thread::scope(|scope| {
            let crowd = &crowd;
            let cpu = |seed, end: End| {
                scope.spawn(move || {
                    register();
                    crowd.cpu(seed, OPS, 5, &end);
                    end
                })
            };
            let cpus = [cpu(1, left), cpu(2, right)];
            let device = scope.spawn(|| crowd.device(NIC, 3, ACCESSES));
            let disk = scope.spawn(|| crowd.device(DISK, 4, ACCESSES / 4));
            let ticker = scope.spawn(|| crowd.ticker(TICKS));
            let unit = scope.spawn(|| crowd.unit(|| Atomic64::load(&over, Ordering::Acquire) == 1));
            let ends = cpus.map(|cpu| cpu.join());
            let (device, disk, ticker) = (device.join(), disk.join(), ticker.join());
            Atomic64::store(&over, 1, Ordering::Release);
            unit.join().expect("the unit");
            device.expect("the NIC");
            disk.expect("the disk");
            ticker.expect("the ticker");
            ends.map(|end| end.expect("a CPU"))
        });
        let done = crowd.check(ends, &name(&design.domain));
        println!("{}: {done:?}", name(&design.domain));
        // how many succeed is the host's matter
        assert!(done.maps > 0 && done.succeeded + done.blocked > ACCESSES / 2);
    }
}

macro_rules! on_every_unit {
    ($($nth:literal $variant:ident),*) => {
        mod vtd { use crate::suite::interface::Interface; $( #[test] fn $variant() {
            super::all_at_once::<crate::suite::rig::Vtd>(Interface::Domain, $nth, super::$variant);
        } )* }
        mod dma_api { use crate::suite::interface::Interface; $( #[test] fn $variant() {
            super::all_at_once::<crate::suite::rig::Vtd>(Interface::Dma, ($nth + 1) % super::UNITS, super::$variant);
        } )* }
        mod toy { use crate::suite::interface::Interface; $( #[test] fn $variant() {
            // not the design that it has above
            let nth = ($nth + 2) % super::UNITS;
            super::all_at_once::<crate::suite::rig::Small>(Interface::Domain, nth, super::$variant);
        } )* }
    };
}

on_every_unit!(0 plain, 1 evicting, 2 prefetching, 3 tiny, 4 coarse);
