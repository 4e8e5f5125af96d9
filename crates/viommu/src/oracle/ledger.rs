// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the oracle remembers, and its verdicts.

use super::named;
use crate::{
    fault::FaultReason,
    invalidation::Selection,
    observe::{Access, AccessId, InvalidationId},
};
use ioatlas_dma::units::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Tells domains apart for good, whatever id the hardware knows them by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DomainSerial(pub(super) usize);

/// The properties of the safety model, by name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Property {
    /// Strict: no access succeeds after unmap has returned.
    P1,
    /// Deferred: stale accesses succeed within a bounded window only.
    P2,
    /// No IOVA is reused before an invalidation that began after its unmap is complete.
    P3,
    /// No table frame is freed while a cache or a walk may hold a pointer to it.
    P4,
    /// An invalidation completes only after walks that began before it have drained.
    P5,
    /// Permissions.
    P6,
    /// Isolation of domains.
    P8,
    /// A successful access returns what a mapping named at some moment between its start and end.
    P9,
    /// From the return of map until the call of unmap, permitted accesses succeed.
    P14,
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// One violation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Which property.
    pub property: Property,
    /// What happened.
    pub text: String,
}

/// How much staleness a domain's policy allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bounds {
    /// None.
    Strict,
    /// At most so many further unmaps of the domain, and so long.
    Deferred {
        /// Unmaps of the domain after the page's own.
        unmaps: u64,
        /// Nanoseconds of the oracle's clock after the return of the page's unmap.
        time: TimeNs,
    },
}

/// The longest that any page was unmapped and not flushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Exposure {
    /// In further unmaps of the domain.
    pub unmaps: u64,
    /// In nanoseconds of the oracle's clock.
    pub time: TimeNs,
}

/// What was seen.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Accesses checked.
    pub accesses: u64,
    /// Those that succeeded.
    pub succeeded: u64,
    /// Those that succeeded on a page that was unmapped and not flushed, within the window.
    pub stale: u64,
    /// Frames whose freeing was checked.
    pub frames_freed: u64,
    /// Invalidations seen.
    pub invalidations: u64,
    /// The longest exposure of any page.
    pub exposure: Exposure,
    /// What must be empty.
    pub violations: Vec<Violation>,
    /// Violations in all; only the first hundred are kept.
    pub violation_count: u64,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} violations in {} accesses ({} succeeded, {} stale), {} frames freed, {} invalidations",
            self.violation_count,
            self.accesses,
            self.succeeded,
            self.stale,
            self.frames_freed,
            self.invalidations
        )?;
        for violation in &self.violations {
            writeln!(f, "  {}: {}", violation.property, violation.text)?;
        }
        Ok(())
    }
}

/// A number of the event clock.
type Event = u64;

#[derive(Clone, Copy, Debug)]
struct Record {
    to: PhysPage,
    perm: Perm,
    map_called: Event,
    map_returned: Event,
    unmap_called: Option<Event>,
    unmap_returned: Option<Event>,
}

/// A page that is unmapped and may be cached.
#[derive(Clone, Copy, Debug)]
struct Stale {
    unmap_called: Event,
    returned_at: TimeNs,
    unmaps_before: u64,
}

struct Space {
    id: DomainId,
    bounds: Bounds,
    pages: BTreeMap<IovaPage, Vec<Record>>,
    stale: BTreeMap<IovaPage, Stale>,
    /// The latest beginning of an invalidation that is complete: of the whole domain, and of single pages.
    flushed: Event,
    flushed_pages: BTreeMap<IovaPage, Event>,
    maps_in_progress: BTreeSet<Event>,
    failed_maps: Vec<FailedMap>,
    unmaps: u64,
}

/// A map that failed. Nobody learnt its IOVA, but a device that guesses may have reached what was half made.
struct FailedMap {
    called: Event,
    returned: Event,
    /// What it would have mapped, where that is known.
    pages: Option<Vec<PhysPage>>,
    perm: Perm,
}

