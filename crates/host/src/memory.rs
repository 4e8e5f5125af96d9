// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The words of a host's memory: of this process alone, or of a file that others map too.
#![allow(clippy::disallowed_types)] // part of a platform

use super::WORDS;
use ioatlas_dma::units::GRANULE;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Words that live until it is dropped.
pub(super) struct Memory {
    frames: NonNull<[[AtomicU64; WORDS]]>,
    owner: Owner,
}

/// What has to give them back, and how.
enum Owner {
    /// These words, of which the frames are those from a page on.
    Heap(NonNull<[u64]>),
    Kernel,
}

// SAFETY: it owns the words, which are atomic.
unsafe impl Send for Memory {}
// SAFETY: as above; only shared references to the words are given out.
unsafe impl Sync for Memory {}

impl Memory {
    /// Zeroed frames of this process, untouched until they are used.
    pub fn zeroed(frames: usize) -> Self {
        // Words, not frames: only of small things does the standard library see that they are zero,
        // and ask for zeroed memory instead of writing it.
        let zeroed: Box<[u64]> = vec![0u64; (frames + 1) * WORDS].into();
        // the same in size, bit validity and, as checked here, alignment
        const { assert!(align_of::<AtomicU64>() == align_of::<u64>()) };
        let words = NonNull::from(Box::leak(zeroed));
        let first = words.cast::<[AtomicU64; WORDS]>();
        // one frame more than was asked for is there
        let to_page = first.as_ptr().cast::<u8>().align_offset(GRANULE as usize);
        // SAFETY: less than a frame further on.
        let first = unsafe { first.byte_add(to_page) };
        Memory {
            frames: NonNull::slice_from_raw_parts(first, frames),
            owner: Owner::Heap(words),
        }
    }

    /// The first frames of `file`, shared.
    pub fn map(file: &File, frames: usize) -> io::Result<Self> {
        let words = frames * WORDS;
        let bytes = words * size_of::<u64>();
        if bytes == 0 || file.metadata()?.len() < bytes as u64 {
            let text = format!("{} words are not in the file", words);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at a place that the kernel chooses changes nothing that exists.
        // Through other mappings of the file words may change at any time, as atomic words may; a
        // file that is shortened makes accesses fault, as with every shared mapping.
        let at = unsafe { mmap(std::ptr::null_mut(), bytes, protection, flags, file, 0) }?;
        let frames = std::ptr::slice_from_raw_parts_mut(at.cast::<[AtomicU64; WORDS]>(), frames);
        Ok(Memory {
            frames: NonNull::new(frames).expect("the kernel maps nothing at 0 unasked"),
            owner: Owner::Kernel,
        })
    }
}

impl Memory {
    /// Whether it is a file's, and so begins at a page.
    pub fn is_on_file(&self) -> bool {
        matches!(self.owner, Owner::Kernel)
    }
    /// By frame: how many there are is available, so that to find one takes one comparison.
    #[inline]
    pub fn frames(&self) -> &[[AtomicU64; WORDS]] {
        // SAFETY: the words live until `self` is dropped, aligned (to a page) and
        // initialised (zeroed, or a file's).
        unsafe { self.frames.as_ref() }
    }
}

impl Deref for Memory {
    type Target = [AtomicU64];
    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        self.frames().as_flattened()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let frames = self.frames.as_ptr();
        match self.owner {
            Owner::Heap(words) => {
                // SAFETY: it was a box, and nothing else frees it; the borrows of its words have
                // ended.
                drop(unsafe { Box::from_raw(words.as_ptr()) });
            }
            Owner::Kernel => {
                let bytes = size_of_val(self.frames());
                // SAFETY: our own mapping, of just these bytes; the borrows of its words have
                // ended. It cannot fail then.
                let _ = unsafe { munmap(frames.cast(), bytes) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of this process that are in memory.
    fn resident() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
        let pages = statm.split(' ').nth(1).and_then(|n| n.parse().ok());
        pages.map_or(0, |pages: usize| pages * 4096)
    }

    #[test]
    fn frames_take_no_memory_until_they_are_used() {
        let (frames, before) = (1 << 18, resident());
        let memory = Memory::zeroed(frames);
        let taken = resident().saturating_sub(before);
        // a GiB; other tests run meanwhile
        assert!(taken < 512 << 20, "{taken} bytes");
        assert_eq!(memory.frames().len(), frames);
        assert!(memory.frames().as_ptr().addr().is_multiple_of(4096));
    }
}
