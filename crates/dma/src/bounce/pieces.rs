// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Moving bytes between what a driver has and the frames of one bounce buffer.

use crate::{
    platform::{CopyMemory, NotMemoryError, OURS},
    units::*,
};

/// The frames of a bounce buffer, in the order of their IOVAs; they need not be contiguous.
pub(crate) trait Frames {
    /// Frame number `nth`, which is one of the buffer's.
    fn frame(&self, nth: usize) -> PhysPage;

    /// Where byte `at` is, and how many of the `len` bytes from there on, at least 1, follow each
    /// other in memory: frames that were allocated together mostly adjoin, and one long copy is
    /// cheaper than many of a frame.
    #[inline(always)]
    fn stretch(&self, at: u64, len: u64) -> (PhysAddr, u64) {
        let (nth, inside) = ((at >> GRANULE_LG2) as usize, at & (GRANULE - 1));
        let first = self.frame(nth);
        let (mut next, mut bytes) = (1, GRANULE - inside);
        while bytes < len && self.frame(nth + next).0 == first.0 + next as u64 {
            (next, bytes) = (next + 1, bytes + GRANULE);
        }
        (PhysAddr(first.addr().0 + inside), bytes.min(len))
    }
}

/// Bytes of a mapping, from its first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Span {
    /// How many bytes precede them.
    pub at: ByteCount,
    /// How many they are.
    pub len: ByteCount,
}

impl Span {
    /// `len` bytes, `at` bytes into the mapping.
    pub fn new(at: ByteCount, len: ByteCount) -> Self {
        Span { at, len }
    }
    /// The byte just past the last; none where that overflows.
    pub fn end(&self) -> Option<ByteCount> {
        self.at.0.checked_add(self.len.0).map(ByteCount)
    }
}

impl core::fmt::Display for Span {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} bytes from byte {}", self.len, self.at)
    }
}

/// Which way bytes move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Move {
    /// From the buffers to the bounce buffer.
    In,
    /// From the bounce buffer to the buffers.
    Out,
    /// Back, and the bounce buffer is zero there.
    Take,
}

/// Bytes that follow each other: memory by its address, or bytes of the program's own, `&[u8]`
/// where they go in and `&mut [u8]` where they come back.
pub(crate) trait Piece: Sized {
    fn bytes(&self) -> u64;
    /// The first `at` bytes, of as many at least, and the rest.
    fn split(self, at: u64) -> (Self, Self);
    /// Moves all of it to or from `there`, where as many bytes follow each other.
    fn shift<P: CopyMemory>(self, p: &P, there: PhysAddr, way: Move) -> Result<(), NotMemoryError>;
}

impl Piece for PhysRange {
    #[inline(always)]
    fn bytes(&self) -> u64 {
        self.len.0
    }
    #[inline(always)]
    fn split(self, at: u64) -> (Self, Self) {
        let rest = PhysAddr(self.addr.0 + at);
        (
            PhysRange::new(self.addr, ByteCount(at)),
            PhysRange::new(rest, ByteCount(self.len.0 - at)),
        )
    }
    #[inline(always)]
    fn shift<P: CopyMemory>(self, p: &P, there: PhysAddr, way: Move) -> Result<(), NotMemoryError> {
        match way {
            Move::In => p.copy(OURS, self, there),
            Move::Out => p.copy(OURS, PhysRange::new(there, self.len), self.addr),
            Move::Take => p.take(OURS, PhysRange::new(there, self.len), self.addr),
        }
    }
}

impl Piece for &[u8] {
    #[inline(always)]
    fn bytes(&self) -> u64 {
        self.len() as u64
    }
    fn split(self, at: u64) -> (Self, Self) {
        self.split_at(at as usize)
    }
    #[inline(always)]
    fn shift<P: CopyMemory>(self, p: &P, there: PhysAddr, way: Move) -> Result<(), NotMemoryError> {
        debug_assert_eq!(way, Move::In);
        p.write(OURS, self, there)
    }
}

impl Piece for &mut [u8] {
    #[inline(always)]
    fn bytes(&self) -> u64 {
        self.len() as u64
    }
    fn split(self, at: u64) -> (Self, Self) {
        self.split_at_mut(at as usize)
    }
    #[inline(always)]
    fn shift<P: CopyMemory>(self, p: &P, there: PhysAddr, way: Move) -> Result<(), NotMemoryError> {
        debug_assert_ne!(way, Move::In);
        let bytes = ByteCount(self.bytes());
        p.read(OURS, there, self)?;
        match way {
            Move::Take => p.zero(OURS, PhysRange::new(there, bytes)),
            _ => Ok(()),
        }
    }
}

/// What a bounce buffer stands for: a list of buffers, or one [`Piece`].
pub(crate) trait Data: Sized {
    /// Whether it is `len` bytes that follow each other.
    fn is_one(&self, len: ByteCount) -> bool;

    /// Moves these to or from `there`, where as many follow each other.
    fn move_one<P: CopyMemory>(
        self,
        p: &P,
        there: PhysAddr,
        way: Move,
    ) -> Result<(), NotMemoryError>;

    /// Moves all `len` bytes, the first of which is `offset` bytes into the bounce buffer. Where
    /// there are fewer of them now, no others are moved, and what is taken is zeroed all the same.
    fn move_each<P: CopyMemory>(
        self,
        p: &P,
        len: ByteCount,
        offset: u64,
        frames: &impl Frames,
        way: Move,
    ) -> Result<(), NotMemoryError>;
}

