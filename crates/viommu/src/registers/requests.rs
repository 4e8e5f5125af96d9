// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Invalidations that are not in the queue: by CCMD and IOTLB (VT-d 4.1 §6.5.1), and that of SRTP
//! where ESRTPS is offered.
//!
//! A request by register is the descriptor that it stands for, put together and decoded like one
//! from the queue. A request that no descriptor says is ignored: its command bit drops, and the
//! granularity reported is 0. Page-selective where there is no PSI is done for the whole domain,
//! and says so.
//!
//! **While the queue is enabled, requests by register are not taken**, and ICC and IVT stay 1 for
//! ever: software that waits finds out. §6.5 forbids to use both; QEMU's unit leaves the bits
//! likewise.
//!
//! **One drain at a time**: an access in flight blocks either the queue or one request. The queue
//! does not go on while a request drains; an SRTP that comes while something drains begins its own
//! drain after that. A context-cache request drains nothing, as its descriptor does not.

use super::layout::*;
use crate::{
    descriptor::{Descriptor, decode},
    invalidation::{ContextSelection, Drain, Invalidation, Selection},
    observe::{Event, InvalidationId},
    unit::State,
};
use core::mem::take;
use ioatlas_dma::invalidation::Caches;

/// CCMD (§11.4.6.1): ICC 63, CIRG 62:61, CAIG 60:59 (read only), FM 33:32, SID 31:16, DID 15:0.
mod ccmd {
    pub(super) const BUSY: u64 = 1 << 63;
    pub(super) const ASKED: u32 = 61;
    pub(super) const GRANTED: u32 = 59;
    pub(super) const WRITABLE: u64 = BUSY | 0b11 << ASKED | 0x3_ffff_ffff;
}
/// IOTLB (§11.4.6.2): IVT 63, IIRG 61:60, IAIG 58:57 (read only), DR 49, DW 48, DID 47:32.
mod iotlb {
    pub(super) const BUSY: u64 = 1 << 63;
    pub(super) const ASKED: u32 = 60;
    pub(super) const GRANTED: u32 = 57;
    pub(super) const WRITABLE: u64 = BUSY | 0b11 << ASKED | 0x3_ffff << 32;
}
/// Granularities of IOTLB requests.
const DOMAIN: u64 = 2;
const PAGES: u64 = 3;

/// Registers of requests, and what they wait for.
#[derive(Default)]
pub(crate) struct Requests {
    context: u64,
    address: u64,
    iotlb: u64,
    draining: Option<Draining>,
    /// An SRTP waits for its turn to drain.
    root_waits: bool,
    /// So does an IOTLB request that came after it.
    iotlb_waits: bool,
}

struct Draining {
    id: InvalidationId,
    pending: usize,
    of: Asked,
}

#[derive(Clone, Copy)]
enum Asked {
    /// IOTLB, which will report this granularity.
    Iotlb(u64),
    /// A new root table (SRTP).
    Root,
}

fn field(word: u64, low: u32, width: u32) -> u64 {
    word >> low & ((1 << width) - 1)
}

impl Requests {
    pub(super) fn context(&self) -> u64 {
        self.context
    }
    pub(super) fn iotlb(&self) -> u64 {
        self.iotlb
    }
    /// IVA (§11.4.6.3): ADDR 63:12, IH 6, AM 5:0; write only.
    pub(super) fn set_address(&mut self, at: u32, value: u32) {
        set_half(&mut self.address, at, value);
        self.address &= !0xf80;
    }
    /// Whether the queue has to wait.
    pub(crate) fn draining(&self) -> bool {
        self.draining.is_some() || self.root_waits || self.iotlb_waits
    }
    /// The last IOTLB request is not done.
    fn iotlb_drains(&self) -> bool {
        let of = self.draining.as_ref().map(|d| d.of);
        self.iotlb_waits || matches!(of, Some(Asked::Iotlb(_)))
    }
    /// Accesses that a request waits for.
    pub(crate) fn pending(&self) -> usize {
        self.draining.as_ref().map_or(0, |d| d.pending)
    }
}

