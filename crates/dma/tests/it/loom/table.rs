// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The lock-free table: neighbours that race for the table they share, without a bound on
//! preemptions; claims of the address API, with four, the fewest that show what they are about.

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

fn install(p: &Loom, table: &Tables, at: u64, to: u64) {
    let range = IovaRange::new(IovaPage(at), PageCount(1));
    let run = core::iter::once(PhysRun::new(PhysPage(to), PageCount(1)));
    let leaf = LeafAttrs::new(Perm::Read, AllocKind::Dynamic);
    table
        .install(crate::BY, p, range, run, leaf)
        .expect("there are frames, and nothing is mapped");
}

fn clear(p: &Loom, table: &Tables, at: u64) {
    let range = IovaRange::new(IovaPage(at), PageCount(1));
    let cleared = table.clear(crate::BY, p, range, AllocKind::Dynamic, |_| {
        panic!("half of a table is not all of it")
    });
    assert_eq!(cleared.gone, PageCount(1));
}

fn walk(p: &Loom, table: &Tables, at: u64) -> Option<u64> {
    let (to, perm) = table.walk(p, IovaPage(at))?;
    assert_eq!(perm, Perm::Read);
    Some(to.0)
}

#[test]
fn neighbours_that_map_at_once_share_one_table() {
    let raced = Counter::default();
    let counter = raced.clone();
    explore("map and map", None, move || {
        let p = Arc::new(Loom::new(3));
        let table =
            Arc::new(Tables::new(&*p, TableConfig::default()).expect("a frame for the root"));
        let other = {
            let (p, table) = (p.clone(), table.clone());
            on_cpu_1(move || {
                install(&p, &table, 1, 101);
                assert_eq!(walk(&p, &table, 1), Some(101), "it sees its own");
            })
        };
        install(&p, &table, 0, 100);
        assert_eq!(walk(&p, &table, 0), Some(100), "it sees its own");
        other.join().unwrap();
        assert_eq!(
            [0, 1].map(|at| walk(&p, &table, at)),
            [Some(100), Some(101)]
        );
        assert_eq!(p.frames_in_use(), 2, "the root, and one table for both");
        if p.allocated() == 3 {
            counter.add(); // the loser's frame came back
        }
    });
    println!("both made a table in {} executions", raced.get());
    assert!(raced.get() > 0);
}

/// A map and an unmap in one table, and a walk that runs into both.
#[test]
fn a_walk_sees_each_entry_whole_while_neighbours_change() {
    let seen: [Counter; 4] = Default::default();
    let counters = seen.clone();
    explore("map, unmap and walk", None, move || {
        let p = Arc::new(Loom::new(3));
        let table =
            Arc::new(Tables::new(&*p, TableConfig::default()).expect("a frame for the root"));
        install(&p, &table, 0, 100);
        let other = {
            let (p, table) = (p.clone(), table.clone());
            on_cpu_1(move || clear(&p, &table, 0))
        };
        let unit = {
            let (p, table) = (p.clone(), table.clone());
            loom::thread::spawn(move || [0, 1, 2].map(|at| walk(&p, &table, at)))
        };
        install(&p, &table, 1, 101);
        install(&p, &table, 2, 102); // in a new table, which a walk must not see before it is zeroed
        other.join().unwrap();
        let [gone, added, far] = unit.join().unwrap();
        assert!([None, Some(100)].contains(&gone), "{gone:?}");
        assert!([None, Some(101)].contains(&added), "{added:?}");
        assert!([None, Some(102)].contains(&far), "{far:?}");
        counters[usize::from(added.is_some()) * 2 + usize::from(far.is_some())].add();
        let found = [0, 1, 2, 3].map(|at| walk(&p, &table, at));
        assert_eq!(found, [None, Some(101), Some(102), None]);
        assert_eq!(p.frames_in_use(), 3);
    });
    let seen = seen.map(|counter| counter.get());
    println!("walks saw neither, the second, the first, both: {seen:?}");
    assert!(seen.iter().all(|n| *n > 0));
}

/// A CPU fills a buffer and maps it; a device whose walk finds the mapping reads what was filled
/// in.
#[test]
fn a_walk_that_finds_a_mapping_reads_what_was_written_before_it() {
    let seen: [Counter; 2] = Default::default();
    let counters = seen.clone();
    explore("fill, map and walk", None, move || {
        let p = Arc::new(Loom::new(2));
        let table =
            Arc::new(Tables::new(&*p, TableConfig::default()).expect("a frame for the root"));
        // the table is there already: nothing but the leaf orders the two
        install(&p, &table, 1, 101);
        let buffer = Arc::new(Word::new(0));
        let device = {
            let (p, table, buffer) = (p.clone(), table.clone(), buffer.clone());
            loom::thread::spawn(move || {
                walk(&p, &table, 0).map(|to| (to, buffer.load(Ordering::Relaxed)))
            })
        };
        buffer.store(7, Ordering::Relaxed);
        install(&p, &table, 0, 100);
        match device.join().unwrap() {
            None => counters[0].add(),
            found => {
                assert_eq!(found, Some((100, 7)), "the mapping came before the data");
                counters[1].add();
            }
        }
    });
    let seen = seen.map(|counter| counter.get());
    println!("the device found nothing, the data: {seen:?}");
    assert!(seen.iter().all(|n| *n > 0), "both must be seen");
}

/// Maps these pages, from the first one on, for the address API to end.
fn give_up(p: &Loom, table: &Tables, pages: u64) {
    let range = IovaRange::new(IovaPage(0), PageCount(pages));
    let run = core::iter::once(PhysRun::new(PhysPage(100), PageCount(pages)));
    let leaf = LeafAttrs::new(Perm::Read, AllocKind::Dynamic);
    table
        .install(crate::BY, p, range, run, leaf)
        .expect("there are frames");
    table.give_up(crate::BY, p, IovaPage(0));
}

/// The address API: a late unmap of a mapping meets the unmap of that mapping, or of the next one
/// there, which is of another length and begins with the same entry. That one is never refused.
fn a_late_claim(name: &str, before: u64, next: u64) {
    let [late_first, met] = [(); 2].map(|()| Counter::default());
    let counters = (late_first.clone(), met.clone());
    explore(name, Some(4), move || {
        let p = Arc::new(Loom::new(5));
        let table =
            Arc::new(Tables::new(&*p, TableConfig::default()).expect("a frame for the root"));
        let pages = |pages| IovaRange::new(IovaPage(0), PageCount(pages));
        give_up(&p, &table, before);
        let late = {
            let (p, table) = (p.clone(), table.clone());
            on_cpu_1(move || table.claim(crate::BY, &p, pages(before)).is_ok())
        };
        if table.claim(crate::BY, &p, pages(before)).is_ok() {
            table.clear(crate::BY, &p, pages(before), AllocKind::Dynamic, |_| ());
            give_up(&p, &table, next);
            let claimed = table.claim(crate::BY, &p, pages(next));
            assert_eq!(claimed, Ok(AllocKind::Dynamic), "P10: its owner's");
            assert!(!late.join().unwrap(), "P14: it was the next one");
            counters.1.add();
        } else {
            assert!(late.join().unwrap(), "P10: one of two ends it");
            counters.0.add();
        }
    });
    assert!(late_first.get() > 0 && met.get() > 0);
}

#[test]
fn a_late_claim_in_one_table_takes_nothing() {
    a_late_claim("late claim in one table", 2, 3);
}

#[test]
fn a_late_claim_over_two_tables_takes_nothing() {
    a_late_claim("late claim over two tables", 3, 2);
}