/// A success that no record explains yet.
struct Undecided {
    domain: DomainSerial,
    page: IovaPage,
    kind: AccessKind,
    to: PhysPage,
    began: Event,
    ended: Event,
    /// When it ended, the latest beginning of a complete invalidation of the whole domain.
    flushed: Event,
}

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
    /// By name, hence by age.
    accesses: BTreeMap<AccessId, InFlight>,
    invalidations: BTreeMap<InvalidationId, (Event, Selection)>,
    undecided: Vec<Undecided>,
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
            accesses: BTreeMap::new(),
            invalidations: BTreeMap::new(),
            undecided: Vec::new(),
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
            }
        }
        seen
    }

    pub fn add_domain(&mut self, id: DomainId, bounds: Bounds) -> DomainSerial {
        let flushed = self.now();
        self.spaces.push(Space {
            id,
            bounds,
            pages: BTreeMap::new(),
            stale: BTreeMap::new(),
            flushed,
            flushed_pages: BTreeMap::new(),
            maps_in_progress: BTreeSet::new(),
            failed_maps: Vec::new(),
            unmaps: 0,
        });
        DomainSerial(self.spaces.len() - 1)
    }

    pub fn map_called(&mut self, domain: DomainSerial) -> Event {
        let now = self.now();
        self.spaces[domain.0].maps_in_progress.insert(now);
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
        space.maps_in_progress.remove(&called);
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
        let now = self.now();
        self.spaces[domain.0].maps_in_progress.remove(&called);
        for (i, to) in pages.enumerate() {
            let page = IovaPage(first.0 + i as u64);
            self.check_reuse(domain, page);
            let oldest = self.accesses.values().next().map_or(now, |a| a.began);
            let space = &mut self.spaces[domain.0];
            let records = space.pages.entry(page).or_default();
            // what ended before any access in flight began can explain no access any more
            records.retain(|r| r.unmap_returned.is_none_or(|end| end >= oldest));
            records.push(Record {
                to,
                perm,
                map_called: called,
                map_returned: now,
                unmap_called: None,
                unmap_returned: None,
            });
            space.stale.remove(&page);
        }
        self.decide();
    }

    /// P3: an invalidation that began after the page's last unmap is complete.
    fn check_reuse(&mut self, domain: DomainSerial, page: IovaPage) {
        let space = &self.spaces[domain.0];
        let Some(last) = space.pages.get(&page).and_then(|records| records.last()) else {
            return;
        };
        let (to, unmapped) = (last.to, last.unmap_called);
        match unmapped {
            None => self.violation(
                Property::P3,
                format!("{page} was handed out while it is mapped to {to}"),
            ),
            Some(called) if space.flushed_since(page) < called => self.violation(
                Property::P3,
                format!("{page} was handed out again before it was flushed"),
            ),
            Some(_) => {}
        }
    }

    /// Names the call, for its return.
    pub fn unmap_called(&mut self, domain: DomainSerial, range: IovaRange) -> Event {
        let now = self.now();
        let space = &mut self.spaces[domain.0];
        for page in range.iter() {
            if let Some(last) = space.pages.get_mut(&page).and_then(|r| r.last_mut()) {
                last.unmap_called.get_or_insert(now);
            }
        }
        now
    }

    /// The call changed nothing.
    pub fn unmap_refused(&mut self, domain: DomainSerial, range: IovaRange, called: Event) {
        let space = &mut self.spaces[domain.0];
        for page in range.iter() {
            if let Some(last) = space.pages.get_mut(&page).and_then(|r| r.last_mut()) {
                last.unmap_called = last.unmap_called.filter(|at| *at != called);
            }
        }
    }

    /// By now its pages may belong to others: only the records that were current at the call are ended.
    pub fn unmap_returned(&mut self, domain: DomainSerial, range: IovaRange, called: Event) {
        let now = self.now();
        let at = (self.clock)();
        let space = &mut self.spaces[domain.0];
        space.unmaps += 1;
        let unmaps_before = space.unmaps;
        for page in range.iter() {
            let flushed = space.flushed_since(page);
            let Some(records) = space.pages.get_mut(&page) else {
                continue;
            };
            let ours = |record: &Record| record.unmap_called == Some(called);
            let Some(record) = records.iter_mut().rfind(|record| ours(record)) else {
                continue;
            };
            record.unmap_returned = Some(now);
            if flushed < called && records.last().is_some_and(ours) {
                space.stale.insert(
                    page,
                    Stale {
                        unmap_called: called,
                        returned_at: at,
                        unmaps_before,
                    },
                );
            }
        }
    }

    pub fn invalidation_began(&mut self, id: InvalidationId, selection: Selection) {
        let now = self.now();
        self.invalidations.insert(id, (now, selection));
    }

    pub fn invalidation_completed(&mut self, id: InvalidationId) {
        let Some((began, selection)) = self.invalidations.remove(&id) else {
            return; // of the context cache
        };
        self.seen.invalidations += 1;
        let (id, pages) = named(selection);
        let now = (self.clock)();
        for at in 0..self.spaces.len() {
            let space = &mut self.spaces[at];
            if id.is_some_and(|id| id != space.id) {
                continue;
            }
            let flushed = match pages {
                None => space.flush_all(began),
                Some(range) => space.flush_pages(range, began),
            };
            let bounds = space.bounds;
            let exposures: Vec<_> = flushed.iter().map(|s| space.exposure(s, now)).collect();
            for exposure in exposures {
                self.seen.exposure.unmaps = self.seen.exposure.unmaps.max(exposure.unmaps);
                self.seen.exposure.time = self.seen.exposure.time.max(exposure.time);
                self.check_window(at, bounds, exposure);
            }
        }
    }

    fn check_window(&mut self, space: usize, bounds: Bounds, exposure: Exposure) {
        let Bounds::Deferred { unmaps, time } = bounds else {
            return; // strict is checked by accesses: P1
        };
        if exposure.unmaps > unmaps || exposure.time > time {
            self.violation(
                Property::P2,
                format!(
                    "domain {}: a page stayed unflushed for {} unmaps and {} ns (bounds {unmaps}, {} ns)",
                    self.spaces[space].id, exposure.unmaps, exposure.time.0, time.0
                ),
            );
        }
    }

    pub fn attaching(&mut self, device: SourceId, domain: DomainSerial, stage: Stage) {
        self.devices.insert(device, Attachment { domain, stage });
    }

    pub fn detached(&mut self, device: SourceId) {
        self.devices.remove(&device);
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

    pub fn access_succeeded(&mut self, access: &Access, tag: DomainId, to: PhysPage) {
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
        let flushed = self.spaces[domain.0].flushed;
        self.undecided.push(Undecided {
            domain,
            page,
            kind: access.kind,
            to,
            began,
            ended,
            flushed,
        });
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
        let live = records.and_then(|records| records.last()).filter(|r| {
            r.map_returned < began && r.unmap_called.is_none() && r.perm.allows(access.kind)
        });
        if let Some(record) = live {
            let text = format!(
                "{:?} of {} failed ({reason}), although it is mapped to {} for {:?}",
                access.kind, access.page, record.to, record.perm
            );
            self.violation(Property::P14, text);
        }
    }

    pub fn frame_freed(&mut self, frame: PhysPage, held: bool) {
        self.seen.frames_freed += 1;
        if held {
            self.violation(
                Property::P4,
                format!("frame {frame} was freed while a walk cache or a walk points to it"),
            );
        }
    }

    /// Judges every undecided success that the records explain, or that none will explain.
    fn decide(&mut self) {
        for open in std::mem::take(&mut self.undecided) {
            match self.judge(&open) {
                Judgement::Fine => {}
                Judgement::Stale => self.seen.stale += 1,
                Judgement::Wrong(property, text) => self.violation(property, text),
                Judgement::Wait => self.undecided.push(open),
            }
        }
    }

    fn judge(&self, open: &Undecided) -> Judgement {
        let space = &self.spaces[open.domain.0];
        let none = Vec::new();
        let records = space.pages.get(&open.page).unwrap_or(&none);
        let mut wrong = None;
        for (i, record) in records.iter().enumerate().rev() {
            if record.to != open.to || record.map_called > open.ended {
                continue;
            }
            if !record.perm.allows(open.kind) {
                wrong = Some((
                    Property::P6,
                    format!(
                        "{:?} of {} succeeded, mapped for {:?}",
                        open.kind, open.page, record.perm
                    ),
                ));
                continue;
            }
            let Some(returned) = record.unmap_returned.filter(|at| *at < open.ended) else {
                return Judgement::Fine;
            };
            let anew = records[i + 1..].iter().any(|r| r.map_returned < open.began);
            if anew {
                wrong = Some((
                    Property::P9,
                    format!(
                        "{} reached {}, the page of an older mapping",
                        open.page, open.to
                    ),
                ));
                continue;
            }
            // a map now in its call may have given the same page again, so a verdict can wait
            match space.late(open, returned, "unmap") {
                Judgement::Wrong(property, text) => wrong = Some((property, text)),
                fine => return fine,
            }
            break;
        }
        for failed in space.failed_maps.iter().rev() {
            let names = |pages: &Vec<PhysPage>| pages.contains(&open.to);
            let reached = failed.called < open.ended
                && failed.perm.allows(open.kind)
                && failed.pages.as_ref().is_none_or(names);
            if !reached {
                continue;
            }
            if open.ended < failed.returned {
                return Judgement::Fine;
            }
            let anew = |r: &Record| r.map_called > failed.returned && r.map_returned < open.began;
            if open.flushed < failed.returned && !records.iter().any(anew) {
                match space.late(open, failed.returned, "a map that failed") {
                    Judgement::Wrong(property, text) => wrong = wrong.or(Some((property, text))),
                    fine => return fine,
                }
            }
        }
        let coming = space.maps_in_progress.first();
        if coming.is_some_and(|called| *called < open.ended) {
            return Judgement::Wait;
        }
        let (property, text) = wrong.unwrap_or_else(|| {
            let elsewhere = self.spaces.iter().enumerate().any(|(i, other)| {
                i != open.domain.0
                    && other
                        .pages
                        .get(&open.page)
                        .is_some_and(|records| records.iter().any(|record| record.to == open.to))
            });
            let property = if elsewhere {
                Property::P8
            } else {
                Property::P9
            };
            let text = format!(
                "{} reached {}, which no mapping of its domain names",
                open.page, open.to
            );
            (property, text)
        });
        Judgement::Wrong(property, text)
    }
}

