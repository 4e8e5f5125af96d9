// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What can go wrong, with the numbers.

use super::{Consistent, Mapping};
use crate::{
    invalidation::InvalidateError,
    iova::{AllocError, AllocatorError, FixedRangeError},
    table::{InstallError, RawError},
    translator::AttachError,
    units::*,
};
use core::fmt;

/// A buffer or list that cannot be mapped as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // its fields say it
pub enum BufferError {
    /// A segment without bytes.
    #[error("segment {segment} has length 0")]
    Empty {
        /// Which one; 0 for a single buffer.
        segment: usize,
    },
    /// A list without segments.
    #[error("the list has no segments")]
    NoSegments,
    /// Address plus length is past the physical address width.
    #[error("segment {segment}, {buffer}, ends past 2^52")]
    Overflow { segment: usize, buffer: PhysRange },
    /// A segment but the first begins, or but the last ends, inside a granule, so that the
    /// list cannot be contiguous.
    #[error("segment {segment}, {buffer}, has an inner edge that is not 4 KiB aligned")]
    InnerEdge { segment: usize, buffer: PhysRange },
    /// The address asked for and the buffer lie differently in their granules.
    #[error("IOVA {iova} and physical address {phys} differ in their low 12 bits")]
    Misplaced {
        /// The address asked for.
        iova: Iova,
        /// Where the buffer begins.
        phys: PhysAddr,
    },
    /// A consistent allocation is whole granules.
    #[error("{len} bytes are not a multiple of 4096")]
    NotGranules {
        /// The length asked for.
        len: ByteCount,
    },
    /// Address plus length wraps, or is past what IOVAs can name.
    #[error("{len} bytes at IOVA {iova} wrap")]
    IovaOverflow { iova: Iova, len: ByteCount },
}

/// The IOVA pages that a domain was to use are not all among those that its translator has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("IOVA pages {wanted} are not within the translator's {whole}")]
#[allow(missing_docs)] // its fields say it
pub struct OutsideAperture {
    pub wanted: IovaRange,
    pub whole: IovaRange,
}

