// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Large leaves: where they are used, and what happens at their edges.

use crate::tables::rig::{PhysWords, Rig, range, run};
use ioatlas_dma::{
    domain::Lifetime,
    iova::AllocKind,
    table::{
        Format, InstallCause, LeafAttrs, RawError, Reclaim, TableConfig,
        fmt::{Toy, VtdSecond39, VtdSecond48, VtdSecond57},
    },
    units::*,
};

fn up_to(largest_leaf: u32) -> TableConfig {
    TableConfig::default().largest_leaf(largest_leaf)
}

const LEAF: LeafAttrs = LeafAttrs {
    perm: Perm::Read,
    kind: AllocKind::Dynamic,
    lifetime: Lifetime::Normal,
};

/// Pages of the leaves that a mapping gets, in order.
fn sizes<F: Format>(config: TableConfig, first: u64, runs: &[PhysRun]) -> Vec<u64> {
    let mut rig = Rig::<F>::with(2048, config);
    rig.install_runs(first, runs, LEAF);
    rig.check();
    let pages = runs.iter().map(|run| run.pages.0).sum();
    for page in [first, first + pages / 2, first + pages - 1] {
        rig.agrees_at(page);
    }
    let size = |leaf: &String| match leaf.split_once(", ") {
        Some((_, pages)) => pages.trim_end_matches(" pages").parse().expect("a number"),
        None => 1,
    };
    let sizes = rig.leaves().iter().map(size).collect();
    assert_eq!(rig.clear(first, pages), pages);
    rig.check();
    sizes
}

/// `large` leaves of `pages` pages each after `before` of one page and before `after`.
fn with_edges(before: usize, large: &[u64], after: usize) -> Vec<u64> {
    [vec![1; before], large.to_vec(), vec![1; after]].concat()
}

fn vtd_leaf_sizes<F: Format>() {
    let [two_mib, one_gib] = [1 << 9, 1 << 18];
    // all aligned
    let all = [run(one_gib, one_gib)];
    assert_eq!(sizes::<F>(up_to(3), one_gib, &all), [one_gib]);
    assert_eq!(
        sizes::<F>(up_to(9), one_gib, &all),
        [one_gib],
        "no larger one"
    );
    let smaller = sizes::<F>(up_to(2), one_gib, &all);
    assert_eq!(smaller, vec![two_mib; 512]);
    // one page more on both sides
    let around = [run(one_gib - 1, one_gib + 2)];
    let expected = with_edges(1, &[one_gib], 1);
    assert_eq!(sizes::<F>(up_to(3), 2 * one_gib - 1, &around), expected);
    // the physical side is aligned to 2 MiB only
    let shifted = [run(two_mib, one_gib)];
    assert_eq!(sizes::<F>(up_to(3), 0, &shifted), vec![two_mib; 512]);
    // to nothing; and one page too few
    assert_eq!(sizes::<F>(up_to(3), 0, &[run(1, two_mib)]), vec![1; 512]);
    assert_eq!(sizes::<F>(up_to(3), 512, &[run(512, 511)]), vec![1; 511]);
    // contiguous, but two runs that no leaf spans; then one that fits
    let runs = [run(512, 100), run(612, 412), run(2048, 513)];
    assert_eq!(sizes::<F>(up_to(2), 0, &runs), with_edges(512, &[512], 1));
}

#[test]
fn leaves_are_as_large_as_addresses_and_lengths_allow() {
    vtd_leaf_sizes::<VtdSecond39>();
    vtd_leaf_sizes::<VtdSecond48>();
    vtd_leaf_sizes::<VtdSecond57>();
}

#[test]
fn every_level_of_a_toy_has_leaves() {
    let sizes = |largest, first, pages| {
        sizes::<Toy<2, 3>>(up_to(largest), first, &[run(first + 64, pages)])
    };
    assert_eq!(sizes(3, 0, 64), [16; 4]);
    assert_eq!(sizes(3, 3, 46), [1, 4, 4, 4, 16, 16, 1]);
    assert_eq!(sizes(2, 3, 22), [1, 4, 4, 4, 4, 4, 1]);
    assert_eq!(sizes(1, 0, 16), [1; 16]);
}

