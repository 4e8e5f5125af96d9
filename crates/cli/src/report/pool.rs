// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A trace as it would be had a network driver kept the pages of its receive buffers mapped, as
//! Linux's page pool does.
//!
//! A pool has pages to receive into, and gets each back when it is empty, to be used again. So here
//! each page of a small streaming mapping that the device may write is one of the pool's, the one
//! that came back last; where none is there the pool grows by one, which is mapped then and stays
//! so. An unmap gives pages back. So a pool has as many pages as were live at most. What the device
//! only reads is not the driver's memory, and is mapped as it was.
//!
//! Pages of the pool lie beyond all others of the trace, one after the other: where they would lie
//! is not known.

use super::captures::PoolGain;
use ioatlas_iotlb::{
    Class, DeviceId, Ending, Event, Geometry, HEADER, Kind, Laboratory, Limits, Permission, Setup,
    Trace,
};
use ioatlas_present::Figure;
use std::collections::BTreeMap;
use std::fmt;

/// The largest mapping that is taken for a receive buffer, in pages: 64 KiB.
const BUFFER_PAGES: u64 = 16;

/// A trace with such a pool: by device.
#[derive(Debug)]
pub(super) struct Pool {
    /// Pages of the pool.
    pub pages: Vec<u64>,
    /// Maps in whose place some of them were used.
    pub maps: Vec<u64>,
    /// Misses, those on what the pool does not serve among them.
    pub misses: Vec<u64>,
}

/// The pool of one device.
#[derive(Default)]
struct Pages {
    /// Those not in use, the latest last.
    free: Vec<u64>,
    /// By the page of the trace whose place it has.
    taken: BTreeMap<u64, u64>,
    made: u64,
    served: u64,
}

impl Pages {
    /// Gives back what has the place of pages from `first` to `last`; returns which those were.
    fn give_back(&mut self, first: u64, last: u64) -> Vec<u64> {
        let inside = self.taken.range(first..=last);
        let places: Vec<u64> = inside.map(|(place, _)| *place).collect();
        let back = places.iter().filter_map(|place| self.taken.remove(place));
        self.free.extend(back);
        places
    }
}

impl Pool {
    /// `None` if there are no numbers for the pool's pages.
    pub fn of(trace: &Trace, geometry: Geometry) -> Option<Self> {
        let (text, pools) = pooled(trace)?;
        let limits = Limits {
            text_bytes: u64::MAX,
            ..Limits::default()
        };
        let pooled = Trace::read("pool", text.as_bytes(), limits).ok()?;
        let mut misses = vec![0; pools.len()];
        let setup = Setup::default().with_geometry(geometry);
        Laboratory::new(&pooled).simulate_with(&setup, |time, ending| {
            let name = pooled.device_name(pooled.events()[time.0].device());
            if let (Ending::Miss, Ok(device)) = (ending, name.parse::<usize>()) {
                misses[device] += 1;
            }
        });
        Some(Self {
            pages: pools.iter().map(|pool| pool.made).collect(),
            maps: pools.iter().map(|pool| pool.served).collect(),
            misses,
        })
    }
}

/// By device, what a pool would take away without an access told of; `None` of a device where it
/// would serve each page once, which saves nothing.
pub(super) fn gains(trace: &Trace) -> Vec<Option<PoolGain>> {
    let pools = pools(trace, &mut Nowhere);
    let gain = |pool: &Pages| {
        (pool.served > pool.made).then(|| PoolGain {
            pages: Figure::count(pool.made),
            maps: Figure::count(pool.served - pool.made),
        })
    };
    match pools {
        Some(pools) => pools.iter().map(gain).collect(),
        None => vec![None; trace.devices().len()],
    }
}

/// The trace with a pool, its devices named by their numbers.
fn pooled(trace: &Trace) -> Option<(String, Vec<Pages>)> {
    let mut text = format!("{HEADER}\n");
    let pools = pools(trace, &mut text)?;
    Some((text, pools))
}

/// Takes text that is not wanted.
struct Nowhere;

impl fmt::Write for Nowhere {
    fn write_str(&mut self, _: &str) -> fmt::Result {
        Ok(())
    }
}

/// The pools, by device; the lines of the trace with them go to `text`.
fn pools(trace: &Trace, text: &mut dyn fmt::Write) -> Option<Vec<Pages>> {
    let last = |event: &Event| match event {
        Event::Map { range, .. } | Event::Unmap { range, .. } => range.last().number(),
        Event::Access { page, .. } => page.number(),
    };
    let beyond = trace.events().iter().map(last).max().unwrap_or(0) + 1;
    let mut pools: Vec<Pages> = trace.devices().map(|_| Pages::default()).collect();
    for (event, class) in trace.events().iter().zip(trace.classes()) {
        let pool = &mut pools[event.device().index()];
        // both take whatever is written to them
        write_event(text, pool, beyond, event, class).ok()?;
    }
    Some(pools)
}

