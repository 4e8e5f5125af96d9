// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Several threads at once.

use crate::allocators::rig::*;
use fastrand::Rng;
use ioatlas_dma::iova::*;
use ioatlas_dma::units::*;
use ioatlas_host::register;
use std::sync::Mutex;

pub fn threads_never_get_the_same_page(config: AllocatorConfig) {
    const PAGES: u64 = 1024;
    // slots for the two registered threads of each test that runs at the same time, and more
    let host = host(config, PAGES, 16);
    let rig = Rig::new(host, config, 0, PAGES);
    let owned: Vec<_> = (0..PAGES).map(|_| Mutex::new(false)).collect();
    let mark = |range: IovaRange, now: bool| {
        for page in range.iter() {
            let before = std::mem::replace(&mut *owned[page.0 as usize].lock().unwrap(), now);
            assert_ne!(before, now, "page {page} of {range}");
        }
    };
    let work = |thread: u64| {
        if thread > 0 {
            register(); // thread 0 uses the shared slot
        }
        let mut held = Vec::new();
        let mut random = Rng::with_seed(thread);
        for _ in 0..3000 {
            let got = match random.u8(..64) {
                0 => {
                    rig.drain();
                    None
                }
                1..4 => rig.reserve(random.u64(..PAGES), random.u64(1..=6)).ok(),
                4..34 => rig.alloc(1 << random.u8(..7)).ok(),
                _ if held.is_empty() => None,
                _ => {
                    let alloc: IovaAlloc = held.swap_remove(random.usize(..held.len()));
                    mark(alloc.range(), false);
                    rig.free(random.usize(..CPUS), alloc);
                    None
                }
            };
            got.inspect(|alloc| mark(alloc.range(), true))
                .into_iter()
                .for_each(|alloc| held.push(alloc));
        }
        for alloc in held {
            mark(alloc.range(), false);
            rig.free(thread as usize, alloc);
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|thread| scope.spawn(move || work(thread)))
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    });
    rig.check(0);
    rig.drain();
    rig.check(0);
    // blocks of 8 to 64 pages: what overlapped a range while that was reserved is parked, for good
    let parked = match &rig.allocator {
        AnyAllocator::Kmalloc(kmalloc) => kmalloc.parked(),
        _ => 0,
    };
    let lost = PAGES - rig.usage().free.0;
    assert!(
        (8 * parked..=64 * parked).contains(&lost),
        "{lost} pages are missing, {parked} blocks are parked: {rig}"
    );
}
