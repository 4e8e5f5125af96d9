// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! One value a CPU, each on cache lines of its own.

use super::{Cpu, Platform};
use crate::units::CpuIndex;
use alloc::boxed::Box;

/// A value alone on its cache lines. 128 bytes: x86 prefetches lines in pairs.
#[repr(align(128))]
pub struct CachePadded<T>(pub T);

/// One `T` a CPU.
pub struct PerCpu<T>(Box<[CachePadded<T>]>);

impl<T> PerCpu<T> {
    /// One value for each CPU of `p`.
    pub fn new<P: Platform>(p: &P, mut make: impl FnMut() -> T) -> Self {
        PerCpu((0..p.cpus()).map(|_| CachePadded(make())).collect())
    }
    /// The value of this CPU.
    #[inline]
    pub fn get(&self, cpu: &Cpu<'_>) -> &T {
        &self.0[cpu.index().0].0
    }
    /// This CPU's value, where there is one: for paths that must not panic.
    #[inline]
    pub fn try_get(&self, cpu: &Cpu<'_>) -> Option<&T> {
        self.0.get(cpu.index().0).map(|value| &value.0)
    }
    /// The value of CPU `index`.
    ///
    /// # Panics
    /// If `index` is not below the platform's number of CPUs.
    #[inline]
    pub fn at(&self, index: CpuIndex) -> &T {
        &self.0[index.0].0
    }
    /// All values, by CPU.
    pub fn iter(&self) -> impl Iterator<Item = (CpuIndex, &T)> {
        self.0.iter().enumerate().map(|(i, v)| (CpuIndex(i), &v.0))
    }
    /// How many CPUs there are.
    pub fn cpus(&self) -> usize {
        self.0.len()
    }
}
