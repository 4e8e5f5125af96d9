// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! This process as a machine: a physical address is an address of the process, and all of it is
//! memory to the unit and to the CPU. So a device could reach any heap or stack, were it not for
//! the unit. Frames are those of an arena.
#![allow(clippy::disallowed_types)] // this is a platform

use ioatlas_dma::{platform::*, units::*};
use ioatlas_host::copy::InProcess;
use ioatlas_vfio::platform::{UserSpace, UserSpaceConfig};
use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::sync::atomic::AtomicU64;

/// No process has memory below it.
const LOWEST: u64 = 1 << 16;

/// This process. See the module's theory.
pub struct Process(UserSpace);

impl Process {
    /// With an arena of `frames` frames.
    pub fn new(frames: u64) -> Self {
        let config = UserSpaceConfig::default().pages(PageCount(frames)).slots(2);
        Process(UserSpace::new(config).unwrap())
    }
    /// Frames of the arena that are taken.
    pub fn frames_in_use(&self) -> u64 {
        self.0.frames_in_use().0
    }
}

/// The physical address of what a pointer leads to.
pub fn phys(at: NonNull<u8>) -> PhysAddr {
    PhysAddr(at.as_ptr().expose_provenance() as u64)
}

// SAFETY: devices are given addresses of buffers that live, and those that they are not given the
// unit keeps them from; the tests' own accesses are to their own memory.
unsafe impl InProcess for Process {
    fn bytes(&self, range: PhysRange) -> Result<*mut u8, NotMemoryError> {
        match range.end() {
            Some(_) if range.addr.0 >= LOWEST => {
                Ok(with_exposed_provenance_mut(range.addr.0 as usize))
            }
            _ => Err(NotMemoryError(range)),
        }
    }
}

ioatlas_host::copy_in_process!(Process);

impl PhysMemory<Process> for Process {
    /// Tables lie in the arena.
    fn word(&self, _: Authority, page: PhysPage, index: usize) -> Option<&AtomicU64> {
        let arena = self.0.arena();
        let inside = page.0.checked_sub(arena.first.0)? < arena.pages.0 && index < 512;
        let at = page.addr().0 as usize + 8 * index;
        // SAFETY: a word of the arena, which is such words and lives as long as this; its pointer
        // was exposed.
        inside.then(|| unsafe { AtomicU64::from_ptr(with_exposed_provenance_mut(at)) })
    }
}

// SAFETY: all of it is the arena's.
unsafe impl Platform for Process {
    type A64 = <UserSpace as Platform>::A64;
    type Lock<T: Send> = <UserSpace as Platform>::Lock<T>;

    fn pinned<R>(&self, f: impl FnOnce(Cpu<'_>) -> R) -> R {
        self.0.pinned(f)
    }
    fn cpus(&self) -> usize {
        self.0.cpus()
    }
    fn frame_alloc(&self) -> Option<FreshFrame> {
        self.0.frame_alloc()
    }
    fn frame_free(&self, by: Authority, frame: FreshFrame) {
        self.0.frame_free(by, frame)
    }
    fn entries<'f>(&'f self, by: Authority, frame: FrameRef<'f>) -> &'f [AtomicU64] {
        self.0.entries(by, frame)
    }
    fn fence(&self, order: Ordering) {
        self.0.fence(order)
    }
    fn relax(&self) {
        self.0.relax()
    }
    fn unique(&self) -> u64 {
        self.0.unique()
    }
}

// SAFETY: as above.
unsafe impl ContiguousMemory for Process {
    fn frames_alloc(&self, pages: PageCount) -> Option<FreshRun> {
        self.0.frames_alloc(pages)
    }
    fn frames_ptr(&self, run: &FreshRun) -> NonNull<u8> {
        self.0.frames_ptr(run)
    }
}
