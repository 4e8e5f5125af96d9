// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Regions: IOVA ranges that are allocated once, and whose parts are mapped and unmapped again and
//! again.
//!
//! Bounce pools live in them. The holder of a [`Region`] decides which part is mapped; the leaves
//! are written and cleared by the same path as any mapping's. A part that was revoked may be mapped
//! again only against [`Flushed`], which [`Domain::revoke`] gives: it waits for its invalidation,
//! whatever the policy.

use super::{map::Place, *};
use crate::{
    iova::{AllocKind, Limits, Request},
    policy::Resource,
    table::LeafAttrs,
    units::pages_touched,
};

/// An allocated range. It counts as reserved as long as it is open.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a dropped region stays allocated until its domain ends"]
pub(crate) struct Region {
    range: IovaRange,
    kind: AllocKind,
}

impl Region {
    pub fn range(&self) -> IovaRange {
        self.range
    }
}

impl<P: Platform, T: Translator<P>> Domain<P, T> {
    /// Allocates a region of `pages`, of which nothing is mapped yet. Where it
    /// fails, nothing is allocated.
    pub(crate) fn open_region(&self, pages: PageCount, limits: Limits) -> Result<Region, MapError> {
        let alloc = self.alloc(&Request {
            pages,
            limits,
            contiguous: None,
        })?;
        let region = Region {
            range: alloc.range(),
            kind: alloc.kind(),
        };
        if let Err(alloc) = self.reserved.keep(alloc) {
            let none = IovaRange::new(alloc.range().first, PageCount(0));
            self.undo(alloc, none)?;
            return Err(MapError::NoMemory);
        }
        Ok(region)
    }

    /// Ends the allocation of a region of which nothing is mapped any more. Where the invalidation
    /// fails, the range is quarantined.
    pub(crate) fn close_region(&self, region: Region) -> Result<(), InvalidateError> {
        let Some(alloc) = self.reserved.take(region.range) else {
            debug_assert!(false, "a region's allocation is kept as long as it is open");
            return Ok(());
        };
        let none = IovaRange::new(region.range.first, PageCount(0));
        let (_, completed) = self.retire(alloc, none, []);
        completed.map_err(|failed| failed.cause)
    }

    /// Maps `part` of a region to `runs`. Nothing of it is mapped, and what was before is flushed.
    ///
    /// # Errors
    /// [`MapError`]; nothing is mapped then, but for [`MapError::Invalidate`], after which caches
    /// may hold any of it: the part and what it led to are not to be used again.
    pub(crate) fn install_part(
        &self,
        region: &Region,
        part: IovaRange,
        runs: impl Iterator<Item = PhysRun> + Clone,
        perm: Perm,
    ) -> Result<(), MapError> {
        debug_assert!(region.range.contains(&part));
        let p = &*self.platform;
        let leaf = LeafAttrs::new(perm, region.kind);
        if let Err(error) = self.translator.install(OURS, p, part, runs, leaf) {
            if error.done.0 > 0 {
                let written = IovaRange::new(part.first, error.done);
                let undone = self.clear_parts(region, core::iter::once(written), (), []);
                undone
                    .map(drop)
                    .map_err(|failed| MapError::Invalidate(failed.cause))?;
            }
            return Err(error.into());
        }
        let on_map = self.translator.unit().on_map();
        if on_map != OnMap::Nothing
            && let Err(cause) = self.follow_map(on_map, part)
        {
            // whether this is flushed or not, what failed is what is told
            let _ = self.clear_parts(region, core::iter::once(part), (), []);
            return Err(MapError::Invalidate(cause));
        }
        p.pinned(|cpu| {
            if let Some(words) = self.counters.of(&cpu) {
                words.mapped(part.pages, PageCount(0));
            }
        });
        Ok(())
    }

