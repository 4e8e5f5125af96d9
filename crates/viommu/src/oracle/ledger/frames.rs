// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the platform's frames are used for: which are free (P4), which are bounce buffers, and to
//! which mappings lead that the oracle knows to be of the platform's memory.
//!
//! A bounce buffer stays mapped from user to user, and mappings name only what their users have of
//! it. So an access that no mapping explains is fine if it went to a frame that the domain
//! allocated, that no walk reads, and that has been reached in this place only since it was
//! allocated: a frame that goes elsewhere is freed first, through a flush. What its bytes are is
//! not seen here (P7).

use super::{DomainSerial, Event, Ledger, Slots, space::Space, summary::Property};
use crate::oracle::Holders;
use ioatlas_dma::units::*;
use std::collections::{BTreeMap, btree_map::Entry};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FrameUse {
    Free,
    /// Allocated, and seen nowhere yet.
    Unseen,
    /// A table of translations.
    Table,
    /// Of a typed buffer, wherever that is mapped.
    Buffer,
    /// Devices reach it there.
    At(DomainSerial, IovaPage),
}

/// What the last user of a bounce buffer let its device do with a frame of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    perm: Perm,
    /// When that user's unmap was called.
    since: Event,
}

/// A user of the frame is going, whose unmap was `called`. The next one may have
/// come, and gone, already.
pub(super) fn keep(kept: &mut BTreeMap<PhysPage, Kept>, to: PhysPage, perm: Perm, called: Event) {
    if kept.get(&to).is_none_or(|kept| kept.since < called) {
        let since = called;
        kept.insert(to, Kept { perm, since });
    }
}

/// An access, by the frame that it went to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Own {
    /// To no bounce buffer, or to one that was reached elsewhere before.
    No,
    /// To a bounce buffer in its one place, which may let the device do this. Its frame was
    /// allocated at `since`: what named the number before that meant another.
    Allowed { since: Event },
    /// The same, but its last user let the device do no more than that, and it is
    /// not another user's yet.
    Kept { perm: Perm, since: Event },
}

impl Space {
    /// Why a device may reach `frame` at `page`, by the mappings of the page.
    fn still_leads(&self, page: IovaPage, frame: PhysPage) -> Option<String> {
        let flushed = self.flushed_since(page);
        let mut records = self.pages.get(&page)?.iter();
        let why = records.find_map(|record| match record.unmap_called {
            _ if record.to != frame => None,
            None => Some("is mapped to it"),
            Some(called) if flushed < called => Some("was unmapped from it and not flushed"),
            Some(_) => None,
        })?;
        Some(format!("page {page} of domain {} {why}", self.id))
    }
}

impl Ledger {
    /// From now on the domain may have bounce buffers.
    pub fn bounces(&mut self, domain: DomainSerial, slots: Slots) {
        self.spaces[domain.0].bounces = Some(slots);
    }

    /// What an access of `kind` that `began` then and ends now is by its frame. A buffer's
    /// permission changes in a map that allows the other kind, after a flush of the buffer; without
    /// both of these it is its last user's. Of an access that began before that user was gone this
    /// says nothing: it may have gone to the buffer when it was another's, or kept for that one.
    pub(super) fn own(
        &mut self,
        domain: DomainSerial,
        page: IovaPage,
        to: PhysPage,
        (kind, began): (AccessKind, Event),
    ) -> Own {
        if !self.is_own(domain, page, to) {
            return Own::No;
        }
        let space = &self.spaces[domain.0];
        let since = self.allocated.get(&to).copied().unwrap_or(0);
        match self.kept.get(&to) {
            Some(kept)
                if kept.since < began
                    && !kept.perm.allows(kind)
                    && (space.flushed_since(page) <= kept.since
                        || !space.mapped_since(kind, kept.since)) =>
            {
                let perm = kept.perm;
                Own::Kept { perm, since }
            }
            _ => Own::Allowed { since },
        }
    }

