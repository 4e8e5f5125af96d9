// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The remapping unit: registers, and an invalidation engine that takes its time.
//!
//! # Theory
//!
//! The real driver (`ioatlas_vtd`) runs on these registers: its queue, its lock, its tail writes
//! and its status word are the core's own code. The engine is *serial*: it takes a descriptor when
//! it has done the one before, and when the tail register has been written. An invalidation takes
//! d + p, or d + g for a domain and more, a wait descriptor w; at its end the status word is
//! written. Nothing is cached and nothing translated here: what a cache would see of a run goes
//! into a [`CacheLog`], if there is one.
//!
//! Outside of a run everything is done at once, for setting up.
//!
//! Not handled: what the unit's reads of the queue do to its lines, faults, time-outs.

use crate::{
    platform::{Sim, WORDS},
    timing::{
        cpu,
        devices::{CacheEvent, CacheLog},
        params::{Cycles, Params},
        timed,
    },
};
use ioatlas_dma::{
    invalidation::Caches,
    units::{IovaPage, IovaRange, PageCount, PhysAddr, PhysPage},
};
use ioatlas_vtd::registers::*;
use serde::Serialize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// 16-bit domain ids, tables of three and four levels, 48-bit addresses, page-selective
/// invalidation of up to 2^18 pages, both drains; no caching mode, no write buffers.
const CAPABILITIES: u64 = 0x00d2_008c_222f_0606;
/// A queue, and a unit that snoops.
const EXTENDED: u64 = 0xf43;

/// Descriptor types (VT-d 4.1 §6.5.2): the low four bits, as far as they matter for time.
const TYPE_MASK: u64 = 0xf;
const TYPE_IOTLB: u64 = 2;
const TYPE_WAIT: u64 = 5;
/// Granularity of an IOTLB descriptor (bits 5..4): by page.
const GRANULARITY_SHIFT: u32 = 4;
const GRANULARITY_MASK: u64 = 3;
const BY_PAGE: u64 = 3;
/// The upper half of a descriptor by page: address (bits 63..12), IH (bit 6), and the binary
/// logarithm of its pages.
const PAGE_SHIFT: u32 = 12;
const LEAVES_ONLY: u64 = 1 << 6;
const PAGES_LG2_MASK: u64 = 0x3f;
/// Of a wait descriptor: write the status (bit 5), which is in the upper half.
const WRITES_STATUS: u64 = 1 << 5;
const STATUS_SHIFT: u32 = 32;
/// Descriptors of the one frame that a queue has.
const DESCRIPTORS: u64 = 256;

/// What the unit did.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct UnitUse {
    /// Page-selective invalidations of the IOTLB.
    pub pages: u64,
    /// Invalidations of anything else.
    pub domains: u64,
    /// Waits whose status was written.
    pub statuses: u64,
    /// Cycles that it was at work.
    pub busy: u64,
}

/// The registers of a unit on virtual time.
pub struct UnitRegisters {
    memory: Arc<Sim>,
    state: Mutex<State>,
    fetch: Cycles,
    page: Cycles,
    domain: Cycles,
    status: Cycles,
    register_read: Cycles,
    register_write: Cycles,
}

#[derive(Default)]
struct State {
    enabled: u32,
    ring: u64,
    head: u64,
    tail: u64,
    root: u64,
    /// When the last descriptor taken is done.
    busy_until: u64,
    use_: UnitUse,
    log: Option<Arc<CacheLog>>,
}

