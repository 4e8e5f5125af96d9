// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A shared mapping of a part of a file, which does not outlive its owner unseen.
//!
//! `vm_memory::MmapRegion` does the same, but keeps the file open and ignores what `munmap` says. A
//! process may have 65,530 mappings: where one stays behind at each message, no front end is served
//! any more after so many.

use ioatlas_dma::units::ByteCount;
use rustix::mm::{MapFlags, ProtFlags};
use std::{fs::File, io};

/// A shared mapping; it is unmapped when it is dropped.
#[derive(Debug)]
pub(super) struct Mapping {
    start: *mut u8,
    len: usize,
}

// SAFETY: an address range of the process; what is there is shared with other processes anyway, and
// accessed as such.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `file` from `offset` on, to be read and written. The file can be closed.
    ///
    /// # Errors
    /// Those of `mmap`; `len` is more than a `usize` holds.
    pub fn new(file: &File, offset: ByteCount, len: ByteCount) -> io::Result<Self> {
        let len = usize::try_from(len.0).map_err(io::Error::other)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        let anywhere = std::ptr::null_mut();
        // SAFETY: a new mapping, where there is room; it takes the place of nothing.
        let start = unsafe { rustix::mm::mmap(anywhere, len, access, flags, file, offset.0) }?;
        Ok(Mapping {
            start: start.cast(),
            len,
        })
    }

    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made, or what the SIGBUS handler has put in its place; no
        // code has an address in it any more (`MemoryTable`).
        if let Err(e) = unsafe { rustix::mm::munmap(self.start.cast(), self.len) } {
            let (start, len) = (self.start, self.len);
            log::error!("{len:#x} bytes at {start:?} stay mapped: {e}");
        }
    }
}
