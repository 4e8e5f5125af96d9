// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A queue read ahead: chains in the order of the ring, and what of them is translated.
//!
//! # Theory
//! *Ahead* are the chains that were peeked and not given back; they stay so from guard to guard,
//! copied, until they are used, so a frame or a buffer that waits for a translation is never lost.
//! The first of them are *ready*: every byte translated, in the memory and the generation of its
//! cache that `known` names. Anything invalidated makes a new generation, and nothing is ready
//! until it was looked up again (P12). `IovaMemory::pretranslate` looks everything up under every
//! guard; here a buffer is looked up once, however long it waits in the ring, while nothing is
//! invalidated.
//!
//! What is missing is collected, for the whole of what is ahead, page by page (a question has no
//! length), and asked for after the guard: together, or where answers are for ranges only what
//! stands in the way, which is the first. The next look at it is when an answer came. Chains that
//! were *asked for* are then passed over until their turn comes: where answers come page by page, a
//! look for each of them at everything would be the square of what is ahead.
//!
//! # Bounds
//! [`Depth`] chains, and no new one beyond [`SEGMENTS`] segments (so at most that many and one
//! chain more); [`QUESTIONS`] missing pages a guard. Of a chain only its first [`CHAIN_BYTES`] are
//! translated: a chain may say 4 GiB, which answers page by page would make a million pieces. So
//! there are at most 18 pieces a chain more than segments.

use crate::{
    frame::MAX_FRAME,
    guest::{GuestGuard, Known},
    ring::*,
};
use ioatlas_dma::units::*;
use ioatlas_vhost::{IotlbReader, LookupError, Miss, Piece, runner};
use std::{collections::VecDeque, ops::Range};
use vm_memory::VolatileSlice;

/// The two queues of a pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Receive queue: the device writes.
    Receive,
    /// Transmit queue: the device reads.
    Transmit,
}

/// Chains that are read ahead, at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Depth(pub usize);

/// No chain is peeked while this many segments are ahead.
pub const SEGMENTS: usize = 4096;
/// Bytes of a chain that are translated, at most: the longest frame with the longest header. No
/// more is ever read or written, since what is longer is dropped.
pub const CHAIN_BYTES: u32 = MAX_FRAME + 12;
/// Missing pages that one look collects, at most.
pub const QUESTIONS: usize = 256;

/// A chain that was read ahead.
#[derive(Clone, Copy, Debug)]
pub struct Chain {
    /// As it was read.
    pub peeked: Peeked,
    segments: usize,
    /// Valid if it is ready.
    pieces: usize,
    /// All its segments together, translated or not ([`CHAIN_BYTES`]).
    pub bytes: u32,
}

/// What a look found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Look {
    /// Chains that are ready.
    pub ready: usize,
    /// Whether something is missing that stands in the way: of the ring, or of the
    /// first chain not ready.
    pub blocked: Option<Miss>,
}

/// A queue of a device. See the module.
#[derive(Debug)]
pub struct Queue {
    ring: Ring,
    parts: [RingPart; 3],
    access: AccessKind,
    /// The used index is still to be taken over.
    fresh: bool,
    chains: VecDeque<Chain>,
    segments: VecDeque<Segment>,
    /// Of the chains that are ready, in order.
    pieces: VecDeque<Piece>,
    ready: usize,
    /// What `ready` and `pieces` are of.
    known: Option<Known>,
    /// When everything ahead was last looked at in vain: how many answers had come. `None`: look.
    waiting: Option<(u64, Option<Miss>)>,
    /// This look missed what came before it could be asked for: look again, answer or not.
    overtaken: bool,
    /// Chains, from the first on, whose missing pages were collected by an earlier look.
    asked: usize,
    /// The first miss of this look is in one of them.
    again: bool,
    scratch: Vec<Segment>,
    table: Vec<u8>,
    /// Segments that were found, and that were not, by looks that asked.
    pub hits: u64,
    /// The same, not found.
    pub missed: u64,
}

