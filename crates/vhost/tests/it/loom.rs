// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The radix cache under loom: every order of execution with few preemptions, every store that a
//! load may see under the C11 orderings.
//!
//! The tree is the shipped one with tables of two slots, on the core's loom platform, whose fences
//! are full on both sides.
#![deny(unsafe_code)]

#[allow(dead_code)] // more than these models need
#[path = "../../../dma/tests/it/loom/platform.rs"]
mod platform;

use ioatlas_dma::{
    platform::{Atomic64, Authority, Ordering, Platform},
    units::*,
};
use ioatlas_vhost::{
    DeviceIotlb, Entry, Guard, HostAddr, IotlbReader, Limits, LookupError, MissCause, Updated,
    cache::radix::{Radix, RadixReader, Shape, TreeMemory},
};
use platform::{Loom, Word};
use std::sync::{Arc, Mutex, PoisonError};

/// Four runs, or eight tables.
const FRAME_WORDS: usize = 16;
const PAGE: u64 = 4096;

/// Two slots a table, three levels, eight pages.
struct Narrow;

impl Shape for Narrow {
    const BITS: u32 = 1;
    const LEVELS: u32 = 3;
    const FRAME_WORDS: u64 = FRAME_WORDS as u64;
}

impl TreeMemory for Loom {
    fn words(&self, _: Authority) -> &[Word] {
        self.all_words()
    }
    fn take_frame(&self) -> Option<u64> {
        let frame = self.frame_alloc()?.publish();
        Some((frame.page().0 - 1) * FRAME_WORDS as u64)
    }
    // readers fence themselves
    fn heavy_fence(&self) {
        self.fence(Ordering::SeqCst);
    }
    fn light_fence(&self) {
        self.fence(Ordering::SeqCst);
    }
}

type Cache = Radix<Loom, Narrow>;
type Reader = RadixReader<Loom, Narrow>;

/// Counts over executions, unseen by loom; shows that a model reaches what it is about.
#[derive(Clone, Default)]
struct Counter(Arc<Mutex<u64>>);

