// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Unmapping: one path, two interfaces.

use super::*;
use crate::iova::{AllocKind, IovaAlloc};
use crate::{table::RawError, units::pages_touched};

impl<P: Platform, T: Translator<P>> Domain<P, T> {
    /// Ends a mapping. Under `strict` and `freebsd`, and in a domain that has been [switched to
    /// strict](Self::set_mode), no access to it succeeds when this returns; under other policies,
    /// within their [exposure](crate::policy::PolicyConfig::exposure).
    ///
    /// May be called in an interrupt handler, on any CPU.
    ///
    /// # Errors
    /// [`UnmapError`]. But for [`UnmapError::Foreign`], the translation is removed.
    #[inline]
    pub fn unmap(&self, mapping: Mapping) -> Result<(), UnmapError> {
        self.unmap_token(mapping)
    }

    /// The slow path, and the answer to another domain's mapping.
    #[cold]
    #[inline(never)]
    pub(super) fn unmap_slow(&self, mapping: Mapping) -> Result<(), UnmapError> {
        if mapping.key != self.key {
            return Err(UnmapError::Foreign(mapping));
        }
        let range = mapping.range();
        self.end(mapping.alloc, range, [])
    }

    /// Gives a mapping's token up, for interfaces that pass addresses: from now on
    /// only [`unmap_raw`](Self::unmap_raw) ends it.
    ///
    /// Returns the address and the length to end it by: those of its bytes; for a list whose first
    /// segment lies highest, those of its pages.
    ///
    /// # Errors
    /// Another domain's mapping comes back, and so does one whose leaves are shared, as no address
    /// tells it from the others there, and a piece of a chunk, as its leaves do not say that.
    pub fn into_raw(&self, mapping: Mapping) -> Result<(Iova, ByteCount), UnmapError> {
        if mapping.key != self.key {
            return Err(UnmapError::Foreign(mapping));
        }
        if mapping.alloc.kind() == AllocKind::Shared {
            return Err(UnmapError::SharedLeaves(mapping));
        }
        if mapping.alloc.kind() == AllocKind::Piece {
            return Err(UnmapError::Piece(mapping));
        }
        self.translator
            .give_up(OURS, &self.platform, mapping.range().first);
        if mapping.descends() {
            let IovaRange { first, pages } = mapping.range();
            return Ok((first.addr(), ByteCount(pages.0 * GRANULE)));
        }
        Ok((mapping.iova, mapping.len))
    }

    /// Ends the mapping of `len` bytes at `iova`, as [`into_raw`](Self::into_raw) returned them.
    ///
    /// Detected: what is not mapped (a second unmap), a part of a mapping, another size, several
    /// mappings at once, a mapping whose token is still held. Not detected: a second unmap after
    /// the same pages were mapped again as one mapping of the same number of pages and given up;
    /// and, within the first and the last page, other bytes than those mapped.
    ///
    /// # Errors
    /// [`UnmapError`]; nothing has changed where the range is not a mapping.
    pub fn unmap_raw(&self, iova: Iova, len: ByteCount) -> Result<(), UnmapError> {
        if len.0 == 0 {
            return Err(BufferError::Empty { segment: 0 }.into());
        }
        let aperture = self.translator.aperture();
        let range = iova
            .offset()
            .checked_add(len.0)
            .and_then(|_| iova.0.checked_add(len.0))
            .map(|_| IovaRange::new(iova.page(), pages_touched(iova.offset(), len)))
            .ok_or(BufferError::IovaOverflow { iova, len })?;
        if !aperture.contains(&range) {
            let cause = RawError::Outside(range, aperture);
            return Err(UnmapError::NotAMapping { iova, len, cause });
        }
        if self.allocator.shared().is_some_and(|s| s.overlaps(&range)) {
            let cause = RawError::Shared(range);
            return Err(UnmapError::NotAMapping { iova, len, cause });
        }
        let claimed = self.translator.claim(OURS, &self.platform, range);
        let kind = claimed.map_err(|cause| UnmapError::NotAMapping { iova, len, cause })?;
        self.end(self.alloc_of(range, kind), range, [])
    }

    /// The allocation of a mapping, which follows from its pages.
    pub(super) fn alloc_of(&self, range: IovaRange, kind: AllocKind) -> IovaAlloc {
        let pages = match kind {
            AllocKind::Dynamic => self.allocator.granted(range.pages),
            AllocKind::Fixed | AllocKind::Shared | AllocKind::Piece => range.pages,
        };
        IovaAlloc::new(IovaRange::new(range.first, pages), kind)
    }

    /// Clears `range` and retires it, its allocation, and `frames` that only it made reachable.
    pub(super) fn end(
        &self,
        alloc: IovaAlloc,
        range: IovaRange,
        frames: impl IntoIterator<Item = TableFrame>,
    ) -> Result<(), UnmapError> {
        let owned = alloc.owned();
        let (found, completed) = self.retire(alloc, range, frames);
        if found == range.pages {
            let p = &*self.platform;
            p.pinned(|cpu| self.counters.unmapped(&cpu, range.pages, owned));
        }
        completed.map_err(|failed| self.failed(range, failed))?;
        if found != range.pages {
            return Err(UnmapError::Holes { range, found });
        }
        Ok(())
    }

    #[cold]
    pub(super) fn failed(&self, range: IovaRange, failed: Failed) -> UnmapError {
        UnmapError::Invalidate {
            range,
            cause: failed.cause,
        }
    }

    /// The path: clear, retire, and let the policy decide when what is freed. Returns
    /// the pages found translated.
    #[inline]
    pub(super) fn retire(
        &self,
        alloc: IovaAlloc,
        range: IovaRange,
        frames: impl IntoIterator<Item = TableFrame>,
    ) -> (PageCount, Result<(), Failed>) {
        let p = &*self.platform;
        let engine = self.engine();
        // a map that failed before its first page still retires its allocation: nothing was ever
        // there, so the least that can be asked for is enough
        let flushed = match range.pages {
            PageCount(0) => IovaRange::new(alloc.range().first, PageCount(1)),
            _ => range,
        };
        let mut batch = self.policy.begin(Some(flushed));
        let cleared = self
            .translator
            .clear(OURS, p, range, alloc.kind(), |frame| {
                batch.add_frame(&engine, frame);
            });
        let found = cleared.found;
        let mut frames_retired = false;
        for frame in frames {
            frames_retired = true;
            batch.add_frame(&engine, frame);
        }
        if found != range.pages {
            // The translator lost what only the holder of the allocation may remove: what became of
            // those pages is unknown, so the allocation never is freed.
            drop(alloc);
            batch.finish_frames(&engine);
            return (found, engine.flush(Scope::tables(flushed)).map(drop));
        }
        if alloc.kind() == AllocKind::Shared && cleared.gone.0 == 0 && !frames_retired {
            // Every page is mapped still, by others, to the same place for the same kind of access:
            // caches hold nothing that they may not hold, and nothing has become free. The unmap
            // that takes the last of a page away flushes it, so P1 holds after that unmap. The
            // address is not reused but for that very page, so nothing waits for this allocation.
            self.allocator.free_shared(p, alloc);
            return (found, Ok(()));
        }
        (found, batch.finish(&engine, alloc))
    }
}
