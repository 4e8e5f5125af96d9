// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The invalidation queue (VT-d 4.1 §6.5.2): a ring of 16-byte descriptors, processed strictly in
//! order.
//!
//! A micro-step fetches one descriptor and acts on it, or writes one wait descriptor's status. At
//! most one agent is inside a micro-step; another that comes meanwhile is told `Blocked`, and need
//! not come again, because the first looks at the tail once more before it leaves. While an
//! invalidation drains no agent is inside: the access that ends last completes it.
//!
//! Hardware may act on later descriptors before a drain is over, as long as the wait descriptor
//! comes last; this unit does not, which no driver can rely on or tell. It may report later than it
//! fetches, though ([`WaitReports`]): the head says what was fetched, never what was done.
//!
//! After an error (IQE) the head stays at the descriptor, and nothing is processed until IQE is
//! cleared (§6.5.2.10), and where so configured ([`Restart`]) not before the tail is written once
//! more.

mod errors;

pub use errors::DeviceTlbError;

use crate::{
    config::{InterruptRemapping, MAX_UNREPORTED, Processing, Restart, WaitReports},
    descriptor::{Descriptor, Refused, WaitInterrupt, decode, invalidates_tables},
    invalidation::{Invalidation, Selection},
    observe::{Event, InvalidationId},
    unit::{HARDWARE, SoftUnit, State},
};
use core::fmt;
use errors::QueueFault;
use ioatlas_dma::{
    invalidation::Caches,
    platform::{Atomic64, Lock, Ordering, PhysMemory, Platform},
    units::*,
};
use std::collections::VecDeque;

/// Descriptors in one page.
const PER_PAGE: u32 = 256;

/// What a micro-step of the queue came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Nothing to do: the queue is empty, disabled, in error, or stuck.
    Idle,
    /// One micro-step was done.
    Did,
    /// An invalidation drains, or another agent is at it.
    Blocked,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// The descriptor at the head is next.
    Fetch,
    /// It waits for so many accesses.
    Draining { id: InvalidationId, pending: usize },
    /// Its status is to be written.
    Signal(Signal),
}

/// The status of a wait descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Signal {
    address: PhysAddr,
    data: u32,
    interrupt: WaitInterrupt,
}

pub(crate) struct Queue {
    pub(crate) processing: Processing,
    pub(crate) enabled: bool,
    /// IQE: it stopped with an error.
    pub(crate) error: bool,
    fault: Option<QueueFault>,
    /// ITE, and of which device.
    pub(crate) time_out: Option<SourceId>,
    /// ICE, and of which device.
    pub(crate) bad_completion: Option<SourceId>,
    /// A time-out that the next wait descriptor will find.
    unanswered: Option<SourceId>,
    /// The error is cleared, but the queue does not go on before the tail is written.
    halted: bool,
    restart: Restart,
    pub(crate) refuse_next: u32,
    pub(crate) ignore_drains: u32,
    /// As written to IQA: page, size in 2:0, descriptor width in 11.
    pub(crate) address: u64,
    pub(crate) head: u32,
    pub(crate) tail: u32,
    stage: Stage,
    wait_reports: WaitReports,
    /// Wait descriptors that the head has passed and that are not reported.
    unreported: VecDeque<Signal>,
    busy: bool,
    /// Changes when the queue is switched off and on, so that an agent inside a micro-step notices.
    generation: u64,
}

/// What to do without the lock.
enum Work {
    None(Progress),
    Fetch {
        page: PhysPage,
        index: usize,
        generation: u64,
    },
    Write {
        address: PhysAddr,
        data: u32,
        generation: u64,
    },
}

