// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The two ring layouts, as code over translated memory.
//!
//! # Vocabulary
//! A *chain* is what the driver makes available at a time: descriptors in order, together one
//! buffer. To *peek* is to read a chain and leave it with the driver; to *use* is to give it back.
//! A ring's three *parts* are the descriptors, what the driver writes (available ring, or driver
//! event suppression) and what the device writes (used ring, or device event suppression).
//!
//! # Invariants
//! * Rings are shared with a guest that may change any byte at any time. Every word is read once,
//!   by an atomic access, and checked after it was read; a chain that was peeked is a copy.
//! * At most as many entries are ahead of the last used one as the ring has; so no walk takes
//!   longer than the ring.
//! * A chain has at most [`MAX_CHAIN`] segments, and as many as the ring has entries; its bytes fit
//!   into 32 bits, and no segment wraps.
//! * Chains are used in the order in which they were peeked. What is used becomes visible to the
//!   driver with `publish`, all at once.
//!
//! # Memory ordering (virtio 1.2, 2.7.13 and 2.8.21)
//! The available index (packed: a descriptor's flags) is read with acquire before what it makes
//! available; the used index (packed: the flags of the first descriptor used) is written with
//! release after all that it makes used. Between publishing and reading whether the driver wants a
//! call, and between asking for kicks and looking again, there is a full fence: each side writes
//! its own word, then reads the other's.
//!
//! Not handled: in-order completion (`VIRTIO_F_IN_ORDER`), and guests of the other byte order.

mod packed;
mod part;
mod split;
mod table;

pub use packed::PackedRing;
pub use part::{PartView, RingPart};
pub use split::SplitRing;
pub use table::read_table;

use ioatlas_dma::units::*;
use ioatlas_host::full_fence;
use ioatlas_vhost::runner::{EVENT_IDX, RingParts};

/// Segments of a chain, at most; as many as Linux takes (`UIO_MAXIOV`).
pub const MAX_CHAIN: usize = 1024;
/// Bytes of a descriptor, in both layouts.
pub const DESCRIPTOR_BYTES: u64 = 16;

/// Descriptor flags that both layouts share (virtio 1.2, 2.7.5 and 2.8).
pub(crate) mod flags {
    pub const NEXT: u16 = 1;
    pub const WRITE: u16 = 2;
    pub const INDIRECT: u16 = 4;
    pub const AVAIL: u16 = 1 << 7;
    pub const USED: u16 = 1 << 15;
}

/// Bytes that a chain names, not empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // its fields say it
pub struct Segment {
    pub iova: Iova,
    /// How many bytes; not 0.
    pub len: u32,
    /// Whether the device reads or writes them.
    pub access: AccessKind,
}

impl Segment {
    /// The permission that the access needs.
    pub fn need(&self) -> Perm {
        match self.access {
            AccessKind::Read => Perm::Read,
            AccessKind::Write => Perm::Write,
        }
    }
}

/// An indirect table: descriptors elsewhere, which go on where the chain ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // its fields say it
pub struct Table {
    pub iova: Iova,
    /// How many bytes, a multiple of [`DESCRIPTOR_BYTES`], not 0.
    pub len: u32,
}

/// A chain as it was read: which one it is. Its segments are where the caller wanted them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peeked {
    /// The number by which the driver knows it: the head's index (split), or
    /// the buffer id (packed).
    pub id: u16,
    /// Entries of the ring that it takes: 1 (split), or as many as it has descriptors (packed).
    pub slots: u16,
    /// Where its descriptors go on.
    pub table: Option<Table>,
}

/// A position in a ring: of a split ring a free-running index, of a packed one an index below its
/// size and the wrap counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // its fields say it
pub struct Cursor {
    pub index: u16,
    /// The wrap counter; of split rings always set.
    pub wrap: bool,
}

