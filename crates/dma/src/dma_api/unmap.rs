// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Unmapping.

use super::{
    mapping::{Held, Part, Timed},
    *,
};
use crate::{
    bounce::{Buffer, Need, ReturnError},
    domain::{UnmapBatchError, UnmapError},
    units::*,
};
use alloc::boxed::Box;
use core::mem::ManuallyDrop;

impl<P: CopyMemory, T: Translator<P>, D: Watch<P>> Client<P, T, D> {
    /// Ends a mapping, and brings back what the device wrote.
    ///
    /// May be called in an interrupt handler, on any CPU.
    ///
    /// # Errors
    /// [`DmaUnmapError`]. But for [`DmaUnmapError::Foreign`], the mapping has ended. After
    /// [`DmaUnmapError::Direct`] the device may still reach the list: what owns it is never
    /// dropped, its memory is lost, and its pages
    /// are counted in [`DomainStats::quarantined`](crate::domain::DomainStats::quarantined).
    #[inline]
    pub fn unmap<L: DmaBuffer>(&self, mapping: DmaMapping<L>) -> Result<L, DmaUnmapError<L>> {
        if mapping.key != self.key || self.dma.watch.is_on() {
            return self.unmap_foreign_or_watched(mapping);
        }
        let need = need_of(&mapping);
        match (mapping, &self.pool) {
            // the fast path: see `map`
            (
                DmaMapping {
                    list,
                    held: Held::Bounced(Buffer::Slot(slot)),
                    timed: None,
                    ..
                },
                Some(pool),
            ) => match pool.give_fast(&self.dma.domain, slot, &need, (*list).segments()) {
                Ok(()) => Ok(ManuallyDrop::into_inner(list)),
                Err(hole) => {
                    drop(ManuallyDrop::into_inner(list));
                    Err(hole.into())
                }
            },
            (mapping, _) => self.end_here(mapping),
        }
    }

    #[cold]
    #[inline(never)]
    fn unmap_foreign_or_watched<L: DmaBuffer>(
        &self,
        mapping: DmaMapping<L>,
    ) -> Result<L, DmaUnmapError<L>> {
        match mapping.key == self.key {
            true => self.end_watched(mapping),
            false => Err(DmaUnmapError::Foreign(Box::new(mapping))),
        }
    }

    /// Ends one of this client's, and tells what watches.
    pub(super) fn end_told<L: DmaBuffer>(
        &self,
        mapping: DmaMapping<L>,
    ) -> Result<L, DmaUnmapError<L>> {
        match self.dma.watch.is_on() {
            true => self.end_watched(mapping),
            false => self.end_here(mapping),
        }
    }

    #[cold]
    fn end_watched<L: DmaBuffer>(&self, mapping: DmaMapping<L>) -> Result<L, DmaUnmapError<L>> {
        let (iova, len, direction) = (mapping.iova, mapping.len, mapping.direction);
        self.watched(iova, len, direction, || self.end_here(mapping))
    }

    /// Ends what lies there by `end`, and tells what watches.
    #[cold]
    pub(super) fn watched<R>(
        &self,
        iova: Iova,
        len: ByteCount,
        direction: Direction,
        end: impl FnOnce() -> R,
    ) -> R {
        // before it ends, as its address may be another mapping's right after
        let mut event = self.event(iova, len, direction);
        self.dma.watch.unmapped(&event);
        let ended = end();
        event.at = self.event(iova, len, direction).at;
        let retired = self.dma.domain.stats().retired;
        if retired.pages.0 == 0 && retired.frames == 0 {
            self.dma.watch.flushed(&event);
        }
        ended
    }

    /// Ends one of this client's as if the device had only read it: no byte is brought back, and
    /// what the device may write is zeroed for the next mapping. What watches is told the truth.
    pub(super) fn end_unsynced<L: DmaBuffer>(
        &self,
        mut mapping: DmaMapping<L>,
    ) -> Result<L, DmaUnmapError<L>> {
        let (iova, len, direction) = (mapping.iova, mapping.len, mapping.direction);
        mapping.direction = Direction::ToDevice;
        match self.dma.watch.is_on() {
            true => self.watched(iova, len, direction, || self.end_here(mapping)),
            false => self.end_here(mapping),
        }
    }

