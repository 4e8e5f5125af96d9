// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Tables of every format against a map of pages, and the frames they are made of.
#![allow(clippy::disallowed_types)] // a test looks at words behind the platform's back

use ioatlas_dma::{
    iova::LeaseKind,
    platform::{
        FreshFrame, Platform, TableFrame,
        host::{Host, HostConfig},
    },
    table::{
        Format, InstallCause, LeafAttrs, RawError, Table, TableConfig,
        fmt::{Toy, VtdSecond48},
    },
    translator::Census,
    units::*,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A table, the frames that it gave back, and what ought to be in it.
struct Rig<F: Format> {
    host: Host,
    table: Table<Host, F>,
    detached: Vec<TableFrame>,
    model: BTreeMap<u64, (u64, Perm)>,
    /// Mappings by first page: pages and kind.
    mappings: BTreeMap<u64, (u64, LeaseKind)>,
}

impl<F: Format> Rig<F> {
    fn new(frames: usize) -> Self {
        let host = Host::new(HostConfig { frames, slots: 1 });
        let table = Table::new(&host, TableConfig::default()).expect("a root");
        Rig {
            host,
            table,
            detached: Vec::new(),
            model: BTreeMap::new(),
            mappings: BTreeMap::new(),
        }
    }

    fn free(&self, first: u64, pages: u64) -> bool {
        self.model.range(first..first + pages).next().is_none()
    }

    fn install(&mut self, first: u64, pages: u64, to: u64, perm: Perm, kind: LeaseKind) {
        let range = IovaRange::new(IovaPage(first), PageCount(pages));
        let run = core::iter::once(PhysRun::new(PhysPage(to), PageCount(pages)));
        let leaf = LeafAttrs::new(perm, kind);
        let installed = self.table.install(&self.host, range, run, leaf);
        installed.expect("frames suffice");
        for i in 0..pages {
            self.model.insert(first + i, (to + i, perm));
        }
        self.mappings.insert(first, (pages, kind));
    }

    fn clear(&mut self, first: u64, pages: u64) -> u64 {
        let range = IovaRange::new(IovaPage(first), PageCount(pages));
        let detached = &mut self.detached;
        let kind = LeaseKind::Assigned;
        let found = self
            .table
            .clear(&self.host, range, kind, |f| detached.push(f))
            .found;
        for page in first..first + pages {
            self.model.remove(&page);
        }
        self.mappings.remove(&first);
        found.0
    }

    fn check(&self) {
        let census = self.table.audit(&self.host, None).expect("a sound table");
        assert_eq!(census.pages.0, self.model.len() as u64);
        let frames = census.frames + self.detached.len() as u64;
        assert_eq!(frames, self.host.frames_in_use() as u64, "no frame is lost");
    }

    fn agrees_at(&self, page: u64) {
        let walked = self.table.walk(&self.host, IovaPage(page));
        let expected = self
            .model
            .get(&page)
            .map(|(to, perm)| (PhysPage(*to), *perm));
        assert_eq!(
            walked,
            expected,
            "page {page:#x}\n{}",
            self.table.show(&self.host)
        );
    }
}

#[derive(Clone, Debug)]
enum Op {
    Install {
        at: u64,
        pages: u64,
        to: u64,
        perm: u8,
        fixed: bool,
    },
    Clear {
        nth: usize,
    },
    Claim {
        at: u64,
        pages: u64,
    },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        3 => (0..64u64, 1..=16u64, 0..1u64 << 40, 0..3u8, any::<bool>())
            .prop_map(|(at, pages, to, perm, fixed)| Op::Install { at, pages, to, perm, fixed }),
        2 => (0..64usize).prop_map(|nth| Op::Clear { nth }),
        2 => (0..64u64, 1..=16u64).prop_map(|(at, pages)| Op::Claim { at, pages }),
    ];
    proptest::collection::vec(op, 1..60)
}

/// Places the 64 pages of an op list where `F`'s tables have edges.
fn base<F: Format>() -> u64 {
    let aperture = F::aperture().pages.0;
    aperture.saturating_sub(64 + (1 << F::span_lg2(2)) / 2)
}

