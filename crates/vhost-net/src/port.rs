// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Where frames go: back to the guest, or to and from a TAP interface.
//!
//! A port is handed both queues of a pair in a burst, looked at and translated already, and moves
//! frames in order as long as frame and receive buffers are ready; [`crate::pair`] says what is
//! never lost. In loopback a frame that has no room yet stays with the guest, from TAP it is held
//! back only where a translation is missing.

use crate::{
    frame::*,
    guest::GuestGuard,
    queue::*,
    ring::RingError,
    stats::PairStats,
    tap::{Tap, TapLost},
};
use ioatlas_vhost::IotlbReader;
use vm_memory::VolatileSlice;

/// Frames that one burst takes from TAP, at most.
const TAP_FRAMES: usize = 32;
/// How many frames, or buffers, before it is moved one is brought near.
const AHEAD: usize = 6;

/// Where transmitted frames go, and received ones come from.
#[derive(Debug)]
pub enum Port {
    /// Back to the guest, as they are.
    Loopback,
    /// Back to the guest, with source and destination exchanged.
    MacSwap,
    /// To and from a TAP interface.
    Tap(Box<TapPort>),
}

/// A TAP queue with the frame that waits for a translation.
#[derive(Debug)]
pub struct TapPort {
    tap: Tap,
    /// The frame that is sent; zeroing one for each burst would cost more than a short frame does.
    sent: Vec<u8>,
    buffer: Vec<u8>,
    /// Bytes of the frame in `buffer` that was read and not received yet.
    held: Option<usize>,
    /// Set once, and for good.
    lost: Option<TapLost>,
}

impl TapPort {
    /// A port over a queue of a TAP interface.
    pub fn new(tap: Tap) -> Self {
        TapPort {
            tap,
            sent: vec![0; MAX_FRAME as usize],
            buffer: vec![0; MAX_FRAME as usize],
            held: None,
            lost: None,
        }
    }
}

impl Port {
    /// Why nothing comes from it any more.
    pub(crate) fn lost(&self) -> Option<&TapLost> {
        match self {
            Port::Tap(port) => port.lost.as_ref(),
            Port::Loopback | Port::MacSwap => None,
        }
    }

    /// Moves what is ready in the queues of a pair, and says how many frames that were.
    ///
    /// # Errors
    /// The queue that must stop, and why.
    pub(crate) fn move_frames<R: IotlbReader>(
        &mut self,
        guest: &GuestGuard<'_, R>,
        transmit: Option<&mut Queue>,
        mut receive: Option<Receiver<'_>>,
        header: Header,
        stats: &mut PairStats,
    ) -> Result<u64, (Side, RingError)> {
        match self {
            Port::Tap(port) => {
                let sent = match transmit {
                    Some(queue) => port.transmit(guest, queue, header, stats)?,
                    None => 0,
                };
                Ok(sent + port.receive(guest, receive.as_mut(), stats)?)
            }
            Port::Loopback | Port::MacSwap => {
                let (Some(queue), Some(receive)) = (transmit, receive.as_mut()) else {
                    return Ok(0);
                };
                let macs = match self {
                    Port::MacSwap => MACS,
                    _ => 0,
                };
                forward(guest, queue, receive, macs, stats)
            }
        }
    }
}

/// The receive queue, and what moving a frame into it needs to know.
pub(crate) struct Receiver<'q> {
    pub queue: &'q mut Queue,
    pub blocked: bool,
    pub depth: Depth,
    pub header: Header,
    pub mergeable: bool,
}

/// Whether there is room for a frame.
enum Room {
    /// In the first so many buffers.
    Buffers(usize),
    Later,
    /// Not in all buffers that there may be.
    Never,
}

impl Receiver<'_> {
    /// Where `bytes` bytes, header included, would go.
    fn room(&self, bytes: u32) -> Result<Room, (Side, RingError)> {
        let mut room = 0u32;
        for number in 0..self.queue.ready() {
            let chain = self.queue.chain(number).expect("one of those ready");
            if chain.bytes < self.header.len() {
                let (id, bytes) = (chain.peeked.id, chain.bytes);
                return Err((Side::Receive, RingError::Small { id, bytes }));
            }
            room = room.saturating_add(chain.bytes);
            if room >= bytes {
                return Ok(Room::Buffers(number + 1));
            }
            if !self.mergeable {
                return Ok(Room::Never);
            }
        }
        let all = self.queue.ready() == self.queue.ahead();
        Ok(match all && self.queue.is_full(self.depth) {
            true => Room::Never,
            false => Room::Later,
        })
    }

    /// Writes a header, `head` and then `rest` bytes of `from` into the first `buffers` buffers,
    /// and gives them back.
    fn receive<'c, R: IotlbReader>(
        &mut self,
        guest: &GuestGuard<'_, R>,
        buffers: usize,
        head: &[u8],
        from: &mut Place<'c, impl Iterator<Item = VolatileSlice<'c>>>,
        rest: usize,
    ) -> Result<(), (Side, RingError)> {
        let header = self.header.encode(buffers as u16);
        let header = &header[..self.header.len() as usize];
        let mut to = Place::new(self.queue.slices(guest, buffers));
        let mut written = to.write(header) + to.write(head);
        written += to.copy(from, rest);
        drop(to);
        let mut left = written as u32;
        for _ in 0..buffers {
            let room = self.queue.chain(0).expect("one of those ready").bytes;
            let here = left.min(room);
            left -= here;
            let given = self.queue.give_back(guest, here);
            given.map_err(|error| (Side::Receive, error))?;
        }
        Ok(())
    }
}

