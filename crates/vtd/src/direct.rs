// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Invalidation by registers, for a unit without a queue (VT-d 4.1 §6.5.1, ECAP.QI = 0).
//!
//! # Theory
//!
//! The unit has two registers for it, one of the context cache (CCMD) and one of the IOTLB, and
//! takes one invalidation at a time: write it, wait until the begin bit is 0 again, look whether it
//! was carried out, write the next. Here is the queue that the unit lacks: a *line* of
//! invalidations in our memory, in the order of submission, of which the first is in its register.
//!
//! No thread owns the unit. Each caller that submits or waits *turns the crank* under the lock: it
//! reads the register of the invalidation under way; if it is done, the caller counts it off and
//! writes the next. So no lock is held while the unit works, the order (context cache before IOTLB)
//! is that of the line, and an interrupt handler that flushes moves the invalidations of the code
//! that it interrupted along with its own.
//!
//! **Errors**: an invalidation that the unit reports as not carried out (CAIG or IAIG = 0) fails
//! its submission with [`InvalidateError::Refused`], and the line goes on. There are no device TLBs
//! without a queue (ECAP.DT needs ECAP.QI).
//!
//! The lock is alone: nothing else is taken inside.

use crate::{
    layout::*,
    plan::Invalidation,
    queue::{Failures, Ticket},
    registers::*,
};
use alloc::boxed::Box;
use ioatlas_dma::{
    invalidation::{InvalidateError, WaitLimit},
    platform::{Lock, Platform},
    units::DomainId,
};

/// How many invalidations can stand in the line.
const LINE: usize = 128;

/// The line in front of one unit's registers.
pub struct Direct<P: Platform> {
    line: P::Lock<Line>,
    iotlb_offset: u16,
}

struct Line {
    /// Ring of invalidations; of each, whether it is the last of its submission.
    jobs: Box<[Option<Job>]>,
    first: usize,
    len: usize,
    /// Whether the first is in its register.
    begun: bool,
    /// The last submission given, and the last one done.
    given: u64,
    done: u64,
    jobs_done: u64,
    /// The value of `jobs_done` when a wait last ran out of time.
    stalled: Option<u64>,
    failures: Failures,
}

#[derive(Clone, Copy)]
struct Job {
    invalidation: Invalidation,
    place: Place,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Inside,
    Last,
}

impl<P: Platform> Direct<P> {
    /// An empty line for a unit with those capabilities.
    pub fn new(unit: &Capabilities) -> Self {
        Direct {
            line: P::Lock::new(Line {
                jobs: alloc::vec![None; LINE].into_boxed_slice(),
                first: 0,
                len: 0,
                begun: false,
                given: 0,
                done: 0,
                jobs_done: 0,
                stalled: None,
                failures: Failures::new(),
            }),
            iotlb_offset: unit.iotlb_offset(),
        }
    }

    /// Puts `batch` into the line. Waits at most `limit` turns for room, with no lock held; once a
    /// wait was in vain, it looks for room once a call, until the unit has done anything.
    ///
    /// # Errors
    /// There was no room in time.
    pub fn submit<R: Registers>(
        &self,
        p: &P,
        registers: &R,
        batch: impl Iterator<Item = Invalidation> + Clone,
        limit: WaitLimit,
    ) -> Result<Ticket, InvalidateError> {
        let mut progress = 0;
        for turns in 0..limit.0 {
            let given = self.line.with(|line| {
                let given = line.add(batch.clone());
                self.turn(registers, line);
                progress = line.jobs_done;
                given.ok_or(line.stalled == Some(progress))
            });
            match given {
                Ok(number) => return Ok(Ticket::one(number)),
                Err(true) => return Err(InvalidateError::TimedOut { turns }),
                Err(false) => p.relax(),
            }
        }
        self.stalled_at(progress);
        Err(InvalidateError::TimedOut { turns: limit.0 })
    }

    /// Changes whenever the unit has done anything.
    pub(crate) fn progress(&self) -> u64 {
        self.line.with(|line| line.jobs_done)
    }
    /// Whether a wait ran out of time when the unit was no less far than `progress`.
    pub(crate) fn is_stalled_at(&self, progress: u64) -> bool {
        self.line.with(|line| line.stalled == Some(progress))
    }
    /// A wait ran out of time. `progress` is from before its last look.
    pub(crate) fn stalled_at(&self, progress: u64) {
        self.line.with(|line| line.stalled = Some(progress));
    }

    /// Whether everything up to `ticket` is done.
    ///
    /// # Errors
    /// It was not carried out.
    pub fn done<R: Registers>(
        &self,
        registers: &R,
        ticket: Ticket,
    ) -> Result<bool, InvalidateError> {
        self.line.with(|line| {
            if line.done < ticket.last {
                self.turn(registers, line);
            }
            if line.done < ticket.last {
                return Ok(false);
            }
            let failure = line.failures.of(ticket.first, ticket.last);
            failure.map_or(Ok(true), Err)
        })
    }

