// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The traits: one cache, many readers, one guard a reader at a time.

use super::*;
use ioatlas_dma::units::*;
use std::sync::Arc;

/// A device IOTLB. See the module for what every implementation promises.
///
/// Sealed: what a lookup gives becomes memory, so these promises are trusted, and made
/// by this crate alone.
pub trait DeviceIotlb: private::Sealed + Send + Sync + Sized + 'static {
    /// What [`reader`](Self::reader) returns: for one thread at a time.
    type Reader: IotlbReader;
    /// For messages and the command line.
    const NAME: &'static str;
    /// How updates meet guards.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    const UPDATES: Updates = Updates::Exclusive;

    /// A new reader, for one thread at a time. Its place is free again when it is dropped.
    ///
    /// # Errors
    /// There are as many as there may be.
    fn reader(self: &Arc<Self>) -> Result<Self::Reader, ReaderError>;

    /// Puts a translation in, in place of all that was known of its range.
    ///
    /// # Errors
    /// The entry is none, or there is no room.
    fn update(&self, entry: Entry) -> Result<Updated, UpdateError> {
        self.update_since(entry, self.now())
    }

    /// The same for an answer to a question that was put at `asked`: it is dropped if an
    /// invalidation of a part of it began since. For front ends whose answers and invalidations do
    /// not come in order on one channel.
    ///
    /// # Errors
    /// As [`update`](Self::update); an answer that is dropped is no error.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    fn update_since(&self, entry: Entry, asked: Moment) -> Result<Updated, UpdateError>;

    /// The moment at which a question is put.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    fn now(&self) -> Moment;

    /// Begins to invalidate: every page that has one of the bytes. A range that wraps around goes
    /// to the end of the address space; one of no bytes is nothing.
    ///
    /// Never refused, and what it names is not found any more by guards that begin after it
    /// returns. A range that is pinned is removed, too. Lock-based implementations wait for guards
    /// here; others return at once.
    fn start_invalidate(&self, iova: Iova, len: ByteCount) -> Invalidation;

    /// Begins to invalidate everything. The front end's memory may be unmapped when it is done.
    fn start_clear(&self) -> Invalidation;

    /// Whether every guard has been dropped that may have used what it removed. Once true, always
    /// true. Does not wait.
    fn is_done(&self, invalidation: Invalidation) -> bool;

    /// Waits until it is done. Must not be called under a guard of this cache.
    fn wait(&self, invalidation: Invalidation) {
        let mut turns = 0u32;
        while !self.is_done(invalidation) {
            turns += 1;
            match turns {
                ..64 => core::hint::spin_loop(),
                64..1024 => std::thread::yield_now(),
                _ => std::thread::sleep(std::time::Duration::from_micros(50)),
            }
        }
    }

    /// Invalidates and waits: start, then [`wait`](Self::wait).
    fn invalidate(&self, iova: Iova, len: ByteCount) {
        self.wait(self.start_invalidate(iova, len))
    }

    /// Removes everything and waits.
    fn clear(&self) {
        self.wait(self.start_clear())
    }

    /// Keeps what translates this range (rings: descriptors, available, used) from being evicted,
    /// now and later, until [`unpin`](Self::unpin). It need not be in the cache yet. Ranges may be
    /// pinned several times, and overlap.
    ///
    /// # Errors
    /// The range is none, or too many are pinned.
    fn pin(&self, iova: Iova, len: ByteCount) -> Result<(), PinError>;

    /// Takes back one pin of just this range; none is nothing.
    fn unpin(&self, iova: Iova, len: ByteCount);

    /// Calls `hook` for every range that leaves the cache from now on, under the writer's lock,
    /// before the call that removed it returns. It must not call the cache. There is one hook; a
    /// new one replaces it.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    fn on_remove(&self, hook: Box<dyn Fn(Removed) + Send + Sync>);

    /// What it has done.
    fn stats(&self) -> Stats;

    /// Checks the structure, and counts.
    ///
    /// # Errors
    /// A sentence that names the first thing that does not fit.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    fn audit(&self) -> Result<Census, String>;
}

/// How an update meets the guards that are under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Updates {
    /// It waits for none of them.
    Concurrent,
    /// It may wait until they are over.
    Exclusive,
}

/// One reader: a queue's thread. Sealed, as [`DeviceIotlb`] is.
pub trait IotlbReader: private::Sealed + Send {
    /// What [`pin`](Self::pin) returns. It borrows the reader, so there is one at a time.
    type Guard<'r>: Guard
    where
        Self: 'r;

    /// Pins the reader until the guard that is returned is dropped. Do not wait for a translation
    /// in one: leave it, and begin another.
    fn pin(&mut self) -> Self::Guard<'_>;
}

/// The time in which what was looked up may be used. Sealed, as [`DeviceIotlb`] is.
pub trait Guard: private::Sealed {
    /// Translates the first bytes of a range, for an access that needs `need`.
    ///
    /// # Errors
    /// The first byte is not translated, or not for that; or the range is none.
    fn lookup(&self, iova: Iova, len: ByteCount, need: Perm) -> Result<Piece, LookupError>;

    /// The generation that this guard began in.
    fn generation(&self) -> Generation;

    /// Translates a range piece by piece; ends after the first error.
    #[inline]
    fn pieces(&self, iova: Iova, len: ByteCount, need: Perm) -> Pieces<'_, Self>
    where
        Self: Sized,
    {
        Pieces {
            guard: self,
            iova,
            left: len,
            need,
            over: false,
        }
    }
}

/// The pieces of a range, in order: together they are all of it, unless an error comes last. A
/// range of no bytes is an error.
pub struct Pieces<'b, B> {
    guard: &'b B,
    iova: Iova,
    left: ByteCount,
    need: Perm,
    over: bool,
}

impl<B: Guard> Iterator for Pieces<'_, B> {
    type Item = Result<Piece, LookupError>;
    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let found = self.guard.lookup(self.iova, self.left, self.need);
        match &found {
            Ok(piece) => {
                self.left.0 -= piece.len.0;
                self.over = self.left.0 == 0;
                // may wrap to 0 where the range ends with the address space, and is not used then
                self.iova.0 = self.iova.0.wrapping_add(piece.len.0);
            }
            Err(_) => self.over = true,
        }
        Some(found)
    }
}
