// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! One domain as the ledger knows it: records of its mappings, and which pages are stale.

use super::{
    Event,
    judge::{Judgement, Undecided},
    modes::Modes,
    summary::{Bounds, Deadline, Exposure, Property},
};
use ioatlas_dma::units::*;
use std::collections::BTreeMap;

/// Whose memory a mapping leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::oracle) enum Whose {
    /// The caller's, or memory that lives as long as the mapping.
    Theirs,
    /// A bounce buffer's, which may stay mapped for the next user.
    Own,
}

/// How a domain's bounce buffers are mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::oracle) enum Slots {
    /// For the direction of their users. From user to user that changes by way of a flush.
    AsUsed,
    /// For both, whatever their users do.
    BothWays,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub to: PhysPage,
    pub perm: Perm,
    pub whose: Whose,
    pub map_called: Event,
    pub map_returned: Event,
    pub unmap_called: Option<Event>,
    pub unmap_returned: Option<Event>,
}

/// A page that is unmapped and may be cached.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stale {
    pub unmap_called: Event,
    pub unmap_returned: Event,
    pub returned_at: TimeNs,
    /// When the last tick was before that.
    pub ticked: Option<TimeNs>,
    pub unmaps_before: u64,
    /// Whether mappings may share it.
    pub shared: bool,
}

/// Calls of one kind that may overlap.
#[derive(Clone, Copy, Default)]
pub(super) struct Calls {
    under_way: u32,
    /// The last call that came while another was under way.
    overlap: Event,
}

impl Calls {
    pub fn called(&mut self, now: Event) {
        if self.under_way > 0 {
            self.overlap = now;
        }
        self.under_way += 1;
    }
    pub fn returned(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }
    /// Whether none overlapped from `since` on, when one was called.
    pub fn alone_since(&self, since: Event) -> bool {
        self.overlap < since
    }
}

pub(super) struct Space {
    pub id: DomainId,
    pub bounds: Bounds,
    /// What its mode makes of them.
    pub modes: Modes,
    /// The pages that mappings may share.
    pub shared: Option<IovaRange>,
    /// Whether it has bounce buffers, and how they are mapped.
    pub bounces: Option<Slots>,
    pub pages: BTreeMap<IovaPage, Vec<Record>>,
    pub stale: BTreeMap<IovaPage, Stale>,
    /// The latest beginning of an invalidation that is complete: of the whole domain,
    /// and of single pages.
    pub flushed: Event,
    pub flushed_pages: BTreeMap<IovaPage, Event>,
    pub maps_in_progress: BTreeMap<Event, Coming>,
    /// When a map that lets the device read, and one that lets it write, was last in its call.
    pub last_maps: [Event; 2],
    pub failed_maps: Vec<FailedMap>,
    pub unmaps: u64,
    pub calls: Calls,
    pub tick_calls: Calls,
    /// The latest time that a tick was told.
    pub ticked: Option<TimeNs>,
}

/// A map in its call.
#[derive(Clone)]
pub(super) struct Coming {
    pub perm: Perm,
    /// What the caller wants mapped; of memory that is allocated for it nothing is known.
    pub list: Vec<PhysRange>,
}

/// A map that failed. No caller learnt its IOVA, but a device that guesses may have reached
/// what was half made.
pub(super) struct FailedMap {
    pub called: Event,
    pub returned: Event,
    /// What it would have mapped, where that is known.
    pub pages: Option<Vec<PhysPage>>,
    pub perm: Perm,
}

impl Record {
    pub fn live(&self) -> bool {
        self.unmap_called.is_none()
    }
    /// Whether a mapping to `to` for `perm` is the same translation.
    pub fn same(&self, to: PhysPage, perm: Perm) -> bool {
        self.to == to && self.perm == perm
    }
}

impl Space {
    pub fn shares(&self, page: IovaPage) -> bool {
        self.shared
            .is_some_and(|shared| (shared.first..shared.end()).contains(&page))
    }

    /// Whether a caller maps, mapped, or may have tried to map `to` at `page`: a page of its own,
    /// that may have the number of any frame.
    pub fn may_be_callers(&self, page: IovaPage, to: PhysPage) -> bool {
        let mut records = self.pages.get(&page).into_iter().flatten();
        let mut coming = self.maps_in_progress.values().flat_map(|map| &map.list);
        let mut failed = self.failed_maps.iter();
        records.any(|record| record.to == to && record.whose == Whose::Theirs)
            || coming.any(|part| part.addr.page() <= to && to.addr() < end_of(part))
            || failed.any(|map| map.pages.as_ref().is_none_or(|pages| pages.contains(&to)))
    }

    /// A map that lets devices do what `perm` says has returned.
    pub fn map_ended(&mut self, called: Event, perm: Perm, now: Event) {
        // of one that was bounced it is told twice: what it shows, and what it may have tried
        // before
        if self.maps_in_progress.remove(&called).is_some() {
            self.calls.returned();
        }
        for kind in [AccessKind::Read, AccessKind::Write] {
            if perm.allows(kind) {
                self.last_maps[kind as usize] = now;
            }
        }
    }

