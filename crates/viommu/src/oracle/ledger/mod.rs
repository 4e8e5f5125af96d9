// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the oracle remembers, and its verdicts.

mod ats;
mod frames;
mod judge;
mod modes;
mod space;
mod summary;
#[cfg(test)]
mod tests;

pub use summary::{Bounds, Deadline, Exposure, Property, Summary, Violation};

use super::named;
use crate::{
    fault::FaultReason,
    invalidation::Selection,
    observe::{Access, AccessId, InvalidationId},
};
use ats::HalfFlushed;
use frames::{FrameUse, Kept, keep};
use ioatlas_dma::units::*;
use judge::Undecided;
use modes::Modes;
use space::{Calls, Coming, FailedMap, Record, Space, Stale};
pub(super) use space::{Slots, Whose};
use std::collections::{BTreeMap, BTreeSet};

/// Tells domains apart for good, whatever id the hardware knows them by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DomainSerial(pub(super) usize);

/// A number of the event clock.
type Event = u64;

/// Where a device is attached.
#[derive(Clone, Copy)]
struct Attachment {
    domain: DomainSerial,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// Attach or detach is in its call: accesses may succeed or fail.
    Changing,
    /// Attach has returned: permitted accesses succeed.
    Attached,
}

#[derive(Clone, Copy)]
struct InFlight {
    began: Event,
    attached: Option<Attachment>,
}

pub(super) struct Ledger {
    clock: Box<dyn Fn() -> TimeNs + Send>,
    events: Event,
    spaces: Vec<Space>,
    devices: BTreeMap<SourceId, Attachment>,
    /// What each frame that was ever allocated is used for.
    frames: BTreeMap<PhysPage, FrameUse>,
    /// Where the frames of typed buffers and of consistent memory were mapped
    /// since they were allocated.
    led_from: BTreeMap<PhysPage, BTreeSet<(DomainSerial, IovaPage)>>,
    /// The frames of bounce buffers that had users, by what the last one's device may do.
    kept: BTreeMap<PhysPage, Kept>,
    /// When each frame that is not free was allocated.
    allocated: BTreeMap<PhysPage, Event>,
    /// By name, hence by age.
    accesses: BTreeMap<AccessId, InFlight>,
    invalidations: BTreeMap<InvalidationId, (Event, Selection)>,
    undecided: Vec<Undecided>,
    /// Devices whose ATS is on.
    ats: BTreeSet<SourceId>,
    half_flushed: Vec<HalfFlushed>,
    device_invalidations: BTreeMap<InvalidationId, (Event, (SourceId, IovaRange))>,
    seen: Summary,
}

/// Violations kept word for word.
const KEPT: usize = 100;

impl Ledger {
    pub fn new(clock: Box<dyn Fn() -> TimeNs + Send>) -> Self {
        Ledger {
            clock,
            events: 0,
            spaces: Vec::new(),
            devices: BTreeMap::new(),
            frames: BTreeMap::new(),
            led_from: BTreeMap::new(),
            kept: BTreeMap::new(),
            allocated: BTreeMap::new(),
            accesses: BTreeMap::new(),
            invalidations: BTreeMap::new(),
            undecided: Vec::new(),
            ats: BTreeSet::new(),
            half_flushed: Vec::new(),
            device_invalidations: BTreeMap::new(),
            seen: Summary::default(),
        }
    }

    /// The next number of the event clock.
    pub fn now(&mut self) -> Event {
        self.events += 1;
        self.events
    }

    pub fn violation(&mut self, property: Property, text: String) {
        self.seen.violation_count += 1;
        if self.seen.violations.len() < KEPT {
            self.seen.violations.push(Violation { property, text });
        }
    }

