// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! CPUs, sockets, and sets of CPUs.

use serde::Serialize;

/// CPUs that a machine may have.
pub const CPUS_MAX: usize = 256;

/// How many CPUs there are, and on how many sockets. CPUs are numbered socket by socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Topology {
    /// CPUs in all, 1 to [`CPUS_MAX`].
    pub cpus: usize,
    /// CPUs of one socket, at least 1.
    pub cpus_per_socket: usize,
}

impl Topology {
    /// The first `cpus` CPUs of sockets of eight, as in ATC'15 §6.
    pub const fn of_eights(cpus: usize) -> Self {
        Topology {
            cpus,
            cpus_per_socket: 8,
        }
    }
    /// The socket of CPU `cpu`.
    pub const fn socket(&self, cpu: usize) -> usize {
        cpu / self.cpus_per_socket
    }
}

/// A set of CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct CpuSet([u64; CPUS_MAX / 64]);

impl CpuSet {
    pub(crate) const EMPTY: CpuSet = CpuSet([0; CPUS_MAX / 64]);

    pub(crate) fn only(cpu: usize) -> Self {
        let mut set = Self::EMPTY;
        set.insert(cpu);
        set
    }
    pub(crate) fn insert(&mut self, cpu: usize) {
        self.0[cpu / 64] |= 1 << (cpu % 64);
    }
    pub(crate) fn remove(&mut self, cpu: usize) {
        self.0[cpu / 64] &= !(1 << (cpu % 64));
    }
    pub(crate) fn has(&self, cpu: usize) -> bool {
        self.0[cpu / 64] >> (cpu % 64) & 1 == 1
    }
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::EMPTY
    }
    pub(crate) fn meets(&self, other: &CpuSet) -> bool {
        self.0.iter().zip(&other.0).any(|(a, b)| a & b != 0)
    }
    pub(crate) fn without(mut self, other: &CpuSet) -> CpuSet {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a &= !b);
        self
    }
    /// The CPUs, from the lowest.
    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        let words = self.0.into_iter().enumerate();
        words.flat_map(|(at, word)| {
            let mut left = word;
            core::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
                left &= left - 1;
                Some(64 * at + bit)
            })
        })
    }
}