/// Why a domain cannot be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DomainError {
    /// The aperture asked for is not within the translator's.
    #[error(transparent)]
    Outside(#[from] OutsideAperture),
    /// The allocator cannot work there.
    #[error(transparent)]
    Allocator(#[from] AllocatorError),
    /// The translator's tables or unit are in memory of another platform.
    #[error("the translator is over another platform than the domain's")]
    OtherPlatform,
}

/// Why a domain was not switched to another mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SwitchError {
    /// The domain's policy has no modes; nothing has changed.
    #[error("a domain under the policy {policy} has one mode only")]
    OneMode {
        /// The policy's name.
        policy: &'static str,
    },
    /// On the way to strict, the invalidation of what was deferred failed, and that is quarantined.
    /// From now on unmaps flush; what was unmapped before may be reached until another switch to
    /// strict has succeeded.
    #[error("what was deferred is not flushed: {0}")]
    Invalidate(#[from] InvalidateError),
}

/// Why a map failed. Nothing is mapped then, and nothing is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // its fields say it
pub enum MapError {
    /// The buffer or list cannot be mapped as it is.
    #[error(transparent)]
    Buffer(#[from] BufferError),
    /// No IOVA range, also after draining what was retired.
    #[error(transparent)]
    NoIova(#[from] AllocError),
    /// The range asked for is in use, or outside.
    #[error(transparent)]
    NoReserve(#[from] FixedRangeError),
    /// The range asked for is among those that follow from a buffer's own address.
    #[error("IOVA pages {range} are among {shared}, which buffers share by their own addresses")]
    SharedRegion {
        /// The pages asked for.
        range: IovaRange,
        /// The pages that are shared.
        shared: IovaRange,
    },
    /// The translation could not be installed; it was undone.
    #[error(transparent)]
    Install(#[from] InstallError),
    /// No frame for consistent memory.
    #[error("no frame for consistent memory (after {done} of {wanted} frames)")]
    NoFrame {
        /// Frames allocated before the failure.
        done: PageCount,
        wanted: PageCount,
    },
    /// No frames that adjoin for an array.
    #[error("no {wanted} frames that adjoin")]
    NoFrameRun { wanted: PageCount },
    /// No memory to note what would be mapped: of the heap, or a frame for the books of chunks.
    #[error("no memory to note what would be mapped")]
    NoMemory,
    /// The chunk has not as many pages left: end it, and begin another.
    #[error("{wanted} pages, and the chunk has {left} left")]
    ChunkFull { wanted: PageCount, left: PageCount },
    /// No chunk can be begun, as there are as many as there can be.
    #[error("there are as many chunks as there can be")]
    NoChunk,
    /// The chunk is another domain's.
    #[error("the chunk belongs to another domain")]
    ForeignChunk,
    /// An invalidation failed: while draining for an IOVA, undoing, making room for a large leaf,
    /// or one that the policy or the unit needs at a map. What it should have freed is quarantined.
    #[error("{0}; what it should have freed is quarantined")]
    Invalidate(InvalidateError),
}

/// Why a range cannot be reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// It is in use, or outside.
    #[error(transparent)]
    NoReserve(#[from] FixedRangeError),
    /// An invalidation failed while draining what was in the way; what it should
    /// have freed is quarantined.
    #[error("{0}; what it should have freed is quarantined")]
    Invalidate(InvalidateError),
}

impl From<ReserveError> for MapError {
    fn from(error: ReserveError) -> Self {
        match error {
            ReserveError::NoReserve(why) => MapError::NoReserve(why),
            ReserveError::Invalidate(why) => MapError::Invalidate(why),
        }
    }
}

/// Why an unmap failed.
#[derive(PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // its fields say it
pub enum UnmapError {
    /// The mapping is another domain's; here it is back.
    #[error("the mapping at {} belongs to another domain", .0.iova())]
    Foreign(Mapping),
    /// The mapping shares its leaves with others (`identity`), so only its token can end it;
    /// here it is back.
    #[error("the mapping at {} shares its leaves: its address alone cannot end it", .0.iova())]
    SharedLeaves(Mapping),
    /// The mapping is a piece of a [`Chunk`](super::Chunk), so only its token can end it; here it
    /// is back.
    #[error("the mapping at {} is a piece of a chunk: its address alone cannot end it", .0.iova())]
    Piece(Mapping),
    /// The consistent memory is another domain's; here it is back.
    #[error("the consistent memory at {} belongs to another domain", .0.iova())]
    ForeignMemory(Consistent),
    /// The translations are gone, but an invalidation failed: the device may still use cached ones,
    /// and what should have been freed is quarantined. The buffer itself must never be used again,
    /// for anything: the device may still reach it.
    #[error("IOVA pages {range}: {cause}; they are quarantined")]
    Invalidate {
        range: IovaRange,
        /// Why the invalidation failed.
        cause: InvalidateError,
    },
    /// Not exactly one live mapping; nothing was changed.
    #[error("{len} bytes at IOVA {iova} are not a mapping: {cause}")]
    NotAMapping {
        /// The first byte given.
        iova: Iova,
        len: ByteCount,
        /// Which check it did not pass.
        cause: RawError,
    },
    /// See [`BufferError`]; nothing was changed.
    #[error(transparent)]
    Buffer(#[from] BufferError),
    /// Some pages of the mapping had no translation, which only a translator's bug explains. What
    /// is left of it is flushed, and its IOVAs are lost.
    #[error("IOVA pages {range}: only {found} pages had a translation")]
    Holes {
        range: IovaRange,
        /// How many had one.
        found: PageCount,
    },
}

/// Why a batch of unmaps came to no end. Mappings end in the order in which they were given: the
/// first [`ended`](Self::ended) of those that were taken have; those of the round whose
/// invalidation failed follow, if one has; then comes the mapping at which the batch stopped, if
/// one was the reason. No others were taken.
#[derive(PartialEq, Eq, Debug)]
pub struct UnmapBatchError {
    /// Mappings that have ended as by an unmap that succeeds.
    pub ended: usize,
    /// What an invalidation that failed leaves behind.
    pub lost: Option<Lost>,
    /// The mapping at which the batch stopped: another domain's, which comes back
    /// ([`UnmapError::Foreign`]), or one with holes. One with holes whose invalidation failed is
    /// the last of [`lost`](Self::lost) instead, as [`Domain::unmap`](super::Domain::unmap) tells
    /// that before holes.
    pub stopped: Option<UnmapError>,
}

/// Mappings whose translations are gone, but whose invalidation failed: all of them are
/// quarantined, and their buffers must never be used again, for anything: the device may
/// still reach them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lost {
    /// How many they are. Among them may be some whose every page other mappings share
    /// (`identity`), and of which nothing was to be invalidated: they have ended.
    pub mappings: usize,
    /// From the lowest of the round's pages to the highest.
    pub range: IovaRange,
    /// Why the invalidation failed.
    pub cause: InvalidateError,
}

impl Lost {
    /// One mapping, if that is the error.
    pub(crate) fn one(error: &UnmapError) -> Option<Self> {
        match *error {
            UnmapError::Invalidate { range, cause } => Some(Lost {
                mappings: 1,
                range,
                cause,
            }),
            _ => None,
        }
    }

    /// Both, by the cause of the first.
    pub(crate) fn and(self, other: Self) -> Self {
        Lost {
            mappings: self.mappings + other.mappings,
            range: self.range.around(&other.range),
            cause: self.cause,
        }
    }
}

impl fmt::Display for UnmapBatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} mappings ended", self.ended)?;
        if let Some(lost) = &self.lost {
            write!(f, ", then {lost}")?;
        }
        if let Some(stopped) = &self.stopped {
            write!(f, ", the last did not: {stopped}")?;
        }
        Ok(())
    }
}

impl core::error::Error for UnmapBatchError {}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lost {
            mappings,
            range,
            cause,
        } = self;
        write!(
            f,
            "{mappings} within IOVA pages {range}: {cause}; they are quarantined"
        )
    }
}

/// Why a domain could not be ended cleanly. What may still be cached is leaked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloseError {
    /// A device could not be detached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The last invalidation failed.
    #[error(transparent)]
    Invalidate(InvalidateError),
}