    pub fn summary(&mut self) -> Summary {
        let mut seen = self.seen.clone();
        for open in &self.undecided {
            seen.violation_count += 1;
            seen.violations.push(Violation {
                property: Property::P9,
                text: format!("{} reached {}, which no mapping names", open.page, open.to),
            });
        }
        // what is stale at the end counts with its exposure so far
        let now = (self.clock)();
        for space in &self.spaces {
            for stale in space.stale.values() {
                let exposure = space.exposure(stale, now);
                seen.exposure.unmaps = seen.exposure.unmaps.max(exposure.unmaps);
                seen.exposure.time = seen.exposure.time.max(exposure.time);
                if let Some(text) = space.outside_window(stale, exposure) {
                    let property = Property::P2;
                    seen.violation_count += 1;
                    seen.violations.push(Violation { property, text });
                }
            }
        }
        seen
    }

    pub fn add_domain(
        &mut self,
        id: DomainId,
        bounds: Bounds,
        shared: Option<IovaRange>,
    ) -> DomainSerial {
        let flushed = self.now();
        self.spaces.push(Space {
            id,
            bounds,
            shared,
            bounces: None,
            modes: Modes::default(),
            pages: BTreeMap::new(),
            stale: BTreeMap::new(),
            flushed,
            flushed_pages: BTreeMap::new(),
            maps_in_progress: BTreeMap::new(),
            last_maps: [0; 2],
            failed_maps: Vec::new(),
            unmaps: 0,
            calls: Calls::default(),
            tick_calls: Calls::default(),
            ticked: None,
        });
        DomainSerial(self.spaces.len() - 1)
    }

    /// A map of a caller's `list` is called that lets devices do what `perm` says.
    pub fn map_called(&mut self, domain: DomainSerial, perm: Perm, list: &[PhysRange]) -> Event {
        let now = self.now();
        let list = list.to_vec();
        let space = &mut self.spaces[domain.0];
        space.calls.called(now);
        space.maps_in_progress.insert(now, Coming { perm, list });
        now
    }

    pub fn map_failed(
        &mut self,
        domain: DomainSerial,
        called: Event,
        pages: Option<Vec<PhysPage>>,
        perm: Perm,
    ) {
        let returned = self.now();
        let oldest = self.accesses.values().next().map_or(returned, |a| a.began);
        let space = &mut self.spaces[domain.0];
        space.map_ended(called, perm, returned);
        // what can explain no access any more is forgotten
        let (flushed, bounds) = (space.flushed, space.bounds);
        space.failed_maps.retain(|failed| {
            failed.returned >= oldest || bounds != Bounds::Strict && failed.returned >= flushed
        });
        space.failed_maps.push(FailedMap {
            called,
            returned,
            pages,
            perm,
        });
        self.decide();
    }

    pub fn map_returned(
        &mut self,
        domain: DomainSerial,
        called: Event,
        first: IovaPage,
        pages: impl Iterator<Item = PhysPage>,
        perm: Perm,
    ) {
        let iova = |nth: usize| IovaPage(first.0 + nth as u64);
        let pages = pages.enumerate();
        let pages = pages.map(|(nth, to)| (iova(nth), to, Whose::Theirs));
        self.map_returned_of(domain, called, pages, perm);
    }

    /// The same of pages that need not adjoin, with whose memory each of them is.
    pub fn map_returned_of(
        &mut self,
        domain: DomainSerial,
        called: Event,
        pages: impl Iterator<Item = (IovaPage, PhysPage, Whose)>,
        perm: Perm,
    ) {
        let now = self.now();
        let space = &mut self.spaces[domain.0];
        space.map_ended(called, perm, now);
        let (slots, users) = (space.bounces, perm);
        for (page, to, whose) in pages {
            let perm = match (whose, slots) {
                (Whose::Own, Some(Slots::BothWays)) => Perm::ReadWrite,
                _ => users,
            };
            match whose {
                Whose::Own => self.check_own(domain, page, to),
                Whose::Theirs => self.led_to_buffer(domain, page, to),
            }
            self.check_reuse(domain, page, to, perm);
            let oldest = self.accesses.values().next().map_or(now, |a| a.began);
            let space = &mut self.spaces[domain.0];
            let records = space.pages.entry(page).or_default();
            // what ended before any access in flight began can explain no access any more
            records.retain(|r| r.unmap_returned.is_none_or(|end| end >= oldest));
            records.push(Record {
                to,
                perm,
                whose,
                map_called: called,
                map_returned: now,
                unmap_called: None,
                unmap_returned: None,
            });
            space.stale.remove(&page);
        }
        self.decide();
    }

