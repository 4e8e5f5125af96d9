// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What EiovaR's cache is for, and that it is bounded.

use crate::allocators::{eiovar, rig::*};
use ioatlas_dma::iova::*;
use ioatlas_dma::units::*;

const DEFAULT: AllocatorConfig = AllocatorConfig::Plain(BackingConfig::Eiovar(
    EiovarConfig::DEFAULT.list_len(512).classes(10),
));

/// Nodes visited by 100 rounds of a ring with two sizes of buffers, over `pinned` other ranges in
/// use.
fn visited_by_a_ring(config: AllocatorConfig, pinned: u64) -> u64 {
    let rig = Rig::board(config, 1, 1 << 20);
    let top = rig.alloc(1).unwrap();
    let _pinned: Vec<_> = (0..pinned).map(|_| rig.alloc(1).unwrap()).collect();
    rig.free(0, top);
    let round = || {
        let (one, two) = (rig.alloc(1).unwrap(), rig.alloc(2).unwrap());
        rig.free(0, one);
        rig.free(0, two);
    };
    round(); // the first takes from the tree, once
    let before = rig.nodes_visited();
    (0..100).for_each(|_| round());
    rig.check(pinned);
    rig.nodes_visited() - before
}

#[test]
fn a_ring_of_two_sizes_lives_on_the_cache() {
    for pinned in [1000, 2000] {
        assert_eq!(visited_by_a_ring(DEFAULT, pinned), 0);
        let tree = visited_by_a_ring(AllocatorConfig::RBTREE, pinned);
        assert!(tree >= 100 * pinned, "{tree} nodes");
    }
}

#[test]
fn the_range_given_back_last_is_the_next_one() {
    let rig = Rig::board(DEFAULT, 1, 4096);
    let mut held: Vec<_> = (0..9).map(|_| rig.alloc(4).unwrap()).collect();
    let (a, b) = (held.swap_remove(2), held.swap_remove(5));
    let (first, second) = (a.range(), b.range());
    rig.free(1, a);
    rig.free(2, b);
    assert_eq!(rig.usage().cached, PageCount(8));
    assert_eq!(rig.alloc(3).unwrap().range(), second);
    assert_eq!(rig.alloc(4).unwrap().range(), first);
}

#[test]
fn a_full_list_and_sizes_beyond_go_to_the_tree() {
    let rig = Rig::board(AllocatorConfig::Plain(eiovar(3, 2)), 1, 4096);
    let held: Vec<_> = (0..20).map(|_| rig.alloc(1).unwrap()).collect();
    let large = rig.alloc(4).unwrap();
    held.into_iter().for_each(|alloc| rig.free(0, alloc));
    rig.free(0, large);
    assert_eq!(rig.usage().cached, PageCount(3));
    rig.check(0);
    assert_eq!(rig.drain(), 3);
    assert_eq!(rig.usage().free, PageCount(4096));
}

#[test]
fn a_kept_range_serves_only_the_limits_that_it_keeps() {
    let rig = Rig::board(DEFAULT, 1, 4096);
    let below = |end| Limits::NONE.end(IovaPage(end));
    let (high, low) = (
        rig.alloc(1).unwrap(),
        rig.alloc_within(1, below(64)).unwrap(),
    );
    let at = low.range();
    rig.free(0, low);
    rig.free(0, high);
    let before = rig.nodes_visited();
    // past the topmost, which is above the mask, to the one below it
    assert_eq!(rig.alloc_within(1, below(64)).unwrap().range(), at);
    assert_eq!(
        (rig.nodes_visited(), rig.usage().cached),
        (before, PageCount(1))
    );
    let other = rig.alloc_within(1, below(64)).unwrap();
    assert!(other.range().end() <= IovaPage(64) && other.range() != at);
    assert_eq!(
        rig.usage().cached,
        PageCount(1),
        "the high one is still kept"
    );
    rig.check(2);
}
