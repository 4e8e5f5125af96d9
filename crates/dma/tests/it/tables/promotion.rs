// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A large leaf in the place of an emptied table, under a unit whose walk cache remembers the
//! table.

use crate::tables::walker::{Dom, Walker, sound, walked};
use ioatlas_dma::{
    domain::*,
    invalidation::InvalidateError,
    table::{
        Format, Reclaim, TableConfig,
        fmt::{Toy, VtdSecond39, VtdSecond48, VtdSecond57},
    },
    units::*,
};
use std::sync::Arc;

fn domain<F: Format>(policy: PolicyConfig, config: TableConfig) -> (Dom<F>, Arc<Walker<F>>) {
    let design = DomainConfig::new(AllocatorConfig::RBTREE, policy);
    walked(64, design, config)
}

/// Maps `pages` pages from physical page `to`; a device reaches each that is looked at.
fn map<F: Format>(dom: &Dom<F>, unit: &Walker<F>, to: u64, pages: u64) -> Mapping {
    let buffer = PhysRange::new(PhysPage(to).addr(), ByteCount(pages * GRANULE));
    let mapping = dom.map(buffer, Direction::Bidirectional).expect("room");
    let first = mapping.range().first.0;
    for i in [0, pages / 3, pages / 2, pages - 1] {
        let reached = unit.access(first + i);
        let table = dom.translator().table();
        assert_eq!(
            reached,
            Some(PhysPage(to + i)),
            "page {i} of {pages} is mapped and not reached (P14)\n{}",
            table.show(&**dom.platform())
        );
    }
    mapping
}

/// How many large leaves the table shows.
fn large<F: Format>(dom: &Dom<F>) -> usize {
    let shown = dom.translator().table().show(&**dom.platform()).to_string();
    shown.matches(" pages").count()
}

fn policies() -> [PolicyConfig; 2] {
    [
        PolicyConfig::Strict,
        PolicyConfig::DeferredPerCpu(DeferredConfig::default()),
    ]
}

fn small_then_large<F: Format>() {
    for policy in policies() {
        for reclaim in [Reclaim::Covered, Reclaim::Never] {
            let config = TableConfig::default().reclaim(reclaim).largest_leaf(2);
            let (dom, unit) = domain::<F>(policy, config);
            let span = F::span(2);
            for round in 0..3 {
                let small = map(&dom, &unit, 7, 1);
                let (at, flushes) = (small.range().first.0, dom.stats().invalidations);
                dom.unmap(small).expect("a live mapping");
                dom.flush().expect("this unit does not fail");
                assert!(dom.stats().invalidations > flushes);
                let whole = map(&dom, &unit, 4 * span, span);
                let range = whole.range();
                assert!(range.contains(&IovaRange::new(IovaPage(at), PageCount(1))));
                assert_eq!(large(&dom), 1, "round {round}");
                sound(&dom);
                // and back: a table in the place of the leaf
                dom.unmap(whole).expect("a live mapping");
                dom.flush().expect("this unit does not fail");
                let after: Vec<_> = range.iter().map(|page| unit.access(page.0)).collect();
                assert!(after.iter().all(Option::is_none), "unmapped (P1)");
                sound(&dom);
            }
            dom.close().expect("this unit does not fail");
        }
    }
}

#[test]
fn a_large_leaf_is_reached_where_walks_led_to_a_table_before() {
    small_then_large::<Toy<2, 3>>();
    small_then_large::<VtdSecond39>();
    small_then_large::<VtdSecond48>();
    small_then_large::<VtdSecond57>();
}

/// A level-3 leaf in the place of a table with tables below.
#[test]
fn a_whole_tree_of_tables_makes_room() {
    for policy in policies() {
        let config = TableConfig::default().largest_leaf(3);
        let (dom, unit) = domain::<Toy<2, 3>>(policy, config);
        let small: Vec<_> = (0..63).map(|i| map(&dom, &unit, 100 + i, 1)).collect(); // all but page 0
        assert_eq!(sound(&dom).census.frames, 1 + 4 + 16);
        for mapping in small {
            dom.unmap(mapping).expect("a live mapping");
        }
        dom.flush().expect("this unit does not fail");
        assert_eq!(sound(&dom).census.frames, 1 + 4 + 16, "page by page");
        let before = dom.stats().invalidations;
        let large_ones: Vec<_> = (1..=3).map(|i| map(&dom, &unit, 16 * i, 16)).collect();
        assert_eq!(dom.stats().invalidations - before, 3, "one wait each");
        assert_eq!(large(&dom), 3);
        dom.flush().expect("this unit does not fail");
        assert_eq!(sound(&dom).census.frames, 1 + 1 + 4);
        for mapping in large_ones {
            dom.unmap(mapping).expect("a live mapping");
        }
        sound(&dom);
    }
}

#[test]
fn a_map_that_needs_no_room_waits_for_nothing() {
    let config = TableConfig::default().largest_leaf(3);
    let (dom, unit) = domain::<Toy<2, 3>>(PolicyConfig::Strict, config);
    let mappings = [
        map(&dom, &unit, 64, 16),
        map(&dom, &unit, 64, 4),
        map(&dom, &unit, 65, 4), // not aligned: a table
        map(&dom, &unit, 3, 1),
    ];
    assert_eq!(dom.stats().invalidations, 0);
    assert_eq!(large(&dom), 2);
    for mapping in mappings {
        dom.unmap(mapping).expect("a live mapping");
    }
    sound(&dom);
}

#[test]
fn where_the_flush_fails_nothing_is_mapped_and_nothing_reused() {
    for policy in policies() {
        let config = TableConfig::default().largest_leaf(2);
        let (dom, unit) = domain::<Toy<2, 3>>(policy, config);
        let small = map(&dom, &unit, 7, 1);
        dom.unmap(small).expect("a live mapping");
        dom.flush().expect("not broken yet");
        unit.set_broken(true);
        let buffer = PhysRange::new(PhysPage(64).addr(), ByteCount(4 * GRANULE));
        let error = dom.map(buffer, Direction::ToDevice).unwrap_err();
        assert_eq!(error, MapError::Invalidate(InvalidateError::OutOfService));
        unit.set_broken(false);
        let audit = sound(&dom);
        assert_eq!(audit.census.pages, PageCount(0));
        assert_eq!(audit.stats.quarantined.pages, PageCount(4));
        assert_eq!(audit.stats.quarantined.frames, 1);
        let elsewhere = map(&dom, &unit, 64, 4);
        assert_eq!(elsewhere.range().first, IovaPage(56), "not 60");
        dom.unmap(elsewhere).expect("a live mapping");
    }
}
