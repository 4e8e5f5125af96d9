// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What stops the queue, and what is reported of it (VT-d 4.1 §6.5.2.10): IQE, ITE, ICE and the
//! error record.
//!
//! **Device TLBs that do not answer**: the invalidation is over for the queue, but not for the
//! callers that wait for it. The next wait descriptor is consumed without its status being
//! written, and then ITE is set and nothing more is fetched until software clears it (§6.5.2.10:
//! hardware aborts the wait descriptors that it has fetched). Where no descriptor follows, ITE
//! is set at once.

use super::{Queue, Stage};
use crate::{
    observe::Event,
    unit::{SoftUnit, State},
};
use ioatlas_dma::{
    platform::{Lock, PhysMemory, Platform},
    units::*,
};

/// Why the queue stopped (IQERCD.IQEI).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum QueueFault {
    /// The registers have no number for it.
    Other = 0,
    Tail = 1,
    Fetch = 2,
    Type = 3,
    Reserved = 4,
    Width = 5,
}

/// What a device did with an invalidation of its TLB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceTlbError {
    /// It did not answer in time (ITE).
    TimedOut(SourceId),
    /// It answered what was not asked (ICE).
    BadCompletion(SourceId),
}

impl Queue {
    /// IQERCD (§11.4.9.8): what stopped the queue 3:0, the device that timed out 47:32, the device
    /// that completed what was not asked 63:48.
    pub(crate) fn error_record(&self) -> u64 {
        let device = |source: Option<SourceId>| source.map_or(0, |s| u64::from(s.0));
        let fault = self.fault.filter(|_| self.error);
        fault.map_or(0, |f| f as u64)
            | device(self.time_out) << 32
            | device(self.bad_completion) << 48
    }
}

impl State {
    pub(super) fn queue_error(&mut self, fault: QueueFault) {
        self.report_fault(|s| {
            (s.queue.error, s.queue.fault, s.queue.halted) = (true, Some(fault), true);
        });
        self.queue.stage = Stage::Fetch;
        self.stats.queue_errors += 1;
        self.emit(Event::QueueError {
            head: self.queue.head,
        });
    }

    /// What a device did wrong with the invalidation that is now over.
    pub(crate) fn device_tlb_error(&mut self, error: DeviceTlbError) {
        match error {
            DeviceTlbError::TimedOut(source) => self.queue.unanswered = Some(source),
            // only the first is named until software has cleared it (§11.4.9.8)
            DeviceTlbError::BadCompletion(source) => self.report_fault(|s| {
                s.queue.bad_completion.get_or_insert(source);
            }),
        }
    }
    /// The queue stops, ITE is set, and what was fetched and not reported is dropped.
    pub(super) fn time_out(&mut self, source: SourceId) {
        self.queue.unreported.clear();
        self.report_fault(|s| {
            (s.queue.time_out, s.queue.halted) = (Some(source), true);
        });
    }
}

impl<P: Platform, M: PhysMemory<P>> SoftUnit<P, M> {
    /// A device answers wrongly, or not at all, to the next or last invalidation of its TLB.
    pub fn inject_device_tlb_error(&self, error: DeviceTlbError) {
        self.state.with(|s| s.device_tlb_error(error));
    }
}