impl Queue {
    /// A queue over a live ring; its chains are for the device to `access`.
    ///
    /// # Errors
    /// It cannot be where it is said to be.
    pub fn new(ring: &runner::Ring, access: AccessKind) -> Result<Self, RingError> {
        let size = ring.size();
        let at = ring.addresses().ok_or(RingError::Layout { size })?;
        Self::at(at, size, ring.base(), ring.features(), access)
    }

    /// The same, without a runner.
    ///
    /// # Errors
    /// The same as for [`new`](Self::new).
    pub fn at(
        at: runner::RingParts,
        size: u16,
        base: u32,
        features: u64,
        access: AccessKind,
    ) -> Result<Self, RingError> {
        let ring = Ring::new(size, base, features)?;
        Ok(Queue {
            parts: ring.parts(at)?,
            ring,
            access,
            fresh: true,
            chains: VecDeque::new(),
            segments: VecDeque::new(),
            pieces: VecDeque::new(),
            ready: 0,
            known: None,
            waiting: None,
            overtaken: false,
            asked: 0,
            again: false,
            scratch: Vec::new(),
            table: Vec::new(),
            hits: 0,
            missed: 0,
        })
    }

    /// What `GET_VRING_BASE` answers if it stops now.
    pub fn base(&self) -> u32 {
        self.ring.base()
    }

    /// Looks at the ring and translates what is ahead, as far as possible. `answers` is how many
    /// answers had come before the guard began; pages that are missing are added to `missing`.
    ///
    /// # Errors
    /// The driver did what it must not.
    pub fn look<R: IotlbReader>(
        &mut self,
        guest: &GuestGuard<'_, R>,
        depth: Depth,
        answers: u64,
        missing: &mut Vec<Miss>,
    ) -> Result<Look, RingError> {
        if self.known != Some(guest.known()) {
            self.known = Some(guest.known());
            self.pieces.clear();
            self.ready = 0;
            self.waiting = None;
        }
        if let Some((seen, blocked)) = self.waiting {
            if seen == answers {
                let ready = self.ready;
                return Ok(Look { ready, blocked });
            }
            self.waiting = None;
        }
        let mut blocked = None;
        for part in &mut self.parts {
            if let Err(error) = part.translate(guest) {
                let miss = self::miss(error).ok_or(RingError::Layout {
                    size: self.ring.size(),
                })?;
                blocked.get_or_insert(miss);
                ask(missing, miss);
            }
        }
        if blocked.is_none() {
            let table_missing = self.peek(guest, depth, missing)?;
            blocked = self.translate(guest, missing)?.or(table_missing);
        }
        if let Some(miss) = blocked {
            put_first(missing, miss);
        }
        if blocked.is_some() && !std::mem::take(&mut self.overtaken) {
            self.waiting = Some((answers, blocked));
        }
        let ready = self.ready;
        Ok(Look { ready, blocked })
    }

    /// Forgets that it looked in vain, and what it collected: a question could not be put, or was
    /// put for the first of many.
    pub fn look_again(&mut self) {
        self.waiting = None;
        self.asked = 0;
    }

    /// The same at the next answer: only the first question was put.
    pub fn collect_again(&mut self) {
        self.asked = 0;
    }

    /// Whether what the last look missed first had been collected before. So its question is under
    /// way; if not, it is lost with its answer (an eviction, an invalidation), and so may be
    /// those of the others.
    pub fn is_repeated(&self) -> bool {
        self.again
    }

