// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Installing translations: descend once a leaf table, then write its entries in a row.

use super::*;
use crate::iova::LeaseKind;

/// An install that stopped on the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{cause} (after {done} of {wanted} pages)")]
pub struct InstallError {
    /// Pages installed before, which the caller clears.
    pub done: PageCount,
    /// Pages that were to be installed.
    pub wanted: PageCount,
    /// Why.
    pub cause: InstallCause,
}

/// Why an install stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InstallCause {
    /// No frame for a table.
    #[error("no frame for a page table")]
    NoFrame,
    /// A translation exists already: two leases overlap, which is a bug.
    #[error("IOVA page {0} is mapped already")]
    AlreadyMapped(IovaPage),
    /// The kernel that holds the tables refused.
    #[error("the host refused the mapping (error number {0})")]
    Host(i32),
}

impl<P: Platform, F: Format> Table<P, F> {
    /// Makes `range` translate to `runs`, in order. The caller owns the range.
    ///
    /// # Errors
    /// With the number of pages written, which stay written.
    ///
    /// # Panics
    /// If `runs` end before `range` does, or `range` is not within the format's aperture.
    #[inline]
    pub fn install(
        &self,
        p: &P,
        range: IovaRange,
        runs: impl Iterator<Item = PhysRun>,
        leaf: LeafAttrs,
    ) -> Result<(), InstallError> {
        assert!(
            F::aperture().contains(&range),
            "{range} is no lease of ours"
        );
        let LeafAttrs { perm, kind, .. } = leaf;
        let mut pages = runs.flat_map(|run| (run.first.0..run.first.0 + run.pages.0).map(PhysPage));
        let mut at = range.first;
        let failed = |at: IovaPage, cause| InstallError {
            done: PageCount(at.0 - range.first.0),
            wanted: range.pages,
            cause,
        };
        while at < range.end() {
            let leaves = match self.leaf_table(p, at) {
                Ok(leaves) => leaves,
                Err(cause) => return Err(failed(at, cause)),
            };
            let first = F::index(at, 1);
            let here = (leaves.len() - first).min((range.end().0 - at.0) as usize);
            let leaves = &leaves[first..first + here];
            for leaf in leaves {
                if leaf.load(Ordering::Relaxed) != 0 {
                    return Err(failed(at, InstallCause::AlreadyMapped(at)));
                }
                let to = pages.next().expect("a page for every granule of the range");
                leaf.store(F::leaf(to, perm, marks(range, at, kind)), Ordering::Release);
                at = IovaPage(at.0 + 1);
            }
            p.publish(leaves);
        }
        Ok(())
    }

    /// The leaf table that covers `at`, made if need be.
    #[inline]
    fn leaf_table<'p>(&self, p: &'p P, at: IovaPage) -> Result<&'p [P::A64], InstallCause> {
        let mut frame = TableFrame::from_entry(self.root.page());
        for level in (2..=F::LEVELS).rev() {
            let entry = &Self::words(p, &frame)[F::index(at, level)];
            let word = entry.load(Ordering::Acquire);
            let next = match F::decode(word, level) {
                Entry::Table(next) => {
                    if word & F::WRITTEN_BACK == 0 {
                        p.publish(core::slice::from_ref(entry));
                    }
                    next
                }
                Entry::Leaf(..) => return Err(InstallCause::AlreadyMapped(at)),
                Entry::Absent => Self::add_table(p, entry, level, at)?,
            };
            frame = TableFrame::from_entry(next);
        }
        Ok(Self::words(p, &frame))
    }

    /// Fills an absent entry with a new table, unless a neighbour is faster.
    #[cold]
    fn add_table(
        p: &P,
        entry: &P::A64,
        level: u32,
        at: IovaPage,
    ) -> Result<PhysPage, InstallCause> {
        let fresh = p.frame_alloc().ok_or(InstallCause::NoFrame)?;
        let page = fresh.page();
        p.publish(Self::words(p, &TableFrame::from_entry(page)));
        let new = F::table(page);
        match entry.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                p.publish(core::slice::from_ref(entry));
                // nobody changes it meanwhile: part of what it covers is ours
                entry.store(new | F::WRITTEN_BACK, Ordering::Release);
                Ok(fresh.publish().page()) // owned by the tree from here on
            }
            Err(theirs) => {
                p.publish(core::slice::from_ref(entry));
                p.frame_free(fresh);
                match F::decode(theirs, level) {
                    Entry::Table(next) => Ok(next),
                    _ => Err(InstallCause::AlreadyMapped(at)),
                }
            }
        }
    }
}

#[inline]
fn marks(range: IovaRange, at: IovaPage, kind: LeaseKind) -> LeafMarks {
    let mut marks = LeafMarks::NONE;
    if at == range.first {
        marks = marks.with(LeafMarks::FIRST);
        if kind == LeaseKind::Fixed {
            marks = marks.with(LeafMarks::FIXED);
        }
    }
    if at.0 + 1 == range.end().0 {
        marks = marks.with(LeafMarks::LAST);
    }
    marks
}
