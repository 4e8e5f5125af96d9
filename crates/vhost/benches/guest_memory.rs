// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the guest-memory adapter costs: 8 bytes read at random places by `vm_memory::Bytes`, as
//! device code does, from vm-memory's own guest memory by guest-physical address, and from ours by
//! IOVA. The cache's lookup alone stands beside it: what ours takes beyond that is the guest-memory
//! adapter's.
//!
//! Contenders take turns; medians of slices, in nanoseconds of the thread's own CPU time.

#[path = "iotlb/time.rs"]
#[allow(dead_code)] // the other benchmark uses all of it
mod time;

use fastrand::Rng;
use ioatlas_dma::units::*;
use ioatlas_vhost::{
    DeviceIotlb, Entry, Guard, HostAddr, IotlbReader, Limits, RadixIotlb,
    guest_memory::{IovaMemory, Patience},
    protocol::misses::MissChannel,
};
use std::{hint::black_box, sync::Arc};
use time::{Contender, contest};
use vm_memory::{Bytes, GuestAddress, GuestMemory, GuestMemoryBackend, GuestMemoryMmap};

/// Reads of one burst.
const PER_GUARD: usize = 32;

fn main() {
    println!(
        "{:<34} {:>12} {:>12} {:>12} {:>12} {:>8}",
        "ns a read of 8 bytes", "mmap", "lookup", "guest-memory", "guest-memory-lookup", "ratio"
    );
    for (what, pages, lie) in [
        ("1 page", 1, Lie::OneRun),
        ("4,096 pages, one run", 4096, Lie::OneRun),
        ("64 pages, each a run", 64, Lie::Scattered),
        ("2,048 pages, each a run", 2048, Lie::Scattered),
    ] {
        row(what, pages, lie);
    }
    println!("mmap: GuestMemoryMmap of vm-memory 0.18, one region. ratio: guest-memory to mmap.");
}

/// How a guest's IOVAs lie in memory.
#[derive(Clone, Copy)]
enum Lie {
    OneRun,
    Scattered,
}

fn row(what: &str, pages: u64, lie: Lie) {
    let memory =
        GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), (pages * GRANULE) as usize)]);
    let memory = memory.expect("memory");
    let host = memory
        .get_host_address(GuestAddress(0))
        .expect("its first byte");
    let cache = RadixIotlb::new(Limits::default());
    // Backwards, neighbours as IOVAs are none in memory, so nothing merges.
    let iova_of = |page: u64| match lie {
        Lie::Scattered => (pages - 1 - page) * GRANULE,
        Lie::OneRun => page * GRANULE,
    };
    for page in 0..pages {
        let entry = Entry {
            iova: Iova(iova_of(page)),
            len: ByteCount(GRANULE),
            host: HostAddr(host as usize as u64 + page * GRANULE),
            perm: Perm::ReadWrite,
        };
        assert!(cache.update(entry).is_ok());
    }
    // SAFETY: the cache names what is mapped above, which stays mapped until the end of this
    // function; no code has references into it.
    let mut guest = unsafe {
        let reader = cache.reader().expect("few readers");
        IovaMemory::new(reader, Arc::<MissChannel>::default(), Patience::default())
    };
    let mut reader = cache.reader().expect("few readers");
    let places = |mut random: Rng| move || random.u64(..pages) * GRANULE + random.u64(..512) * 8;

    let (mut a, mut b, mut c) = (
        places(Rng::with_seed(1)),
        places(Rng::with_seed(1)),
        places(Rng::with_seed(1)),
    );
    let mmap: Contender<'_> = Box::new(|ops| {
        for _ in 0..ops {
            black_box(read(&memory, a()));
        }
    });
    let lookup: Contender<'_> = Box::new(|ops| {
        for _ in 0..ops.div_ceil(PER_GUARD) {
            let guard = reader.pin();
            for _ in 0..PER_GUARD {
                let (at, len) = (Iova(b()), ByteCount(8));
                black_box(guard.lookup(at, len, Perm::Read)).expect("translated");
            }
        }
    });
    let translated: Contender<'_> = Box::new(|ops| {
        for _ in 0..ops.div_ceil(PER_GUARD) {
            let guard = guest.pin();
            for _ in 0..PER_GUARD {
                black_box(read(&guard, c()));
            }
        }
    });
    let [mmap, lookup, translated] =
        contest([mmap, lookup, translated].map(Some)).map(|ns| ns.expect("measured"));
    println!(
        "{what:<34} {mmap:>12.1} {lookup:>12.1} {translated:>12.1} {:>12.1} {:>8.2}",
        translated - lookup,
        translated / mmap
    );
}

fn read(memory: &impl GuestMemory, at: u64) -> u64 {
    memory.read_obj(GuestAddress(at)).expect("mapped")
}
