// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Buffers mapped for one use: what is left when the pools are full, and what Linux does today.

use super::{
    pieces::{Data, Frames, Move, Span, move_bytes},
    stats::{Lack, ReturnError},
    window::{Extent, Window},
};
use crate::{
    domain::{Domain, MapAttrs, Mapping, zeroed_list},
    platform::*,
    translator::Translator,
    units::*,
};
use alloc::vec::Vec;

/// A mapping of frames of its own.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a dropped buffer stays mapped"]
pub(crate) struct SingleUseBuffer {
    pub mapping: Mapping,
    pub frames: Vec<TableFrame>,
}

impl SingleUseBuffer {
    pub fn bytes(&self) -> u64 {
        (self.frames.len() as u64) << GRANULE_LG2
    }
}

impl SingleUseBuffer {
    fn window(&self, direction: Direction) -> Window<&SingleUseBuffer> {
        // it is zero all of it, so as good as one that only the CPU writes
        let perm = match direction {
            Direction::FromDevice => Perm::Write,
            _ => Perm::Read,
        };
        Window {
            frames: self,
            perm,
            bytes: self.bytes(),
            offset: self.mapping.iova().offset(),
            len: self.mapping.len(),
            direction,
        }
    }
    /// Makes it show `data`.
    pub fn fill<P: CopyMemory>(
        &self,
        p: &P,
        data: impl Data,
        direction: Direction,
    ) -> Result<(), NotMemoryError> {
        let window = self.window(direction);
        let zeroed = Extent::zeroed(window.perm, window.bytes);
        window.fill(p, data, zeroed).map(drop)
    }
    /// Moves a part of it.
    pub fn sync<P: CopyMemory>(
        &self,
        p: &P,
        list: &[PhysRange],
        span: Span,
        way: Move,
    ) -> Result<(), NotMemoryError> {
        move_bytes(p, list, span, self.mapping.iova().offset(), &self, way)
    }
    /// Brings back what the device wrote, and ends it.
    pub fn end<P: CopyMemory, T: Translator<P>>(
        self,
        domain: &Domain<P, T>,
        data: impl Data,
        direction: Direction,
    ) -> Result<(), ReturnError> {
        let copied = self.window(direction).copy_out(&**domain.platform(), data);
        domain.unmap_with_frames(self.mapping, self.frames)?;
        Ok(copied?)
    }
}

impl Frames for &SingleUseBuffer {
    #[inline]
    fn frame(&self, nth: usize) -> PhysPage {
        self.frames[nth].page()
    }
}

/// Maps `len` zero bytes, `offset` bytes into their first granule.
pub(crate) fn map_own<P: Platform, T: Translator<P>>(
    domain: &Domain<P, T>,
    offset: u64,
    len: ByteCount,
    direction: Direction,
    attrs: MapAttrs,
) -> Result<SingleUseBuffer, Lack> {
    let pages = pages_touched(offset, len);
    let (mut at, mut left) = (offset, len.0);
    let part = |page: PhysPage| {
        let here = left.min(GRANULE - at);
        let part = PhysRange::new(PhysAddr(page.addr().0 + at), ByteCount(here));
        (at, left) = (0, left - here);
        part
    };
    let (frames, list) = zeroed_list(&**domain.platform(), pages, part)?;
    let mapped = domain.map_with_frames(&list, direction, attrs, frames);
    let (mapping, frames) = mapped?;
    Ok(SingleUseBuffer { mapping, frames })
}
