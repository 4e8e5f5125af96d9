// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Shared leaves: counted, saturating, and never in the way of their neighbours.

use crate::tables::rig::{PhysWords, Rig, range, run};
use ioatlas_dma::{
    iova::AllocKind,
    table::{
        COUNT_MAX, Cleared, Format, InstallCause, InstallError, LeafAttrs, TableConfig,
        fmt::{Toy, VtdSecond39, VtdSecond48, VtdSecond57},
    },
    units::*,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

const SHARED: LeafAttrs = LeafAttrs {
    perm: Perm::Write,
    kind: AllocKind::Shared,
    lifetime: ioatlas_dma::domain::Lifetime::Normal,
};

/// Large leaves are allowed, and must not be used.
const CONFIG: TableConfig = TableConfig::DEFAULT
    .reclaim(ioatlas_dma::table::Reclaim::Covered)
    .largest_leaf(3);

/// Where a page is: as under `identity`, it follows from the address, which may be wider.
fn home(page: u64) -> u64 {
    page % (1 << (PHYS_BITS - GRANULE_LG2))
}

fn map<F: Format>(rig: &Rig<F>, first: u64, pages: u64) -> Result<(), InstallError> {
    rig.try_install(range(first, pages), [run(home(first), pages)], SHARED)
}

fn unmap<F: Format>(rig: &mut Rig<F>, first: u64, pages: u64) -> Cleared {
    rig.clear_as(first, pages, AllocKind::Shared)
}

fn found_and_gone(found: u64, gone: u64) -> Cleared {
    Cleared {
        found: PageCount(found),
        gone: PageCount(gone),
    }
}

fn counts_as_a_map_does<F: Format>(ops: &[(u64, u64, Option<usize>)]) {
    let mut rig = Rig::<F>::with(256, CONFIG);
    let base = F::aperture().pages.0 / 2 - F::span(2);
    let shared = range(0, F::aperture().pages.0 / 2);
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    let mut live: Vec<(u64, u64)> = Vec::new();
    for (at, pages, unmapped) in ops {
        match unmapped {
            None => {
                let pages = (*pages).min(F::span(2) - *at % F::span(2));
                let first = base + *at % F::span(2);
                map(&rig, first, pages).expect("far from saturated");
                live.push((first, pages));
                (first..first + pages).for_each(|page| *counts.entry(page).or_default() += 1);
            }
            Some(_) if live.is_empty() => {}
            Some(nth) => {
                let (first, pages) = live.swap_remove(nth % live.len());
                let mut gone = 0;
                for page in first..first + pages {
                    let left = counts.get_mut(&page).expect("mapped");
                    *left -= 1;
                    if *left == 0 {
                        counts.remove(&page);
                        gone += 1;
                    }
                }
                assert_eq!(unmap(&mut rig, first, pages), found_and_gone(pages, gone));
            }
        }
        let census = rig.table.audit(&rig.host, Some(shared)).expect("sound");
        assert_eq!(census.pages.0, counts.len() as u64);
        assert_eq!(census.references.0, counts.values().sum::<u64>());
        assert_eq!(census.frames, rig.host.frames_in_use() as u64);
        for page in base..base + F::span(2) {
            let walked = rig.table.walk(&rig.host, IovaPage(page));
            let mapped = counts
                .get(&page)
                .map(|_| (PhysPage(home(page)), Perm::Write));
            assert_eq!(
                walked, mapped,
                "page {page:#x}: mapped and not reached (P14), or reached and not mapped (P1)"
            );
        }
    }
    assert!(rig.detached.is_empty(), "no mapping owns a span whole");
}

fn ops() -> impl Strategy<Value = Vec<(u64, u64, Option<usize>)>> {
    let unmapped = proptest::option::weighted(0.4, 0..64usize);
    proptest::collection::vec((0..16u64, 1..=16u64, unmapped), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn toy_counts_as_a_map_does(ops in ops()) {
        counts_as_a_map_does::<Toy<2, 3>>(&ops);
    }
    #[test]
    fn wide_toy_counts_as_a_map_does(ops in ops()) {
        counts_as_a_map_does::<Toy<4, 2>>(&ops);
    }
    #[test]
    fn vtd_39_counts_as_a_map_does(ops in ops()) {
        counts_as_a_map_does::<VtdSecond39>(&ops);
    }
    #[test]
    fn vtd_48_counts_as_a_map_does(ops in ops()) {
        counts_as_a_map_does::<VtdSecond48>(&ops);
    }
    #[test]
    fn vtd_57_counts_as_a_map_does(ops in ops()) {
        counts_as_a_map_does::<VtdSecond57>(&ops);
    }
}

/// The last count is refused, and the caller undoes what came before it.
#[test]
fn a_full_count_is_refused_and_stays() {
    let mut rig = Rig::<VtdSecond48>::with(8, CONFIG);
    for _ in 0..COUNT_MAX {
        map(&rig, 5, 1).expect("there is room");
    }
    let refused = map(&rig, 3, 4);
    let error = refused.expect_err("one more wraps the count (P6)");
    assert_eq!(error.cause, InstallCause::Saturated(IovaPage(5)));
    assert_eq!((error.done, error.wanted), (PageCount(2), PageCount(4)));
    assert_eq!(
        error.to_string(),
        "IOVA page 0x5 is mapped 1023 times already (after 2 of 4 pages)"
    );
    assert_eq!(unmap(&mut rig, 3, error.done.0), found_and_gone(2, 2));
    for left in (0..COUNT_MAX).rev() {
        assert!(rig.table.walk(&rig.host, IovaPage(5)).is_some(), "(P14)");
        let gone = u64::from(left == 0);
        assert_eq!(
            unmap(&mut rig, 5, 1),
            found_and_gone(1, gone),
            "{left} left (P6)"
        );
    }
    assert_eq!(
        unmap(&mut rig, 5, 1),
        found_and_gone(0, 0),
        "once too often"
    );
    assert_eq!(rig.table.walk(&rig.host, IovaPage(5)), None);
}

#[test]
fn a_page_stays_until_its_last_unmap() {
    let mut rig = Rig::<Toy<2, 3>>::with(8, CONFIG);
    map(&rig, 4, 4).expect("frames"); // a whole span of level 2
    map(&rig, 6, 1).expect("frames");
    assert_eq!(unmap(&mut rig, 4, 4), found_and_gone(4, 3));
    let still = rig.table.walk(&rig.host, IovaPage(6));
    assert_eq!(
        still,
        Some((PhysPage(6), Perm::Write)),
        "mapped still (P14)"
    );
    assert_eq!(unmap(&mut rig, 6, 1), found_and_gone(1, 1));
    assert_eq!(rig.table.walk(&rig.host, IovaPage(6)), None, "(P1)");
    assert!(rig.detached.is_empty());
}

#[test]
fn another_page_or_permission_under_the_same_address_is_refused() {
    let rig = Rig::<Toy<2, 3>>::with(8, CONFIG);
    map(&rig, 4, 2).expect("frames");
    let other = |to, perm| {
        let leaf = LeafAttrs { perm, ..SHARED };
        let installed = rig.try_install(range(4, 1), [run(to, 1)], leaf);
        installed.unwrap_err().cause
    };
    let refused = InstallCause::AlreadyMapped(IovaPage(4));
    assert_eq!(other(5, Perm::Write), refused);
    assert_eq!(other(4, Perm::Read), refused);
    let short = rig.try_install(range(5, 2), [run(5, 1)], SHARED);
    let error = short.unwrap_err();
    assert_eq!(error.cause, InstallCause::TooFewPages(IovaPage(6)));
    assert_eq!(error.done, PageCount(1));
    let census = rig.table.audit(&rig.host, Some(range(0, 64))).unwrap();
    assert_eq!((census.pages.0, census.references.0), (2, 3));
}

#[test]
fn the_audit_names_a_shared_leaf_without_count() {
    let rig = Rig::<Toy<2, 2>>::with(2, CONFIG);
    map(&rig, 0, 1).expect("frames");
    let root = PhysWords(&rig.host, rig.table.root());
    let leaves = PhysAddr(root.load(0) & ((1 << 52) - 1)).page();
    let leaves = PhysWords(&rig.host, leaves);
    leaves.store(0, leaves.load(0) & !(COUNT_MAX << 52));
    let why = rig.table.audit(&rig.host, Some(range(0, 16))).unwrap_err();
    assert!(why.contains("count 0"), "{why}");
}
