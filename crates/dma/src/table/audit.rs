// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Checking and showing a table that nothing is changing.

use super::*;
use crate::iova::AllocKind;
use alloc::{collections::BTreeSet, format, string::String};
use core::fmt;

/// A leaf, as a visit finds it.
struct Leaf {
    covers: IovaRange,
    to: PhysPage,
    perm: Perm,
    marks: LeafMarks,
    word: u64,
}

impl<P: Platform, F: Format> Table<P, F> {
    /// Checks that frames appear once; that marks delimit mappings: each begins with a first and
    /// ends with a last page, without a hole; that large leaves are where they may be; and that
    /// leaves are counted in `shared`, and nowhere else.
    ///
    /// # Errors
    /// A sentence that names the first entry that does not fit.
    pub fn audit(&self, p: &P, shared: Option<IovaRange>) -> Result<Census, String> {
        let mut census = Census::default();
        let mut frames = BTreeSet::new();
        let mut open: Option<IovaPage> = None; // where a mapping that has not ended goes on
        self.visit_all(
            p,
            &mut |frame| {
                census.frames += 1;
                if frames.insert(frame) {
                    return Ok(());
                }
                Err(format!("table frame {frame} is used twice"))
            },
            &mut |leaf| {
                let Leaf {
                    covers, to, marks, ..
                } = leaf;
                let page = covers.first;
                census.pages.0 += covers.pages.0;
                if !to.0.is_multiple_of(covers.pages.0) {
                    return Err(format!("the leaf of {covers} is at {to}, not aligned"));
                }
                if covers.pages.0 > F::span(self.config.largest_leaf) {
                    return Err(format!("the leaf of {covers} is larger than allowed"));
                }
                if shared.is_some_and(|shared| shared.overlaps(&covers)) {
                    let count = Self::count(leaf.word);
                    census.references.0 += count;
                    if count == 0 || covers.pages.0 > 1 {
                        return Err(format!("the shared leaf of {covers} has count {count}"));
                    }
                    return Ok(());
                }
                census.references.0 += covers.pages.0;
                let first = marks.has(LeafMarks::FIRST);
                if first == open.is_some() {
                    return Err(format!(
                        "page {page}: first page {first} in an open mapping"
                    ));
                }
                if open.is_some_and(|next| next != page) {
                    return Err(format!("page {page} follows a hole inside a mapping"));
                }
                if marks.has(LeafMarks::FIXED) && !first {
                    return Err(format!("page {page} is marked fixed inside a mapping"));
                }
                open = (!marks.has(LeafMarks::LAST)).then_some(covers.end());
                Ok(())
            },
        )?;
        match open {
            None => Ok(census),
            Some(next) => Err(format!(
                "the mapping that holds page {} has no last page",
                IovaPage(next.0 - 1)
            )),
        }
    }

    /// Shows `each` every mapping that begins in `within`, whose leaves are not shared, with how
    /// its range was chosen.
    pub fn mappings(&self, p: &P, within: IovaRange, mut each: impl FnMut(IovaRange, AllocKind)) {
        let mut open = None;
        // it stops at an entry that the audit would name; what is behind it is not shown
        let _ = self.visit_all(p, &mut |_| Ok(()), &mut |leaf| {
            if leaf.marks.has(LeafMarks::FIRST) {
                open = Some((leaf.covers.first, leaf.marks.kind()));
            }
            if leaf.marks.has(LeafMarks::LAST)
                && let Some((first, kind)) = open.take()
                && within.contains(&IovaRange::new(first, PageCount(1)))
            {
                let pages = PageCount(leaf.covers.end().0 - first.0);
                each(IovaRange::new(first, pages), kind);
            }
            Ok(())
        });
    }

    /// Prints the mappings, one leaf a line. Of a shared leaf the edges mean nothing.
    pub fn show<'a>(&'a self, p: &'a P) -> impl fmt::Display + 'a {
        Shown { table: self, p }
    }

    fn visit_all(
        &self,
        p: &P,
        on_frame: &mut impl FnMut(PhysPage) -> Result<(), String>,
        on_leaf: &mut impl FnMut(Leaf) -> Result<(), String>,
    ) -> Result<(), String> {
        let root = TableFrame::from_entry(self.root.page());
        Self::visit_in(p, &root, F::LEVELS, 0, on_frame, on_leaf)
    }

    fn visit_in(
        p: &P,
        frame: &TableFrame,
        level: u32,
        base: u64,
        on_frame: &mut impl FnMut(PhysPage) -> Result<(), String>,
        on_leaf: &mut impl FnMut(Leaf) -> Result<(), String>,
    ) -> Result<(), String> {
        on_frame(frame.page())?;
        for (i, entry) in Self::words(p, frame).iter().enumerate() {
            let at = base + ((i as u64) << F::span_lg2(level));
            let word = entry.load(Ordering::Acquire);
            match F::decode(word, level) {
                Entry::Absent if word != 0 => {
                    return Err(format!("the absent entry at page {at:#x} is {word:#x}"));
                }
                Entry::Absent => {}
                Entry::Leaf(to, perm, marks) => on_leaf(Leaf {
                    covers: IovaRange::new(IovaPage(at), PageCount(F::span(level))),
                    to,
                    perm,
                    marks,
                    word,
                })?,
                Entry::Table(next) => {
                    let next = TableFrame::from_entry(next);
                    Self::visit_in(p, &next, level - 1, at, on_frame, on_leaf)?;
                }
            }
        }
        Ok(())
    }
}

struct Shown<'a, P: Platform, F: Format> {
    table: &'a Table<P, F>,
    p: &'a P,
}

impl<P: Platform, F: Format> fmt::Display for Shown<'_, P, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} table, root {}", F::NAME, self.table.root())?;
        let mut result = Ok(());
        let _ = self.table.visit_all(self.p, &mut |_| Ok(()), &mut |leaf| {
            let has = |mark| leaf.marks.has(mark);
            let edge = match (has(LeafMarks::FIRST), has(LeafMarks::LAST)) {
                (true, true) => "[]",
                (true, false) => "[ ",
                (false, true) => " ]",
                (false, false) => "  ",
            };
            let (page, to, perm) = (leaf.covers.first, leaf.to, leaf.perm);
            result = write!(f, "  {edge} {page} -> {to} {perm:?}").and_then(|()| {
                match leaf.covers.pages.0 {
                    1 => writeln!(f),
                    pages => writeln!(f, ", {pages} pages"),
                }
            });
            result.map_err(|_| String::new())
        });
        result
    }
}
