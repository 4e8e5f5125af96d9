// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A ring's part: translated once, read word by word.
//!
//! `MetaTranslation` is the same for a part that is contiguous in this process. Rings need not be:
//! Linux builds a coherent buffer for a device behind an IOMMU of single pages, so that a ring of
//! more than a page is a page here and a page there, and each is a piece. A part of one piece (the
//! usual one) costs one comparison more.

use super::RingError;
use crate::guest::{self, GuestGuard, Known};
use ioatlas_dma::{platform::Ordering, units::*};
use ioatlas_vhost::{IotlbReader, LookupError, Piece};
use vm_memory::{AtomicAccess, Bytes, VolatileSlice};

/// Where a part is, and what was found out about it.
#[derive(Debug)]
pub struct RingPart {
    iova: Iova,
    len: ByteCount,
    need: Perm,
    /// In which memory and when `pieces` were looked up.
    known: Option<Known>,
    pieces: Vec<Piece>,
}

impl RingPart {
    /// The part of `len` bytes at `iova`, which do not wrap around.
    pub fn new(iova: Iova, len: ByteCount, need: Perm) -> Self {
        RingPart {
            iova,
            len,
            need,
            known: None,
            pieces: Vec::new(),
        }
    }

    /// Looks it up unless that was done in this memory and generation.
    ///
    /// # Errors
    /// The first thing that is missing.
    #[inline]
    pub fn translate<R: IotlbReader>(
        &mut self,
        guard: &GuestGuard<'_, R>,
    ) -> Result<(), LookupError> {
        match self.known == Some(guard.known()) {
            true => Ok(()),
            false => self.look_up(guard),
        }
    }

    #[cold]
    fn look_up<R: IotlbReader>(&mut self, guard: &GuestGuard<'_, R>) -> Result<(), LookupError> {
        self.known = None;
        self.pieces.clear();
        let mut done = 0;
        while done < self.len.0 {
            let (at, left) = (Iova(self.iova.0 + done), ByteCount(self.len.0 - done));
            let piece = guard.lookup(at, left, self.need)?;
            done += piece.len.0;
            self.pieces.push(piece);
        }
        self.known = Some(guard.known());
        Ok(())
    }

    /// Its memory; translated under this guard's memory and generation.
    ///
    /// # Panics
    /// If it is not translated so.
    #[inline]
    #[allow(unsafe_code)]
    pub fn view<'b, R: IotlbReader>(&'b self, guard: &'b GuestGuard<'_, R>) -> PartView<'b> {
        assert!(self.known == Some(guard.known()), "not translated");
        let (first, rest) = self.pieces.split_first().expect("parts are not empty");
        // SAFETY: looked up in this memory and generation, checked above.
        let first = unsafe { guard.slice(first) };
        PartView { first, rest }
    }
}

/// A part's memory under one guard. Offsets are bytes from the part's start.
#[derive(Clone, Copy)]
pub struct PartView<'b> {
    first: VolatileSlice<'b>,
    rest: &'b [Piece],
}

impl<'b> PartView<'b> {
    /// Where `offset` is: a slice, and the offset in it.
    #[inline]
    fn find(&self, offset: usize) -> (VolatileSlice<'b>, usize) {
        match offset < self.first.len() || self.rest.is_empty() {
            true => (self.first, offset),
            false => self.find_behind(offset),
        }
    }

    #[allow(unsafe_code)]
    fn find_behind(&self, offset: usize) -> (VolatileSlice<'b>, usize) {
        let mut start = self.first.len();
        for piece in self.rest {
            let len = piece.len.0 as usize;
            if offset - start < len {
                // SAFETY: a piece of the same part as `first`, looked up in the same guard or
                // generation, for which `'b` stands.
                let slice = unsafe { guest::memory(piece) };
                return (slice, offset - start);
            }
            start += len;
        }
        (self.first, offset) // outside: the access says so
    }

    /// Reads a word at byte `offset` of the part.
    ///
    /// # Errors
    /// It is not aligned here, or not in one piece.
    #[inline]
    pub fn load<T: AtomicAccess>(&self, offset: usize, order: Ordering) -> Result<T, RingError> {
        let (slice, at) = self.find(offset);
        slice
            .load(at, order)
            .map_err(|_| RingError::Access { offset })
    }

    /// Writes a word at byte `offset` of the part.
    ///
    /// # Errors
    /// The same as for [`load`](Self::load).
    #[inline]
    pub fn store<T: AtomicAccess>(
        &self,
        value: T,
        offset: usize,
        order: Ordering,
    ) -> Result<(), RingError> {
        let (slice, at) = self.find(offset);
        slice
            .store(value, at, order)
            .map_err(|_| RingError::Access { offset })
    }

    /// Reads descriptor `index`: address, length, the last two 16-bit words (flags and next,
    /// or id and flags).
    ///
    /// # Errors
    /// The same as for [`load`](Self::load).
    #[inline]
    pub(super) fn descriptor(&self, index: u16) -> Result<(u64, u32, u16, u16), RingError> {
        let at = usize::from(index) * super::DESCRIPTOR_BYTES as usize;
        let addr: u64 = self.load(at, Ordering::Relaxed)?;
        let rest: u64 = self.load(at + 8, Ordering::Relaxed)?;
        let rest = u64::from_le(rest);
        Ok((
            u64::from_le(addr),
            rest as u32,
            (rest >> 32) as u16,
            (rest >> 48) as u16,
        ))
    }
}