/// Writes what takes the place of `event`; pages of the pool are numbered from `beyond`.
fn write_event(
    text: &mut dyn fmt::Write,
    pool: &mut Pages,
    beyond: u64,
    event: &Event,
    class: Option<Class>,
) -> fmt::Result {
    let DeviceId(device) = event.device();
    match *event {
        Event::Map {
            range,
            permission,
            kind,
            ..
        } => {
            let (first, last) = (range.first().number(), range.last().number());
            // an anomaly, if there was anything
            pool.give_back(first, last);
            let serves = class == Some(Class::Streaming)
                && permission != Permission::Read
                && kind != Some(Kind::ScatterGather)
                && range.pages().0 <= BUFFER_PAGES;
            if !serves {
                return writeln!(text, "M {device} {first:x} {} rw", range.pages().0);
            }
            for place in first..=last {
                let next = beyond + pool.made;
                let page = pool.free.pop().unwrap_or(next);
                if page == next {
                    pool.made += 1;
                    writeln!(text, "M {device} {page:x} 1 w")?;
                }
                pool.taken.insert(place, page);
            }
            pool.served += 1;
            Ok(())
        }
        Event::Unmap { range, .. } => {
            let (mut from, last) = (range.first().number(), range.last().number());
            let mut unmap = |from: u64, end: u64| match end - from {
                0 => Ok(()),
                pages => writeln!(text, "U {device} {from:x} {pages}"),
            };
            // what lies between the pool's
            for place in pool.give_back(from, last) {
                unmap(from, place)?;
                from = place + 1;
            }
            unmap(from, last + 1)
        }
        Event::Access { page, .. } => {
            let place = page.number();
            let page = pool.taken.get(&place).unwrap_or(&place);
            writeln!(text, "A {device} {page:x} ?")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(lines: &str) -> Trace {
        let text = format!("{HEADER}\n{lines}");
        Trace::read("t", text.as_bytes(), Limits::default()).unwrap()
    }

    fn pool(lines: &str) -> Pool {
        Pool::of(&trace(lines), Geometry::default()).unwrap()
    }

    /// Whatever memory the driver used without a pool: with one it uses that of the pool again.
    #[test]
    fn a_pool_has_as_many_pages_as_are_live_at_most() {
        let one = |n: u64| format!("M d {n:x} 1 w {n:x} page\nA d {n:x} w\nU d {n:x} 1\n");
        let all: String = (1..100).map(one).collect();
        let found = pool(&all);
        assert_eq!((found.pages, found.maps), (vec![1], vec![99]));
        assert_eq!(found.misses, [1], "it is mapped once");
        let two = "M d 1 1 w 7 page\nM d 2 1 w 8 page\nU d 1 2\nM d 3 2 rw 9 page\nU d 3 2\n";
        let found = pool(two);
        assert_eq!((found.pages, found.maps), (vec![2], vec![3]));
    }

    #[test]
    fn what_is_no_receive_buffer_stays_as_it_is() {
        for (map, pages) in [
            ("M d 1 1 r 7 page", 1),
            ("M d 1 1 rw 7 alloc", 1),
            ("M d 1 17 w 7 page", 17),
            ("M d 1 1 w 7 sg", 1),
        ] {
            let once = format!("{map}\nA d 1 ?\nU d 1 {pages}\n");
            let found = pool(&once.repeat(2));
            assert_eq!((found.pages, found.maps), (vec![0], vec![0]), "{map}");
            assert_eq!(found.misses, [2], "{map}");
        }
    }

    #[test]
    fn an_unmap_of_both_kinds_ends_each() {
        let maps = "M d 1 1 r 7 page\nM d 2 1 w 8 page\nM d 3 1 r 9 page\n";
        let trace = trace(&[maps, "A d 2 w\nU d 1 3\nA d 2 w\n"].concat());
        let (text, pools) = pooled(&trace).unwrap();
        let expected = [
            HEADER,
            "M 0 1 1 rw",
            "M 0 4 1 w",
            "M 0 3 1 rw",
            "A 0 4 ?",
            "U 0 1 1",
            "U 0 3 1",
            "A 0 2 ?",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
        assert_eq!((pools[0].free.len(), pools[0].taken.len()), (1, 0));
    }
}
