// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The platform.

use super::{
    DeviceMemory,
    arena::{Arena, ArenaError, ArenaPlace, Pages, WORDS},
};
use crate::kernel::VirtAddr;
use ioatlas_dma::{platform::*, units::*};
use ioatlas_host::{Host, HostConfig, HostLock, copy::InProcess, frames::Frames};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError, RwLock, atomic::AtomicU64};

/// How large a [`UserSpace`] is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // its fields say it
#[non_exhaustive]
pub struct UserSpaceConfig {
    /// Frames of the arena.
    pub pages: PageCount,
    pub place: ArenaPlace,
    /// What pages it is made of.
    pub kind: Pages,
    /// CPU slots, as [`HostConfig::slots`]. At least 1.
    pub slots: usize,
}

ioatlas_dma::setters!(const UserSpaceConfig {
    pages: PageCount,
    place: ArenaPlace,
    kind: Pages,
    slots: usize,
});

impl Default for UserSpaceConfig {
    /// 256 MiB wherever there is room, and slots for 15 registered threads.
    fn default() -> Self {
        UserSpaceConfig {
            pages: PageCount(64 << 10),
            place: ArenaPlace::default(),
            kind: Pages::default(),
            slots: 16,
        }
    }
}

/// This process, with an arena of memory for devices. See the module's theory.
pub struct UserSpace {
    arena: Arena,
    frames: Mutex<Frames>,
    lent: RwLock<Vec<PhysRun>>,
    /// Slots, locks and fences.
    host: Host,
}

/// What cannot be lent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{len} bytes at {at} are not whole pages of 4 KiB, or not addresses of this process")]
#[allow(missing_docs)] // its fields say it
pub struct NotBorrowedError {
    pub at: VirtAddr,
    pub len: ByteCount,
}

impl UserSpace {
    /// With an arena of its own.
    ///
    /// # Panics
    /// If `config.slots` is 0.
    pub fn new(config: UserSpaceConfig) -> Result<Self, ArenaError> {
        let arena = Arena::new(config.pages, config.place, config.kind)?;
        Ok(UserSpace {
            frames: Mutex::new(Frames::new(arena.frames().len())),
            lent: RwLock::default(),
            host: Host::new(HostConfig::default().frames(0).slots(config.slots)),
            arena,
        })
    }

    /// The frames of the arena.
    pub fn arena(&self) -> PhysRun {
        let pages = PageCount(self.arena.frames().len() as u64);
        PhysRun::new(self.arena.first(), pages)
    }
    /// Frames of the arena that are taken.
    pub fn frames_in_use(&self) -> PageCount {
        PageCount(self.free().in_use() as u64)
    }
    fn free(&self) -> std::sync::MutexGuard<'_, Frames> {
        // it never panics half-way
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets devices have memory of the process beside the arena: whole pages, which then are
    /// frames as those are.
    ///
    /// # Safety
    /// As long as the platform lives, the memory stays mapped in the process, and no code has a
    /// reference to any of it, but for such that atomic words and other interior mutability allow:
    /// a device may read and write it at any time.
    pub unsafe fn lend(&self, at: VirtAddr, len: ByteCount) -> Result<PhysRange, NotBorrowedError> {
        let range = PhysRange::new(PhysAddr(at.0), len);
        let whole = at.0.is_multiple_of(GRANULE) && len.0.is_multiple_of(GRANULE);
        if !whole || len.0 == 0 || range.end().is_none() {
            return Err(NotBorrowedError { at, len });
        }
        let lent = self.lent.write();
        lent.unwrap_or_else(PoisonError::into_inner)
            .push(range.run());
        Ok(range)
    }

    /// As many frames that adjoin, zeroed; [`give_run`](Self::give_run) takes them back.
    pub(super) fn take_run(&self, pages: PageCount) -> Option<PhysRun> {
        let frames = usize::try_from(pages.0).ok().filter(|frames| *frames > 0)?;
        let run = self.free().take_run(frames)?;
        run.zero(self.arena.frames());
        let first = PhysPage(self.arena.first().0 + run.first as u64);
        Some(PhysRun::new(first, pages))
    }
    pub(super) fn give_run(&self, run: PhysRun) {
        let first = (run.first.0 - self.arena.first().0) as usize;
        self.free().give(first, run.pages.0 as usize);
    }

