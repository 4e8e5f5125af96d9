// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Memory, eviction and storms.

use ioatlas_dma::units::*;
use ioatlas_vhost::*;
use std::sync::Arc;

const PAGE: u64 = 4096;

fn limits(runs: u32) -> Limits {
    Limits::default().runs(runs).tables(1 << 16)
}

fn put(cache: &impl DeviceIotlb, page: u64, pages: u64, host: u64) {
    let entry = Entry {
        iova: Iova(page * PAGE),
        len: ByteCount(pages * PAGE),
        host: HostAddr(host * PAGE),
        perm: Perm::ReadWrite,
    };
    assert_eq!(cache.update(entry), Ok(Updated::Done));
}

fn hits<C: DeviceIotlb>(reader: &mut C::Reader, page: u64) -> bool {
    let guard = reader.pin();
    guard
        .lookup(Iova(page * PAGE), ByteCount(8), Perm::Read)
        .is_ok()
}

#[test]
fn dense_entries_take_at_most_64_bytes_each() {
    let cache = RadixIotlb::new(limits(1 << 15));
    for page in 0..20_000 {
        put(&*cache, page, 1, page * 2);
    }
    let census = cache.audit().unwrap();
    println!("{census}");
    assert_eq!(census.runs, 20_000);
    assert!(census.bytes <= 64 * census.runs, "{census}");
}

/// The bound that the module states: a run, its share of lists, and a table for each place where
/// runs part.
#[test]
fn entries_over_48_bits_take_what_is_stated() {
    let cache = RadixIotlb::new(limits(1 << 15));
    let mut random = fastrand::Rng::with_seed(1);
    for n in 0..20_000 {
        put(&*cache, random.u64(..1 << 36), 1, n * 2);
    }
    let census = cache.audit().unwrap();
    println!("{census}");
    assert!(census.bytes <= 600 * census.runs, "{census}");
}

#[test]
fn whole_memory_takes_no_table_and_its_holes_few() {
    let cache = RadixIotlb::new(limits(64));
    let mut reader = cache.reader().unwrap();
    let empty = cache.audit().unwrap().bytes;
    let pages = 1 << 28; // 1 TiB
    put(&*cache, 1 << 28, pages, 1 << 34);
    let census = cache.audit().unwrap();
    assert_eq!((census.runs, census.pages), (1, pages));
    assert!(
        census.bytes <= empty + 64,
        "a record, and its place in a list"
    );
    cache.invalidate(Iova(((1 << 28) + 77_777) * PAGE), ByteCount(PAGE));
    let census = cache.audit().unwrap();
    println!("{census}");
    assert_eq!((census.runs, census.pages), (2, pages - 1));
    assert!(census.bytes <= empty + 10 * 4096);
    assert!(!hits::<RadixIotlb>(&mut reader, (1 << 28) + 77_777));
    assert!(hits::<RadixIotlb>(&mut reader, (1 << 28) + 77_778));
    put(&*cache, (1 << 28) + 77_777, 1, (1 << 34) + 77_777);
    let guard = reader.pin();
    let whole = guard.lookup(Iova(PAGE << 28), ByteCount(pages * PAGE), Perm::Write);
    assert_eq!(whole.unwrap().len, ByteCount(pages * PAGE), "merged again");
}

/// A guest that touches new pages without end: rings stay, and long runs of static mappings nearly
/// all do.
fn storm<C: DeviceIotlb>(cache: Arc<C>) {
    let mut reader = cache.reader().unwrap();
    let ring = (7, 3);
    cache
        .pin(Iova(ring.0 * PAGE), ByteCount(ring.1 * PAGE))
        .unwrap();
    put(&*cache, ring.0, ring.1, 1000);
    for run in 0..8 {
        put(&*cache, (run + 1) * 1024, 512, (run + 1) * 4096);
    }
    for page in 0..5000u64 {
        put(&*cache, (1 << 20) + page * 3, 1, (1 << 20) + page * 2);
        let rings = (0..ring.1).all(|page| hits::<C>(&mut reader, ring.0 + page));
        assert!(rings, "{}: a ring was evicted (P12)", C::NAME);
    }
    let left = (0..8)
        .filter(|run| hits::<C>(&mut reader, (run + 1) * 1024))
        .count();
    println!("{}: {left} of 8 long runs left; {}", C::NAME, cache.stats());
    assert!(left >= 6, "{}: {left} of 8 long runs left", C::NAME);
    assert!(cache.audit().unwrap().runs <= 64);
}

