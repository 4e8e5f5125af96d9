// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Getting a queue going again after an error (VT-d 4.1 §6.5.2.10, §11.4.7.1).
//!
//! # Theory
//!
//! Two errors stop the unit from fetching until software clears them. **IQE**: it does not take the
//! descriptor that head points to. **ITE**: a device did not answer an invalidation of its TLB;
//! every wait descriptor that was fetched and not reported is dropped, so that submissions of
//! innocent CPUs would never be reported. A third, **ICE**, is an answer that fits no question: it
//! stops nothing, and is counted.
//!
//! Recovery runs under the queue's lock, on whichever CPU saw the error first, and waits for
//! nothing there. The unit stands still at head and fetches nothing; the ring is ours once it has
//! also *finished* what it fetched before:
//!
//! * Under IQE it goes on with the descriptors ahead of the one that it refuses, since its head
//!   moves when a descriptor is fetched, not when it is carried out (§6.5.2). Were their waits
//!   written again meanwhile, their first reports would pass for those of the second run, and slots
//!   that the unit has yet to fetch would count as free. So nothing is touched while a wait ahead
//!   of head is not reported: a CPU that looks finds the queue not recovered yet, and looks again
//!   within the bound of its own wait. After as many looks without a further report as the queue's
//!   limit says the queue is stopped for good.
//! * Under ITE the waits that were fetched are dropped, and none can be reported any more.
//!
//! Then all descriptors of submissions that are not done are put aside, without the offenders, and
//! written again from head on, each submission with its wait: from the submission of the refused
//! descriptor on, or from the oldest that was dropped. They fit: they are no more than before. Then
//! the tail is set, the error cleared, and the tail set again (some units go on at the one, some at
//! the other). Running an invalidation twice does no harm. Every wait that runs after a recovery
//! has a higher ticket than each that was reported before it, so the status word goes on rising.
//!
//! * Under IQE the offender is the descriptor at head. Its submission fails with
//!   [`InvalidateError::QueueError`].
//! * Under ITE the offenders are the device-TLB descriptors of the device that IQERCD names; of
//!   every device, of those fetched, where it names none. Their submissions fail with
//!   [`InvalidateError::DeviceTimedOut`], and the devices are handed to the driver to be fenced.
//!   There may be no offender: of several invalidations that a device was sent, each may time out
//!   by itself, after the others were left out. Then everything just runs again.
//!
//! **It ends**: a recovery from IQE begins after a bounded number of looks, and leaves one
//! invalidation out. Where there is none to leave out (head outside, or at one of our wait
//! descriptors) the queue is stopped for good: all callers get
//! [`InvalidateError::OutOfService`]. Recoveries from ITE are as many as the unit has time-outs
//! to report, and each wait has its bound.

use super::{Place, Queue};
use crate::authority::OURS;
use crate::{
    layout::{DeviceTlbInvalidate, PER_FRAME, WORDS, Words, descriptor::TYPE_WAIT},
    registers::*,
};
use core::fmt;
use ioatlas_dma::{
    invalidation::InvalidateError,
    platform::{Atomic64, Ordering, Platform},
    units::SourceId,
};

/// What a unit says was wrong with a descriptor (VT-d 4.1 §11.4.9.9, IQEI).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum QueueErrorInfo {
    /// It does not say.
    #[default]
    Unknown,
    /// The tail lies outside the queue.
    Tail,
    /// The descriptor could not be read.
    Fetch,
    /// There is no such type of descriptor.
    Type,
    /// A reserved field is not 0.
    Reserved,
    /// The width of descriptors does not suit the table mode.
    Width,
    /// The tail is not aligned to the width of descriptors.
    TailAlignment,
    /// The table mode is not one that the queue serves.
    TableMode,
}

impl QueueErrorInfo {
    /// From the value of IQERCD.
    pub fn decode(record: u64) -> Self {
        match record & IQERCD_INFO {
            1 => QueueErrorInfo::Tail,
            2 => QueueErrorInfo::Fetch,
            3 => QueueErrorInfo::Type,
            4 => QueueErrorInfo::Reserved,
            5 => QueueErrorInfo::Width,
            6 => QueueErrorInfo::TailAlignment,
            7 => QueueErrorInfo::TableMode,
            _ => QueueErrorInfo::Unknown,
        }
    }
}

