// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What is in magazines, and how much memory they take: for statistics and audits.

use super::{Magazines, Places, Visits, is_full};
use crate::{platform::*, units::ByteCount};
use alloc::{format, string::String, vec::Vec};

impl<P: Platform, T: Copy + Send, S: Places<P, T>> Magazines<P, T, S> {
    /// How often CPUs had to go beyond their magazines, ever.
    pub fn visits(&self) -> Visits {
        self.depot.with(|depot| depot.visits)
    }

    /// Bytes of all magazines that there are, whatever is in them.
    pub fn bytes(&self) -> ByteCount {
        let mut things = 0;
        for cpu in self.pairs() {
            things += cpu.with(|pair| pair.loaded.capacity() + pair.previous.capacity());
        }
        things += self.depot.with(|depot| {
            let all = depot.full.iter().chain(&depot.empty);
            all.map(Vec::capacity).sum::<usize>()
        });
        ByteCount((things * size_of::<T>()) as u64)
    }

    /// The same with what there is without any: the CPUs' places, and the depot's.
    pub fn footprint(&self) -> ByteCount {
        let places = self.cpus.bytes();
        let depot = self.depot.with(|d| d.full.capacity() + d.empty.capacity());
        let fixed = size_of::<Self>() + places + depot * size_of::<Vec<T>>();
        ByteCount(self.bytes().0 + fixed as u64)
    }

    /// How many things are kept. Exact only while nothing else uses the magazines.
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
        for (cpu, lock) in self.pairs().enumerate() {
            let room = |m: &Vec<T>| m.capacity();
            let (loaded, previous) = lock.with(|pair| (room(&pair.loaded), room(&pair.previous)));
            if [loaded, previous]
                .iter()
                .any(|room| ![0, len].contains(room))
            {
                return Err(format!(
                    "CPU {cpu} has room for {loaded} and {previous} in magazines of {len}"
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

    fn for_each_magazine(&self, mut see: impl FnMut(&[T])) {
        for cpu in self.pairs() {
            cpu.with(|pair| {
                see(&pair.loaded);
                see(&pair.previous);
            });
        }
        self.depot
            .with(|depot| depot.full.iter().for_each(|magazine| see(magazine)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{magazine::MagazineSizes, platform::one_cpu::OneCpu};

    const LEN: usize = 4;

    fn of(things: usize) -> Vec<u32> {
        let mut magazine = Vec::with_capacity(LEN);
        magazine.extend(0..things as u32);
        magazine
    }

    /// What the audit says of a depot with these magazines.
    fn audited(full: &[usize], empty: &[usize]) -> Result<(), String> {
        let p = OneCpu::new(1);
        let sizes = MagazineSizes {
            magazine_len: LEN,
            depot_full_max: 2,
        };
        let magazines = Magazines::<OneCpu, u32>::new(&p, sizes);
        magazines.depot.with(|depot| {
            depot.full.extend(full.iter().map(|things| of(*things)));
            depot.empty.extend(empty.iter().map(|things| of(*things)));
        });
        magazines.audit()
    }

    #[test]
    fn a_depot_is_audited_on_both_sides() {
        for (full, empty) in [(&[LEN][..], &[0][..]), (&[LEN; 2], &[]), (&[], &[0; 2])] {
            assert_eq!(audited(full, empty), Ok(()), "{full:?} {empty:?}");
        }
        for (full, empty) in [(LEN - 1, 0), (LEN, 1), (0, 0), (LEN, LEN)] {
            let error = audited(&[full], &[empty]).unwrap_err();
            assert!(error.contains("neither full nor empty"), "{error}");
        }
        let error = audited(&[LEN; 2], &[0]).unwrap_err();
        assert!(error.contains("2 full and 1 empty"), "{error}");
    }

    #[test]
    fn magazines_of_a_cpu_are_audited_one_by_one() {
        for (loaded, previous) in [(LEN, LEN + 1), (LEN + 1, 0)] {
            let p = OneCpu::new(1);
            let sizes = MagazineSizes {
                magazine_len: LEN,
                depot_full_max: 2,
            };
            let magazines = Magazines::<OneCpu, u32>::new(&p, sizes);
            for pair in magazines.pairs() {
                pair.with(|pair| {
                    pair.loaded = Vec::with_capacity(loaded);
                    pair.previous = Vec::with_capacity(previous);
                });
            }
            let error = magazines.audit().unwrap_err();
            assert!(error.contains("in magazines of 4"), "{error}");
        }
    }
}
