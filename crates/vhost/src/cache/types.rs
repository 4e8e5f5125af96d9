// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What goes in and out of a cache.

use super::RangeError;
use core::fmt;
use ioatlas_dma::units::*;

/// An address in this process. What is there is the front end's memory, mapped; the cache only
/// does sums with it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostAddr(pub u64);

/// What the front end says in one update.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The first byte; a multiple of 4 KiB.
    pub iova: Iova,
    /// How many bytes; a multiple of 4 KiB, not 0.
    pub len: ByteCount,
    /// Where the first byte is in this process.
    pub host: HostAddr,
    /// What the device may do there.
    pub perm: Perm,
}

/// Whether `have` permits everything that `need` names.
#[inline]
pub fn covers(have: Perm, need: Perm) -> bool {
    have == Perm::ReadWrite || have == need
}

/// What an update did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Updated {
    /// The translation is in the cache.
    Done,
    /// It was there already, just so.
    Unchanged,
    /// Dropped: an invalidation of a part of it is under way, or began after it was asked for. The
    /// reader will miss again.
    Beaten,
}

/// Why an update was refused. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // its fields and messages say it
pub enum UpdateError {
    /// The range is none.
    #[error("update of IOVA {iova}, {len} bytes: {why}")]
    Range {
        iova: Iova,
        len: ByteCount,
        /// What is wrong with it.
        why: RangeError,
    },
    /// The host addresses end beyond the address space.
    #[error("update of IOVA {iova}: host address {host} and {len} bytes wrap around")]
    HostWraps {
        iova: Iova,
        len: ByteCount,
        host: HostAddr,
    },
    /// All room is taken by pinned ranges or by what readers may still be using.
    #[error("update of IOVA {iova}: no room, and nothing can be evicted")]
    NoRoom {
        /// The first byte of the entry.
        iova: Iova,
    },
}

/// The first bytes of what was looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The first byte, as asked.
    pub iova: Iova,
    /// Where it is in this process.
    pub host: HostAddr,
    /// How many bytes from there are contiguous, at most as many as asked; not 0.
    pub len: ByteCount,
}

/// A translation that has to be asked for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Miss {
    /// The first byte that is missing (not the first of the request).
    pub iova: Iova,
    /// How many bytes the request goes on from there. Some of them may be in the cache.
    pub len: ByteCount,
    /// What the access needs.
    pub need: Perm,
    /// Why it is one.
    pub cause: MissCause,
}

/// Why a lookup missed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MissCause {
    /// Nothing is known about the address.
    Absent,
    /// There is a translation, which does not permit the access. The front end may
    /// know better by now.
    Forbidden,
}

/// Why there is no piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)] // its fields and messages say it
pub enum LookupError {
    /// To be asked for.
    #[error("{0}")]
    Miss(Miss),
    /// The range is none, and cannot be translated.
    #[error("access to IOVA {iova}, {len} bytes: {why}")]
    Range {
        iova: Iova,
        len: ByteCount,
        /// What is wrong with it.
        why: RangeError,
    },
}

/// Grows whenever something is invalidated, cleared or replaced. What was looked up at one
/// generation is good under any guard of the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Generation(pub u64);

/// An invalidation that was started. What it removes is not found by any
/// guard that begins afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "an invalidation may be acknowledged only when it is done"]
pub struct Invalidation {
    pub(crate) number: u64,
}

impl Invalidation {
    /// Whether there was nothing to remove, so that it is done from the beginning.
    pub fn found_nothing(&self) -> bool {
        self.number == 0
    }
}

/// A moment in the order of invalidations: see [`super::DeviceIotlb::now`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Moment(pub(crate) u64);

/// What a hook is told: a range that was in the cache and is not any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // its fields say it
pub struct Removed {
    pub iova: Iova,
    pub len: ByteCount,
    pub cause: RemovalCause,
}

/// Why a translation left the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemovalCause {
    /// The front end said so, or the cache was cleared.
    Invalidated,
    /// An update put another one in its place.
    Replaced,
    /// There was no room.
    Evicted,
}

/// Bounds of a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Runs held at once; contiguous entries of one permission are one run. Fewer than
    /// [`Limits::LEAST_RUNS`] count as that many.
    pub runs: u32,
    /// Tables of the radix cache at once, 586 bytes each; the other caches have none. See
    /// `cache::radix` for how many runs need; where there are no more, runs are evicted.
    pub tables: u32,
    /// Readers at once; a further one is refused ([`ReaderError`]).
    pub readers: u32,
    /// Pinned ranges at once.
    pub pins: u32,
}

ioatlas_dma::setters!(const Limits {
    runs: u32,
    tables: u32,
    readers: u32,
    pins: u32,
});

impl Limits {
    /// An update may add two runs: one of its own, and one where it parts another in two.
    pub const LEAST_RUNS: u32 = 2;

    /// The runs that a cache of these limits holds.
    pub(super) fn runs_held(&self) -> u32 {
        self.runs.max(Self::LEAST_RUNS)
    }
}

impl Default for Limits {
    /// 65,536 runs, 16,384 tables (12 MiB together, once they are in use), 64 readers, 768 pins
    /// (three rings' parts of 256 queues).
    fn default() -> Self {
        Limits {
            runs: 1 << 16,
            tables: 1 << 14,
            readers: 64,
            pins: 768,
        }
    }
}

/// A reader was refused: there are as many as [`Limits::readers`] permits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there are {limit} readers of this cache already")]
pub struct ReaderError {
    /// How many there may be.
    pub limit: u32,
}

#[allow(missing_docs)] // its fields and messages say it
/// Why a range was not pinned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PinError {
    /// The range is none.
    #[error("pin of IOVA {iova}, {len} bytes: {why}")]
    Range {
        iova: Iova,
        len: ByteCount,
        /// What is wrong with it.
        why: RangeError,
    },
    #[error("{limit} ranges are pinned already")]
    TooMany {
        /// How many there may be.
        limit: u32,
    },
}

impl fmt::Display for HostAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.cause {
            MissCause::Absent => "not in the cache",
            MissCause::Forbidden => "not permitted by what is in the cache",
        };
        let (iova, len, need) = (self.iova, self.len, self.need);
        write!(f, "IOVA {iova}, {len} bytes, {need:?}: {why}")
    }
}
