// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Guests whose rings are anything, over a page table that moves: what is mapped nowhere, or not
//! for that, is neither written nor shown to anybody.
//!
//! Every page of memory is filled with a word that says which page it is, what it is mapped for,
//! and a serial number. What is not mapped for writing must stay so. The words of what is not
//! mapped for reading must be found nowhere else: the device copies what it reads to where it
//! writes. Nothing else that a guest writes looks like such a word.

use super::percent;
use crate::vhost_net::{Program, common::front::SOON};
use fastrand::Rng;
use ioatlas_dma::units::*;
use ioatlas_vhost::protocol::message::FrontAddr;
use ioatlas_vhost::runner::{ACCESS_PLATFORM, EVENT_IDX, RING_PACKED, VERSION_1};
use ioatlas_vhost::server::*;
use ioatlas_vhost_net::MRG_RXBUF;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;
/// Pages of memory. The first are the queues' rings, a page for each part; then tables of indirect
/// descriptors.
const PAGES: u64 = 48;
const TABLES: u64 = 6;
const FIRST: u64 = 8;
/// IOVA pages that are in use, or may be.
const IOVAS: std::ops::Range<u64> = 0x100..0x140;
const ENTRIES: u16 = 32;
/// Steps of a life: from the start of the queues to their stop.
const STEPS: u64 = 100;
/// How long a life waits for a buffer to be used; rings that cannot be have none.
const MOMENT: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    None,
    Read,
    Write,
    Both,
}

impl Use {
    const ALL: [Use; 4] = [Use::None, Use::Read, Use::Write, Use::Both];

    fn perm(self) -> Option<Perm> {
        match self {
            Use::None => None,
            Use::Read => Some(Perm::Read),
            Use::Write => Some(Perm::Write),
            Use::Both => Some(Perm::ReadWrite),
        }
    }
}

/// What fills a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Tag {
    page: u8,
    of: Use,
    serial: u16,
}

impl Tag {
    fn word(self) -> [u8; 8] {
        let kind = 0xf0 + self.of as u8;
        let [low, high] = self.serial.to_le_bytes();
        let sum =
            (u16::from(kind) * 257) ^ (u16::from(self.page) * 31) ^ self.serial.rotate_left(5);
        let [sum_low, sum_high] = sum.to_le_bytes();
        [0xfe, 0xed, kind, self.page, low, high, sum_low, sum_high]
    }

    fn of_word(word: &[u8]) -> Option<Tag> {
        let of = *Use::ALL.get(usize::from(word[2].wrapping_sub(0xf0)))?;
        let serial = u16::from_le_bytes([word[4], word[5]]);
        let page = word[3];
        let found = Tag { page, of, serial };
        (found.word()[..] == *word).then_some(found)
    }
}

/// IOVA page to page of memory.
#[derive(Default)]
struct Pages(Mutex<BTreeMap<u64, (u64, Perm)>>);

struct Table {
    pages: Arc<Pages>,
    start: Arc<OnceLock<u64>>,
}

impl IoPageTable for Table {
    fn lookup(&self, iova: Iova) -> Option<Mapping> {
        let (page, perm) = *self.pages.0.lock().unwrap().get(&iova.page().0)?;
        Some(Mapping {
            iova: iova.page().addr(),
            len: ByteCount(PAGE),
            front: FrontAddr(self.start.get()? + page * PAGE),
            perm,
        })
    }
}

struct Hostile {
    front: FrontEnd<Table>,
    memory: File,
    pages: Arc<Pages>,
    /// Of each page of memory: its word, and the IOVA page if it is mapped.
    state: Vec<(Tag, Option<u64>)>,
    serial: u16,
    packed: bool,
    /// How often of a hundred times it does what it must not. In the life of one that always does
    /// little happens.
    malice: u64,
    /// Of each queue: what is available, and of a packed ring its wrap counter.
    available: [(u16, bool); 2],
}

