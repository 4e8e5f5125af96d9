// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Magazines: two CPUs that exchange through the depot lose nothing and get nothing twice. No
//! preemption bound.

use crate::loom::{
    Counter, explore,
    platform::{Loom, on_cpu_1},
};
use ioatlas_dma::{
    magazine::{MagazineSizes, Magazines, Overflow},
    platform::Platform,
    units::CpuIndex,
};
use std::sync::Arc;

type Kept = Magazines<Loom, u32>;

fn magazines(p: &Loom) -> Kept {
    let sizes = MagazineSizes {
        magazine_len: 1,
        depot_full_max: 1,
    };
    Kept::new(p, sizes)
}

/// Gives as owners do, the fast path first; what the depot has no room for comes out.
fn give(kept: &Kept, origin: usize, things: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let mut out = Vec::new();
    for thing in things {
        if kept.give_fast(CpuIndex(origin), thing) {
            continue;
        }
        if let Some(overflow) = kept.give(CpuIndex(origin), thing) {
            out.extend(Overflow::things(&overflow));
            kept.recycle(overflow);
        }
    }
    out
}

fn take(p: &Loom, kept: &Kept) -> Option<u32> {
    p.pinned(|cpu| kept.take_fast(&cpu).or_else(|| kept.take(&cpu)))
}

fn each_is_in_one_place(kept: &Kept, outside: impl IntoIterator<Item = u32>, all: &[u32]) {
    let mut found = kept.snapshot();
    found.extend(outside);
    found.sort_unstable();
    assert_eq!(found, all, "each once");
    kept.audit().expect("sound magazines");
}

#[test]
fn what_one_cpu_gives_another_takes_once() {
    let (took, nothing) = (Counter::default(), Counter::default());
    let counters = (took.clone(), nothing.clone());
    explore("give against take", None, move || {
        let p = Arc::new(Loom::new(0));
        let kept = Arc::new(magazines(&p));
        let taker = {
            let (p, kept) = (p.clone(), kept.clone());
            on_cpu_1(move || [take(&p, &kept), take(&p, &kept)])
        };
        let out = give(&kept, 0, [1, 2, 3, 4]);
        let taken = taker.join().unwrap();
        if taken.iter().any(Option::is_some) {
            counters.0.add();
        } else {
            counters.1.add();
        }
        let outside = taken.into_iter().flatten().chain(out);
        each_is_in_one_place(&kept, outside, &[1, 2, 3, 4]);
    });
    println!("taken in {}, not in {}", took.get(), nothing.get());
    assert!(took.get() > 0 && nothing.get() > 0, "both must be seen");
}

#[test]
fn two_cpus_that_give_and_take_keep_everything() {
    let crossed = Counter::default();
    let counter = crossed.clone();
    explore("give and take against the same", None, move || {
        let p = Arc::new(Loom::new(0));
        let kept = Arc::new(magazines(&p));
        let other = {
            let (p, kept) = (p.clone(), kept.clone());
            on_cpu_1(move || {
                let out = give(&kept, 1, [11, 12, 13]);
                (out, [0; 3].map(|_| take(&p, &kept)))
            })
        };
        let ours = give(&kept, 0, [1, 2, 3]);
        let taken = [0; 3].map(|_| take(&p, &kept));
        let (theirs, other_taken) = other.join().unwrap();
        if other_taken.iter().flatten().any(|thing| *thing < 10) {
            counter.add();
        }
        let outside = taken.into_iter().chain(other_taken).flatten();
        let outside = outside.chain(ours).chain(theirs);
        each_is_in_one_place(&kept, outside, &[1, 2, 3, 11, 12, 13]);
    });
    println!("CPU 1 got CPU 0's in {} executions", crossed.get());
    assert!(crossed.get() > 0, "the depot must be crossed");
}

/// The only interface by which another CPU gets at a CPU's own magazines.
#[test]
fn a_drain_and_the_owner_share_no_thing() {
    let (lost, won) = (Counter::default(), Counter::default());
    let counters = (lost.clone(), won.clone());
    explore(
        "drain against give and take on the fast path",
        None,
        move || {
            let p = Arc::new(Loom::new(0));
            let kept = Arc::new(magazines(&p));
            let mut out = give(&kept, 0, [1, 2]);
            let drainer = {
                let kept = kept.clone();
                on_cpu_1(move || {
                    let mut drained = Vec::new();
                    kept.drain(|things| drained.extend(things));
                    drained
                })
            };
            let taken = [0; 2].map(|_| p.pinned(|cpu| kept.take_fast(&cpu)));
            out.extend(
                [3, 4]
                    .into_iter()
                    .filter(|thing| !kept.give_fast(CpuIndex(0), *thing)),
            );
            let drained = drainer.join().unwrap();
            if taken.iter().any(Option::is_none) {
                counters.0.add();
            }
            if taken.iter().any(Option::is_some) {
                counters.1.add();
            }
            let outside = taken.into_iter().flatten().chain(drained).chain(out);
            each_is_in_one_place(&kept, outside, &[1, 2, 3, 4]);
        },
    );
    println!(
        "the drain came first in {}, a take in {}",
        lost.get(),
        won.get()
    );
    assert!(lost.get() > 0 && won.get() > 0, "both must be seen");
}
