// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The verdict on an access that succeeded, by the table in the oracle's theory.

use super::{
    DomainSerial, Event, Ledger,
    frames::Own,
    modes::Strictness,
    space::{Record, Space},
    summary::Property,
};
use ioatlas_dma::units::*;

/// A success that no record explains yet.
pub(super) struct Undecided {
    pub domain: DomainSerial,
    pub page: IovaPage,
    pub kind: AccessKind,
    pub to: PhysPage,
    pub began: Event,
    pub ended: Event,
    /// When it ended, the latest beginning of a complete invalidation of the whole domain.
    pub flushed: Event,
    /// And what the domain had promised as strict by then, where its policy is not.
    pub strictness: Strictness,
    /// What it is by the frame that it went to.
    pub own: Own,
}

pub(super) enum Judgement {
    Fine,
    Stale,
    Wrong(Property, String),
    Wait,
}

impl Ledger {
    pub(super) fn decide(&mut self) {
        for open in std::mem::take(&mut self.undecided) {
            match self.judge(&open) {
                Judgement::Fine => {}
                Judgement::Stale => {
                    self.seen.stale += 1;
                    self.check_reached(open.domain.0, open.page);
                }
                Judgement::Wrong(property, text) => self.violation(property, text),
                Judgement::Wait => self.undecided.push(open),
            }
        }
    }

    fn judge(&self, open: &Undecided) -> Judgement {
        let space = &self.spaces[open.domain.0];
        let none = Vec::new();
        let records = space.pages.get(&open.page).unwrap_or(&none);
        let shared = space.shares(open.page);
        let shared = shared.then(|| judge_shared(space, records, open)).flatten();
        // a map now in its call may have given the same page again, so a verdict can wait
        let mut wrong = match shared.or_else(|| judge_owned(space, records, open)) {
            Some(Judgement::Wrong(property, text)) => Some((property, text)),
            Some(fine) => return fine,
            None => None,
        };
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
            // what that map named has been freed since, or was never this frame
            if matches!(open.own, Own::Allowed { .. }) {
                continue;
            }
            let anew = |r: &Record| r.map_called > failed.returned && r.map_returned < open.began;
            if open.flushed < failed.returned && !records.iter().any(anew) {
                match space.late(open, failed.returned, "a map that failed") {
                    Judgement::Wrong(property, text) => wrong = wrong.or(Some((property, text))),
                    fine => return fine,
                }
            }
        }
        match open.own {
            Own::Allowed { .. } if wrong.is_none() => return Judgement::Fine,
            Own::Kept { perm, .. } if wrong.is_none() => {
                let (kind, page) = (open.kind, open.page);
                let text = format!("{kind:?} of {page} succeeded, a buffer kept for {perm:?}");
                wrong = Some((Property::P6, text));
            }
            _ => {}
        }
        let coming = space.maps_in_progress.first_key_value();
        if coming.is_some_and(|(called, _)| *called < open.ended) {
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

/// The verdict by the mappings of a page that has one at a time, if any leads `open` where it went.
fn judge_owned(space: &Space, records: &[Record], open: &Undecided) -> Option<Judgement> {
    let mut wrong = None;
    for (i, record) in records.iter().enumerate().rev() {
        if record.to != open.to || record.map_called >= open.ended {
            continue;
        }
        // of a frame that has been freed since, if within its unmap, and is a bounce buffer now
        if let Own::Allowed { since } | Own::Kept { since, .. } = open.own
            && record.map_returned < since
        {
            continue;
        }
        if !record.perm.allows(open.kind) {
            wrong = Some(Judgement::Wrong(
                Property::P6,
                format!(
                    "{:?} of {} succeeded, mapped for {:?}",
                    open.kind, open.page, record.perm
                ),
            ));
            continue;
        }
        let Some(returned) = record.unmap_returned.filter(|at| *at < open.ended) else {
            return Some(Judgement::Fine);
        };
        let anew = records[i + 1..].iter().any(|r| r.map_returned < open.began);
        if anew {
            wrong = Some(Judgement::Wrong(
                Property::P9,
                format!(
                    "{} reached {}, the page of an older mapping",
                    open.page, open.to
                ),
            ));
            continue;
        }
        return Some(space.late(open, returned, "unmap"));
    }
    wrong
}

/// The verdict by the mappings that share the page, if any leads `open` where it went: live as long
/// as one of them is, and ended with the unmap that returned last.
fn judge_shared(space: &Space, records: &[Record], open: &Undecided) -> Option<Judgement> {
    let same = |record: &&Record| {
        record.to == open.to && record.map_called < open.ended && record.perm.allows(open.kind)
    };
    let mut ended = Vec::new();
    for record in records.iter().filter(same) {
        match record.unmap_returned.filter(|at| *at < open.ended) {
            None => return Some(Judgement::Fine),
            Some(returned) => ended.push(returned),
        }
    }
    let returned = ended.into_iter().max()?;
    Some(space.late(open, returned, "the last unmap"))
}
