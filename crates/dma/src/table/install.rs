// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Installing translations: descend once a leaf table, then write its entries in a row; or write
//! one large leaf.

use super::*;
use crate::iova::AllocKind;

/// An install that stopped on the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{cause} (after {done} of {wanted} pages)")]
pub struct InstallError {
    /// Pages installed before, which the caller clears.
    pub done: PageCount,
    /// Pages that were to be installed.
    pub wanted: PageCount,
    /// Why the install stopped.
    pub cause: InstallCause,
}

/// Why an install stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InstallCause {
    /// No frame for a table.
    #[error("no frame for a page table")]
    NoFrame,
    /// A translation exists already: two allocations overlap, which is a bug.
    #[error("IOVA page {0} is mapped already")]
    AlreadyMapped(IovaPage),
    /// The physical pages end before the range does.
    #[error("there is no physical page for IOVA page {0}")]
    TooFewPages(IovaPage),
    /// As many mappings share the page as can be counted (ATC'15 §4.1).
    #[error("IOVA page {0} is mapped {max} times already", max = super::shared::COUNT_MAX)]
    Saturated(IovaPage),
    /// The kernel that holds the tables refused.
    #[error("the host refused the mapping (error number {0})")]
    Host(i32),
    /// The kernel that holds the tables keeps the page for itself: the interrupt window, or
    /// memory that firmware reserves.
    #[error("IOVA page {0} cannot be mapped: the host reserves it")]
    Reserved(IovaPage),
    /// The platform has no memory there that a device may be given.
    #[error("physical page {0} is not memory that a device may be given")]
    NotMemory(PhysPage),
}

impl<P: Platform, F: Format> Table<P, F> {
    /// Makes `range` translate to `runs`, in order. The caller owns the range, or one allocation of
    /// it where leaves are shared.
    ///
    /// A run gets large leaves where it can, but never in place of a
    /// table: [`Table::make_room`] comes before.
    ///
    /// # Errors
    /// With the number of pages written, which stay written.
    ///
    /// # Panics
    /// If `range` is not within the format's aperture.
    #[inline]
    pub fn install(
        &self,
        _: Authority,
        p: &P,
        range: IovaRange,
        runs: impl Iterator<Item = PhysRun>,
        leaf: LeafAttrs,
    ) -> Result<(), InstallError> {
        assert!(
            F::aperture().contains(&range),
            "{range} is no allocation of ours"
        );
        let rest = Rest::new(runs);
        let installed = match leaf.kind {
            AllocKind::Shared => self.share(p, range, rest, leaf.perm),
            AllocKind::Dynamic | AllocKind::Fixed | AllocKind::Piece => {
                self.own(p, range, rest, leaf)
            }
        };
        installed.map_err(|(at, cause)| InstallError {
            done: PageCount(at.0 - range.first.0),
            wanted: range.pages,
            cause,
        })
    }

    /// Writes the leaves of a range that is the caller's alone.
    #[inline]
    fn own(
        &self,
        p: &P,
        range: IovaRange,
        mut rest: Rest<impl Iterator<Item = PhysRun>>,
        leaf: LeafAttrs,
    ) -> Result<(), At<InstallCause>> {
        let hint = hint::<F>(leaf.lifetime);
        let mut at = range.first;
        while at < range.end() {
            let run = rest.run(at)?;
            let level = self.leaf_level(at, range.end(), run);
            if level > 1 {
                let level = self.install_large(p, range, at, level, run.first, leaf)?;
                if level > 1 {
                    rest.take(F::span(level));
                    at.0 += F::span(level);
                    continue;
                }
            }
            let leaves = self.leaf_table(p, at)?;
            let first = F::index(at, 1);
            let here = (leaves.len() - first).min((range.end().0 - at.0) as usize);
            let leaves = &leaves[first..first + here];
            let mut todo = leaves;
            while !todo.is_empty() {
                let run = rest.run(at)?;
                let (now, later) = todo.split_at(todo.len().min(run.pages.0 as usize));
                for (entry, to) in now.iter().zip(run.first.0..) {
                    if entry.load(Ordering::Relaxed) != 0 {
                        return Err((at, InstallCause::AlreadyMapped(at)));
                    }
                    let marks = marks(range, at, 1, leaf.kind);
                    let new = F::leaf(PhysPage(to), leaf.perm, marks, 1) | hint;
                    entry.store(new, Ordering::Release);
                    at.0 += 1;
                }
                rest.take(now.len() as u64);
                todo = later;
            }
            p.publish(leaves);
        }
        Ok(())
    }

