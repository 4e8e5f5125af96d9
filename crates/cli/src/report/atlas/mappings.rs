// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What lies where in a picture, for a reader who points at it: the pages of each row, mappings
//! with their size, kind, task and lifetime, and the times along the picture.
//!
//! A page has no room for the mappings of a long trace. Those that cover most of the picture are
//! kept, for only these can be pointed at.

use super::{Grid, number};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use ioatlas_iotlb::{
    Class, Event, EventTime, Kind, LiveMappings, Permission, Stamp, TaskId, Trace,
};
use ioatlas_present::short;
use std::collections::BTreeMap;

/// Times along the picture, evenly by events.
const TIMES: usize = 256;

/// Tasks with a name on the page.
const MAX_TASKS: usize = 16;
/// Characters of a task's name; a kernel keeps 15.
const TASK_NAME: usize = 20;

/// Characters of a mapping at least: ten numbers.
const LEAST: usize = 13;

/// Bits of a mapping; `page.js` knows the same ones. Above them the number of its kind.
mod flag {
    pub const CONSISTENT: usize = 1;
    pub const READ: usize = 1 << 1;
    pub const WRITE: usize = 1 << 2;
    pub const KIND: usize = 1 << 3;
}

/// What a reader can point at, as the page's script decodes it: numbers in base 128 and base64.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lies {
    /// Of each row, the first of its pages and how many numbers farther the last of the same device
    /// is.
    pub rows: String,
    /// Of mappings in the order of their events: event, from the previous one; events that it
    /// lived, 0 for up to the end; row; rows, less one; page, from the first of the row; pages;
    /// bytes and 1, 0 if unknown; flags; task and 1, 0 if unknown; nanoseconds that it lived and 1,
    /// 0 if unknown.
    pub mappings: String,
    /// How many there are, and how many maps the trace has.
    pub kept: (usize, usize),
    /// Names of their tasks, by number; what others did has the number behind the last.
    pub tasks: Vec<String>,
    /// Nanoseconds since the first stamp, each from the previous one, at even distances in events.
    /// Empty if the trace has no times.
    pub times: String,
}

impl Lies {
    /// Of the picture that `grid` divides, in about `room` bytes.
    pub(super) fn of(trace: &Trace, grid: &Grid<'_>, room: usize) -> Self {
        let ends = ends(trace);
        let (rows, times) = (rows(grid), times(trace));
        let room = room.saturating_sub(rows.len() + times.len());
        let all = trace.events().iter().filter(|event| is_map(event)).count();
        let mut most = room / LEAST;
        loop {
            let kept = largest(trace, grid, &ends, most);
            let tasks = tasks(trace, &kept);
            let mappings = encode(trace, grid, &ends, &kept, &tasks);
            if mappings.len() <= room {
                return Self {
                    rows,
                    mappings,
                    kept: (kept.len(), all),
                    tasks: names(trace, &tasks),
                    times,
                };
            }
            let fit = room as f64 / mappings.len() as f64 * 0.95;
            most = (kept.len() as f64 * fit) as usize;
        }
    }
}

fn is_map(event: &Event) -> bool {
    matches!(event, Event::Map { .. })
}

/// Of each map by its event, the last event that took pages of it; of other events, and of maps
/// that are there at the end, the number of events.
fn ends(trace: &Trace) -> Vec<usize> {
    let events = trace.events();
    let mut ends = vec![events.len(); events.len()];
    let mut live = LiveMappings::new(trace);
    for (time, event) in events.iter().enumerate() {
        if let Event::Map { device, range, .. } | Event::Unmap { device, range } = *event {
            for owner in live.owners(device, range) {
                ends[owner.0] = time;
            }
        }
        live.apply(EventTime(time), event);
    }
    for owner in live.all() {
        ends[owner.0] = events.len();
    }
    ends
}

/// The `most` maps that cover most of the picture, in order.
fn largest(trace: &Trace, grid: &Grid<'_>, ends: &[usize], most: usize) -> Vec<usize> {
    let events = trace.events();
    let area = |at: usize| match events[at] {
        Event::Map { device, range, .. } => {
            let rows = grid.rows_of(device, range);
            let columns = grid.column(ends[at]) - grid.column(at);
            (rows.end() - rows.start() + 1) * (columns + 1)
        }
        _ => 0,
    };
    let maps = (0..events.len()).filter(|&at| is_map(&events[at]));
    let mut maps: Vec<usize> = maps.collect();
    if most < maps.len() {
        maps.sort_by_cached_key(|&at| std::cmp::Reverse(area(at)));
        maps.truncate(most);
        maps.sort_unstable();
    }
    maps
}