impl UnitRegisters {
    /// A unit that reads `memory`.
    pub fn new(memory: Arc<Sim>, params: &Params) -> Self {
        UnitRegisters {
            memory,
            state: Mutex::default(),
            fetch: Cycles(params.fetch),
            page: params.page(),
            domain: params.domain(),
            status: params.status(),
            register_read: Cycles(params.register_read),
            register_write: Cycles(params.register_write),
        }
    }
    /// What it did since the run began.
    pub fn used(&self) -> UnitUse {
        self.state().use_
    }
    /// From now on what a cache would see goes into `log`.
    pub fn log_to(&self, log: Arc<CacheLog>) {
        self.state().log = Some(log);
    }
    /// The device behind the unit accesses a page that is mapped, now.
    pub(crate) fn accessed(&self, page: IovaPage) {
        if let Some((log, now)) = self.state().log.as_ref().zip(cpu::now()) {
            log.add(now.0, CacheEvent::Access(page));
        }
    }
    /// A new run begins at time 0.
    pub(crate) fn begin_run(&self) {
        let mut state = self.state();
        state.busy_until = 0;
        state.use_ = UnitUse::default();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tail was moved, at time `now` of a run if there is one.
    fn take_descriptors(&self, state: &mut State, now: Option<u64>) {
        while state.head != state.tail {
            let at = PhysAddr(state.ring + 16 * state.head);
            state.head = (state.head + 1) % DESCRIPTORS;
            let (low, high) = (self.read(at), self.read(PhysAddr(at.0 + 8)));
            let took = match low & TYPE_MASK {
                TYPE_WAIT => self.status.0,
                TYPE_IOTLB if low >> GRANULARITY_SHIFT & GRANULARITY_MASK == BY_PAGE => {
                    state.use_.pages += 1;
                    self.fetch.0 + self.page.0
                }
                _ => {
                    state.use_.domains += 1;
                    self.fetch.0 + self.domain.0
                }
            };
            state.use_.busy += took;
            let begins = now.map(|now| state.busy_until.max(now));
            state.busy_until = begins.unwrap_or(0) + took;
            if let Some((log, event)) = state.log.as_ref().zip(cache_event(low, high)) {
                log.add(state.busy_until, event);
            }
            if low & TYPE_MASK == TYPE_WAIT && low & WRITES_STATUS != 0 {
                state.use_.statuses += 1;
                let done = now.map(|_| state.busy_until);
                self.write_status(PhysAddr(high), low >> STATUS_SHIFT, done);
            }
        }
    }

    /// Writes half of a word, as the driver's status word is; the other half is not used.
    fn write_status(&self, at: PhysAddr, value: u64, time: Option<u64>) {
        let (page, index) = place(at);
        match (time, timed::current()) {
            (Some(time), Some(run)) => run.at(time, page, index, value),
            _ => {
                if let Some(word) = self.memory.word_at(page, index) {
                    word.poke(value);
                }
            }
        }
    }

    fn read(&self, at: PhysAddr) -> u64 {
        let (page, index) = place(at);
        let word = self.memory.word_at(page, index);
        word.map_or(0, |word| word.peek())
    }
}

/// What the descriptor says to the IOTLB.
fn cache_event(low: u64, high: u64) -> Option<CacheEvent> {
    if low & TYPE_MASK != TYPE_IOTLB {
        return None;
    }
    if low >> GRANULARITY_SHIFT & GRANULARITY_MASK != BY_PAGE {
        return Some(CacheEvent::Domain);
    }
    let pages = IovaRange::new(
        IovaPage(high >> PAGE_SHIFT),
        PageCount(1 << (high & PAGES_LG2_MASK)),
    );
    Some(CacheEvent::Pages(
        pages,
        match high & LEAVES_ONLY {
            0 => Caches::LeavesAndWalks,
            _ => Caches::Leaves,
        },
    ))
}

/// The page and the word in it at `at`.
fn place(at: PhysAddr) -> (PhysPage, usize) {
    (PhysPage(at.0 >> 12), (at.0 >> 3) as usize % WORDS)
}

#[allow(unsafe_code)] // a promise
// SAFETY: a model of a unit, which one driver has; nothing is cached, and "done" is written after
// what was asked for.
unsafe impl Registers for UnitRegisters {
    fn read32(&self, register: Reg32) -> u32 {
        cpu::device_access(self.register_read);
        match register {
            GSTS => self.state().enabled,
            _ => 0,
        }
    }
    fn read64(&self, register: Reg64) -> u64 {
        cpu::device_access(self.register_read);
        let state = self.state();
        match register {
            CAP => CAPABILITIES,
            ECAP => EXTENDED,
            IQH => state.head << IQ_INDEX_SHIFT,
            IQT => state.tail << IQ_INDEX_SHIFT,
            IQA => state.ring,
            RTADDR => state.root,
            _ => 0,
        }
    }
    fn write32(&self, register: Reg32, value: u32) {
        cpu::device_access(self.register_write);
        if register == GCMD {
            // each command is done at once; that to set the root stays visible
            self.state().enabled = value & !GCMD_WBF;
        }
    }
    fn write64(&self, register: Reg64, value: u64) {
        let now = cpu::device_access(self.register_write);
        let mut state = self.state();
        match register {
            IQA => {
                state.ring = value & !0xfff;
                state.head = 0;
            }
            IQT => {
                state.tail = value >> IQ_INDEX_SHIFT & IQ_INDEX_MASK;
                self.take_descriptors(&mut state, now);
            }
            RTADDR => state.root = value,
            _ => {}
        }
    }
}
