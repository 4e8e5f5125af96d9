// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The words of a host's memory: of this process alone, or of a file that others map too.
#![allow(clippy::disallowed_types)] // part of a platform

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::boxed::Box;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Words that live until it is dropped.
pub(super) struct Memory {
    words: NonNull<[AtomicU64]>,
    owner: Owner,
}

/// Who has to give them back, and how.
enum Owner {
    Heap,
    Kernel,
}

// SAFETY: it owns the words, which are atomic.
unsafe impl Send for Memory {}
// SAFETY: as above; only shared references to the words are given out.
unsafe impl Sync for Memory {}

impl Memory {
    /// Zeroed words of this process, untouched until they are used.
    pub fn zeroed(words: usize) -> Self {
        let zeroed: Box<[u64]> = std::vec![0u64; words].into();
        // the same in size, bit validity and, as checked here, alignment
        const { assert!(align_of::<AtomicU64>() == align_of::<u64>()) };
        let words = Box::into_raw(zeroed) as *mut [AtomicU64];
        Memory {
            words: NonNull::new(words).expect("a box is not null"),
            owner: Owner::Heap,
        }
    }

    /// The first `words` words of `file`, shared.
    pub fn map(file: &File, words: usize) -> io::Result<Self> {
        let bytes = words * size_of::<u64>();
        if bytes == 0 || file.metadata()?.len() < bytes as u64 {
            let text = std::format!("{} words are not in the file", words);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at a place that the kernel chooses changes nothing that exists. Whoever else maps the file may
        // change words at any time, as atomic words may be; who shortens it makes accesses fault, as with every shared mapping.
        let at = unsafe { mmap(std::ptr::null_mut(), bytes, protection, flags, file, 0) }?;
        let words = std::ptr::slice_from_raw_parts_mut(at.cast::<AtomicU64>(), words);
        Ok(Memory {
            words: NonNull::new(words).expect("the kernel maps nothing at 0 unasked"),
            owner: Owner::Kernel,
        })
    }
}

impl Deref for Memory {
    type Target = [AtomicU64];
    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the words live until `self` is dropped, aligned (a box, or a page) and initialised (zeroed, or a file's).
        unsafe { self.words.as_ref() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let words = self.words.as_ptr();
        match self.owner {
            Owner::Heap => {
                // SAFETY: it came from a box of as many `u64`, whose layout is the same, and nobody else frees it.
                drop(unsafe { Box::from_raw(words as *mut [u64]) });
            }
            Owner::Kernel => {
                let bytes = self.len() * size_of::<u64>();
                // SAFETY: our own mapping, of just these bytes; the borrows of its words have ended. It cannot fail then.
                let _ = unsafe { munmap(words.cast(), bytes) };
            }
        }
    }
}
