// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Tables of every format against a map of pages, and the frames they are made of.
#![allow(clippy::disallowed_types)] // a test looks at words behind the platform's back

mod differential;
mod emptied;
mod large;
mod promotion;
mod rig;
mod shared;
mod walker;

use ioatlas_dma::{
    iova::AllocKind,
    platform::{FreshFrame, Platform},
    table::{
        Census, Format, InstallCause, LeafAttrs, RawError, Table, TableConfig,
        fmt::{Toy, VtdSecond48},
    },
    units::*,
};
use ioatlas_host::Host;
use rig::{PhysWords, Rig, range, run};

#[test]
fn one_clear_of_a_whole_span_gives_its_tables_back_unwritten() {
    let mut rig = Rig::<Toy<2, 3>>::new(16);
    // 16 pages: one level-2 table and its four leaf tables
    rig.install(16, 16, 0x100, Perm::Read, AllocKind::Dynamic);
    assert_eq!(rig.host.frames_in_use(), 6);
    assert_eq!(rig.clear(16, 16), 16);
    assert_eq!(rig.detached.len(), 5);
    let leaf_words: usize = rig
        .detached
        .iter()
        .flat_map(|frame| rig.host.entries(crate::BY, frame.by_ref()))
        .filter(|word| word.load(std::sync::atomic::Ordering::Relaxed) != 0)
        .count();
    assert_eq!(leaf_words, 16 + 4, "a walk in flight may still read them");
    rig.check();
    // and the span can be used anew
    rig.install(16, 3, 0x200, Perm::Write, AllocKind::Dynamic);
    rig.check();
    rig.agrees_at(17);
}

#[test]
fn a_clear_of_all_but_one_page_keeps_the_tables() {
    let mut rig = Rig::<Toy<2, 3>>::new(16);
    rig.install(0, 3, 1, Perm::Read, AllocKind::Dynamic);
    rig.install(3, 1, 9, Perm::Read, AllocKind::Dynamic);
    assert_eq!(rig.clear(0, 3), 3);
    assert!(rig.detached.is_empty());
    rig.agrees_at(3);
    rig.check();
}

#[test]
fn running_out_of_frames_says_how_far_it_came() {
    let mut rig = Rig::<Toy<2, 3>>::new(4); // root, one level-2 table, two leaf tables
    let leaf = LeafAttrs::new(Perm::Read, AllocKind::Dynamic);
    let installed = rig.try_install(range(0, 12), [run(0, 12)], leaf);
    let error = installed.unwrap_err();
    assert_eq!((error.done, error.wanted), (PageCount(8), PageCount(12)));
    assert_eq!(error.cause, InstallCause::NoFrame);
    assert_eq!(
        error.to_string(),
        "no frame for a page table (after 8 of 12 pages)"
    );
    assert_eq!(rig.clear(0, 8), 8);
    rig.check();
}

#[test]
fn installing_over_a_translation_is_refused_and_changes_nothing() {
    let mut rig = Rig::<VtdSecond48>::new(8);
    rig.install(0x1000, 1, 5, Perm::Read, AllocKind::Fixed);
    let leaf = LeafAttrs::new(Perm::Write, AllocKind::Dynamic);
    let installed = rig.try_install(range(0xfff, 2), [run(7, 2)], leaf);
    let error = installed.unwrap_err();
    assert_eq!(error.cause, InstallCause::AlreadyMapped(IovaPage(0x1000)));
    assert_eq!(error.done, PageCount(1));
    rig.agrees_at(0x1000);
}

#[test]
fn physical_pages_that_end_too_early_are_an_error_that_says_where() {
    let mut rig = Rig::<Toy<2, 3>>::new(8);
    let leaf = LeafAttrs::new(Perm::Read, AllocKind::Dynamic);
    let runs = [run(8, 2), run(0, 0), run(20, 1)]; // an empty run is none
    let error = rig.try_install(range(6, 5), runs, leaf).unwrap_err();
    assert_eq!(error.cause, InstallCause::TooFewPages(IovaPage(9)));
    assert_eq!((error.done, error.wanted), (PageCount(3), PageCount(5)));
    assert_eq!(rig.clear(6, 3), 3);
    rig.check();
    let error = rig.try_install(range(6, 5), [], leaf).unwrap_err();
    assert_eq!(error.done, PageCount(0));
    rig.check();
}