impl Queue {
    pub(crate) fn new(processing: Processing, wait_reports: WaitReports, restart: Restart) -> Self {
        Queue {
            processing,
            enabled: false,
            error: false,
            fault: None,
            time_out: None,
            bad_completion: None,
            unanswered: None,
            halted: false,
            restart,
            refuse_next: 0,
            ignore_drains: 0,
            address: 0,
            head: 0,
            tail: 0,
            stage: Stage::Fetch,
            wait_reports,
            unreported: VecDeque::new(),
            busy: false,
            generation: 0,
        }
    }
    /// Descriptors in the ring: 2^size pages of them (§11.4.9.3).
    pub(crate) fn len(&self) -> u32 {
        PER_PAGE << (self.address & 7)
    }
    pub(crate) fn queued(&self) -> u32 {
        (self.tail + self.len() - self.head) % self.len()
    }
    pub(crate) fn switch(&mut self, enabled: bool) {
        if enabled != self.enabled {
            (self.enabled, self.stage, self.busy) = (enabled, Stage::Fetch, false);
            (self.unanswered, self.halted) = (None, false);
            self.unreported.clear();
            self.generation += 1;
        }
        if !enabled {
            self.head = 0;
        }
    }
    pub(crate) fn audit(&self, blocking: usize) -> Result<(), String> {
        let pending = match self.stage {
            Stage::Draining { pending, .. } => pending,
            _ => 0,
        };
        if pending != blocking {
            return Err(format!(
                "the queue waits for {pending} accesses, {blocking} block it"
            ));
        }
        // the tail is whatever software wrote: one beyond the queue is an error of its own, found
        // when it is used
        let (head, len) = (self.head, self.len());
        if self.enabled && !self.error && head >= len {
            return Err(format!("head {head} is beyond the queue of {len}"));
        }
        Ok(())
    }
    /// Whether an invalidation waits for accesses.
    pub(crate) fn draining(&self) -> bool {
        matches!(self.stage, Stage::Draining { .. })
    }
    /// Software did what may end a stop.
    pub(crate) fn go_on(&mut self, after: Restart) {
        if !self.error && self.time_out.is_none() && after == self.restart {
            self.halted = false;
        }
    }
    /// The wait descriptor whose status is to be written next, if one is: of those that are
    /// reported late the oldest, once there is nothing to fetch or there are too many.
    fn signal(&self) -> Option<Signal> {
        let waits = self.halted
            || self.stage == Stage::Fetch && self.head == self.tail
            || self.unreported.len() >= MAX_UNREPORTED;
        match self.stage {
            Stage::Signal(signal) => Some(signal),
            _ => self.unreported.front().copied().filter(|_| waits),
        }
    }
    fn advance(&mut self) {
        self.head = (self.head + 1) % self.len();
        self.stage = Stage::Fetch;
    }
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue {}..{} of {}", self.head, self.tail, self.len())?;
        match (self.enabled, self.halted, self.stage) {
            (false, ..) => write!(f, ", off"),
            (_, true, _) => write!(f, ", stopped"),
            (.., Stage::Draining { pending, .. }) => write!(f, ", draining {pending}"),
            (.., Stage::Signal(_)) => write!(f, ", signalling"),
            (.., Stage::Fetch) => Ok(()),
        }
    }
}

impl State {
    /// An access that blocked the queue, or a request by register, has ended; returns whether the
    /// caller is to run the queue.
    pub(crate) fn drained_one(&mut self) -> bool {
        if self.request_drained_one() {
            return self.queue.processing == Processing::Inline;
        }
        let Stage::Draining { id, pending } = self.queue.stage else {
            return false;
        };
        if pending > 1 {
            let pending = pending - 1;
            self.queue.stage = Stage::Draining { id, pending };
            return false;
        }
        self.emit(Event::InvalidationCompleted { id });
        self.queue.advance();
        self.begin_waiting_request();
        self.queue.processing == Processing::Inline
    }

    fn take_work(&mut self) -> Work {
        let requested = self.registers.requests.draining();
        let q = &mut self.queue;
        let halted = q.halted && q.unreported.is_empty();
        if !q.enabled || halted || q.processing == Processing::Stuck {
            return Work::None(Progress::Idle);
        }
        let generation = q.generation;
        if q.busy || requested || q.draining() {
            return Work::None(Progress::Blocked);
        }
        if !q.halted
            && q.stage == Stage::Fetch
            && q.head == q.tail
            && let Some(source) = q.unanswered.take()
        {
            self.time_out(source);
            return Work::None(Progress::Idle);
        }
        if let Some(Signal { address, data, .. }) = q.signal() {
            q.busy = true;
            self.emit(Event::Signalling { address, data });
            return Work::Write {
                address,
                data,
                generation,
            };
        }
        let work = match q.stage {
            Stage::Fetch if q.head == q.tail => return Work::None(Progress::Idle),
            // 256-bit descriptors are not offered; a tail beyond the ring is none
            Stage::Fetch if q.address >> 11 & 1 == 1 => return self.stopped(QueueFault::Width),
            Stage::Fetch if q.tail >= q.len() => return self.stopped(QueueFault::Tail),
            Stage::Fetch => Work::Fetch {
                page: PhysPage((q.address >> GRANULE_LG2) + u64::from(q.head / PER_PAGE)),
                index: (q.head % PER_PAGE) as usize * 2,
                generation,
            },
            // drained or signalled above
            Stage::Draining { .. } | Stage::Signal(_) => return Work::None(Progress::Blocked),
        };
        q.busy = true;
        work
    }

