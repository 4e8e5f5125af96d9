// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Two allocators that share an aperture: which has which block of 512 MiB, and what that costs.

use crate::allocators::differential::agrees_where_ranges_are_as_large_as_blocks;
use crate::allocators::rig::*;
use ioatlas_dma::iova::backing::Refill;
use ioatlas_dma::iova::macos::{MacOs, Sizes};
use ioatlas_dma::iova::*;
use ioatlas_dma::units::*;

const MACOS: AllocatorConfig = AllocatorConfig::Plain(BackingConfig::MacOs);
/// Pages of 512 MiB.
const BLOCK: u64 = 1 << 17;
/// Nodes of a block of which one page is in use: the root, and two halves of each split.
const NODES: usize = 1 + 2 * 17;

fn macos(rig: &Rig<Board>) -> &MacOs<Board> {
    let AnyAllocator::Plain(Backing::MacOs(macos)) = &rig.allocator else {
        unreachable!("as configured");
    };
    macos
}

fn sizes(rig: &Rig<Board>) -> (usize, usize) {
    let Sizes { blocks, nodes } = macos(rig).sizes();
    (blocks, nodes)
}

#[test]
fn a_block_comes_with_its_first_range_and_leaves_with_its_last() {
    let rig = Rig::board(MACOS, BLOCK, 8 * BLOCK);
    assert_eq!(sizes(&rig), (0, 0));
    let (one, other) = (rig.alloc(1).unwrap(), rig.alloc(1).unwrap());
    assert_eq!(
        sizes(&rig),
        (1, NODES),
        "the second is the buddy of the first"
    );
    assert!(rig.alloc(8 * BLOCK).is_err());
    rig.free(0, one);
    assert_eq!(sizes(&rig), (1, NODES));
    rig.free(0, other);
    assert_eq!(sizes(&rig), (0, 0));
    rig.check(0);
    assert_eq!(
        rig.alloc(8 * BLOCK).unwrap_err().free.0,
        8 * BLOCK,
        "no aligned place"
    );
    drop(rig.alloc(4 * BLOCK).unwrap());
    rig.check(4 * BLOCK);
}

#[test]
fn up_to_a_block_is_the_buddys_and_above_the_trees() {
    let rig = Rig::board(MACOS, BLOCK, 8 * BLOCK);
    let half = rig.alloc(BLOCK / 2).unwrap();
    assert_eq!(sizes(&rig), (1, 3));
    let whole = rig.alloc(BLOCK).unwrap();
    assert_eq!((sizes(&rig), whole.range().pages.0), ((2, 4), BLOCK));
    let above = rig.alloc(BLOCK + 1).unwrap();
    assert_eq!((sizes(&rig), above.range().pages.0), ((2, 4), 2 * BLOCK));
    rig.check(3 * BLOCK + BLOCK / 2);
    for alloc in [whole, half, above] {
        rig.free(1, alloc);
    }
    rig.check(0);
    assert_eq!(sizes(&rig), (0, 0));
}

#[test]
fn a_page_costs_one_way_down_however_many_are_allocated() {
    for allocated in [10, 1000, 30_000] {
        let rig = Rig::board(MACOS, BLOCK, 64 * BLOCK);
        let held: Vec<_> = (0..allocated).map(|_| rig.alloc(1).unwrap()).collect();
        let (every_other, _kept): (Vec<_>, Vec<_>) = held
            .into_iter()
            .partition(|alloc| alloc.range().first.0.is_multiple_of(2));
        every_other.into_iter().for_each(|alloc| rig.free(0, alloc));
        let before = macos(&rig).effort();
        let alloc = rig.alloc(1).unwrap();
        let allocated = macos(&rig).effort();
        assert_eq!(allocated.looked - before.looked, 1);
        assert_eq!(allocated.descended - before.descended, 18);
        rig.free(0, alloc);
        let released = macos(&rig).effort();
        assert_eq!(released.descended - allocated.descended, 17);
        assert_eq!(released.scans, 0);
    }
}

#[test]
fn a_large_range_looks_at_one_of_many_free_ones() {
    for blocks in [16, 256, 4096] {
        let rig = Rig::board(MACOS, BLOCK, 4 * blocks * BLOCK);
        let held: Vec<_> = (0..blocks).map(|_| rig.alloc(2 * BLOCK).unwrap()).collect();
        for (nth, alloc) in held.into_iter().enumerate().filter(|(nth, _)| nth % 2 == 0) {
            rig.free(nth % CPUS, alloc);
        }
        for pages in [2 * BLOCK, 4 * BLOCK, BLOCK] {
            let before = macos(&rig).effort();
            drop(rig.alloc(pages).unwrap());
            assert_eq!(macos(&rig).effort().looked - before.looked, 1);
        }
        assert_eq!(macos(&rig).effort().scans, 0);
    }
}