    /// Whether a map that allows `kind` was in its call after `since`.
    pub fn mapped_since(&self, kind: AccessKind, since: Event) -> bool {
        let mut coming = self.maps_in_progress.values();
        coming.any(|map| map.perm.allows(kind)) || self.last_maps[kind as usize] > since
    }

    /// When the latest complete invalidation of `page` began.
    pub fn flushed_since(&self, page: IovaPage) -> Event {
        let own = self.flushed_pages.get(&page).copied().unwrap_or(0);
        self.flushed.max(own)
    }

    /// Whether the unmap that was `called` retires something: not where each of its pages is shared
    /// with a mapping that goes on, or may.
    pub fn retires(&self, range: IovaRange, called: Event) -> bool {
        // what leads to nothing but bounce buffers may stay mapped
        let ended = |record: &&Record| record.unmap_called == Some(called);
        let mut whose = range.iter().map(|page| {
            let mut records = self.pages.get(&page).into_iter().flatten();
            records.find(ended).map(|record| record.whose)
        });
        if whose.all(|whose| whose == Some(Whose::Own)) {
            return false;
        }
        let alone = |page: IovaPage| {
            let records = self.pages.get(&page).into_iter().flatten();
            let others = records.filter(|record| record.unmap_called != Some(called));
            others
                .into_iter()
                .all(|other| other.unmap_returned.is_some())
        };
        !self.shares(range.first) || self.maps_in_progress.is_empty() && range.iter().any(alone)
    }

    /// The verdict on a success on what `call`, which returned at `returned`, had taken away.
    pub fn late(&self, open: &Undecided, returned: Event, call: &str) -> Judgement {
        let Undecided { kind, page, .. } = open;
        let made_strict = open.strictness.flushed(returned);
        let (bounds, flushed) = match made_strict {
            Some(since) => (Bounds::Strict, since),
            None => (self.bounds, returned),
        };
        match bounds {
            Bounds::Deferred { .. } | Bounds::Unbounded if open.flushed > returned => {
                Judgement::Wrong(
                    Property::P2,
                    format!("{kind:?} of {page} succeeded after the flush that followed {call}"),
                )
            }
            Bounds::Deferred { .. } | Bounds::Unbounded => Judgement::Stale,
            Bounds::Strict if open.began < flushed => Judgement::Wrong(
                Property::P5,
                format!("{kind:?} of {page} moved data after {call} had returned"),
            ),
            Bounds::Strict => Judgement::Wrong(
                Property::P1,
                format!("{kind:?} of {page} succeeded after {call} had returned"),
            ),
        }
    }

    pub fn flush_all(&mut self, began: Event) -> Vec<Stale> {
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

    pub fn flush_pages(&mut self, range: IovaRange, began: Event) -> Vec<Stale> {
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

    /// Whether no map can have had a part in the page since its unmap was called.
    pub fn is_unshared(&self, stale: &Stale) -> bool {
        let since = |at: &Event| *at > stale.unmap_called;
        !stale.shared || self.maps_in_progress.is_empty() && !self.last_maps.iter().any(since)
    }

    /// What is wrong with a page that was stale that long. (Strict is checked by accesses: P1.
    /// Unbounded is never too long.)
    pub fn outside_window(&self, stale: &Stale, exposure: Exposure) -> Option<String> {
        let Bounds::Deferred {
            unmaps,
            overlapping,
            time,
        } = self.bounds
        else {
            return None;
        };
        let alone = self.calls.alone_since(stale.unmap_called) && self.is_unshared(stale);
        let unmaps = if alone { unmaps } else { overlapping };
        let time = match time {
            Deadline::After(time) => time,
            Deadline::Tick(_) | Deadline::Open => TimeNs(u64::MAX), // see `missed`
        };
        let within = exposure.unmaps <= unmaps && exposure.time <= time;
        (!within).then(|| {
            format!(
                "domain {}: a page stayed unflushed for {} unmaps and {} ns (bounds {unmaps}, {} ns)",
                self.id, exposure.unmaps, exposure.time.0, time.0
            )
        })
    }

    /// The stale pages that a tick at `now`, called at `called`, should have flushed.
    pub fn missed(&mut self, called: Event, now: TimeNs) -> Vec<(IovaPage, TimeNs)> {
        let Bounds::Deferred {
            time: Deadline::Tick(window),
            ..
        } = self.bounds
        else {
            return Vec::new();
        };
        let due = |stale: &Stale| {
            let waited = |ticked: TimeNs| now.0.saturating_sub(ticked.0) >= window.0;
            stale.unmap_returned < called
                && stale.ticked.is_none_or(waited)
                && self.is_unshared(stale)
        };
        let missed = self.stale.iter().filter(|(_, stale)| due(stale));
        let missed: Vec<_> = missed.map(|(page, _)| (*page, window)).collect();
        for (page, _) in &missed {
            self.stale.remove(page); // once is enough
        }
        missed
    }

    pub fn exposure(&self, stale: &Stale, now: TimeNs) -> Exposure {
        Exposure {
            unmaps: self.unmaps - stale.unmaps_before,
            time: TimeNs(now.0.saturating_sub(stale.returned_at.0)),
        }
    }
}

/// The byte just past it, or the last one that there is.
fn end_of(part: &PhysRange) -> PhysAddr {
    PhysAddr(part.addr.0.saturating_add(part.len.0))
}
