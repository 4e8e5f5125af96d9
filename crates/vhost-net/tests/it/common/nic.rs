// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A network driver on two rings: sends numbered frames, and checks what comes back against what
//! went out.

use super::driver::*;
use super::guest::*;
use ioatlas_dma::units::*;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// What a driver and a device agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    pub kind: Kind,
    pub events: Events,
    pub mergeable: bool,
    pub swap: bool,
    pub size: u16,
    pub lie: Lie,
}

pub const HEADER: usize = 12;

pub struct Nic {
    pub guest: Arc<Guest>,
    pub terms: Terms,
    pub receive: Driver,
    pub transmit: Driver,
    /// Frames that went out and did not come back, in order.
    expected: VecDeque<Vec<u8>>,
    /// Transmit buffers by token, and those to use again.
    sending: BTreeMap<u64, (Iova, u64)>,
    idle: Vec<(Iova, u64)>,
    /// Receive buffers by token: the allocation, the first byte.
    posted: BTreeMap<u64, (Iova, Iova)>,
    next: u64,
    pub returned: u64,
    /// Bytes of a receive buffer.
    buffer: u32,
    /// Buffers of a frame that is not complete.
    partial: Option<(usize, Vec<u8>)>,
}

impl Nic {
    pub fn new(guest: &Arc<Guest>, terms: Terms, buffer: u32) -> Self {
        let ring = || Driver::new(guest, terms.kind, terms.size, terms.events, terms.lie);
        let (receive, transmit) = (ring(), ring());
        Nic {
            guest: guest.clone(),
            terms,
            receive,
            transmit,
            expected: VecDeque::new(),
            sending: BTreeMap::new(),
            idle: Vec::new(),
            posted: BTreeMap::new(),
            next: 0,
            returned: 0,
            buffer,
            partial: None,
        }
    }

    fn token(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Cuts a buffer into parts.
    fn parts(iova: Iova, len: u32, cuts: &[u32], access: AccessKind) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut at = 0;
        for cut in cuts.iter().copied().chain([len]) {
            let cut = cut.clamp(at, len);
            // An empty descriptor is legal, and nothing.
            parts.push(Part {
                iova: Iova(iova.0 + u64::from(at)),
                len: cut - at,
                access,
            });
            at = cut;
        }
        parts
    }

    /// Sends a frame of `len` bytes in parts that end at `cuts`. False if the ring is full.
    pub fn send(&mut self, len: usize, cuts: &[u32], indirect: bool, unmap: Unmap) -> bool {
        let all = HEADER + len;
        let place = self.idle.iter().position(|(_, room)| *room >= all as u64);
        let (iova, room) = match (unmap, place) {
            (Unmap::Never, Some(at)) => self.idle.swap_remove(at),
            _ => {
                let pages = (all as u64).div_ceil(PAGE) + 1;
                let iova = self.guest.alloc(pages * PAGE, Perm::Read, self.terms.lie);
                (iova, pages * PAGE)
            }
        };
        let token = self.token();
        let mut bytes = vec![0; HEADER];
        bytes.extend((0..len).map(|n| (token as usize * 31 + n * 7) as u8));
        // As often as not across the end of a page.
        let start = Iova(iova.0 + (token * 487) % (room - all as u64 + 1));
        self.guest.write(start, &bytes);
        let parts = Self::parts(start, all as u32, cuts, AccessKind::Read);
        if !self.transmit.add(token, &parts, indirect) {
            self.idle.push((iova, room));
            return false;
        }
        self.sending.insert(token, (iova, room));
        let mut frame = bytes.split_off(HEADER);
        if self.terms.swap && frame.len() >= 12 {
            let (to, from) = frame[..12].split_at_mut(6);
            to.swap_with_slice(from);
        }
        self.expected.push_back(frame);
        true
    }

    /// Posts a receive buffer. False if the ring is full.
    pub fn post(&mut self, cuts: &[u32], indirect: bool) -> bool {
        let len = self.buffer;
        let iova = self
            .guest
            .alloc(u64::from(len) + PAGE, Perm::Write, self.terms.lie);
        let token = self.token();
        let start = Iova(iova.0 + (token * 331) % PAGE);
        let parts = Self::parts(start, len, cuts, AccessKind::Write);
        if !self.receive.add(token, &parts, indirect) {
            self.guest.free(iova, u64::from(len) + PAGE, &mut |_, _| ());
            return false;
        }
        self.posted.insert(token, (iova, start));
        true
    }

    /// Takes what is used in both rings, and checks it. Receive buffers are unmapped, transmit
    /// buffers as `unmap` says; `invalidate` is called for each. Returns how many chains there
    /// were.
    pub fn reap(&mut self, unmap: Unmap, invalidate: &mut dyn FnMut(Iova, ByteCount)) -> usize {
        let mut count = 0;
        while let Some((token, written)) = self.transmit.take() {
            assert_eq!(written, 0, "nothing is written to a transmit buffer");
            let (iova, room) = self.sending.remove(&token).expect("used once");
            match unmap {
                Unmap::Never => self.idle.push((iova, room)),
                Unmap::Always => self.guest.free(iova, room, invalidate),
            }
            count += 1;
        }
        while let Some((token, written)) = self.receive.take() {
            let (iova, start) = self.posted.remove(&token).expect("used once");
            let len = self.buffer;
            assert!(written <= len, "{written} of {len} bytes");
            let bytes = self.guest.read(start, written as usize);
            let end = Iova(start.0 + u64::from(written));
            let behind = self.guest.read(end, (len - written) as usize);
            assert!(behind.iter().all(|b| *b == 0), "written behind the frame");
            self.piece(bytes);
            self.guest.free(iova, u64::from(len) + PAGE, invalidate);
            count += 1;
        }
        count
    }

    /// One buffer of a frame.
    fn piece(&mut self, bytes: Vec<u8>) {
        let (mut left, mut frame) = match self.partial.take() {
            Some(partial) => partial,
            None => {
                assert!(bytes.len() > HEADER, "a frame begins with its header");
                let buffers = u16::from_le_bytes([bytes[10], bytes[11]]);
                assert_eq!(bytes[..10], [0; 10], "offloads are not offered");
                assert!(
                    buffers == 1 || self.terms.mergeable && buffers > 1,
                    "{buffers}"
                );
                (usize::from(buffers), Vec::new())
            }
        };
        frame.extend(bytes);
        left -= 1;
        if left > 0 {
            self.partial = Some((left, frame));
            return;
        }
        let frame = frame.split_off(HEADER);
        let expected = self.expected.pop_front().expect("a frame that was sent");
        assert_eq!(frame.len(), expected.len(), "frame {}", self.returned);
        assert_eq!(frame, expected, "frame {}", self.returned);
        self.returned += 1;
    }

    /// Frames that are still out.
    pub fn out(&self) -> usize {
        self.expected.len()
    }
}

/// Whether transmit buffers are fresh IOVAs each time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unmap {
    Never,
    Always,
}
