// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Magazines: a per-CPU cache of any small resource, with a global exchange.
//!
//! # Theory
//!
//! (Bonwick and Adams, Magazines and Vmem, USENIX ATC 2001, §3; for IOVAs ATC'15 §4.3.) A *magazine* is a stack of at most M things.
//! Each CPU has two: *loaded*, from which it takes and to which it gives, and *previous*, which is all full or
//! all empty. When loaded cannot serve, the two are exchanged; when neither can, previous is exchanged at the *depot*, a
//! global store of full and of empty magazines. So between two visits to the depot lie at least M
//! operations of either kind, and a CPU that only takes lives on what another only gives.
//!
//! The depot keeps a bounded number of full magazines; one more comes out of [`Magazines::give`] as an [`Overflow`],
//! whose things go back to where they came from. Nothing here calls that place, so no lock is held while it is called.
//!
//! Conservation: a thing given is in exactly one magazine until it is taken, drained or has overflown.
//!
//! Locking: each CPU's pair has a lock of its own, of the home CPU alone but for drains and for things that come home from elsewhere;
//! it may be held while that of the depot is taken (order: CPU cache -> depot). All work under a lock is a push, a pop or an
//! exchange of vectors, or a copy of at most [`CHUNK`] things.
//!
//! Memory: magazines are made with their full capacity, two for each CPU at the start, others where the depot has no empty
//! one, with no lock held. The depot holds at most its full ones and one more for each CPU; once that many exist, nothing is
//! allocated.
//!
//! Not handled: adapting M to contention, and giving idle magazines back (as the paper's working set does).

use crate::{
    mutant::{self, Mutant},
    platform::*,
    units::CpuIndex,
};
use alloc::{format, string::String, vec::Vec};

/// How many things a drain takes out under one acquisition of a CPU's lock.
pub const CHUNK: usize = 16;

/// How large the magazines are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MagazineSizes {
    /// Things in a full magazine; at least 1.
    pub magazine_len: usize,
    /// Full magazines that the depot keeps.
    pub depot_full_max: usize,
}

/// Per-CPU magazines of one kind of thing, and their depot.
pub struct Magazines<P: Platform, T: Copy + Send> {
    cpus: PerCpu<P::Lock<Pair<T>>>,
    depot: P::Lock<Depot<T>>,
    sizes: MagazineSizes,
    /// How many magazines the depot may hold in all, so that its vectors never grow.
    depot_room: usize,
}

/// A full magazine that the depot has no room for. Empty it, then [`Magazines::recycle`] it.
#[must_use = "its things are lost with it"]
pub struct Overflow<T>(Vec<T>);

impl<T> Overflow<T> {
    /// What is in it.
    pub fn things(&self) -> &[T] {
        &self.0
    }
}

struct Pair<T> {
    loaded: Vec<T>,
    previous: Vec<T>,
}

/// Both vectors have room for `depot_room` magazines.
struct Depot<T> {
    full: Vec<Vec<T>>,
    empty: Vec<Vec<T>>,
}

/// What became of a thing that was given.
enum Given<T> {
    Kept,
    Overflown(Vec<T>),
    /// Nothing: both magazines are full, and there is no empty one.
    NoEmpty,
}

impl<P: Platform, T: Copy + Send> Magazines<P, T> {
    /// Empty magazines for each CPU of `p`.
    pub fn new(p: &P, sizes: MagazineSizes) -> Self {
        let sizes = MagazineSizes {
            magazine_len: sizes.magazine_len.max(1),
            ..sizes
        };
        let depot_room = sizes.depot_full_max + p.cpus();
        let empty = || Vec::with_capacity(sizes.magazine_len);
        Magazines {
            cpus: PerCpu::new(p, || {
                P::Lock::new(Pair {
                    loaded: empty(),
                    previous: empty(),
                })
            }),
            depot: P::Lock::new(Depot {
                full: Vec::with_capacity(depot_room),
                empty: Vec::with_capacity(depot_room),
            }),
            sizes,
            depot_room,
        }
    }

    /// The sizes in use.
    pub fn sizes(&self) -> MagazineSizes {
        self.sizes
    }

    /// A thing kept for this CPU, or by the depot.
    #[inline]
    pub fn take(&self, cpu: &Cpu<'_>) -> Option<T> {
        self.cpus.get(cpu).with(|pair| {
            if pair.loaded.is_empty() {
                if pair.previous.is_empty() {
                    self.depot
                        .with(|depot| depot.swap_for_full(&mut pair.previous))?;
                }
                core::mem::swap(&mut pair.loaded, &mut pair.previous);
            }
            if mutant::active(Mutant::MagazineTwice) {
                return pair.loaded.last().copied();
            }
            pair.loaded.pop()
        })
    }

    /// Keeps `thing` for CPU `home`.
    ///
    /// # Panics
    /// If `home` is not a CPU of the platform.
    #[inline]
    pub fn give(&self, home: CpuIndex, thing: T) -> Option<Overflow<T>> {
        let mut spare = None;
        loop {
            match self
                .cpus
                .at(home)
                .with(|pair| self.push(pair, thing, &mut spare))
            {
                Given::Kept => {
                    spare.into_iter().for_each(|unused| self.shelve(unused));
                    return None;
                }
                Given::Overflown(full) => {
                    spare.into_iter().for_each(|unused| self.shelve(unused));
                    return Some(Overflow(full));
                }
                // at most once: with a spare there is an empty one
                Given::NoEmpty => spare = Some(Vec::with_capacity(self.sizes.magazine_len)),
            }
        }
    }

