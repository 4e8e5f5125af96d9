// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Lookups.

use crate::{
    row,
    time::{Contender, contest, contest_warm},
};
use fastrand::Rng;
use ioatlas_dma::units::*;
use ioatlas_vhost::*;
use std::{hint::black_box, sync::Arc, sync::RwLock};
use vm_memory::{GuestAddress, Permissions, iommu::Iotlb};

pub const PAGE: u64 = 4096;
/// Lookups of a burst.
const PER_GUARD: usize = 32;
/// What a request is long, bytes.
const REQUEST: u64 = 64;

pub fn limits() -> Limits {
    Limits::default().runs(1 << 17).tables(1 << 17)
}

/// Entries in random order; those of 4 KiB lie at every second page of the host, so none can be
/// merged.
pub fn entries(pages: &[u64], random: &mut Rng) -> Vec<Entry> {
    let mut hosts: Vec<u64> = (0..pages.len() as u64)
        .map(|n| 0x7f00_0000_0000 + n * 2 * PAGE)
        .collect();
    random.shuffle(&mut hosts);
    let mut entries: Vec<Entry> = pages
        .iter()
        .zip(hosts)
        .map(|(page, host)| Entry {
            iova: Iova(page * PAGE),
            len: ByteCount(PAGE),
            host: HostAddr(host),
            perm: Perm::ReadWrite,
        })
        .collect();
    random.shuffle(&mut entries);
    entries
}

pub fn filled<C: DeviceIotlb>(cache: Arc<C>, entries: &[Entry]) -> Arc<C> {
    for entry in entries {
        assert_eq!(cache.update(*entry), Ok(Updated::Done));
    }
    cache
}

pub fn bare(entries: &[Entry]) -> Iotlb {
    let mut tlb = Iotlb::new();
    for e in entries {
        let (from, to) = (GuestAddress(e.iova.0), GuestAddress(e.host.0));
        tlb.set_mapping(from, to, e.len.0 as usize, Permissions::ReadWrite)
            .unwrap();
    }
    tlb
}

/// Random addresses in the entries.
fn keys(entries: &[Entry], random: &mut Rng) -> Vec<u64> {
    let count = (entries.len() * 4).clamp(1 << 12, 1 << 20);
    let key = |random: &mut Rng| {
        let entry = &entries[random.usize(..entries.len())];
        entry.iova.0 + random.u64(..entry.len.0 - REQUEST)
    };
    (0..count).map(|_| key(random)).collect()
}

/// Looks up `ops` keys, in bursts; a sum that keeps the compiler from leaving it out.
pub fn look<R: IotlbReader>(reader: &mut R, keys: &[u64], from: &mut usize, ops: usize) -> u64 {
    let mut sum = 0u64;
    let mut done = 0;
    while done < ops {
        if *from + PER_GUARD > keys.len() {
            *from = 0;
        }
        let guard = reader.pin();
        for key in &keys[*from..*from + PER_GUARD] {
            match guard.lookup(Iova(*key), ByteCount(REQUEST), Perm::Read) {
                Ok(piece) => sum = sum.wrapping_add(piece.host.0),
                Err(error) => panic!("{error}"),
            }
        }
        *from += PER_GUARD;
        done += PER_GUARD;
    }
    sum
}

/// The same, where each address depends on what was found before: latency, not rate.
fn chase<R: IotlbReader>(reader: &mut R, keys: &[u64], from: &mut usize, ops: usize) -> u64 {
    let nothing = black_box(0u64);
    let (mut last, mut done) = (0u64, 0);
    while done < ops {
        if *from + PER_GUARD > keys.len() {
            *from = 0;
        }
        let guard = reader.pin();
        for key in &keys[*from..*from + PER_GUARD] {
            let iova = Iova(*key + (last & nothing));
            match guard.lookup(iova, ByteCount(REQUEST), Perm::Read) {
                Ok(piece) => last = piece.host.0,
                Err(error) => panic!("{error}"),
            }
        }
        *from += PER_GUARD;
        done += PER_GUARD;
    }
    last
}

fn contender<'c, C: DeviceIotlb>(cache: Arc<C>, keys: &'c [u64], chased: Chased) -> Contender<'c> {
    let mut reader = cache.reader().expect("few");
    let mut from = 0;
    Box::new(move |ops| {
        black_box(match chased {
            Chased::No => look(&mut reader, keys, &mut from, ops),
            Chased::Yes => chase(&mut reader, keys, &mut from, ops),
        });
    })
}

#[derive(Clone, Copy, PartialEq)]
enum Chased {
    No,
    Yes,
}

/// vm-memory as its only example uses it: a lock for each access.
fn bare_contender<'c>(tlb: Iotlb, keys: &'c [u64]) -> Contender<'c> {
    let tlb = RwLock::new(tlb);
    let mut from = 0;
    Box::new(move |ops| {
        let mut sum = 0u64;
        for _ in 0..ops {
            from = if from == keys.len() { 0 } else { from };
            let guard = tlb.read().unwrap();
            let at = GuestAddress(keys[from]);
            let found = Iotlb::lookup(guard, at, REQUEST as usize, Permissions::Read);
            let piece = found.expect("it is there").next();
            sum = sum.wrapping_add(piece.expect("one piece").base.0);
            from += 1;
        }
        black_box(sum);
    })
}