    /// Unmaps `parts` of a region, and waits until they are flushed, by one invalidation; then
    /// `frames`, that only they made reachable, are free. `what` stands for the parts: it comes
    /// back with the proof. Where the invalidation fails, the frames are quarantined, and `what` is
    /// not to be used again.
    pub(crate) fn revoke<W>(
        &self,
        region: &Region,
        parts: impl Iterator<Item = IovaRange> + Clone,
        what: W,
        frames: impl IntoIterator<Item = TableFrame>,
    ) -> Result<Flushed<W>, InvalidateError> {
        self.count_unmapped(parts.clone());
        let flushed = self.clear_parts(region, parts, what, frames);
        flushed.map_err(|failed| failed.cause)
    }

    /// As [`revoke`](Self::revoke) where `parts` are all that is mapped of the region; the tables
    /// that it fills go too. Fails as `revoke` does.
    pub(crate) fn revoke_last<W>(
        &self,
        region: &Region,
        parts: impl Iterator<Item = IovaRange> + Clone,
        what: W,
        frames: impl IntoIterator<Item = TableFrame>,
    ) -> Result<Flushed<W>, InvalidateError> {
        if region.kind == AllocKind::Shared {
            return self.revoke(region, parts, what, frames); // its leaves are counted one by one
        }
        self.count_unmapped(parts);
        let all = core::iter::once(region.range);
        let flushed = self.clear_parts(region, all, what, frames);
        flushed.map_err(|failed| failed.cause)
    }

    fn count_unmapped(&self, parts: impl Iterator<Item = IovaRange>) {
        self.platform.pinned(|cpu| {
            if let Some(words) = self.counters.of(&cpu) {
                parts.for_each(|part| words.unmapped(part.pages, PageCount(0)));
            }
        });
    }

    fn clear_parts<W>(
        &self,
        region: &Region,
        parts: impl Iterator<Item = IovaRange> + Clone,
        what: W,
        frames: impl IntoIterator<Item = TableFrame>,
    ) -> Result<Flushed<W>, Failed> {
        let p = &*self.platform;
        let engine = self.engine();
        let mut few = parts.clone();
        // tables may be detached, and this is no hot path
        let scope = match (few.next(), few.next()) {
            (Some(only), None) => Scope::tables(only),
            _ => Scope::DOMAIN,
        };
        let mut retired = Vec::new();
        let mut keep = |frame| {
            let frame = Resource::Frame(frame);
            if retired.try_reserve(1).is_ok() {
                retired.push(self.sequence.retire(p, frame, scope));
            // no memory to remember it until all is cleared
            } else if let Ok(flushed) = engine.flush_retired(frame, scope) {
                engine.free(p.pinned(|cpu| cpu.index()), flushed);
            }
        };
        for part in parts {
            debug_assert!(region.range.contains(&part));
            self.translator.clear(OURS, p, part, region.kind, &mut keep);
        }
        frames.into_iter().for_each(keep);
        let what = self.sequence.retire(p, what, scope);
        let completion = match engine.flush(scope) {
            Ok(completion) => completion,
            Err(failed) => {
                let lost = retired.into_iter();
                lost.for_each(|frame| self.quarantine.put(frame));
                return Err(failed);
            }
        };
        let origin = p.pinned(|cpu| cpu.index());
        for frame in retired {
            engine.complete(origin, frame, &completion);
        }
        what.complete(&completion).map_err(|(what, why)| {
            // it covers just that, and began after
            debug_assert!(false, "{why}");
            Failed {
                seq: what.seq(),
                cause: InvalidateError::TimedOut { turns: 0 },
            }
        })
    }

    /// Maps `list`, whose inner edges lie at granules, as a mapping of its own whose addresses
    /// ascend. `frames` are those of its pages that have no other owner: they come back with the
    /// mapping, and go with it. Where it fails, the frames have been freed, or are quarantined.
    pub(crate) fn map_with_frames(
        &self,
        list: &[PhysRange],
        direction: Direction,
        attrs: MapAttrs,
        frames: Vec<FreshFrame>,
    ) -> Result<(Mapping, Vec<TableFrame>), MapError> {
        let len = ByteCount(list.iter().map(|part| part.len.0).sum());
        let offset = list.first().map_or(0, |first| first.addr.offset());
        let request = Request {
            pages: pages_touched(offset, len),
            limits: attrs.limits,
            contiguous: None,
        };
        let place = Place {
            order: ListOrder::Ascending,
            len,
            direction,
            lifetime: attrs.lifetime,
        };
        match self.place(&request, list, place) {
            Ok(mapping) => {
                let frames = frames.into_iter().map(FreshFrame::publish);
                Ok((mapping, frames.collect()))
            }
            Err(error @ MapError::Invalidate(_)) => {
                // a cache may hold them
                self.quarantine.lose_frames(frames.len() as u64);
                Err(error)
            }
            Err(error) => {
                self.give_back(frames);
                Err(error)
            }
        }
    }

