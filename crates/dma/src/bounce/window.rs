// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Filling a bounce buffer before the device is told of it, and emptying it after.
//!
//! What must be zero when the device is told (P7):
//!
//! | the device may | is copied in | must be zero |
//! |---|---|---|
//! | read | `ToDevice`: the data | all else |
//! | write | nothing | the data's place: bytes that the device does not write come back as zero |
//! | both | the data, unless it is `FromDevice` | all else |
//!
//! Zeroing what is zero already is avoided by the [`Extent`] that a slot has. A slot that devices
//! only read holds, outside it, zeroes, as only the CPU writes there; so a user of the same size
//! zeroes nothing. A slot that devices only write was zeroed within it when its last user left; so
//! map need not touch it at all, and unmap zeroes in the pass that copies ([`CopyMemory::take`]).
//! What a device wrote past its buffer lies outside, and is zeroed before it becomes part of a
//! later user's buffer.

use super::pieces::{Data, Frames, Move, Span, move_all, move_bytes, zero_bytes};
use crate::{
    platform::{CopyMemory, NotMemoryError},
    units::*,
};

/// A range of a buffer's bytes. See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    pub from: u32,
    pub to: u32,
}

impl Extent {
    pub const NONE: Extent = Extent { from: 0, to: 0 };
    fn all(bytes: u64) -> Self {
        Extent {
            from: 0,
            to: u32::try_from(bytes).unwrap_or(u32::MAX),
        }
    }
    /// Of a buffer all of whose bytes are zero.
    pub fn zeroed(perm: Perm, bytes: u64) -> Self {
        match perm {
            Perm::Read | Perm::ReadWrite => Extent::NONE,
            Perm::Write => Extent::all(bytes),
        }
    }
    /// Of a buffer about which nothing is known.
    pub fn unknown(perm: Perm, bytes: u64) -> Self {
        match perm {
            Perm::Read | Perm::ReadWrite => Extent::all(bytes),
            Perm::Write => Extent::NONE,
        }
    }
}

/// One mapping's place in a bounce buffer.
pub(crate) struct Window<F> {
    pub frames: F,
    /// What the device may do with all of the buffer.
    pub perm: Perm,
    /// The size of the buffer.
    pub bytes: u64,
    /// Where the data begin.
    pub offset: u64,
    pub len: ByteCount,
    pub direction: Direction,
}

impl<F: Frames> Window<F> {
    #[inline(always)]
    fn data(&self) -> (u64, u64) {
        (self.offset, self.offset + self.len.0)
    }

    /// Makes it show `data`, and nothing of earlier users; returns the extent
    /// that describes it then.
    #[inline(always)] // most of it is known where it is called
    pub fn fill<P: CopyMemory>(
        &self,
        p: &P,
        data: impl Data,
        extent: Extent,
    ) -> Result<Extent, NotMemoryError> {
        let (from, to) = self.data();
        let (old_from, old_to) = match self.perm {
            // devices may have written anywhere
            Perm::ReadWrite => (0, self.bytes),
            _ => (u64::from(extent.from), u64::from(extent.to)),
        };
        let after = match self.perm {
            Perm::Write => {
                self.zero(p, from, to.min(old_from))?;
                self.zero(p, from.max(old_to), to)?;
                Extent::NONE
            }
            Perm::Read | Perm::ReadWrite => {
                self.zero(p, old_from, old_to.min(from))?;
                self.zero(p, old_from.max(to), old_to)?;
                if self.direction == Direction::FromDevice {
                    self.zero(p, from, to)?;
                }
                Extent {
                    from: from as u32,
                    to: to as u32,
                }
            }
        };
        if self.direction != Direction::FromDevice {
            move_all(p, data, self.len, self.offset, &self.frames, Move::In)?;
        }
        Ok(after)
    }

    /// Brings back what the device wrote.
    #[inline(always)]
    pub fn copy_out<P: CopyMemory>(&self, p: &P, data: impl Data) -> Result<(), NotMemoryError> {
        if self.direction == Direction::ToDevice {
            return Ok(());
        }
        move_all(p, data, self.len, self.offset, &self.frames, Move::Out)
    }

    /// Brings back what the device wrote, and leaves it to its next user, with the extent that
    /// describes it then: in one pass where both touch the same bytes.
    #[inline(always)]
    pub fn empty<P: CopyMemory>(
        &self,
        p: &P,
        data: impl Data,
        extent: Extent,
    ) -> (Result<(), NotMemoryError>, Extent) {
        let takes = self.perm == Perm::Write && self.direction != Direction::ToDevice;
        if takes {
            let taken = move_all(p, data, self.len, self.offset, &self.frames, Move::Take);
            let after = match taken {
                Ok(()) => self.zeroed_data(),
                Err(_) => Extent::NONE, // somewhere it ended
            };
            return (taken, after);
        }
        let copied = self.copy_out(p, data);
        let cleared = self.clear(p, extent);
        (
            copied,
            cleared.unwrap_or(Extent::unknown(self.perm, self.bytes)),
        )
    }

    fn zeroed_data(&self) -> Extent {
        let (from, to) = self.data();
        Extent {
            from: from as u32,
            to: to as u32,
        }
    }

    /// Leaves it to its next user; returns the extent that describes it then.
    #[inline(always)]
    fn clear<P: CopyMemory>(&self, p: &P, extent: Extent) -> Result<Extent, NotMemoryError> {
        if self.perm != Perm::Write {
            return Ok(extent);
        }
        let (from, to) = self.data();
        self.zero(p, from, to)?;
        Ok(self.zeroed_data())
    }

    /// Moves a part of it.
    pub fn sync<P: CopyMemory>(
        &self,
        p: &P,
        list: &[PhysRange],
        span: Span,
        way: Move,
    ) -> Result<(), NotMemoryError> {
        move_bytes(p, list, span, self.offset, &self.frames, way)
    }

    #[inline(always)]
    fn zero<P: CopyMemory>(&self, p: &P, from: u64, to: u64) -> Result<(), NotMemoryError> {
        zero_bytes(p, from, to, &self.frames)
    }
}