    /// Whether devices and the CPU may have all of these pages.
    #[inline]
    fn has(&self, run: PhysRun) -> bool {
        let inside = |part: &PhysRun| {
            let from = run.first.0.checked_sub(part.first.0);
            from.is_some_and(|from| from < part.pages.0 && run.pages.0 <= part.pages.0 - from)
        };
        if inside(&self.arena()) {
            return true;
        }
        let lent = self.lent.read().unwrap_or_else(PoisonError::into_inner);
        lent.iter().any(inside)
    }
}

// SAFETY: the arena is atomic words and lives as long as this; what was lent is as its lender
// promised.
unsafe impl InProcess for UserSpace {
    #[inline]
    fn bytes(&self, range: PhysRange) -> Result<*mut u8, NotMemoryError> {
        let known = range.end().is_some() && (range.len.0 == 0 || self.has(range.run()));
        match known {
            // the arena's own pointer and those of the code that lent the memory were exposed
            true => Ok(std::ptr::with_exposed_provenance_mut(range.addr.0 as usize)),
            false => Err(NotMemoryError(range)),
        }
    }
}

ioatlas_host::copy_in_process!(UserSpace);

// SAFETY: the arena is atomic words and lives as long as this; what was lent is as its lender
// promised.
unsafe impl DeviceMemory for UserSpace {
    #[inline]
    fn address(&self, run: PhysRun) -> Option<VirtAddr> {
        self.has(run).then_some(VirtAddr(run.first.addr().0))
    }
}

// SAFETY: frames are the arena's, in its list or with one owner, and zeroed; all else is the
// host's.
unsafe impl Platform for UserSpace {
    type A64 = AtomicU64;
    type Lock<T: Send> = HostLock<T>;

    #[inline]
    fn pinned<R>(&self, f: impl FnOnce(Cpu<'_>) -> R) -> R {
        self.host.pinned(f)
    }
    #[inline(always)]
    fn try_pinned<R>(&self, f: impl FnOnce(Cpu<'_>) -> R) -> Option<R> {
        self.host.try_pinned(f)
    }
    fn cpus(&self) -> usize {
        self.host.cpus()
    }
    fn frame_alloc(&self) -> Option<FreshFrame> {
        let run = self.free().take()?;
        run.zero(self.arena.frames());
        let page = PhysPage(self.arena.first().0 + run.first as u64);
        // SAFETY: a page of the arena that was free, taken and zeroed.
        Some(unsafe { FreshFrame::new(page) })
    }
    fn frame_free(&self, _: Authority, frame: FreshFrame) {
        self.give_run(PhysRun::new(frame.page(), PageCount(1)));
    }
    #[inline]
    fn entries<'f>(&'f self, _: Authority, frame: FrameRef<'f>) -> &'f [AtomicU64] {
        const { assert!(WORDS == 512) };
        &self.arena.frames()[(frame.page().0 - self.arena.first().0) as usize]
    }
    #[inline]
    fn fence(&self, order: Ordering) {
        self.host.fence(order)
    }
    fn relax(&self) {
        self.host.relax()
    }
    fn unique(&self) -> u64 {
        self.host.unique()
    }
}

// SAFETY: the arena is atomic words; what is lent beside it has that promise; and the kernel
// translates to nothing else, since nothing else has an address ([`DeviceMemory`]).
unsafe impl DedicatedMemory for UserSpace {}

// SAFETY: the arena is atomic words in a row.
unsafe impl ContiguousMemory for UserSpace {
    fn frames_alloc(&self, pages: PageCount) -> Option<FreshRun> {
        // SAFETY: frames of the arena that were free, taken and zeroed.
        Some(unsafe { FreshRun::new(self.take_run(pages)?) })
    }
    fn frames_ptr(&self, run: &FreshRun) -> NonNull<u8> {
        let first = run.run().first.0 - self.arena.first().0;
        NonNull::from(&self.arena.frames()[first as usize..]).cast()
    }
}
