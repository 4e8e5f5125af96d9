// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The seed's first design (KVM'17, "IOTLB cache implementation"): a list sorted by IOVA, walked
//! from its start.

use super::{Locked, Run, Span, Store};

/// The seed's design: a sorted list for each reader, under its reader-writer lock.
pub type ListIotlb = Locked<SortedList>;

/// A sorted list. Finding takes as many steps as there are runs before; neighbours that join are
/// merged, as KVM'17's prototype did.
#[derive(Clone, Debug, Default)]
pub struct SortedList {
    runs: Vec<Run>,
}

impl SortedList {
    /// Where the first run is that ends after `page`: the walk that this design is about.
    #[inline]
    fn walk(&self, page: u64) -> usize {
        let mut at = 0;
        while at < self.runs.len() && self.runs[at].span.end <= page {
            at += 1;
        }
        at
    }
}

impl super::private::Sealed for SortedList {}

impl Store for SortedList {
    const NAME: &'static str = "list";

    fn empty() -> Self {
        Self::default()
    }
    fn insert(&mut self, mut run: Run) {
        let at = self.walk(run.span.first);
        if at < self.runs.len() && run.joins(&self.runs[at]) {
            run.span.end = self.runs[at].span.end;
            self.runs.remove(at);
        }
        if at > 0 && self.runs[at - 1].joins(&run) {
            self.runs[at - 1].span.end = run.span.end;
        } else {
            self.runs.insert(at, run);
        }
    }
    fn remove(&mut self, span: Span, removed: &mut dyn FnMut(Run)) {
        let at = self.walk(span.first);
        let mut to = at;
        while let Some(gone) = self.runs.get(to).and_then(|run| run.part(span)) {
            removed(gone);
            to += 1;
        }
        if at == to {
            return;
        }
        let (first, last) = (self.runs[at], self.runs[to - 1]);
        let before = Span {
            first: first.span.first,
            end: span.first,
        };
        let after = Span {
            first: span.end,
            end: last.span.end,
        };
        let left = first.part(before).into_iter().chain(last.part(after));
        self.runs.splice(at..to, left);
    }
    fn find(&self, page: u64) -> Option<Run> {
        let run = self.runs.get(self.walk(page))?;
        run.span.has(page).then_some(*run)
    }
    fn count(&self) -> usize {
        self.runs.len()
    }
    fn nth(&self, number: usize) -> Option<Run> {
        self.runs.get(number).copied()
    }
    fn bytes(&self) -> usize {
        self.runs.capacity() * size_of::<Run>()
    }
}
