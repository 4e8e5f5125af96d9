// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A register block that does what it is told, and no more: it takes commands and runs the queue,
//! at once or step by step, or invalidations by registers, and records them. It does not snoop: of
//! our memory it sees what was published, and garbage elsewhere. It decodes with literals of its
//! own. It caches nothing: that is the software unit's job.
#![allow(dead_code)] // each test file uses a part

pub mod bench;
pub mod rig;

use ioatlas_dma::platform::Authority;
use ioatlas_dma::platform::{Cpu, FrameRef, FreshFrame, Ordering, PhysMemory, Platform};
use ioatlas_dma::units::PhysPage;
use ioatlas_host::{Host, HostConfig};
use ioatlas_vtd::{
    driver::{ShutDownError, Unit},
    registers::*,
};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

/// QEMU 7.2's unit with 48-bit IOVAs, as read over its test socket: PSI, MAMV 18, both drains,
/// ND 6.
pub const QEMU_CAP: u64 = 0x00d2_008c_222f_0606;
pub const QEMU_ECAP: u64 = 0xf42;

pub const TE: u32 = 0x8000_0000;
pub const SRTP: u32 = 0x4000_0000;
pub const QIE: u32 = 0x0400_0000;
pub const WBF: u32 = 0x0800_0000;

// SAFETY: the fake unit translates nothing, and no domain has any unit to which this is said.
pub const BY: Authority = unsafe { Authority::assume() };

#[allow(clippy::type_complexity)] // that of the call
pub fn shut_down<P: Platform, R: Registers>(
    unit: Unit<P, R>,
) -> Result<(), (ShutDownError, Option<Box<Unit<P, R>>>)> {
    // SAFETY: its devices are a test's, and reach no memory but a test's.
    unsafe { unit.shut_down() }
}

pub struct State {
    pub cap: u64,
    pub ecap: u64,
    pub gsts: u32,
    pub fsts: u32,
    pub rtaddr: u64,
    pub iqa: u64,
    pub head: u64,
    pub tail: u64,
    /// Bits of GCMD that the unit never acts on.
    pub deaf: u32,
    /// How many descriptors the unit may still take.
    pub credit: u64,
    /// How many descriptors it takes just before the fault status is read.
    pub late: u64,
    /// The unit refuses this one, counted from the first ever, or the first invalidation behind it.
    pub bad: Option<usize>,
    /// The unit refuses IOTLB invalidations of this domain, whenever they run.
    pub refuses_domain: Option<u64>,
    /// The unit refuses everything.
    pub broken: bool,
    /// What it refuses to write: wait descriptors run, their status does not arrive.
    pub mute: bool,
    /// It fetches wait descriptors and reports them later, when it is told to: [`Fake::report`].
    pub reports_late: bool,
    /// Wait descriptors fetched and not reported: where to write, and what.
    pub unreported: VecDeque<(u64, u64)>,
    /// How many of them it reports just before the fault status is read.
    pub reports_at_look: usize,
    /// Values written to GCMD.
    pub commands: Vec<u32>,
    /// How many descriptors were taken, ever.
    pub ran: usize,
    /// Descriptors taken, and not yet asked for.
    pub taken: Vec<(u64, u64)>,
    pub fault_status_reads: u64,
    /// What happened, of all kinds, in order.
    pub log: Vec<Happened>,
    /// How many reads of the status register a write-buffer flush takes.
    pub slow_buffers: u32,
    /// How many are left.
    pub flushing: u32,
    /// Devices that do not answer invalidations of their TLBs.
    pub silent: Vec<u16>,
    /// One of them was asked: the next wait is dropped.
    pub unanswered: u16,
    /// How many more invalidations of it time out, each after the error of the one before was
    /// cleared.
    pub unanswered_later: u32,
    /// A completion that fits no question.
    pub iqercd: u64,
    /// Invalidation by registers: the values, how many reads they take, and whether they are
    /// refused.
    pub ccmd: u64,
    pub iva: u64,
    pub iotlb: u64,
    pub slow_registers: u32,
    pub busy: u32,
    pub refuses: bool,
    /// Fault records, low and high.
    pub faults: Vec<(u64, u64)>,
}

