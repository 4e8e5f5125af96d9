// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The other half, for VMM authors: what answers a back end's misses, and tells it what to forget.
//!
//! Vocabulary: the *page table* is the guest's, behind [`IoPageTable`]; a *channel*
//! ([`IotlbChannel`]) carries messages to one back end, over vhost-user or to vhost in the kernel;
//! *held* is what the back end may have in its device IOTLB, because it was sent and not yet
//! invalidated.
//!
//! # Invariants
//! * A translation is looked up, noted as held and sent within one critical section, and an
//!   invalidation runs in the same one. So when [`IotlbServer::invalidate`] is called *after* the
//!   page table changed, every update made from the old table is held by then, and is invalidated;
//!   every later one is made from the new table.
//! * Held is never less than what the back end has. It may be more: the back end evicts as it
//!   likes, and beyond [`ServerConfig::held_ranges`] neighbours are joined across the gap between
//!   them.
//! * `invalidate` returns only when the back end has acknowledged; if it cannot, the guest must not
//!   reuse the memory, and the error says so.
//!
//! Lock order: `held` (with the channel in it) alone. [`IoPageTable::lookup`] is called with it,
//! and must not call back.
//!
//! Not handled: address space identifiers (vDPA), batch messages.

mod channel;

mod front;
mod held;
mod table;

pub use channel::{ChannelError, IotlbChannel, KernelChannel, UserChannel};
pub use front::{
    FrontEnd, FrontEndConfig, FrontEndError, QueueEvents, RingAddresses, Sealed, memory_file,
};
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub use held::Held;
pub use table::PageMap;

pub use crate::protocol::message::{FrontAddr, IotlbMessage, MessageError};

use crate::protocol::message::{VhostIotlbType, perm_of};
use ioatlas_dma::units::*;
use std::sync::{Mutex, PoisonError};

/// One mapping of the guest's I/O page table: a leaf, or whatever the VMM finds in one walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// The first of its addresses.
    pub iova: Iova,
    /// Its length, at least one byte; it does not wrap around, but may end with the address space.
    pub len: ByteCount,
    /// Where its first byte is, in this process.
    pub front: FrontAddr,
    /// What a device may do to it.
    pub perm: Perm,
}

impl Mapping {
    /// The address behind it; 0 where it ends with the address space.
    fn end(&self) -> u64 {
        self.iova.0.wrapping_add(self.len.0)
    }
}

/// The guest's I/O page table, as the VMM's IOMMU emulation walks it for one device.
pub trait IoPageTable: Send + Sync {
    /// The mapping in which `iova` lies.
    fn lookup(&self, iova: Iova) -> Option<Mapping>;
}

impl<T: IoPageTable + ?Sized> IoPageTable for std::sync::Arc<T> {
    fn lookup(&self, iova: Iova) -> Option<Mapping> {
        (**self).lookup(iova)
    }
}

/// How much of a mapping an answer gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The page that missed, of this many bytes (a power of two), or what is mapped of it.
    Page(ByteCount),
    /// The largest range around it that is contiguous in IOVAs, in the front end, and in
    /// permission, up to this many bytes, rounded up to whole pages. At most [`MAX_STEPS`]
    /// neighbours are looked up each way.
    Contiguous(ByteCount),
}

/// Neighbours that one answer looks up in each direction, so that a guest's table of small pages
/// cannot keep the VMM busy.
pub const MAX_STEPS: usize = 512;

/// Bytes of an answer, at most: whole pages.
const MOST: u64 = u64::MAX - (GRANULE - 1);

/// What an [`IotlbServer`] may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ServerConfig {
    /// How much of a mapping an answer gives.
    pub answer: Answer,
    /// Ranges that are remembered as held; memory is bounded by 16 bytes each and the map's own.
    pub held_ranges: usize,
}

ioatlas_dma::setters!(const ServerConfig {
    answer: Answer,
    held_ranges: usize,
});

impl Default for ServerConfig {
    fn default() -> Self {
        ServerConfig {
            answer: Answer::Contiguous(ByteCount(1 << 30)),
            held_ranges: 1 << 16,
        }
    }
}

/// What a server has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ServerStats {
    /// Misses that the back end sent.
    pub misses: u64,
    /// Updates that were sent.
    pub updates: u64,
    /// Misses of what is not mapped, or not with that permission; nothing is sent.
    pub unresolved: u64,
    /// Invalidations that were sent.
    pub invalidations: u64,
    /// Calls of `invalidate` for which nothing had to be sent.
    pub skipped: u64,
    /// Access failures that the back end reported.
    pub access_failures: u64,
}

/// Answers misses and sends invalidations for one back end.
#[derive(Debug)]
pub struct IotlbServer<T, C> {
    table: T,
    config: ServerConfig,
    inner: Mutex<Inner<C>>,
}

#[derive(Debug)]
struct Inner<C> {
    channel: C,
    held: Held,
    stats: ServerStats,
}

impl<T: IoPageTable, C: IotlbChannel> IotlbServer<T, C> {
    /// A server of `table` for the back end behind `channel`, which holds nothing yet.
    pub fn new(table: T, channel: C, config: ServerConfig) -> Self {
        let inner = Inner {
            channel,
            held: Held::new(config.held_ranges),
            stats: ServerStats::default(),
        };
        IotlbServer {
            table,
            config,
            inner: Mutex::new(inner),
        }
    }

    /// The page table in which misses are looked up.
    pub fn table(&self) -> &T {
        &self.table
    }

    /// What it has done so far.
    pub fn stats(&self) -> ServerStats {
        self.inner().stats
    }