#[test]
fn storms() {
    storm(RadixIotlb::new(limits(64)));
    storm(ListIotlb::new(limits(64)));
    storm(IntervalIotlb::new(limits(64)));
    storm(VmIotlb::new(limits(64)));
}

/// Of neighbours that are alike each goes as often as the others: where the first of a table went
/// each time, a guest would have only to use that page to have it thrown out.
#[test]
fn eviction_is_even_among_neighbours() {
    use std::sync::Mutex;
    const PAGES: u64 = 64;
    const ROUNDS: u64 = 3000;
    let cache = RadixIotlb::new(limits(PAGES as u32));
    let gone: Arc<Mutex<Vec<u64>>> = Arc::default();
    let hook = gone.clone();
    cache.on_remove(Box::new(move |removed| {
        if removed.cause == RemovalCause::Evicted {
            hook.lock().unwrap().push(removed.iova.0 / PAGE);
        }
    }));
    // Side by side in one table, and never one run: one more than there is room for, so that each
    // that comes back throws another out.
    let fill = |page: u64| put(&*cache, page, 1, page * 2);
    (0..PAGES).for_each(fill);
    let mut missing = std::mem::take(&mut *gone.lock().unwrap());
    let mut times = [0u64; PAGES as usize];
    for _ in 0..ROUNDS {
        fill(missing.pop().expect("one has no room"));
        for page in gone.lock().unwrap().drain(..) {
            times[page as usize] += 1;
            missing.push(page);
        }
    }
    let even = ROUNDS / PAGES;
    let (least, most) = (times.iter().min().unwrap(), times.iter().max().unwrap());
    assert!(even / 4 < *least && *most < even * 4, "{times:?}");
}

/// A working set a tenth larger than the cache, touched in order: no cliff, as oldest-first
/// eviction would have.
#[test]
fn a_working_set_that_is_a_little_too_large_mostly_hits() {
    let cache = RadixIotlb::new(limits(64));
    let mut reader = cache.reader().unwrap();
    let (mut hit, mut all) = (0, 0);
    for round in 0..100 {
        for page in 0..70 {
            let found = hits::<RadixIotlb>(&mut reader, page * 2);
            if !found {
                put(&*cache, page * 2, 1, page * 4);
            }
            if round > 10 {
                all += 1;
                hit += u32::from(found);
            }
        }
    }
    println!("{hit} of {all} hit");
    assert!(hit * 2 > all, "{hit} of {all} hit");
}

#[test]
fn what_is_pinned_whole_cannot_be_evicted_and_says_so() {
    let cache = RadixIotlb::new(limits(4));
    cache.pin(Iova(0), ByteCount(64 * PAGE)).unwrap();
    for page in 0..3 {
        put(&*cache, page * 2, 1, page * 4);
    }
    let entry = Entry {
        iova: Iova(32 * PAGE),
        len: ByteCount(PAGE),
        host: HostAddr(0),
        perm: Perm::Read,
    };
    assert!(matches!(
        cache.update(entry),
        Err(UpdateError::NoRoom { .. })
    ));
    cache.unpin(Iova(0), ByteCount(64 * PAGE));
    assert_eq!(cache.update(entry), Ok(Updated::Done));
    assert_eq!(cache.stats().evictions, 1);
}

/// Limits below what one update needs count as just that.
#[test]
fn the_smallest_cache_takes_updates_too() {
    fn takes<C: DeviceIotlb>(cache: Arc<C>) {
        let mut reader = cache.reader().unwrap();
        for page in 0..10 {
            put(&*cache, page * 7, 1, page);
            assert!(hits::<C>(&mut reader, page * 7), "{}", C::NAME);
            assert!(cache.audit().unwrap().runs <= 2, "{}", C::NAME);
        }
    }
    for runs in [0, 1, 2] {
        takes(RadixIotlb::new(limits(runs)));
        takes(ListIotlb::new(limits(runs)));
        takes(IntervalIotlb::new(limits(runs)));
        takes(VmIotlb::new(limits(runs)));
    }
}

