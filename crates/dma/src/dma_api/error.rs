// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What can go wrong.

use super::{DmaMapping, Lent};
use crate::{
    bounce::{BounceError, Lack, Span},
    domain::{BufferError, Lost, MapError, UnmapError},
    platform::NotMemoryError,
    units::*,
};
use alloc::boxed::Box;
use core::fmt;

/// Why a list was not mapped. Nothing is, then.
///
/// Where an invalidation failed ([`MapError::Invalidate`], or of a mapping for one use
/// `Lack::Invalidate`; [`is_reached_still`](Self::is_reached_still)), a device may still reach
/// what was made of it: what owns the list is never dropped then, and the buffer must not be used
/// again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DmaMapError {
    /// The list cannot be mapped as it is.
    #[error(transparent)]
    Buffer(#[from] BufferError),
    /// It would have been mapped directly, which failed.
    #[error(transparent)]
    Direct(MapError),
    /// The CPU cannot reach the bytes that it would have to copy.
    #[error(transparent)]
    NotMemory(#[from] NotMemoryError),
    /// No bounce buffer, nor any other way that the placement allows.
    #[error(transparent)]
    NoSpace(#[from] BounceError),
    /// The buffer is memory of another platform than the domain's. It was freed there.
    #[error("the buffer is memory of another platform than the domain's")]
    OtherPlatform,
    /// A mapping that is never synchronised cannot be bounced, and the placement forbids to map
    /// these bytes where they are, for others lie beside them.
    #[error(
        "{len} bytes that are not whole granules are to stay mapped without syncs, which cannot be protected"
    )]
    Persistent {
        /// Bytes of the whole list.
        len: ByteCount,
    },
}

impl DmaMapError {
    /// Whether a device may reach the list still: what was made of it was undone, but perhaps not
    /// flushed.
    pub fn is_reached_still(&self) -> bool {
        match self {
            DmaMapError::Direct(MapError::Invalidate(_)) => true,
            DmaMapError::NoSpace(none) => matches!(none.single_use, Lack::Invalidate(_)),
            _ => false,
        }
    }
}

/// Why an unmap failed.
#[derive(PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DmaUnmapError<L = Lent<PhysRange>> {
    /// The mapping is of another [`Dma`](super::Dma), or of a client of this one that has another
    /// bounce pool; here it is back. Two clients share a pool if they reach the same addresses,
    /// neither has one of its own ([`Dma::client_with_pool`](super::Dma::client_with_pool),
    /// `Shares`), and the placement of neither is
    /// [`Placement::Never`](super::Placement::Never). All clients with that one, which has no
    /// pool, take each other's mappings, whatever they reach.
    #[error("the mapping at {} belongs elsewhere", .0.iova())]
    Foreign(Box<DmaMapping<L>>),
    /// The domain says no. The device may still reach the buffer, so what owns the list was not
    /// dropped, and never is.
    #[error(transparent)]
    Direct(UnmapError),
    /// The CPU does not reach the buffer any more. The mapping has ended; some of the bytes
    /// were not copied back.
    #[error(transparent)]
    NotMemory(#[from] NotMemoryError),
}

/// Why a batch of unmaps came to no end. What the iterator has still was not taken.
#[derive(PartialEq, Eq, Debug)]
pub struct DmaUnmapBatchError<L = Lent<PhysRange>> {
    /// Mappings that have ended, whose lists came back.
    pub ended: usize,
    /// Those whose invalidation failed: of one round all that were mapped directly, and of the
    /// others the last that was taken. A device may still reach their lists: what owns them was not
    /// dropped, and never is.
    pub lost: Option<Lost>,
    /// The mapping at which the batch stopped, the last that was taken, with the error that
    /// [`Client::unmap`](super::Client::unmap) has for it; never that an invalidation failed.
    pub stopped: Option<DmaUnmapError<L>>,
}

impl<L> fmt::Display for DmaUnmapBatchError<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} mappings ended", self.ended)?;
        if let Some(lost) = &self.lost {
            write!(f, ", {lost}")?;
        }
        if let Some(stopped) = &self.stopped {
            write!(f, ", the last did not: {stopped}")?;
        }
        Ok(())
    }
}

impl<L: fmt::Debug> core::error::Error for DmaUnmapBatchError<L> {}

/// Why nothing was synchronised.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SyncError {
    /// Not all of the span is of the mapping.
    #[error("{span} are not within a mapping of {len}")]
    Outside {
        /// What was to be synchronised.
        span: Span,
        /// Bytes of the whole mapping.
        len: ByteCount,
    },
    /// The mapping is of another [`Dma`](super::Dma), or of a client with another
    /// bounce pool: see [`DmaUnmapError::Foreign`].
    #[error("the mapping at {iova} belongs elsewhere")]
    Foreign {
        /// The address of the mapping.
        iova: Iova,
    },
    /// The CPU does not reach the buffer any more.
    #[error(transparent)]
    NotMemory(#[from] NotMemoryError),
}
