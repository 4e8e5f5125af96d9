// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A driver, naively: both ring layouts as virtio 1.2 describes them, from the other side.

use super::guest::*;
use ioatlas_dma::platform::Ordering;
use ioatlas_dma::units::*;
use ioatlas_host::full_fence;
use ioatlas_vhost::runner::RingParts;
use std::collections::BTreeMap;
use std::sync::Arc;
use vm_memory::{AtomicAccess, Bytes};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Split,
    Packed,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Events {
    Flags,
    Index,
}

/// Bytes of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    pub iova: Iova,
    pub len: u32,
    pub access: AccessKind,
}

/// What the driver remembers of a chain: its own number, its descriptors, its table.
struct InRing {
    token: u64,
    descriptors: Vec<u16>,
}

pub struct Driver {
    guest: Arc<Guest>,
    pub kind: Kind,
    pub size: u16,
    pub parts: RingParts,
    events: Events,
    in_ring: BTreeMap<u16, InRing>,
    /// Free descriptors (split) or ids (packed), and free places.
    free: Vec<u16>,
    room: u16,
    /// Next available index (split), or place and wrap counter.
    avail: u16,
    avail_wrap: bool,
    used: u16,
    used_wrap: bool,
    /// What was available when the device was last told.
    told: u16,
    added: u16,
    tables: Vec<Iova>,
    next_table: usize,
}

/// Where split rings begin.
const FIRST: u16 = 0xffe0;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

impl Driver {
    pub fn new(guest: &Arc<Guest>, kind: Kind, size: u16, events: Events, lie: Lie) -> Self {
        let n = u64::from(size);
        let alloc = |len| guest.alloc(len, Perm::ReadWrite, lie);
        let parts = match kind {
            Kind::Split => RingParts {
                descriptors: alloc(16 * n),
                driver: alloc(6 + 2 * n),
                device: alloc(6 + 8 * n),
            },
            Kind::Packed => RingParts {
                descriptors: alloc(16 * n),
                driver: alloc(4),
                device: alloc(4),
            },
        };
        // Split rings begin near the end of their indices, so that these go round.
        let first = match kind {
            Kind::Split => FIRST,
            Kind::Packed => 0,
        };
        let driver = Driver {
            guest: guest.clone(),
            kind,
            size,
            parts,
            events,
            in_ring: BTreeMap::new(),
            free: (0..size).rev().collect(),
            room: size,
            avail: first,
            avail_wrap: true,
            used: first,
            used_wrap: true,
            told: first,
            added: 0,
            tables: Vec::new(),
            next_table: 0,
        };
        if kind == Kind::Split {
            driver.store(parts.driver, 2, first);
            driver.store(parts.device, 2, first);
        }
        driver
    }

    /// What `SET_VRING_BASE` says at the start.
    pub fn base(&self) -> u32 {
        match self.kind {
            Kind::Split => FIRST.into(),
            Kind::Packed => 0x8000_8000,
        }
    }

    fn load<T: AtomicAccess>(&self, part: Iova, offset: u64) -> T {
        let at = self.guest.at(Iova(part.0 + offset), size_of::<T>());
        at.load(0, Ordering::Acquire).unwrap()
    }
    fn store<T: AtomicAccess>(&self, part: Iova, offset: u64, value: T) {
        let at = self.guest.at(Iova(part.0 + offset), size_of::<T>());
        at.store(value, 0, Ordering::Release).unwrap()
    }

    /// A table of up to 16 descriptors. There are twice as many as can be in the ring.
    fn table(&mut self) -> Iova {
        if self.tables.len() < 2 * usize::from(self.size) {
            let page = self.guest.alloc(PAGE, Perm::ReadWrite, Lie::Contiguous);
            self.tables.extend((0..16).map(|n| Iova(page.0 + 256 * n)));
        }
        self.next_table = (self.next_table + 1) % self.tables.len();
        self.tables[self.next_table]
    }

    /// Makes a chain available, if there is room.
    pub fn add(&mut self, token: u64, parts: &[Part], indirect: bool) -> bool {
        let indirect = indirect && parts.len() <= 16;
        let needed = match indirect {
            true => 1,
            false => parts.len() as u16,
        };
        if self.room < needed || self.free.is_empty() {
            return false;
        }
        let mut raw: Vec<(u64, u32, u16)> = Vec::new();
        for part in parts {
            let flags = match part.access {
                AccessKind::Read => 0,
                AccessKind::Write => WRITE,
            };
            raw.push((part.iova.0, part.len, flags));
        }
        if indirect {
            let table = self.table();
            for (number, (addr, len, flags)) in raw.iter().enumerate() {
                let last = number + 1 == raw.len();
                let (flags, next) = match (self.kind, last) {
                    (Kind::Split, false) => (flags | NEXT, number as u16 + 1),
                    _ => (*flags, 0),
                };
                let at = Iova(table.0 + 16 * number as u64);
                self.guest.write(at, &addr.to_le_bytes());
                self.guest.write(Iova(at.0 + 8), &len.to_le_bytes());
                let (third, fourth) = match self.kind {
                    Kind::Split => (flags, next),
                    Kind::Packed => (0xdead, flags),
                };
                self.guest.write(Iova(at.0 + 12), &third.to_le_bytes());
                self.guest.write(Iova(at.0 + 14), &fourth.to_le_bytes());
            }
            raw = vec![(table.0, 16 * parts.len() as u32, INDIRECT)];
        }
        self.room -= needed;
        match self.kind {
            Kind::Split => self.add_split(token, &raw),
            Kind::Packed => self.add_packed(token, &raw),
        }
        true
    }

