// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Magazines: a per-CPU cache of any small resource, with a global exchange.
//!
//! # Theory
//!
//! (Bonwick and Adams, Magazines and Vmem, USENIX ATC 2001, §3; for IOVAs ATC'15 §4.3.) A
//! *magazine* is a stack of at most M things. Each CPU has two: *loaded*, from which it takes and
//! to which it gives, and *previous*, which is all full or all empty. When loaded cannot serve, the
//! two are exchanged; when neither can, previous is exchanged at the *depot*, a global store of
//! full and of empty magazines. After such an exchange a CPU holds M things, give or take one, of
//! the 2M that it has room for. So between two visits to the depot for the same reason lie at least
//! M operations of that kind, whatever else happens between, and a CPU that only takes lives on
//! what another only gives. [`Visits`] counts.
//!
//! The depot keeps a bounded number of full magazines. When a CPU must give one more, that one
//! comes out of [`Magazines::give`] as an [`Overflow`], whose things go back to where they came
//! from: one visit there for M + 1 things. When the depot has none, the owner
//! [fills](Magazines::fill) the CPU's magazine, best with M things; how often that was so it learns
//! from [`Magazines::misses`]. Nothing here calls that place, so no lock is held while it is
//! called.
//!
//! The depot shrinks: a magazine that lay there through a whole interval, as the smallest number
//! seen in it tells, was not needed, and [`Magazines::shrink_idle`] sends it away (the working set
//! of the paper's §3.3).
//!
//! Conservation: a thing given is in exactly one magazine until it is taken, drained, or has
//! overflown.
//!
//! Locking: each CPU's pair has a lock of its own, of the origin CPU alone but for drains and for
//! things that are freed from elsewhere; it may be held while that of the depot is taken (order:
//! CPU cache -> depot). [`Magazines::take_fast`] and [`Magazines::give_fast`] are the paths of
//! nearly every operation: they only try that lock, push or pop once, and leave all else to
//! [`Magazines::take`] and [`Magazines::give`]. All work under a lock is a push, a pop or an
//! exchange of vectors, or a copy of at most [`CHUNK`] things; a fill copies M.
//!
//! Memory: a magazine is a vector made with its full capacity, with no lock held, when a CPU first
//! needs it. Until then the CPU has a vector without room, which is as full as it is empty, so that
//! the paths need not tell. There are at most two for each CPU and
//! [`MagazineSizes::depot_full_max`] in the depot, full and empty together; once those exist,
//! nothing is allocated. Where the heap has no memory for a magazine, what is given goes to any CPU
//! whose magazines have room, or else overflows alone, and a fill keeps nothing.
//!
//! Not handled: adapting M to contention.

mod account;
mod away;
mod depot;
mod places;

pub use depot::Visits;
pub use places::{Places, Rack, Shelf};

use crate::{platform::*, units::CpuIndex};
use alloc::vec::Vec;
use depot::{Depot, Exchange};

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
pub struct Magazines<P: Platform, T: Copy + Send, S = PerCpu<<P as Platform>::Lock<Pair<T>>>> {
    cpus: S,
    depot: P::Lock<Depot<T>>,
    sizes: MagazineSizes,
}

/// A full magazine that the depot has no room for, and the thing for which it had to go; or such a
/// thing alone, where there is no memory for a magazine. Deal with them, then
/// [`Magazines::recycle`] it.
#[must_use = "its things are lost with it"]
pub struct Overflow<T> {
    magazine: Vec<T>,
    over: T,
    origin: CpuIndex,
}

impl<T: Copy> Overflow<T> {
    /// What is in it.
    pub fn things(&self) -> impl Iterator<Item = T> {
        self.magazine.iter().copied().chain([self.over])
    }
}

/// A CPU's two magazines.
pub struct Pair<T> {
    loaded: Vec<T>,
    previous: Vec<T>,
    /// Takes in vain since the last drain.
    misses: u32,
}

impl<T: Copy> Pair<T> {
    fn new() -> Self {
        Pair {
            loaded: Vec::new(),
            previous: Vec::new(),
            misses: 0,
        }
    }
    #[inline]
    fn pop<P: Platform>(&mut self) -> Option<T> {
        let thing = self.loaded.pop()?;
        P::A64::touches(|| Some((&self.loaded, self.loaded.len())));
        Some(thing)
    }
    fn pop_any<P: Platform>(&mut self) -> Option<T> {
        let from = match self.loaded.is_empty() {
            true => &mut self.previous,
            false => &mut self.loaded,
        };
        let thing = from.pop()?;
        P::A64::touches(|| Some((from, from.len())));
        Some(thing)
    }
    /// The caller has seen that there is room.
    #[inline]
    fn push<P: Platform>(&mut self, thing: T) {
        P::A64::touches(|| Some((&self.loaded, self.loaded.len())));
        self.loaded.push(thing);
    }
}