    fn stopped(&mut self, fault: QueueFault) -> Work {
        self.queue_error(fault);
        Work::None(Progress::Did)
    }

    /// Back from a micro-step's memory access. `false`: the queue was switched off meanwhile, and
    /// it counts for nothing.
    fn return_from(&mut self, generation: u64) -> bool {
        let ours = self.queue.generation == generation;
        if ours {
            self.queue.busy = false;
        }
        ours
    }

    fn act(&mut self, words: Option<(u64, u64)>) {
        if self.queue.refuse_next > 0 {
            self.queue.refuse_next -= 1;
            return self.queue_error(QueueFault::Type);
        }
        let Some((low, high)) = words else {
            return self.queue_error(QueueFault::Fetch);
        };
        match decode(low, high, &self.features) {
            Err(Refused::Type) => self.queue_error(QueueFault::Type),
            Err(Refused::Reserved) => self.queue_error(QueueFault::Reserved),
            Ok(Descriptor::Invalidate(what)) => self.invalidate(what),
            Ok(Descriptor::InterruptEntries) => {
                if self.registers.config.interrupts == InterruptRemapping::Absent {
                    return self.queue_error(QueueFault::Type);
                }
                // nothing of the table is cached here
                self.stats.interrupt_invalidations += 1;
                self.queue.advance();
            }
            Ok(Descriptor::Wait { .. }) if self.queue.unanswered.is_some() => {
                self.queue.advance();
                if let Some(source) = self.queue.unanswered.take() {
                    self.time_out(source);
                }
            }
            Ok(Descriptor::Wait {
                status: None,
                interrupt,
            }) => {
                self.queue.advance();
                self.wait_is_done(interrupt);
            }
            Ok(Descriptor::Wait {
                status: Some((address, data)),
                interrupt,
            }) => {
                let signal = Signal {
                    address,
                    data,
                    interrupt,
                };
                match self.queue.wait_reports {
                    WaitReports::InTurn => self.queue.stage = Stage::Signal(signal),
                    WaitReports::Late => {
                        self.queue.unreported.push_back(signal);
                        self.queue.advance();
                    }
                }
            }
        }
    }

    /// The invalidation at the head of the queue.
    fn invalidate(&mut self, what: Invalidation) {
        let (id, pending) = self.begin_invalidation(what);
        if let Invalidation::DeviceTlb { source, .. } = what
            && !self.devices.answers(source)
        {
            self.emit(Event::DeviceUnanswered { source, id });
            self.device_tlb_error(DeviceTlbError::TimedOut(source));
            return self.queue.advance();
        }
        if pending > 0 {
            self.queue.stage = Stage::Draining { id, pending };
        } else {
            self.emit(Event::InvalidationCompleted { id });
            self.queue.advance();
        }
    }

