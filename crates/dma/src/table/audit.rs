// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Checking and showing a table that nobody is changing.

use super::*;
use crate::translator::Census;
use alloc::{collections::BTreeSet, format, string::String};
use core::fmt;

impl<P: Platform, F: Format> Table<P, F> {
    /// Checks that frames appear once, and that marks delimit mappings: each begins with a first and ends with a last page, without a hole.
    ///
    /// # Errors
    /// A sentence that names the first entry that does not fit.
    pub fn audit(&self, p: &P) -> Result<Census, String> {
        let mut census = Census::default();
        let mut frames = BTreeSet::new();
        let mut open: Option<IovaPage> = None; // the last page seen of a mapping that has not ended
        self.visit(
            p,
            &mut |frame| {
                census.frames += 1;
                if frames.insert(frame) {
                    return Ok(());
                }
                Err(format!("table frame {frame} is used twice"))
            },
            &mut |page, _, _, marks| {
                census.pages.0 += 1;
                let follows = open.is_some_and(|before| before.0 + 1 == page.0);
                let first = marks.has(LeafMarks::FIRST);
                if first == open.is_some() {
                    return Err(format!(
                        "page {page}: first page {first} in an open mapping"
                    ));
                }
                if open.is_some() && !follows {
                    return Err(format!("page {page} follows a hole inside a mapping"));
                }
                if marks.has(LeafMarks::FIXED) && !first {
                    return Err(format!("page {page} is marked fixed inside a mapping"));
                }
                open = (!marks.has(LeafMarks::LAST)).then_some(page);
                Ok(())
            },
        )?;
        match open {
            None => Ok(census),
            Some(page) => Err(format!(
                "the mapping that holds page {page} has no last page"
            )),
        }
    }

    /// Prints the mappings, one a line.
    pub fn show<'a>(&'a self, p: &'a P) -> impl fmt::Display + 'a {
        Shown { table: self, p }
    }

    fn visit(
        &self,
        p: &P,
        on_frame: &mut impl FnMut(PhysPage) -> Result<(), String>,
        on_leaf: &mut impl FnMut(IovaPage, PhysPage, Perm, LeafMarks) -> Result<(), String>,
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
        on_leaf: &mut impl FnMut(IovaPage, PhysPage, Perm, LeafMarks) -> Result<(), String>,
    ) -> Result<(), String> {
        on_frame(frame.page())?;
        for (i, word) in Self::words(p, frame).iter().enumerate() {
            let at = base + ((i as u64) << F::span_lg2(level));
            match F::decode(word.load(Ordering::Acquire), level) {
                Entry::Absent => {}
                Entry::Leaf(to, perm, marks) => on_leaf(IovaPage(at), to, perm, marks)?,
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
        let _ = self
            .table
            .visit(self.p, &mut |_| Ok(()), &mut |page, to, perm, marks| {
                let edge = match (marks.has(LeafMarks::FIRST), marks.has(LeafMarks::LAST)) {
                    (true, true) => "[]",
                    (true, false) => "[ ",
                    (false, true) => " ]",
                    (false, false) => "  ",
                };
                result = writeln!(f, "  {edge} {page} -> {to} {perm:?}");
                result.map_err(|_| String::new())
            });
        result
    }
}
