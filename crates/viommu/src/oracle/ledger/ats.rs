// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Devices that keep translations: a page is flushed when the IOTLB is, and then the TLB of every
//! such device of its domain.
//!
//! An invalidation of the IOTLB that is complete waits here for those of the device TLBs that begin
//! after it. Where one of them names only a part, that part is flushed, if it is the last that was
//! waited for. A device that leaves its domain, or whose ATS is switched off, is waited for no
//! longer; what it still reaches then is judged by the access.

use super::{DomainSerial, Event, Ledger};
use crate::observe::InvalidationId;
use ioatlas_dma::units::*;
use std::collections::BTreeSet;

/// A complete invalidation of the IOTLB.
pub(super) struct HalfFlushed {
    space: usize,
    /// When it began, and when it was complete.
    began: Event,
    complete: Event,
    /// Which pages; `None`: all.
    pages: Option<IovaRange>,
    /// Whose TLBs are still to be invalidated.
    waits: BTreeSet<SourceId>,
}

impl Ledger {
    pub fn ats_switched(&mut self, source: SourceId, on: bool) {
        if on {
            self.ats.insert(source);
        } else {
            self.ats.remove(&source);
            self.waits_no_longer(source);
        }
    }

    /// The IOTLB is flushed of `pages` of a domain; is the domain?
    pub(super) fn iotlb_flushed(&mut self, space: usize, pages: Option<IovaRange>, began: Event) {
        let here = |at: &SourceId| {
            let attached = self.devices.get(at).map(|attached| attached.domain);
            attached == Some(DomainSerial(space))
        };
        let waits: BTreeSet<SourceId> = self.ats.iter().copied().filter(here).collect();
        if waits.is_empty() {
            return self.flushed(space, pages, began);
        }
        let complete = self.now();
        self.half_flushed.push(HalfFlushed {
            space,
            began,
            complete,
            pages,
            waits,
        });
    }

    pub fn device_invalidation_began(&mut self, id: InvalidationId, at: (SourceId, IovaRange)) {
        let now = self.now();
        self.device_invalidations.insert(id, (now, at));
    }

    /// The TLB of `source` has lost `pages`, by an invalidation that began at `began`.
    pub(super) fn device_flushed(&mut self, source: SourceId, pages: IovaRange, began: Event) {
        let mut parts = Vec::new();
        self.half_flushed.retain_mut(|half| {
            if half.complete > began || !half.waits.contains(&source) {
                return true;
            }
            let covered = match half.pages {
                None => pages.pages.0 >= ALL_PAGES,
                Some(named) => pages.contains(&named),
            };
            if covered {
                half.waits.remove(&source);
                if half.waits.is_empty() {
                    parts.push((half.space, half.pages, half.began));
                }
                return !half.waits.is_empty();
            }
            if half.waits.len() == 1
                && let Some(part) = common(half.pages, pages)
            {
                parts.push((half.space, Some(part), half.began));
            }
            true
        });
        for (space, pages, began) in parts {
            self.flushed(space, pages, began);
        }
    }

    pub(super) fn waits_no_longer(&mut self, source: SourceId) {
        if self.half_flushed.is_empty() {
            return;
        }
        let everything = IovaRange::new(IovaPage(0), PageCount(ALL_PAGES));
        let now = self.now();
        self.device_flushed(source, everything, now);
    }
}

/// All of an address space: page numbers have 52 bits.
const ALL_PAGES: u64 = 1 << 52;

/// The pages that both name.
fn common(named: Option<IovaRange>, range: IovaRange) -> Option<IovaRange> {
    let Some(named) = named else {
        return Some(range);
    };
    let (first, end) = (named.first.max(range.first), named.end().min(range.end()));
    (first < end).then(|| IovaRange::new(first, PageCount(end.0 - first.0)))
}

#[cfg(test)]
mod tests {
    use super::common;
    use ioatlas_dma::units::*;

    #[test]
    fn what_two_ranges_have_in_common() {
        let range = |(first, pages)| IovaRange::new(IovaPage(first), PageCount(pages));
        for (named, other, both) in [
            (None, (4, 4), Some((4, 4))),
            (Some((4, 4)), (0, 100), Some((4, 4))),
            (Some((4, 4)), (6, 4), Some((6, 2))),
            (Some((4, 4)), (2, 3), Some((4, 1))),
            (Some((4, 4)), (7, 1), Some((7, 1))),
            // they touch, and have no page in common
            (Some((4, 4)), (8, 4), None),
            (Some((4, 4)), (0, 4), None),
            (Some((4, 4)), (20, 4), None),
        ] {
            let (named, both) = (named.map(range), both.map(range));
            assert_eq!(common(named, range(other)), both, "{named:?} and {other:?}");
        }
    }
}