/// What became of a thing that was given.
enum Given<T> {
    Kept,
    /// Nothing: it is over, and so is this magazine.
    Overflown(Vec<T>),
    /// Nothing: both magazines are full, and there is no empty one.
    NoEmpty,
}

impl<P: Platform, T: Copy + Send> Magazines<P, T> {
    /// No magazine yet for each CPU of `p`.
    pub fn new(p: &P, sizes: MagazineSizes) -> Self {
        Self::in_places(PerCpu::new(p, || P::Lock::new(Pair::new())), sizes)
    }
}

impl<P: Platform, T: Copy + Send, S: Places<P, T>> Magazines<P, T, S> {
    /// No magazine yet for each CPU, in places that nothing else uses.
    pub fn in_places(cpus: S, sizes: MagazineSizes) -> Self {
        let sizes = MagazineSizes {
            magazine_len: sizes.magazine_len.max(1),
            ..sizes
        };
        let max = sizes.depot_full_max;
        Magazines {
            cpus,
            depot: P::Lock::new(Depot {
                full: Vec::with_capacity(max),
                empty: Vec::with_capacity(max),
                seen_min: (0, 0),
                visits: Visits::default(),
            }),
            sizes,
        }
    }

    fn pairs(&self) -> impl Iterator<Item = &P::Lock<Pair<T>>> {
        (0..self.cpus.cpus()).map(|cpu| self.cpus.at(CpuIndex(cpu)))
    }

    /// The sizes in use.
    pub fn sizes(&self) -> MagazineSizes {
        self.sizes
    }

    /// The top of this CPU's loaded magazine, if there is one and its lock is free. Nothing is
    /// called: else ask [`take`](Self::take).
    #[inline]
    pub fn take_fast(&self, cpu: &Cpu<'_>) -> Option<T> {
        self.cpus.get(cpu).try_with(Pair::pop::<P>)?
    }

    /// The same, if `serves` makes something of it, which also comes back; else it stays where it
    /// is. Called under the lock.
    #[inline(always)] // on the fast path of a map, which calls nothing
    pub(crate) fn take_fast_if<R>(
        &self,
        cpu: &Cpu<'_>,
        serves: impl FnOnce(T) -> Option<R>,
    ) -> Option<(T, R)> {
        let taken = self.cpus.get(cpu).try_with(|pair| {
            let top = *pair.loaded.last()?;
            let made = serves(top)?;
            pair.pop::<P>().map(|_top| (top, made))
        });
        taken.flatten()
    }

    /// Makes this CPU's next [`take_fast`](Self::take_fast) find something, if its other magazine
    /// or the depot has anything. What is looked for in vain here does not count:
    /// [`take`](Self::take) will be asked, and count.
    pub(crate) fn bring_to_hand(&self, cpu: &Cpu<'_>) {
        self.cpus.get(cpu).with(|pair| {
            if !pair.loaded.is_empty() {
                return;
            }
            let previous = &mut pair.previous;
            if !previous.is_empty() || self.depot.with(|depot| depot.swap_if_full::<P>(previous)) {
                core::mem::swap(&mut pair.loaded, &mut pair.previous);
            }
        });
    }

    /// A thing kept for this CPU, or by the depot.
    pub fn take(&self, cpu: &Cpu<'_>) -> Option<T> {
        self.cpus.get(cpu).with(|pair| {
            if pair.loaded.is_empty() {
                self.reload(pair)?;
            }
            pair.pop::<P>()
        })
    }

    /// Keeps `thing` for CPU `origin` if its loaded magazine has room and its lock is free; returns
    /// whether. Nothing is called: else [`give`](Self::give).
    ///
    /// # Panics
    /// If `origin` is not a CPU of the platform.
    #[inline]
    pub fn give_fast(&self, origin: CpuIndex, thing: T) -> bool {
        let kept = self.cpus.at(origin).try_with(|pair| {
            if is_full(&pair.loaded) {
                return false;
            }
            pair.push::<P>(thing);
            true
        });
        kept.unwrap_or(false)
    }