/// Small leaves serve where a table is, so an install never waits for a flush.
#[test]
fn a_large_leaf_never_takes_the_place_of_a_table_by_itself() {
    let mut rig = Rig::<Toy<2, 3>>::with(16, up_to(3));
    rig.install(17, 1, 1, Perm::Read, AllocKind::Dynamic);
    assert_eq!(rig.clear(17, 1), 1);
    let installed = rig.try_install(range(16, 16), [run(32, 16)], LEAF);
    installed.expect("frames");
    let pages = |first: u64, to: u64| format!("{:#x} -> {to:#x} Read, 4 pages", first);
    let expected = [
        "0x10 -> 0x20 Read".into(),
        "0x11 -> 0x21 Read".into(),
        "0x12 -> 0x22 Read".into(),
        "0x13 -> 0x23 Read".into(),
        pages(20, 36),
        pages(24, 40),
        pages(28, 44),
    ];
    assert_eq!(
        rig.leaves(),
        expected,
        "the root's entry and one below are tables"
    );
    assert_eq!(rig.clear_as(16, 16, AllocKind::Dynamic).found.0, 16);
    assert_eq!(rig.detached.len(), 2);
}

#[test]
fn room_is_made_for_exactly_the_leaves_that_will_be_written() {
    for reclaim in [Reclaim::Covered, Reclaim::Never] {
        let config = up_to(3).reclaim(reclaim);
        let mut rig = Rig::<Toy<2, 3>>::with(32, config);
        for page in [0, 5, 17, 40] {
            rig.install(page, 1, page, Perm::Read, AllocKind::Dynamic);
            assert_eq!(rig.clear(page, 1), 1);
        }
        assert!(rig.detached.is_empty());
        // 1 to 3 in pages, a leaf of 4, one of 8 in two, one of 16
        rig.install(1, 31, 65, Perm::Read, AllocKind::Dynamic);
        let gone = rig.detached.len();
        assert_eq!(gone, 3, "of page 5, and both of page 17; {reclaim:?}");
        assert_eq!(rig.leaves().len(), 3 + 3 + 1);
        rig.check();
        (0..64).for_each(|page| rig.agrees_at(page));
    }
}

#[test]
fn room_is_not_made_where_something_is_mapped() {
    let mut rig = Rig::<Toy<2, 3>>::with(32, up_to(3));
    rig.install(5, 1, 5, Perm::Read, AllocKind::Dynamic);
    let whole = range(0, 16); // two allocations that overlap: a bug of the allocator's
    let all = [run(64, 16)];
    rig.table
        .make_room(crate::BY, &rig.host, whole, all.into_iter(), |frame| {
            panic!("{frame:?} maps page 5")
        });
    let error = rig.try_install(whole, all, LEAF).unwrap_err();
    assert_eq!(error.cause, InstallCause::AlreadyMapped(IovaPage(5)));
    assert_eq!(
        rig.clear_as(0, error.done.0, AllocKind::Dynamic).found,
        error.done
    );
    rig.agrees_at(5);
    rig.check();
}

#[test]
fn nothing_is_installed_below_a_large_leaf() {
    let mut rig = Rig::<Toy<2, 3>>::with(8, up_to(3));
    rig.install(16, 16, 32, Perm::Write, AllocKind::Dynamic);
    for (at, pages) in [(16, 1), (20, 4), (16, 16), (31, 1)] {
        let installed = rig.try_install(range(at, pages), [run(64, pages)], LEAF);
        let error = installed.unwrap_err();
        assert_eq!(error.cause, InstallCause::AlreadyMapped(IovaPage(at)));
        assert_eq!(error.done, PageCount(0));
    }
    rig.check();
    (0..64).for_each(|page| rig.agrees_at(page));
}

#[test]
fn a_part_of_a_large_leaf_is_not_cleared() {
    let mut rig = Rig::<Toy<2, 3>>::with(8, up_to(3));
    rig.install(16, 16, 32, Perm::Write, AllocKind::Dynamic);
    assert_eq!(rig.clear_as(16, 8, AllocKind::Dynamic).found, PageCount(0));
    rig.check();
    rig.agrees_at(16);
}