/// Drives so many lives, a few a connection; returns how many rings had buffers that were used.
pub fn attack(program: &mut Program, random: &mut Rng, lives: u64) -> u64 {
    let (mut used, mut lived) = (0, 0);
    let start = Instant::now();
    // However slow the machine is, some get somewhere.
    while lived < lives || used == 0 {
        assert!(start.elapsed() < SOON || used > 0, "nothing is ever used");
        let mut hostile = Hostile::new(program, random);
        for _ in 0..=random.u64(..6) {
            used += hostile.live(random);
            lived += 1;
        }
    }
    used
}

impl Hostile {
    fn new(program: &mut Program, random: &mut Rng) -> Self {
        let file = memory_file(ByteCount(PAGES * PAGE), Sealed::Yes).unwrap();
        let memory = file.try_clone().unwrap();
        let packed = percent(random, 50);
        let maybe = |set: bool, bit: u64| if set { bit } else { 0 };
        let features = maybe(packed, RING_PACKED)
            | maybe(percent(random, 50), EVENT_IDX)
            | maybe(percent(random, 50), MRG_RXBUF);
        let answer = match percent(random, 50) {
            true => Answer::Page(ByteCount(PAGE)),
            false => Answer::Contiguous(ByteCount(1 << 30)),
        };
        let config = FrontEndConfig::new(VERSION_1 | ACCESS_PLATFORM | 1 << 30 | features, 2)
            .server(ServerConfig::default().answer(answer))
            .answer(SOON);
        let (pages, start) = (Arc::<Pages>::default(), Arc::new(OnceLock::new()));
        let table = Table {
            pages: pages.clone(),
            start: start.clone(),
        };
        let regions = vec![(0, ByteCount(PAGES * PAGE), file)];
        let front = FrontEnd::connect(program.connect(), config, regions, table).unwrap();
        start.set(front.front_addr(0).0).unwrap();
        let tag = |page| Tag {
            page: page as u8,
            of: Use::None,
            serial: 0,
        };
        let state = (0..PAGES).map(|page| (tag(page), None)).collect();
        let mut hostile = Hostile {
            front,
            memory,
            pages,
            state,
            serial: 0,
            packed,
            malice: 0,
            available: [(0, true); 2],
        };
        for page in 0..PAGES {
            let of = match page < FIRST {
                true => Use::Both,
                false => *random.choice(&Use::ALL).unwrap(),
            };
            hostile.set(page, of, random);
        }
        hostile
    }

    fn write(&self, page: u64, offset: u64, bytes: &[u8]) {
        let at = page * PAGE + offset;
        self.memory.write_all_at(bytes, at).unwrap();
    }

    /// Takes a page from wherever it is mapped, and maps it somewhere for this.
    fn set(&mut self, page: u64, of: Use, random: &mut Rng) {
        if let Some(iova) = self.state[page as usize].1 {
            self.pages.0.lock().unwrap().remove(&iova);
            let server = self.front.server();
            let done = server.invalidate(Iova(iova * PAGE), ByteCount(PAGE));
            done.expect("an invalidation is acknowledged");
        }
        self.serial = self.serial.wrapping_add(1);
        let tag = Tag {
            page: page as u8,
            of,
            serial: self.serial,
        };
        self.write(page, 0, &tag.word().repeat(PAGE as usize / 8));
        let mut table = self.pages.0.lock().unwrap();
        let iova = of.perm().map(|perm| {
            let any = random.u64(IOVAS);
            let mut places = (any..IOVAS.end).chain(IOVAS);
            let iova = places.find(|iova| !table.contains_key(iova));
            let iova = iova.expect("there are more IOVAs than pages");
            table.insert(iova, (page, perm));
            iova
        });
        self.state[page as usize] = (tag, iova);
    }

    /// Has the back end ask anew for a page that stays where it is.
    fn forget(&self, random: &mut Rng) {
        let mapped: Vec<_> = self.state.iter().filter_map(|(_, iova)| *iova).collect();
        let iova = *random.choice(&mapped).unwrap();
        let done = self
            .front
            .server()
            .invalidate(Iova(iova * PAGE), ByteCount(PAGE));
        done.expect("an invalidation is acknowledged");
    }

