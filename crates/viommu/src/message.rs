// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The interrupts that the unit itself sends: fault events (VT-d 4.1 §7.3) and invalidation
//! completion events (§6.5.2.8).
//!
//! Both have the same four registers: control (IM mask, IP pending), data, address, upper address.
//! What is to be signalled while the mask is set stays pending, and is sent when the mask is
//! cleared, or is taken back when software has cleared the status that it announces. A message is
//! told to the unit's observer ([`Event::Message`](crate::observe::Event::Message)); nothing else
//! could send it on.

use core::fmt;

/// Which registers sent a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageSource {
    /// FECTL: a fault was recorded, or the queue is in error.
    Fault,
    /// IECTL: a wait descriptor that asked for it is done.
    Completion,
}

/// A message-signalled interrupt: a 32-bit write on the bus.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    pub source: MessageSource,
    /// Where to, as software programmed it; never remapped by this unit.
    pub address: u64,
    pub data: u32,
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.source {
            MessageSource::Fault => "fault",
            MessageSource::Completion => "completion",
        };
        write!(f, "{what} message {:#x} to {:#x}", self.data, self.address)
    }
}

const MASK: u32 = 1 << 31;
const PENDING: u32 = 1 << 30;

/// The four registers of one event.
pub(crate) struct EventRegisters {
    source: MessageSource,
    masked: bool,
    pending: bool,
    data: u32,
    low: u32,
    high: u32,
}

impl EventRegisters {
    /// After reset: masked (§11.4.7.2).
    pub(crate) fn new(source: MessageSource) -> Self {
        EventRegisters {
            source,
            masked: true,
            pending: false,
            data: 0,
            low: 0,
            high: 0,
        }
    }
    /// The register that is `index` doublewords after the control register.
    pub(crate) fn read(&self, index: u32) -> u32 {
        let bit = |on: bool, bit: u32| if on { bit } else { 0 };
        match index {
            0 => bit(self.masked, MASK) | bit(self.pending, PENDING),
            1 => self.data,
            2 => self.low,
            _ => self.high,
        }
    }
    /// Writes it; what was pending may go out.
    pub(crate) fn write(&mut self, index: u32, value: u32) -> Option<Message> {
        match index {
            0 => {
                self.masked = value & MASK != 0;
                if !self.masked && core::mem::take(&mut self.pending) {
                    return Some(self.message());
                }
            }
            1 => self.data = value,
            2 => self.low = value & !0b11,
            _ => self.high = value,
        }
        None
    }
    /// There is something to signal.
    pub(crate) fn raise(&mut self) -> Option<Message> {
        self.pending = self.masked;
        (!self.masked).then(|| self.message())
    }
    /// Software has seen it without being told.
    pub(crate) fn withdraw(&mut self) {
        self.pending = false;
    }
    fn message(&self) -> Message {
        Message {
            source: self.source,
            address: u64::from(self.high) << 32 | u64::from(self.low),
            data: self.data,
        }
    }
}