    /// Whether what `page` leads to is a bounce buffer, that was reached nowhere else before.
    pub(super) fn is_own(&mut self, domain: DomainSerial, page: IovaPage, to: PhysPage) -> bool {
        if self.spaces[domain.0].bounces.is_none() {
            return false;
        }
        let here = FrameUse::At(domain, page);
        match self.frames.entry(to) {
            Entry::Occupied(mut seen) if *seen.get() == FrameUse::Unseen => {
                seen.insert(here);
                true
            }
            Entry::Occupied(seen) => *seen.get() == here,
            Entry::Vacant(_) => false, // a caller's buffer
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

    /// The frame is allocated now, perhaps a table soon, and was led to by `holders` just before.
    pub fn frame_allocated(&mut self, frame: PhysPage, holders: &Holders) {
        let why = self.led_to(frame, holders);
        let now = self.now();
        self.allocated.insert(frame, now);
        self.frames.insert(frame, FrameUse::Unseen);
        if let Some(why) = why {
            let text = format!("frame {frame} was allocated while {why}");
            self.violation(Property::P4, text);
        }
    }

    /// A walk will read the table in `frame`.
    pub fn pointed(&mut self, frame: PhysPage) {
        match self.frames.get_mut(&frame) {
            Some(FrameUse::Free) => {
                let text = format!("a walk reads frame {frame}, which is free");
                self.violation(Property::P4, text);
            }
            Some(FrameUse::Table) | None => {}
            Some(seen) => {
                *seen = FrameUse::Table;
                if let Some(why) = self.still_leads(frame) {
                    let text = format!("frame {frame} became a table while {why}");
                    self.violation(Property::P4, text);
                }
            }
        }
    }

    /// A typed buffer has the frame.
    pub fn buffer_made(&mut self, frame: PhysPage) {
        if let Some(seen) = self.frames.get_mut(&frame) {
            *seen = FrameUse::Buffer;
        }
    }

    /// A map of consistent memory has returned: where it is, and which frames, unless it failed.
    pub fn memory_returned(
        &mut self,
        domain: DomainSerial,
        called: Event,
        made: Option<(IovaPage, Vec<PhysPage>)>,
    ) {
        let perm = Perm::ReadWrite;
        let Some((first, frames)) = made else {
            // which frames it had is not known
            return self.map_failed(domain, called, None, perm);
        };
        self.map_returned(domain, called, first, frames.iter().copied(), perm);
        self.led_from_on(domain, first, frames);
    }

    /// Frames have been mapped in a row.
    pub fn led_from_on(
        &mut self,
        domain: DomainSerial,
        first: IovaPage,
        frames: impl IntoIterator<Item = PhysPage>,
    ) {
        for (page, frame) in (first.0..).zip(frames) {
            self.led(domain, IovaPage(page), frame);
        }
    }

    /// Consistent memory is mapped, or a page of a typed buffer may be: `page` leads to the frame.
    pub fn led(&mut self, domain: DomainSerial, page: IovaPage, frame: PhysPage) {
        self.led_from
            .entry(frame)
            .or_default()
            .insert((domain, page));
    }

    /// The same, if it is of a typed buffer.
    pub(super) fn led_to_buffer(&mut self, domain: DomainSerial, page: IovaPage, frame: PhysPage) {
        if self.frames.get(&frame) == Some(&FrameUse::Buffer) {
            self.led(domain, page, frame);
        }
    }

    /// Whether `frame`, that a device has just reached by `page`, was freed too early.
    pub(super) fn check_led(&mut self, domain: DomainSerial, page: IovaPage, frame: PhysPage) {
        let places = self.led_from.get(&frame);
        if !places.is_some_and(|places| places.contains(&(domain, page))) {
            return;
        }
        if let Some(used @ (FrameUse::Free | FrameUse::Table)) = self.frames.get(&frame) {
            let text = format!("{page} reached frame {frame} of a buffer, which is {used:?} now");
            self.violation(Property::P4, text);
        }
    }

    /// The mapping by which a device may reach the frame.
    fn still_leads(&self, frame: PhysPage) -> Option<String> {
        let mut places = self.led_from.get(&frame)?.iter();
        places.find_map(|(domain, page)| self.spaces[domain.0].still_leads(*page, frame))
    }

    /// What of a unit leads to the frame, and does not because a caller's page has its number.
    fn led_to(&self, frame: PhysPage, holders: &Holders) -> Option<String> {
        if holders.pointer {
            return Some("a walk cache or a walk points to it".to_owned());
        }
        let any = self.frames.get(&frame) == Some(&FrameUse::Buffer);
        let its = |(id, page): &&(DomainId, IovaPage)| any || !self.is_callers(*id, *page, frame);
        let (id, page) = holders.leaves.iter().find(its)?;
        Some(format!("a cache leads page {page} of domain {id} to it"))
    }

    /// Whether a translation may be of a caller's page that has the frame's number.
    fn is_callers(&self, id: DomainId, page: IovaPage, frame: PhysPage) -> bool {
        // the latest domain of that id; what others map is not reported
        let Some(at) = self.spaces.iter().rposition(|space| space.id == id) else {
            return true;
        };
        let places = self.led_from.get(&frame);
        let led = places.is_some_and(|places| places.contains(&(DomainSerial(at), page)));
        !led && self.spaces[at].may_be_callers(page, frame)
    }

    pub fn frame_freed(&mut self, frame: PhysPage, holders: &Holders) {
        self.seen.frames_freed += 1;
        let led = self.led_to(frame, holders);
        let why = led.or_else(|| self.still_leads(frame));
        self.frames.insert(frame, FrameUse::Free);
        self.kept.remove(&frame);
        self.allocated.remove(&frame);
        match why {
            Some(why) => {
                let text = format!("frame {frame} was freed while {why}");
                self.violation(Property::P4, text);
            }
            // its next user does not matter here
            None => drop(self.led_from.remove(&frame)),
        }
    }
}
