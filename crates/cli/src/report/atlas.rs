// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The picture of a trace: IOVA pages against virtual time, WIOSCA'10's figures 4 to 7
//! in one.
//!
//! Pages are stacked device by device in order of number, gaps of never used pages
//! closed up. Time and pages are binned into a grid; a cell is a set of flags, which
//! say what happened in it, and, where anything misses under any combination of strategies
//! ([`Savings`]), under which ones: two sets of combinations, of misses that are first
//! touches without a strategy and of all others. Few pairs of sets differ, so that a cell
//! names its pair by number, the most frequent by the smallest.
//! Cells are stored in order as distance to the previous one (little-endian base 128), a
//! byte of flags, and the number of the pair (base 128 too) where the flags say so. Where there is
//! room for it a cell has a pair for each of its misses, so that those in view can be counted, else
//! one for all of them; where that takes too much room, too, the grid is made coarser.

mod mappings;

pub use mappings::Lies;

use super::savings::Savings;
use crate::loaded::NAME;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use ioatlas_iotlb::{Class, DeviceId, Event, Geometry, IovaPage, MissCause, Named, PageRange};
use ioatlas_iotlb::{Trace, Verdict, diagnose_with};
use ioatlas_present::short;
use std::collections::BTreeMap;

/// What can happen in a cell; `page.js` knows the same bits.
mod flag {
    pub const CONSISTENT: u8 = 1;
    pub const STREAMING: u8 = 1 << 1;
    pub const FIRST_TOUCH: u8 = 1 << 2;
    pub const OTHER_MISS: u8 = 1 << 3;
    pub const MAP: u8 = 1 << 4;
    pub const UNMAP: u8 = 1 << 5;
    /// The number of a pair of sets of combinations follows.
    pub const MISSES: u8 = 1 << 6;
    /// Of several misses: how many numbers follow, and then these.
    pub const SEVERAL: u8 = 1 << 7;
}

const MAX_COLUMNS: usize = 1600;
const MAX_ROWS: usize = 512;
/// Below this the picture says nothing, however little room there is.
const MIN_COLUMNS: usize = 50;

/// Of the room for a picture, the least part for what lies where, in hundredths: it has what the
/// cells leave.
const ROOM_OF_LIES: usize = 30;

/// Devices with a name in the picture.
const MAX_DEVICES: usize = 16;

/// The picture of one trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Atlas {
    /// Name of the trace for people.
    pub label: String,
    /// Cells along the time axis.
    pub columns: usize,
    /// Cells along the page axis; row 0 is the lowest page of the first device.
    pub rows: usize,
    /// Events in the trace: the length of the time axis.
    pub events: usize,
    /// Rows at which a device begins, with its name; empty for all devices behind those named.
    pub devices: Vec<(usize, String)>,
    /// Some rows and the number of the first page in each.
    pub ticks: Vec<(usize, String)>,
    /// Names of the combinations of strategies, by bit.
    pub combinations: Vec<String>,
    /// Misses of the trace under each.
    pub misses: Vec<u64>,
    /// The pairs of sets of combinations, by number: misses that are first touches, others.
    pub sets: Vec<Sets>,
    /// The cells in base64, as the page's script decodes them.
    pub cells: String,
    /// Whether each miss has its pair of sets; else those of a cell share one.
    pub is_exact: bool,
    /// What lies where.
    pub lies: Lies,
}

/// Under which combinations there are misses, a bit each: first touches, others.
type Sets = [u32; 2];

/// What happened in a cell.
#[derive(Clone, Default)]
struct Cell {
    flags: u8,
    /// Of each miss, or of all together.
    sets: Vec<Sets>,
}

/// Whether each miss of a cell has its own pair of sets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Misses {
    Each,
    Together,
}

type Page = (DeviceId, IovaPage);

