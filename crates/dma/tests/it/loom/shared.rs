// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Shared leaves: CPUs that map and unmap one page at once. No preemption bound.

use crate::loom::{
    Counter, explore,
    platform::{Loom, Tiny, Word, on_cpu_1},
};
use ioatlas_dma::{
    iova::AllocKind,
    platform::{Atomic64, Ordering},
    table::{LeafAttrs, Table, TableConfig},
    units::*,
};
use std::sync::Arc;

type Tables = Table<Loom, Tiny>;

const PAGE: IovaPage = IovaPage(1);
const ONE: IovaRange = IovaRange {
    first: PAGE,
    pages: PageCount(1),
};

fn map(p: &Loom, table: &Tables) {
    let run = core::iter::once(PhysRun::new(PhysPage(101), PageCount(1)));
    let leaf = LeafAttrs::new(Perm::Read, AllocKind::Shared);
    let mapped = table.install(crate::BY, p, ONE, run, leaf);
    mapped.expect("there are frames, and the count is small");
    assert!(reached(p, table), "it sees its own (P14)");
}

/// Whether the translation went with it.
fn unmap(p: &Loom, table: &Tables) -> bool {
    let cleared = table.clear(crate::BY, p, ONE, AllocKind::Shared, |_| {
        panic!("no mapping owns the table")
    });
    assert_eq!(cleared.found, PageCount(1), "it was mapped");
    cleared.gone == PageCount(1)
}

fn reached(p: &Loom, table: &Tables) -> bool {
    let walked = table.walk(p, PAGE);
    assert!([None, Some((PhysPage(101), Perm::Read))].contains(&walked));
    walked.is_some()
}

fn references(p: &Loom, table: &Tables) -> u64 {
    let aperture = IovaRange::new(IovaPage(0), PageCount(4));
    let census = table.audit(p, Some(aperture)).expect("a sound table");
    census.references.0
}

fn table(frames: u64) -> (Arc<Loom>, Arc<Tables>) {
    let p = Arc::new(Loom::new(frames));
    let table = Tables::new(&*p, TableConfig::default()).expect("a frame for the root");
    (p, Arc::new(table))
}

/// Each CPU maps and unmaps the page: it is reached while either has it, and gone in the end.
#[test]
fn two_cpus_share_a_page_from_nothing_to_nothing() {
    let gone: [Counter; 3] = Default::default();
    let counters = gone.clone();
    explore("share and share", None, move || {
        let (p, table) = table(3);
        let other = {
            let (p, table) = (p.clone(), table.clone());
            on_cpu_1(move || {
                map(&p, &table);
                unmap(&p, &table)
            })
        };
        map(&p, &table);
        let mine = unmap(&p, &table);
        let theirs = other.join().unwrap();
        assert!(mine || theirs, "the last of them clears it (P1)");
        assert!(!reached(&p, &table), "unmapped by both (P1)");
        assert_eq!(references(&p, &table), 0);
        assert_eq!(p.frames_in_use(), 2, "the loser's frame came back");
        counters[usize::from(mine) + usize::from(theirs) * 2 - 1].add();
    });
    let gone = gone.map(|counter| counter.get());
    println!("it went with the one, the other, each: {gone:?}");
    assert!(gone.iter().all(|n| *n > 0));
}

/// A map runs into the last unmap: it is mapped afterwards, whichever came first.
#[test]
fn a_map_that_meets_the_last_unmap_is_not_lost() {
    let seen: [Counter; 2] = Default::default();
    let counters = seen.clone();
    explore("share and unshare", None, move || {
        let (p, table) = table(2);
        map(&p, &table);
        let other = {
            let (p, table) = (p.clone(), table.clone());
            on_cpu_1(move || map(&p, &table))
        };
        let gone = unmap(&p, &table);
        other.join().unwrap();
        assert!(reached(&p, &table), "mapped, and not unmapped (P14)");
        assert_eq!(references(&p, &table), 1);
        assert!(unmap(&p, &table), "the last one");
        assert!(!reached(&p, &table), "(P1)");
        counters[usize::from(gone)].add();
    });
    let seen = seen.map(|counter| counter.get());
    println!("the map came before the last unmap, after it: {seen:?}");
    assert!(seen.iter().all(|n| *n > 0));
}

/// Two unmaps of the last two, and a device that walks: one of them is the last, not both and not
/// none.
#[test]
fn of_two_last_unmaps_one_clears() {
    let seen: [Counter; 2] = Default::default();
    let counters = seen.clone();
    explore("unshare and unshare", None, move || {
        let (p, table) = table(2);
        map(&p, &table);
        map(&p, &table);
        let other = {
            let (p, table) = (p.clone(), table.clone());
            on_cpu_1(move || unmap(&p, &table))
        };
        let device = {
            let (p, table) = (p.clone(), table.clone());
            loom::thread::spawn(move || reached(&p, &table))
        };
        let mine = unmap(&p, &table);
        let theirs = other.join().unwrap();
        assert!(mine != theirs, "one is the last");
        assert!(!reached(&p, &table), "(P1)");
        assert_eq!(references(&p, &table), 0);
        counters[usize::from(device.join().unwrap())].add();
    });
    let seen = seen.map(|counter| counter.get());
    println!("the device found nothing, the page: {seen:?}");
    assert!(seen.iter().all(|n| *n > 0));
}

/// Each CPU fills its half of a buffer and maps the page. A device that finds the page counted
/// twice finds both halves: the second compare-and-swap continues what the first released.
#[test]
fn a_page_counted_twice_has_what_both_wrote() {
    let seen: [Counter; 3] = Default::default();
    let counters = seen.clone();
    explore("fill, share and walk", None, move || {
        let (p, table) = table(2);
        // the table is there already: nothing but the leaf orders them
        map(&p, &table);
        assert!(unmap(&p, &table));
        let halves = Arc::new([Word::new(0), Word::new(0)]);
        let other = {
            let (p, table, halves) = (p.clone(), table.clone(), halves.clone());
            on_cpu_1(move || {
                halves[1].store(7, Ordering::Relaxed);
                map(&p, &table);
            })
        };
        let device = {
            let (p, table, halves) = (p.clone(), table.clone(), halves.clone());
            loom::thread::spawn(move || {
                let found = references(&p, &table);
                (found, [0, 1].map(|i| halves[i].load(Ordering::Relaxed)))
            })
        };
        halves[0].store(7, Ordering::Relaxed);
        map(&p, &table);
        other.join().unwrap();
        let (found, read) = device.join().unwrap();
        let filled = read.iter().filter(|half| **half == 7).count() as u64;
        assert!(filled >= found, "{found} maps found, {filled} halves read");
        counters[found as usize].add();
    });
    let seen = seen.map(|counter| counter.get());
    println!("the device found none, one, two: {seen:?}");
    assert!(seen.iter().all(|n| *n > 0));
}
