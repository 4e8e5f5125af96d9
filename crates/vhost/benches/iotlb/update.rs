// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Insertions and removals.

use crate::{
    lookup::{bare, dense, filled, limits},
    row,
    time::{Contender, contest},
};
use fastrand::Rng;
use ioatlas_vhost::*;
use std::sync::{Arc, RwLock};
use vm_memory::{GuestAddress, Permissions};

/// When an invalidation is waited for.
#[derive(Clone, Copy, PartialEq)]
enum Acked {
    /// There is no reader to wait for.
    NoReader,
    /// There is one: 64 at a time.
    Batch,
    /// There is one: each.
    Each,
}

fn pairs<'c, C: DeviceIotlb>(cache: Arc<C>, entries: &'c [Entry], acked: Acked) -> Contender<'c> {
    let reader = (acked != Acked::NoReader).then(|| cache.reader().expect("few"));
    let mut random = Rng::with_seed(3);
    let mut count = 0;
    Box::new(move |ops| {
        let _reader = &reader;
        for _ in 0..ops {
            let entry = &entries[random.usize(..entries.len())];
            let started = cache.start_invalidate(entry.iova, entry.len);
            count += 1;
            if acked == Acked::Each || (acked == Acked::Batch && count % 64 == 0) {
                cache.wait(started);
            }
            while cache.update(*entry) != Ok(Updated::Done) {
                cache.wait(started); // the update met its own invalidation
            }
        }
    })
}

fn bare_pairs(entries: &[Entry]) -> Contender<'_> {
    let tlb = RwLock::new(bare(entries));
    let mut random = Rng::with_seed(3);
    Box::new(move |ops| {
        for _ in 0..ops {
            let e = &entries[random.usize(..entries.len())];
            let (from, to) = (GuestAddress(e.iova.0), GuestAddress(e.host.0));
            let len = e.len.0 as usize;
            tlb.write().unwrap().invalidate_mapping(from, len);
            let set = tlb
                .write()
                .unwrap()
                .set_mapping(from, to, len, Permissions::ReadWrite);
            set.unwrap();
        }
    })
}

pub fn table() {
    let entries = dense(2047);
    let figures = |acked| {
        contest([
            Some(pairs(
                filled(ListIotlb::new(limits()), &entries),
                &entries,
                acked,
            )),
            Some(pairs(
                filled(IntervalIotlb::new(limits()), &entries),
                &entries,
                acked,
            )),
            Some(pairs(
                filled(VmIotlb::new(limits()), &entries),
                &entries,
                acked,
            )),
            (acked == Acked::NoReader).then(|| bare_pairs(&entries)),
            Some(pairs(
                filled(RadixIotlb::new(limits()), &entries),
                &entries,
                acked,
            )),
        ])
    };
    row(
        "insert + remove, 2,047 entries, no reader",
        figures(Acked::NoReader),
    );
    row(
        "  a reader; each invalidation acknowledged",
        figures(Acked::Each),
    );
}
