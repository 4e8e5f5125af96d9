// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Where the CPUs' pairs of magazines are.
//!
//! One kind of thing has a pair a CPU, alone on its cache lines: [`PerCpu`]. Many kinds that are
//! used together, as a bounce pool's classes and permissions are, share a [`Rack`]: all pairs of a
//! CPU lie beside each other, on lines of that CPU alone, so that no two CPUs share one, and half
//! of the padding is gone.

use super::Pair;
use crate::{platform::*, units::CpuIndex};
use alloc::sync::Arc;

/// The pair of each CPU.
pub trait Places<P: Platform, T: Send>: Send + Sync {
    /// The pair of this CPU.
    fn get(&self, cpu: &Cpu<'_>) -> &P::Lock<Pair<T>> {
        self.at(cpu.index())
    }
    /// That of CPU `index`.
    ///
    /// # Panics
    /// If `index` is not below the platform's number of CPUs.
    fn at(&self, index: CpuIndex) -> &P::Lock<Pair<T>>;
    /// How many CPUs there are.
    fn cpus(&self) -> usize;
    /// Bytes of them all, with their padding.
    fn bytes(&self) -> usize;
}

impl<P: Platform, T: Send> Places<P, T> for PerCpu<P::Lock<Pair<T>>> {
    #[inline]
    fn at(&self, index: CpuIndex) -> &P::Lock<Pair<T>> {
        PerCpu::at(self, index)
    }
    fn cpus(&self) -> usize {
        PerCpu::cpus(self)
    }
    fn bytes(&self) -> usize {
        PerCpu::cpus(self) * size_of::<CachePadded<P::Lock<Pair<T>>>>()
    }
}

/// Two pairs of one CPU: as many as lines that are fetched together hold on hosts.
type Two<P, T> = CachePadded<[<P as Platform>::Lock<Pair<T>>; 2]>;

/// Places for several kinds of things: all pairs of the first CPU, all of the second, and so on.
pub struct Rack<P: Platform, T: Send> {
    twos: Arc<[Two<P, T>]>,
    kinds: usize,
}

impl<P: Platform, T: Copy + Send> Rack<P, T> {
    /// For so many kinds.
    pub fn new(p: &P, kinds: usize) -> Self {
        let twos = p.cpus() * kinds.div_ceil(2);
        let pair = || P::Lock::new(Pair::new());
        Rack {
            twos: (0..twos).map(|_| CachePadded([pair(), pair()])).collect(),
            kinds,
        }
    }

    /// The places of one kind. Take each once: two shelves of a kind have the same things.
    ///
    /// # Panics
    /// If there are not so many kinds.
    pub fn shelf(&self, kind: usize) -> Shelf<P, T> {
        assert!(kind < self.kinds, "kind {kind} of {}", self.kinds);
        // the last of an odd number has two places
        let places = if kind + 1 == self.kinds {
            1 + self.kinds % 2
        } else {
            1
        };
        Shelf {
            twos: self.twos.clone(),
            stride: self.kinds.div_ceil(2),
            two: kind / 2,
            which: kind % 2,
            places,
        }
    }
}

/// One kind's places in a [`Rack`].
pub struct Shelf<P: Platform, T: Send> {
    twos: Arc<[Two<P, T>]>,
    /// From CPU to CPU.
    stride: usize,
    two: usize,
    which: usize,
    /// Places of each CPU, those that stay unused included.
    places: usize,
}

impl<P: Platform, T: Send> Places<P, T> for Shelf<P, T> {
    #[inline(always)] // on the fast path of a map, which calls nothing
    fn at(&self, index: CpuIndex) -> &P::Lock<Pair<T>> {
        &self.twos[index.0 * self.stride + self.two].0[self.which]
    }
    fn cpus(&self) -> usize {
        self.twos.len() / self.stride
    }
    fn bytes(&self) -> usize {
        self.cpus() * self.places * size_of::<Two<P, T>>() / 2
    }
}