impl fmt::Display for QueueErrorInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QueueErrorInfo::Unknown => "the unit does not say why",
            QueueErrorInfo::Tail => "the tail lies outside the queue",
            QueueErrorInfo::Fetch => "the descriptor could not be read",
            QueueErrorInfo::Type => "no such type of descriptor",
            QueueErrorInfo::Reserved => "a reserved field is not 0",
            QueueErrorInfo::Width => "descriptors have the wrong width for the table mode",
            QueueErrorInfo::TailAlignment => "the tail is not aligned to descriptors",
            QueueErrorInfo::TableMode => "the table mode does not suit the queue",
        })
    }
}

/// What has gone wrong with a queue since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Incidents {
    /// Descriptors that the unit did not take.
    pub queue_errors: u64,
    /// Why it did not take the last of them.
    pub last_queue_error: QueueErrorInfo,
    /// How often a device did not answer.
    pub time_outs: u64,
    /// How often an answer fitted no question.
    pub completion_errors: u64,
    /// The device of the last such answer, where the unit says.
    pub last_completion_error: Option<SourceId>,
}

/// How many devices may wait to be fenced; one more stops the queue.
const SILENT: usize = 16;

/// Devices that did not answer, until the driver has fenced them.
#[derive(Default)]
pub(super) struct Silent {
    devices: [Option<SourceId>; SILENT],
}

impl Silent {
    /// Enters `device`; whether there was room.
    fn add(&mut self, device: SourceId) -> bool {
        if self.devices.contains(&Some(device)) {
            return true;
        }
        let free = self.devices.iter_mut().find(|slot| slot.is_none());
        free.is_some_and(|slot| {
            *slot = Some(device);
            true
        })
    }
    pub(super) fn take(&mut self) -> Option<SourceId> {
        self.devices.iter_mut().find_map(Option::take)
    }
    pub(super) fn len(&self) -> u64 {
        self.devices.iter().flatten().count() as u64
    }
}

/// What to leave out.
#[derive(Clone, Copy)]
enum Offender {
    /// The descriptor this many slots after the oldest.
    At(usize),
    /// Whatever asks this device.
    Device(SourceId),
    /// Whatever asks any device, of the first so many descriptors.
    AnyDevice(usize),
}

impl Offender {
    fn is(self, offset: usize, descriptor: Words) -> bool {
        let device = DeviceTlbInvalidate::device_of(descriptor);
        match self {
            Offender::At(at) => offset == at && !is_wait(descriptor),
            Offender::Device(offender) => device == Some(offender),
            Offender::AnyDevice(fetched) => device.is_some() && offset < fetched,
        }
    }
}

fn is_wait(descriptor: Words) -> bool {
    descriptor.low & 0xf == TYPE_WAIT
}

/// Where the unit stands still.
struct Halt {
    status: u32,
    record: u64,
    /// How many slots after the oldest descriptor that is not done.
    offset: usize,
    head: usize,
}

impl<P: Platform> Queue<P> {
    /// Clears what is wrong and lets the unit go on, if anything is. Under the lock.
    pub(super) fn recover<R: Registers>(
        &self,
        p: &P,
        registers: &R,
        place: &mut Place,
    ) -> Result<(), InvalidateError> {
        let status = registers.read32(FSTS);
        let record = match status & FSTS_QUEUE {
            0 => return Ok(()), // another caller did it
            _ => registers.read64(IQERCD),
        };
        if status & FSTS_ICE != 0 {
            place.incidents.completion_errors += 1;
            place.incidents.last_completion_error = source(record >> IQERCD_COMPLETION_SHIFT);
            registers.write32(FSTS, FSTS_ICE);
        }
        let stopping = status & (FSTS_IQE | FSTS_ITE);
        if stopping == 0 {
            return Ok(());
        }
        let before = place.done;
        self.catch_up(p, place);
        let head = (registers.read64(IQH) >> IQ_INDEX_SHIFT & IQ_INDEX_MASK) as usize;
        let offset = (head + PER_FRAME - place.begin()) % PER_FRAME;
        let inside = head < PER_FRAME && offset <= place.used();
        let finishing = inside && status & FSTS_ITE == 0 && self.is_finishing(p, place, offset);
        place.looks = match finishing && place.done == before {
            true => place.looks + 1,
            false => 0,
        };
        if finishing && place.looks < self.limit.0 {
            return Ok(());
        }
        if status & FSTS_IQE != 0 {
            place.incidents.queue_errors += 1;
            place.incidents.last_queue_error = QueueErrorInfo::decode(record);
        } else {
            place.incidents.time_outs += 1;
        }
        if finishing || !inside {
            return self.stop(head);
        }
        let halt = Halt {
            status,
            record,
            offset,
            head,
        };
        let kept = self.put_aside(p, place, &halt);
        let helps = |kept: &usize| status & FSTS_IQE == 0 || *kept < place.used();
        let Some(kept) = kept.filter(helps) else {
            return self.stop(head);
        };
        self.write_again(p, place, head, kept);
        let tail = (place.tail as u64) << IQ_INDEX_SHIFT;
        registers.write64(IQT, tail);
        registers.write32(FSTS, stopping);
        registers.write64(IQT, tail);
        Ok(())
    }