    /// Removes entries and marks accesses; returns how many of them the invalidation waits for.
    /// Both are one section under the lock: no walk slips between them.
    pub(crate) fn begin_invalidation(&mut self, what: Invalidation) -> (InvalidationId, usize) {
        let id = InvalidationId(self.invalidations_named);
        self.invalidations_named += 1;
        let draining = match what {
            Invalidation::Context { selection } => {
                self.stats.context_invalidations += 1;
                self.stats.invalidated += self.caches.invalidate_context(&selection);
                self.active.overtake_contexts(&selection);
                0
            }
            Invalidation::Iotlb {
                selection,
                caches,
                mut drain,
            } => {
                let (stats, leaf) = (&mut self.stats, caches == Caches::Leaves);
                match selection {
                    Selection::Global => stats.global_invalidations += 1,
                    Selection::Domain(_) => stats.domain_invalidations += 1,
                    Selection::Pages(..) => stats.page_invalidations += 1,
                }
                stats.leaf_invalidations += u64::from(leaf);
                let (leaves, walks) = self.caches.invalidate(&selection, caches, &mut self.left);
                stats.invalidated += leaves + walks;
                if (drain.reads || drain.writes) && self.queue.ignore_drains > 0 {
                    self.queue.ignore_drains -= 1;
                    drain = Default::default();
                }
                let shape = self.shape();
                self.active.drain(&selection, caches, drain, shape)
            }
            Invalidation::DeviceTlb { source, pages } => {
                self.stats.device_tlb_invalidations += 1;
                if self.devices.answers(source) {
                    self.stats.invalidated += self.devices.invalidate(source, pages);
                    self.active.drain_device(source, pages)
                } else {
                    0
                }
            }
        };
        self.stats.drained += draining as u64;
        self.emit(Event::InvalidationBegan { id, what, draining });
        (id, draining)
    }

    fn signalled(&mut self, written: bool) {
        let late = match self.queue.stage {
            Stage::Signal(_) => None,
            _ => self.queue.unreported.pop_front(),
        };
        match (self.queue.stage, late) {
            (Stage::Signal(Signal { interrupt, .. }), _) if written => {
                self.queue.advance();
                self.wait_is_done(interrupt);
            }
            (_, Some(Signal { interrupt, .. })) if written => self.wait_is_done(interrupt),
            // the status is not in memory
            _ => self.queue_error(QueueFault::Other),
        }
    }
    fn wait_is_done(&mut self, interrupt: WaitInterrupt) {
        self.stats.waits += 1;
        if interrupt == WaitInterrupt::Asked {
            self.wait_completed();
        }
    }
}

impl<P: Platform, M: PhysMemory<P>> SoftUnit<P, M> {
    /// One micro-step of the queue, for [`Processing::Asynchronous`] (harmless otherwise).
    pub fn service(&self) -> Progress {
        if self.flush_if_asked() {
            return Progress::Did;
        }
        match self.state.with(State::take_work) {
            Work::None(progress) => progress,
            Work::Fetch {
                page,
                index,
                generation,
            } => {
                let words = self.fetch(page, index);
                if words.is_some_and(|(low, _)| invalidates_tables(low)) {
                    self.flush_before_invalidation();
                }
                let wanted = self.state.with(|s| {
                    if s.return_from(generation) {
                        s.act(words);
                    }
                    s.devices.take_wanted()
                });
                self.refetch(wanted);
                Progress::Did
            }
            Work::Write {
                address,
                data,
                generation,
            } => {
                let written = self.write_status(address, data).is_some();
                self.state.with(|s| {
                    if s.return_from(generation) {
                        s.signalled(written)
                    }
                });
                Progress::Did
            }
        }
    }

    /// Changes what processes the queue. To `Inline`: what is queued is processed at once.
    pub fn set_processing(&self, processing: Processing) {
        self.state.with(|s| s.queue.processing = processing);
        if processing == Processing::Inline {
            self.run_queue();
        }
    }

    /// Micro-steps until idle or blocked.
    pub(crate) fn run_queue(&self) {
        while self.service() == Progress::Did {}
    }

    fn fetch(&self, page: PhysPage, index: usize) -> Option<(u64, u64)> {
        let low = self
            .memory
            .word(HARDWARE, page, index)?
            .load(Ordering::Acquire);
        let high = self
            .memory
            .word(HARDWARE, page, index + 1)?
            .load(Ordering::Acquire);
        Some((low, high))
    }

    /// Status data is 32 bits; the other half of the word is not the unit's to change.
    fn write_status(&self, address: PhysAddr, data: u32) -> Option<()> {
        let word = self
            .memory
            .word(HARDWARE, address.page(), (address.offset() / 8) as usize)?;
        let shift = (address.0 & 4) * 8;
        let mut old = word.load(Ordering::Relaxed);
        loop {
            let new = old & !(0xffff_ffff << shift) | u64::from(data) << shift;
            match word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(()),
                Err(now) => old = now,
            }
        }
    }
}
