// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A unit, memory, and hands to write into it: every word here is put together from the
//! specification, by neither the unit's code nor the driver's.

use crate::BY;
use ioatlas_dma::{
    platform::{Atomic64, Ordering, PhysMemory, Platform},
    units::*,
};
use ioatlas_host::{Host, HostConfig};
use ioatlas_viommu::{
    config::*,
    fault::FaultReason,
    observe::{Access, From, Observer, Outcome},
    unit::SoftUnit,
    walk::InFlight,
};
use ioatlas_vtd::registers::{self as offset, Reg32, Reg64, Registers};
use std::{cell::Cell, sync::Arc};

pub const READ: u64 = 1;
pub const WRITE: u64 = 2;
pub const RW: u64 = 3;
/// PS: the entry is a large leaf.
pub const SIZE: u64 = 1 << 7;

pub const DEVICE: SourceId = SourceId(0x0310);
pub const DOMAIN: u16 = 5;

/// Three levels of four entries.
pub const TOY: Geometry = Geometry {
    levels: 3,
    entries_lg2: 2,
};

/// Registers by their offsets (VT-d 4.1 §11.4), not by the constants of a crate; FRO and IRO
/// as configured by default.
pub mod reg {
    pub const VER: u16 = 0x00;
    pub const CAP: u16 = 0x08;
    pub const ECAP: u16 = 0x10;
    pub const GCMD: u16 = 0x18;
    pub const GSTS: u16 = 0x1c;
    pub const RTADDR: u16 = 0x20;
    pub const CCMD: u16 = 0x28;
    pub const FSTS: u16 = 0x34;
    pub const FECTL: u16 = 0x38;
    pub const FEDATA: u16 = 0x3c;
    pub const FEADDR: u16 = 0x40;
    pub const FEUADDR: u16 = 0x44;
    pub const IQH: u16 = 0x80;
    pub const IQT: u16 = 0x88;
    pub const IQA: u16 = 0x90;
    pub const ICS: u16 = 0x9c;
    pub const IECTL: u16 = 0xa0;
    pub const IEDATA: u16 = 0xa4;
    pub const IEADDR: u16 = 0xa8;
    pub const IEUADDR: u16 = 0xac;
    pub const IQERCD: u16 = 0xb0;
    pub const IRTA: u16 = 0xb8;
    pub const IVA: u16 = 0xf0;
    pub const IOTLB: u16 = 0xf8;
    pub const FRCD: u16 = 0x220;
}

/// Domain-selective, both drained.
pub fn flush_domain(domain: u16) -> [u64; 2] {
    [u64::from(domain) << 16 | 0xe2, 0]
}
/// 2^`mask` pages from `page`, both drained; `hint` 1 leaves walk caches alone.
pub fn flush_pages(domain: u16, page: u64, mask: u64, hint: u64) -> [u64; 2] {
    [
        u64::from(domain) << 16 | 0xf2,
        page << 12 | hint << 6 | mask,
    ]
}
/// The same without a drain bit.
pub fn undrained([low, high]: [u64; 2]) -> [u64; 2] {
    [low & !0xc0, high]
}
pub fn flush_context(domain: u16, source: SourceId) -> [u64; 2] {
    [
        u64::from(source.0) << 32 | u64::from(domain) << 16 | 0x31,
        0,
    ]
}
pub fn wait(address: u64, status: u32) -> [u64; 2] {
    [u64::from(status) << 32 | 0x25, address]
}

pub struct Rig<P: Platform + PhysMemory<P> = Host> {
    pub host: Arc<P>,
    pub unit: Arc<SoftUnit<P, P>>,
    pub root_table: u64,
    pub context_table: u64,
    pub ring: u64,
    /// The page that wait descriptors write to.
    pub status: u64,
    /// The second-stage root of `DOMAIN`.
    pub root: u64,
    tail: Cell<u64>,
    geometry: Geometry,
}

impl Rig {
    /// Brought up, `DEVICE` attached to `DOMAIN`.
    pub fn new(config: &UnitConfig) -> Rig {
        Self::build(config, None)
    }
    pub fn toy() -> Rig {
        Self::new(&UnitConfig::new(TOY))
    }
    /// With translation on, by registers only.
    pub fn without_queue(change: impl FnOnce(&mut UnitConfig)) -> Rig {
        let mut config = UnitConfig::new(TOY);
        config.registers.interface = InvalidationInterface::Registers;
        change(&mut config);
        let rig = Self::reset(Self::memory(), &config, None);
        rig.set64(reg::RTADDR, rig.root_table << 12);
        rig.set32(reg::GCMD, 1 << 30);
        rig.set32(reg::GCMD, 1 << 31);
        rig
    }
    pub fn memory() -> Arc<Host> {
        Arc::new(Host::new(HostConfig::default().frames(64).slots(4)))
    }
    pub fn build(config: &UnitConfig, observer: Option<Arc<dyn Observer>>) -> Rig {
        Self::over(Self::memory(), config, observer)
    }
}

impl<P: Platform + PhysMemory<P>> Rig<P> {
    pub fn over(host: Arc<P>, config: &UnitConfig, observer: Option<Arc<dyn Observer>>) -> Self {
        let rig = Self::reset(host, config, observer);
        rig.set64(reg::RTADDR, rig.root_table << 12);
        rig.set32(reg::GCMD, 1 << 30);
        rig.set64(reg::IQA, rig.ring << 12);
        rig.set32(reg::GCMD, 1 << 26);
        rig.set32(reg::GCMD, 1 << 31 | 1 << 26);
        assert_eq!(rig.get32(reg::GSTS), 1 << 31 | 1 << 30 | 1 << 26);
        rig
    }

