// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What EiovaR's cache is for, and that it is bounded.

use crate::assigners::{eiovar, rig::*};
use ioatlas_dma::iova::*;
use ioatlas_dma::units::*;

const DEFAULT: AssignerConfig = AssignerConfig::Plain(BackingConfig::Eiovar(EiovarConfig {
    list_len: 512,
    classes: 10,
}));

/// Nodes visited by 100 rounds of a ring with two sizes of buffers, over `pinned` other ranges in use.
fn visited_by_a_ring(config: AssignerConfig, pinned: u64) -> u64 {
    let rig = Rig::board(config, 1, 1 << 20);
    let top = rig.assign(1).unwrap();
    let _pinned: Vec<_> = (0..pinned).map(|_| rig.assign(1).unwrap()).collect();
    rig.release(0, top);
    let round = || {
        let (one, two) = (rig.assign(1).unwrap(), rig.assign(2).unwrap());
        rig.release(0, one);
        rig.release(0, two);
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
        let tree = visited_by_a_ring(AssignerConfig::RBTREE, pinned);
        assert!(tree >= 100 * pinned, "{tree} nodes");
    }
}

#[test]
fn the_range_given_back_last_is_the_next_one() {
    let rig = Rig::board(DEFAULT, 1, 4096);
    let mut held: Vec<_> = (0..9).map(|_| rig.assign(4).unwrap()).collect();
    let (a, b) = (held.swap_remove(2), held.swap_remove(5));
    let (first, second) = (a.range(), b.range());
    rig.release(1, a);
    rig.release(2, b);
    assert_eq!(rig.usage().cached, PageCount(8));
    assert_eq!(rig.assign(3).unwrap().range(), second);
    assert_eq!(rig.assign(4).unwrap().range(), first);
}

#[test]
fn a_full_list_and_sizes_beyond_go_to_the_tree() {
    let rig = Rig::board(AssignerConfig::Plain(eiovar(3, 2)), 1, 4096);
    let held: Vec<_> = (0..20).map(|_| rig.assign(1).unwrap()).collect();
    let large = rig.assign(4).unwrap();
    held.into_iter().for_each(|lease| rig.release(0, lease));
    rig.release(0, large);
    assert_eq!(rig.usage().cached, PageCount(3));
    rig.check(0);
    assert_eq!(rig.drain(), 3);
    assert_eq!(rig.usage().free, PageCount(4096));
}

#[test]
fn a_kept_range_serves_only_the_limits_that_it_keeps() {
    let rig = Rig::board(DEFAULT, 1, 4096);
    let below = |end| Limits {
        end: Some(IovaPage(end)),
        ..Limits::NONE
    };
    let (high, low) = (
        rig.assign(1).unwrap(),
        rig.assign_within(1, below(64)).unwrap(),
    );
    let at = low.range();
    rig.release(0, low);
    rig.release(0, high);
    let before = rig.nodes_visited();
    // past the topmost, which is above the mask, to the one below it
    assert_eq!(rig.assign_within(1, below(64)).unwrap().range(), at);
    assert_eq!(
        (rig.nodes_visited(), rig.usage().cached),
        (before, PageCount(1))
    );
    let other = rig.assign_within(1, below(64)).unwrap();
    assert!(other.range().end() <= IovaPage(64) && other.range() != at);
    assert_eq!(
        rig.usage().cached,
        PageCount(1),
        "the high one is still kept"
    );
    rig.check(2);
}