#[test]
fn dismantling_hands_out_every_frame_once_the_root_last() {
    let mut rig = Rig::<VtdSecond48>::new(32);
    for first in [1, 1 << 9, 1 << 18, (1 << 36) - 1] {
        rig.install(first, 1, first, Perm::Read, AllocKind::Dynamic);
    }
    let census = rig.table.audit(&rig.host, None).unwrap();
    let root = rig.table.root();
    let mut frames: Vec<PhysPage> = Vec::new();
    rig.table
        .dismantle(crate::BY, &rig.host, |frame| frames.push(frame.page()));
    assert_eq!(frames.last(), Some(&root));
    assert_eq!(frames.len() as u64, census.frames);
    frames.sort();
    frames.dedup();
    assert_eq!(frames.len() as u64, census.frames);
}

#[test]
fn the_audit_names_what_is_broken() {
    let broken = |page: u64, change: fn(u64) -> u64| {
        let mut rig = Rig::<Toy<2, 3>>::new(16);
        rig.install(4, 3, 0x40, Perm::Read, AllocKind::Dynamic);
        rig.install(9, 1, 0x90, Perm::Read, AllocKind::Dynamic);
        let mut frame = rig.table.root();
        for level in [3, 2] {
            let words = PhysWords(&rig.host, frame);
            let entry = words.load(Toy::<2, 3>::index(IovaPage(page), level));
            frame = PhysAddr(entry & ((1 << 52) - 1)).page();
        }
        let words = PhysWords(&rig.host, frame);
        let index = Toy::<2, 3>::index(IovaPage(page), 1);
        words.store(index, change(words.load(index)));
        rig.table.audit(&rig.host, None).unwrap_err()
    };
    assert!(broken(5, |_| 0).contains("hole"), "a page lost inside");
    assert!(broken(6, |_| 0).contains("last page") || broken(6, |_| 0).contains("first page"));
    assert!(broken(4, |e| e & !(15 << 52)).contains("first page"));
    assert!(broken(5, |e| e | 1 << 52).contains("first page"));
    assert!(broken(9, |e| e & !(1 << 53)).contains("no last page"));
}

#[test]
fn a_display_shows_each_page_with_the_edges_of_its_mapping() {
    let mut rig = Rig::<Toy<2, 3>>::new(16);
    rig.install(4, 2, 0x40, Perm::Read, AllocKind::Dynamic);
    rig.install(9, 1, 0x90, Perm::Write, AllocKind::Dynamic);
    let shown = rig.table.show(&rig.host).to_string();
    let lines: Vec<&str> = shown.lines().skip(1).collect();
    assert_eq!(
        lines,
        [
            "  [  0x4 -> 0x40 Read",
            "   ] 0x5 -> 0x41 Read",
            "  [] 0x9 -> 0x90 Write"
        ]
    );
}

#[test]
fn a_claim_of_nothing_or_of_what_is_outside_is_refused() {
    let rig = Rig::<Toy<2, 3>>::new(1);
    for (first, pages) in [(0, 0), (63, 2), (64, 1), (u64::MAX, 2), (1, u64::MAX)] {
        let refused = rig.table.claim(crate::BY, &rig.host, range(first, pages));
        assert!(matches!(refused, Err(RawError::Outside(..))), "{refused:?}");
    }
}

#[test]
fn a_census_of_nothing_is_the_root() {
    let rig = Rig::<VtdSecond48>::new(1);
    let census = rig.table.audit(&rig.host, None).unwrap();
    assert_eq!(
        census,
        Census {
            pages: PageCount(0),
            references: PageCount(0),
            frames: 1
        }
    );
    assert!(
        Table::<Host, VtdSecond48>::new(&rig.host, TableConfig::default()).is_none(),
        "no frame for another root"
    );
    let _: Option<FreshFrame> = rig.host.frame_alloc();
}