    /// Reads new chains. Returns the miss of the first table that is not translated; nothing is
    /// peeked from its chain on.
    fn peek<R: IotlbReader>(
        &mut self,
        guest: &GuestGuard<'_, R>,
        depth: Depth,
        missing: &mut Vec<Miss>,
    ) -> Result<Option<Miss>, RingError> {
        let view = RingView {
            descriptors: self.parts[0].view(guest),
            driver: self.parts[1].view(guest),
            device: self.parts[2].view(guest),
        };
        if self.fresh {
            self.ring.resume(&view)?;
            self.fresh = false;
        }
        let mut stop: Option<(Cursor, Miss)> = None;
        let mut room = depth.0.saturating_sub(self.chains.len());
        while room > 0 && self.segments.len() < SEGMENTS {
            room -= 1;
            let cursor = self.ring.cursor();
            self.scratch.clear();
            let Some(peeked) = self.ring.peek(&view, &mut self.scratch)? else {
                break;
            };
            if let Some(table) = &peeked.table {
                match read(guest, table, &mut self.table, missing)? {
                    None => {
                        read_table(&self.ring, &peeked, &self.table, &mut self.scratch)?;
                    }
                    // The others' tables are asked for in the same turn.
                    Some(miss) => {
                        stop.get_or_insert((cursor, miss));
                    }
                }
            }
            if stop.is_some() {
                continue;
            }
            let (access, id) = (self.access, peeked.id);
            if self.scratch.iter().any(|s| s.access != access) {
                return Err(RingError::Direction { id });
            }
            let bytes = total(id, &self.scratch)?;
            self.chains.push_back(Chain {
                peeked,
                segments: self.scratch.len(),
                pieces: 0,
                bytes,
            });
            self.segments.extend(&self.scratch);
        }
        if let Some((cursor, _)) = stop {
            self.ring.rewind(cursor);
        }
        Ok(stop.map(|(_, miss)| miss))
    }

    /// Looks up what is ahead and not ready, as far as it can be used. Returns the first miss.
    fn translate<R: IotlbReader>(
        &mut self,
        guest: &GuestGuard<'_, R>,
        missing: &mut Vec<Miss>,
    ) -> Result<Option<Miss>, RingError> {
        let mut first = None;
        self.again = false;
        if self.ready == self.chains.len() {
            return Ok(first);
        }
        let done: usize = self.chains.range(..self.ready).map(|c| c.segments).sum();
        let mut segments = self.segments.range(done..);
        let numbers = self.ready..;
        for (number, chain) in numbers.zip(self.chains.range_mut(self.ready..)) {
            let before = self.pieces.len();
            let mut room = CHAIN_BYTES;
            let known = number < self.asked;
            if known && first.is_some() {
                segments.by_ref().take(chain.segments).for_each(drop);
                continue;
            }
            for segment in segments.by_ref().take(chain.segments) {
                if room == 0 {
                    continue;
                }
                let segment = Segment {
                    len: segment.len.min(room),
                    ..*segment
                };
                room -= segment.len;
                let miss = match first {
                    // The usual case: one lookup, or a few.
                    None => gather(guest, &segment, &mut self.pieces),
                    Some(_) => Err(Miss {
                        iova: segment.iova,
                        len: ByteCount(segment.len.into()),
                        need: segment.need(),
                        cause: ioatlas_vhost::MissCause::Absent,
                    }),
                };
                match miss {
                    Ok(()) => self.hits += 1,
                    Err(miss) => {
                        let later = first.is_some();
                        self.again |= known;
                        let missed = collect(guest, miss, missing);
                        if missed.is_some() {
                            self.missed += 1;
                        }
                        // An answer may come between the two looks, in a cache whose guards do not
                        // keep writers out. Then there are not all pieces of this chain, and what
                        // it misses is not missing any more: the next look has it.
                        first = first.or(missed).or((!later).then_some(miss));
                        self.overtaken |= missed.is_none() && !later;
                    }
                }
            }
            match first {
                None => {
                    chain.pieces = self.pieces.len() - before;
                    self.ready += 1;
                }
                Some(_) => self.pieces.truncate(before),
            }
        }
        if missing.len() < QUESTIONS {
            self.asked = self.chains.len();
        }
        Ok(first)
    }

    /// Chains ahead that are ready.
    pub fn ready(&self) -> usize {
        self.ready
    }
    /// The chain `number`, of those that are ready.
    pub fn chain(&self, number: usize) -> Option<&Chain> {
        match number < self.ready {
            true => self.chains.get(number),
            false => None,
        }
    }