    /// P3: an invalidation that began after the page's last unmap is complete, or the page may be
    /// shared and leads where it led.
    fn check_reuse(&mut self, domain: DomainSerial, page: IovaPage, to: PhysPage, perm: Perm) {
        let space = &self.spaces[domain.0];
        let (shares, flushed) = (space.shares(page), space.flushed_since(page));
        let records = space.pages.get(&page).into_iter().flatten();
        // a slot is its next user's once the unmap of the last has given it back, which is before
        // that returns
        let given = |r: &&Record| r.whose == Whose::Own && !r.live();
        let mut others = records.filter(|r| !(given(r) || shares && r.same(to, perm)));
        let Some(last) = others.next_back() else {
            return;
        };
        let (to, unmapped) = (last.to, last.unmap_called);
        match unmapped {
            None => self.violation(
                Property::P3,
                format!("{page} was handed out while it is mapped to {to}"),
            ),
            Some(called) if flushed < called => self.violation(
                Property::P3,
                format!("{page} was handed out again before it was flushed"),
            ),
            Some(_) => {}
        }
    }

    /// A call begins that may retire what no mapping names, as a map that fails does.
    pub fn retiring(&mut self, domain: DomainSerial) {
        let now = self.now();
        self.spaces[domain.0].calls.called(now);
    }

    pub fn retired(&mut self, domain: DomainSerial) {
        self.spaces[domain.0].calls.returned();
    }

    /// Names the call, for its return. Of mappings that share a page the newest is ended: while
    /// they all live, they are the same.
    pub fn unmap_called(&mut self, domain: DomainSerial, range: IovaRange) -> Event {
        let now = self.now();
        let space = &mut self.spaces[domain.0];
        space.calls.called(now);
        for page in range.iter() {
            let records = space.pages.get_mut(&page).into_iter().flatten();
            if let Some(newest) = records.rev().find(|record| record.live()) {
                newest.unmap_called = Some(now);
            }
        }
        now
    }

    /// Nothing is promised of its pages: they stay as if they were in the call.
    pub fn unmap_failed(&mut self, domain: DomainSerial) {
        self.spaces[domain.0].calls.returned();
        self.lost(domain);
    }

    /// An invalidation failed, and it was said: what waited for one is quarantined,
    /// and flushed by none.
    pub fn lost(&mut self, domain: DomainSerial) {
        self.spaces[domain.0].stale.clear();
    }

    /// The call changed nothing.
    pub fn unmap_refused(&mut self, domain: DomainSerial, range: IovaRange, called: Event) {
        let space = &mut self.spaces[domain.0];
        space.calls.returned();
        for page in range.iter() {
            for record in space.pages.get_mut(&page).into_iter().flatten() {
                record.unmap_called = record.unmap_called.filter(|at| *at != called);
            }
        }
    }

