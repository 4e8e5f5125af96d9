// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Magazines: a per-CPU cache of any small resource, with a global exchange.
//!
//! # Theory
//!
//! (Bonwick and Adams, Magazines and Vmem, USENIX ATC 2001, §3; for IOVAs ATC'15 §4.3.) A *magazine* is a stack of at most M things.
//! Each CPU has two: *loaded*, from which it takes and to which it gives, and *previous*, which is all full or
//! all empty. When loaded cannot serve, the two are exchanged; when neither can, previous is exchanged at the *depot*, a
//! global store of full and of empty magazines. After such an exchange a CPU holds M things, give or take one, of the 2M that it has room for.
//! So between two visits to the depot for the same reason lie at least M operations of that kind, whatever else
//! happens between, and a CPU that only takes lives on what another only gives. [`Visits`] counts.
//!
//! The depot keeps a bounded number of full magazines. When a CPU must give one more, that one comes out of [`Magazines::give`] as
//! an [`Overflow`], whose things go back to where they came from: one visit there for M + 1 things. When the depot has none, the owner
//! [fills](Magazines::fill) the CPU's magazine, best with M things; how often that was so it learns from [`Magazines::misses`].
//! Nothing here calls that place, so no lock is held while it is called.
//!
//! The depot shrinks: a magazine that lay there through a whole interval, as the smallest number seen in it tells, was not needed, and
//! [`Magazines::shrink_idle`] sends it away (the working set of the paper's §3.3).
//!
//! Conservation: a thing given is in exactly one magazine until it is taken, drained, or has overflown.
//!
//! Locking: each CPU's pair has a lock of its own, of the home CPU alone but for drains and for things that come home from elsewhere;
//! it may be held while that of the depot is taken (order: CPU cache -> depot). All work under a lock is a push, a pop or an
//! exchange of vectors, or a copy of at most [`CHUNK`] things; a fill copies M.
//!
//! Memory: a magazine is a vector made with its full capacity, with no lock held, when a CPU first needs it. Until then the CPU has a
//! vector without room, which is as full as it is empty, so that the paths need not tell. There are at most two for each CPU and
//! [`MagazineSizes::depot_full_max`] in the depot, full and empty together; once those exist, nothing is allocated.
//!
//! Not handled: adapting M to contention.

use crate::{
    mutant::{self, Mutant},
    platform::*,
    units::{ByteCount, CpuIndex},
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
}

/// A full magazine that the depot has no room for, and the thing for which it had to go. Deal with them, then
/// [`Magazines::recycle`] it.
#[must_use = "its things are lost with it"]
pub struct Overflow<T> {
    magazine: Vec<T>,
    over: T,
    home: CpuIndex,
}

impl<T: Copy> Overflow<T> {
    /// What is in it.
    pub fn things(&self) -> impl Iterator<Item = T> {
        self.magazine.iter().copied().chain([self.over])
    }
}

/// How often a CPU had to go beyond its own magazines, summed over all CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Visits {
    /// To the depot, to take; in vain or not.
    pub depot_to_take: u64,
    /// To the depot, to give.
    pub depot_to_give: u64,
    /// Takes for which nothing was kept, so that the owner was asked.
    pub misses: u64,
    /// Overflows, each of which went to the owner.
    pub overflows: u64,
}

struct Pair<T> {
    loaded: Vec<T>,
    previous: Vec<T>,
    /// Takes in vain since the last drain.
    misses: u32,
}

/// Both vectors have room for `depot_full_max` magazines, and there are no more in both together.
struct Depot<T> {
    full: Vec<Vec<T>>,
    empty: Vec<Vec<T>>,
    /// The smallest lengths of both since [`Depot::idle`] was asked.
    seen_min: (usize, usize),
    visits: Visits,
}

/// What became of a thing that was given.
enum Given<T> {
    Kept,
    /// Nothing: it is over, and so is this magazine.
    Overflown(Vec<T>),
    /// Nothing: both magazines are full, and there is no empty one.
    NoEmpty,
}

/// What the depot does for a CPU whose magazines are both full.
enum Exchange {
    Done,
    NoRoom,
    NoEmpty,
}