    /// Brings the memory of the piece `number` of those that are
    /// ready nearer; see [`GuestGuard::prefetch`].
    #[inline]
    pub fn prefetch<R: IotlbReader>(&self, guest: &GuestGuard<'_, R>, number: usize) {
        if let Some(piece) = self.pieces.get(number) {
            guest.prefetch(piece, self.access);
        }
    }
    /// How many are ahead, ready or not.
    pub fn ahead(&self) -> usize {
        self.chains.len()
    }
    /// Whether no more can be ahead than are.
    pub fn is_full(&self, depth: Depth) -> bool {
        let most = depth.0.min(self.ring.size().into());
        self.chains.len() >= most || self.segments.len() >= SEGMENTS
    }

    /// The memory of the first `chains` chains, which are ready, in order; of each
    /// no more than [`CHAIN_BYTES`].
    ///
    /// # Panics
    /// If they are not.
    #[allow(unsafe_code)]
    pub fn slices<'b, R: IotlbReader>(
        &'b self,
        guest: &'b GuestGuard<'_, R>,
        chains: usize,
    ) -> impl Iterator<Item = VolatileSlice<'b>> + 'b {
        let current = self.known == Some(guest.known());
        assert!(chains <= self.ready && current, "not translated");
        let pieces: usize = self.chains.range(..chains).map(|c| c.pieces).sum();
        let all: Range<usize> = 0..pieces;
        // SAFETY: looked up under this guard's memory and generation, checked above.
        self.pieces.range(all).map(|p| unsafe { guest.slice(p) })
    }

    /// Gives the first chain back, of which `written` bytes were written.
    ///
    /// # Errors
    /// The ring cannot be accessed.
    ///
    /// # Panics
    /// If there is none ready.
    pub fn give_back<R: IotlbReader>(
        &mut self,
        guest: &GuestGuard<'_, R>,
        written: u32,
    ) -> Result<(), RingError> {
        assert!(self.ready > 0, "no chain is ready");
        let view = RingView {
            descriptors: self.parts[0].view(guest),
            driver: self.parts[1].view(guest),
            device: self.parts[2].view(guest),
        };
        let chain = self.chains.pop_front().expect("counted as ready");
        drop_first(&mut self.segments, chain.segments);
        drop_first(&mut self.pieces, chain.pieces);
        self.asked = self.asked.saturating_sub(1);
        self.ready -= 1;
        self.ring.give_back(&view, &chain.peeked, written)
    }

    /// Shows the driver what was given back.
    ///
    /// # Errors
    /// The ring cannot be accessed.
    pub fn publish<R: IotlbReader>(
        &mut self,
        guest: &GuestGuard<'_, R>,
    ) -> Result<Call, RingError> {
        self.with_ring(guest, |ring, view| ring.publish(view))
            .unwrap_or(Ok(Call::No))
    }

    /// Says whether kicks are wanted. The caller looks again after asking for them. False if it
    /// could not be said, since the ring is not translated.
    ///
    /// # Errors
    /// The ring cannot be accessed.
    pub fn want<R: IotlbReader>(
        &mut self,
        guest: &GuestGuard<'_, R>,
        kicks: Kicks,
    ) -> Result<bool, RingError> {
        match self.with_ring(guest, |ring, view| ring.want(view, kicks)) {
            Some(wanted) => wanted.map(|()| true),
            None => Ok(false),
        }
    }

    /// Does something with the ring, if it is translated.
    fn with_ring<T, R: IotlbReader>(
        &mut self,
        guest: &GuestGuard<'_, R>,
        what: impl FnOnce(&mut Ring, &RingView<'_>) -> T,
    ) -> Option<T> {
        for part in &mut self.parts {
            part.translate(guest).ok()?;
        }
        let view = RingView {
            descriptors: self.parts[0].view(guest),
            driver: self.parts[1].view(guest),
            device: self.parts[2].view(guest),
        };
        Some(what(&mut self.ring, &view))
    }
}

/// What is to be asked for; nothing where a range is none, which no part, table or segment is
/// (checked when they were read).
fn miss(error: LookupError) -> Option<Miss> {
    match error {
        LookupError::Miss(miss) => Some(miss),
        LookupError::Range { .. } => None,
    }
}

