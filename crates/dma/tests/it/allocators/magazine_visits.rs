// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The bound that magazines promise (ATC'15 §4.3): at most one operation in M goes beyond a CPU's
//! own magazines.
//!
//! Counted, not timed, for takes and gives each, at the depot and at the backing; over patterns in
//! which what one CPU gets another gives back.

use crate::allocators::{eiovar, rig::*};
use fastrand::Rng;
use ioatlas_dma::iova::*;
use ioatlas_dma::units::*;
use std::collections::VecDeque;

const BACKINGS: [BackingConfig; 5] = [
    BackingConfig::Rbtree,
    eiovar(8, 4),
    BackingConfig::Freebsd,
    BackingConfig::Vmem,
    BackingConfig::MacOs,
];

/// Operations of each kind in a run.
const OPS: u64 = 40_000;

struct Counted {
    rig: Rig<Board>,
    class: usize,
    /// Takes and gives so far.
    ops: [u64; 2],
}

impl Counted {
    fn new(magazine_len: usize, depot_full_max: usize, class: usize, below: BackingConfig) -> Self {
        let config = MagazineConfig::DEFAULT
            .magazine_len(magazine_len)
            .depot_full_max(depot_full_max)
            .cpu_bytes_max(ByteCount(u64::MAX))
            .cpu_pages_max(PageCount(u64::MAX))
            .backing(below);
        Counted {
            rig: Rig::board(AllocatorConfig::Magazine(config), 1, 1 << 22),
            class,
            ops: [0; 2],
        }
    }
    fn take(&mut self, cpu: usize) -> IovaAlloc {
        move_to(cpu);
        self.ops[0] += 1;
        self.rig.alloc(1 << self.class).expect("room")
    }
    fn give(&mut self, cpu: usize, alloc: IovaAlloc) {
        self.ops[1] += 1;
        self.rig.free(cpu, alloc);
    }
    /// Checks the bound, and returns how often the depot and the backing were visited, for takes
    /// and for gives.
    fn end(self, what: &str, magazine_len: u64, depot_full_max: u64) -> [u64; 4] {
        let AnyAllocator::Magazine(magazines) = &self.rig.allocator else {
            unreachable!("as configured")
        };
        let (_, visits) = magazines.visits().nth(self.class).expect("a class");
        // while it gets warm: each magazine is made once, and each CPU doubles its runs up to M
        let cold = 2 * CPUS as u64 + depot_full_max + CPUS as u64 * 13;
        let seen = [
            visits.depot_to_take,
            visits.misses,
            visits.depot_to_give,
            visits.overflows,
        ];
        for (nth, name) in ["take at the depot", "refill", "give at the depot", "spill"]
            .into_iter()
            .enumerate()
        {
            let most = self.ops[nth / 2] / magazine_len + cold;
            let backing = magazines.config().backing.name();
            assert!(
                seen[nth] <= most,
                "{what} over {backing}, M = {magazine_len}: {} of {name}, of {:?} operations",
                seen[nth],
                self.ops
            );
        }
        seen
    }
}

type Pattern = fn(&mut Counted);

/// One CPU takes, another gives, `lag` behind.
fn producer_consumer(run: &mut Counted, lag: usize) {
    let mut held = VecDeque::new();
    for _ in 0..OPS {
        held.push_back(run.take(0));
        if held.len() > lag {
            run.give(1, held.pop_front().expect("not empty"));
        }
    }
    held.into_iter().for_each(|alloc| run.rig.free(1, alloc));
}

/// Any CPU takes, and any gives what is at random in a set of `outstanding`.
fn random(run: &mut Counted, outstanding: usize) {
    let mut held = Vec::new();
    let mut random = Rng::with_seed(1);
    for _ in 0..OPS {
        held.push(run.take(random.usize(..CPUS)));
        if held.len() > outstanding {
            let alloc = held.swap_remove(random.usize(..held.len()));
            run.give(random.usize(..CPUS), alloc);
        }
    }
    held.into_iter().for_each(|alloc| run.rig.free(0, alloc));
}

/// A ring that is filled and emptied in whole, by CPUs in turn.
fn bursts(run: &mut Counted, ring: usize) {
    for nth in 0..OPS as usize / ring {
        let held: Vec<_> = (0..ring).map(|_| run.take(nth % CPUS)).collect();
        held.into_iter()
            .for_each(|alloc| run.give((nth + 1) % CPUS, alloc));
    }
}

#[test]
fn one_operation_in_m_goes_beyond_the_cpus_own_magazines() {
    let mut seen = [0; 4];
    for below in BACKINGS {
        // also where the depot is too small for the burst, or there is none
        for (len, depot) in [(16, 32), (16, 2), (5, 0)] {
            for class in [0, 3] {
                let patterns: [(&str, Pattern); 5] = [
                    ("producer and consumer", |run| producer_consumer(run, 1)),
                    ("the same, 300 behind", |run| producer_consumer(run, 300)),
                    ("random replacement", |run| random(run, 500)),
                    ("bursts of 40", |run| bursts(run, 40)),
                    ("bursts of 1000", |run| bursts(run, 1000)),
                ];
                for (what, pattern) in patterns {
                    let mut run = Counted::new(len, depot, class, below);
                    pattern(&mut run);
                    let new = run.end(what, len as u64, depot as u64);
                    seen.iter_mut().zip(new).for_each(|(sum, new)| *sum += new);
                }
            }
        }
    }
    // they were all met, or the bound above says nothing
    assert!(seen.iter().all(|visits| *visits > 1000), "{seen:?}");
}

#[test]
fn once_warm_a_producer_and_a_consumer_never_meet_the_backing() {
    for below in BACKINGS {
        let mut run = Counted::new(16, 4, 0, below);
        producer_consumer(&mut run, 30);
        let [takes, refills, gives, spills] = run.end("producer and consumer", 16, 4);
        assert!(takes.min(gives) >= OPS / 16 - 30, "{takes} and {gives}");
        // 16 + 32 + 30 outstanding or on the way
        assert!(refills <= 8 && spills <= 2, "{refills} and {spills}");
    }
}
