// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Entry point for fuzzers: arbitrary bytes become rings, descriptors, translations and what
//! happens to them.
//!
//! The first byte chooses, bit by bit: packed rings (0), event index (1), mergeable buffers (2),
//! MAC swap (3), the header of before virtio 1.0 (4). The second is how many chains are read ahead,
//! the third the rings' size. Then come records of 12 bytes; what is left over, or comes after
//! [`MAX_RECORDS`], is ignored. Numbers are little-endian, as in rings.
//!
//! | byte 0: what | byte 1 | bytes 2, 3 | bytes 4 to 11 |
//! |---|---|---|---|
//! | 0: write a word | page | offset | the word |
//! | 1: a burst | - | - | - |
//! | 2: forget a page | page | - | - |
//! | 3: translate a page | page | permission | - |
//! | 4: ask for kicks, or not | which | - | - |
//! | 5: start a queue anew | which, behind it the size | offset of its parts | its base |
//! | 6: write eight bytes eight times | page | offset | the word |
//!
//! IOVA pages 0 to 11 can be translated: 0 to 2 are the receive queue's parts, 3 to 5 the transmit
//! queue's. Between the pages that they are translated to lie others that nothing is; two of them
//! are neighbours. After each record, every page that the device may not write to must be as it
//! was.

use ioatlas_dma::units::*;
use ioatlas_vhost::{
    DeviceIotlb, Entry, HostAddr, Limits, ListIotlb, UpdateError, Updated,
    guest_memory::{IovaMemory, Patience},
    protocol::misses::MissChannel,
    runner::{EVENT_IDX, RING_PACKED, RingParts, VERSION_1},
};
use ioatlas_vhost_net::{frame::MAX_FRAME, pair::*, port::Port, queue::*, ring::Kicks};
use std::{os::unix::net::UnixStream, sync::Arc};
use vm_memory::{MmapRegion, VolatileMemory};

/// Records beyond these are ignored, so that one input takes milliseconds.
pub const MAX_RECORDS: usize = 256;
const RECORD: usize = 12;
const PAGES: u64 = 12;
/// Pages of the memory behind the IOVAs.
const HOST_PAGES: u64 = 2 * PAGES + 2;
const PAGE: usize = GRANULE as usize;

/// What became of one input.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Findings {
    /// Frames that were moved.
    pub moved: u64,
    /// Queues that stopped for what they were told.
    pub stopped: u64,
    /// Frames that were dropped.
    pub dropped: u64,
    /// Buffers of which something was missing.
    pub missed: u64,
}

struct Attack {
    memory: MmapRegion<()>,
    /// What the device last may have written, page by page.
    shadow: Vec<u8>,
    /// What each IOVA page may be used for.
    perms: [Option<Perm>; PAGES as usize],
    cache: Arc<ListIotlb>,
    misses: Arc<MissChannel>,
    guest: IovaMemory<<ListIotlb as DeviceIotlb>::Reader>,
    /// The front end's end of the back channel, which is not read: there can be no
    /// more questions than fit.
    _back: UnixStream,
    pair: Pair,
    features: u64,
    found: Findings,
}

/// Where an IOVA page is in memory: every other page, but for 7, which is behind 6.
fn host_page(page: u64) -> u64 {
    match page {
        7 => 2 * 6 + 2,
        page => 2 * page + 1,
    }
}

/// Runs one input: its records against a pair of queues.
///
/// # Panics
/// The device wrote to what it may not, or moved more than there was.
pub fn chains(input: &[u8]) -> Findings {
    let Some((start, records)) = input.split_first_chunk::<3>() else {
        return Findings::default();
    };
    let mut attack = Attack::new(start);
    let (records, _) = records.as_chunks::<RECORD>();
    for record in records.iter().take(MAX_RECORDS) {
        attack.step(record);
        attack.check();
    }
    let stats = attack.pair.stats();
    attack.found.dropped = stats.too_long + stats.too_short;
    attack.found.missed = stats.missed;
    assert!(stats.received <= stats.transmitted, "frames out of nothing");
    let most = stats.received * u64::from(MAX_FRAME);
    assert!(stats.received_bytes <= most, "frames longer than frames");
    attack.found
}

impl Attack {
    fn new(start: &[u8; 3]) -> Self {
        let bit = |n: u32| start[0] >> n & 1 == 1;
        let choose = |n, feature| if bit(n) { feature } else { 0 };
        let features = choose(0, RING_PACKED) | choose(1, EVENT_IDX) | choose(2, MRG_RXBUF);
        let modern = if bit(4) { 0 } else { VERSION_1 };
        let port = match bit(3) {
            true => Port::MacSwap,
            false => Port::Loopback,
        };
        let memory = MmapRegion::new(HOST_PAGES as usize * PAGE).expect("a little memory");
        let shadow = vec![0; memory.size()];
        let cache = ListIotlb::new(Limits::default());
        let misses = Arc::new(MissChannel::default());
        let (ours, back) = UnixStream::pair().expect("a pair of sockets");
        misses.connect(Some(ours.into()));
        let reader = cache.reader().expect("the first");
        // SAFETY: entries are made in `translate`, of `memory`, which has no other owner and which
        // lives as long as `guest`.
        let guest = unsafe { IovaMemory::new(reader, misses.clone(), Patience::default()) };
        let depth = Depth(usize::from(start[1] % 70).max(1));
        let mut attack = Attack {
            memory,
            shadow,
            perms: [None; PAGES as usize],
            cache,
            misses,
            guest,
            _back: back,
            pair: Pair::new(port, depth, None),
            features: features | modern,
            found: Findings::default(),
        };
        for page in 0..6 {
            attack.translate(page, Perm::ReadWrite);
        }
        for side in [0, 1] {
            attack.begin(side, start[2], 0, 0x8000_8000);
        }
        attack
    }