#[test]
fn the_address_api_knows_the_edges_of_large_leaves() {
    let mut rig = Rig::<Toy<2, 3>>::with(16, up_to(3));
    rig.install(3, 22, 67, Perm::Read, AllocKind::Fixed); // 3, then 4, 8 and 12, then 16 to 19 and 20, then 24
    rig.install(32, 16, 32, Perm::Read, AllocKind::Dynamic);
    rig.table.give_up(crate::BY, &rig.host, IovaPage(3));
    rig.table.give_up(crate::BY, &rig.host, IovaPage(32));
    let claim = |first, pages| rig.table.claim(crate::BY, &rig.host, range(first, pages));
    use RawError::*;
    assert_eq!(claim(3, 21), Err(NotLast(IovaPage(23))));
    assert_eq!(claim(3, 3), Err(NotLast(IovaPage(5))), "inside a leaf");
    assert_eq!(claim(3, 5), Err(NotLast(IovaPage(7))), "at the end of one");
    assert_eq!(claim(4, 21), Err(NotFirst(IovaPage(4))));
    assert_eq!(claim(6, 19), Err(NotFirst(IovaPage(6))), "inside a leaf");
    assert_eq!(claim(3, 23), Err(Several(IovaPage(24))));
    assert_eq!(claim(32, 15), Err(NotLast(IovaPage(46))));
    assert_eq!(claim(33, 15), Err(NotFirst(IovaPage(33))));
    assert_eq!(claim(32, 17), Err(Several(IovaPage(47))));
    assert_eq!(claim(31, 17), Err(NotMapped(IovaPage(31))));
    assert_eq!(claim(32, 16), Ok(AllocKind::Dynamic));
    assert_eq!(claim(32, 16), Err(NotGivenUp(IovaPage(32))));
    assert_eq!(claim(3, 22), Ok(AllocKind::Fixed));
    rig.check();
}

#[test]
fn running_out_of_frames_between_large_leaves_says_how_far_it_came() {
    let mut rig = Rig::<Toy<2, 3>>::with(2, up_to(3)); // the root, and one table
    let installed = rig.try_install(range(0, 22), [run(64, 22)], LEAF);
    let error = installed.unwrap_err();
    assert_eq!(error.cause, InstallCause::NoFrame);
    assert_eq!(error.done, PageCount(20), "one leaf of 16, one of 4");
    assert_eq!(rig.clear(0, 20), 20);
    rig.check();
}

#[test]
fn a_transient_mapping_has_the_hint_in_every_leaf_and_keeps_it() {
    let mut rig = Rig::<VtdSecond39>::with(8, up_to(2));
    let leaf = LeafAttrs {
        lifetime: Lifetime::Transient,
        ..LEAF
    };
    rig.install_runs(0, &[run(512, 512), run(7, 1)], leaf);
    let root = PhysWords(&rig.host, rig.table.root());
    let table = |entry: u64| PhysAddr(entry & ((1 << 52) - 1)).page();
    let middle = PhysWords(&rig.host, table(root.load(0)));
    let low = PhysWords(&rig.host, table(middle.load(1)));
    let hints = || [middle.load(0), middle.load(1), low.load(0)].map(|entry| entry >> 62);
    assert_eq!(hints(), [1, 0, 1], "both leaves, and not the table");
    rig.table.give_up(crate::BY, &rig.host, IovaPage(0));
    assert_eq!(
        rig.table.claim(crate::BY, &rig.host, range(0, 513)),
        Ok(AllocKind::Dynamic)
    );
    assert_eq!(hints(), [1, 0, 1]);
    rig.agrees_at(0);
    assert_eq!(rig.clear(0, 513), 513);
    rig.check();
}

#[test]
fn the_audit_names_a_large_leaf_that_cannot_be() {
    let rig = Rig::<Toy<2, 3>>::with(2, up_to(2));
    let root = PhysWords(&rig.host, rig.table.root());
    root.store(1, 0x30_0000_0001_0081); // of 16 pages, at physical page 16
    let why = rig.table.audit(&rig.host, None).unwrap_err();
    assert!(why.contains("larger than allowed"), "{why}");
    root.store(1, 0x30_0000_0001_1081);
    let why = rig.table.audit(&rig.host, None).unwrap_err();
    assert!(why.contains("not aligned"), "{why}");
}