impl Data for &[PhysRange] {
    #[inline(always)]
    fn is_one(&self, len: ByteCount) -> bool {
        matches!(self, [buffer] if buffer.len == len)
    }

    #[inline(always)]
    fn move_one<P: CopyMemory>(
        self,
        p: &P,
        there: PhysAddr,
        way: Move,
    ) -> Result<(), NotMemoryError> {
        let [buffer] = self else { return Ok(()) };
        buffer.shift(p, there, way)
    }

    fn move_each<P: CopyMemory>(
        self,
        p: &P,
        len: ByteCount,
        offset: u64,
        frames: &impl Frames,
        way: Move,
    ) -> Result<(), NotMemoryError> {
        let all = Span::new(ByteCount(0), len);
        move_bytes(p, self, all, offset, frames, way)
    }
}

impl<T: Piece> Data for T {
    #[inline(always)]
    fn is_one(&self, len: ByteCount) -> bool {
        self.bytes() == len.0
    }

    #[inline(always)]
    fn move_one<P: CopyMemory>(
        self,
        p: &P,
        there: PhysAddr,
        way: Move,
    ) -> Result<(), NotMemoryError> {
        self.shift(p, there, way)
    }

    fn move_each<P: CopyMemory>(
        self,
        p: &P,
        len: ByteCount,
        offset: u64,
        frames: &impl Frames,
        way: Move,
    ) -> Result<(), NotMemoryError> {
        let moved = self.bytes().min(len.0);
        let (piece, _) = self.split(moved);
        move_piece(p, piece, offset, frames, way)?;
        match way {
            Move::Take => zero_bytes(p, offset + moved, offset + len.0, frames),
            _ => Ok(()),
        }
    }
}

/// Moves a piece, whose first byte is `at` bytes into the bounce buffer, by stretches of frames.
#[inline(always)] // into each of its few callers
fn move_piece<P: CopyMemory>(
    p: &P,
    mut rest: impl Piece,
    mut at: u64,
    frames: &impl Frames,
    way: Move,
) -> Result<(), NotMemoryError> {
    while rest.bytes() > 0 {
        let (there, here) = frames.stretch(at, rest.bytes());
        let (first, others) = rest.split(here);
        first.shift(p, there, way)?;
        (rest, at) = (others, at + here);
    }
    Ok(())
}

/// Moves all `len` bytes of `data`: for one buffer within a granule nothing is called but the
/// platform. Fails as [`Data::move_each`] does.
#[inline(always)]
pub(crate) fn move_all<P: CopyMemory>(
    p: &P,
    data: impl Data,
    len: ByteCount,
    offset: u64,
    frames: &impl Frames,
    way: Move,
) -> Result<(), NotMemoryError> {
    // a caller that shows another list than was mapped gets no byte moved beyond it
    if offset + len.0 > GRANULE || !data.is_one(len) {
        return data.move_each(p, len, offset, frames, way);
    }
    data.move_one(p, PhysAddr(frames.frame(0).addr().0 + offset), way)
}

/// Moves `span` of `list`, whose first byte is `offset` bytes into the bounce buffer. Fails with
/// [`NotMemoryError`]; what lies before it has been moved.
#[inline(never)]
pub(crate) fn move_bytes<P: CopyMemory>(
    p: &P,
    list: &[PhysRange],
    span: Span,
    offset: u64,
    frames: &impl Frames,
    way: Move,
) -> Result<(), NotMemoryError> {
    let mut skip = span.at.0;
    let mut left = span.len.0;
    let mut at = offset + span.at.0;
    for buffer in list {
        if skip >= buffer.len.0 {
            skip -= buffer.len.0;
            continue;
        }
        let here = PhysAddr(buffer.addr.0 + skip);
        let of_it = (buffer.len.0 - skip).min(left);
        move_piece(p, PhysRange::new(here, ByteCount(of_it)), at, frames, way)?;
        (skip, left, at) = (0, left - of_it, at + of_it);
        if left == 0 {
            break;
        }
    }
    match way {
        // of a list that has become shorter
        Move::Take if left > 0 => zero_bytes(p, at, at + left, frames),
        _ => Ok(()),
    }
}

/// Zeroes the bytes `from` to `to` of a bounce buffer; none where `to` is not behind `from`. Fails
/// with [`NotMemoryError`] if a frame is not memory that the CPU reaches.
#[inline(always)]
pub(crate) fn zero_bytes<P: CopyMemory>(
    p: &P,
    from: u64,
    to: u64,
    frames: &impl Frames,
) -> Result<(), NotMemoryError> {
    if from >= to {
        return Ok(());
    }
    if to <= GRANULE {
        let there = PhysAddr(frames.frame(0).addr().0 + from);
        return p.zero(OURS, PhysRange::new(there, ByteCount(to - from)));
    }
    zero_more(p, from, to, frames)
}

#[inline(never)]
fn zero_more<P: CopyMemory>(
    p: &P,
    from: u64,
    to: u64,
    frames: &impl Frames,
) -> Result<(), NotMemoryError> {
    let mut at = from;
    while at < to {
        let (there, len) = frames.stretch(at, to - at);
        p.zero(OURS, PhysRange::new(there, ByteCount(len)))?;
        at += len;
    }
    Ok(())
}