    /// Tables in memory, and a unit that was told nothing.
    pub fn reset(host: Arc<P>, config: &UnitConfig, observer: Option<Arc<dyn Observer>>) -> Self {
        let unit = match observer {
            Some(o) => SoftUnit::observed(host.clone(), config, o),
            None => SoftUnit::new(host.clone(), config),
        };
        let frame = || host.frame_alloc().unwrap().publish().page().0;
        let _zero = frame(); // so that no table is at page 0
        let rig = Rig {
            unit: Arc::new(unit.unwrap()),
            root_table: frame(),
            context_table: frame(),
            ring: frame(),
            status: frame(),
            root: frame(),
            tail: Cell::new(0),
            geometry: config.geometry,
            host: host.clone(),
        };
        rig.poke(rig.root_table, 3 * 2, rig.context_table << 12 | 1);
        rig.attach(DEVICE, DOMAIN, rig.root);
        rig
    }

    pub fn get32(&self, at: u16) -> u32 {
        self.unit.read32(Reg32(at))
    }
    pub fn get64(&self, at: u16) -> u64 {
        self.unit.read64(Reg64(at))
    }
    pub fn set32(&self, at: u16, value: u32) {
        self.unit.write32(Reg32(at), value);
    }
    pub fn set64(&self, at: u16, value: u64) {
        self.unit.write64(Reg64(at), value);
    }

    pub fn frame(&self) -> u64 {
        self.host.frame_alloc().unwrap().publish().page().0
    }
    pub fn poke(&self, page: u64, index: usize, value: u64) {
        let word = self.host.word(BY, PhysPage(page), index).unwrap();
        word.store(value, Ordering::Release);
    }
    pub fn peek(&self, page: u64, index: usize) -> u64 {
        let word = self.host.word(BY, PhysPage(page), index).unwrap();
        word.load(Ordering::Acquire)
    }
    /// A device of bus 3.
    pub fn attach(&self, source: SourceId, domain: u16, root: u64) {
        assert_eq!(source.0 >> 8, 3);
        let at = usize::from(source.0 & 0xff) * 2;
        let width = u64::from(self.geometry.levels) - 2;
        self.poke(self.context_table, at + 1, u64::from(domain) << 8 | width);
        self.poke(self.context_table, at, root << 12 | 1);
    }
    /// Maps a page, making tables as needed; returns the leaf table and the index in it.
    pub fn map(&self, root: u64, page: u64, to: u64, rights: u64) -> (u64, usize) {
        let (table, index) = self.entry(root, page, 1);
        self.poke(table, index, to << 12 | rights);
        (table, index)
    }
    /// Maps the large leaf of `level` around `page`, by a size bit.
    pub fn map_large(&self, page: u64, level: u32, to: u64, rights: u64) -> (u64, usize) {
        let (table, index) = self.entry(self.root, page, level);
        self.poke(table, index, to << 12 | SIZE | rights);
        (table, index)
    }
    /// Where the entry for `page` at `level` is, making the tables above it as needed.
    pub fn entry(&self, root: u64, page: u64, level: u32) -> (u64, usize) {
        let (bits, mut table) = (self.geometry.entries_lg2, root);
        let index = |level: u32| (page >> (bits * (level - 1))) as usize % (1 << bits);
        for above in (level + 1..=self.geometry.levels).rev() {
            if self.peek(table, index(above)) == 0 {
                self.poke(table, index(above), self.frame() << 12 | RW);
            }
            table = self.peek(table, index(above)) >> 12;
        }
        (table, index(level))
    }
    pub fn map_here(&self, page: u64, to: u64) -> (u64, usize) {
        self.map(self.root, page, to, RW)
    }
    /// Queues descriptors and rings.
    pub fn send(&self, descriptors: &[[u64; 2]]) {
        for [low, high] in descriptors {
            let at = self.tail.get();
            self.poke(self.ring, at as usize * 2, *low);
            self.poke(self.ring, at as usize * 2 + 1, *high);
            self.tail.set((at + 1) % 256);
        }
        self.unit.write64(offset::IQT, self.tail.get() << 4);
    }
    pub fn head(&self) -> u64 {
        self.unit.read64(offset::IQH) >> 4
    }
    pub fn queue_error(&self) -> bool {
        self.unit.read32(offset::FSTS) & 1 << 4 != 0
    }

    pub fn begin(&self, page: u64) -> InFlight<'_, P, P> {
        self.unit.begin(DEVICE, IovaPage(page), AccessKind::Read)
    }
    pub fn read(&self, page: u64) -> Access {
        self.begin(page).finish()
    }
    pub fn write(&self, page: u64) -> Access {
        self.unit.access(DEVICE, IovaPage(page), AccessKind::Write)
    }
    /// Reads, and says where to and whence.
    pub fn get(&self, page: u64) -> (Option<u64>, From) {
        let access = self.read(page);
        (target(&access), access.from)
    }
    /// Every invariant of the unit.
    pub fn check(&self) {
        self.unit.audit().unwrap();
    }
}

/// Where an access goes, if it does.
pub fn target(access: &Access) -> Option<u64> {
    match access.outcome {
        Outcome::Translated { page, .. } => Some(page.0),
        _ => None,
    }
}

pub fn fault(access: &Access) -> FaultReason {
    match access.outcome {
        Outcome::Fault(reason) => reason,
        other => panic!("no fault but {other}"),
    }
}
