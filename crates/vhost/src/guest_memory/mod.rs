// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The guest-memory adapter: `vm_memory::GuestMemory` over a device IOTLB, so that device code
//! written for guest-physical addresses runs on IOVAs unchanged.
//!
//! Vocabulary: an [`IovaMemory`] belongs to one thread and can translate; a [`GuardedMemory`] is
//! that thread's current guard, and is what `virtio_queue::Queue` and device code are given as
//! their memory.
//!
//! # What a miss does
//! 1. No slice of guest memory is alive (the usual case: a ring or the first descriptor): the guard
//!    is *dropped*, the translation asked for, awaited for at most [`Patience::answer`], and looked
//!    up in a new guard. Device code notices nothing.
//! 2. Slices are alive (a chain whose second descriptor misses): leaving would let an invalidation
//!    be acknowledged under the device's hands (P12). The reader waits under the guard, but gives
//!    up at once when another thread waits for the guard to be dropped: [`Fault::Interrupted`], the
//!    access fails, and the chain is to be tried again.
//! 3. No answer, or one that does not permit the access: the access fails, the fault is kept, and
//!    the queue stops.
//!
//! Case 2 is what pretranslation avoids: [`IovaMemory::pretranslate`] asks for everything a guard
//! needs before it begins.
//!
//! # Safety
//! Slices are raw memory at the cache's host addresses; the code that fills the cache promises that
//! they stay mapped until an invalidation of them is done ([`IovaMemory::new`]). Guards and
//! `PinCount` do the rest.
//!
//! Not handled: dirty logging; atomic accesses that straddle two pieces (an error, as in
//! `vm-memory`).

mod pin;
mod waits;

pub use crate::protocol::misses::MissChannel;
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub use pin::{PinCount, Pinned};

use crate::{
    cache::{Guard, HostAddr, IotlbReader, LookupError, Miss, Piece},
    protocol::misses::{Answering, Asked, Waiting},
};
use ioatlas_dma::units::*;
use std::{
    cell::{Cell, RefCell},
    fmt,
    iter::FusedIterator,
    marker::PhantomData,
    ptr::NonNull,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use vm_memory::{
    GuestAddress, GuestMemory, GuestMemoryError, GuestMemoryMmap, Permissions, VolatileSlice,
    bitmap::BS, guest_memory::GuestMemorySliceIterator,
};
use waits::{Position, Waits};

/// Missing pages of one range that are asked for at once.
const AHEAD: usize = 64;

/// How long to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// For the answer to a miss. Answers that come within it extend it.
    pub answer: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Patience {
            answer: Duration::from_secs(1),
        }
    }
}

/// Why an access failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)] // its fields and messages say it
pub enum Fault {
    /// The front end did not answer.
    #[error("no answer to a miss at IOVA {:#x} for {need:?} within {waited:?}", .iova.0)]
    Unanswered {
        /// The address asked for.
        iova: Iova,
        need: Perm,
        /// How long was waited.
        waited: Duration,
    },
    /// The front end's answer does not permit the access.
    #[error("access to IOVA {:#x} needs {need:?}, which its mapping does not permit", .iova.0)]
    Forbidden {
        iova: Iova,
        /// What the access needs.
        need: Perm,
    },
    /// There is no front end to ask: without IOMMU, an address outside guest memory; with one, a
    /// front end without back channel.
    #[error("IOVA {:#x} is not mapped, and no front end can be asked", .0.0)]
    Unmapped(Iova),
    /// Address and length wrap around.
    #[error("access of {:#x} bytes at IOVA {:#x} wraps around", .1.0, .0.0)]
    Wraps(Iova, ByteCount),
    /// Another thread waits for this guard to be dropped; to be tried again.
    #[error("interrupted at IOVA {:#x}", .0.0)]
    Interrupted(Iova),
}

/// Which [`IovaMemory`] a translation came from. No two of a process are alike, also not
/// one after the other.
///
/// Generations of two caches are not comparable, and one reader's guards protect nothing that
/// another looked up: code that remembers a translation to use it as memory must compare this, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryId(u64);

impl MemoryId {
    fn new() -> Self {
        static NEXT: Mutex<u64> = Mutex::new(0);
        let mut next = NEXT.lock().unwrap_or_else(PoisonError::into_inner);
        *next += 1;
        MemoryId(*next)
    }
}

