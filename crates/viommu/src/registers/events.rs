// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Fault status, and the two events: when they are signalled and when they are taken back (VT-d 4.1
//! §7.3, §11.4.7, §11.4.9).
//!
//! A fault event is signalled when a status bit is set while none was: what comes before software
//! has cleared all of them is not new. The same with ICS.IWC for completions.

use super::{Then, layout::*};
use crate::{
    config::Restart,
    fault::FaultRecord,
    message::{EventRegisters, Message, MessageSource},
    observe::Event,
    unit::State,
};

impl State {
    pub(super) fn fault_status(&self) -> u32 {
        use fault::*;
        let bit = |on: bool, bit: u32| if on { bit } else { 0 };
        let oldest = self.faults.oldest();
        bit(self.faults.overflowed(), OVERFLOW)
            | bit(oldest.is_some(), PENDING)
            | bit(self.queue.error, QUEUE_ERROR)
            | bit(self.queue.bad_completion.is_some(), COMPLETION_ERROR)
            | bit(self.queue.time_out.is_some(), TIME_OUT)
            | (oldest.unwrap_or(0) as u32) << INDEX_SHIFT
    }

    pub(super) fn clear_fault_status(&mut self, value: u32) -> Then {
        use fault::*;
        if value & OVERFLOW != 0 {
            self.faults.clear_overflow();
        }
        if value & COMPLETION_ERROR != 0 {
            self.queue.bad_completion = None;
        }
        let cleared = |bit: u32| value & bit != 0;
        if cleared(QUEUE_ERROR) {
            self.queue.error = false;
        }
        if cleared(TIME_OUT) {
            self.queue.time_out = None;
        }
        if cleared(QUEUE_ERROR) || cleared(TIME_OUT) {
            self.queue.go_on(Restart::ErrorCleared);
        }
        self.withdraw_if_served();
        self.run_if_inline()
    }

    /// Takes the faults, as software would that reads and clears all records.
    pub(crate) fn take_faults(&mut self) -> crate::fault::Faults {
        let faults = self.faults.take();
        self.withdraw_if_served();
        faults
    }

    /// Changes what the fault status shows, and signals it if nothing was shown before.
    pub(crate) fn report_fault(&mut self, change: impl FnOnce(&mut State)) {
        let silent = self.fault_status() == 0;
        change(self);
        if silent && self.fault_status() != 0 {
            let message = self.registers.fault_event.raise();
            self.send(message);
        }
    }
    pub(crate) fn record_fault(&mut self, record: FaultRecord) {
        self.report_fault(|s| s.faults.record(record));
    }
    pub(super) fn withdraw_if_served(&mut self) {
        if self.fault_status() == 0 {
            self.registers.fault_event.withdraw();
        }
    }

    /// A wait descriptor that asked for it is done (§6.5.2.8).
    pub(crate) fn wait_completed(&mut self) {
        if !core::mem::replace(&mut self.registers.wait_complete, true) {
            let message = self.registers.completion_event.raise();
            self.send(message);
        }
    }
    pub(super) fn clear_wait_complete(&mut self) {
        self.registers.wait_complete = false;
        self.registers.completion_event.withdraw();
    }

    fn send(&mut self, message: Option<Message>) {
        if let Some(message) = message {
            self.stats.messages += 1;
            self.emit(Event::Message(message));
        }
    }

    /// Completion events belong to the queue.
    fn has_event(&self, of: MessageSource) -> bool {
        of == MessageSource::Fault || self.registers.has_queue()
    }
    fn event(&mut self, of: MessageSource) -> (&mut EventRegisters, u32) {
        match of {
            MessageSource::Fault => (&mut self.registers.fault_event, dword::FAULT_EVENT),
            MessageSource::Completion => (
                &mut self.registers.completion_event,
                dword::COMPLETION_EVENT,
            ),
        }
    }
    pub(super) fn event_word(&self, of: MessageSource, at: u32) -> u32 {
        let (event, first) = match of {
            MessageSource::Fault => (&self.registers.fault_event, dword::FAULT_EVENT),
            MessageSource::Completion => {
                (&self.registers.completion_event, dword::COMPLETION_EVENT)
            }
        };
        match self.has_event(of) {
            true => event.read((at - first) / 4),
            false => 0,
        }
    }
    pub(super) fn set_event_word(&mut self, of: MessageSource, at: u32, value: u32) {
        if self.has_event(of) {
            let (event, first) = self.event(of);
            let message = event.write((at - first) / 4, value);
            self.send(message);
        }
    }
}