    /// The leaf table that covers `at`, made if need be.
    #[inline]
    pub(super) fn leaf_table<'p>(
        &self,
        p: &'p P,
        at: IovaPage,
    ) -> Result<&'p [P::A64], At<InstallCause>> {
        let mut frame = TableFrame::from_entry(self.root.page());
        for level in (2..=F::LEVELS).rev() {
            frame = Self::table_below(p, &frame, level, at)?;
        }
        Ok(Self::words(p, &frame))
    }

    /// The table that the entry for `at` in `frame`, at `level`, points to; made if need be.
    #[inline]
    pub(super) fn table_below(
        p: &P,
        frame: &TableFrame,
        level: u32,
        at: IovaPage,
    ) -> Result<TableFrame, At<InstallCause>> {
        let entry = &Self::words(p, frame)[F::index(at, level)];
        let word = entry.load(Ordering::Acquire);
        let next = match F::decode(word, level) {
            Entry::Table(next) => {
                if word & F::WRITTEN_BACK == 0 {
                    p.publish(core::slice::from_ref(entry));
                }
                next
            }
            Entry::Leaf(..) => return Err((at, InstallCause::AlreadyMapped(at))),
            Entry::Absent => Self::add_table(p, entry, level, at)?,
        };
        Ok(TableFrame::from_entry(next))
    }

    /// Fills an absent entry with a new table, unless a neighbour is faster.
    #[cold]
    fn add_table(
        p: &P,
        entry: &P::A64,
        level: u32,
        at: IovaPage,
    ) -> Result<PhysPage, At<InstallCause>> {
        let fresh = p.frame_alloc().ok_or((at, InstallCause::NoFrame))?;
        let page = fresh.page();
        p.publish(Self::words(p, &TableFrame::from_entry(page)));
        let new = F::table(page, level);
        match entry.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                p.publish(core::slice::from_ref(entry));
                // nothing changes it meanwhile: part of what it covers is ours
                entry.store(new | F::WRITTEN_BACK, Ordering::Release);
                Ok(fresh.publish().page()) // owned by the tree from here on
            }
            Err(theirs) => {
                p.publish(core::slice::from_ref(entry));
                p.frame_free(OURS, fresh);
                match F::decode(theirs, level) {
                    Entry::Table(next) => Ok(next),
                    _ => Err((at, InstallCause::AlreadyMapped(at))),
                }
            }
        }
    }
}

/// With the page that it is about.
pub(super) type At<E> = (IovaPage, E);

/// The physical pages that are not installed yet.
pub(super) struct Rest<I> {
    run: PhysRun,
    runs: I,
}

impl<I: Iterator<Item = PhysRun>> Rest<I> {
    #[inline]
    fn new(runs: I) -> Self {
        let run = PhysRun::new(PhysPage(0), PageCount(0));
        Rest { run, runs }
    }
    /// What is left of the current run, or the next one if that is nothing; it is for
    /// IOVAs from `at` on.
    #[inline]
    pub(super) fn run(&mut self, at: IovaPage) -> Result<PhysRun, At<InstallCause>> {
        while self.run.pages.0 == 0 {
            self.run = self
                .runs
                .next()
                .ok_or((at, InstallCause::TooFewPages(at)))?;
        }
        Ok(self.run)
    }
    /// Takes `pages` from the current run, which has as many.
    #[inline]
    pub(super) fn take(&mut self, pages: u64) {
        self.run.first.0 += pages;
        self.run.pages.0 -= pages;
    }
}

/// The bit that a leaf has for its lifetime.
#[inline]
pub(super) fn hint<F: Format>(lifetime: Lifetime) -> u64 {
    match lifetime {
        Lifetime::Normal => 0,
        Lifetime::Transient => F::TRANSIENT,
    }
}

/// The marks of the leaf that covers `pages` pages from `at`.
#[inline]
pub(super) fn marks(range: IovaRange, at: IovaPage, pages: u64, kind: AllocKind) -> LeafMarks {
    let mut marks = LeafMarks::NONE;
    if at == range.first {
        marks = marks.with(LeafMarks::FIRST);
        if kind == AllocKind::Fixed {
            marks = marks.with(LeafMarks::FIXED);
        }
    }
    if at.0 + pages == range.end().0 {
        marks = marks.with(LeafMarks::LAST);
    }
    marks
}