/// What a driver must not do. The queue stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)] // its fields and messages say it
#[non_exhaustive]
pub enum RingError {
    /// More is available than the ring has entries.
    #[error("{ahead} entries are ahead in a ring of {size}")]
    Ahead {
        /// How many entries are available.
        ahead: u16,
        size: u16,
    },
    /// A head or a link names a descriptor that is not in the ring or the table.
    #[error("descriptor {index} does not exist (chain {id})")]
    Link {
        /// The number of the descriptor.
        index: u16,
        id: u16,
    },
    /// A chain has too many descriptors, or is a loop.
    #[error("chain {id} is a loop, or has more than {most} descriptors")]
    Endless {
        id: u16,
        /// How many are allowed.
        most: usize,
    },
    /// A segment's address and length wrap around, or the chain's length does.
    #[error("chain {id}: address or length wrap around")]
    Wraps {
        /// The number of the chain.
        id: u16,
    },
    /// An indirect table of no, or of half, descriptors; within a table; or one
    /// with more behind it.
    #[error("chain {id}: bad indirect table")]
    Table {
        /// The number of the chain.
        id: u16,
    },
    /// A buffer to be read has segments to be written, or the other way round.
    #[error("chain {id} has segments of the wrong direction")]
    Direction {
        /// The number of the chain.
        id: u16,
    },
    /// A receive buffer that could not even hold a frame's header (5.1.6.3.1).
    #[error("chain {id}, a receive buffer, has {bytes} bytes")]
    Small {
        id: u16,
        /// Bytes that the buffer has.
        bytes: u32,
    },
    /// A word of a ring is nowhere: misaligned, or cut in two by what the front end mapped.
    #[error("byte {offset} of a ring's part cannot be accessed")]
    Access {
        /// The byte, counted from the part's first.
        offset: usize,
    },
    /// The size is 0, above 32768, or (split) not a power of two; or a part is not aligned
    /// as it must be.
    #[error("a ring of {size} entries cannot be where it is said to be")]
    Layout {
        /// The size in entries.
        size: u16,
    },
}

/// Whether kicks of the driver are wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kicks {
    /// The device polls, or is busy.
    Unwanted,
    /// The device waits for them.
    Wanted,
}

/// Whether the driver is to be called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// It asked for it.
    Due,
    /// It did not, or there is nothing new.
    No,
}

/// A ring's parts under one guard.
#[derive(Clone, Copy)]
pub struct RingView<'b> {
    /// Descriptor table, or descriptor ring.
    pub descriptors: PartView<'b>,
    /// What the driver writes.
    pub driver: PartView<'b>,
    /// What the device writes.
    pub device: PartView<'b>,
}

/// A ring of either layout.
#[derive(Debug)]
pub enum Ring {
    /// The layout of virtio 1.2, 2.7.
    Split(SplitRing),
    /// The layout of virtio 1.2, 2.8.
    Packed(PackedRing),
}

macro_rules! either {
    ($self:ident, $ring:ident => $what:expr) => {
        match $self {
            Ring::Split($ring) => $what,
            Ring::Packed($ring) => $what,
        }
    };
}

impl Ring {
    /// A ring of `size` entries that goes on at `base` (as `SET_VRING_BASE` gives it),
    /// with the negotiated `features`.
    ///
    /// # Errors
    /// The size cannot be.
    pub fn new(size: u16, base: u32, features: u64) -> Result<Ring, RingError> {
        let event_idx = features & EVENT_IDX != 0;
        match features & ioatlas_vhost::runner::RING_PACKED != 0 {
            true => PackedRing::new(size, base, event_idx).map(Ring::Packed),
            false => SplitRing::new(size, base as u16, event_idx).map(Ring::Split),
        }
    }

    /// Its parts, to be translated.
    ///
    /// # Errors
    /// One is not aligned as it must be, or wraps around.
    pub fn parts(&self, at: RingParts) -> Result<[RingPart; 3], RingError> {
        let size = self.size();
        let n = u64::from(size);
        let (driver, device, perm) = match self {
            Ring::Split(_) => (6 + 2 * n, 6 + 8 * n, Perm::Read),
            Ring::Packed(_) => (4, 4, Perm::ReadWrite),
        };
        let (driver_align, device_align) = match self {
            Ring::Split(_) => (2, 4),
            Ring::Packed(_) => (4, 4),
        };
        let part = |iova: Iova, len: u64, align: u64, need| {
            let fits = iova.0.checked_add(len).is_some();
            match fits && iova.0.is_multiple_of(align) {
                true => Ok(RingPart::new(iova, ByteCount(len), need)),
                false => Err(RingError::Layout { size }),
            }
        };
        Ok([
            part(at.descriptors, DESCRIPTOR_BYTES * n, DESCRIPTOR_BYTES, perm)?,
            part(at.driver, driver, driver_align, Perm::Read)?,
            part(at.device, device, device_align, Perm::ReadWrite)?,
        ])
    }

