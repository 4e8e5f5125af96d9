// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The cached node, and where it fails: counted in nodes, not in time.

use crate::allocators::rig::*;
use ioatlas_dma::iova::*;

/// Nodes visited by one allocation of 2 pages when all of `ranges` single pages are in use but one
/// at the top.
fn visited_after_release_at_the_top(ranges: u64) -> u64 {
    let rig = Rig::board(AllocatorConfig::RBTREE, 1, 1 << 20);
    let AnyAllocator::Plain(Backing::Rbtree(tree)) = &rig.allocator else {
        unreachable!("as configured");
    };
    let mut held: Vec<_> = (0..ranges).map(|_| rig.alloc(1).unwrap()).collect();
    assert!(
        tree.nodes_visited() <= ranges,
        "growing downwards looks at no more than one node each"
    );
    rig.free(0, held.swap_remove(0));
    let before = tree.nodes_visited();
    held.push(rig.alloc(2).unwrap());
    rig.check(ranges + 1);
    tree.nodes_visited() - before
}

#[test]
fn a_free_at_the_top_makes_the_next_larger_alloc_linear() {
    for ranges in [1000, 2000, 4000] {
        assert_eq!(visited_after_release_at_the_top(ranges), ranges - 1);
    }
}

#[test]
fn the_cached_node_makes_a_ring_of_one_size_cheap() {
    let rig = Rig::board(AllocatorConfig::RBTREE, 1, 1 << 20);
    let AnyAllocator::Plain(Backing::Rbtree(tree)) = &rig.allocator else {
        unreachable!("as configured");
    };
    let _pinned: Vec<_> = (0..1000).map(|_| rig.alloc(1).unwrap()).collect();
    let before = tree.nodes_visited();
    for _ in 0..1000 {
        let alloc = rig.alloc(1).unwrap();
        rig.free(0, alloc);
    }
    assert!(tree.nodes_visited() - before <= 1000, "{rig}");
}
