// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the platform's frames are used for: which are free (P4), and which are bounce buffers.
//!
//! A bounce buffer stays mapped from user to user, and mappings name only what their users have of it. So an access that no mapping explains is fine if it went
//! to a frame that the domain allocated, that no walk reads, and that has been reached in this place only since it was allocated: a frame that goes
//! elsewhere goes home first, through a flush. What its bytes are is not seen here (P7).

use super::{DomainSerial, Ledger, summary::Property};
use ioatlas_dma::units::*;
use std::collections::btree_map::Entry;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FrameUse {
    Free,
    /// Allocated, and seen nowhere yet.
    Unseen,
    /// Of translations.
    Table,
    /// Devices reach it there.
    At(DomainSerial, IovaPage),
}

impl Ledger {
    /// From now on the domain may have bounce buffers.
    pub fn bounces(&mut self, domain: DomainSerial) {
        self.spaces[domain.0].bounces = true;
    }

    /// Whether what `page` leads to is a bounce buffer, that was reached nowhere else before.
    pub(super) fn is_own(&mut self, domain: DomainSerial, page: IovaPage, to: PhysPage) -> bool {
        if !self.spaces[domain.0].bounces {
            return false;
        }
        let here = FrameUse::At(domain, page);
        match self.frames.entry(to) {
            Entry::Occupied(mut seen) if *seen.get() == FrameUse::Unseen => {
                seen.insert(here);
                true
            }
            Entry::Occupied(seen) => *seen.get() == here,
            Entry::Vacant(_) => false, // somebody's buffer
        }
    }

    /// A map has returned that leads there.
    pub(super) fn check_own(&mut self, domain: DomainSerial, page: IovaPage, to: PhysPage) {
        if !self.is_own(domain, page, to) {
            let known = self.frames.get(&to);
            let text = format!(
                "{page} was mapped to {to}, neither the buffer nor one of its own: {known:?}"
            );
            self.violation(Property::P9, text);
        }
    }

    pub fn frame_allocated(&mut self, frame: PhysPage) {
        self.frames.insert(frame, FrameUse::Unseen);
    }

    /// A walk will read the table in `frame`.
    pub fn pointed(&mut self, frame: PhysPage) {
        match self.frames.get_mut(&frame) {
            Some(FrameUse::Free) => {
                let text = format!("a walk reads frame {frame}, which is free");
                self.violation(Property::P4, text);
            }
            Some(seen) => *seen = FrameUse::Table,
            None => {}
        }
    }

    pub fn frame_freed(&mut self, frame: PhysPage, held: bool) {
        self.seen.frames_freed += 1;
        self.frames.insert(frame, FrameUse::Free);
        if held {
            self.violation(
                Property::P4,
                format!("frame {frame} was freed while a walk cache or a walk points to it"),
            );
        }
    }
}
