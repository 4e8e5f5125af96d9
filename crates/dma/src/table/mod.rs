// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The lock-free radix table, generic over a format.
//!
//! # Theory
//!
//! A table is a tree of frames; level `LEVELS` is the root, level 1 holds leaves of one page, and
//! leaves of a whole span may stand above. **Owning the IOVA range is the lock**: only the holder
//! of an allocation writes the leaves of its range, so leaves need no compare-and-swap. Tables
//! above are shared by neighbours: an absent entry is filled by compare-and-swap with a zeroed
//! frame, and the loser frees its own, which nothing has seen.
//!
//! **Large leaves** are written where IOVA, physical page, what is left of a run and
//! [`TableConfig`] allow, and where the entry is absent. Where it holds a table, small leaves serve
//! as well; to get the large one, the table, which is empty, must go first, and its frame be
//! flushed from the walk caches *before* the leaf is written: a unit that still holds the pointer
//! to the table would walk to it and find nothing there, while the mapping is live (P14). So
//! [`Table::make_room`] detaches such tables, and the domain flushes them before it installs. It
//! needs all of the span, as the range does that is mapped there.
//!
//! **Tables go away** in three ways only: at the end of the domain; to make room; and, unless
//! [`Reclaim::Never`] is set, where one `clear` covers all that a table maps (Linux's rule, ATC'15
//! §3.3), which under [`Reclaim::Emptied`] the domain sees to itself. The last two are safe because
//! the owner of the whole span holds allocations on all of it, so no other call can be installing
//! below. A detached table is left as it is, since a walk in
//! flight may still be reading it, and comes out as a `TableFrame`, to be retired. The allocation
//! is retired with it, needing the same flush, so no new table takes its place before the walk
//! caches have been flushed (P14).
//!
//! Each leaf carries marks in bits that hardware ignores: the first and the last page of a mapping,
//! whether its range was chosen by the caller, and whether its token was given up. By them the
//! address API of unmap checks what it is given. That check reads tables of ranges that the caller
//! may not own, so it holds its CPU's *reader* lock, a table at a time; a call that detaches one
//! then takes every CPU's reader lock once, after which nothing reads it any more.
//!
//! **Known leaf tables** save the walk: see `leaf_cache.rs`.
//!
//! **Shared leaves** (`identity`, ATC'15 §4.1) have no owner, so they are counted, in all ten
//! ignored bits, by compare-and-swap: see `shared.rs`.
//!
//! Ordering: a leaf is stored with release, after its page's owner filled it in; a table entry is
//! installed with acquire and release. Clearing is relaxed: the fence of `FlushSequence::retire`
//! follows. Units that do not snoop get each changed entry by [`Platform::publish`], a new table
//! whole before its entry. A neighbour that finds an entry whose *written back* bit is not set yet
//! writes it back too, or its own map could return before the entry is in memory.
//!
//! Not handled here: splitting a large leaf, merging small ones.

mod attrs;
mod audit;
mod clear;
mod emptied;
pub mod fmt;
mod format;
mod install;
mod large;
mod leaf_cache;
mod raw;
mod shared;
mod view;

pub use attrs::{Census, Cleared, LeafAttrs, Lifetime, Reclaim, TableConfig};
pub use emptied::{Contents, TableSpan};
pub use format::{Entry, Format, LeafMarks, TableShape};
pub use install::{InstallCause, InstallError};
pub use leaf_cache::LeafTable;
pub use raw::RawError;
pub use shared::COUNT_MAX;
pub use view::TableView;

use crate::{platform::*, units::*};
use clear::pieces;
use core::marker::PhantomData;
use install::{At, Rest, hint, marks};
use leaf_cache::Known;

/// One radix table, in frames of the platform's, with entries as the format `F` has them.
pub struct Table<P: Platform, F: Format> {
    root: TableFrame,
    /// Held while tables are read whose range the reader does not own: the address API's check.
    readers: PerCpu<P::Lock<()>>,
    /// Claims of the address API that may hold what is not theirs, and are no readers meanwhile.
    unsure: P::A64,
    /// What each CPU knows of leaf tables, and how many detachments there have been, by which that
    /// is known to be true.
    known: PerCpu<Known<P>>,
    detached: P::A64,
    config: TableConfig,
    _types: PhantomData<fn() -> (P, F)>,
}

impl<P: Platform, F: Format> Table<P, F> {
    /// An empty table, or `None` where there is no frame for its root.
    pub fn new(p: &P, config: TableConfig) -> Option<Self> {
        let fresh = p.frame_alloc()?;
        let root = fresh.publish();
        p.publish(Self::words(p, &root));
        let config = TableConfig {
            largest_leaf: config.largest_leaf.clamp(1, F::LARGEST_LEAF),
            ..config
        };
        Some(Table {
            root,
            readers: PerCpu::new(p, || Lock::new(())),
            unsure: P::A64::new(0),
            known: PerCpu::new(p, Known::new),
            detached: P::A64::new(0),
            config,
            _types: PhantomData,
        })
    }
    /// What was decided for it, as far as the format can.
    pub fn config(&self) -> TableConfig {
        self.config
    }
    /// The root's physical page, as the hardware is told.
    pub fn root(&self) -> PhysPage {
        self.root.page()
    }
    /// Looks `page` up as hardware would, without any cache. No table may be detached meanwhile.
    pub fn walk(&self, p: &P, page: IovaPage) -> Option<(PhysPage, Perm)> {
        let (entry, level) = self.find(p, page)?;
        match F::decode(entry.load(Ordering::Acquire), level) {
            Entry::Leaf(to, perm, _) => {
                let inside = page.0 & (F::span(level) - 1);
                Some((PhysPage(to.0 + inside), perm))
            }
            _ => None,
        }
    }
    /// The entry where a walk to `page` ends, with its level: that of a large leaf, or one
    /// of a leaf table.
    #[inline]
    fn find<'p>(&self, p: &'p P, page: IovaPage) -> Option<(&'p P::A64, u32)> {
        let (table, level) = self.find_table(p, page)?;
        Some((&table[F::index(page, level)], level))
    }
    /// The table in which a walk to `page` ends, with its level.
    fn find_table<'p>(&self, p: &'p P, page: IovaPage) -> Option<(&'p [P::A64], u32)> {
        let mut frame = TableFrame::from_entry(self.root.page());
        for level in (2..=F::LEVELS).rev() {
            let table = Self::words(p, &frame);
            let entry = &table[F::index(page, level)];
            match F::decode(entry.load(Ordering::Acquire), level) {
                Entry::Table(next) => frame = TableFrame::from_entry(next),
                Entry::Leaf(..) => return Some((table, level)),
                Entry::Absent => return None,
            }
        }
        Some((Self::words(p, &frame), 1))
    }
    /// The entries of one table.
    #[inline(always)] // a few instructions, on every way
    fn words<'p>(p: &'p P, frame: &TableFrame) -> &'p [P::A64] {
        &p.entries(OURS, FrameRef::of_entry(frame.page()))[..1 << F::ENTRIES_LG2]
    }
}