    /// By now its pages may belong to others: only the records that were current at
    /// the call are ended.
    pub fn unmap_returned(&mut self, domain: DomainSerial, range: IovaRange, called: Event) {
        let now = self.now();
        let at = (self.clock)();
        let space = &mut self.spaces[domain.0];
        space.calls.returned();
        if space.retires(range, called) {
            space.unmaps += 1;
        }
        let (unmaps_before, ticked) = (space.unmaps, space.ticked);
        let mut unflushed = Vec::new();
        for page in range.iter() {
            let (flushed, shares) = (space.flushed_since(page), space.shares(page));
            let Some(records) = space.pages.get_mut(&page) else {
                continue;
            };
            let ours = |record: &Record| record.unmap_called == Some(called);
            let Some(record) = records.iter_mut().rfind(|record| ours(record)) else {
                continue;
            };
            record.unmap_returned = Some(now);
            if record.whose == Whose::Own {
                // what is kept for the next user may be reached: as the frame it is, no longer as
                // this one's
                let (to, perm, mapped) = (record.to, record.perm, record.map_returned);
                // in the call it may have been freed, and be another's
                let same = self.allocated.get(&to).is_some_and(|at| *at < mapped);
                if same {
                    keep(&mut self.kept, to, perm, called);
                }
                records.retain(|record| !ours(record));
                continue;
            }
            let last = match shares {
                true => records.iter().all(|record| record.unmap_returned.is_some()),
                false => records.last().is_some_and(ours),
            };
            let unmap_called = records.iter().filter_map(|record| record.unmap_called);
            let unmap_called = unmap_called.max().unwrap_or(called);
            if last && flushed < unmap_called {
                let stale = Stale {
                    unmap_called,
                    unmap_returned: now,
                    returned_at: at,
                    ticked,
                    unmaps_before,
                    shared: shares,
                };
                space.stale.insert(page, stale);
                unflushed.push((page, stale));
            }
        }
        if self.spaces[domain.0].modes.is_strict() {
            for (page, stale) in unflushed {
                self.check_strict(
                    domain,
                    page,
                    &stale,
                    "was unmapped after the switch to strict",
                );
            }
        }
    }

    /// P1, of a page that `was` unmapped and not flushed, in a domain that is strict now. (Where
    /// a policy is strict, accesses tell.)
    fn check_strict(&mut self, domain: DomainSerial, page: IovaPage, stale: &Stale, was: &str) {
        if self.spaces[domain.0].is_unshared(stale) {
            let text = format!("{page} {was}, and is not flushed");
            self.violation(Property::P1, text);
        }
    }

    pub fn invalidation_began(&mut self, id: InvalidationId, selection: Selection) {
        let now = self.now();
        self.invalidations.insert(id, (now, selection));
    }

    pub fn invalidation_completed(&mut self, id: InvalidationId) {
        if let Some((began, (source, pages))) = self.device_invalidations.remove(&id) {
            return self.device_flushed(source, pages, began);
        }
        let Some((began, selection)) = self.invalidations.remove(&id) else {
            return; // of the context cache
        };
        self.seen.invalidations += 1;
        let (id, pages) = named(selection);
        for at in 0..self.spaces.len() {
            if id.is_none_or(|id| id == self.spaces[at].id) {
                self.iotlb_flushed(at, pages, began);
            }
        }
    }

    /// No cache holds `pages` of the domain that were unmapped before `began` (`None`: all pages).
    fn flushed(&mut self, at: usize, pages: Option<IovaRange>, began: Event) {
        let now = (self.clock)();
        let space = &mut self.spaces[at];
        let flushed = match pages {
            None => space.flush_all(began),
            Some(range) => space.flush_pages(range, began),
        };
        for stale in flushed {
            let exposure = self.spaces[at].exposure(&stale, now);
            self.seen.exposure.unmaps = self.seen.exposure.unmaps.max(exposure.unmaps);
            self.seen.exposure.time = self.seen.exposure.time.max(exposure.time);
            self.check_window(at, &stale, now);
        }
    }

    /// P2, of a page that was stale until `now`.
    fn check_window(&mut self, space: usize, stale: &Stale, now: TimeNs) {
        let space = &self.spaces[space];
        if let Some(text) = space.outside_window(stale, space.exposure(stale, now)) {
            self.violation(Property::P2, text);
        }
    }

    /// A tick of the domain is called, at `now`.
    pub fn tick_called(&mut self, domain: DomainSerial, now: TimeNs) -> Event {
        let called = self.now();
        let space = &mut self.spaces[domain.0];
        space.tick_calls.called(called);
        space.ticked = space.ticked.max(Some(now));
        called
    }

