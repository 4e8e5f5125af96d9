// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The machine's own words, for platforms that have nothing to watch: a kernel, a process.
//! Where the machine has no atomic words of 64 bits a platform brings its own.
#![cfg(target_has_atomic = "64")]
#![allow(clippy::disallowed_types)] // platforms take them from here

use super::{Atomic64, Ordering};
use core::sync::atomic::AtomicU64;

impl Atomic64 for AtomicU64 {
    #[inline]
    fn new(value: u64) -> Self {
        AtomicU64::new(value)
    }
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }
    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order)
    }
    #[inline]
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.swap(value, order)
    }
    #[inline]
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_add(value, order)
    }
    #[inline]
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.compare_exchange(current, new, success, failure)
    }
}