impl Atlas {
    /// Draws `trace` in at most about `room` bytes.
    #[must_use]
    pub(super) fn draw(
        trace: &Trace,
        label: &str,
        geometry: Geometry,
        savings: &Savings,
        room: usize,
    ) -> Self {
        let pages = pages(trace);
        let mut misses = vec![0u8; trace.events().len()];
        diagnose_with(trace, geometry, |time, verdict| {
            misses[time.0] = match verdict {
                Verdict::Miss(MissCause::FirstTouch) => flag::FIRST_TOUCH,
                Verdict::Miss(_) => flag::OTHER_MISS,
                Verdict::Hit | Verdict::Fault => 0,
            };
        });
        let room_of_cells = room - room / 100 * ROOM_OF_LIES;
        let (mut columns, mut rows) = (MAX_COLUMNS, MAX_ROWS);
        // each miss takes a byte at least
        let missed = savings.missed.iter().filter(|&&missed| missed != 0).count();
        let mut each = match missed < room_of_cells {
            true => Misses::Each,
            false => Misses::Together,
        };
        loop {
            let grid = Grid::new(trace, &pages, columns, rows);
            let cells = grid.cells(trace, &misses, &savings.missed, each);
            let (sets, cells) = encode(&cells);
            // A pair of sets is written as two numbers of at most 8 hexadecimal digits.
            let bytes = cells.len() + 18 * sets.len();
            if bytes <= room_of_cells || each == Misses::Together && columns / 2 < MIN_COLUMNS {
                return Atlas {
                    combinations: savings.combinations.iter().map(Named::to_string).collect(),
                    misses: savings.totals(),
                    sets,
                    is_exact: each == Misses::Each,
                    lies: Lies::of(trace, &grid, room.saturating_sub(bytes)),
                    ..grid.atlas(trace, label, cells)
                };
            }
            if each == Misses::Each {
                each = Misses::Together;
                continue;
            }
            columns = columns * 2 / 3;
            rows = rows * 2 / 3;
        }
    }
}

/// Every page that is accessed or ends a mapping, in order.
fn pages(trace: &Trace) -> Vec<Page> {
    let mut pages: Vec<Page> = Vec::new();
    for event in trace.events() {
        match *event {
            Event::Access { device, page, .. } => pages.push((device, page)),
            Event::Map { device, range, .. } | Event::Unmap { device, range } => {
                pages.extend([(device, range.first()), (device, range.last())]);
            }
        }
    }
    pages.sort_unstable();
    pages.dedup();
    pages
}

struct Grid<'a> {
    pages: &'a [Page],
    columns: usize,
    rows: usize,
    events: usize,
}

impl<'a> Grid<'a> {
    fn new(trace: &Trace, pages: &'a [Page], columns: usize, rows: usize) -> Self {
        let events = trace.events().len();
        Self {
            pages,
            columns: columns.min(events).max(1),
            rows: rows.min(pages.len()).max(1),
            events,
        }
    }

    fn row(&self, page: Page) -> usize {
        let rank = self.pages.binary_search(&page).unwrap_or_else(|at| at);
        rank * self.rows / self.pages.len().max(1)
    }

    fn column(&self, time: usize) -> usize {
        time * self.columns / self.events.max(1)
    }

    /// The first page of a row and the last of the same device; `None` without pages.
    fn pages_of_row(&self, row: usize) -> Option<(u64, u64)> {
        let rank = |row: usize| (row * self.pages.len()).div_ceil(self.rows);
        let pages = self.pages.get(rank(row)..rank(row + 1))?;
        let (device, first) = *pages.first()?;
        let mut of_device = pages.iter().rev().filter(|(other, _)| *other == device);
        let (_, last) = *of_device.next()?;
        Some((first.number(), last.number()))
    }

    fn cells(
        &self,
        trace: &Trace,
        misses: &[u8],
        missed: &[u32],
        each: Misses,
    ) -> BTreeMap<usize, Cell> {
        let classes = trace.classes();
        let mut live = ioatlas_iotlb::LiveMappings::new(trace);
        let mut cells: BTreeMap<usize, Cell> = BTreeMap::new();
        for (time, event) in trace.events().iter().enumerate() {
            let column = self.column(time);
            let mut mark = |row: usize, flags: u8| {
                let cell = cells.entry(column * self.rows + row).or_default();
                cell.flags |= flags;
                if missed[time] != 0 {
                    cell.flags |= flag::MISSES;
                    let first = misses[time] & flag::FIRST_TOUCH != 0;
                    if cell.sets.is_empty() || each == Misses::Each {
                        cell.sets.push([0; 2]);
                    }
                    if let Some(sets) = cell.sets.last_mut() {
                        sets[usize::from(!first)] |= missed[time];
                    }
                }
            };
            match *event {
                Event::Access { device, page, .. } => {
                    let owner = live.owner(device, page);
                    let class = owner.and_then(|mapping| classes[mapping.0]);
                    let kind = match class {
                        Some(Class::Consistent) => flag::CONSISTENT,
                        Some(Class::Streaming) => flag::STREAMING,
                        None => continue,
                    };
                    mark(self.row((device, page)), kind | misses[time]);
                }
                Event::Map { device, range, .. } => {
                    self.rows_of(device, range)
                        .for_each(|row| mark(row, flag::MAP));
                }
                Event::Unmap { device, range } => {
                    self.rows_of(device, range)
                        .for_each(|row| mark(row, flag::UNMAP));
                }
            }
            live.apply(ioatlas_iotlb::EventTime(time), event);
        }
        cells
    }