impl<P: Platform, T: Copy + Send> Magazines<P, T> {
    /// No magazine yet for each CPU of `p`.
    pub fn new(p: &P, sizes: MagazineSizes) -> Self {
        let sizes = MagazineSizes {
            magazine_len: sizes.magazine_len.max(1),
            ..sizes
        };
        let max = sizes.depot_full_max;
        Magazines {
            cpus: PerCpu::new(p, || {
                P::Lock::new(Pair {
                    loaded: Vec::new(),
                    previous: Vec::new(),
                    misses: 0,
                })
            }),
            depot: P::Lock::new(Depot {
                full: Vec::with_capacity(max),
                empty: Vec::with_capacity(max),
                seen_min: (0, 0),
                visits: Visits::default(),
            }),
            sizes,
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
                self.reload(pair)?;
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
        let kept = self.cpus.at(home).with(|pair| {
            if is_full(&pair.loaded) {
                return false;
            }
            pair.loaded.push(thing);
            true
        });
        if kept {
            return None;
        }
        self.give_beyond(home, thing)
    }

    /// Keeps as many of `things` for CPU `home` as its loaded magazine has room for; the rest stay in the iterator.
    ///
    /// # Panics
    /// If `home` is not a CPU of the platform.
    pub fn fill(&self, home: CpuIndex, things: &mut impl Iterator<Item = T>) {
        let mut spare = Vec::new();
        // at most twice: with a spare there is a magazine
        while !self.cpus.at(home).with(|pair| {
            if pair.loaded.capacity() == 0 {
                core::mem::swap(&mut pair.loaded, &mut spare);
            }
            let room = pair.loaded.capacity() - pair.loaded.len();
            things.take(room).for_each(|thing| pair.loaded.push(thing));
            pair.loaded.capacity() > 0
        }) {
            spare = self.magazine();
        }
    }

    /// How often a take of CPU `home` found nothing since the last drain: how much it lacks.
    ///
    /// # Panics
    /// If `home` is not a CPU of the platform.
    pub fn misses(&self, home: CpuIndex) -> u32 {
        self.cpus.at(home).with(|pair| pair.misses)
    }

    /// Takes back the magazine of an overflow, whose things the caller has dealt with.
    pub fn recycle(&self, overflow: Overflow<T>) {
        let Overflow {
            mut magazine, home, ..
        } = overflow;
        magazine.clear();
        // the CPU that it comes from has none in its place, unless an interrupt has brought one
        self.cpus.at(home).with(|pair| {
            if pair.previous.capacity() == 0 {
                core::mem::swap(&mut pair.previous, &mut magazine);
            }
        });
        self.shelve(magazine);
    }

    /// Sends away what the depot did not need since this was last asked, at most `max` full and as many empty magazines; the things
    /// go to `sink` with no lock held. Frees memory.
    pub fn shrink_idle(&self, max: usize, mut sink: impl FnMut(&mut dyn Iterator<Item = T>)) {
        let (full, empty) = self.depot.with(Depot::idle);
        for _ in 0..full.min(max) {
            let Some(idle) = self.depot.with(Depot::pop_full) else {
                break;
            };
            sink(&mut idle.into_iter());
        }
        for _ in 0..empty.min(max) {
            drop(self.depot.with(Depot::pop_empty)); // here: freeing under a lock is not allowed
        }
    }

    /// How often CPUs had to go beyond their magazines, ever.
    pub fn visits(&self) -> Visits {
        self.depot.with(|depot| depot.visits)
    }

    /// Bytes of all magazines that there are, whatever is in them.
    pub fn bytes(&self) -> ByteCount {
        let mut things = 0;
        for (_, cpu) in self.cpus.iter() {
            things += cpu.with(|pair| pair.loaded.capacity() + pair.previous.capacity());
        }
        things += self.depot.with(|depot| {
            let all = depot.full.iter().chain(&depot.empty);
            all.map(Vec::capacity).sum::<usize>()
        });
        ByteCount((things * size_of::<T>()) as u64)
    }

    /// Takes everything out, a few things at a time, and gives it to `sink` with no lock held.
    ///
    /// What is given meanwhile may stay. The work is bounded by what the magazines can hold.
    pub fn drain(&self, mut sink: impl FnMut(&mut dyn Iterator<Item = T>)) {
        let chunks = (2 * self.sizes.magazine_len).div_ceil(CHUNK) + 1;
        for (_, cpu) in self.cpus.iter() {
            cpu.with(|pair| pair.misses = 0);
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
        for _ in 0..self.sizes.depot_full_max {
            let Some(mut full) = self.depot.with(Depot::pop_full) else {
                break;
            };
            sink(&mut full.iter().copied());
            full.clear();
            self.shelve(full);
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
            let room = |m: &Vec<T>| m.capacity();
            let (loaded, previous) = lock.with(|pair| (room(&pair.loaded), room(&pair.previous)));
            if [loaded, previous]
                .iter()
                .any(|room| ![0, len].contains(room))
            {
                return Err(format!(
                    "CPU {} has room for {loaded} and {previous} in magazines of {len}",
                    cpu.0
                ));
            }
        }
        let (full, empty, whole) = self.depot.with(|depot| {
            let empty = |magazine: &Vec<T>| magazine.is_empty() && magazine.capacity() > 0;
            let whole = depot.full.iter().all(is_full) && depot.empty.iter().all(empty);
            (depot.full.len(), depot.empty.len(), whole)
        });
        if !whole {
            return Err("a magazine in the depot is neither full nor empty".into());
        }
        if full + empty > self.sizes.depot_full_max {
            return Err(format!(
                "{full} full and {empty} empty magazines in the depot"
            ));
        }
        Ok(())
    }

    /// Makes loaded what is not empty, if there is such a magazine.
    #[cold]
    #[inline(never)]
    fn reload(&self, pair: &mut Pair<T>) -> Option<()> {
        if pair.previous.is_empty() {
            let previous = &mut pair.previous;
            if !self.depot.with(|depot| depot.swap_for_full(previous)) {
                pair.misses = pair.misses.saturating_add(1);
                return None;
            }
        }
        core::mem::swap(&mut pair.loaded, &mut pair.previous);
        Some(())
    }

    #[cold]
    #[inline(never)]
    fn give_beyond(&self, home: CpuIndex, thing: T) -> Option<Overflow<T>> {
        let mut spare = Vec::new();
        loop {
            let given = self
                .cpus
                .at(home)
                .with(|pair| self.push(pair, thing, &mut spare));
            match given {
                Given::Kept => {
                    self.shelve(spare);
                    return None;
                }
                Given::Overflown(magazine) => {
                    self.shelve(spare);
                    return Some(Overflow {
                        magazine,
                        over: thing,
                        home,
                    });
                }
                // at most once: with a spare there is an empty one
                Given::NoEmpty => spare = self.magazine(),
            }
        }
    }

    fn push(&self, pair: &mut Pair<T>, thing: T, spare: &mut Vec<T>) -> Given<T> {
        if is_full(&pair.loaded) {
            if is_full(&pair.previous) {
                let max = self.sizes.depot_full_max;
                let previous = &mut pair.previous;
                match self.depot.with(|d| d.swap_for_empty(previous, spare, max)) {
                    Exchange::Done => {}
                    Exchange::NoEmpty => return Given::NoEmpty,
                    Exchange::NoRoom => {
                        return Given::Overflown(core::mem::take(&mut pair.previous));
                    }
                }
            }
            core::mem::swap(&mut pair.loaded, &mut pair.previous);
        }
        pair.loaded.push(thing);
        Given::Kept
    }

    fn magazine(&self) -> Vec<T> {
        let mut magazine = Vec::new();
        magazine.reserve_exact(self.sizes.magazine_len);
        magazine
    }

    /// Puts an empty magazine into the depot, or frees it where there are enough.
    fn shelve(&self, magazine: Vec<T>) {
        if magazine.capacity() == 0 {
            return;
        }
        let max = self.sizes.depot_full_max;
        let one_too_many = self.depot.with(|depot| {
            if depot.full.len() + depot.empty.len() < max {
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

/// No thing more goes in. Also true where there is no magazine.
fn is_full<T>(magazine: &Vec<T>) -> bool {
    magazine.len() == magazine.capacity()
}

impl<T> Depot<T> {
    /// Exchanges an empty magazine, or none, for a full one.
    fn swap_for_full(&mut self, magazine: &mut Vec<T>) -> bool {
        self.visits.depot_to_take += 1;
        let Some(full) = self.pop_full() else {
            self.visits.misses += 1;
            return false;
        };
        let empty = core::mem::replace(magazine, full);
        if empty.capacity() > 0 {
            self.empty.push(empty);
        }
        true
    }

    /// Exchanges a full magazine, or none, for an empty one, from the depot or `spare`.
    fn swap_for_empty(
        &mut self,
        magazine: &mut Vec<T>,
        spare: &mut Vec<T>,
        max: usize,
    ) -> Exchange {
        self.visits.depot_to_give += 1;
        if magazine.capacity() > 0 && self.full.len() == max {
            self.visits.overflows += 1;
            return Exchange::NoRoom;
        }
        let empty = match self.pop_empty() {
            Some(empty) => empty,
            None if spare.capacity() > 0 => core::mem::take(spare),
            None => return Exchange::NoEmpty,
        };
        let full = core::mem::replace(magazine, empty);
        if full.capacity() > 0 {
            self.full.push(full);
        }
        Exchange::Done
    }

    fn pop_full(&mut self) -> Option<Vec<T>> {
        let full = self.full.pop();
        self.seen_min.0 = self.seen_min.0.min(self.full.len());
        full
    }

    fn pop_empty(&mut self) -> Option<Vec<T>> {
        let empty = self.empty.pop();
        self.seen_min.1 = self.seen_min.1.min(self.empty.len());
        empty
    }

    /// How many full and empty magazines were never touched since this was last asked.
    fn idle(&mut self) -> (usize, usize) {
        core::mem::replace(&mut self.seen_min, (self.full.len(), self.empty.len()))
    }
}