/// The length of the frame in a transmit chain, without its header; if it is none, why.
fn frame_len(bytes: u32, header: Header, stats: &mut PairStats) -> Option<u32> {
    match bytes.checked_sub(header.len()) {
        None | Some(0) => stats.too_short += 1,
        Some(len) if len > MAX_FRAME => stats.too_long += 1,
        Some(len) => return Some(len),
    }
    None
}

/// Gives the guest back what it transmits, with the first `macs` bytes' halves exchanged.
fn forward<R: IotlbReader>(
    guest: &GuestGuard<'_, R>,
    queue: &mut Queue,
    receive: &mut Receiver<'_>,
    macs: usize,
    stats: &mut PairStats,
) -> Result<u64, (Side, RingError)> {
    let header = receive.header;
    let mut moved = 0;
    for frame in 0..AHEAD {
        queue.prefetch(guest, frame);
        receive.queue.prefetch(guest, frame);
    }
    while let Some(chain) = queue.chain(0) {
        queue.prefetch(guest, AHEAD);
        receive.queue.prefetch(guest, AHEAD);
        if let Some(len) = frame_len(chain.bytes, header, stats) {
            match receive.room(header.len() + len)? {
                Room::Later => break,
                Room::Never => stats.too_long += 1,
                Room::Buffers(buffers) => {
                    let mut from = Place::new(queue.slices(guest, 1));
                    from.skip(header.len() as usize);
                    let mut head = [0; MACS];
                    let macs = match len as usize >= macs {
                        true => macs,
                        false => 0,
                    };
                    from.read(&mut head[..macs]);
                    if macs == MACS {
                        swap_macs(&mut head);
                    }
                    let rest = len as usize - macs;
                    receive.receive(guest, buffers, &head[..macs], &mut from, rest)?;
                    stats.received += 1;
                    stats.received_bytes += u64::from(len);
                }
            }
        }
        stats.transmitted += 1;
        moved += 1;
        queue
            .give_back(guest, 0)
            .map_err(|error| (Side::Transmit, error))?;
    }
    Ok(moved)
}

impl TapPort {
    /// Sends what is ready.
    fn transmit<R: IotlbReader>(
        &mut self,
        guest: &GuestGuard<'_, R>,
        queue: &mut Queue,
        header: Header,
        stats: &mut PairStats,
    ) -> Result<u64, (Side, RingError)> {
        let mut moved = 0;
        while let Some(chain) = queue.chain(0) {
            if let Some(len) = frame_len(chain.bytes, header, stats) {
                let mut from = Place::new(queue.slices(guest, 1));
                from.skip(header.len() as usize);
                let len = from.read(&mut self.sent[..len as usize]);
                if self.tap.write(&self.sent[..len]).is_err() {
                    stats.tap_dropped += 1;
                }
            }
            stats.transmitted += 1;
            moved += 1;
            queue
                .give_back(guest, 0)
                .map_err(|error| (Side::Transmit, error))?;
        }
        Ok(moved)
    }

    /// Receives what has come.
    fn receive<R: IotlbReader>(
        &mut self,
        guest: &GuestGuard<'_, R>,
        mut receive: Option<&mut Receiver<'_>>,
        stats: &mut PairStats,
    ) -> Result<u64, (Side, RingError)> {
        let mut moved = 0;
        for _ in 0..TAP_FRAMES {
            let len = match self.held.take() {
                Some(len) => len,
                None if self.lost.is_some() => break,
                None => match self.tap.read(&mut self.buffer) {
                    Ok(Some(len)) => len,
                    Ok(None) => break,
                    Err(e) => {
                        self.lost = Some(TapLost(e.into()));
                        break;
                    }
                },
            };
            moved += 1;
            let Some(receive) = receive.as_deref_mut() else {
                stats.tap_dropped += 1;
                continue;
            };
            match receive.room(receive.header.len() + len as u32)? {
                Room::Buffers(buffers) => {
                    let frame = VolatileSlice::from(&mut self.buffer[..len]);
                    let mut from = Place::new(std::iter::once(frame));
                    receive.receive(guest, buffers, &[], &mut from, len)?;
                    stats.received += 1;
                    stats.received_bytes += len as u64;
                }
                Room::Later if receive.blocked => {
                    self.held = Some(len);
                    return Ok(moved - 1);
                }
                Room::Later => stats.tap_dropped += 1,
                Room::Never => stats.too_long += 1,
            }
        }
        Ok(moved)
    }
}
