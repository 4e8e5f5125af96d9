// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Memory of the arena that adjoins, for a driver's own buffers.

use super::UserSpace;
use ioatlas_dma::{
    dma_api::DmaBuffer,
    platform::{Authority, CopyMemory, NotMemoryError},
    units::*,
};
use std::{fmt, mem::ManuallyDrop, sync::Arc};

/// Zeroed bytes that adjoin, so that one mapping covers them. They are read and written by copying,
/// since a device may change them at any time.
///
/// The DMA API maps a buffer and gives it back. Where its [`range`](Self::range) is mapped, or
/// lent, do not drop a buffer that a device may still reach: its memory is used for others then.
/// Unmap it first, and where the domain's policy defers invalidations call
/// [`Domain::flush`](ioatlas_dma::domain::Domain::flush) too, since until then the kernel has it
/// mapped. [`Buffer::leak`] is for those that could not be unmapped, or not be flushed.
pub struct Buffer {
    platform: Arc<UserSpace>,
    run: PhysRun,
    /// All bytes of it, and no more.
    range: PhysRange,
}

/// A buffer has taken its frames, and looks where bytes are before they are moved.
// SAFETY: the bytes are those of the buffer's own run.
const OWNER: Authority = unsafe { Authority::assume() };

impl UserSpace {
    /// A buffer of `len` bytes, or nothing where so much does not adjoin, or nothing is asked for.
    pub fn buffer(self: &Arc<Self>, len: ByteCount) -> Option<Buffer> {
        let pages = PageCount(len.0.div_ceil(GRANULE));
        let run = self.take_run(pages)?;
        Some(Buffer {
            platform: self.clone(),
            run,
            range: PhysRange::new(run.first.addr(), len),
        })
    }
}

impl Buffer {
    /// All of it, to be mapped.
    pub fn range(&self) -> PhysRange {
        self.range
    }
    /// A part of it, or nothing where that is not inside.
    pub fn part(&self, at: ByteCount, len: ByteCount) -> Option<PhysRange> {
        let end = at.0.checked_add(len.0)?;
        let first = || PhysAddr(self.run.first.addr().0 + at.0);
        (end <= self.range.len.0).then(|| PhysRange::new(first(), len))
    }
    /// Copies bytes out, from byte `at` on.
    ///
    /// # Errors
    /// [`NotMemoryError`], where they are not inside; nothing is read then.
    pub fn read(&self, at: ByteCount, into: &mut [u8]) -> Result<(), NotMemoryError> {
        let from = self.inside(at, into.len())?;
        self.platform.read(OWNER, from, into)
    }
    /// Copies bytes in, from byte `at` on.
    ///
    /// # Errors
    /// [`NotMemoryError`], where they are not inside; nothing is written then.
    pub fn write(&self, at: ByteCount, from: &[u8]) -> Result<(), NotMemoryError> {
        let to = self.inside(at, from.len())?;
        self.platform.write(OWNER, from, to)
    }
    fn inside(&self, at: ByteCount, len: usize) -> Result<PhysAddr, NotMemoryError> {
        let len = ByteCount(len as u64);
        let wanted = PhysAddr(self.run.first.addr().0.saturating_add(at.0));
        let part = self.part(at, len);
        part.map(|part| part.addr)
            .ok_or(NotMemoryError(PhysRange::new(wanted, len)))
    }
    /// Never uses its memory again: for a buffer that a device may still reach, after an error of
    /// the unmap or of the flush.
    pub fn leak(self) {
        let _ = ManuallyDrop::new(self);
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Buffer").field(&self.range).finish()
    }
}

// SAFETY: the run is this buffer's, always the same, and read and written by copying alone. What
// its memory becomes after a drop are other buffers and frames of the arena, reached so too.
unsafe impl DmaBuffer for Buffer {
    fn segments(&self) -> &[PhysRange] {
        core::slice::from_ref(&self.range)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.platform.give_run(self.run);
    }
}