/// What the unit was told, by its own literals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Happened {
    Flush,
    Command(u32),
    Descriptor(u64, u64),
    Ccmd(u64),
    Iotlb(u64, u64),
}

type Word = <Host as Platform>::A64;

/// The host platform, with what has been written back kept beside it, by the address of the word.
pub struct Memory {
    host: Host,
    published: Mutex<HashMap<usize, u64>>,
    during_alloc: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    during_relax: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

fn place(word: &Word) -> usize {
    std::ptr::from_ref(word).addr()
}

impl Memory {
    pub fn frames_in_use(&self) -> usize {
        self.host.frames_in_use()
    }
    /// What happens elsewhere while the next frame is allocated.
    pub fn during_next_alloc(&self, what: impl FnOnce() + Send + 'static) {
        *self.during_alloc.lock().unwrap() = Some(Box::new(what));
    }
    /// What happens elsewhere while a caller next waits.
    pub fn during_next_wait(&self, what: impl FnOnce() + Send + 'static) {
        *self.during_relax.lock().unwrap() = Some(Box::new(what));
    }
    pub fn word(&self, address: u64) -> &Word {
        let index = (address >> 3 & 511) as usize;
        self.host.word(BY, PhysPage(address >> 12), index).unwrap()
    }
}

// SAFETY: the host's; what is watched changes nothing.
unsafe impl Platform for Memory {
    type A64 = Word;
    type Lock<T: Send> = <Host as Platform>::Lock<T>;

    fn pinned<R>(&self, f: impl FnOnce(Cpu<'_>) -> R) -> R {
        self.host.pinned(f)
    }
    fn cpus(&self) -> usize {
        self.host.cpus()
    }
    fn frame_alloc(&self) -> Option<FreshFrame> {
        let elsewhere = self.during_alloc.lock().unwrap().take();
        if let Some(what) = elsewhere {
            what();
        }
        self.host.frame_alloc()
    }
    fn frame_free(&self, by: Authority, frame: FreshFrame) {
        self.host.frame_free(by, frame)
    }
    fn entries<'f>(&'f self, by: Authority, frame: FrameRef<'f>) -> &'f [Word] {
        self.host.entries(by, frame)
    }
    fn publish(&self, entries: &[Word]) {
        let mut published = self.published.lock().unwrap();
        for word in entries {
            published.insert(place(word), word.load(Ordering::SeqCst));
        }
    }
    fn fence(&self, order: Ordering) {
        self.host.fence(order)
    }
    fn relax(&self) {
        let elsewhere = self.during_relax.lock().unwrap().take();
        if let Some(what) = elsewhere {
            what();
        }
        self.host.relax()
    }
    fn heap(&self) -> Option<&dyn ioatlas_dma::platform::Heap> {
        self.host.heap()
    }
    fn unique(&self) -> u64 {
        self.host.unique()
    }
}

pub struct Fake {
    host: Arc<Memory>,
    state: Mutex<State>,
}

pub fn host(frames: usize) -> Arc<Memory> {
    Arc::new(Memory {
        host: Host::new(HostConfig::default().frames(frames).slots(4)),
        published: Mutex::default(),
        during_alloc: Mutex::default(),
        during_relax: Mutex::default(),
    })
}

impl Fake {
    pub fn new(host: &Arc<Memory>) -> Arc<Self> {
        Arc::new(Fake {
            host: host.clone(),
            state: Mutex::new(State {
                cap: QEMU_CAP,
                ecap: QEMU_ECAP,
                gsts: 0,
                fsts: 0,
                rtaddr: 0,
                iqa: 0,
                head: 0,
                tail: 0,
                deaf: 0,
                credit: u64::MAX,
                late: 0,
                bad: None,
                refuses_domain: None,
                broken: false,
                mute: false,
                reports_late: false,
                unreported: VecDeque::new(),
                reports_at_look: 0,
                commands: Vec::new(),
                ran: 0,
                taken: Vec::new(),
                fault_status_reads: 0,
                log: Vec::new(),
                slow_buffers: 0,
                flushing: 0,
                silent: Vec::new(),
                unanswered: 0,
                unanswered_later: 0,
                iqercd: 0,
                ccmd: 0,
                iva: 0,
                iotlb: 0,
                slow_registers: 0,
                busy: 0,
                refuses: false,
                faults: Vec::new(),
            }),
        })
    }
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
    /// Lets the unit take `n` more descriptors.
    pub fn step(&self, n: u64) {
        let mut state = self.state();
        state.credit = state.credit.saturating_add(n);
        self.run(&mut state);
    }
    /// Reports the `n` oldest wait descriptors that it fetched and has not reported: in their
    /// order, the only one that VT-d 4.1 §6.5.2.11 allows.
    pub fn report(&self, n: usize) {
        self.report_some(&mut self.state(), n);
    }
    fn report_some(&self, state: &mut State, n: usize) {
        let n = n.min(state.unreported.len());
        for (address, data) in state.unreported.drain(..n) {
            // status writes are coherent, whatever walks are (ECAP.C)
            self.host.word(address).store(data, Ordering::Release);
        }
    }
    /// What it took since the last call.
    pub fn taken(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.state().taken)
    }
    /// What happened since the last call, without wait descriptors.
    pub fn log(&self) -> Vec<Happened> {
        let mut log = std::mem::take(&mut self.state().log);
        log.retain(|h| !matches!(h, Happened::Descriptor(low, _) if low & 0xf == 5));
        log
    }
    /// A word of memory, as the unit sees it.
    pub fn memory(&self, address: u64) -> u64 {
        let published = self.host.published.lock().unwrap();
        let word = published.get(&place(self.host.word(address)));
        word.copied().unwrap_or(u64::MAX)
    }
    /// The two words of a device's context entry, or `None` without a context table.
    pub fn context(&self, sid: u16) -> Option<(u64, u64)> {
        let root = self.state().rtaddr;
        let entry = self.memory(root + u64::from(sid >> 8) * 16);
        assert_eq!(entry & 0xffe, 0, "reserved bits of the root entry");
        let at = (entry & !0xfff) + u64::from(sid & 0xff) * 16;
        (entry & 1 != 0).then(|| (self.memory(at), self.memory(at + 8)))
    }