#[test]
fn a_chosen_range_takes_whole_blocks_and_parts() {
    let rig = Rig::board(MACOS, BLOCK, 8 * BLOCK);
    let wanted = range(3 * BLOCK - 5, 2 * BLOCK + 14);
    let chosen = rig.reserve(wanted.first.0, wanted.pages.0).unwrap();
    assert_eq!(macos(&rig).sizes().blocks, 2);
    rig.check(wanted.pages.0);
    for (first, pages) in [
        (3 * BLOCK - 5, 1),
        (3 * BLOCK + 7, 1),
        (4 * BLOCK, BLOCK),
        (5 * BLOCK + 8, 1),
        (BLOCK, 8 * BLOCK),
    ] {
        let (wanted, taken) = (range(first, pages), chosen.range());
        assert_eq!(
            rig.reserve(first, pages),
            Err(FixedRangeError::Taken { wanted, taken })
        );
    }
    let around = [(3 * BLOCK - 6, 1), (5 * BLOCK + 9, 1)];
    let around = around.map(|(first, pages)| rig.reserve(first, pages).unwrap());
    rig.free(0, chosen);
    rig.check(2);
    around.into_iter().for_each(|alloc| rig.free(0, alloc));
    assert_eq!(sizes(&rig), (0, 0));
    rig.check(0);
}

#[test]
fn an_alloc_in_the_middle_of_what_is_chosen_is_named() {
    let rig = Rig::board(MACOS, 0, 16 * BLOCK);
    let low = rig.alloc(BLOCK / 2).unwrap();
    let small = rig.alloc(BLOCK).unwrap();
    assert!(low.range().end().0 <= BLOCK && small.range().first.0 >= BLOCK);
    rig.free(0, low);
    let (wanted, taken) = (range(0, 16 * BLOCK), small.range());
    assert_eq!(
        rig.reserve(0, 16 * BLOCK),
        Err(FixedRangeError::Taken { wanted, taken })
    );
    rig.free(0, small);
    let all = rig.reserve(0, 16 * BLOCK).unwrap();
    assert_eq!(rig.alloc(1).unwrap_err().free.0, 0);
    rig.free(0, all);
    rig.check(0);
}

#[test]
fn memory_follows_what_is_allocated() {
    let rig = Rig::board(MACOS, BLOCK, 1 << 36);
    let held: Vec<_> = (1..=100)
        .map(|nth| rig.reserve(nth * 1000 * BLOCK + 77 * nth, 1).unwrap())
        .collect();
    assert_eq!(sizes(&rig), (100, 100 * NODES));
    held.into_iter().for_each(|alloc| rig.free(0, alloc));
    assert_eq!(sizes(&rig), (0, 0));
    let dense: Vec<_> = (0..BLOCK).map(|_| rig.alloc(1).unwrap()).collect();
    assert_eq!(
        sizes(&rig),
        (1, 2 * BLOCK as usize - 1),
        "each node that there can be"
    );
    dense.into_iter().for_each(|alloc| rig.free(0, alloc));
    rig.check(0);
}

#[test]
fn blocks_that_come_and_go_allocate_nothing_once_warm() {
    let rig = Rig::board(MACOS, BLOCK, 1 << 30);
    let round = || {
        let alloc = rig.alloc(1).unwrap();
        let large = rig.alloc(4 * BLOCK).unwrap();
        let chosen = rig.reserve(20 * BLOCK + 3, 3 * BLOCK).unwrap();
        for alloc in [alloc, large, chosen] {
            rig.free(0, alloc);
        }
    };
    (0..4).for_each(|_| round());
    let warm = crate::allocators::counting::calls();
    (0..100).for_each(|_| round());
    assert_eq!(crate::allocators::counting::calls(), warm);
}

#[test]
fn a_run_may_span_blocks() {
    let rig = Rig::board(MACOS, BLOCK, 16 * BLOCK);
    let run = Refill::<Board>::alloc_run(macos(&rig), PageCount(BLOCK / 2), 5).unwrap();
    assert_eq!(run.pages.0, 5 * BLOCK / 2);
    assert!(run.first.0.is_multiple_of(4 * BLOCK));
    assert_eq!(
        macos(&rig).sizes().blocks,
        3,
        "what is not needed stays in the tree"
    );
    rig.check(run.pages.0);
    let ranges = (0..5).map(|nth| range(run.first.0 + nth * BLOCK / 2, BLOCK / 2));
    assert!(
        ranges
            .clone()
            .all(|range| Refill::<Board>::holds(macos(&rig), range))
    );
    Refill::<Board>::free_all(macos(&rig), ranges);
    assert_eq!(sizes(&rig), (0, 0));
    rig.check(0);
}

#[test]
fn agrees_with_a_naive_model_across_both() {
    agrees_where_ranges_are_as_large_as_blocks(MACOS);
}

#[test]
fn agrees_with_a_naive_model_below_magazines_of_large_ranges() {
    let config = MagazineConfig::DEFAULT
        .magazine_len(8)
        .classes(16)
        .run(9)
        .depot_full_max(1)
        .cpu_pages_max(PageCount(u64::MAX))
        .backing(BackingConfig::MacOs);
    agrees_where_ranges_are_as_large_as_blocks(AllocatorConfig::Magazine(config));
}