    fn step(&mut self, record: &[u8; RECORD]) {
        let (page, word) = (u64::from(record[1]) % PAGES, &record[4..]);
        let two = u16::from_le_bytes([record[2], record[3]]);
        let offset = usize::from(two) % (PAGE - 7);
        match record[0] % 7 {
            0 => self.write(page, offset, word),
            1 => self.burst(),
            2 => {
                self.cache
                    .invalidate(Iova(page * GRANULE), ByteCount(GRANULE));
                self.perms[page as usize] = None;
            }
            3 => {
                let perms = [Perm::Read, Perm::Write, Perm::ReadWrite];
                self.translate(page, perms[usize::from(two % 3)]);
            }
            4 => {
                let kicks = match page % 2 {
                    0 => Kicks::Unwanted,
                    _ => Kicks::Wanted,
                };
                let wanted = self.pair.want(&mut self.guest, kicks);
                self.stop(wanted.map(|_| 0));
            }
            5 => {
                let base = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                self.begin(record[1] & 1, record[1] >> 1, two, base);
            }
            _ => {
                for number in 0..8 {
                    self.write(page, (offset + 16 * number) % (PAGE - 7), word);
                }
            }
        }
    }

    /// What the guest may do at any time.
    fn write(&mut self, page: u64, offset: usize, word: &[u8]) {
        let at = host_page(page) as usize * PAGE + offset;
        let memory = self.memory.get_slice(at, word.len());
        memory.expect("in memory").copy_from(word);
        self.shadow[at..at + word.len()].copy_from_slice(word);
    }

    fn translate(&mut self, page: u64, perm: Perm) {
        let (iova, len) = (Iova(page * GRANULE), ByteCount(GRANULE));
        let start = self.memory.as_ptr() as usize as u64;
        let host = HostAddr(start + host_page(page) * GRANULE);
        let entry = Entry {
            iova,
            len,
            host,
            perm,
        };
        let done: Result<Updated, UpdateError> = self.cache.update(entry);
        assert!(done.is_ok(), "{done:?}");
        self.misses.answered(iova, len);
        self.perms[page as usize] = Some(perm);
    }

    /// Starts a queue; the driver may say anything about it.
    fn begin(&mut self, side: u8, size: u8, offset: u16, base: u32) {
        let sizes = [8, 16, 1, 2, 4, 32, 64, 256, 3, 7, 0, 1 << 15, u16::MAX];
        let size = sizes[usize::from(size) % sizes.len()];
        let (side, first, access) = match side {
            0 => (Side::Receive, 0, AccessKind::Write),
            _ => (Side::Transmit, 3, AccessKind::Read),
        };
        let part = |page: u64| Iova((first + page) * GRANULE + u64::from(offset));
        let parts = RingParts {
            descriptors: part(0),
            driver: part(1),
            device: part(2),
        };
        self.pair.drop_queue(side);
        match Queue::at(parts, size, base, self.features, access) {
            Ok(queue) => self.pair.put_queue(side, queue, 0, self.features),
            Err(_) => self.found.stopped += 1,
        }
    }

    fn burst(&mut self) {
        let turn = self.pair.burst(&mut self.guest);
        self.stop(turn.map(|turn| turn.moved));
    }

    fn stop<E>(&mut self, result: Result<u64, (Side, E)>) {
        match result {
            Ok(moved) => self.found.moved += moved,
            Err((side, _)) => {
                self.pair.drop_queue(side);
                self.found.stopped += 1;
            }
        }
    }

    /// Whether only that was written that may be.
    fn check(&mut self) {
        let mut now = vec![0; self.memory.size()];
        self.memory.as_volatile_slice().copy_to(&mut now[..]);
        for page in 0..HOST_PAGES {
            let range = page as usize * PAGE..(page as usize + 1) * PAGE;
            let iova = (0..PAGES).find(|iova| host_page(*iova) == page);
            let perm = iova.and_then(|iova| self.perms[iova as usize]);
            if !perm.is_some_and(|perm| perm.allows(AccessKind::Write)) {
                let same = now[range.clone()] == self.shadow[range];
                assert!(
                    same,
                    "page {page} was written to, and is {perm:?} (P1, P6, P12)"
                );
            }
        }
        self.shadow = now;
    }
}
