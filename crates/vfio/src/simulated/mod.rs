// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A kernel in this process, with the semantics of the real one: for tests without a device, ours
//! and those of drivers.
//!
//! It is slow and plain on purpose, since it is what the rest is checked against. Address spaces
//! behave as those of Linux 6.12 (`drivers/vfio/vfio_iommu_type1.c`,
//! `drivers/iommu/iommufd/io_pagetable.c`), error numbers and their order included; see `space.rs`.
//! A device is configuration space, BARs of plain memory, and [`Simulated::reach`], which says what
//! memory it reaches at an IOVA: nothing unless it is a bus master, in a space, and the mapping
//! permits it.
//!
//! [`Simulated::fail`] makes the n-th call fail. [`Simulated::open_files`],
//! [`pinned`](Simulated::pinned) and [`mappings`](Simulated::mappings) tell what leaked;
//! [`Simulated::events`] in which order things happened.

mod calls;
mod machine;
mod space;

pub use machine::{Machine, Remapping, SimDevice};
pub use space::Mapped;

use crate::{device::PciAddress, kernel::*};
use ioatlas_dma::units::*;
use machine::State;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The kernel. Clones are the same one.
#[derive(Clone)]
pub struct Simulated(Arc<Mutex<State>>);

/// What happened, as far as order matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A device became a bus master.
    Going(PciAddress),
    /// It is none any more.
    Stopped(PciAddress),
    /// A device was reset.
    Reset(PciAddress),
    /// A mapping was made.
    Mapped(Iova),
    /// A mapping was ended.
    Unmapped(Iova),
}

/// Which call fails, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// So many calls succeed before it.
    pub after: u64,
    /// The error with which it fails.
    pub errno: Errno,
}

impl Simulated {
    /// A kernel on `machine`.
    pub fn new(machine: Machine) -> Self {
        Simulated(Arc::new(Mutex::new(State::new(machine))))
    }
    fn state(&self) -> MutexGuard<'_, State> {
        // what a test that failed leaves is still to be looked at
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on, counted from 0 again, one call fails; or none.
    pub fn fail(&self, failure: Option<Failure>) {
        let mut state = self.state();
        state.calls = 0;
        state.failure = failure;
    }
    /// Calls since [`fail`](Self::fail), or since the beginning.
    pub fn calls(&self) -> u64 {
        self.state().calls
    }
    /// Files that are open.
    pub fn open_files(&self) -> usize {
        self.state().files.len()
    }
    /// Memory that is pinned.
    pub fn pinned(&self) -> ByteCount {
        ByteCount(self.state().pinned)
    }
    /// What is mapped, in all spaces.
    pub fn mappings(&self) -> Vec<Mapped> {
        self.state().mappings()
    }
    /// What happened so far.
    pub fn events(&self) -> Vec<Event> {
        self.state().events.clone()
    }
    /// Takes a device out of the machine.
    pub fn remove(&self, device: PciAddress) {
        if let Some(device) = self.state().machine.device_mut(device) {
            device.removed = true;
        }
    }
    /// Changes the limit of memory that may be pinned.
    pub fn set_pin_limit(&self, limit: Option<ByteCount>) {
        self.state().machine.pin_limit = limit;
    }
    /// Makes memory disappear, so that it cannot be pinned.
    pub fn forget_memory(&self, at: VirtAddr, len: ByteCount) {
        self.state().machine.no_memory.push((at.0, at.0 + len.0));
    }
    /// Ends a mapping unasked, so that its owner does not know.
    pub fn steal(&self, iova: Iova) {
        self.state().steal(iova);
    }

    /// Where an access of `device` to `iova` ends up, if it succeeds.
    pub fn reach(&self, device: PciAddress, iova: Iova, kind: AccessKind) -> Option<VirtAddr> {
        self.state().reach(device, iova, kind)
    }
}

/// An open file of [`Simulated`].
pub struct SimFile {
    kernel: Simulated,
    number: u64,
}

impl Drop for SimFile {
    fn drop(&mut self) {
        self.kernel.state().close(self.number);
    }
}

/// A BAR of [`Simulated`]: plain memory of its own.
pub struct SimRegion(*mut [u8]);

// SAFETY: it owns the memory, which is accessed by volatile words.
unsafe impl Send for SimRegion {}
// SAFETY: as above.
unsafe impl Sync for SimRegion {}

impl SimRegion {
    fn new(len: usize) -> Self {
        let words = vec![0u64; len.div_ceil(8)].into_boxed_slice();
        let bytes = words.len() * 8;
        let at = Box::into_raw(words).cast::<u8>();
        SimRegion(std::ptr::slice_from_raw_parts_mut(at, bytes))
    }
}

// SAFETY: its own memory, which it frees when it is dropped.
unsafe impl AsRegion for SimRegion {
    fn bytes(&self) -> *mut [u8] {
        self.0
    }
}

impl Drop for SimRegion {
    fn drop(&mut self) {
        let words = std::ptr::slice_from_raw_parts_mut(self.0.cast::<u64>(), self.0.len() / 8);
        // SAFETY: the box of `new`, of as many words.
        drop(unsafe { Box::from_raw(words) });
    }
}
