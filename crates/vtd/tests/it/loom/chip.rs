// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A unit as hardware is: registers, a queue that it runs, caches. It decodes with literals of its
//! own.
//!
//! A register holds one value for all threads. Towards memory its accesses are ordered as the
//! contract says: the unit that finds a write finds all that its CPU wrote before; reading
//! one orders nothing. The unit reads descriptors and tables without order, and writes a
//! status after its work.

use crate::common::{QEMU_CAP, QEMU_ECAP, QIE};
use crate::loom::{CLEARED, OLD, machine::Machine, platform::Word as Watched};
use ioatlas_dma::{
    platform::{Atomic64, Ordering},
    units::{DomainId, PhysAddr, SourceId},
};
use ioatlas_vtd::registers::*;
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

/// The device that keeps translations, 00:00.1, and the domain that it is attached to.
pub const NIC: SourceId = SourceId(1);
pub const DOMAIN: DomainId = DomainId(2);

/// Whose time the unit runs in.
#[derive(Clone, Copy, PartialEq)]
pub enum Runs {
    /// It is as fast as can be: the thread that writes a register finds it done.
    AtOnce,
    /// It is a thread of its own, which calls [`Chip::run`].
    Beside,
}

/// When it reports a wait descriptor that it fetched.
#[derive(Clone, Copy, PartialEq)]
pub enum Reports {
    AtOnce,
    /// Whenever it is told to: [`Chip::report`].
    Later,
}

pub struct Chip {
    p: Arc<Machine>,
    runs: Runs,
    reports: Reports,
    /// Each access to a register passes here.
    bus: Watched,
    state: Mutex<State>,
    /// An entry of the table of domains 0, 1 and 2.
    pub tables: [Watched; 3],
    /// What it read there again right after it invalidated domain 0 or 1: so its caches hold that.
    pub seen: [Watched; 2],
    caches: loom::sync::Mutex<Caches>,
}

#[derive(Default)]
struct State {
    gsts: u32,
    fsts: u32,
    iqercd: u64,
    rtaddr: u64,
    ring: u64,
    head: u64,
    tail: u64,
    /// It does not take invalidations of this domain.
    refuses: Option<u64>,
    /// The device answers nothing.
    silent: bool,
    unanswered: bool,
    /// Wait descriptors fetched and not reported: where to write, and what.
    unreported: VecDeque<(PhysAddr, u64)>,
    /// Domains that were invalidated, in order.
    carried_out: Vec<u64>,
}

/// Of the device, in the unit and in the device itself.
#[derive(Default)]
struct Caches {
    /// Its context entry: whether it may keep translations.
    context: Option<bool>,
    iotlb: Option<u64>,
    device_tlb: Option<u64>,
}

impl Chip {
    pub fn new(p: Arc<Machine>, runs: Runs, reports: Reports) -> Arc<Self> {
        Arc::new(Chip {
            p,
            runs,
            reports,
            bus: Watched::new(0),
            state: Mutex::default(),
            tables: [OLD; 3].map(Watched::new),
            seen: [OLD; 2].map(Watched::new),
            caches: loom::sync::Mutex::new(Caches::default()),
        })
    }
    /// Never held over anything that loom switches at.
    fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
    pub fn refuse(&self, domain: u64) {
        self.with(|s| s.refuses = Some(domain));
    }
    pub fn silence_device(&self) {
        self.with(|s| s.silent = true);
    }
    /// How often that domain was invalidated.
    pub fn carried_out(&self, domain: u64) -> usize {
        self.with(|s| s.carried_out.iter().filter(|id| **id == domain).count())
    }

    /// Takes what lies before the tail, as it is now; whether there was anything.
    pub fn run(&self) -> bool {
        self.bus.fetch_add(0, Ordering::Acquire);
        let tail = self.with(|s| s.tail);
        let mut any = false;
        while let Some(at) = self.with(|s| s.next(tail)) {
            any = true;
            let word = |n| self.p.word(PhysAddr(at + n)).load(Ordering::Relaxed);
            self.take(word(0), word(8));
        }
        any
    }

    fn run_if_at_once(&self) {
        if self.runs == Runs::AtOnce {
            self.run();
        }
    }

