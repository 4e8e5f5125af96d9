// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Looking for tables in which nothing is left.
//!
//! What is seen is true of a moment that is over: the caller owns none of it. It tells where to
//! try, and whoever then owns all of the span knows (see `domain::reclaim`).

use super::*;

/// A table below the root, as a look at it found it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableSpan {
    /// All that it maps, or could.
    pub pages: IovaRange,
    /// What was in it.
    pub contents: Contents,
}

/// What a look at a table found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contents {
    /// No translation, and no table below it.
    Nothing,
    /// An entry at least.
    Something,
}

impl<P: Platform, F: Format> Table<P, F> {
    /// The table that follows the one with just `after`, from the lowest pages up and each before
    /// the table above it; the first one after `None`. `None` behind the last.
    ///
    /// Looks at fewer entries than a table has at each level.
    pub fn next_table(&self, p: &P, after: Option<IovaRange>) -> Option<TableSpan> {
        let root = TableFrame::from_entry(self.root.page());
        let after = after.map_or((0, 0), |pages| place(&pages));
        // of any CPU: what looks need not be one
        self.readers
            .at(CpuIndex(0))
            .with(|()| Self::next_below(p, &root, F::LEVELS, 0, after))
    }

    /// The same among the tables below `frame`, whose entries are those of `level` from page
    /// `first` on.
    fn next_below(
        p: &P,
        frame: &TableFrame,
        level: u32,
        first: u64,
        after: (u64, u64),
    ) -> Option<TableSpan> {
        let span = F::span(level);
        // the entry of the last page that was passed: its table itself may still follow
        let passed = after.0.saturating_sub(first + 1) / span;
        let entries = Self::words(p, frame).iter().enumerate();
        for (nth, entry) in entries.skip(passed as usize) {
            let Entry::Table(next) = F::decode(entry.load(Ordering::Acquire), level) else {
                continue;
            };
            let table = TableFrame::from_entry(next);
            let pages = IovaRange::new(IovaPage(first + nth as u64 * span), PageCount(span));
            if level > 2 {
                let below = Self::next_below(p, &table, level - 1, pages.first.0, after);
                if below.is_some() {
                    return below;
                }
            }
            if place(&pages) > after {
                let mut words = Self::words(p, &table).iter();
                let contents = match words.all(|word| word.load(Ordering::Relaxed) == 0) {
                    true => Contents::Nothing,
                    false => Contents::Something,
                };
                return Some(TableSpan { pages, contents });
            }
        }
        None
    }
}

/// By which tables are ordered: of those that end together the smaller comes first.
fn place(pages: &IovaRange) -> (u64, u64) {
    (pages.end().0, pages.pages.0)
}