    fn rows_of(&self, device: DeviceId, range: PageRange) -> std::ops::RangeInclusive<usize> {
        self.row((device, range.first()))..=self.row((device, range.last()))
    }

    fn atlas(&self, trace: &Trace, label: &str, cells: String) -> Atlas {
        const TICKS: usize = 64;
        let mut devices = Vec::new();
        for device in trace.devices().take(MAX_DEVICES) {
            let rank = self.pages.partition_point(|&(other, _)| other < device);
            let row = rank * self.rows / self.pages.len().max(1);
            devices.push((row, short(trace.device_name(device), NAME)));
        }
        if let Some(next) = trace.devices().nth(MAX_DEVICES) {
            let rank = self.pages.partition_point(|&(other, _)| other < next);
            devices.push((rank * self.rows / self.pages.len().max(1), String::new()));
        }
        let tick = |number: usize| {
            let rank = number * self.pages.len().saturating_sub(1) / (TICKS - 1);
            let &page = self.pages.get(rank)?;
            Some((self.row(page), page.1.to_string()))
        };
        let mut ticks: Vec<_> = (0..TICKS).filter_map(tick).collect();
        ticks.dedup();
        Atlas {
            label: label.into(),
            columns: self.columns,
            rows: self.rows,
            events: self.events,
            devices,
            ticks,
            combinations: Vec::new(),
            misses: Vec::new(),
            sets: Vec::new(),
            cells,
            is_exact: false,
            lies: Lies::default(),
        }
    }
}

/// The pairs of sets, most frequent first, and the cells.
fn encode(cells: &BTreeMap<usize, Cell>) -> (Vec<Sets>, String) {
    let mut counts: BTreeMap<Sets, usize> = BTreeMap::new();
    for sets in cells.values().flat_map(|cell| &cell.sets) {
        *counts.entry(*sets).or_default() += 1;
    }
    let mut sets: Vec<Sets> = counts.keys().copied().collect();
    sets.sort_by_key(|pair| std::cmp::Reverse(counts[pair]));
    let numbers: BTreeMap<Sets, usize> = sets.iter().copied().zip(0..).collect();
    let (mut bytes, mut previous) = (Vec::new(), 0);
    for (&at, cell) in cells {
        number(&mut bytes, at - previous);
        match cell.sets.len() {
            0 | 1 => bytes.push(cell.flags),
            several => {
                bytes.push(cell.flags | flag::SEVERAL);
                number(&mut bytes, several);
            }
        }
        for sets in &cell.sets {
            number(&mut bytes, numbers[sets]);
        }
        previous = at;
    }
    (sets, STANDARD.encode(bytes))
}