    /// From the start of both queues to their stop. Returns how many of the rings had a buffer that
    /// was used.
    fn live(&mut self, random: &mut Rng) -> u64 {
        for page in 0..FIRST {
            // Their IOVAs stay; nothing in them is of use.
            self.write(page, 0, &[0; PAGE as usize]);
        }
        self.malice = *random.choice(&[0, 1, 3, 10, 30]).unwrap();
        let base = if self.packed { 0x8000 } else { 0 };
        let mut events = Vec::new();
        for queue in 0..2u64 {
            let at = |part: u64| {
                let (_, iova) = self.state[(3 * queue + part) as usize];
                iova.expect("rings are mapped") * PAGE
            };
            let ring = RingAddresses {
                descriptors: at(0),
                driver: at(1),
                device: at(2),
            };
            let started = self.front.start_queue(queue as usize, ENTRIES, ring, base);
            events.push(started.expect("a queue starts"));
            self.available[queue as usize] = (0, true);
        }
        for _ in 0..STEPS {
            let queue = random.u64(..2);
            match random.u64(..20) {
                0..=9 => self.offer(queue, random),
                10..=12 => events[queue as usize].kick.write(1).unwrap(),
                13 => self.forget(random),
                // Buffers that are there, and that the device has not used, are nowhere then.
                14 | 15 if percent(random, 20 + self.malice) => {
                    let page = random.u64(FIRST..PAGES);
                    self.set(page, *random.choice(&Use::ALL).unwrap(), random);
                }
                17 if percent(random, self.malice) => {
                    let bytes: Vec<u8> = (0..64).map(|_| random.u8(..0x80)).collect();
                    let offset = random.u64(..PAGE - 64);
                    self.write(random.u64(..FIRST), offset, &bytes);
                }
                18 if percent(random, 20) => self.front.share_memory().unwrap(),
                19 if percent(random, 30) => self.check(),
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
        }
        for event in &events {
            event.kick.write(1).unwrap();
        }
        let start = Instant::now();
        while self.used() == 0 && start.elapsed() < MOMENT {
            std::thread::yield_now();
        }
        for queue in 0..2 {
            self.front.stop_queue(queue).expect("a queue stops");
        }
        self.check();
        self.used()
    }

    /// Whether the device has used buffers of a ring; what the guest wrote there itself is not told
    /// apart.
    fn used(&self) -> u64 {
        let used = |queue: u64| {
            let mut raw = [0; 2];
            let at = match self.packed {
                true => 3 * queue * PAGE + 14,
                false => (3 * queue + 2) * PAGE + 2,
            };
            self.memory.read_exact_at(&mut raw, at).unwrap();
            let word = u16::from_le_bytes(raw);
            match self.packed {
                true => word & 0x8080 == 0x8080,
                false => word != 0,
            }
        };
        u64::from(used(0)) + u64::from(used(1))
    }

    /// An address and a length: mostly memory that may be accessed so.
    fn buffer(&self, of: Use, random: &mut Rng) -> (u64, u32) {
        let fits = |(tag, _): &&(Tag, Option<u64>)| tag.of == of || tag.of == Use::Both;
        let fitting: Vec<_> = self.state[FIRST as usize..].iter().filter(fits).collect();
        let mapped: Vec<_> = self.state.iter().filter_map(|(_, iova)| *iova).collect();
        let offset = random.u64(..PAGE);
        if !fitting.is_empty() && !percent(random, self.malice) {
            let (_, iova) = random.choice(&fitting).unwrap();
            let len = 1 + random.u64(..PAGE - offset);
            return (iova.unwrap_or(0) * PAGE + offset, len as u32);
        }
        match random.u64(..4) {
            // Mapped, but not for that, or not as far.
            0 | 1 => {
                let len = random.u64(..3 * PAGE);
                (random.choice(&mapped).unwrap() * PAGE + offset, len as u32)
            }
            2 => {
                let iova = random.u64(IOVAS);
                (iova * PAGE + offset, 1 + random.u64(..PAGE) as u32)
            }
            _ => (random.u64(..), random.u32(..)),
        }
    }

    /// Writes some descriptors, and makes them available.
    fn offer(&mut self, queue: u64, random: &mut Rng) {
        let of = match queue {
            0 => Use::Write,
            _ => Use::Read,
        };
        let (mut next, mut wrap) = self.available[queue as usize];
        let count = 1 + random.u64(..3) * random.u64(..2);
        let head = next;
        for number in 0..count {
            let (mut address, mut len) = self.buffer(of, random);
            let mut flags: u16 = if (queue == 0) != percent(random, self.malice / 3) {
                2
            } else {
                0
            };
            if number + 1 < count {
                flags |= 1;
            }
            if percent(random, 10) {
                (address, len) = self.table(of, random);
                flags = 4;
            }
            let slot = u64::from(next % ENTRIES);
            let mut raw = address.to_le_bytes().to_vec();
            raw.extend(len.to_le_bytes());
            match self.packed {
                true => {
                    raw.extend(next.to_le_bytes());
                    raw.extend((flags | if wrap { 0x80 } else { 0x8000 }).to_le_bytes());
                }
                false => {
                    raw.extend(flags.to_le_bytes());
                    let link = match percent(random, self.malice / 3) {
                        true => random.u64(..2 * u64::from(ENTRIES)) as u16,
                        false => next.wrapping_add(1) % ENTRIES,
                    };
                    raw.extend(link.to_le_bytes());
                }
            }
            self.write(3 * queue, 16 * slot, &raw);
            next = next.wrapping_add(1);
            if self.packed && next == ENTRIES {
                (next, wrap) = (0, !wrap);
            }
        }
        if !self.packed {
            // The chain that begins at this descriptor. The next one begins in its middle.
            let slot = u64::from(head % ENTRIES);
            self.write(3 * queue + 1, 4 + 2 * slot, &(head % ENTRIES).to_le_bytes());
            next = match percent(random, self.malice / 10) {
                true => random.u16(..),
                false => head.wrapping_add(1),
            };
            self.write(3 * queue + 1, 2, &next.to_le_bytes());
        }
        self.available[queue as usize] = (next, wrap);
    }

    /// An indirect table.
    fn table(&self, of: Use, random: &mut Rng) -> (u64, u32) {
        let page = random.u64(TABLES..FIRST);
        let (_, iova) = self.state[page as usize];
        let count = 1 + random.u64(..8);
        for number in 0..count {
            let (address, len) = self.buffer(of, random);
            let mut flags: u16 = if of == Use::Write { 2 } else { 0 };
            if !self.packed && number + 1 < count {
                flags |= 1;
            }
            let link = number as u16 + 1;
            let (third, fourth) = match self.packed {
                true => (link, flags),
                false => (flags, link),
            };
            let raw = [
                &address.to_le_bytes()[..],
                &len.to_le_bytes(),
                &third.to_le_bytes(),
                &fourth.to_le_bytes(),
            ];
            self.write(page, 16 * number, &raw.concat());
        }
        let len = match percent(random, self.malice / 3) {
            true => random.u32(..70_000),
            false => 16 * count as u32,
        };
        (iova.unwrap_or(0) * PAGE, len)
    }

    /// Whether only that was written, and shown, that may be.
    fn check(&self) {
        let mut bytes = [0; PAGE as usize];
        for (page, (tag, _)) in self.state.iter().enumerate() {
            let at = page as u64 * PAGE;
            self.memory.read_exact_at(&mut bytes, at).unwrap();
            if matches!(tag.of, Use::None | Use::Read) {
                let whole = bytes.chunks(8).all(|word| word == tag.word());
                assert!(whole, "{tag:?} was written to (P1, P6, P12)");
                continue;
            }
            for word in bytes.windows(8).filter(|word| word[..2] == [0xfe, 0xed]) {
                let shown = Tag::of_word(word).filter(|shown| shown != tag);
                let hidden = shown.filter(|shown| matches!(shown.of, Use::None | Use::Write));
                assert_eq!(
                    hidden, None,
                    "it was read, and is now in {tag:?} (P1, P6, P12)"
                );
            }
        }
    }
}
