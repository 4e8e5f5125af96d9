// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Threads that hammer one cache, over host memory with canaries.
//!
//! Each page of host memory says which IOVA page it stands for, or that it stands for none. A
//! reader that follows a translation must find the page that it asked for, until its guard has been
//! dropped; the writer lets a page stand for none as soon as its invalidation is acknowledged.

use fastrand::Rng;
use ioatlas_dma::{
    platform::{Ordering, Platform},
    units::*,
};
use ioatlas_host::Host;
use ioatlas_vhost::*;
use std::{
    sync::Arc,
    thread::{self, ScopedJoinHandle},
};

type Word = <Host as Platform>::A64;

const PAGE: u64 = 4096;
const IOVAS: u64 = 96;
const HOSTS: u64 = 160;
const UNOWNED: u64 = u64::MAX;
/// The writer makes at least this many changes, and goes on until each reader has followed as many
/// translations.
const CHANGES: u64 = 1000;

/// Reads until `running` says no, and counts what it found in `found`.
fn read<C: DeviceIotlb>(
    mut reader: C::Reader,
    memory: &[Word],
    running: &Word,
    found: &Word,
    seed: u64,
) {
    let mut random = Rng::with_seed(seed);
    while running.load(Ordering::Relaxed) == 1 {
        let guard = reader.pin();
        for _ in 0..16 {
            let page = random.u64(..IOVAS);
            let len = ByteCount((random.u64(1..=5)) * PAGE);
            for piece in guard.pieces(Iova(page * PAGE), len, Perm::Read) {
                let Ok(piece) = piece else { break };
                for page in 0..piece.len.0 / PAGE {
                    let host = &memory[(piece.host.0 / PAGE + page) as usize];
                    let says = host.load(Ordering::Relaxed);
                    let asked = piece.iova.0 / PAGE + page;
                    assert_eq!(
                        says,
                        asked,
                        "{}: a guard reached another page (P12)",
                        C::NAME
                    );
                    found.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }
}

/// Whether `changes` are not enough yet. A reader that is over has failed.
fn go_on(changes: u64, readers: &[(&Word, ScopedJoinHandle<'_, ()>)]) -> bool {
    if changes.is_multiple_of(64) {
        thread::yield_now(); // readers may have to share this core
    }
    let enough = |found: &Word| found.load(Ordering::Relaxed) >= CHANGES;
    let failed = readers.iter().any(|(_, thread)| thread.is_finished());
    !failed && (changes < CHANGES || !readers.iter().all(|(found, _)| enough(found)))
}

fn write(cache: &impl DeviceIotlb, memory: &[Word], readers: &[(&Word, ScopedJoinHandle<'_, ()>)]) {
    let mut random = Rng::with_seed(9);
    let mut at: Vec<Option<u64>> = vec![None; IOVAS as usize];
    let mut free: Vec<u64> = (0..HOSTS).collect();
    let mut changes = 0;
    while go_on(changes, readers) {
        changes += 1;
        let page = random.u64(..IOVAS);
        let iova = Iova(page * PAGE);
        let Some(host) = at[page as usize].take() else {
            // the page after its neighbour's, if that is free, so that runs grow
            let wanted = page
                .checked_sub(1)
                .and_then(|p| at[p as usize])
                .map(|host| host + 1);
            let place = wanted.and_then(|host| free.iter().position(|f| *f == host));
            let place = place.unwrap_or(random.usize(..free.len()));
            let host = free.swap_remove(place);
            memory[host as usize].store(page, Ordering::Relaxed);
            let perm = [Perm::Read, Perm::ReadWrite][random.usize(..8) / 7];
            let (len, host) = (ByteCount(PAGE), HostAddr(host * PAGE));
            let updated = cache.update(Entry {
                iova,
                len,
                host,
                perm,
            });
            assert_eq!(updated, Ok(Updated::Done));
            at[page as usize] = Some(host.0 / PAGE);
            continue;
        };
        cache.invalidate(iova, ByteCount(PAGE));
        memory[host as usize].store(UNOWNED, Ordering::Relaxed);
        free.push(host);
    }
    cache.audit().unwrap();
}

fn hammer<C: DeviceIotlb>(cache: Arc<C>) {
    let memory: Vec<Word> = (0..HOSTS).map(|_| Word::new(UNOWNED)).collect();
    let running = Word::new(1);
    let found = [Word::new(0), Word::new(0)];
    thread::scope(|scope| {
        let readers = [1, 2].map(|seed| {
            let reader = cache.reader().unwrap();
            let (memory, running, found) = (&memory, &running, &found[seed - 1]);
            let read = move || read::<C>(reader, memory, running, found, seed as u64);
            (found, scope.spawn(read))
        });
        write(&*cache, &memory, &readers);
        running.store(0, Ordering::Relaxed);
    });
}

#[test]
fn radix() {
    hammer(RadixIotlb::new(Limits::default()));
}
#[test]
fn list() {
    hammer(ListIotlb::new(Limits::default()));
}
#[test]
fn interval() {
    hammer(IntervalIotlb::new(Limits::default()));
}
#[test]
fn vm_memory() {
    hammer(VmIotlb::new(Limits::default()));
}

/// As few tables and runs as there may be: what was evicted or refused is missed, never wrong.
#[test]
fn radix_without_room() {
    let limits = Limits::default().runs(24).tables(0);
    let cache = RadixIotlb::new(limits);
    let memory: Vec<Word> = (0..IOVAS).map(Word::new).collect();
    let running = Word::new(1);
    let found = [Word::new(0)];
    thread::scope(|scope| {
        let reader = cache.reader().unwrap();
        let read = || read::<RadixIotlb>(reader, &memory, &running, &found[0], 1);
        let readers = [(&found[0], scope.spawn(read))];
        let mut random = Rng::with_seed(2);
        let mut changes = 0;
        while go_on(changes, &readers) {
            changes += 1;
            let page = random.u64(..IOVAS);
            let perm = [Perm::Read, Perm::ReadWrite][random.usize(..2)];
            let (iova, host, len) = (Iova(page * PAGE), HostAddr(page * PAGE), ByteCount(PAGE));
            // refused where the reader's guard holds all that could be used again
            let _ = cache.update(Entry {
                iova,
                len,
                host,
                perm,
            });
        }
        cache.audit().unwrap();
        running.store(0, Ordering::Relaxed);
        println!("{}", cache.stats());
    });
    assert!(cache.stats().evictions > 0 && cache.stats().runs <= 24);
}
