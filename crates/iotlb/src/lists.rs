// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Which map lines of a trace were one scatter-gather list.
//!
//! A kernel maps a list segment by segment and unmaps it at once, so a trace shows several `M`
//! lines and one `U` line. Map lines are taken for one list if a later unmap of the same device
//! ends exactly them, and they
//!
//! * lie side by side in IOVA space, in the order of their lines;
//! * have no other map or unmap of the device between them, nor an access of it outside every
//!   mapping;
//! * have one permission, and each its physical page recorded, or that it was of a list.
//!
//! Events that do not fit (a map over a mapped page, an unmap of anything but whole mappings) are
//! ignored.

use crate::event::{Event, Kind, Permission};
use crate::trace::Trace;
use std::collections::{BTreeMap, HashMap, HashSet};

/// The lists of a trace, by index of event.
#[derive(Debug, Default)]
pub struct Lists {
    /// The first line of each list, with all its lines.
    pub heads: HashMap<usize, Vec<usize>>,
    /// All other lines of lists.
    pub members: HashSet<usize>,
}

/// A mapping of the trace.
struct Line {
    pages: u64,
    event: usize,
    /// Its number among the maps and unmaps of the device.
    number: u64,
    permission: Permission,
    has_phys: bool,
    kind: Option<Kind>,
}

#[derive(Default)]
struct Device {
    /// The lines of live mappings, by their first page.
    live: BTreeMap<u64, Line>,
    /// Maps, unmaps and stray accesses so far.
    lines: u64,
}

/// Finds the lists of `trace`.
pub fn lists(trace: &Trace) -> Lists {
    let mut lists = Lists::default();
    let mut devices: HashMap<u32, Device> = HashMap::new();
    for (index, event) in trace.events().iter().enumerate() {
        let at = devices.entry(event.device().0).or_default();
        match *event {
            Event::Map {
                range,
                permission,
                phys,
                kind,
                ..
            } => {
                at.lines += 1;
                let (first, last) = (range.first().number(), range.last().number());
                if at
                    .owner(last)
                    .is_none_or(|(start, line)| start + line.pages <= first)
                {
                    let line = Line {
                        pages: range.pages().0,
                        event: index,
                        number: at.lines,
                        permission,
                        has_phys: phys.is_some(),
                        kind,
                    };
                    at.live.insert(first, line);
                }
            }
            Event::Unmap { range, .. } => {
                at.lines += 1;
                let ended = at.end(range.first().number(), range.pages().0);
                if ended.len() > 1 && ended.windows(2).all(|pair| follows(&pair[0], &pair[1])) {
                    let events: Vec<usize> = ended.iter().map(|line| line.event).collect();
                    lists.members.extend(&events[1..]);
                    lists.heads.insert(events[0], events);
                }
            }
            Event::Access { page, .. } => {
                let page = page.number();
                let stray = at
                    .owner(page)
                    .is_none_or(|(start, line)| start + line.pages <= page);
                at.lines += u64::from(stray);
            }
        }
    }
    lists
}

/// Whether `next` goes on with the list that `line` is in; that they are side by side is known.
fn follows(line: &Line, next: &Line) -> bool {
    let of_list = |line: &Line| line.has_phys || line.kind == Some(Kind::ScatterGather);
    next.number == line.number + 1
        && next.permission == line.permission
        && of_list(line)
        && of_list(next)
}

impl Device {
    /// The last mapping that begins at or before `page`.
    fn owner(&self, page: u64) -> Option<(u64, &Line)> {
        let (start, line) = self.live.range(..=page).next_back()?;
        Some((*start, line))
    }

    /// Ends the mappings that fill the range exactly, in order of pages; none if others
    /// do or nothing does.
    fn end(&mut self, first: u64, pages: u64) -> Vec<Line> {
        let mut next = first;
        let mut starts = Vec::new();
        for (start, line) in self.live.range(first..first + pages) {
            if *start != next {
                return Vec::new();
            }
            starts.push(*start);
            next += line.pages;
        }
        if next != first + pages {
            return Vec::new();
        }
        starts
            .iter()
            .filter_map(|start| self.live.remove(start))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limits;

    fn found(lines: &str) -> Vec<Vec<usize>> {
        let text = format!("# ioatlas-trace 1\n{lines}");
        let trace = Trace::read("t", text.as_bytes(), Limits::default()).unwrap();
        let lists = lists(&trace);
        let mut heads: Vec<_> = lists.heads.into_values().collect();
        heads.sort();
        let members: usize = heads.iter().map(|list| list.len() - 1).sum();
        assert_eq!(members, lists.members.len());
        heads
    }

    #[test]
    fn maps_that_one_unmap_ends_are_a_list() {
        let list = "M a 10 2 r 5\nM b 99 1 r 1\nA a 11 r\nM a 12 1 r 9\nU a 10 3\n";
        assert_eq!(found(list), [vec![0, 3]]);
        let no_memory = "M a 10 2 r - sg\nM a 12 1 r - sg\nU a 10 3\n";
        assert_eq!(found(no_memory), [vec![0, 1]]);
        let twice = "M a 10 1 r 5\nM a 11 1 r 9\nU a 10 2\nM a 10 1 r 5\nM a 11 1 r 9\nU a 10 2\n";
        assert_eq!(found(twice), [vec![0, 1], vec![3, 4]]);
    }

    #[test]
    fn anything_else_is_not() {
        for lines in [
            "M a 10 2 r 5\nU a 10 2\n",
            "M a 12 1 r 9\nM a 10 2 r 5\nU a 10 3\n",
            "M a 10 2 r 5\nM a 12 1 w 9\nU a 10 3\n",
            "M a 10 2 r\nM a 12 1 r 9\nU a 10 3\n",
            "M a 10 2 r 5\nM a 12 1 r 9\nU a 10 2\nU a 12 1\n",
            "M a 10 2 r 5\nM a 12 1 r 9\nU a 10 4\n",
            "M a 10 2 r 5\nA a 12 r\nM a 12 1 r 9\nU a 10 3\n",
            "M a 10 2 r 5\nM a 90 1 r 9\nM a 12 1 r 9\nU a 10 3\n",
            "M a 90 1 r 9\nM a 10 2 r 5\nU a 90 1\nM a 12 1 r 9\nU a 10 3\n",
        ] {
            assert_eq!(found(lines), Vec::<Vec<usize>>::new(), "{lines}");
        }
    }
}