impl Counter {
    fn add(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }
    fn get(&self) -> u64 {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn explore(name: &str, preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let executions = Counter::default();
    let counted = executions.clone();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(move || {
        counted.add();
        body()
    });
    println!("{name}: {} executions", executions.get());
}

/// A cache whose memory is all there, so that models do not explore how frames are zeroed.
fn cache() -> (Arc<Cache>, Reader) {
    let limits = Limits::default().runs(8).tables(18).readers(1).pins(1);
    // SAFETY: no other code has the platform; and nothing that is looked up here becomes memory.
    #[allow(unsafe_code)]
    let cache = unsafe { Cache::on(Arc::new(Loom::new(7)), limits) };
    put(&cache, 0, 1, 1, Perm::Read);
    put(&cache, 1, 1, 2, Perm::Read);
    cache.clear();
    let reader = cache.reader().expect("the first");
    (cache, reader)
}

/// Pages of one memory are a gigabyte apart from those of another.
fn host(memory: u64, page: u64) -> HostAddr {
    HostAddr((memory << 30) + page * PAGE)
}

fn put(cache: &Cache, page: u64, pages: u64, memory: u64, perm: Perm) {
    let entry = Entry {
        iova: Iova(page * PAGE),
        len: ByteCount(pages * PAGE),
        host: host(memory, page),
        perm,
    };
    assert_eq!(cache.update(entry), Ok(Updated::Done));
}

fn take(cache: &Cache, page: u64) {
    cache.invalidate(Iova(page * PAGE), ByteCount(PAGE));
}

/// Which memory a page is in, and how many pages are contiguous; or why not.
fn find(guard: &impl Guard, page: u64, pages: u64, need: Perm) -> Result<(u64, u64), MissCause> {
    match guard.lookup(Iova(page * PAGE), ByteCount(pages * PAGE), need) {
        Ok(piece) => {
            let memory = piece.host.0 >> 30;
            assert_eq!(
                piece.host,
                host(memory, page),
                "another page's address (P12)"
            );
            Ok((memory, piece.len.0 / PAGE))
        }
        Err(LookupError::Miss(miss)) => Err(miss.cause),
        Err(error) => panic!("{error}"),
    }
}

/// A front end fills a page and sends its translation; a reader that finds it finds
/// what was filled in.
#[test]
fn publish_and_lookup() {
    let seen: [Counter; 2] = Default::default();
    let counters = seen.clone();
    explore("publish and lookup", 4, move || {
        let (cache, mut reader) = cache();
        put(&cache, 2, 1, 1, Perm::Read);
        let data = Arc::new(Word::new(0));
        let other = {
            let data = data.clone();
            loom::thread::spawn(move || {
                let guard = reader.pin();
                let found = find(&guard, 1, 1, Perm::Read);
                let read = data.load(Ordering::Relaxed);
                assert_eq!(find(&guard, 2, 1, Perm::Read), Ok((1, 1)), "(P14)");
                drop(guard);
                (reader, found, read)
            })
        };
        data.store(7, Ordering::Relaxed);
        put(&cache, 1, 1, 2, Perm::Read);
        let (_reader, found, read) = other.join().unwrap();
        match found {
            Ok(found) => {
                assert_eq!(
                    (found, read),
                    ((2, 1), 7),
                    "the translation came before the data"
                );
                counters[1].add();
            }
            Err(cause) => {
                assert_eq!(cause, MissCause::Absent);
                counters[0].add();
            }
        }
        cache.audit().unwrap();
    });
    let seen = seen.map(|counter| counter.get());
    println!("missed, found: {seen:?}");
    assert!(seen.iter().all(|n| *n > 0));
}

/// Once an invalidation is acknowledged the page is reused; a guard that found it must have been
/// over.
#[test]
fn invalidate_and_guard() {
    let seen: [Counter; 2] = Default::default();
    let counters = seen.clone();
    explore("invalidate and guard", 4, move || {
        let (cache, mut reader) = cache();
        put(&cache, 1, 1, 1, Perm::Read);
        let data = Arc::new(Word::new(7));
        let other = {
            let data = data.clone();
            loom::thread::spawn(move || {
                let guard = reader.pin();
                let found = find(&guard, 1, 1, Perm::Read);
                let read = found.map(|_| data.load(Ordering::Relaxed));
                drop(guard);
                (reader, read)
            })
        };
        take(&cache, 1);
        data.store(0, Ordering::Relaxed);
        let (_reader, read) = other.join().unwrap();
        match read {
            Ok(read) => {
                assert_eq!(read, 7, "acknowledged while a guard was held (P12)");
                counters[1].add();
            }
            Err(_) => counters[0].add(),
        }
    });
    let seen = seen.map(|counter| counter.get());
    println!("missed, read: {seen:?}");
    assert!(seen.iter().all(|n| *n > 0));
}

/// The middle page of three becomes writable: no reader ever misses what may be read.
#[test]
fn upgrade() {
    let seen: [Counter; 2] = Default::default();
    let counters = seen.clone();
    explore("upgrade", 3, move || {
        let (cache, mut reader) = cache();
        put(&cache, 0, 3, 1, Perm::Read);
        let other = loom::thread::spawn(move || {
            let guard = reader.pin();
            let written = find(&guard, 1, 1, Perm::Write);
            drop(guard);
            let guard = reader.pin();
            for page in [1, 2] {
                let found = find(&guard, page, 1, Perm::Read);
                assert_eq!(found, Ok((1, 1)), "page {page} was always there (P14)");
            }
            drop(guard);
            (reader, written)
        });
        put(&cache, 1, 1, 1, Perm::ReadWrite);
        let (_reader, written) = other.join().unwrap();
        assert!(
            [Ok((1, 1)), Err(MissCause::Forbidden)].contains(&written),
            "{written:?}"
        );
        counters[usize::from(written.is_ok())].add();
        cache.audit().unwrap();
    });
    let seen = seen.map(|counter| counter.get());
    println!("not writable yet, writable: {seen:?}");
    assert!(seen.iter().all(|n| *n > 0));
}

/// A page fills the gap between two runs, which become one; then it is taken out again, and they
/// are two.
#[test]
fn merge_and_split() {
    let seen: [Counter; 3] = Default::default();
    let counters = seen.clone();
    explore("merge and split", 3, move || {
        let (cache, mut reader) = cache();
        put(&cache, 0, 1, 1, Perm::Read);
        put(&cache, 2, 1, 1, Perm::Read);
        let other = loom::thread::spawn(move || {
            let guard = reader.pin();
            let (memory, pages) = find(&guard, 0, 3, Perm::Read).expect("it stays (P14)");
            assert!(
                memory == 1 && [1, 2, 3].contains(&pages),
                "{pages} pages (P12)"
            );
            assert_eq!(find(&guard, 2, 1, Perm::Read), Ok((1, 1)), "it stays (P14)");
            drop(guard);
            (reader, pages)
        });
        put(&cache, 1, 1, 1, Perm::Read);
        take(&cache, 1);
        let (_reader, pages) = other.join().unwrap();
        counters[pages as usize - 1].add();
        assert_eq!(cache.audit().unwrap().runs, 2);
    });
    let [apart, _, one] = seen.map(|counter| counter.get());
    println!("apart {apart}, one {one}");
    assert!(apart > 0 && one > 0);
}

/// Tables and records come and go under a reader: what it finds is the page's own.
#[test]
fn node_reclaim() {
    let seen: [Counter; 2] = Default::default();
    let counters = seen.clone();
    explore("node reclaim", 3, move || {
        let (cache, mut reader) = cache();
        put(&cache, 0, 1, 1, Perm::Read);
        put(&cache, 1, 1, 2, Perm::Read);
        let other = loom::thread::spawn(move || {
            let guard = reader.pin();
            let found = find(&guard, 1, 1, Perm::Read);
            assert_eq!(find(&guard, 0, 1, Perm::Read), Ok((1, 1)), "it stays (P14)");
            drop(guard);
            (reader, found)
        });
        take(&cache, 1); // the table of the two goes, and the record
        put(&cache, 5, 1, 3, Perm::Read); // both are used again
        let (_reader, found) = other.join().unwrap();
        assert!(
            [Ok((2, 1)), Err(MissCause::Absent)].contains(&found),
            "{found:?} (P12)"
        );
        counters[usize::from(found.is_ok())].add();
        cache.audit().unwrap();
    });
    let seen = seen.map(|counter| counter.get());
    println!("missed, found: {seen:?}");
    assert!(seen.iter().all(|n| *n > 0));
}
