// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Memory that is shared with a back end.
//!
//! The back end is another process (or thread) that may write any byte at any time. So nothing here
//! makes a reference to shared bytes: words are atomic, and bytes are copied out before they are
//! looked at. Every access is checked against the length; one outside it is a bug of ours.

use ioatlas_dma::{platform::Ordering, units::ByteCount};
use ioatlas_vhost::server::{Sealed, memory_file};
use std::{fs::File, io};
use vm_memory::{AtomicAccess, Bytes, FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

/// A sealed file of zeros, mapped.
#[derive(Debug)]
pub(crate) struct Ram {
    region: MmapRegion<()>,
}

const INSIDE: &str = "inside of memory, and aligned";

impl Ram {
    /// Makes one, and its file.
    pub(crate) fn new(len: ByteCount) -> io::Result<(Self, File)> {
        let file = memory_file(len, Sealed::Yes)?;
        let mapped = FileOffset::new(file.try_clone()?, 0);
        let region = MmapRegion::from_file(mapped, len.0 as usize).map_err(io::Error::other)?;
        Ok((Ram { region }, file))
    }

    #[inline]
    fn whole(&self) -> VolatileSlice<'_> {
        self.region.as_volatile_slice()
    }

    #[inline]
    pub(crate) fn load<T: AtomicAccess>(&self, at: usize, order: Ordering) -> T {
        self.whole().load(at, order).expect(INSIDE)
    }

    #[inline]
    pub(crate) fn store<T: AtomicAccess>(&self, at: usize, value: T, order: Ordering) {
        self.whole().store(value, at, order).expect(INSIDE);
    }

    #[inline]
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        self.whole().write_slice(bytes, at).expect(INSIDE);
    }

    #[inline]
    pub(crate) fn read(&self, at: usize, bytes: &mut [u8]) {
        self.whole().read_slice(bytes, at).expect(INSIDE);
    }
}