/// The stamp that holds at an event.
fn stamp(trace: &Trace, at: usize) -> Option<Stamp> {
    let stamps = trace.stamps();
    let next = stamps.partition_point(|stamped| stamped.time.0 <= at);
    Some(stamps[next.checked_sub(1)?].stamp)
}

/// Numbers of the tasks that made the maps, most frequent first.
fn tasks(trace: &Trace, maps: &[usize]) -> BTreeMap<TaskId, usize> {
    let mut counts: BTreeMap<TaskId, usize> = BTreeMap::new();
    for task in maps.iter().filter_map(|&at| stamp(trace, at)?.task) {
        *counts.entry(task).or_default() += 1;
    }
    let mut tasks: Vec<TaskId> = counts.keys().copied().collect();
    tasks.sort_by_key(|task| std::cmp::Reverse(counts[task]));
    let numbers = (0..tasks.len()).map(|number| number.min(MAX_TASKS));
    tasks.into_iter().zip(numbers).collect()
}

fn names(trace: &Trace, tasks: &BTreeMap<TaskId, usize>) -> Vec<String> {
    let mut named: Vec<_> = tasks
        .iter()
        .filter(|(_, number)| **number < MAX_TASKS)
        .collect();
    named.sort_by_key(|(_, number)| **number);
    let name = |task: TaskId| short(trace.task_name(task), TASK_NAME).replace('\n', " ");
    named.into_iter().map(|(task, _)| name(*task)).collect()
}

fn encode(
    trace: &Trace,
    grid: &Grid<'_>,
    ends: &[usize],
    maps: &[usize],
    tasks: &BTreeMap<TaskId, usize>,
) -> String {
    let (mut bytes, mut previous) = (Vec::new(), 0);
    let classes = trace.classes();
    for &at in maps {
        let event = &trace.events()[at];
        let Event::Map {
            device,
            range,
            permission,
            kind,
            ..
        } = *event
        else {
            continue;
        };
        let class = match classes[at] {
            Some(Class::Consistent) => flag::CONSISTENT,
            _ => 0,
        };
        let may = match permission {
            Permission::Read => flag::READ,
            Permission::Write => flag::WRITE,
            Permission::ReadWrite => flag::READ | flag::WRITE,
        };
        let kind = match kind {
            None => 0,
            Some(Kind::Alloc) => 1,
            Some(Kind::Page) => 2,
            Some(Kind::ScatterGather) => 3,
        };
        let rows = grid.rows_of(device, range);
        let first = range.first().number();
        // a row of two devices is named after the first
        let of_row = grid.pages_of_row(*rows.start());
        let offset = of_row.map_or(0, |(page, _)| first.saturating_sub(page));
        let begun = stamp(trace, at);
        let lived = match ends[at] {
            end if end == trace.events().len() => None,
            end => begun.zip(stamp(trace, end)),
        };
        let lived = lived.map(|(from, to)| to.nanoseconds.saturating_sub(from.nanoseconds));
        let task = begun.and_then(|stamp| tasks.get(&stamp.task?).copied());
        let known = |value: Option<u64>| value.map_or(0, |value| value.saturating_add(1) as usize);
        for value in [
            at - previous,
            (ends[at] - at) * usize::from(ends[at] != trace.events().len()),
            *rows.start(),
            rows.end() - rows.start(),
            offset as usize,
            range.pages().0 as usize,
            known(event.bytes()),
            class | may | (kind * flag::KIND),
            task.map_or(0, |task| task + 1),
            known(lived),
        ] {
            number(&mut bytes, value);
        }
        previous = at;
    }
    STANDARD.encode(bytes)
}

fn rows(grid: &Grid<'_>) -> String {
    let mut bytes = Vec::new();
    for row in 0..grid.rows {
        let (first, last) = grid.pages_of_row(row).unwrap_or_default();
        number(&mut bytes, first as usize);
        number(&mut bytes, (last - first) as usize);
    }
    STANDARD.encode(bytes)
}