    /// How many entries it has.
    pub fn size(&self) -> u16 {
        either!(self, ring => ring.size())
    }

    /// Takes over what is in the ring already, before anything else.
    ///
    /// # Errors
    /// The ring cannot be accessed.
    pub fn resume(&mut self, view: &RingView<'_>) -> Result<(), RingError> {
        match self {
            Ring::Split(ring) => ring.resume(view),
            Ring::Packed(_) => Ok(()),
        }
    }

    /// Reads the next chain that was not peeked yet, if the driver made one available, and puts its
    /// segments at the end of `segments`.
    ///
    /// # Errors
    /// What it reads cannot be; the queue must stop.
    #[inline]
    pub fn peek(
        &mut self,
        view: &RingView<'_>,
        segments: &mut Vec<Segment>,
    ) -> Result<Option<Peeked>, RingError> {
        either!(self, ring => ring.peek(view, segments))
    }

    /// Where the next peek is.
    pub fn cursor(&self) -> Cursor {
        either!(self, ring => ring.cursor())
    }

    /// Goes back to a cursor taken earlier; what was peeked since then is as if it had not been.
    pub fn rewind(&mut self, to: Cursor) {
        either!(self, ring => ring.rewind(to))
    }

    /// Gives the first chain that was peeked and not used back, of which the
    /// device wrote `written` bytes.
    ///
    /// # Errors
    /// The ring cannot be accessed.
    #[inline]
    pub fn give_back(
        &mut self,
        view: &RingView<'_>,
        chain: &Peeked,
        written: u32,
    ) -> Result<(), RingError> {
        either!(self, ring => ring.give_back(view, chain, written))
    }

    /// Lets the driver see what was given back, and says whether it wants to be called for it.
    ///
    /// # Errors
    /// The ring cannot be accessed.
    pub fn publish(&mut self, view: &RingView<'_>) -> Result<Call, RingError> {
        either!(self, ring => ring.publish(view))
    }

    /// Says whether kicks are wanted. After asking for them the caller must look again
    /// (the fence is here).
    ///
    /// # Errors
    /// The ring cannot be accessed.
    pub fn want(&mut self, view: &RingView<'_>, kicks: Kicks) -> Result<(), RingError> {
        either!(self, ring => ring.want(view, kicks))?;
        if kicks == Kicks::Wanted {
            full_fence();
        }
        Ok(())
    }

    /// What `GET_VRING_BASE` is answered with: where the next device goes on.
    pub fn base(&self) -> u32 {
        either!(self, ring => ring.base())
    }
}

/// Adds a descriptor's segment, unless it is empty, and checks its address.
#[inline]
pub(crate) fn add_segment(
    id: u16,
    (addr, len, flags): (u64, u32, u16),
    total: &mut u32,
    segments: &mut Vec<Segment>,
) -> Result<(), RingError> {
    if len == 0 {
        return Ok(());
    }
    let wraps = RingError::Wraps { id };
    addr.checked_add(u64::from(len)).ok_or(wraps)?;
    *total = total.checked_add(len).ok_or(wraps)?;
    let access = match flags & flags::WRITE != 0 {
        true => AccessKind::Write,
        false => AccessKind::Read,
    };
    segments.push(Segment {
        iova: Iova(addr),
        len,
        access,
    });
    Ok(())
}

/// The table of a descriptor that is one.
pub(crate) fn table_of(id: u16, addr: u64, len: u32, flags: u16) -> Result<Table, RingError> {
    let whole = len > 0 && u64::from(len).is_multiple_of(DESCRIPTOR_BYTES);
    // 2.7.5.3.1: not both; so a table is the end of its chain.
    if flags & flags::NEXT != 0 || !whole || addr.checked_add(u64::from(len)).is_none() {
        return Err(RingError::Table { id });
    }
    let most = MAX_CHAIN;
    if u64::from(len) > most as u64 * DESCRIPTOR_BYTES {
        return Err(RingError::Endless { id, most });
    }
    Ok(Table {
        iova: Iova(addr),
        len,
    })
}

/// `vring_need_event` of 2.7.10: whether `event` is among the positions from `old` up
/// to, and without, `new`.
#[inline]
pub(crate) fn need_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
