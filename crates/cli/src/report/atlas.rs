// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The picture of a trace: IOVA pages against virtual time, WIOSCA'10's figures 4 to 7
//! in one.
//!
//! Pages are stacked device by device in order of number, gaps of never used pages
//! closed up. Time and pages are binned into a grid; a cell is a set of flags, which
//! say what happened in it. Cells are stored in order as distance to the previous one
//! (little-endian base 128) and a byte of flags; where that takes too much room the grid is
//! made coarser.

use crate::loaded::NAME;
use crate::text::short;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use ioatlas_iotlb::{Class, DeviceId, Event, Geometry, IovaPage, MissCause, PageRange};
use ioatlas_iotlb::{Trace, Verdict, diagnose_with};
use std::collections::BTreeMap;

/// What can happen in a cell; `page.js` knows the same bits.
mod flag {
    pub const CONSISTENT: u8 = 1;
    pub const STREAMING: u8 = 1 << 1;
    pub const FIRST_TOUCH: u8 = 1 << 2;
    pub const OTHER_MISS: u8 = 1 << 3;
    pub const MAP: u8 = 1 << 4;
    pub const UNMAP: u8 = 1 << 5;
}

const MAX_COLUMNS: usize = 1600;
const MAX_ROWS: usize = 512;
/// Below this the picture says nothing, however little room there is.
const MIN_COLUMNS: usize = 50;

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
    /// Rows at which a device begins, with its name.
    pub devices: Vec<(usize, String)>,
    /// Some rows and the number of the first page in each.
    pub ticks: Vec<(usize, String)>,
    /// The cells, base64.
    pub cells: String,
}

type Page = (DeviceId, IovaPage);

impl Atlas {
    /// Draws `trace` in at most about `room` bytes.
    #[must_use]
    pub fn draw(trace: &Trace, label: &str, geometry: Geometry, room: usize) -> Self {
        let pages = pages(trace);
        let mut misses = vec![0u8; trace.events().len()];
        diagnose_with(trace, geometry, |time, verdict| {
            misses[time.0] = match verdict {
                Verdict::Miss(MissCause::FirstTouch) => flag::FIRST_TOUCH,
                Verdict::Miss(_) => flag::OTHER_MISS,
                Verdict::Hit | Verdict::Fault => 0,
            };
        });
        let (mut columns, mut rows) = (MAX_COLUMNS, MAX_ROWS);
        loop {
            let grid = Grid::new(trace, &pages, columns, rows);
            let cells = grid.encode(trace, &misses);
            if cells.len() <= room || columns / 2 < MIN_COLUMNS {
                return grid.atlas(trace, label, cells);
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

    fn encode(&self, trace: &Trace, misses: &[u8]) -> String {
        let classes = trace.classes();
        let mut live = ioatlas_iotlb::LiveMappings::new(trace);
        let mut cells: BTreeMap<usize, u8> = BTreeMap::new();
        for (time, event) in trace.events().iter().enumerate() {
            let column = time * self.columns / self.events.max(1);
            let mut mark = |row: usize, flags: u8| {
                *cells.entry(column * self.rows + row).or_default() |= flags;
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
        let mut bytes = Vec::new();
        let mut previous = 0;
        for (cell, flags) in cells {
            let mut distance = cell - previous;
            previous = cell;
            while distance >= 128 {
                bytes.push((distance % 128) as u8 | 128);
                distance /= 128;
            }
            bytes.extend([distance as u8, flags]);
        }
        STANDARD.encode(bytes)
    }

    fn rows_of(&self, device: DeviceId, range: PageRange) -> std::ops::RangeInclusive<usize> {
        self.row((device, range.first()))..=self.row((device, range.last()))
    }

    fn atlas(&self, trace: &Trace, label: &str, cells: String) -> Atlas {
        const TICKS: usize = 8;
        let mut devices = Vec::new();
        for device in trace.devices().take(MAX_DEVICES) {
            let rank = self.pages.partition_point(|&(other, _)| other < device);
            let row = rank * self.rows / self.pages.len().max(1);
            devices.push((row, short(trace.device_name(device), NAME)));
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
            cells,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ioatlas_iotlb::Limits;

    fn trace(lines: &str) -> Trace {
        let text = format!("# ioatlas-trace 1\n{lines}");
        Trace::read("t", text.as_bytes(), Limits::default()).unwrap()
    }

    /// The cells as (column, row, flags).
    fn cells(atlas: &Atlas) -> Vec<(usize, usize, u8)> {
        let bytes = STANDARD.decode(&atlas.cells).unwrap();
        let (mut cells, mut at, mut bytes) = (Vec::new(), 0, bytes.into_iter());
        while let Some(mut byte) = bytes.next() {
            let (mut distance, mut scale) = (0, 1);
            while byte >= 128 {
                distance += (byte as usize - 128) * scale;
                scale *= 128;
                byte = bytes.next().unwrap();
            }
            at += distance + byte as usize * scale;
            cells.push((at / atlas.rows, at % atlas.rows, bytes.next().unwrap()));
        }
        cells
    }

    #[test]
    fn small_traces_are_drawn_event_by_event() {
        let lines =
            "M d 10 1 r 1 alloc\nM d ff 1 r 2 page\nA d ff r\nA d 10 r\nA d 10 r\nU d ff 1\n";
        let atlas = Atlas::draw(&trace(lines), "t", Geometry::default(), 10_000);
        assert_eq!((atlas.columns, atlas.rows, atlas.events), (6, 2, 6));
        let expected = [
            (0, 0, flag::MAP),
            (1, 1, flag::MAP),
            (2, 1, flag::STREAMING | flag::FIRST_TOUCH),
            (3, 0, flag::CONSISTENT | flag::FIRST_TOUCH),
            (4, 0, flag::CONSISTENT),
            (5, 1, flag::UNMAP),
        ];
        assert_eq!(cells(&atlas), expected);
        assert_eq!(atlas.ticks[0], (0, "10".into()));
    }

    #[test]
    fn a_large_trace_fits_the_room_given() {
        let mut lines = String::from("M d 0 100000 rw\n");
        for event in 0..40_000u64 {
            lines += &format!("A d {:x} r\n", event * 7919 % 100_000);
        }
        let trace = trace(&lines);
        let whole = Atlas::draw(&trace, "t", Geometry::default(), usize::MAX);
        let small = Atlas::draw(&trace, "t", Geometry::default(), 20_000);
        assert!(whole.cells.len() > 40_000 && small.cells.len() <= 20_000);
    }

    #[test]
    fn a_trace_without_events_is_an_empty_picture() {
        let atlas = Atlas::draw(&trace(""), "t", Geometry::default(), 1000);
        assert_eq!(
            (atlas.columns, atlas.rows, atlas.cells.as_str()),
            (1, 1, "")
        );
    }
}