enum Judgement {
    Fine,
    Stale,
    Wrong(Property, String),
    Wait,
}

impl Space {
    /// When the latest complete invalidation of `page` began.
    fn flushed_since(&self, page: IovaPage) -> Event {
        let own = self.flushed_pages.get(&page).copied().unwrap_or(0);
        self.flushed.max(own)
    }

    /// The verdict on a success on what `call`, which returned at `returned`, had taken away.
    fn late(&self, open: &Undecided, returned: Event, call: &str) -> Judgement {
        let Undecided { kind, page, .. } = open;
        match self.bounds {
            Bounds::Deferred { .. } if open.flushed > returned => Judgement::Wrong(
                Property::P2,
                format!("{kind:?} of {page} succeeded after the flush that followed {call}"),
            ),
            Bounds::Deferred { .. } => Judgement::Stale,
            Bounds::Strict if open.began < returned => Judgement::Wrong(
                Property::P5,
                format!("{kind:?} of {page} moved data after {call} had returned"),
            ),
            Bounds::Strict => Judgement::Wrong(
                Property::P1,
                format!("{kind:?} of {page} succeeded after {call} had returned"),
            ),
        }
    }

    fn flush_all(&mut self, began: Event) -> Vec<Stale> {
        self.flushed = self.flushed.max(began);
        self.flushed_pages.retain(|_, at| *at > began);
        let mut gone = Vec::new();
        self.stale.retain(|_, stale| {
            let flushed = stale.unmap_called < began;
            if flushed {
                gone.push(*stale);
            }
            !flushed
        });
        gone
    }

    fn flush_pages(&mut self, range: IovaRange, began: Event) -> Vec<Stale> {
        // a range may be far larger than what was ever mapped: go by the pages known
        let known: Vec<IovaPage> = self
            .pages
            .range(range.first..range.end())
            .map(|(page, _)| *page)
            .collect();
        let mut gone = Vec::new();
        for page in known {
            let at = self.flushed_pages.entry(page).or_insert(began);
            *at = (*at).max(began);
            if self
                .stale
                .get(&page)
                .is_some_and(|s| s.unmap_called < began)
            {
                gone.extend(self.stale.remove(&page));
            }
        }
        gone
    }

    fn exposure(&self, stale: &Stale, now: TimeNs) -> Exposure {
        Exposure {
            unmaps: self.unmaps - stale.unmaps_before,
            time: TimeNs(now.0.saturating_sub(stale.returned_at.0)),
        }
    }
}
