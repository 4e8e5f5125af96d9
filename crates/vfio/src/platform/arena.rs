// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! One piece of this process's address space, of anonymous memory.

use ioatlas_dma::units::*;
use rustix::{
    io::Errno,
    mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap},
};
use std::{ptr::NonNull, sync::atomic::AtomicU64};

/// Words of a frame.
pub(super) const WORDS: usize = (GRANULE / 8) as usize;
/// Where a search for a low place begins, and its steps: above what 32-bit devices and
/// the interrupt window have.
const LOWEST: u64 = 1 << 32;
const STEP: u64 = 1 << 30;

/// Where the arena lies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum ArenaPlace {
    /// Wherever the kernel puts it.
    #[default]
    Anywhere,
    /// Below 2^n, as `identity` needs it: n is two less than the bits of an IOVA.
    Below(u32),
}

/// What pages it is made of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Pages {
    /// Small ones, or large ones where the kernel has some cached (transparent huge pages).
    #[default]
    Usual,
    /// Small ones and no others.
    Small,
    /// Large ones, of those that the administrator has set aside (`vm.nr_hugepages`).
    Huge,
}

/// Why there is no arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// Of no frames, or of more than there are addresses.
    #[error("an arena of {pages} pages")]
    Length {
        /// How many were wanted.
        pages: PageCount,
    },
    /// No room so low.
    #[error("no {pages} pages are free below 2^{bits} in this process's address space")]
    NoLowPlace {
        /// How many were wanted.
        pages: PageCount,
        /// Below which power of two.
        bits: u32,
    },
    /// Not as many large pages are set aside.
    #[error(
        "{pages} pages of memory are not there in large pages: set them aside (`sysctl vm.nr_hugepages`), or use `Pages::Usual`"
    )]
    NoHugePages {
        /// How many were wanted, of 4 KiB.
        pages: PageCount,
    },
    /// What none of the above explains.
    #[error("no memory for an arena of {pages} pages: error number {errno}")]
    Kernel {
        /// How many were wanted.
        pages: PageCount,
        /// The kernel's error number.
        errno: i32,
    },
}

/// Zeroed words at fixed addresses, until it is dropped.
pub(super) struct Arena {
    at: NonNull<[AtomicU64; WORDS]>,
    frames: usize,
}

// SAFETY: it owns the words, which are atomic.
unsafe impl Send for Arena {}
// SAFETY: as above; only shared references to the words are given out.
unsafe impl Sync for Arena {}

impl Arena {
    pub fn new(pages: PageCount, place: ArenaPlace, kind: Pages) -> Result<Self, ArenaError> {
        let huge = 1u64 << 9;
        let rounded = match kind {
            Pages::Huge => pages.0.checked_next_multiple_of(huge),
            Pages::Usual | Pages::Small => Some(pages.0),
        };
        let frames = rounded.filter(|pages| *pages > 0 && *pages < 1 << 35);
        let frames = frames.ok_or(ArenaError::Length { pages })?;
        let len = (frames << GRANULE_LG2) as usize;
        let failed = |errno: Errno| match kind {
            Pages::Huge if errno == Errno::NOMEM => ArenaError::NoHugePages { pages },
            _ => ArenaError::Kernel {
                pages,
                errno: errno.raw_os_error(),
            },
        };
        let mut flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        if kind == Pages::Huge {
            // of the size that `rounded` knows, whatever the system's default is: an `munmap` of
            // other lengths fails
            flags = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB;
        }
        let at = match place {
            ArenaPlace::Anywhere => map(0, len, flags).map_err(failed)?,
            ArenaPlace::Below(bits) => {
                let none = ArenaError::NoLowPlace { pages, bits };
                let end = 1u64.checked_shl(bits).ok_or(none)?;
                let last = end.checked_sub(len as u64).ok_or(none)?;
                let mut places = (LOWEST..=last).step_by(STEP as usize);
                loop {
                    let at = places.next().ok_or(none)?;
                    match map(at as usize, len, flags | MapFlags::FIXED_NOREPLACE) {
                        Ok(at) => break at,
                        Err(Errno::EXIST) => {}
                        Err(errno) => return Err(failed(errno)),
                    }
                }
            }
        };
        let arena = Arena {
            at,
            frames: frames as usize,
        };
        let _ = at.as_ptr().expose_provenance(); // buffers are told by their addresses
        let advise = |advice| {
            // SAFETY: our own mapping; neither advice changes what is in it.
            let _ = unsafe { madvise(at.as_ptr().cast(), len, advice) };
        };
        advise(Advice::LinuxDontFork);
        match kind {
            // as far as the kernel has any
            Pages::Usual => advise(Advice::LinuxHugepage),
            Pages::Small => advise(Advice::LinuxNoHugepage),
            Pages::Huge => {}
        }
        Ok(arena)
    }

    /// Its frames, by their place in it.
    #[inline]
    pub fn frames(&self) -> &[[AtomicU64; WORDS]] {
        // SAFETY: as many frames are mapped until `self` is dropped, aligned to pages, zeroed at
        // first.
        unsafe { NonNull::slice_from_raw_parts(self.at, self.frames).as_ref() }
    }
    /// The number of its first frame: its address, in pages.
    #[inline]
    pub fn first(&self) -> PhysPage {
        PhysPage(self.at.as_ptr().addr() as u64 >> GRANULE_LG2)
    }
}

fn map(at: usize, len: usize, flags: MapFlags) -> Result<NonNull<[AtomicU64; WORDS]>, Errno> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let hint = std::ptr::without_provenance_mut(at);
    // SAFETY: a new mapping, at a place of the kernel's choice or where nothing is, changes nothing
    // that exists.
    let got = unsafe { mmap_anonymous(hint, len, protection, flags) }?;
    let exact = at == 0 || got.addr() == at;
    match NonNull::new(got.cast()) {
        Some(frames) if exact => Ok(frames),
        _ => {
            // kernels before 4.17 take the place for a hint
            // SAFETY: it was mapped just now, and no other code knows of it.
            let _ = unsafe { munmap(got, len) };
            Err(Errno::EXIST)
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let len = self.frames << GRANULE_LG2;
        // SAFETY: our own mapping; the borrows of its words have ended. It cannot fail then.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), len) };
    }
}