impl State {
    pub(super) fn write_context_command(&mut self, at: u32, value: u32) {
        let register = &mut self.registers.requests.context;
        let granted = *register & 0b11 << ccmd::GRANTED;
        set_half(register, at, value);
        *register = *register & ccmd::WRITABLE | granted;
        let asked = *register;
        if at & 4 == 0 || asked & ccmd::BUSY == 0 || self.queue.enabled {
            return;
        }
        let granularity = field(asked, ccmd::ASKED, 2);
        let low = 1
            | granularity << 4
            | field(asked, 0, 16) << 16
            | field(asked, 16, 16) << 32
            | field(asked, 32, 2) << 48;
        let done = match decode(low, 0, &self.features) {
            Ok(Descriptor::Invalidate(what)) => {
                let (id, _) = self.begin_invalidation(what);
                self.emit(Event::InvalidationCompleted { id });
                granularity
            }
            _ => 0,
        };
        let register = &mut self.registers.requests.context;
        *register = *register & !(ccmd::BUSY | 0b11 << ccmd::GRANTED) | done << ccmd::GRANTED;
    }

    pub(super) fn write_iotlb_command(&mut self, at: u32, value: u32) {
        let requests = &mut self.registers.requests;
        if requests.iotlb_drains() {
            return; // IVT is 1: software may not ask again before it drops
        }
        let granted = requests.iotlb & 0b11 << iotlb::GRANTED;
        set_half(&mut requests.iotlb, at, value);
        requests.iotlb = requests.iotlb & iotlb::WRITABLE | granted;
        if at & 4 != 0 && requests.iotlb & iotlb::BUSY != 0 && !self.queue.enabled {
            requests.iotlb_waits = true;
            self.begin_waiting_request();
        }
    }

    /// Does what the IOTLB registers say.
    fn begin_iotlb_request(&mut self) {
        let (asked, address) = {
            let requests = &self.registers.requests;
            (requests.iotlb, requests.address)
        };
        let granularity = match field(asked, iotlb::ASKED, 2) {
            PAGES if self.features.page_selective.is_none() => DOMAIN,
            granularity => granularity,
        };
        let low = 2
            | granularity << 4
            | field(asked, 48, 1) << 6
            | field(asked, 49, 1) << 7
            | field(asked, 32, 16) << 16;
        let high = if granularity == PAGES { address } else { 0 };
        match decode(low, high, &self.features) {
            Ok(Descriptor::Invalidate(what)) => self.request(what, Asked::Iotlb(granularity)),
            _ => self.finish_request(Asked::Iotlb(0)),
        }
    }

    /// The flush that SRTP implies.
    pub(super) fn flush_for_root(&mut self) {
        self.registers.requests.root_waits = true;
        self.begin_waiting_request();
    }

    /// Begins what had to wait until nothing else drains.
    pub(crate) fn begin_waiting_request(&mut self) {
        while self.registers.requests.draining.is_none() && !self.queue.draining() {
            let requests = &mut self.registers.requests;
            if take(&mut requests.root_waits) {
                self.begin_root_flush();
            } else if take(&mut requests.iotlb_waits) {
                self.begin_iotlb_request();
            } else {
                break;
            }
        }
    }

    fn begin_root_flush(&mut self) {
        let selection = ContextSelection::Global;
        let (id, _) = self.begin_invalidation(Invalidation::Context { selection });
        self.emit(Event::InvalidationCompleted { id });
        let drain = Drain {
            reads: true,
            writes: true,
        };
        let everything = Invalidation::Iotlb {
            selection: Selection::Global,
            caches: Caches::LeavesAndWalks,
            drain,
        };
        self.request(everything, Asked::Root);
    }

    fn request(&mut self, what: Invalidation, of: Asked) {
        let (id, pending) = self.begin_invalidation(what);
        if pending > 0 {
            self.registers.requests.draining = Some(Draining { id, pending, of });
        } else {
            self.emit(Event::InvalidationCompleted { id });
            self.finish_request(of);
        }
    }

    fn finish_request(&mut self, of: Asked) {
        match of {
            Asked::Iotlb(granularity) => {
                let register = &mut self.registers.requests.iotlb;
                *register = *register & !(iotlb::BUSY | 0b11 << iotlb::GRANTED)
                    | granularity << iotlb::GRANTED;
            }
            // a later SRTP is not done yet
            Asked::Root if self.registers.requests.root_waits => {}
            Asked::Root => self.root_is_set(),
        }
    }

    /// One of the accesses that a request waits for has ended. `false`: no request waits.
    pub(crate) fn request_drained_one(&mut self) -> bool {
        let Some(mut draining) = self.registers.requests.draining.take() else {
            return false;
        };
        draining.pending -= 1;
        if draining.pending > 0 {
            self.registers.requests.draining = Some(draining);
        } else {
            self.emit(Event::InvalidationCompleted { id: draining.id });
            self.finish_request(draining.of);
            self.begin_waiting_request();
        }
        true
    }
}