    /// Ends a mapping and, once it is flushed, gives back `frames` that only it made reachable.
    /// Fails as [`Domain::unmap`] does.
    pub(crate) fn unmap_with_frames(
        &self,
        mapping: Mapping,
        frames: Vec<TableFrame>,
    ) -> Result<(), UnmapError> {
        if frames.is_empty() {
            return self.unmap(mapping);
        }
        let range = mapping.range();
        self.end(mapping.alloc, range, frames)
    }

    /// Counts frames that caches may hold, so that they are never used again.
    pub(crate) fn lose_frames(&self, frames: u64) {
        self.quarantine.lose_frames(frames);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        platform::one_cpu::OneCpu,
        table::{TableConfig, fmt::VtdSecond48},
        translator::{Paged, Uncached},
    };

    type Tables = Paged<OneCpu, VtdSecond48, Uncached<OneCpu>>;

    const MEMORY: PhysPage = PhysPage(0x1000);
    /// Pages of a leaf table.
    const TABLE: u64 = 512;

    /// With so many frames, of which the root table takes one.
    fn domain(frames: usize) -> Domain<OneCpu, Tables> {
        let p = alloc::sync::Arc::new(OneCpu::new(frames));
        let table = Paged::new(&p, Uncached::new(), TableConfig::default());
        let table = table.expect("a frame for the root");
        Domain::new(p, table, DomainConfig::default()).expect("within the aperture")
    }

    /// Where a device gets to in each page of `part`.
    fn reached(domain: &Domain<OneCpu, Tables>, part: IovaRange) -> Vec<Option<PhysPage>> {
        let pages = part.first.0..part.end().0;
        let walk = |page| {
            domain
                .translator
                .table()
                .walk(&*domain.platform, IovaPage(page))
        };
        pages.map(|page| Some(walk(page)?.0)).collect()
    }

    /// Parts in two leaf tables, of which the second finds a frame or not.
    #[test]
    fn a_part_across_leaf_tables_is_mapped_and_revoked_whole_or_not_at_all() {
        // three tables below the root are the way to a first page, one more to a page of the next
        // table
        for (frames, fits) in [(4, false), (5, true)] {
            for (before, behind) in [(1, 1), (1, 3), (3, 1), (5, TABLE - 1)] {
                let what = alloc::format!("{before} and {behind} pages, {frames} frames");
                let domain = domain(frames);
                let region = domain.open_region(PageCount(3 * TABLE), Limits::default());
                let region = region.expect("a region");
                let edge = region.range().first.0.next_multiple_of(TABLE) + TABLE;
                let part = IovaRange::new(IovaPage(edge - before), PageCount(before + behind));
                for _ in 0..2 {
                    let run = core::iter::once(PhysRun::new(MEMORY, part.pages));
                    let made = domain.install_part(&region, part, run, Perm::Read);
                    assert_eq!(made.is_ok(), fits, "{what}");
                    let there = |n| fits.then_some(PhysPage(MEMORY.0 + n));
                    let want: Vec<_> = (0..part.pages.0).map(there).collect();
                    assert_eq!(reached(&domain, part), want, "P1, P14: {what}");
                    if fits {
                        let revoked = domain.revoke(&region, core::iter::once(part), (), []);
                        assert!(revoked.is_ok(), "{what}");
                    }
                    let nothing = reached(&domain, part).iter().all(Option::is_none);
                    assert!(nothing, "P1: revoked, {what}");
                }
            }
        }
    }
}