    /// Whether the unit, which stands still `offset` slots after the oldest descriptor that is not
    /// done, has yet to report a wait that it fetched before.
    fn is_finishing(&self, p: &P, place: &Place, offset: usize) -> bool {
        (0..offset).any(|n| is_wait(self.pending(p, place, n)))
    }

    /// Copies what is to run again, and records which submissions failed; how many descriptors, or
    /// `None` where that cannot be recorded.
    fn put_aside(&self, p: &P, place: &mut Place, halt: &Halt) -> Option<usize> {
        let offender = Self::offender(halt);
        let aside = &p.entries(OURS, self.status.by_ref())[WORDS..];
        let mut kept = 0;
        let mut ticket = place.done + 1;
        for offset in 0..place.used() {
            let descriptor = self.pending(p, place, offset);
            if offender.is(offset, descriptor) {
                self.fail(place, ticket, cause(halt, descriptor))?;
                continue;
            }
            ticket += u64::from(is_wait(descriptor));
            aside[kept * WORDS].store(descriptor.low, Ordering::Relaxed);
            aside[kept * WORDS + 1].store(descriptor.high, Ordering::Relaxed);
            kept += 1;
        }
        Some(kept)
    }

    /// Which descriptors to leave out. (Where both errors are set, IQE first; the
    /// other one shows again.)
    fn offender(halt: &Halt) -> Offender {
        if halt.status & FSTS_IQE != 0 {
            return Offender::At(halt.offset);
        }
        source(halt.record >> IQERCD_TIMED_OUT_SHIFT)
            .map_or(Offender::AnyDevice(halt.offset), Offender::Device)
    }

    /// Records that a submission failed, and that a device is silent; `None` where there is
    /// no room for that.
    fn fail(&self, place: &mut Place, ticket: u64, cause: InvalidateError) -> Option<()> {
        place.failures.add(ticket, cause);
        let highest = self.failed.load(Ordering::Relaxed).max(ticket);
        self.failed.store(highest, Ordering::Relaxed);
        if let InvalidateError::DeviceTimedOut { device } = cause {
            let room = place.silent.add(device);
            self.silent.store(place.silent.len(), Ordering::Relaxed);
            return room.then_some(());
        }
        Some(())
    }

    /// Writes what was put aside from `head` on.
    fn write_again(&self, p: &P, place: &mut Place, head: usize, kept: usize) {
        let aside = &p.entries(OURS, self.status.by_ref())[WORDS..];
        place.tail = head;
        let mut ticket = place.done + 1;
        place.set_start(ticket, head);
        for n in 0..kept {
            let descriptor = Words {
                low: aside[n * WORDS].load(Ordering::Relaxed),
                high: aside[n * WORDS + 1].load(Ordering::Relaxed),
            };
            self.write(p, place.tail, descriptor);
            place.tail = (place.tail + 1) % PER_FRAME;
            if is_wait(descriptor) && ticket < place.last {
                ticket += 1;
                place.set_start(ticket, place.tail);
            }
        }
    }

    /// The descriptor so many slots after the oldest that is not done.
    fn pending(&self, p: &P, place: &Place, offset: usize) -> Words {
        let at = (place.begin() + offset) % PER_FRAME;
        let slot = &p.entries(OURS, self.ring.by_ref())[at * WORDS..][..WORDS];
        Words {
            low: slot[0].load(Ordering::Relaxed),
            high: slot[1].load(Ordering::Relaxed),
        }
    }

    /// Nothing helps. The first caller that comes is told where.
    fn stop(&self, head: usize) -> Result<(), InvalidateError> {
        match self.stopped.swap(1, Ordering::Relaxed) {
            0 => Err(InvalidateError::QueueError { head: head as u32 }),
            _ => Err(InvalidateError::OutOfService),
        }
    }
}

fn cause(halt: &Halt, descriptor: Words) -> InvalidateError {
    match DeviceTlbInvalidate::device_of(descriptor) {
        Some(device) if halt.status & FSTS_IQE == 0 => InvalidateError::DeviceTimedOut { device },
        _ => InvalidateError::QueueError {
            head: halt.head as u32,
        },
    }
}

/// A source id of IQERCD; 0 is none.
fn source(field: u64) -> Option<SourceId> {
    let id = field as u16;
    (id != 0).then_some(SourceId(id))
}