/// A thread's way to guest memory.
pub struct IovaMemory<R> {
    id: MemoryId,
    reader: R,
    misses: Arc<MissChannel>,
    patience: Patience,
}

impl<R> fmt::Debug for IovaMemory<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IovaMemory")
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

impl<R: IotlbReader> IovaMemory<R> {
    /// Memory that `reader` translates to, and whose misses go to `misses`.
    ///
    /// # Safety
    /// Every entry that is put into the reader's cache names memory of this process that is mapped
    /// for reading and writing, is not managed by Rust (anybody may change it at any time), and
    /// stays so until the entry has been removed and the invalidation that removed it is done.
    pub unsafe fn new(reader: R, misses: Arc<MissChannel>, patience: Patience) -> Self {
        IovaMemory {
            id: MemoryId::new(),
            reader,
            misses,
            patience,
        }
    }

    /// Which one it is.
    pub fn id(&self) -> MemoryId {
        self.id
    }

    /// The channel on which misses are sent.
    pub fn misses(&self) -> &MissChannel {
        &self.misses
    }

    /// Pins the reader of the cache alone, for code that translates by itself. (The reader is not
    /// given out: another cache's could be put in its place, and nothing was promised
    /// of what that names.)
    pub fn pin_cache(&mut self) -> R::Guard<'_> {
        self.reader.pin()
    }

    /// Pins the reader, and gives what its guard translates as guest memory.
    pub fn pin(&mut self) -> GuardedMemory<'_, R> {
        let mut reader = NonNull::from(&mut self.reader);
        // SAFETY: `reader` is borrowed for as long as the guard memory lives, which alone uses the
        // pointer.
        let guard = unsafe { reader.as_mut() }.pin();
        GuardedMemory {
            pins: PinCount::default(),
            fault: Cell::new(None),
            departures: Cell::new(0),
            guard: RefCell::new(Some(guard)),
            reader,
            misses: &self.misses,
            patience: self.patience,
            _borrow: PhantomData,
        }
    }

    /// Asks for everything in `wanted` that is missing, all at once, and waits until it is there.
    ///
    /// # Errors
    /// The first range that is not there when the time is up, and why.
    pub fn pretranslate(
        &mut self,
        wanted: impl Iterator<Item = (Iova, ByteCount, Perm)> + Clone,
    ) -> Result<(), Fault> {
        let (misses, patience) = (self.misses.clone(), self.patience);
        let mut waits = Waits::new(&misses, patience);
        loop {
            let round = waits.begin();
            let mut first = None;
            {
                let guard = self.reader.pin();
                let ranges = wanted.clone().enumerate();
                for (range, (iova, len, need)) in ranges.filter(|(_, (_, len, _))| len.0 > 0) {
                    // Its answer may be for all of them.
                    if first.is_some() && misses.answering() == Answering::Ranges {
                        break;
                    }
                    scan(&guard, iova, len, need, |miss| {
                        first.get_or_insert((
                            Position {
                                range,
                                iova: miss.iova,
                            },
                            miss,
                        ));
                        waits.ask(&miss) != Asked::NoBackChannel
                            && misses.answering() == Answering::Pages
                    })?;
                }
            }
            match first {
                None => return Ok(()),
                Some((at, miss)) => waits.wait(round, at, &miss, Waiting::Unpinned)?,
            }
        }
    }
}

/// The current guard of a thread, as guest memory.
pub struct GuardedMemory<'m, R: IotlbReader + 'm> {
    pins: PinCount,
    fault: Cell<Option<Fault>>,
    /// How often it was left: what was looked up before is not good any more.
    departures: Cell<u64>,
    /// `None` only within [`GuardedMemory::resolve`].
    guard: RefCell<Option<R::Guard<'m>>>,
    reader: NonNull<R>,
    misses: &'m MissChannel,
    patience: Patience,
    _borrow: PhantomData<&'m mut R>,
}

impl<R: IotlbReader> fmt::Debug for GuardedMemory<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BurstMemory")
            .field("fault", &self.fault.get())
            .finish_non_exhaustive()
    }
}