/// Every run that a cache has is replaced by one update, or all but one that is pinned: there is
/// room, since they go.
fn replaces_all<C: DeviceIotlb>(cache: Arc<C>) {
    let mut reader = cache.reader().unwrap();
    cache.pin(Iova(0), ByteCount(PAGE)).unwrap();
    put(&*cache, 0, 1, 7);
    for round in 0..3 {
        for page in 1..63 {
            put(&*cache, 8 + page * 2, 1, 1000 * (round + 1) + page);
        }
        let evicted = cache.stats().evictions;
        let before = cache.audit().unwrap().runs;
        assert_eq!(before, 63, "{}", C::NAME);
        put(&*cache, 8, 200, 1 << 20);
        assert_eq!(cache.stats().evictions, evicted, "{}", C::NAME);
        let census = cache.audit().unwrap();
        assert_eq!((census.runs, census.pages), (2, 201), "{}", C::NAME);
        let guard = reader.pin();
        let whole = guard.lookup(Iova(8 * PAGE), ByteCount(200 * PAGE), Perm::Write);
        assert_eq!(whole.unwrap().len, ByteCount(200 * PAGE), "{}", C::NAME);
        drop(guard);
        assert!(hits::<C>(&mut reader, 0), "{}: pinned", C::NAME);
        cache.invalidate(Iova(8 * PAGE), ByteCount(200 * PAGE));
    }
}

#[test]
fn an_update_that_replaces_all_runs_of_a_full_cache_is_taken() {
    replaces_all(RadixIotlb::new(limits(64)));
    replaces_all(ListIotlb::new(limits(64)));
    replaces_all(IntervalIotlb::new(limits(64)));
    replaces_all(VmIotlb::new(limits(64)));
}

/// The same where it is tables that are full: far from each other, pages need some each.
#[test]
fn an_update_that_replaces_all_tables_of_a_full_cache_is_taken() {
    // below what one update may need, which counts as twice that: 54
    let cache = RadixIotlb::new(limits(1 << 12).tables(1));
    let pages = 1 << 30;
    let mut evicted = 0;
    for round in 1..4u64 {
        // pairs of neighbours: two tables for each
        for pair in 0..64 {
            for page in 0..2 {
                put(
                    &*cache,
                    (pair << 24) + page,
                    1,
                    (round * 1000 + pair) * 7 + page * 3,
                );
            }
        }
        let before = cache.stats().evictions;
        assert!(before > evicted, "not full");
        put(&*cache, 0, pages, round << 31);
        evicted = cache.stats().evictions;
        assert_eq!(evicted, before);
        let census = cache.audit().unwrap();
        assert_eq!((census.runs, census.pages), (1, pages));
        cache.clear();
    }
}

/// Half of one run is inside, half of another one, and between them nothing: no run goes, so there
/// is no room where nothing else may go.
fn refused_where_nothing_goes<C: DeviceIotlb>(cache: Arc<C>) {
    let mut reader = cache.reader().unwrap();
    for (page, host) in [(0, 100), (10, 200), (20, 300)] {
        put(&*cache, page, 4, host);
        cache.pin(Iova(page * PAGE), ByteCount(4 * PAGE)).unwrap();
    }
    let entry = Entry {
        iova: Iova(2 * PAGE),
        len: ByteCount(9 * PAGE),
        host: HostAddr(1 << 30),
        perm: Perm::Read,
    };
    let refused = cache.update(entry);
    assert!(
        matches!(refused, Err(UpdateError::NoRoom { .. })),
        "{}: {refused:?}",
        C::NAME
    );
    let census = cache.audit().unwrap();
    assert_eq!((census.runs, census.pages), (3, 12), "{}", C::NAME);
    assert!(hits::<C>(&mut reader, 3), "{}: it is as it was", C::NAME);
}

#[test]
fn an_update_without_room_changes_nothing() {
    refused_where_nothing_goes(RadixIotlb::new(limits(4)));
    refused_where_nothing_goes(ListIotlb::new(limits(4)));
    refused_where_nothing_goes(IntervalIotlb::new(limits(4)));
    refused_where_nothing_goes(VmIotlb::new(limits(4)));
}