    /// Keeps `thing` for CPU `origin`.
    ///
    /// # Panics
    /// If `origin` is not a CPU of the platform.
    pub fn give(&self, origin: CpuIndex, thing: T) -> Option<Overflow<T>> {
        let mut spare = Vec::new();
        loop {
            let given = self
                .cpus
                .at(origin)
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
                        origin,
                    });
                }
                // at most once: with a spare there is an empty one
                Given::NoEmpty => match self.magazine() {
                    Some(magazine) => spare = magazine,
                    None if self.give_anywhere(thing) => return None,
                    None => {
                        return Some(Overflow {
                            magazine: Vec::new(),
                            over: thing,
                            origin,
                        });
                    }
                },
            }
        }
    }

    /// Keeps `thing` for any CPU whose magazines have room.
    #[cold]
    fn give_anywhere(&self, thing: T) -> bool {
        self.pairs().any(|pair| {
            pair.with(|pair| {
                if is_full(&pair.loaded) {
                    if is_full(&pair.previous) {
                        return false;
                    }
                    core::mem::swap(&mut pair.loaded, &mut pair.previous);
                }
                pair.push::<P>(thing);
                true
            })
        })
    }

    /// Keeps `thing` for CPU `origin`, and what `more` has, as long as its loaded magazine has room
    /// and its lock is free. What comes back is for [`give`](Self::give); `more` was not asked
    /// again then. Panics if `origin` is not a CPU of the platform.
    #[inline]
    pub(crate) fn give_while(
        &self,
        origin: CpuIndex,
        thing: T,
        mut more: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let over = self.cpus.at(origin).try_with(|pair| {
            let mut thing = thing;
            loop {
                if is_full(&pair.loaded) {
                    return Some(thing);
                }
                pair.push::<P>(thing);
                thing = more()?;
            }
        });
        over.unwrap_or(Some(thing))
    }

    /// Keeps as many of `things` for CPU `origin` as its loaded magazine has room for, none where
    /// there is no memory for one; the rest stay in the iterator.
    ///
    /// # Panics
    /// If `origin` is not a CPU of the platform.
    pub fn fill(&self, origin: CpuIndex, things: &mut impl Iterator<Item = T>) {
        let mut spare = Vec::new();
        // at most twice: with a spare there is a magazine
        while !self.cpus.at(origin).with(|pair| {
            if pair.loaded.capacity() == 0 {
                core::mem::swap(&mut pair.loaded, &mut spare);
            }
            let room = pair.loaded.capacity() - pair.loaded.len();
            things.take(room).for_each(|thing| pair.push::<P>(thing));
            pair.loaded.capacity() > 0
        }) {
            match self.magazine() {
                Some(magazine) => spare = magazine,
                None => return,
            }
        }
    }

    /// How many things [`fill`](Self::fill) would take for CPU `origin` now.
    ///
    /// # Panics
    /// If `origin` is not a CPU of the platform.
    pub fn room(&self, origin: CpuIndex) -> usize {
        let (room, len) = self.cpus.at(origin).with(|pair| {
            let loaded = &pair.loaded;
            (loaded.capacity(), loaded.len())
        });
        match room {
            0 => self.sizes.magazine_len,
            room => room - len,
        }
    }

    /// How often a take of CPU `origin` found nothing since the last drain: how much it lacks.
    ///
    /// # Panics
    /// If `origin` is not a CPU of the platform.
    pub fn misses(&self, origin: CpuIndex) -> u32 {
        self.cpus.at(origin).with(|pair| pair.misses)
    }

    /// Takes back the magazine of an overflow, whose things the caller has dealt with.
    pub fn recycle(&self, overflow: Overflow<T>) {
        let Overflow {
            mut magazine,
            origin,
            ..
        } = overflow;
        magazine.clear();
        // the CPU that it comes from has none in its place, unless an interrupt has brought one
        self.cpus.at(origin).with(|pair| {
            if pair.previous.capacity() == 0 {
                core::mem::swap(&mut pair.previous, &mut magazine);
            }
        });
        self.shelve(magazine);
    }

    /// Sends away what the depot did not need since this was last asked, at most `max` full and as
    /// many empty magazines; the things go to `sink` with no lock held. Frees memory.
    pub fn shrink_idle(&self, max: usize, mut sink: impl FnMut(&mut dyn Iterator<Item = T>)) {
        let (full, empty) = self.depot.with(Depot::idle);
        for _ in 0..full.min(max) {
            let Some(idle) = self.depot.with(Depot::pop_full::<P>) else {
                break;
            };
            sink(&mut idle.iter().copied());
            P::A64::frees(&idle);
        }
        for _ in 0..empty.min(max) {
            // here: freeing under a lock is not allowed
            if let Some(idle) = self.depot.with(Depot::pop_empty::<P>) {
                P::A64::frees(&idle);
            }
        }
    }

    /// Frees all magazines in which nothing is, those of CPUs too.
    pub fn free_empty(&self) {
        for cpu in self.pairs() {
            // out of the lock: freeing under one is not allowed
            let (loaded, previous) = cpu.with(|pair| {
                let mut empty = (Vec::new(), Vec::new());
                if pair.loaded.is_empty() {
                    core::mem::swap(&mut pair.loaded, &mut empty.0);
                }
                if pair.previous.is_empty() {
                    core::mem::swap(&mut pair.previous, &mut empty.1);
                }
                empty
            });
            P::A64::frees(&loaded);
            P::A64::frees(&previous);
        }
        while let Some(empty) = self.depot.with(Depot::pop_empty::<P>) {
            P::A64::frees(&empty);
        }
    }

    /// Takes everything out, a few things at a time, and gives it to `sink` with no lock held.
    ///
    /// What is given meanwhile may stay. The work is bounded by what the magazines can hold.
    pub fn drain(&self, mut sink: impl FnMut(&mut dyn Iterator<Item = T>)) {
        let chunks = (2 * self.sizes.magazine_len).div_ceil(CHUNK) + 1;
        for cpu in self.pairs() {
            cpu.with(|pair| pair.misses = 0);
            for _ in 0..chunks {
                let mut chunk = [None; CHUNK];
                let taken = cpu.with(|pair| {
                    let from = core::iter::from_fn(|| pair.pop_any::<P>());
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
            let Some(mut full) = self.depot.with(Depot::pop_full::<P>) else {
                break;
            };
            sink(&mut full.iter().copied());
            full.clear();
            self.shelve(full);
        }
    }

    /// Makes loaded what is not empty, if there is such a magazine.
    fn reload(&self, pair: &mut Pair<T>) -> Option<()> {
        if pair.previous.is_empty() {
            let previous = &mut pair.previous;
            if !self.depot.with(|depot| depot.swap_for_full::<P>(previous)) {
                pair.misses = pair.misses.saturating_add(1);
                return None;
            }
        }
        core::mem::swap(&mut pair.loaded, &mut pair.previous);
        Some(())
    }

    fn push(&self, pair: &mut Pair<T>, thing: T, spare: &mut Vec<T>) -> Given<T> {
        if is_full(&pair.loaded) {
            if is_full(&pair.previous) {
                let max = self.sizes.depot_full_max;
                let previous = &mut pair.previous;
                match self
                    .depot
                    .with(|d| d.swap_for_empty::<P>(previous, spare, max))
                {
                    Exchange::Done => {}
                    Exchange::NoEmpty => return Given::NoEmpty,
                    Exchange::NoRoom => {
                        return Given::Overflown(core::mem::take(&mut pair.previous));
                    }
                }
            }
            core::mem::swap(&mut pair.loaded, &mut pair.previous);
        }
        pair.push::<P>(thing);
        Given::Kept
    }

    /// An empty one, if the heap has memory for it.
    fn magazine(&self) -> Option<Vec<T>> {
        let mut magazine = Vec::new();
        let reserved = magazine.try_reserve_exact(self.sizes.magazine_len);
        reserved.ok().map(|()| magazine)
    }

    /// Puts an empty magazine into the depot, or frees it where there are enough.
    fn shelve(&self, magazine: Vec<T>) {
        if magazine.capacity() == 0 {
            return;
        }
        let max = self.sizes.depot_full_max;
        let one_too_many = self.depot.with(|depot| {
            if depot.full.len() + depot.empty.len() < max {
                depot.put_empty::<P>(magazine);
                return None;
            }
            Some(magazine)
        });
        // here, since freeing under a lock is not allowed
        if let Some(magazine) = one_too_many {
            P::A64::frees(&magazine);
        }
    }
}

/// No thing more goes in. Also true where there is no magazine.
fn is_full<T>(magazine: &Vec<T>) -> bool {
    magazine.len() == magazine.capacity()
}