fn lookups(what: &str, entries: &[Entry], chased: Chased) {
    lookups_warm(what, entries, chased, 0)
}

fn lookups_warm(what: &str, entries: &[Entry], chased: Chased, warm_up: usize) {
    let mut random = Rng::with_seed(7);
    let keys = keys(entries, &mut random);
    let listed = entries.len() <= 2048;
    let contenders = [
        listed.then(|| contender(filled(ListIotlb::new(limits()), entries), &keys, chased)),
        Some(contender(
            filled(IntervalIotlb::new(limits()), entries),
            &keys,
            chased,
        )),
        Some(contender(
            filled(VmIotlb::new(limits()), entries),
            &keys,
            chased,
        )),
        (chased == Chased::No).then(|| bare_contender(bare(entries), &keys)),
        Some(contender(
            filled(RadixIotlb::new(limits()), entries),
            &keys,
            chased,
        )),
    ];
    let figures = contest_warm(contenders, warm_up);
    row(what, figures);
}

pub fn dense(count: u64) -> Vec<Entry> {
    let pages: Vec<u64> = (0..count).map(|n| 0x10_0000 + n).collect();
    entries(&pages, &mut Rng::with_seed(count))
}

pub fn table() {
    let few = dense(2048);
    for count in [1, 64, 2048] {
        let what = format!("lookup, {count} entries");
        lookups(&what, &dense(count), Chased::No);
    }
    let dense = dense(100_000);
    let mut random = Rng::with_seed(48);
    let mut pages: Vec<u64> = (0..100_000).map(|_| random.u64(..1 << 36)).collect();
    pages.sort();
    pages.dedup();
    let scattered = entries(&pages, &mut random);
    for (what, entries) in [("dense", &dense), ("over 48 bits", &scattered)] {
        let name = format!("lookup, 100,000 entries, {what}");
        lookups_warm(&name, entries, Chased::No, 2 * entries.len());
        let name = "  others' data in the CPU's caches before";
        lookups(name, entries, Chased::No);
    }
    lookups("latency of a lookup, 2,048 entries", &few, Chased::Yes);
    long();
    for (what, entries) in [("dense", dense), ("over 48 bits", scattered)] {
        let cache = filled(RadixIotlb::new(limits()), &entries);
        let census = cache.audit().expect("sound");
        let each = census.bytes as f64 / census.runs as f64;
        println!(
            "memory of the radix cache, {} entries {what}: {each:.1} bytes an entry",
            census.runs
        );
    }
}

/// 64 KiB over 16 updates of 4 KiB, contiguous: all pieces of it, against 64 bytes of the same
/// cache.
fn long() {
    const GROUPS: u64 = 128;
    let mut random = Rng::with_seed(16);
    let mut updates: Vec<Entry> = (0..GROUPS * 16)
        .map(|n| Entry {
            iova: Iova((0x10_0000 + n + n / 16) * PAGE),
            len: ByteCount(PAGE),
            host: HostAddr(0x7f00_0000_0000 + (n + n / 16 * 3) * PAGE),
            perm: Perm::ReadWrite,
        })
        .collect();
    random.shuffle(&mut updates);
    let groups: Vec<u64> = (0..1 << 12)
        .map(|_| (0x10_0000 + random.u64(..GROUPS) * 17) * PAGE)
        .collect();
    fn all<'c, C: DeviceIotlb>(cache: Arc<C>, groups: &'c [u64], len: u64) -> Contender<'c> {
        let mut reader = cache.reader().expect("few");
        let mut from = 0;
        Box::new(move |ops| {
            let (mut sum, mut done) = (0u64, 0);
            while done < ops {
                let guard = reader.pin();
                for group in &groups[from..from + PER_GUARD] {
                    for piece in guard.pieces(Iova(*group), ByteCount(len), Perm::Read) {
                        sum = sum.wrapping_add(piece.expect("it is there").host.0);
                    }
                }
                from = (from + PER_GUARD) % groups.len();
                done += PER_GUARD;
            }
            black_box(sum);
        })
    }
    let list = filled(ListIotlb::new(limits()), &updates);
    let interval = filled(IntervalIotlb::new(limits()), &updates);
    let vm = filled(VmIotlb::new(limits()), &updates);
    let radix = filled(RadixIotlb::new(limits()), &updates);
    let figures = contest([
        Some(all(list, &groups, 16 * PAGE)),
        Some(all(interval, &groups, 16 * PAGE)),
        Some(all(vm, &groups, 16 * PAGE)),
        Some(all(radix.clone(), &groups, 16 * PAGE)),
        Some(all(radix, &groups, REQUEST)),
    ]);
    let [list, interval, vm, long, short] = figures;
    let what = "64 KiB over 16 updates of 4 KiB, 128 of those";
    row(what, [list, interval, vm, None, long]);
    row("  64 bytes of the same", [None, None, None, None, short]);
}