/// Little-endian base 128; all bytes but the last have the highest bit.
fn number(bytes: &mut Vec<u8>, mut number: usize) {
    while number >= 128 {
        bytes.push((number % 128) as u8 | 128);
        number /= 128;
    }
    bytes.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ioatlas_iotlb::Limits;

    fn trace(lines: &str) -> Trace {
        let text = format!("# ioatlas-trace 1\n{lines}");
        Trace::read("t", text.as_bytes(), Limits::default()).unwrap()
    }

    fn draw(trace: &Trace, room: usize) -> Atlas {
        let savings = Savings::of(trace, Geometry::default());
        Atlas::draw(trace, "t", Geometry::default(), &savings, room)
    }

    /// The cells as (column, row, flags without those of sets, sets).
    fn cells(atlas: &Atlas) -> Vec<(usize, usize, u8, Vec<Sets>)> {
        let bytes = STANDARD.decode(&atlas.cells).unwrap();
        let (mut cells, mut at, mut bytes) = (Vec::new(), 0, bytes.into_iter());
        let number = |first: u8, bytes: &mut std::vec::IntoIter<u8>| {
            let (mut byte, mut number, mut scale) = (first, 0, 1);
            while byte >= 128 {
                number += (byte as usize - 128) * scale;
                scale *= 128;
                byte = bytes.next().unwrap();
            }
            number + byte as usize * scale
        };
        while let Some(byte) = bytes.next() {
            at += number(byte, &mut bytes);
            let flags = bytes.next().unwrap();
            let mut next = || {
                let byte = bytes.next().unwrap();
                number(byte, &mut bytes)
            };
            let count = match flags & (flag::MISSES | flag::SEVERAL) {
                0 => 0,
                flag::MISSES => 1,
                _ => next(),
            };
            let sets = (0..count).map(|_| atlas.sets[next()]).collect();
            cells.push((
                at / atlas.rows,
                at % atlas.rows,
                flags & !(flag::MISSES | flag::SEVERAL),
                sets,
            ));
        }
        cells
    }

    /// Misses of the cells under a combination.
    fn count(atlas: &Atlas, bit: usize) -> u64 {
        let cells = cells(atlas);
        let sets = cells.iter().flat_map(|(.., sets)| sets);
        sets.filter(|[first, others]| (first | others) & 1 << bit != 0)
            .count() as u64
    }

    #[test]
    fn misses_without_strategy_are_those_of_the_diagnosis() {
        let mut lines = String::from("M d 0 200 rw\n");
        for event in 0..300u64 {
            lines += &format!("A d {:x} r\n", event * 7 % 200);
        }
        let atlas = draw(&trace(&lines), usize::MAX);
        assert_eq!(atlas.combinations[0], "baseline");
        let all = cells(&atlas);
        assert_eq!(all.len(), 301 + 199);
        let alh = atlas.combinations.iter().position(|name| name == "alh");
        for (.., flags, sets) in all {
            let any = |kind: usize| sets.iter().any(|sets| sets[kind] & 1 != 0);
            assert_eq!(any(0), flags & flag::FIRST_TOUCH != 0);
            assert_eq!(any(1), flags & flag::OTHER_MISS != 0);
        }
        for bit in [0, alh.unwrap()] {
            assert_eq!(count(&atlas, bit), atlas.misses[bit]);
        }
    }

    #[test]
    fn each_miss_of_a_cell_counts_where_there_is_room() {
        let mut lines = String::from("M d 0 20000 rw\n");
        for event in 0..20_000u64 {
            lines += &format!("A d {event:x} r\n");
        }
        let trace = trace(&lines);
        let exact = draw(&trace, 300_000);
        assert!(exact.is_exact && cells(&exact).len() < 20_000);
        assert_eq!(count(&exact, 0), exact.misses[0]);
        let coarse = draw(&trace, 20_000);
        assert!(!coarse.is_exact && count(&coarse, 0) < coarse.misses[0]);
    }

    #[test]
    fn small_traces_are_drawn_event_by_event() {
        let lines =
            "M d 10 1 r 1 alloc\nM d ff 1 r 2 page\nA d ff r\nA d 10 r\nA d 10 r\nU d ff 1\n";
        let atlas = draw(&trace(lines), 10_000);
        assert_eq!((atlas.columns, atlas.rows, atlas.events), (6, 2, 6));
        let expected = [
            (0, 0, flag::MAP),
            (1, 1, flag::MAP),
            (2, 1, flag::STREAMING | flag::FIRST_TOUCH),
            (3, 0, flag::CONSISTENT | flag::FIRST_TOUCH),
            (4, 0, flag::CONSISTENT),
            (5, 1, flag::UNMAP),
        ];
        let flags = cells(&atlas)
            .into_iter()
            .map(|(column, row, flags, _)| (column, row, flags));
        assert_eq!(flags.collect::<Vec<_>>(), expected);
        assert_eq!(atlas.ticks[0], (0, "10".into()));
    }

    #[test]
    fn a_large_trace_fits_the_room_given() {
        let mut lines = String::from("M d 0 100000 rw\n");
        for event in 0..40_000u64 {
            lines += &format!("A d {:x} r\n", event * 7919 % 100_000);
        }
        let trace = trace(&lines);
        let whole = draw(&trace, usize::MAX);
        let small = draw(&trace, 20_000);
        assert!(whole.cells.len() > 40_000 && small.cells.len() <= 20_000);
    }

    #[test]
    fn a_trace_without_events_is_an_empty_picture() {
        let atlas = draw(&trace(""), 1000);
        assert_eq!(
            (atlas.columns, atlas.rows, atlas.cells.as_str()),
            (1, 1, "")
        );
    }
}
