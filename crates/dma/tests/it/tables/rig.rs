// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A table, and what ought to be in it.

use crate::BY;
use ioatlas_dma::{
    iova::AllocKind,
    platform::TableFrame,
    table::{Cleared, Format, InstallError, LeafAttrs, Table, TableConfig},
    units::*,
};
use ioatlas_host::{Host, HostConfig};
use std::collections::BTreeMap;

/// `pages` pages from `first`.
pub fn range(first: u64, pages: u64) -> IovaRange {
    IovaRange::new(IovaPage(first), PageCount(pages))
}

/// `pages` physical pages from `first`.
pub fn run(first: u64, pages: u64) -> PhysRun {
    PhysRun::new(PhysPage(first), PageCount(pages))
}

/// A table, the frames that it gave back, and what ought to be in it.
pub struct Rig<F: Format> {
    pub host: Host,
    pub table: Table<Host, F>,
    pub detached: Vec<TableFrame>,
    pub model: BTreeMap<u64, (u64, Perm)>,
    /// Mappings by first page: pages and kind.
    pub mappings: BTreeMap<u64, (u64, AllocKind)>,
}

impl<F: Format> Rig<F> {
    pub fn new(frames: usize) -> Self {
        Self::with(frames, TableConfig::default())
    }

    pub fn with(frames: usize, config: TableConfig) -> Self {
        let host = Host::new(HostConfig::default().frames(frames).slots(1));
        let table = Table::new(&host, config).expect("a root");
        Rig {
            host,
            table,
            detached: Vec::new(),
            model: BTreeMap::new(),
            mappings: BTreeMap::new(),
        }
    }

    pub fn free(&self, first: u64, pages: u64) -> bool {
        self.model.range(first..first + pages).next().is_none()
    }

    pub fn install(&mut self, first: u64, pages: u64, to: u64, perm: Perm, kind: AllocKind) {
        self.install_runs(first, &[run(to, pages)], LeafAttrs::new(perm, kind));
    }

    /// Makes room first; what comes out counts as flushed.
    pub fn install_runs(&mut self, first: u64, runs: &[PhysRun], leaf: LeafAttrs) {
        let pages = runs.iter().map(|run| run.pages.0).sum();
        let whole = range(first, pages);
        let (detached, runs) = (&mut self.detached, runs.iter().copied());
        self.table
            .make_room(crate::BY, &self.host, whole, runs.clone(), |f| {
                detached.push(f)
            });
        let installed = self.try_install(whole, runs.clone(), leaf);
        installed.expect("frames suffice");
        let to = runs.flat_map(|run| run.first.0..run.first.0 + run.pages.0);
        for (page, to) in whole.iter().zip(to) {
            self.model.insert(page.0, (to, leaf.perm));
        }
        self.mappings.insert(first, (pages, leaf.kind));
    }

    pub fn try_install(
        &self,
        range: IovaRange,
        runs: impl IntoIterator<Item = PhysRun>,
        leaf: LeafAttrs,
    ) -> Result<(), InstallError> {
        self.table
            .install(crate::BY, &self.host, range, runs.into_iter(), leaf)
    }

    pub fn clear(&mut self, first: u64, pages: u64) -> u64 {
        let cleared = self.clear_as(first, pages, AllocKind::Dynamic);
        assert_eq!(cleared.gone, cleared.found, "nothing is shared");
        for page in first..first + pages {
            self.model.remove(&page);
        }
        self.mappings.remove(&first);
        cleared.found.0
    }

    pub fn clear_as(&mut self, first: u64, pages: u64, kind: AllocKind) -> Cleared {
        let detached = &mut self.detached;
        let range = range(first, pages);
        self.table
            .clear(crate::BY, &self.host, range, kind, |f| detached.push(f))
    }

    /// Checks the table, and that no frame is lost.
    pub fn check(&self) {
        let census = self.table.audit(&self.host, None).expect("a sound table");
        assert_eq!(census.pages.0, self.model.len() as u64);
        assert_eq!(census.references, census.pages);
        let frames = census.frames + self.detached.len() as u64;
        assert_eq!(frames, self.host.frames_in_use() as u64, "no frame is lost");
    }

    pub fn agrees_at(&self, page: u64) {
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

    /// The leaves, as they are shown, without their edges.
    pub fn leaves(&self) -> Vec<String> {
        let shown = self.table.show(&self.host).to_string();
        let line = |line: &str| line[5..].to_owned();
        shown.lines().skip(1).map(line).collect()
    }
}

/// A frame's words, by number, as only a test may write them.
pub struct PhysWords<'h>(pub &'h Host, pub PhysPage);

impl PhysWords<'_> {
    fn word(&self, index: usize) -> &std::sync::atomic::AtomicU64 {
        ioatlas_dma::platform::PhysMemory::word(self.0, BY, self.1, index).expect("in the arena")
    }
    pub fn load(&self, index: usize) -> u64 {
        self.word(index).load(std::sync::atomic::Ordering::Relaxed)
    }
    pub fn store(&self, index: usize, value: u64) {
        self.word(index)
            .store(value, std::sync::atomic::Ordering::Relaxed);
    }
}
