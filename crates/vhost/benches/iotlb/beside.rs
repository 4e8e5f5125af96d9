// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Readers together, and readers beside a writer.

use crate::{
    lookup::{dense, entries, filled, limits, look},
    time::{SLICES, cpu_ns},
};
use fastrand::Rng;
use ioatlas_dma::units::*;
use ioatlas_present::median;
use ioatlas_vhost::*;
use std::{
    hint::black_box,
    sync::{
        Arc, Barrier,
        mpsc::{Receiver, TryRecvError, channel},
    },
    thread,
    time::{Duration, Instant},
};

/// Lookups of a slice.
const OPS: usize = 1 << 17;

pub fn table() {
    together();
    for (name, batch) in [("64 acknowledged at a time", 64), ("each acknowledged", 1)] {
        beside_a_writer("radix", RadixIotlb::new(limits()), name, batch);
    }
    beside_a_writer(
        "interval",
        IntervalIotlb::new(limits()),
        "64 acknowledged at a time",
        64,
    );
    beside_a_writer(
        "vm-memory",
        VmIotlb::new(limits()),
        "64 acknowledged at a time",
        64,
    );
    beside_a_writer(
        "list",
        ListIotlb::new(limits()),
        "64 acknowledged at a time",
        64,
    );
}

fn keys(entries: &[Entry]) -> Vec<u64> {
    let mut random = Rng::with_seed(11);
    let key = |random: &mut Rng| entries[random.usize(..entries.len())].iova.0 + random.u64(..4000);
    (0..1 << 13).map(|_| key(&mut random)).collect()
}

/// Two readers of one cache, and two of a cache each: slices in turns, both threads in each at the
/// same time.
fn together() {
    let entries = dense(2048);
    let keys = keys(&entries);
    let shared = filled(RadixIotlb::new(limits()), &entries);
    let barrier = Barrier::new(2);
    let thread_of = || {
        let own = filled(RadixIotlb::new(limits()), &entries);
        let mut readers = [shared.reader().expect("few"), own.reader().expect("few")];
        let mut slices = [Vec::new(), Vec::new()];
        let mut from = 0;
        for _ in 0..SLICES {
            for (reader, slices) in readers.iter_mut().zip(&mut slices) {
                barrier.wait();
                let start = cpu_ns();
                black_box(look(reader, &keys, &mut from, OPS));
                slices.push((cpu_ns() - start) / OPS as f64);
            }
        }
        slices
    };
    let [shared, own] = thread::scope(|scope| {
        let other = scope.spawn(thread_of);
        let mine = thread_of();
        let [mut shared, mut own] = other.join().expect("it only measures");
        let [more, also] = mine;
        shared.extend(more);
        own.extend(also);
        [shared, own].map(|slices| median(slices).expect("slices"))
    });
    println!(
        "two readers of one cache {shared:.1} ns, of a cache each {own:.1} ns: {:.2} of the control's scaling",
        own / shared
    );
}

/// Makes 200,000 updates a second until it is told to stop; says how many it made a second.
fn write<C: DeviceIotlb>(cache: &C, entries: &[Entry], batch: usize, stop: &Receiver<()>) -> f64 {
    const PER_MS: u32 = 200;
    let start = Instant::now();
    let mut random = Rng::with_seed(5);
    let mut made = 0u32;
    let mut in_cache = vec![true; entries.len()];
    loop {
        while f64::from(made) < start.elapsed().as_secs_f64() * f64::from(PER_MS) * 1e3 {
            let at = random.usize(..entries.len());
            let entry = &entries[at];
            in_cache[at] = match in_cache[at] {
                true => {
                    let started = cache.start_invalidate(entry.iova, entry.len);
                    if (made as usize).is_multiple_of(batch) {
                        cache.wait(started);
                    }
                    false
                }
                false => cache.update(*entry) == Ok(Updated::Done),
            };
            made += 1;
        }
        if !matches!(stop.try_recv(), Err(TryRecvError::Empty)) {
            return f64::from(made) / start.elapsed().as_secs_f64();
        }
        std::hint::spin_loop();
    }
}

/// A reader of 64 entries, with and without a writer of 64 others, slices in turns.
fn beside_a_writer<C: DeviceIotlb>(what: &str, cache: Arc<C>, how: &str, batch: usize) {
    let pages: Vec<u64> = (0..128).collect();
    let all = entries(&pages, &mut Rng::with_seed(64));
    let (mine, theirs): (Vec<Entry>, Vec<Entry>) =
        all.iter().partition(|e| e.iova.0 >> GRANULE_LG2 & 1 == 0);
    let cache = filled(cache, &all);
    let keys = keys(&mine);
    let mut reader = cache.reader().expect("few");
    let (mut idle, mut busy, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    let mut from = 0;
    let mut slice = |reader: &mut C::Reader| {
        let start = cpu_ns();
        black_box(look(reader, &keys, &mut from, OPS));
        (cpu_ns() - start) / OPS as f64
    };
    for _ in 0..SLICES {
        idle.push(slice(&mut reader));
        let (stop, stopped) = channel();
        let rate = thread::scope(|scope| {
            let (cache, theirs) = (&*cache, &theirs);
            let writer = scope.spawn(move || write(cache, theirs, batch, &stopped));
            let end = Instant::now() + Duration::from_millis(8);
            while Instant::now() < end {
                busy.push(slice(&mut reader));
            }
            stop.send(()).expect("it listens");
            writer.join().expect("it only writes")
        });
        rates.push(rate);
    }
    let [idle, busy, rate] = [idle, busy, rates].map(|slices| median(slices).expect("slices"));
    println!(
        "{what}: reader beside {:.0} updates/s, {how}: {busy:.1} ns, idle {idle:.1}: {:.2} times",
        rate,
        busy / idle
    );
}
