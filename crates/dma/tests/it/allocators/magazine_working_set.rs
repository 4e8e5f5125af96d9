// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What magazines keep: no more than their caps, and not for ever.

use crate::allocators::{capped, counting::live_bytes, rig::*};
use ioatlas_dma::iova::*;
use ioatlas_dma::magazine;
use ioatlas_dma::units::*;

fn magazines(rig: &Rig<Board>) -> &Magazines<Board> {
    match &rig.allocator {
        AnyAllocator::Magazine(magazines) => magazines,
        _ => unreachable!("as configured"),
    }
}

/// Classes, and bytes and pages for each CPU.
const CAPS: [(usize, u64, u64); 4] = [
    (6, 16 << 10, 1 << 14), // the default
    (16, 16 << 10, 1 << 14),
    (16, 64 << 10, 1 << 22),
    (6, 1 << 10, 100),
];

fn idle() -> AllocatorConfig {
    AllocatorConfig::Magazine(
        MagazineConfig::DEFAULT
            .magazine_len(8)
            .classes(2)
            .idle(TimeNs(100)),
    )
}

/// `burst` ranges of 1 and of 2 pages taken by CPU 0 and given back to CPU 1.
fn burst(rig: &Rig<Board>, burst: usize) {
    move_to(0);
    let held: Vec<_> = (0..burst)
        .map(|nth| rig.alloc(1 + nth as u64 % 2).unwrap())
        .collect();
    held.into_iter().for_each(|alloc| rig.free(1, alloc));
}

#[test]
fn what_lies_idle_goes_back_a_bounded_part_a_tick() {
    let rig = Rig::board(idle(), 1, 1 << 16);
    burst(&rig, 400);
    let (warm, bytes) = (rig.usage().cached.0, magazines(&rig).bytes());
    rig.allocator.tick(&rig.p, TimeNs(100)); // looks for the first time
    assert_eq!(rig.usage().cached.0, warm, "in use since the start");
    rig.allocator.tick(&rig.p, TimeNs(199));
    assert_eq!(rig.usage().cached.0, warm, "before its time");
    let mut before = warm;
    let mut ticks = 0;
    for now in (200..10_000).step_by(100) {
        rig.allocator.tick(&rig.p, TimeNs(now));
        rig.check(0);
        let after = rig.usage().cached.0;
        // 4 magazines of 8 ranges, in classes of 1 and 2 pages
        assert!(before - after <= 4 * 8 * (1 + 2), "{before} to {after}");
        ticks += u64::from(after < before);
        before = after;
    }
    // what CPUs hold themselves stays: two magazines of each class at most
    assert!(ticks > 2 && before > 0, "{ticks} ticks, {before} left");
    assert!(before <= CPUS as u64 * 2 * 8 * (1 + 2), "{before} left");
    assert!(magazines(&rig).bytes() < bytes);
}

#[test]
fn what_is_needed_in_every_interval_stays() {
    let rig = Rig::board(idle(), 1, 1 << 16);
    burst(&rig, 400);
    let mut refills = Vec::new();
    for now in (100..3000).step_by(100) {
        burst(&rig, 400);
        rig.allocator.tick(&rig.p, TimeNs(now));
        let visits = magazines(&rig).visits();
        refills.push(visits.map(|(_, v)| v.misses + v.overflows).sum::<u64>());
    }
    assert_eq!(refills.first(), refills.last(), "the working set is kept");
    // half as much is needed from now on, and half of it goes
    let full = rig.usage().cached.0;
    for now in (3000..6000).step_by(100) {
        burst(&rig, 200);
        rig.allocator.tick(&rig.p, TimeNs(now));
    }
    let half = rig.usage().cached.0;
    assert!(half > 250 && half < full - 200, "{full} to {half}");
    rig.check(0);
}

#[test]
fn warm_magazines_stay_within_their_caps() {
    for (classes, bytes, pages) in CAPS {
        let rig = Rig::board(capped(classes, bytes, pages), 1, 1 << 30);
        let mut most = PageCount(0);
        for round in 0..3 {
            for lg2 in 0..18 {
                let ranges = if lg2 < 8 { 3000 } else { 40 };
                move_to(round);
                let held: Vec<_> = (0..ranges).map(|_| rig.alloc(1 << lg2).unwrap()).collect();
                for (nth, alloc) in held.into_iter().enumerate() {
                    rig.free(nth * CPUS / ranges, alloc);
                }
                most = most.max(rig.usage().cached);
            }
        }
        let cap = |each: u64| each * CPUS as u64;
        assert!(most.0 <= cap(pages), "{most} pages are cached");
        assert!(
            most.0 > cap(pages) / 20,
            "{most} pages: the cap is far away"
        );
        let held = magazines(&rig).bytes().0;
        assert!(held <= cap(bytes), "{held} bytes of magazines");
        println!("{classes} classes, {CPUS} CPUs: {held} bytes hold {most} pages at most");
    }
}

/// The whole memory, as the allocator counts it: the lists of the depots and the CPUs' own lines
/// included.
#[test]
fn full_magazines_take_no_more_bytes_than_they_may() {
    let rig = Rig::board(AllocatorConfig::RBTREE, 1, 1); // for its CPUs
    for (classes, bytes, pages) in CAPS {
        let AllocatorConfig::Magazine(config) = capped(classes, bytes, pages) else {
            unreachable!("as made")
        };
        let sizes = config.class_sizes(CPUS);
        let before = live_bytes();
        let mut all = Vec::with_capacity(sizes.len());
        let list = live_bytes() - before;
        for sizes in sizes {
            let kept = magazine::Magazines::<Board, u64>::new(&rig.p, sizes);
            for cpu in (0..CPUS).map(CpuIndex) {
                let overflow = std::iter::repeat(7).find_map(|thing| kept.give(cpu, thing));
                kept.recycle(overflow.expect("there is a cap"));
            }
            all.push(kept);
        }
        let held = live_bytes() - before - list;
        let cap = (bytes * CPUS as u64) as i64;
        println!("{classes} classes, {CPUS} CPUs: {held} bytes of {cap}");
        assert!(held <= cap, "{held} bytes of {cap}");
        assert!(held > cap / 5, "{held} bytes of {cap}: the cap is far away");
    }
}
