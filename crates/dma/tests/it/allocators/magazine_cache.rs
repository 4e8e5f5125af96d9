// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What magazines are for.

use crate::allocators::rig::*;
use crate::allocators::sizes;
use ioatlas_dma::iova::*;
use ioatlas_dma::units::*;
use std::collections::BTreeMap;
use std::sync::Arc;

fn tree(rig: &Rig<Board>) -> &Backing<Board> {
    match &rig.allocator {
        AnyAllocator::Magazine(magazines) => magazines.backing(),
        _ => unreachable!("as configured"),
    }
}

#[test]
fn what_returns_is_what_that_cpu_gets_next() {
    let rig = Rig::board(
        AllocatorConfig::Magazine(MagazineConfig::default()),
        1,
        4096,
    );
    let alloc = rig.alloc(4).unwrap();
    let at = alloc.range();
    rig.free(2, alloc);
    assert_ne!(
        rig.alloc(4).unwrap().range(),
        at,
        "CPU 0 has others of its run"
    );
    move_to(2);
    assert_eq!(rig.alloc(3).unwrap().range(), at);
}

#[test]
fn cpus_share_no_cache_line_of_table_entries() {
    let rig = Rig::board(
        AllocatorConfig::Magazine(MagazineConfig::default()),
        1,
        4096,
    );
    let mut line_of = BTreeMap::new();
    for step in 0..320 {
        move_to(step % CPUS);
        let first = rig.alloc(1).unwrap().range().first;
        let owner = *line_of.entry(first.0 / 8).or_insert(step % CPUS);
        assert_eq!(owner, step % CPUS, "page {first}");
    }
    assert_eq!(line_of.len(), 320 / 8);
}

#[test]
fn a_producer_lives_on_what_a_consumer_gives_back() {
    let rig = Rig::board(sizes(8, 1, 8, 4), 1, 1 << 16);
    let round = || {
        move_to(0);
        let held: Vec<_> = (0..16).map(|_| rig.alloc(1).unwrap()).collect();
        held.into_iter().for_each(|alloc| rig.free(1, alloc));
    };
    (0..10).for_each(|_| round());
    let (warm, usage) = (tree(&rig).nodes_visited(), rig.usage());
    (0..1000).for_each(|_| round());
    assert_eq!((tree(&rig).nodes_visited(), rig.usage()), (warm, usage));
}

#[test]
fn mixed_sizes_do_not_scan_once_warm() {
    let rig = Rig::board(
        AllocatorConfig::Magazine(MagazineConfig::default()),
        1,
        1 << 20,
    );
    let _pinned: Vec<_> = (0..1000).map(|_| rig.alloc(1).unwrap()).collect();
    let round = || {
        for pages in [1, 2, 16] {
            rig.free(0, rig.alloc(pages).unwrap());
        }
    };
    round();
    let warm = tree(&rig).nodes_visited();
    (0..1000).for_each(|_| round());
    assert_eq!(tree(&rig).nodes_visited(), warm);
}

#[test]
fn a_full_depot_gives_back_to_the_tree() {
    let rig = Rig::board(sizes(4, 1, 1, 2), 1, 4096);
    let held: Vec<_> = (0..1000).map(|_| rig.alloc(1).unwrap()).collect();
    held.into_iter().for_each(|alloc| rig.free(1, alloc));
    // two magazines of CPU 1, two of the depot, and what is left of CPU 0's last run
    assert!(rig.usage().cached.0 <= 16 + 3, "{rig}");
    assert!(rig.usage().cached.0 > 8, "{rig}");
    rig.check(0);
}

#[test]
fn a_refill_that_an_interrupt_has_overtaken_loses_nothing() {
    let rig = Arc::new(Rig::board(sizes(4, 1, 4, 2), 1, 4096));
    let held: Vec<_> = (0..4).map(|_| rig.alloc(1).unwrap()).collect();
    assert_eq!(rig.usage().cached.0, 0, "{rig}");
    // between finding the magazine empty and refilling it, the CPU takes an interrupt that fills it
    let handler = Arc::clone(&rig);
    interrupt_before_pin(
        1,
        Box::new(move || held.into_iter().for_each(|alloc| handler.free(0, alloc))),
    );
    let alloc = rig.alloc(1).unwrap();
    assert!(!is_armed(), "the interrupt came");
    rig.check(1);
    rig.free(0, alloc);
    rig.check(0);
    rig.drain();
    assert_eq!(rig.usage().free, rig.usage().aperture);
}

#[test]
fn limits_are_kept_by_the_tree_where_the_magazine_cannot() {
    let rig = Rig::board(
        AllocatorConfig::Magazine(MagazineConfig::default()),
        1,
        4096,
    );
    rig.free(0, rig.alloc(1).unwrap()); // leaves a run from the top in the magazine
    let cached = rig.usage().cached;
    let limits = Limits::NONE.end(IovaPage(0x100));
    let low = rig.alloc_within(1, limits).unwrap();
    assert!(limits.allow(low.range()));
    assert_eq!((rig.usage().cached, rig.usage().diverted), (cached, 1));
    // having are freed, it is what the magazine offers
    let at = low.range();
    rig.free(0, low);
    let again = rig.alloc_within(1, limits).unwrap();
    assert_eq!((again.range(), rig.usage().diverted), (at, 1));
    // a preference sends away as well, and so does an empty magazine
    let preferred = Limits::NONE.prefer_end(limits.end);
    let other = rig.alloc_within(1, preferred).unwrap();
    assert!(preferred.prefer(other.range()));
    let pair = rig.alloc_within(2, limits).unwrap();
    assert_eq!(rig.usage().diverted, 3);
    rig.check(4);
    for alloc in [again, other, pair] {
        rig.free(0, alloc);
    }
    rig.check(0);
}