    fn run(&self, state: &mut State) {
        while state.gsts & QIE != 0
            && state.fsts & 0x50 == 0
            && state.head != state.tail
            && state.credit > 0
        {
            let at = (state.iqa & !0xfff) + state.head * 16;
            let (low, high) = (self.memory(at), self.memory(at + 8));
            let known = matches!(low & 0xf, 1..=5);
            let bad = low & 0xf != 5 && state.bad.is_some_and(|bad| bad <= state.ran);
            let of_domain = low & 0xf == 2 && state.refuses_domain == Some(low >> 16 & 0xffff);
            if !known || state.broken || bad || of_domain {
                // taken once it is something else
                state.bad = None;
                state.fsts |= 0x10;
                state.iqercd = 3;
                return;
            }
            state.ran += 1;
            state.taken.push((low, high));
            state.log.push(Happened::Descriptor(low, high));
            state.credit -= 1;
            state.head = (state.head + 1) % 256;
            let device = (low >> 32) as u16;
            if low & 0xf == 3 && state.silent.contains(&device) {
                state.unanswered = device;
            }
            if low & 0xf == 5 && state.unanswered != 0 {
                state.iqercd = u64::from(std::mem::take(&mut state.unanswered)) << 32;
                state.fsts |= 0x40;
                // §6.5.2.11: it drops the wait descriptors that it has not reported
                state.unreported.clear();
                return;
            }
            if low & 0xf == 5 && low & 0x20 != 0 && !state.mute {
                assert_eq!(high & 7, 0, "the status word is the low half of a word");
                state.unreported.push_back((high, low >> 32));
                if !state.reports_late {
                    self.report_some(state, usize::MAX);
                }
            }
        }
    }
}

// SAFETY: a unit that behaves as each test says, and translates nothing.
unsafe impl Registers for Fake {
    fn read32(&self, register: Reg32) -> u32 {
        let mut state = self.state();
        match register.0 {
            0x1c => {
                let flushing = state.flushing > 0;
                state.flushing = state.flushing.saturating_sub(1);
                state.gsts | if flushing { WBF } else { 0 }
            }
            0x34 => {
                state.fault_status_reads += 1;
                state.credit = state.credit.saturating_add(state.late);
                self.run(&mut state);
                let reports = state.reports_at_look;
                self.report_some(&mut state, reports);
                let pending = state.faults.iter().any(|f| f.1 >> 63 != 0);
                state.fsts | u32::from(pending) << 1
            }
            other => panic!("32-bit read of {other:#x}"),
        }
    }
    fn read64(&self, register: Reg64) -> u64 {
        let mut state = self.state();
        match register.0 {
            0x08 => state.cap,
            0x10 => state.ecap,
            0x20 => state.rtaddr,
            0x80 => state.head << 4,
            0x88 => {
                self.run(&mut state);
                state.tail << 4
            }
            0xb0 => state.iqercd,
            0x28 | 0xf8 => {
                let busy = state.busy > 0;
                state.busy = state.busy.saturating_sub(1);
                let value = if register.0 == 0x28 {
                    state.ccmd
                } else {
                    state.iotlb
                };
                let shift = if register.0 == 0x28 { 59 } else { 57 };
                match (busy, state.refuses) {
                    (true, _) => value,
                    (false, true) => value & !(1 << 63),
                    (false, false) => value & !(1 << 63) | 1 << shift,
                }
            }
            at @ 0x220.. => {
                let record = state.faults[usize::from(at - 0x220) / 16];
                if at % 16 == 0 { record.0 } else { record.1 }
            }
            other => panic!("64-bit read of {other:#x}"),
        }
    }
    fn write32(&self, register: Reg32, value: u32) {
        let mut state = self.state();
        match register.0 {
            0x18 => {
                assert_eq!(state.flushing, 0, "a command while another is under way");
                if value & WBF != 0 {
                    state.log.push(Happened::Flush);
                    state.flushing = state.slow_buffers;
                } else {
                    state.commands.push(value);
                    state.log.push(Happened::Command(value));
                }
                let value = value & !WBF;
                let heard = value & !state.deaf;
                if heard & SRTP != 0 {
                    state.gsts |= SRTP;
                }
                if heard & QIE != 0 && state.gsts & QIE == 0 {
                    state.head = 0;
                }
                // enables are levels: what the write does not repeat is off
                // SRTP and SIRTP are told by what they did
                let told = SRTP | 0x0100_0000;
                let keep = state.gsts & (state.deaf | told);
                state.gsts = keep | heard & !told;
            }
            0x34 => {
                state.fsts &= !(value & 0x71);
                if value & 0x40 != 0 && state.unanswered_later > 0 {
                    state.unanswered_later -= 1;
                    state.unanswered = (state.iqercd >> 32) as u16;
                }
                self.run(&mut state);
            }
            other => panic!("32-bit write of {other:#x}"),
        }
    }
    fn write64(&self, register: Reg64, value: u64) {
        let mut state = self.state();
        match register.0 {
            0x20 => state.rtaddr = value,
            0x88 => {
                assert_eq!(value & !0xff0, 0, "tail outside the ring");
                state.tail = value >> 4;
                self.run(&mut state);
            }
            0x28 => {
                assert_eq!(state.busy, 0, "one at a time");
                state.busy = state.slow_registers;
                state.ccmd = value;
                state.log.push(Happened::Ccmd(value));
            }
            0xf0 => state.iva = value,
            0xf8 => {
                assert_eq!(state.busy, 0, "one at a time");
                state.busy = state.slow_registers;
                state.iotlb = value;
                let iva = state.iva;
                state.log.push(Happened::Iotlb(value, iva));
            }
            at @ 0x220.. => {
                assert_eq!((at % 16, value), (8, 1 << 63), "F alone is cleared");
                state.faults[usize::from(at - 0x220) / 16].1 &= !(1 << 63);
            }
            0x90 => {
                assert_eq!(state.gsts & QIE, 0, "the queue is on");
                assert_eq!(value & 0xfff, 0, "128-bit descriptors, one frame");
                state.iqa = value;
            }
            other => panic!("64-bit write of {other:#x}"),
        }
    }
}