/// One is the usual case, and needs no loop.
#[inline]
fn drop_first<T>(all: &mut VecDeque<T>, count: usize) {
    match count {
        1 => drop(all.pop_front()),
        count => drop(all.drain(..count)),
    }
}

fn total(id: u16, segments: &[Segment]) -> Result<u32, RingError> {
    let mut lens = segments.iter().map(|s| s.len);
    let total = lens.try_fold(0u32, u32::checked_add);
    total.ok_or(RingError::Wraps { id })
}

/// Looks a segment up.
#[inline]
fn gather<R: IotlbReader>(
    guest: &GuestGuard<'_, R>,
    segment: &Segment,
    pieces: &mut VecDeque<Piece>,
) -> Result<(), Miss> {
    let (mut iova, mut left) = (segment.iova, ByteCount(segment.len.into()));
    while left.0 > 0 {
        let need = segment.need();
        let piece = guest.lookup(iova, left, need).map_err(|error| {
            let none = Miss {
                iova,
                len: left,
                need,
                cause: ioatlas_vhost::MissCause::Absent,
            };
            miss(error).unwrap_or(none)
        })?;
        pieces.push_back(piece);
        iova.0 += piece.len.0;
        left.0 -= piece.len.0;
    }
    Ok(())
}

/// Adds the first page of a miss, unless it is there already or there are too many.
fn ask(missing: &mut Vec<Miss>, miss: Miss) {
    let page = GRANULE - miss.iova.offset();
    let question = Miss {
        len: ByteCount(miss.len.0.min(page)),
        ..miss
    };
    let same = |m: &Miss| m.iova.page() == question.iova.page() && m.need == question.need;
    if missing.len() < QUESTIONS && !missing.iter().any(same) {
        missing.push(question);
    }
}

/// Puts the question for `first` before all others: patience runs for it, and where only one is put
/// it must not wait for tables of chains behind it.
fn put_first(missing: &mut [Miss], first: Miss) {
    let asks = |m: &Miss| m.iova.page() == first.iova.page() && m.need == first.need;
    if let Some(at) = missing.iter().position(asks) {
        missing[..=at].rotate_right(1);
    }
}

/// Adds every page of a range that is missing; returns the first miss.
fn collect<R: IotlbReader>(
    guest: &GuestGuard<'_, R>,
    range: Miss,
    missing: &mut Vec<Miss>,
) -> Option<Miss> {
    let (mut iova, mut left, mut first) = (range.iova, range.len.0, None);
    while left > 0 {
        let step = match guest.lookup(iova, ByteCount(left), range.need) {
            Ok(piece) => piece.len.0,
            Err(error) => {
                let miss = miss(error)?;
                first = first.or(Some(miss));
                ask(missing, miss);
                if missing.len() >= QUESTIONS {
                    return first;
                }
                GRANULE - miss.iova.offset()
            }
        };
        left = left.saturating_sub(step);
        iova.0 = iova.0.wrapping_add(step);
    }
    first
}

/// Copies a table; returns the first miss if it is not all there.
#[allow(unsafe_code)]
fn read<R: IotlbReader>(
    guest: &GuestGuard<'_, R>,
    table: &Table,
    bytes: &mut Vec<u8>,
    missing: &mut Vec<Miss>,
) -> Result<Option<Miss>, RingError> {
    bytes.resize(table.len as usize, 0);
    let (mut done, len) = (0, table.len as usize);
    while done < len {
        let (iova, left) = (
            Iova(table.iova.0 + done as u64),
            ByteCount((len - done) as u64),
        );
        match guest.lookup(iova, left, Perm::Read) {
            Ok(piece) => {
                // SAFETY: looked up just now.
                let slice = unsafe { guest.slice(&piece) };
                done += slice.copy_to(&mut bytes[done..]);
            }
            Err(_) => {
                let rest = Miss {
                    iova,
                    len: left,
                    need: Perm::Read,
                    cause: ioatlas_vhost::MissCause::Absent,
                };
                // None is missing if the answer came just now; then it goes on.
                if let Some(miss) = collect(guest, rest, missing) {
                    return Ok(Some(miss));
                }
            }
        }
    }
    Ok(None)
}
