// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Checking and showing a tree that is not being changed.

use super::{writer::Edit, *};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What an audit has seen on its way.
struct Seen {
    /// The runs in the tree, sorted.
    runs: Vec<(Span, Holder)>,
    tables: BTreeSet<Addr>,
}

impl Seen {
    /// The runs that have pages in `region`, as far as two.
    fn within(&self, region: Span) -> impl Iterator<Item = (Holder, Span)> {
        let first = self
            .runs
            .partition_point(|(span, _)| span.end <= region.first);
        let from = self.runs[first..].iter();
        from.map_while(move |(span, run)| Some((*run, span.and(region)?)))
    }
}

impl<P: TreeMemory, S: Shape> Edit<'_, P, S> {
    /// Checks that runs do not overlap and neighbours could not be merged; that each slot says what
    /// the runs in its region make it say, and each table is the smallest; and that every record
    /// and table is live, dead or free, once.
    pub fn audit(&self) -> Result<Census, String> {
        let found = self.runs();
        if found.len() as u64 != self.writer.runs {
            let (found, counted) = (found.len(), self.writer.runs);
            return Err(format!("{found} runs are in the tree, {counted} counted"));
        }
        let mut runs = Vec::new();
        for (holder, fields) in &found {
            let span = fields.span();
            let span = span.ok_or_else(|| format!("{holder:x?} has no pages"))?;
            runs.push((span, *holder));
        }
        runs.sort();
        for pair in runs.windows(2) {
            let [(one, a), (two, b)] = [pair[0], pair[1]];
            if two.first < one.end {
                return Err(format!("runs overlap: {one} and {two} (P12)"));
            }
            let same = found[&a].is_like(&found[&b]);
            if one.end == two.first && same {
                return Err(format!("not merged: {one} and {two}"));
            }
        }
        let mut seen = Seen {
            runs,
            tables: BTreeSet::new(),
        };
        let all = Span {
            first: 0,
            end: 1 << (S::BITS * S::LEVELS),
        };
        self.check(None, all, &mut seen)?;
        self.conservation(&seen)?;
        Ok(Census {
            runs: seen.runs.len() as u64,
            pages: seen.runs.iter().map(|(span, _)| span.pages()).sum(),
            bytes: self.bytes(),
        })
    }

    /// The runs that slots are, or name.
    fn runs(&self) -> BTreeMap<Holder, Fields> {
        let mut runs = BTreeMap::new();
        let mut left = vec![None];
        while let Some(at) = left.pop() {
            match (self.tree.slot(at), at) {
                (Slot::Leaf(run), _) => {
                    runs.insert(Holder::Record(run), self.tree.run(run));
                }
                (Slot::Page { host, perm }, Some(at)) => {
                    let fields = Fields::of_page(self.tree.page_of(at), host, perm);
                    runs.insert(Holder::Slot(at), fields);
                }
                (Slot::Table(table, _), _) => {
                    left.extend((0..1 << S::BITS).map(|index| Some(table + index)));
                }
                _ => {}
            }
        }
        runs
    }

    /// Memory of the tree and of what the writer keeps for each run and table.
    fn bytes(&self) -> u64 {
        self.writer.frames() * S::FRAME_WORDS * 8 + self.writer.own_bytes()
    }

    fn check(&self, at: Option<Addr>, region: Span, seen: &mut Seen) -> Result<(), String> {
        let slot = self.tree.slot(at);
        let (mut first, mut all) = (None, None::<Span>);
        let mut others = 0;
        for (run, part) in seen.within(region) {
            match first {
                None => first = Some(run),
                Some(_) => others += 1,
            }
            let before = all.map_or(part.first, |all| all.first);
            all = Some(Span {
                first: before,
                end: part.end,
            });
        }
        match (slot, first) {
            (Slot::Empty, None) => Ok(()),
            (Slot::Leaf(run), Some(only)) if only == Holder::Record(run) && others == 0 => Ok(()),
            (Slot::Page { .. }, Some(Holder::Slot(only))) if at == Some(only) => {
                match region.is_page() {
                    true => Ok(()),
                    false => Err(format!("{region} has a slot for one page")),
                }
            }
            (Slot::Table(table, shift), Some(only))
                if others > 0 || (shift == 0 && matches!(only, Holder::Slot(_))) =>
            {
                if !seen.tables.insert(table) {
                    return Err(format!("table {table:#x} is used twice"));
                }
                let first = self.tree.base(table);
                let inner = Span {
                    first,
                    end: first + (1 << (shift + S::BITS)),
                };
                if !all.is_some_and(|all| inner.contains(all)) || !region.contains(inner) {
                    return Err(format!("the table of {inner} is not one for {region}"));
                }
                for index in 0..1 << S::BITS {
                    let region = Span {
                        first: first + (index << shift),
                        end: first + ((index + 1) << shift),
                    };
                    self.check(Some(table + index), region, seen)?;
                }
                Ok(())
            }
            _ => Err(format!(
                "{region}: the slot says {slot:x?}, the runs are {first:x?} and {others} more"
            )),
        }
    }

    fn conservation(&self, seen: &Seen) -> Result<(), String> {
        let w = &self.writer;
        let (runs, tables) = w.not_live();
        let mut known = BTreeSet::new();
        let live = seen.runs.iter().filter_map(|(_, holder)| match holder {
            Holder::Record(run) => Some(*run),
            Holder::Slot(_) => None,
        });
        let all = live
            .chain(seen.tables.iter().copied())
            .chain(runs)
            .chain(tables);
        for addr in all {
            if !known.insert(addr) {
                return Err(format!("{addr:#x} is two things at once (P10)"));
            }
        }
        let (made, in_tables) = (w.made(), seen.tables.len() as u64);
        if known.len() as u64 != made || in_tables != w.tables().len() as u64 {
            let known = known.len();
            return Err(format!(
                "{known} of {made} records and tables are known, {in_tables} tables are in the tree (P10)"
            ));
        }
        Ok(())
    }
}

impl<P: TreeMemory, S: Shape> fmt::Display for Radix<P, S> {
    /// Its runs, by IOVA, a line each.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.edit(|edit| {
            let mut runs: Vec<Fields> = edit.runs().into_values().collect();
            runs.sort_by_key(|run| run.first);
            for run in runs {
                let first = run.first << GRANULE_LG2;
                let (host, pages) = (first.wrapping_add(run.diff), run.end - run.first);
                writeln!(
                    f,
                    "{first:#x}+{pages} pages -> {host:#x} {:?}",
                    perm(run.perm)
                )?;
            }
            Ok(())
        })
    }
}
