// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The lock-free radix table, generic over a format.
//!
//! # Theory
//!
//! A table is a tree of frames; level `LEVELS` is the root, level 1 holds leaves. **Owning the IOVA range is the
//! lock**: only the holder of a lease writes the leaves of its range, so leaves need no compare-and-swap. Tables
//! above are shared by neighbours: an absent entry is filled by compare-and-swap with a zeroed frame, and the
//! loser frees its own, which nobody has seen.
//!
//! Tables go away in two ways only: at the end of the domain, and where one `clear` covers all that a table
//! maps (Linux's rule, ATC'15 §3.3). The second is safe because whoever clears the whole span holds leases on all of
//! it, so nobody else can be installing below. A detached table is left as it is, since a walk in flight may still be
//! reading it, and comes out as a `TableFrame`, to be retired. The lease is retired with it, needing the same flush, so
//! no new table takes its place before the walk caches have been flushed (P14).
//!
//! Each leaf carries marks in bits that hardware ignores: the first and the last page of a mapping,
//! whether its range was chosen by the caller, and whether its token was given up. By them the raw door of unmap checks what it is given.
//! That check reads tables of ranges that the caller may not own, so it holds its CPU's *visitor* lock, a table at a
//! time; whoever detaches a table then takes every CPU's visitor lock once, after which nobody reads it any more.
//!
//! Ordering: a leaf is stored with release, after its page's owner filled it in; a table entry is installed with acquire
//! and release. Clearing is relaxed: the fence of `Grace::retire` follows. Units that do not snoop get each changed
//! entry by [`Platform::publish`], a new table whole before its entry. A neighbour that finds an entry whose *written back*
//! bit is not set yet writes it back too, or its own map could return before the entry is in memory.
//!
//! Not handled here: leaves above level 1, reclaiming tables of ranges that are unmapped in pieces.

mod attrs;
mod audit;
mod clear;
pub mod fmt;
mod format;
mod install;

pub use attrs::{Cleared, LeafAttrs, Reclaim, TableConfig};
pub use clear::RawError;
pub use format::{Entry, Format, LeafMarks};
pub use install::{InstallCause, InstallError};

use crate::{platform::*, units::*};
use core::marker::PhantomData;

/// One radix table.
pub struct Table<P: Platform, F: Format> {
    root: TableFrame,
    /// Held by whoever reads tables of ranges that it does not own: the raw door's check.
    visitors: PerCpu<P::Lock<()>>,
    config: TableConfig,
    _types: PhantomData<fn() -> (P, F)>,
}

impl<P: Platform, F: Format> Table<P, F> {
    /// An empty table, or `None` where there is no frame for its root.
    pub fn new(p: &P, config: TableConfig) -> Option<Self> {
        let fresh = p.frame_alloc()?;
        let root = fresh.publish();
        p.publish(Self::words(p, &root));
        Some(Table {
            root,
            visitors: PerCpu::new(p, || Lock::new(())),
            config,
            _types: PhantomData,
        })
    }
    /// What was decided for it.
    pub fn config(&self) -> TableConfig {
        self.config
    }
    /// The root's physical page, as the hardware is told.
    pub fn root(&self) -> PhysPage {
        self.root.page()
    }
    /// Looks `page` up as hardware would, without any cache. Nobody may be detaching tables meanwhile.
    pub fn walk(&self, p: &P, page: IovaPage) -> Option<(PhysPage, Perm)> {
        let leaf = &self.find_leaves(p, page)?[F::index(page, 1)];
        match F::decode(leaf.load(Ordering::Acquire), 1) {
            Entry::Leaf(to, perm, _) => Some((to, perm)),
            _ => None,
        }
    }
    /// The leaf table that covers `page`, if there is one.
    fn find_leaves<'p>(&self, p: &'p P, page: IovaPage) -> Option<&'p [P::A64]> {
        let mut frame = TableFrame::from_entry(self.root.page());
        for level in (2..=F::LEVELS).rev() {
            let word = &Self::words(p, &frame)[F::index(page, level)];
            let Entry::Table(next) = F::decode(word.load(Ordering::Acquire), level) else {
                return None;
            };
            frame = TableFrame::from_entry(next);
        }
        Some(Self::words(p, &frame))
    }
    /// The entries of one table.
    fn words<'p>(p: &'p P, frame: &TableFrame) -> &'p [P::A64] {
        &p.entries(frame)[..1 << F::ENTRIES_LG2]
    }
}