fn times(trace: &Trace) -> String {
    let (Some(first), Some(last)) = (trace.stamps().first(), trace.events().len().checked_sub(1))
    else {
        return String::new();
    };
    let (mut bytes, mut previous) = (Vec::new(), 0);
    for part in 0..=TIMES {
        let at = (part * trace.events().len() / TIMES).min(last);
        let stamp = stamp(trace, at).unwrap_or(first.stamp);
        let time = stamp.nanoseconds.saturating_sub(first.stamp.nanoseconds);
        // where tracers disagree about the order, times stand still
        let time = time.max(previous);
        number(&mut bytes, (time - previous) as usize);
        previous = time;
    }
    STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ioatlas_iotlb::Limits;

    fn numbers(text: &str) -> Vec<usize> {
        let bytes = STANDARD.decode(text).unwrap();
        let (mut found, mut value, mut shift) = (Vec::new(), 0, 0);
        for byte in bytes {
            value |= usize::from(byte & 127) << shift;
            shift += 7;
            if byte < 128 {
                found.push(value);
                (value, shift) = (0, 0);
            }
        }
        found
    }

    fn lies(lines: &str, columns: usize, rows: usize, room: usize) -> Lies {
        let text = format!("# ioatlas-trace 2\n{lines}");
        let trace = Trace::read("t", text.as_bytes(), Limits::default()).unwrap();
        let pages = super::super::pages(&trace);
        Lies::of(&trace, &Grid::new(&trace, &pages, columns, rows), room)
    }

    #[test]
    fn a_mapping_has_its_pages_size_kind_task_and_lifetime() {
        let lines = "# at 1000 0 iperf3\nM d 10 2 w 7 page 64+5000\nM e 10 1 rw 9 alloc\nA d 10 w\n\
                     # at 4500 1 softirq\nU d 10 2\nM d 10 1 r\n";
        let lies = lies(lines, 9, 9, usize::MAX);
        // rows: pages 10 and 11 of d, 10 of e
        assert_eq!(numbers(&lies.rows), [16, 0, 17, 0, 16, 0]);
        assert_eq!(lies.tasks, ["iperf3", "softirq"]);
        let mappings = numbers(&lies.mappings);
        let mappings: Vec<&[usize]> = mappings.chunks(10).collect();
        let write_of_a_page = flag::WRITE | (2 * flag::KIND);
        assert_eq!(
            mappings[0],
            [0, 3, 0, 1, 0, 2, 5001, write_of_a_page, 1, 3501]
        );
        let ring = flag::CONSISTENT | flag::READ | flag::WRITE | flag::KIND;
        assert_eq!(mappings[1], [1, 0, 2, 0, 0, 1, 0, ring, 1, 0]);
        assert_eq!(mappings[2], [3, 0, 0, 0, 0, 1, 0, flag::READ, 2, 0]);
        assert_eq!(lies.kept, (3, 3));
    }

    #[test]
    fn times_are_even_in_events_and_never_step_back() {
        let lines =
            "M d 1 1 r\n# at 1000 0\nM d 2 1 r\n# at 900 1\nM d 3 1 r\n# at 5000 0\nM d 4 1 r\n";
        let times = numbers(&lies(lines, 9, 9, usize::MAX).times);
        assert_eq!(times.len(), TIMES + 1);
        assert_eq!(times.iter().sum::<usize>(), 4000);
        assert_eq!(times[3 * TIMES / 4], 4000);
        assert_eq!(lies("M d 1 1 r\n", 9, 9, 9).times, "");
    }

    #[test]
    fn of_many_mappings_those_that_cover_most_are_kept() {
        let mut lines = String::from("M d 0 100 rw\n");
        for n in 0..10_000 {
            lines += &format!("M d {:x} 1 w\nU d {:x} 1\n", 1000 + n % 50, 1000 + n % 50);
        }
        let lies = lies(&lines, 1600, 512, 5000);
        assert!(lies.mappings.len() <= 5000 && lies.mappings.len() > 2000);
        assert_eq!(lies.kept.1, 10_001);
        assert_eq!(numbers(&lies.mappings)[5], 100);
    }
}