    fn add_split(&mut self, token: u64, raw: &[(u64, u32, u16)]) {
        let descriptors: Vec<u16> = raw.iter().map(|_| self.free.pop().unwrap()).collect();
        for (number, (addr, len, flags)) in raw.iter().enumerate() {
            let at = 16 * u64::from(descriptors[number]);
            let next = descriptors.get(number + 1);
            let flags = flags | if next.is_some() { NEXT } else { 0 };
            let table = self.parts.descriptors;
            self.store(table, at, *addr);
            self.store(table, at + 8, *len);
            self.store(table, at + 12, flags);
            self.store(table, at + 14, next.copied().unwrap_or(0));
        }
        let head = descriptors[0];
        let slot = u64::from(self.avail % self.size);
        self.store(self.parts.driver, 4 + 2 * slot, head);
        self.avail = self.avail.wrapping_add(1);
        self.store(self.parts.driver, 2, self.avail);
        let chain = InRing { token, descriptors };
        assert!(self.in_ring.insert(head, chain).is_none());
    }

    fn add_packed(&mut self, token: u64, raw: &[(u64, u32, u16)]) {
        let id = self.free.pop().unwrap();
        let mut first = None;
        for (number, (addr, len, flags)) in raw.iter().enumerate() {
            let at = 16 * u64::from(self.avail);
            let mut flags = *flags;
            if number + 1 < raw.len() {
                flags |= NEXT;
            }
            flags |= match self.avail_wrap {
                true => 1 << 7,
                false => 1 << 15,
            };
            let ring = self.parts.descriptors;
            self.store(ring, at, *addr);
            self.store(ring, at + 8, *len);
            self.store(ring, at + 12, id);
            match first {
                None => first = Some((at, flags)),
                Some(_) => self.store(ring, at + 14, flags),
            }
            self.avail += 1;
            if self.avail == self.size {
                self.avail = 0;
                self.avail_wrap = !self.avail_wrap;
            }
        }
        let (at, flags) = first.unwrap();
        self.store(self.parts.descriptors, at + 14, flags);
        self.added += raw.len() as u16;
        let descriptors = vec![0; raw.len()];
        let chain = InRing { token, descriptors };
        assert!(self.in_ring.insert(id, chain).is_none());
    }

    /// Whether the device wants a kick for what was added since this was last asked.
    pub fn kick_due(&mut self) -> bool {
        full_fence();
        match self.kind {
            Kind::Split => {
                let (old, new) = (self.told, self.avail);
                self.told = new;
                if old == new {
                    return false;
                }
                match self.events {
                    Events::Flags => self.load::<u16>(self.parts.device, 0) & 1 == 0,
                    Events::Index => {
                        let at = 4 + 8 * u64::from(self.size);
                        let event: u16 = self.load(self.parts.device, at);
                        new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
                    }
                }
            }
            Kind::Packed => {
                let added = std::mem::take(&mut self.added);
                let event: u16 = self.load(self.parts.device, 0);
                let flags: u16 = self.load(self.parts.device, 2);
                match flags {
                    _ if added == 0 => false,
                    0 => true,
                    1 => false,
                    2 => {
                        assert_eq!(self.events, Events::Index, "not negotiated");
                        // every place from the first added on, one by one
                        let (mut place, mut wrap) = (self.avail, self.avail_wrap);
                        (0..added).any(|_| {
                            if place == 0 {
                                place = self.size;
                                wrap = !wrap;
                            }
                            place -= 1;
                            event == place | u16::from(wrap) << 15
                        })
                    }
                    other => panic!("event flags {other}"),
                }
            }
        }
    }

    /// Asks for a call when the next chain is used.
    pub fn want_call(&mut self) {
        match (self.kind, self.events) {
            (Kind::Split, Events::Flags) => self.store(self.parts.driver, 0, 0u16),
            (Kind::Split, Events::Index) => {
                self.store(self.parts.driver, 4 + 2 * u64::from(self.size), self.used)
            }
            (Kind::Packed, Events::Flags) => self.store(self.parts.driver, 0, 0u32),
            (Kind::Packed, Events::Index) => {
                let event = self.used | u16::from(self.used_wrap) << 15;
                self.store(self.parts.driver, 0, 2u32 << 16 | u32::from(event))
            }
        }
        full_fence();
    }

    /// Takes the next used chain: its token, and how many bytes were written.
    pub fn take(&mut self) -> Option<(u64, u32)> {
        let (id, len) = match self.kind {
            Kind::Split => {
                let used: u16 = self.load(self.parts.device, 2);
                if used == self.used {
                    return None;
                }
                let at = 4 + 8 * u64::from(self.used % self.size);
                self.used = self.used.wrapping_add(1);
                let id: u32 = self.load(self.parts.device, at);
                (id as u16, self.load::<u32>(self.parts.device, at + 4))
            }
            Kind::Packed => {
                let at = 16 * u64::from(self.used);
                let flags: u16 = self.load(self.parts.descriptors, at + 14);
                let (avail, used) = (flags >> 7 & 1 == 1, flags >> 15 == 1);
                if avail != used || used != self.used_wrap {
                    return None;
                }
                let id: u16 = self.load(self.parts.descriptors, at + 12);
                (id, self.load::<u32>(self.parts.descriptors, at + 8))
            }
        };
        let chain = self.in_ring.remove(&id);
        let chain = chain.unwrap_or_else(|| panic!("chain {id} was used, and is not in the ring"));
        let count = chain.descriptors.len() as u16;
        self.room += count;
        match self.kind {
            Kind::Split => self.free.extend(chain.descriptors),
            Kind::Packed => {
                self.free.push(id);
                self.used += count;
                if self.used >= self.size {
                    self.used -= self.size;
                    self.used_wrap = !self.used_wrap;
                }
            }
        }
        Some((chain.token, len))
    }

    pub fn in_ring(&self) -> usize {
        self.in_ring.len()
    }
}
