// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Taking some of what is kept for any CPU.

use super::*;

impl<P: Platform, T: Copy + Send, S: Places<P, T>> Magazines<P, T, S> {
    /// Takes out what `wanted` names and gives it to `sink`, a few things at a time, with no lock
    /// held. A magazine that is to stay full goes there whole if something of it is wanted.
    ///
    /// What is given meanwhile may stay. The work is bounded by what the magazines can hold.
    pub(crate) fn send_away(
        &self,
        wanted: impl Fn(&T) -> bool,
        mut sink: impl FnMut(&mut dyn Iterator<Item = T>),
    ) {
        for cpu in self.pairs() {
            let previous = cpu.with(|pair| {
                let some = pair.previous.iter().any(&wanted);
                some.then(|| core::mem::take(&mut pair.previous))
            });
            self.send_whole(previous, &mut sink);
            for _ in 0..self.sizes.magazine_len.div_ceil(CHUNK) {
                let mut chunk = [None; CHUNK];
                let taken = cpu.with(|pair| pair.take_out::<P>(&wanted, &mut chunk));
                if taken == 0 {
                    break;
                }
                sink(&mut chunk.into_iter().flatten());
            }
        }
        for nth in (0..self.sizes.depot_full_max).rev() {
            // those behind have been looked at, and one that is taken out has the last in its place
            let full = self.depot.with(|depot| {
                let some = depot.full.get(nth)?.iter().any(&wanted);
                some.then(|| depot.take_full::<P>(nth))
            });
            self.send_whole(full, &mut sink);
        }
    }

    /// Takes what is kept for CPU `first`, for those that follow, and for those before it, until
    /// `found` is full. Returns how many things those are. What the depot has is for
    /// [`take`](Self::take).
    ///
    /// # Panics
    /// If there are things, and `first` is not a CPU of the platform.
    pub(crate) fn take_from(&self, first: CpuIndex, found: &mut [T]) -> usize {
        let cpus = self.cpus.cpus();
        let mut taken = 0;
        for cpu in (first.0..cpus).chain(0..first.0).map(CpuIndex) {
            while taken < found.len() {
                let few = (found.len() - taken).min(CHUNK);
                let here = self.cpus.at(cpu).with(|pair| {
                    let from = core::iter::from_fn(|| pair.pop_any::<P>());
                    let places = found[taken..taken + few].iter_mut().zip(from);
                    places.map(|(place, thing)| *place = thing).count()
                });
                taken += here;
                if here < few {
                    break;
                }
            }
        }
        taken
    }

    fn send_whole(
        &self,
        magazine: Option<Vec<T>>,
        sink: &mut impl FnMut(&mut dyn Iterator<Item = T>),
    ) {
        if let Some(mut magazine) = magazine {
            sink(&mut magazine.drain(..));
            self.shelve(magazine);
        }
    }
}

impl<T: Copy> Pair<T> {
    /// Takes what is `wanted` out of the loaded magazine, as far as `chunk` has room; returns how
    /// many there were. The others keep their order.
    fn take_out<P: Platform>(
        &mut self,
        wanted: impl Fn(&T) -> bool,
        chunk: &mut [Option<T>; CHUNK],
    ) -> usize {
        P::A64::touches(|| Some((&self.loaded, self.loaded.len())));
        let mut taken = 0;
        self.loaded.retain(|thing| {
            let goes = taken < CHUNK && wanted(thing);
            if goes {
                chunk[taken] = Some(*thing);
                taken += 1;
            }
            !goes
        });
        taken
    }
}