    /// Moves the line on as far as the unit is ready.
    fn turn<R: Registers>(&self, registers: &R, line: &mut Line) {
        while let Some(job) = line.jobs[line.first] {
            if !line.begun {
                self.begin(registers, job.invalidation);
                line.begun = true;
            }
            let Some(actual) = self.finished(registers, job.invalidation) else {
                return;
            };
            if actual == Actual::Nothing {
                line.failures.add(line.done + 1, InvalidateError::Refused);
            }
            line.count_off(job);
        }
    }

    fn iotlb(&self, at: u16) -> Reg64 {
        Reg64(self.iotlb_offset + at)
    }

    /// Writes the command (§11.4.6.1 to §11.4.6.3).
    fn begin<R: Registers>(&self, registers: &R, invalidation: Invalidation) {
        match invalidation {
            Invalidation::Context(context) => registers.write64(CCMD, context_command(context)),
            Invalidation::Iotlb(iotlb) => {
                let (address, command) = iotlb_command(iotlb);
                registers.write64(self.iotlb(IVA_AT), address);
                registers.write64(self.iotlb(IOTLB_AT), command);
            }
            // there is no such thing without a queue; see `finished`
            Invalidation::DeviceTlb(_) | Invalidation::Interrupts(_) => {}
        }
    }

    /// What the unit did, once it is done.
    fn finished<R: Registers>(&self, registers: &R, invalidation: Invalidation) -> Option<Actual> {
        let (value, busy, shift) = match invalidation {
            Invalidation::Context(_) => (registers.read64(CCMD), CCMD_ICC, CCMD_ACTUAL_SHIFT),
            Invalidation::Iotlb(_) => (
                registers.read64(self.iotlb(IOTLB_AT)),
                IOTLB_IVT,
                IOTLB_ACTUAL_SHIFT,
            ),
            Invalidation::DeviceTlb(_) | Invalidation::Interrupts(_) => {
                return Some(Actual::Nothing);
            }
        };
        (value & busy == 0).then_some(match value >> shift & ACTUAL_MASK {
            0 => Actual::Nothing,
            // a unit may do more than it was asked (§11.4.6.1, CAIG)
            _ => Actual::Done,
        })
    }
}

#[derive(PartialEq, Eq)]
enum Actual {
    Nothing,
    Done,
}

impl Line {
    /// The number of the submission, or `None` where there is no room. An empty one stands for
    /// whatever is ahead of it.
    fn add(&mut self, batch: impl Iterator<Item = Invalidation> + Clone) -> Option<u64> {
        let count = batch.clone().count();
        if count == 0 {
            return Some(self.given);
        }
        if self.len + count > self.jobs.len() {
            return None;
        }
        for (n, invalidation) in batch.enumerate() {
            let place = match n + 1 == count {
                true => Place::Last,
                false => Place::Inside,
            };
            let at = (self.first + self.len) % self.jobs.len();
            self.jobs[at] = Some(Job {
                invalidation,
                place,
            });
            self.len += 1;
        }
        self.given += 1;
        Some(self.given)
    }

    fn count_off(&mut self, job: Job) {
        self.jobs_done += 1;
        self.jobs[self.first] = None;
        self.first = (self.first + 1) % self.jobs.len();
        self.len -= 1;
        self.begun = false;
        self.done += u64::from(job.place == Place::Last);
    }
}

/// The value of CCMD (§11.4.6.1).
fn context_command(context: ContextInvalidate) -> u64 {
    let request = |code: u64| CCMD_ICC | code << CCMD_REQUEST_SHIFT;
    match context {
        ContextInvalidate::Global => request(descriptor::GLOBAL),
        ContextInvalidate::Domain(domain) => request(descriptor::DOMAIN) | u64::from(domain.0),
        ContextInvalidate::Device {
            domain,
            device,
            functions,
        } => {
            request(descriptor::SELECTIVE)
                | (functions as u64) << CCMD_FUNCTION_MASK_SHIFT
                | u64::from(device.0) << CCMD_SOURCE_SHIFT
                | u64::from(domain.0)
        }
    }
}

/// The values of IVA (§11.4.6.3) and of the IOTLB command (§11.4.6.2).
fn iotlb_command(iotlb: IotlbInvalidate) -> (u64, u64) {
    let (code, domain, address) = match iotlb.target {
        IotlbTarget::Global => (descriptor::GLOBAL, DomainId(0), 0),
        IotlbTarget::Domain(domain) => (descriptor::DOMAIN, domain, 0),
        // IVA has the layout of the descriptor's high word
        IotlbTarget::Pages { domain, .. } => (descriptor::SELECTIVE, domain, iotlb.encode().high),
    };
    let mut command =
        IOTLB_IVT | code << IOTLB_REQUEST_SHIFT | u64::from(domain.0) << IOTLB_DOMAIN_SHIFT;
    if iotlb.drain.has(Drain::READS) {
        command |= IOTLB_DRAIN_READS;
    }
    if iotlb.drain.has(Drain::WRITES) {
        command |= IOTLB_DRAIN_WRITES;
    }
    (address, command)
}