    /// What the back end may hold.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub fn held(&self) -> Held {
        self.inner().held.clone()
    }

    /// Handles a message from the back end: answers a miss, counts a
    /// failure, ignores anything else.
    ///
    /// # Errors
    /// The answer could not be sent, or was refused: the back end is out of step.
    pub fn handle(&self, message: &IotlbMessage) -> Result<(), ChannelError> {
        match message.kind {
            VhostIotlbType::Miss => self.answer(message),
            VhostIotlbType::AccessFail => {
                self.inner().stats.access_failures += 1;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn answer(&self, miss: &IotlbMessage) -> Result<(), ChannelError> {
        let mut inner = self.inner();
        inner.stats.misses += 1;
        // A permission that the table does not grant is answered all the same: the back end then
        // knows, and need not wait.
        let Some(around) = self.range_around(miss.iova) else {
            inner.stats.unresolved += 1;
            return Ok(());
        };
        let wanted = perm_of(miss.access);
        if wanted.is_some_and(|wanted| !covers(around.perm, wanted)) {
            inner.stats.unresolved += 1;
        }
        inner
            .held
            .insert(around.iova.0, around.end().wrapping_sub(1));
        inner.stats.updates += 1;
        let update = IotlbMessage::update(around.iova, around.len, around.front, around.perm);
        inner.channel.send(&update)
    }

    /// Makes the back end forget what it may hold of `len` bytes at `iova`. To be called after the
    /// page table changed and before the guest is told that its own invalidation is complete.
    ///
    /// # Errors
    /// The back end did not acknowledge: it may still use the old translation, and the
    /// device must be stopped.
    pub fn invalidate(&self, iova: Iova, len: ByteCount) -> Result<(), ChannelError> {
        let (first, last) = IotlbMessage::invalidate(iova, len).invalidated();
        let mut inner = self.inner();
        let held = inner.held.within(first.0, last.0);
        if held.is_empty() {
            inner.stats.skipped += 1;
        }
        for (first, last) in held {
            // Everything there is has one byte more than a length can say; 0 stands for it.
            let len = ByteCount((last - first).wrapping_add(1));
            inner
                .channel
                .send(&IotlbMessage::invalidate(Iova(first), len))?;
            inner.held.remove(first, last);
            inner.stats.invalidations += 1;
        }
        Ok(())
    }

    /// What an answer to a miss at `iova` gives.
    fn range_around(&self, iova: Iova) -> Option<Mapping> {
        let found = self.table.lookup(iova)?;
        debug_assert!(found.iova <= iova && iova.0 - found.iova.0 < found.len.0);
        match self.config.answer {
            Answer::Page(page) => {
                let first = iova.0 & !(page.0 - 1);
                Some(clip(&found, first, first.saturating_add(page.0 - 1)))
            }
            Answer::Contiguous(limit) => {
                let pages = limit.0.clamp(1, MOST).div_ceil(GRANULE);
                Some(self.widen(found, iova, ByteCount(pages * GRANULE)))
            }
        }
    }

    /// Joins neighbours to `found` while they continue it, then cuts it to `limit`, a number of
    /// whole pages, around `iova`.
    fn widen(&self, found: Mapping, iova: Iova, limit: ByteCount) -> Mapping {
        let mut wide = found;
        for _ in 0..MAX_STEPS {
            if wide.end() == 0 || wide.end().wrapping_sub(iova.0) >= limit.0 {
                break;
            }
            match self.table.lookup(Iova(wide.end())) {
                Some(next) if continues(&wide, &next) => wide.len.0 += next.len.0,
                _ => break,
            }
        }
        for _ in 0..MAX_STEPS {
            if wide.iova.0 == 0 || wide.len.0 >= limit.0 {
                break;
            }
            match self.table.lookup(Iova(wide.iova.0 - 1)) {
                Some(before) if continues(&before, &wide) => {
                    wide = Mapping {
                        len: ByteCount(before.len.0 + wide.len.0),
                        ..before
                    };
                }
                _ => break,
            }
        }
        let first = match wide.len.0 > limit.0 {
            true => {
                // half of it before the page that missed, of which one is left in any case
                let before = (limit.0 / GRANULE - 1).div_ceil(2) * GRANULE;
                let page = iova.0 & !(GRANULE - 1);
                page.saturating_sub(before).max(wide.iova.0)
            }
            false => wide.iova.0,
        };
        clip(&wide, first, first.saturating_add(limit.0 - 1))
    }

    fn inner(&self) -> std::sync::MutexGuard<'_, Inner<C>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether `next` begins where `before` ends, for the device and for the front end,
/// with the same permission.
fn continues(before: &Mapping, next: &Mapping) -> bool {
    before.iova.0.checked_add(before.len.0) == Some(next.iova.0)
        && before.len.0.checked_add(next.len.0).is_some()
        && before.front.0.checked_add(before.len.0) == Some(next.front.0)
        && before.perm == next.perm
}

/// The part of `mapping` from `first` to `last`; they meet.
fn clip(mapping: &Mapping, first: u64, last: u64) -> Mapping {
    let from = mapping.iova.0.max(first);
    let to = (mapping.iova.0 + (mapping.len.0 - 1)).min(last);
    Mapping {
        iova: Iova(from),
        len: ByteCount(to - from + 1),
        front: FrontAddr(mapping.front.0 + (from - mapping.iova.0)),
        perm: mapping.perm,
    }
}

fn covers(granted: Perm, wanted: Perm) -> bool {
    granted == Perm::ReadWrite || granted == wanted
}