    /// It has returned: which pages it should have flushed, and by which window. Where another was
    /// in its call, that one may be at it still.
    pub fn tick_returned(
        &mut self,
        domain: DomainSerial,
        called: Event,
        now: TimeNs,
    ) -> Vec<(IovaPage, TimeNs)> {
        let space = &mut self.spaces[domain.0];
        space.tick_calls.returned();
        match space.tick_calls.alone_since(called) {
            true => space.missed(called, now),
            false => Vec::new(),
        }
    }

    /// P2, of a stale page that has just been reached.
    fn check_reached(&mut self, space: usize, page: IovaPage) {
        let now = (self.clock)();
        if let Some(stale) = self.spaces[space].stale.get(&page).copied() {
            self.check_window(space, &stale, now);
        }
    }

    pub fn attaching(&mut self, device: SourceId, domain: DomainSerial, stage: Stage) {
        self.devices.insert(device, Attachment { domain, stage });
    }

    pub fn detached(&mut self, device: SourceId) {
        self.devices.remove(&device);
        self.waits_no_longer(device);
    }

    pub fn access_began(&mut self, id: AccessId, device: SourceId) {
        let began = self.now();
        let attached = self.devices.get(&device).copied();
        self.accesses.insert(id, InFlight { began, attached });
    }

    /// An access ended without moving data: nothing to check.
    pub fn access_dropped(&mut self, id: AccessId) {
        self.accesses.remove(&id);
    }

    /// `leaf`: how many pages the leaf covers that led `to` there.
    pub fn access_succeeded(
        &mut self,
        access: &Access,
        tag: DomainId,
        to: PhysPage,
        leaf: PageCount,
    ) {
        let ended = self.now();
        let Some(InFlight { began, .. }) = self.accesses.remove(&access.id) else {
            return; // begun before the oracle watched
        };
        self.seen.accesses += 1;
        self.seen.succeeded += 1;
        let page = access.page;
        let Some(now) = self.devices.get(&access.source) else {
            let text = format!("{}, which is not attached, reached {to}", access.source);
            return self.violation(Property::P8, text);
        };
        let domain = now.domain;
        let id = self.spaces[domain.0].id;
        if id != tag {
            let text = format!("a device of domain {id} was served at {page} by domain {tag}");
            return self.violation(Property::P8, text);
        }
        self.check_led(domain, page, to);
        let flushed = self.spaces[domain.0].flushed;
        let strictness = self.spaces[domain.0].modes.strictness();
        let own = self.own(domain, page, to, (access.kind, began));
        let within = leaf.0.saturating_sub(1);
        let offset = page.0 & within;
        for at in BTreeSet::from([0, offset, within]) {
            self.undecided.push(Undecided {
                domain,
                page: IovaPage(page.0 - offset + at),
                kind: access.kind,
                to: PhysPage((to.0 + at).saturating_sub(offset)),
                began,
                ended,
                flushed,
                strictness,
                own,
            });
        }
        self.decide();
    }

    pub fn access_faulted(&mut self, access: &Access, reason: FaultReason) {
        let Some(InFlight { began, attached }) = self.accesses.remove(&access.id) else {
            return;
        };
        self.seen.accesses += 1;
        let still = self.devices.get(&access.source);
        let all_along =
            [attached.as_ref(), still].map(|at| at.is_some_and(|at| at.stage == Stage::Attached));
        let (Some(at), [true, true]) = (attached, all_along) else {
            return;
        };
        let records = self.spaces[at.domain.0].pages.get(&access.page);
        let live = records
            .into_iter()
            .flatten()
            .find(|r| r.map_returned < began && r.live() && r.perm.allows(access.kind));
        if let Some(record) = live {
            let text = format!(
                "{:?} of {} failed ({reason}), although it is mapped to {} for {:?}",
                access.kind, access.page, record.to, record.perm
            );
            self.violation(Property::P14, text);
        }
    }
}