    /// Keeps as many of `things` for this CPU as its loaded magazine has room for; the rest stay in the iterator.
    pub fn fill(&self, cpu: &Cpu<'_>, things: &mut impl Iterator<Item = T>) {
        let len = self.sizes.magazine_len;
        self.cpus.get(cpu).with(|pair| {
            let room = len - pair.loaded.len();
            things.take(room).for_each(|thing| pair.loaded.push(thing));
        });
    }

    /// Takes back the magazine of an overflow, whose things the caller has dealt with.
    pub fn recycle(&self, overflow: Overflow<T>) {
        let mut magazine = overflow.0;
        magazine.clear();
        self.shelve(magazine);
    }

    /// Takes everything out, a few things at a time, and gives it to `sink` with no lock held.
    ///
    /// What is given meanwhile may stay. The work is bounded by what the magazines can hold.
    pub fn drain(&self, mut sink: impl FnMut(&mut dyn Iterator<Item = T>)) {
        let chunks = (2 * self.sizes.magazine_len).div_ceil(CHUNK) + 1;
        for (_, cpu) in self.cpus.iter() {
            for _ in 0..chunks {
                let mut chunk = [None; CHUNK];
                let taken = cpu.with(|pair| {
                    let from =
                        core::iter::from_fn(|| pair.loaded.pop().or_else(|| pair.previous.pop()));
                    let slots = chunk.iter_mut().zip(from);
                    slots.map(|(to, thing)| *to = Some(thing)).count()
                });
                if taken == 0 {
                    break;
                }
                sink(&mut chunk.into_iter().flatten());
            }
        }
        for _ in 0..self.depot_room {
            let Some(full) = self.depot.with(|depot| depot.full.pop()) else {
                break;
            };
            sink(&mut full.iter().copied());
            self.recycle(Overflow(full));
        }
    }

    /// How many things are kept. Exact when nobody else is here.
    pub fn kept(&self) -> usize {
        let mut kept = 0;
        self.for_each_magazine(|magazine| kept += magazine.len());
        kept
    }

    /// All things that are kept, in no order. For audits.
    pub fn snapshot(&self) -> Vec<T> {
        let mut all = Vec::with_capacity(self.kept());
        self.for_each_magazine(|magazine| all.extend_from_slice(magazine));
        all
    }

    /// Checks the magazines themselves; what is in them is the owner's matter.
    ///
    /// # Errors
    /// A sentence that names what is wrong.
    pub fn audit(&self) -> Result<(), String> {
        let len = self.sizes.magazine_len;
        for (cpu, lock) in self.cpus.iter() {
            let (loaded, previous) = lock.with(|pair| (pair.loaded.len(), pair.previous.len()));
            if loaded > len || previous > len {
                return Err(format!(
                    "CPU {} has {loaded} and {previous} in magazines of {len}",
                    cpu.0
                ));
            }
        }
        let (full, empty, whole) = self.depot.with(|depot| {
            let whole = depot.full.iter().all(|magazine| magazine.len() == len)
                && depot.empty.iter().all(|magazine| magazine.is_empty());
            (depot.full.len(), depot.empty.len(), whole)
        });
        if !whole {
            return Err("a magazine in the depot is neither full nor empty".into());
        }
        if full > self.sizes.depot_full_max || full + empty > self.depot_room {
            return Err(format!(
                "{full} full and {empty} empty magazines in the depot"
            ));
        }
        Ok(())
    }

    fn push(&self, pair: &mut Pair<T>, thing: T, spare: &mut Option<Vec<T>>) -> Given<T> {
        let len = self.sizes.magazine_len;
        let mut given = Given::Kept;
        if pair.loaded.len() == len {
            if pair.previous.len() == len {
                let max = self.sizes.depot_full_max;
                let previous = &mut pair.previous;
                given = self
                    .depot
                    .with(|depot| depot.swap_for_empty(previous, spare, max));
                if let Given::NoEmpty = given {
                    return given;
                }
            }
            core::mem::swap(&mut pair.loaded, &mut pair.previous);
        }
        pair.loaded.push(thing);
        given
    }

    /// Puts an empty magazine into the depot, or frees it where there are enough.
    fn shelve(&self, magazine: Vec<T>) {
        let room = self.depot_room;
        let one_too_many = self.depot.with(|depot| {
            if depot.full.len() + depot.empty.len() < room {
                depot.empty.push(magazine);
                return None;
            }
            Some(magazine)
        });
        drop(one_too_many); // here, since freeing under a lock is not allowed
    }

    fn for_each_magazine(&self, mut see: impl FnMut(&[T])) {
        for (_, cpu) in self.cpus.iter() {
            cpu.with(|pair| {
                see(&pair.loaded);
                see(&pair.previous);
            });
        }
        self.depot
            .with(|depot| depot.full.iter().for_each(|magazine| see(magazine)));
    }
}

impl<T> Depot<T> {
    /// Exchanges an empty magazine for a full one.
    fn swap_for_full(&mut self, magazine: &mut Vec<T>) -> Option<()> {
        let full = self.full.pop()?;
        self.empty.push(core::mem::replace(magazine, full));
        Some(())
    }

    /// Exchanges a full magazine for an empty one, from the depot or `spare`.
    fn swap_for_empty(
        &mut self,
        magazine: &mut Vec<T>,
        spare: &mut Option<Vec<T>>,
        max: usize,
    ) -> Given<T> {
        let Some(empty) = self.empty.pop().or_else(|| spare.take()) else {
            return Given::NoEmpty;
        };
        let full = core::mem::replace(magazine, empty);
        if self.full.len() < max {
            self.full.push(full);
            return Given::Kept;
        }
        Given::Overflown(full)
    }
}