    #[inline(never)]
    pub(super) fn end_here<L: DmaBuffer>(
        &self,
        mapping: DmaMapping<L>,
    ) -> Result<L, DmaUnmapError<L>> {
        match mapping.timed {
            None => self.end(mapping),
            Some(timed) => self.end_timed(mapping, timed),
        }
    }

    #[cold]
    fn end_timed<L: DmaBuffer>(
        &self,
        mapping: DmaMapping<L>,
        timed: Timed,
    ) -> Result<L, DmaUnmapError<L>> {
        let (Some(pool), Some(clock)) = (&self.pool, self.dma.config.clock) else {
            return self.end(mapping);
        };
        let began = (clock.0)();
        let ended = self.end(mapping);
        let took = (clock.0)().0.saturating_sub(began.0);
        let both = u64::from(timed.map_ns).saturating_add(took);
        pool.model.note(timed.cell, timed.route, both);
        ended
    }

    fn end<L: DmaBuffer>(&self, mapping: DmaMapping<L>) -> Result<L, DmaUnmapError<L>> {
        let need = need_of(&mapping);
        let domain = &self.dma.domain;
        let DmaMapping { list, held, .. } = mapping;
        let named = (*list).segments();
        let ended = match (held, &self.pool) {
            (Held::Bounced(buffer), Some(pool)) => pool.give(domain, buffer, &need, named),
            (Held::Direct(mapping), _) => domain.unmap(mapping).map_err(ReturnError::Unmap),
            (Held::Split(split), _) => {
                let (copied, ended) = split.into_inner().end(domain, named, need.direction);
                let ended = ended.map_err(ReturnError::Unmap);
                ended.and(copied.map_err(ReturnError::NotMemory))
            }
            (Held::Each(parts), _) => self.unmap_parts(parts, named, need.direction),
            // its key is that of a pool
            (Held::Bounced(_), None) => Ok(()),
        };
        match ended {
            Ok(()) => Ok(ManuallyDrop::into_inner(list)),
            // the device may reach the list still, so what owns it is never dropped
            Err(ReturnError::Unmap(error)) => Err(DmaUnmapError::Direct(error)),
            Err(ReturnError::NotMemory(hole)) => {
                drop(ManuallyDrop::into_inner(list));
                Err(hole.into())
            }
        }
    }

    /// Ends them all; the first error is told, and before all others one after which a device
    /// may still reach something.
    pub(super) fn unmap_parts(
        &self,
        parts: Vec<Part>,
        list: &[PhysRange],
        direction: Direction,
    ) -> Result<(), ReturnError> {
        let domain = &self.dma.domain;
        let mut own = Ok(());
        let mut direct = parts.into_iter().zip(list).filter_map(|(part, segment)| {
            let buffer = match part {
                Part::Direct(mapping) => return Some(mapping),
                Part::Own(buffer) => buffer,
            };
            let ended = buffer.end(domain, core::slice::from_ref(segment), direction);
            own = worse(core::mem::replace(&mut own, Ok(())), ended);
            None
        });
        let mut ended = Ok(());
        while let Err(error) = domain.unmap_batch(&mut direct) {
            ended = worse(ended, as_one(error));
        }
        drop(direct);
        worse(own, ended)
    }
}

/// As the error of one mapping.
fn as_one(error: UnmapBatchError) -> Result<(), ReturnError> {
    let lost = error.lost.map(|lost| UnmapError::Invalidate {
        range: lost.range,
        cause: lost.cause,
    });
    let one = lost.or(error.stopped);
    one.map_or(Ok(()), |error| Err(ReturnError::Unmap(error)))
}

/// The first error, or one after which a device may still reach something.
fn worse(one: Result<(), ReturnError>, other: Result<(), ReturnError>) -> Result<(), ReturnError> {
    match (one, other) {
        (Err(ReturnError::NotMemory(_)), Err(ReturnError::Unmap(error))) => {
            Err(ReturnError::Unmap(error))
        }
        (one, other) => one.and(other),
    }
}

/// That of a mapping that lives in a buffer.
#[inline(always)]
pub(super) fn need_of<L>(mapping: &DmaMapping<L>) -> Need {
    Need {
        offset: mapping.iova.offset(),
        len: mapping.len,
        direction: mapping.direction,
    }
}
