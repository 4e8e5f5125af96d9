// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Instant fit: constant, counted in segments, and exact in spite of alignment.

use crate::allocators::rig::*;
use ioatlas_dma::iova::vmem::{Effort, Vmem};
use ioatlas_dma::iova::*;
use ioatlas_dma::units::*;

const VMEM: AllocatorConfig = AllocatorConfig::Plain(BackingConfig::Vmem);

fn vmem(rig: &Rig<Board>) -> &Vmem<Board> {
    let AnyAllocator::Plain(Backing::Vmem(vmem)) = &rig.allocator else {
        unreachable!("as configured");
    };
    vmem
}

/// What `work` costs.
fn effort(rig: &Rig<Board>, work: impl FnOnce()) -> Effort {
    let before = vmem(rig).effort();
    work();
    let after = vmem(rig).effort();
    Effort {
        segments: after.segments - before.segments,
        scans: after.scans - before.scans,
        chained: after.chained - before.chained,
        passed: after.passed - before.passed,
    }
}

/// Single pages: `free` that are free and as many that are allocated, by turns; and 64 KiB pages
/// more.
fn comb(free: u64) -> (Rig<Board>, Vec<IovaAlloc>) {
    let rig = Rig::board(VMEM, 1, 1 << 18);
    let pages: Vec<_> = (0..2 * free).map(|_| rig.alloc(1).unwrap()).collect();
    let (gone, kept): (Vec<_>, Vec<_>) = pages
        .into_iter()
        .partition(|alloc| alloc.range().first.0.is_multiple_of(2));
    gone.into_iter().for_each(|alloc| rig.free(0, alloc));
    rig.check(free);
    (rig, kept)
}

#[test]
fn an_alloc_looks_at_one_segment_however_many_there_are() {
    for free in [100, 1000, 20_000] {
        let (rig, _kept) = comb(free);
        for pages in [1, 2, 4, 64, 1 << 16] {
            let cost = effort(&rig, || drop(rig.alloc(pages).unwrap()));
            let one = Effort {
                segments: 1,
                ..Effort::default()
            };
            assert_eq!(cost, one, "{pages} pages, {free} free segments");
        }
        let cost = effort(&rig, || assert!(rig.alloc(1 << 17).is_err()));
        assert_eq!(cost, Effort::default(), "{free} free segments");
    }
}

#[test]
fn a_free_looks_at_two_segments_of_a_chain_on_average() {
    for allocated in [100, 1000, 20_000] {
        let (rig, kept) = comb(allocated);
        let cost = effort(&rig, || {
            kept.into_iter().for_each(|alloc| rig.free(0, alloc));
        });
        assert!(cost.chained >= allocated, "each is found: {cost:?}");
        assert!(
            cost.chained <= 2 * allocated,
            "{allocated} allocated: {cost:?}"
        );
        assert_eq!((cost.segments, cost.passed), (0, 0));
        rig.check(0);
    }
}

#[test]
fn a_segment_serves_what_it_holds_aligned() {
    let rig = Rig::board(VMEM, 3, 6);
    let cost = effort(&rig, || {
        assert!(rig.alloc(8).is_err());
        assert_eq!(rig.alloc(4).unwrap().range(), range(4, 4));
    });
    assert_eq!((cost.segments, cost.scans), (1, 0));
    assert!(rig.alloc(2).is_err(), "pages 3 and 8 are left");
    rig.check(4);
}

#[test]
fn neighbours_join_in_any_order() {
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let rig = Rig::board(VMEM, 8, 24);
        let mut held = [0, 1, 2].map(|_| Some(rig.alloc(8).unwrap()));
        for nth in order {
            rig.free(0, held[nth].take().unwrap());
        }
        assert_eq!(rig.alloc(16).unwrap().range(), range(16, 16), "{order:?}");
        rig.check(16);
    }
}

#[test]
fn limits_that_exclude_the_first_segment_cost_a_scan() {
    let (rig, _kept) = comb(1000);
    let below = |end: u64| Limits::NONE.end(IovaPage(end));
    let cost = effort(&rig, || {
        let alloc = rig.alloc_within(1, below(1000)).unwrap();
        assert!(alloc.range().end().0 <= 1000);
    });
    assert_eq!(cost.scans, 1);
    assert!(cost.segments > 1000, "{cost:?}");
    // what one segment serves is not scanned for
    let aligned = Limits::NONE.align_lg2(10);
    let cost = effort(&rig, || drop(rig.alloc_within(1, aligned).unwrap()));
    assert_eq!((cost.scans, cost.segments), (0, 1));
}

#[test]
fn a_chosen_range_is_walked_to() {
    let (rig, kept) = comb(1000);
    let free = kept[0].range().first.0 + 1;
    let cost = effort(&rig, || drop(rig.reserve(free, 1).unwrap()));
    assert!(cost.passed > 1 && cost.passed <= 2001, "{cost:?}");
    rig.check(1001);
}