    fn take(&self, low: u64, high: u64) {
        let field = low >> 16 & 0xffff;
        match low & 0xf {
            1 => self.cached(|c| c.context = None),
            2 => {
                let taken = self.with(|s| s.fetch(s.refuses != Some(field)));
                if !taken {
                    return;
                }
                if field == u64::from(DOMAIN.0) {
                    self.cached(|c| c.iotlb = None);
                }
                if let Some(seen) = self.seen.get(field as usize) {
                    let entry = self.tables[field as usize].load(Ordering::Relaxed);
                    seen.store(entry, Ordering::Relaxed);
                }
                return self.with(|s| s.carried_out.push(field));
            }
            3 => {
                let answers = self.with(|s| {
                    s.unanswered |= s.silent;
                    !s.silent
                });
                if answers {
                    self.cached(|c| c.device_tlb = None);
                }
            }
            5 => {
                self.with(|s| {
                    s.fetch(true);
                    match std::mem::take(&mut s.unanswered) {
                        true => s.time_out(),
                        false => s.unreported.push_back((PhysAddr(high), low >> 32)),
                    }
                });
                return match self.reports {
                    Reports::AtOnce => self.report(),
                    Reports::Later => (),
                };
            }
            other => panic!("P1: the unit finds {other}, which is no descriptor of ours"),
        }
        self.with(|s| s.fetch(true));
    }
    fn cached<R>(&self, f: impl FnOnce(&mut Caches) -> R) -> R {
        f(&mut self.caches.lock().unwrap())
    }

    /// Reports what it has fetched.
    pub fn report(&self) {
        while let Some((address, data)) = self.with(|s| s.unreported.pop_front()) {
            self.p.word(address).store(data, Ordering::Release);
        }
    }

    /// Where an access of the device goes, if it goes anywhere. A translation that it keeps is of
    /// use while its context entry says that it may keep any.
    pub fn access(&self) -> Option<u64> {
        let mut caches = self.caches.lock().unwrap();
        let keeps = match caches.context {
            Some(keeps) => keeps,
            None => self.context_entry()?,
        };
        caches.context = Some(keeps);
        if let (true, Some(held)) = (keeps, caches.device_tlb) {
            return Some(held);
        }
        if caches.iotlb.is_none() {
            let entry = self.tables[usize::from(DOMAIN.0)].load(Ordering::Acquire);
            // absent entries are not cached
            caches.iotlb = (entry != CLEARED).then_some(entry);
        }
        if keeps {
            caches.device_tlb = caches.iotlb;
        }
        caches.iotlb
    }
    /// Whether the device is attached, and may keep translations.
    fn context_entry(&self) -> Option<bool> {
        let root = PhysAddr(self.with(|s| s.rtaddr));
        let table = self.p.word(root).load(Ordering::Acquire);
        let at = (table & !0xfff) + u64::from(NIC.0) * 16;
        let present = |word: &u64| word & 1 != 0;
        let entry = Some(table).filter(present).and_then(|_| {
            let low = self.p.word(PhysAddr(at)).load(Ordering::Acquire);
            Some(low).filter(present)
        });
        entry.map(|low| low >> 2 & 3 == 1)
    }
}

impl State {
    /// Where the next descriptor lies.
    fn next(&self, tail: u64) -> Option<u64> {
        let goes = self.gsts & QIE != 0 && self.fsts & 0x50 == 0 && self.head != tail;
        goes.then_some(self.ring + self.head * 16)
    }
    /// The head moves, or the queue stops at it.
    fn fetch(&mut self, takes: bool) -> bool {
        match takes {
            true => self.head = (self.head + 1) % 256,
            false => (self.fsts, self.iqercd) = (self.fsts | 0x10, 3),
        }
        takes
    }
    /// It drops the wait descriptors that it has not reported (VT-d 4.1 §6.5.2.11).
    fn time_out(&mut self) {
        self.unreported.clear();
        (self.fsts, self.iqercd) = (self.fsts | 0x40, u64::from(NIC.0) << 32);
    }
}

#[allow(unsafe_code)] // a promise
// SAFETY: a unit in the model, which reaches no memory but the model's.
unsafe impl Registers for Chip {
    fn read32(&self, register: Reg32) -> u32 {
        self.bus.fetch_add(0, Ordering::Relaxed);
        self.with(|s| match register {
            GSTS => s.gsts,
            FSTS => s.fsts,
            other => panic!("32-bit read of {:#x}", other.0),
        })
    }
    fn read64(&self, register: Reg64) -> u64 {
        self.bus.fetch_add(0, Ordering::Relaxed);
        self.with(|s| match register {
            CAP => QEMU_CAP,
            ECAP => QEMU_ECAP | 1 << 2, // DT
            IQH => s.head << 4,
            IQERCD => s.iqercd,
            other => panic!("64-bit read of {:#x}", other.0),
        })
    }
    fn write32(&self, register: Reg32, value: u32) {
        self.bus.fetch_add(0, Ordering::Release);
        self.with(|s| match register {
            GCMD => s.gsts = value,
            FSTS => s.fsts &= !value,
            other => panic!("32-bit write of {:#x}", other.0),
        });
        self.run_if_at_once();
    }
    fn write64(&self, register: Reg64, value: u64) {
        self.bus.fetch_add(0, Ordering::Release);
        self.with(|s| match register {
            RTADDR => s.rtaddr = value,
            IQT => s.tail = value >> 4,
            IQA => s.ring = value,
            other => panic!("64-bit write of {:#x}", other.0),
        });
        self.run_if_at_once();
    }
}
