// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The expensive translator: does what the one under it does, charges each request once, and holds
//! its lock where it says so. Nothing here depends on how long anything takes, but that a wait is
//! not shorter than what is charged.

use ioatlas_bench::bounce::{BigLock, Charge, Charged, Cost, Expensive};
use ioatlas_dma::{
    design::Design,
    domain::Domain,
    table::fmt::VtdSecond48,
    translator::{Paged, Uncached},
    units::*,
};
use ioatlas_host::{Host, HostConfig, register};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

type Tables = Paged<Host, VtdSecond48, Arc<Uncached<Host>>>;
type Dear = Domain<Host, Expensive<Host, Tables>>;

fn domain(charge: Charge) -> (Arc<Host>, Dear) {
    let platform = Arc::new(Host::new(HostConfig::default().frames(1 << 10).slots(4)));
    let design = Design::parse("magazine,strict").unwrap();
    let tables: Tables = Paged::new(&platform, Arc::new(Uncached::new()), design.tables).unwrap();
    let translator = Expensive::new(tables, charge);
    let domain = Domain::new(platform.clone(), translator, design.domain).unwrap();
    (platform, domain)
}

fn charge(base_ns: f64, page_ns: f64, lock: BigLock) -> Charge {
    let cost = Cost { base_ns, page_ns };
    Charge {
        map: cost,
        unmap: cost,
        lock,
    }
}

fn buffer(nth: u64, pages: u64) -> PhysRange {
    PhysRange::new(
        PhysPage(0x10_0000 + nth * 64).addr(),
        ByteCount(pages * GRANULE),
    )
}

#[test]
fn each_request_is_charged_once_with_its_pages() {
    for lock in [BigLock::Held, BigLock::None] {
        let (_, domain) = domain(charge(1.0, 1.0, lock));
        register();
        let sizes = [1, 3, 32, 1, 1, 7];
        // twice, so that the second time every table and every magazine is warm
        for round in 1..=2u64 {
            let mappings: Vec<_> = (0..)
                .zip(sizes)
                .map(|(nth, pages)| {
                    domain
                        .map(buffer(nth, pages), Direction::FromDevice)
                        .unwrap()
                })
                .collect();
            let charged = domain.translator().charged();
            let pages = PageCount(45);
            let expected = Charged {
                maps: 6 * round,
                mapped: PageCount(pages.0 * round),
                unmaps: 6 * (round - 1),
                unmapped: PageCount(pages.0 * (round - 1)),
            };
            assert_eq!(charged, expected, "{lock:?}");
            for mapping in mappings {
                domain.unmap(mapping).unwrap();
            }
        }
        assert_eq!(domain.translator().charged().unmaps, 12);
        domain.audit().unwrap();
        domain.close().unwrap();
    }
}

#[test]
fn what_is_free_is_not_counted_and_goes_the_short_way() {
    let (_, domain) = domain(Charge::default());
    register();
    for nth in 0..100 {
        let mapping = domain.map(buffer(nth, 2), Direction::ToDevice).unwrap();
        domain.unmap(mapping).unwrap();
    }
    assert_eq!(domain.translator().charged(), Charged::default());
    domain.audit().unwrap();
}

#[test]
fn a_wait_is_at_least_what_is_charged() {
    let (_, domain) = domain(charge(50_000.0, 10_000.0, BigLock::Held));
    register();
    let begun = Instant::now();
    let mapping = domain.map(buffer(0, 5), Direction::FromDevice).unwrap();
    assert!(begun.elapsed() >= Duration::from_micros(100));
    let begun = Instant::now();
    domain.unmap(mapping).unwrap();
    assert!(begun.elapsed() >= Duration::from_micros(100));
}

#[test]
fn under_the_big_lock_two_threads_take_the_time_of_both() {
    const PAIRS: u32 = 50;
    let (_, domain) = domain(charge(20_000.0, 0.0, BigLock::Held));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let domain = &domain;
            scope.spawn(move || {
                register();
                for nth in 0..PAIRS {
                    let buffer = buffer(u64::from(thread * PAIRS + nth), 1);
                    let mapping = domain.map(buffer, Direction::FromDevice).unwrap();
                    domain.unmap(mapping).unwrap();
                }
            });
        }
    });
    // 2 threads, 2 requests a pair
    assert!(begun.elapsed() >= Duration::from_nanos(20_000) * PAIRS * 4);
    assert_eq!(domain.translator().charged().maps, u64::from(2 * PAIRS));
    domain.audit().unwrap();
}

#[test]
fn a_failed_map_leaves_nothing_behind() {
    let (platform, domain) = domain(charge(1.0, 0.0, BigLock::Held));
    register();
    // every frame but a few is taken elsewhere: tables run out on the way
    let mut taken = Vec::new();
    while let Some(frame) = ioatlas_dma::platform::Platform::frame_alloc(&*platform) {
        taken.push(frame);
    }
    let mut live = Vec::new();
    let failed =
        (0..4096).find_map(
            |nth| match domain.map(buffer(nth, 64), Direction::FromDevice) {
                Ok(mapping) => {
                    live.push(mapping);
                    None
                }
                Err(error) => Some(error),
            },
        );
    assert!(failed.is_some(), "no frame is left");
    for mapping in live {
        domain.unmap(mapping).unwrap();
    }
    for frame in taken {
        // SAFETY: it is one of the platform's.
        let by = unsafe { ioatlas_dma::platform::Authority::assume() };
        ioatlas_dma::platform::Platform::frame_free(&*platform, by, frame);
    }
    let again = domain.map(buffer(0, 64), Direction::FromDevice).unwrap();
    domain.unmap(again).unwrap();
    domain.audit().unwrap();
    domain.close().unwrap();
}