fn agrees_with_a_map<F: Format>(ops: &[Op]) {
    let mut rig = Rig::<F>::new(256);
    let base = base::<F>();
    let limit = F::aperture().pages.0;
    for op in ops {
        match *op {
            Op::Install {
                at,
                pages,
                to,
                perm,
                fixed,
            } => {
                let perm = [Perm::Read, Perm::Write, Perm::ReadWrite][usize::from(perm)];
                let kind = if fixed {
                    LeaseKind::Fixed
                } else {
                    LeaseKind::Assigned
                };
                if base + at + pages <= limit && rig.free(base + at, pages) {
                    rig.install(base + at, pages, to, perm, kind);
                }
            }
            Op::Clear { nth } => {
                let count = rig.mappings.len().max(1);
                if let Some((&first, &(pages, _))) = rig.mappings.iter().nth(nth % count) {
                    assert_eq!(rig.clear(first, pages), pages);
                }
            }
            Op::Claim { at, pages } => {
                let (first, fits) = (base + at, base + at + pages <= limit);
                let range = IovaRange::new(IovaPage(first), PageCount(pages));
                let exact = rig
                    .mappings
                    .get(&first)
                    .filter(|(p, _)| *p == pages)
                    .copied();
                if exact.is_some() {
                    let held = rig.table.claim(&rig.host, range);
                    assert_eq!(held, Err(RawError::NotGivenUp(IovaPage(first))));
                    rig.table.give_up(&rig.host, IovaPage(first));
                }
                match (fits.then(|| rig.table.claim(&rig.host, range)), exact) {
                    (None, _) => {}
                    (Some(Ok(kind)), Some((_, mapped))) => {
                        assert_eq!(kind, mapped);
                        let again = rig.table.claim(&rig.host, range);
                        assert_eq!(again, Err(RawError::NotGivenUp(IovaPage(first))));
                        assert_eq!(rig.clear(first, pages), pages);
                    }
                    (Some(Err(_)), None) => {}
                    (Some(got), expected) => panic!("{range}: {got:?}, mapped: {expected:?}"),
                }
            }
        }
        rig.check();
    }
    for page in base.saturating_sub(2)..(base + 90).min(limit) {
        rig.agrees_at(page);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn toy_agrees_with_a_map(ops in ops()) {
        agrees_with_a_map::<Toy<2, 3>>(&ops);
    }
    #[test]
    fn tiny_toy_agrees_with_a_map(ops in ops()) {
        agrees_with_a_map::<Toy<1, 6>>(&ops);
    }
    #[test]
    fn vtd_agrees_with_a_map(ops in ops()) {
        agrees_with_a_map::<VtdSecond48>(&ops);
    }
}

#[test]
fn one_clear_of_a_whole_span_gives_its_tables_back_unwritten() {
    let mut rig = Rig::<Toy<2, 3>>::new(16);
    // 16 pages: one level-2 table and its four leaf tables
    rig.install(16, 16, 0x100, Perm::Read, LeaseKind::Assigned);
    assert_eq!(rig.host.frames_in_use(), 6);
    assert_eq!(rig.clear(16, 16), 16);
    assert_eq!(rig.detached.len(), 5);
    let leaf_words: usize = rig
        .detached
        .iter()
        .flat_map(|frame| rig.host.entries(frame))
        .filter(|word| word.load(std::sync::atomic::Ordering::Relaxed) != 0)
        .count();
    assert_eq!(leaf_words, 16 + 4, "a walk in flight may still read them");
    rig.check();
    // and the span can be used anew
    rig.install(16, 3, 0x200, Perm::Write, LeaseKind::Assigned);
    rig.check();
    rig.agrees_at(17);
}

#[test]
fn a_clear_of_all_but_one_page_keeps_the_tables() {
    let mut rig = Rig::<Toy<2, 3>>::new(16);
    rig.install(0, 3, 1, Perm::Read, LeaseKind::Assigned);
    rig.install(3, 1, 9, Perm::Read, LeaseKind::Assigned);
    assert_eq!(rig.clear(0, 3), 3);
    assert!(rig.detached.is_empty());
    rig.agrees_at(3);
    rig.check();
}

#[test]
fn running_out_of_frames_says_how_far_it_came() {
    let mut rig = Rig::<Toy<2, 3>>::new(4); // root, one level-2 table, two leaf tables
    let range = IovaRange::new(IovaPage(0), PageCount(12));
    let run = core::iter::once(PhysRun::new(PhysPage(0), PageCount(12)));
    let leaf = LeafAttrs::new(Perm::Read, LeaseKind::Assigned);
    let error = rig.table.install(&rig.host, range, run, leaf).unwrap_err();
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
    rig.install(0x1000, 1, 5, Perm::Read, LeaseKind::Fixed);
    let range = IovaRange::new(IovaPage(0xfff), PageCount(2));
    let run = core::iter::once(PhysRun::new(PhysPage(7), PageCount(2)));
    let leaf = LeafAttrs::new(Perm::Write, LeaseKind::Assigned);
    let error = rig.table.install(&rig.host, range, run, leaf).unwrap_err();
    assert_eq!(error.cause, InstallCause::AlreadyMapped(IovaPage(0x1000)));
    assert_eq!(error.done, PageCount(1));
    rig.agrees_at(0x1000);
}

#[test]
fn dismantling_hands_out_every_frame_once_the_root_last() {
    let mut rig = Rig::<VtdSecond48>::new(32);
    for first in [1, 1 << 9, 1 << 18, (1 << 36) - 1] {
        rig.install(first, 1, first, Perm::Read, LeaseKind::Assigned);
    }
    let census = rig.table.audit(&rig.host, None).unwrap();
    let root = rig.table.root();
    let mut frames: Vec<PhysPage> = Vec::new();
    rig.table
        .dismantle(&rig.host, |frame| frames.push(frame.page()));
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
        rig.install(4, 3, 0x40, Perm::Read, LeaseKind::Assigned);
        rig.install(9, 1, 0x90, Perm::Read, LeaseKind::Assigned);
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

/// A frame's words, by number, as only a test may write them.
struct PhysWords<'h>(&'h Host, PhysPage);

impl PhysWords<'_> {
    fn word(&self, index: usize) -> &std::sync::atomic::AtomicU64 {
        ioatlas_dma::platform::PhysMemory::word(self.0, self.1, index).expect("in the arena")
    }
    fn load(&self, index: usize) -> u64 {
        self.word(index).load(std::sync::atomic::Ordering::Relaxed)
    }
    fn store(&self, index: usize, value: u64) {
        self.word(index)
            .store(value, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn a_display_shows_each_page_with_the_edges_of_its_mapping() {
    let mut rig = Rig::<Toy<2, 3>>::new(16);
    rig.install(4, 2, 0x40, Perm::Read, LeaseKind::Assigned);
    rig.install(9, 1, 0x90, Perm::Write, LeaseKind::Assigned);
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
        let range = IovaRange::new(IovaPage(first), PageCount(pages));
        let refused = rig.table.claim(&rig.host, range);
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