impl<'m, R: IotlbReader> GuardedMemory<'m, R> {
    /// The first fault since the guard began, if there was one. Device code may have
    /// turned it into anything.
    pub fn fault(&self) -> Option<Fault> {
        self.fault.get()
    }

    /// Forgets the fault, so that [`fault`](Self::fault) gives the next one.
    pub fn clear_fault(&self) {
        self.fault.set(None);
    }

    #[inline]
    fn lookup(&self, iova: Iova, len: ByteCount, need: Perm) -> Result<Piece, LookupError> {
        let guard = self.guard.borrow();
        let guard = guard.as_ref().expect("a guard outside `resolve`");
        guard.lookup(iova, len, need)
    }

    /// Waits until all of a range can be translated, as the theory statement says.
    #[cold]
    fn resolve(&self, iova: Iova, len: ByteCount, need: Perm) -> Result<(), Fault> {
        let mut waits = Waits::new(self.misses, self.patience);
        loop {
            let round = waits.begin();
            let mut first = None;
            {
                let guard = self.guard.borrow();
                let guard = guard.as_ref().expect("a guard outside `resolve`");
                scan(guard, iova, len, need, |miss| {
                    first.get_or_insert(miss);
                    waits.ask(&miss) != Asked::NoBackChannel
                        && self.misses.answering() == Answering::Pages
                })?;
            }
            let Some(miss) = first else { return Ok(()) };
            let at = Position {
                range: 0,
                iova: miss.iova,
            };
            match self.pins.is_zero() {
                false => waits.wait(round, at, &miss, Waiting::Pinned)?,
                true => {
                    *self.guard.borrow_mut() = None;
                    self.departures.set(self.departures.get() + 1);
                    let waited = waits.wait(round, at, &miss, Waiting::Unpinned);
                    // SAFETY: the only guard of the reader was dropped above, and `_borrow` keeps
                    // the reader ours.
                    let reader = unsafe { &mut *self.reader.as_ptr() };
                    *self.guard.borrow_mut() = Some(reader.pin());
                    waited?;
                }
            }
        }
    }

    /// Notes a fault, and makes it an error of `vm-memory`.
    #[cold]
    fn failed(&self, fault: Fault) -> GuestMemoryError {
        if self.fault.get().is_none() {
            self.fault.set(Some(fault));
        }
        GuestMemoryError::IOError(std::io::Error::other(fault))
    }
}

/// Looks all of a range up, and gives its first missing pages to `missing` until that says no.
fn scan<B: Guard>(
    guard: &B,
    iova: Iova,
    len: ByteCount,
    need: Perm,
    mut missing: impl FnMut(Miss) -> bool,
) -> Result<(), Fault> {
    let wraps = Fault::Wraps(iova, len);
    let last = iova
        .0
        .checked_add(len.0.checked_sub(1).ok_or(wraps)?)
        .ok_or(wraps)?;
    let (mut at, mut missed) = (iova.0, 0);
    loop {
        let end = match guard.lookup(Iova(at), ByteCount(last - at + 1), need) {
            Ok(piece) => at.checked_add(piece.len.0),
            Err(LookupError::Miss(miss)) => {
                missed += 1;
                if !missing(miss) || missed == AHEAD {
                    return Ok(());
                }
                (miss.iova.0 | (GRANULE - 1)).checked_add(1)
            }
            Err(_) => return Err(wraps),
        };
        match end {
            Some(end) if end <= last => at = end,
            _ => return Ok(()),
        }
    }
}

impl<'m, R: IotlbReader> GuestMemory for GuardedMemory<'m, R> {
    type PhysicalMemory = GuestMemoryMmap<()>;
    type Bitmap = PinCount;

    fn check_range(&self, addr: GuestAddress, count: usize, access: Permissions) -> bool {
        self.get_slices(addr, count, access)
            .is_ok_and(|mut slices| slices.all(|slice| slice.is_ok()))
    }

