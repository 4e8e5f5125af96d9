// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! That FreeBSD's search is logarithmic where the tree's scan is linear, counted in nodes.

use crate::allocators::rig::*;
use ioatlas_dma::iova::*;
use ioatlas_dma::units::*;

const FREEBSD: AllocatorConfig = AllocatorConfig::Plain(BackingConfig::Freebsd);

/// Two summaries a level of a tree of `ranges`: 2 log2(n + 1) levels at most.
fn bound(ranges: u64) -> u64 {
    4 * u64::from((ranges + 1).ilog2() + 1)
}

/// Every other page of `ranges` x 2 is in use; the holes are too small for what is asked next.
fn comb(config: AllocatorConfig, ranges: u64) -> (Rig<Board>, Vec<IovaAlloc>) {
    let rig = Rig::board(config, 2, 1 << 20);
    let teeth = (0..ranges).map(|nth| rig.reserve(2 + 2 * nth, 1).unwrap());
    let teeth = teeth.collect();
    (rig, teeth)
}

fn visited(rig: &Rig<Board>, ask: impl FnOnce() -> IovaAlloc) -> (u64, IovaAlloc) {
    let before = rig.nodes_visited();
    let alloc = ask();
    (rig.nodes_visited() - before, alloc)
}

#[test]
fn a_free_at_the_end_does_not_make_the_next_alloc_linear() {
    for ranges in [1000, 2000, 4000] {
        let rig = Rig::board(FREEBSD, 1, 1 << 20);
        let mut held: Vec<_> = (0..ranges).map(|_| rig.alloc(1).unwrap()).collect();
        rig.free(0, held.swap_remove(0));
        let (nodes, alloc) = visited(&rig, || rig.alloc(2).unwrap());
        assert!(nodes <= bound(ranges), "{nodes} of {ranges}: {rig}");
        held.push(alloc);
        rig.check(ranges + 1);
    }
}

#[test]
fn a_comb_of_gaps_that_are_too_small_is_left_out() {
    for ranges in [1000, 4000] {
        let (rig, mut teeth) = comb(FREEBSD, ranges);
        let (nodes, above) = visited(&rig, || rig.alloc(2).unwrap());
        assert!(nodes <= bound(ranges), "{nodes} of {ranges}");
        assert!(above.range().first.0 >= 2 + 2 * ranges);
        // one tooth goes: the only gap of two aligned pages is found among all
        let gone = teeth.swap_remove(ranges as usize / 3);
        let at = gone.range().first.0;
        rig.free(0, gone);
        let (nodes, alloc) = visited(&rig, || rig.alloc(2).unwrap());
        assert_eq!(alloc.range(), range(at, 2));
        assert!(nodes <= bound(ranges + 1), "{nodes} of {ranges}");
        rig.check(ranges + 3);
    }
}

#[test]
fn limits_are_searched_for_as_fast() {
    let ranges = 4000;
    let (rig, mut teeth) = comb(FREEBSD, ranges);
    rig.free(0, teeth.swap_remove(3000));
    let within = |end| Limits::NONE.end(IovaPage(end));
    // the only gap is at page 6002
    let before = rig.nodes_visited();
    let error = rig.alloc_within(2, within(6003)).unwrap_err();
    assert_eq!(error.cause, AllocErrorCause::FullWithin(within(6003)));
    assert!(rig.nodes_visited() - before <= bound(ranges));
    let (nodes, alloc) = visited(&rig, || rig.alloc_within(2, within(6004)).unwrap());
    assert_eq!(alloc.range(), range(6002, 2));
    assert!(nodes <= bound(ranges), "{nodes}");
    let aligned = Limits::NONE.align_lg2(9);
    let (nodes, alloc) = visited(&rig, || rig.alloc_within(2, aligned).unwrap());
    assert_eq!(alloc.range(), range(8192, 2));
    assert!(nodes <= bound(ranges), "{nodes}");
}

#[test]
fn addresses_are_given_out_from_the_low_end() {
    let rig = Rig::board(FREEBSD, 5, 100);
    let next = || rig.alloc(4).unwrap().range().first.0;
    assert_eq!([next(), next(), next()], [8, 12, 16]);
    assert_eq!(rig.alloc(1).unwrap().range().first.0, 5);
}

/// The same comb under the tree, for what the others are compared with.
#[test]
fn the_tree_looks_at_every_tooth() {
    let (rig, teeth) = comb(AllocatorConfig::RBTREE, 1000);
    let below = Limits::NONE.end(teeth[999].range().end());
    let before = rig.nodes_visited();
    assert!(rig.alloc_within(2, below).is_err());
    assert_eq!(rig.nodes_visited() - before, 1000);
}