    #[inline]
    fn get_slices<'a>(
        &'a self,
        addr: GuestAddress,
        count: usize,
        access: Permissions,
    ) -> Result<impl GuestMemorySliceIterator<'a, BS<'a, PinCount>>, GuestMemoryError> {
        let (iova, len) = (Iova(addr.0), ByteCount(count as u64));
        let need = match access {
            Permissions::No | Permissions::Read => Perm::Read,
            Permissions::Write => Perm::Write,
            Permissions::ReadWrite => Perm::ReadWrite,
        };
        let mut slices = Slices {
            memory: self,
            iova,
            left: len,
            need,
            host: HostAddr(0),
            known: ByteCount(0),
            departures: self.departures.get(),
        };
        // One piece is the usual case, and one lookup. Anything else must be there as a whole
        // before the first slice is handed out, since with that the guard can no longer be dropped.
        if count > 0 {
            match self.lookup(iova, len, need) {
                Ok(piece) if piece.len == len => slices.found(piece),
                _ => self.resolve(iova, len, need).map_err(|f| self.failed(f))?,
            }
        }
        Ok(slices)
    }
}

/// The slices of a range.
///
/// What was looked up ahead is plain numbers, good for as long as the guard was not dropped since:
/// a pin here would keep all of it from the compiler's registers, for something must be
/// done at its end.
struct Slices<'a, 'm, R: IotlbReader> {
    memory: &'a GuardedMemory<'m, R>,
    iova: Iova,
    left: ByteCount,
    need: Perm,
    /// Where the next piece is, and how long: nothing is known of it where that is 0.
    host: HostAddr,
    known: ByteCount,
    /// How often the guard had been dropped when that was looked up.
    departures: u64,
}

impl<'a, R: IotlbReader> Iterator for Slices<'a, '_, R> {
    type Item = Result<VolatileSlice<'a, Pinned<'a>>, GuestMemoryError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.left.0 == 0 {
            return None;
        }
        if let Err(error) = self.look_ahead() {
            return Some(Err(error));
        }
        let pin = self.memory.pins.pin();
        let (host, len) = (self.host, self.known);
        self.iova = Iova(self.iova.0.wrapping_add(len.0));
        self.left.0 -= len.0;
        self.known = ByteCount(0);
        // SAFETY: `IovaMemory::new`: the piece is mapped until an invalidation of it is done, which
        // the guard prevents; it was looked up under this guard, which is not left while the pin,
        // which goes with the slice and with all that is made from it, lives.
        let slice = unsafe {
            VolatileSlice::with_bitmap(host.0 as usize as *mut u8, len.0 as usize, pin, None)
        };
        Some(Ok(slice))
    }
}

impl<R: IotlbReader> Slices<'_, '_, R> {
    /// Makes the next piece known, if there is one; after an error there is none.
    #[inline(always)]
    fn look_ahead(&mut self) -> Result<(), GuestMemoryError> {
        let under_this_guard = self.departures == self.memory.departures.get();
        let is_known = self.known.0 > 0 && under_this_guard;
        if is_known || self.left.0 == 0 {
            return Ok(());
        }
        self.again().map_err(|fault| {
            self.left = ByteCount(0);
            self.memory.failed(fault)
        })
    }

    #[inline]
    fn found(&mut self, piece: Piece) {
        (self.host, self.known) = (piece.host, piece.len);
    }

    /// The next piece of a range that has several, or whose guard was dropped.
    #[cold]
    fn again(&mut self) -> Result<(), Fault> {
        loop {
            match self.memory.lookup(self.iova, self.left, self.need) {
                Ok(piece) => {
                    self.found(piece);
                    self.departures = self.memory.departures.get();
                    return Ok(());
                }
                Err(_) => self.memory.resolve(self.iova, self.left, self.need)?,
            }
        }
    }
}

impl<R: IotlbReader> FusedIterator for Slices<'_, '_, R> {}
impl<'a, R: IotlbReader> GuestMemorySliceIterator<'a, Pinned<'a>> for Slices<'a, '_, R> {
    // The provided one looks ahead by a whole `Result` of a slice, twice as many instructions as
    // our lookup.
    #[inline]
    fn stop_on_error(
        mut self,
    ) -> Result<impl Iterator<Item = VolatileSlice<'a, Pinned<'a>>>, GuestMemoryError> {
        self.look_ahead()?;
        Ok(UntilError(self))
    }
}

/// The slices before the first that is none; the fault says why that was not one.
struct UntilError<I>(I);

impl<S, E, I: Iterator<Item = Result<S, E>>> Iterator for UntilError<I> {
    type Item = S;
    #[inline]
    fn next(&mut self) -> Option<S> {
        self.0.next()?.ok()
    }
}
