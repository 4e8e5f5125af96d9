// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Mapping.
//!
//! # The fast path
//!
//! A single buffer that the placement bounces whole takes a slot that this CPU has cached, if there
//! is one: one push and one pop of its magazines for a map and its unmap, one count, one copy. It
//! calls nothing, allocates nothing, and writes no line that another CPU writes. Whatever it cannot
//! do is left to the slow path, which begins anew. A placement that learns asks what is known
//! first, and takes the same way from there, or that of a direct mapping. What is mapped directly
//! comes by `map_slow`: its fast path is the domain's.

use super::{
    client::{Choice, Takes},
    mapping::{Held, Part, Timed},
    place::{Edges, Granules, Otherwise, Plan, Shape, plan},
    stream::{MapsDirect, OneByOne},
    *,
};
use crate::{
    bounce::{Advice, BounceError, Buffer, Data, Lack, Need, ReturnError, Slot, Step, map_own},
    domain::{MapAttrs, MapError, UnmapError},
    platform::room::vec_of,
    units::*,
};
use core::mem::ManuallyDrop;

/// Where it went: what the device is told, and what holds it.
type Placed = Result<(Iova, Held), DmaMapError>;

/// One list to be mapped.
struct Job<'l, M> {
    list: &'l [PhysRange],
    shape: Shape,
    direction: Direction,
    attrs: MapAttrs,
    by: M,
}

impl<P: CopyMemory, T: Translator<P>, D: Watch<P>> Client<P, T, D> {
    /// Maps one buffer, directly or bounced, as the client's placement says.
    ///
    /// # Errors
    /// [`DmaMapError`]; nothing is mapped then.
    #[inline]
    pub fn map_single(
        &self,
        buffer: Lent<PhysRange>,
        direction: Direction,
    ) -> Result<DmaMapping, DmaMapError> {
        self.map_with(buffer, direction, DmaAttrs::default())
    }

    /// Maps a scatter-gather list into one contiguous range of IOVAs.
    ///
    /// # Errors
    /// [`DmaMapError`]; nothing is mapped then.
    pub fn map_sg<L: DmaBuffer>(
        &self,
        list: L,
        direction: Direction,
    ) -> Result<DmaMapping<L>, DmaMapError> {
        self.map_with(list, direction, DmaAttrs::default())
    }

    /// Maps a list, or one buffer.
    ///
    /// # Errors
    /// [`DmaMapError`]; nothing is mapped then.
    #[inline]
    pub fn map_with<L: DmaBuffer>(
        &self,
        list: L,
        direction: Direction,
        attrs: DmaAttrs,
    ) -> Result<DmaMapping<L>, DmaMapError> {
        match self.bounce_fast(list.segments(), direction, attrs.streaming) {
            Some((iova, len, slot)) => {
                let held = Held::Bounced(Buffer::Slot(slot));
                Ok(self.untimed(list, iova, len, direction, held))
            }
            None if self.short.choice == Choice::Learned => {
                self.map_by_choice(list, direction, attrs)
            }
            None => self.map_slow(OneByOne, list, direction, attrs, None),
        }
    }

    /// The same, but what is mapped directly by a stream.
    #[inline]
    pub(super) fn map_by<L: DmaBuffer>(
        &self,
        stream: &mut Stream<P, T>,
        list: L,
        direction: Direction,
        attrs: DmaAttrs,
    ) -> Result<DmaMapping<L>, DmaMapError> {
        match self.bounce_fast(list.segments(), direction, attrs.streaming) {
            Some((iova, len, slot)) => {
                let held = Held::Bounced(Buffer::Slot(slot));
                Ok(self.untimed(list, iova, len, direction, held))
            }
            None => self.map_slow(stream, list, direction, attrs, None),
        }
    }

    /// A mapping whose time is not taken.
    #[inline(always)] // so that it is made in its place
    fn untimed<L>(
        &self,
        list: L,
        iova: Iova,
        len: ByteCount,
        direction: Direction,
        held: Held,
    ) -> DmaMapping<L> {
        DmaMapping {
            list: ManuallyDrop::new(list),
            iova,
            len,
            direction,
            key: self.key,
            held,
            timed: None,
        }
    }

    /// Apart, so that the usual case has not to make room for all others.
    #[inline(never)]
    fn map_by_choice<L: DmaBuffer>(
        &self,
        list: L,
        direction: Direction,
        attrs: DmaAttrs,
    ) -> Result<DmaMapping<L>, DmaMapError> {
        match self.map_fast_learned(list.segments(), direction, attrs) {
            Ok((iova, len, held)) => Ok(self.untimed(list, iova, len, direction, held)),
            Err(advice) => self.map_slow(OneByOne, list, direction, attrs, advice),
        }
    }

    /// The fast path: a single buffer, bounced through a kept slot. `None` where
    /// the slow path serves.
    #[inline(always)]
    fn bounce_fast(
        &self,
        list: &[PhysRange],
        direction: Direction,
        streaming: Streaming,
    ) -> Option<(Iova, ByteCount, Slot)> {
        let &[buffer] = list else { return None };
        let (p, pool) = (self.platform(), self.pool.as_ref()?);
        let goes = (buffer.len.0 > 0) & (buffer.len.0 <= self.short.max);
        // what is memory has an end
        if !goes || self.dma.watch.is_on() || !p.is_memory(buffer) {
            return None;
        }
        let partly = (buffer.addr.0 | buffer.len.0) & (GRANULE - 1) != 0;
        if streaming == Streaming::Persistent || self.short.granules == Takes::Partly && !partly {
            return None;
        }
        let need = self.need(buffer, buffer.len, direction);
        let (iova, slot) = pool.bounce_fast(&self.dma.domain, list, &need)?;
        Some((iova, buffer.len, slot))
    }

    #[inline(never)]
    fn map_slow<L: DmaBuffer, M: MapsDirect<P, T>>(
        &self,
        by: M,
        list: L,
        direction: Direction,
        attrs: DmaAttrs,
        advice: Option<Advice>,
    ) -> Result<DmaMapping<L>, DmaMapError> {
        let list = ManuallyDrop::new(list);
        match self.place_list(by, (*list).segments(), direction, attrs, advice) {
            Ok((iova, len, held, timed)) => Ok(DmaMapping {
                list,
                iova,
                len,
                direction,
                key: self.key,
                held,
                timed,
            }),
            Err(error) => {
                if !error.is_reached_still() {
                    drop(ManuallyDrop::into_inner(list));
                }
                Err(error)
            }
        }
    }

    #[inline(always)] // of its one caller
    fn place_list<M: MapsDirect<P, T>>(
        &self,
        by: M,
        list: &[PhysRange],
        direction: Direction,
        attrs: DmaAttrs,
        advice: Option<Advice>,
    ) -> Result<(Iova, ByteCount, Held, Option<Timed>), DmaMapError> {
        let shape = Shape::of(list)?;
        let mut job = Job {
            list,
            shape,
            direction,
            attrs: self.config().map_attrs(attrs),
            by,
        };
        let mut placed = None;
        if self.config().placement == Placement::Adaptive {
            placed = self.place_learning(&mut job, attrs, advice);
        }
        let (place, timed) = match placed {
            Some((place, timed)) => (place?, timed),
            None => {
                let plan = plan(self.config().placement, &shape, attrs, Route::Direct)?;
                (self.place(&mut job, plan)?, None)
            }
        };
        let (iova, held) = place;
        if self.dma.watch.is_on() {
            let event = self.event(iova, shape.len, direction);
            self.dma.watch.mapped(&event, list);
        }
        Ok((iova, shape.len, held, timed))
    }

    /// The fast paths of a single buffer whose route is known, and whose time is not taken. Else
    /// there may be advice, which is given once for each operation.
    #[inline(always)] // of its one caller
    fn map_fast_learned(
        &self,
        list: &[PhysRange],
        direction: Direction,
        attrs: DmaAttrs,
    ) -> Result<(Iova, ByteCount, Held), Option<Advice>> {
        let (&[buffer], Some(pool), Some(_)) = (list, &self.pool, self.dma.config.clock) else {
            return Err(None);
        };
        let watched = self.dma.watch.is_on();
        if watched || attrs.streaming == Streaming::Persistent || buffer.len.0 == 0 {
            return Err(None);
        }
        let p = self.platform();
        let advice = pool.advise(p, buffer.len, direction).ok_or(None)?;
        let other_way = Some(advice);
        if advice.timed.is_some() {
            return Err(other_way);
        }
        let domain = &self.dma.domain;
        match advice.route {
            Route::Direct => {
                let mapped = domain.map_with(
                    Lent::ours(buffer),
                    direction,
                    self.config().map_attrs(attrs),
                );
                let mapping = mapped.map_err(|_| {
                    pool.did_not(p, Step::Direct);
                    other_way
                })?;
                Ok((mapping.iova(), buffer.len, Held::Direct(mapping)))
            }
            Route::Bounce => {
                let limits = &self.config().limits;
                if limits.align_lg2 > 0 || limits.boundary_lg2.is_some() || !p.is_memory(buffer) {
                    return Err(other_way);
                }
                let need = self.need(buffer, buffer.len, direction);
                let bounced = pool.bounce_fast(domain, list, &need);
                let (iova, slot) = bounced.ok_or(other_way)?;
                Ok((iova, buffer.len, Held::Bounced(Buffer::Slot(slot))))
            }
        }
    }

    /// By what was learned; nothing where there is nothing to choose.
    fn place_learning<M: MapsDirect<P, T>>(
        &self,
        job: &mut Job<'_, M>,
        attrs: DmaAttrs,
        advice: Option<Advice>,
    ) -> Option<(Placed, Option<Timed>)> {
        let (pool, clock) = (self.pool.as_ref()?, self.dma.config.clock?);
        if attrs.streaming == Streaming::Persistent || job.shape.edges == Edges::Inner {
            let plan = plan(self.config().placement, &job.shape, attrs, Route::Bounce);
            return Some((plan.and_then(|plan| self.place(job, plan)), None));
        }
        let anew = || {
            pool.model
                .advise(self.platform(), job.shape.len, job.direction)
        };
        let advice = advice.or_else(anew)?;
        let plan = plan(self.config().placement, &job.shape, attrs, advice.route);
        let Some(cell) = advice.timed else {
            return Some((plan.and_then(|plan| self.place(job, plan)), None));
        };
        let began = (clock.0)();
        let placed = plan.and_then(|plan| self.place(job, plan));
        let took = (clock.0)().0.saturating_sub(began.0);
        // what there was no buffer for went directly, after a search in vain: while that is so it
        // is what bouncing costs, and else a cell of full pools would learn for ever
        let tells = match &placed {
            Ok((_, Held::Direct(_))) => true,
            Ok((_, Held::Bounced(_))) => advice.route == Route::Bounce,
            _ => false,
        };
        let timed = tells.then_some(Timed {
            cell,
            route: advice.route,
            map_ns: u32::try_from(took).unwrap_or(u32::MAX),
        });
        Some((placed, timed))
    }

    /// Carries out `plan`, with the fallbacks that it names.
    #[inline]
    fn place<M: MapsDirect<P, T>>(
        &self,
        job: &mut Job<'_, M>,
        plan: Plan,
    ) -> Result<(Iova, Held), DmaMapError> {
        let Some(pool) = &self.pool else {
            return self.map_direct(job);
        };
        match plan {
            Plan::Bounce(otherwise) => self.bounce(pool, job, otherwise),
            Plan::Direct => {
                let mapped = self.map_direct(job)?;
                pool.count(self.platform(), Step::Direct);
                Ok(mapped)
            }
            Plan::Split => match self.map_split(pool, job) {
                // undone and not flushed, the list is lost: it must not come back after a copy
                Err(error) if error.is_reached_still() => Err(error),
                Err(DmaMapError::NoSpace(_)) => {
                    self.bounce(pool, job, Otherwise::Fail) // a chunk may have room
                }
                mapped => mapped,
            },
            Plan::Each => self.map_each(pool, job),
        }
    }

    #[inline]
    fn map_direct<M: MapsDirect<P, T>>(
        &self,
        job: &mut Job<'_, M>,
    ) -> Result<(Iova, Held), DmaMapError> {
        let domain = &self.dma.domain;
        let mapped = job
            .by
            .map_direct(domain, job.list, job.direction, job.attrs);
        let mapping = mapped.map_err(direct)?;
        Ok((mapping.iova(), Held::Direct(mapping)))
    }

    #[inline]
    fn bounce<M: MapsDirect<P, T>>(
        &self,
        pool: &Pool<P>,
        job: &mut Job<'_, M>,
        otherwise: Otherwise,
    ) -> Result<(Iova, Held), DmaMapError> {
        self.check_memory(job)?;
        let domain = &self.dma.domain;
        let need = self.need(job.list[0], job.shape.len, job.direction);
        let buffer = match pool.take(domain, &need, &job.attrs) {
            Ok(buffer) => buffer,
            Err(none) => return self.without_buffer(pool, job, otherwise, none),
        };
        let (iova, buffer) = self.filled(pool, buffer, &need, job.list)?;
        Ok((iova, Held::Bounced(buffer)))
    }

    /// A buffer that shows `data`, and where they begin; it goes back where they cannot be copied.
    #[inline]
    pub(super) fn filled(
        &self,
        pool: &Pool<P>,
        mut buffer: Buffer,
        need: &Need,
        data: impl Data,
    ) -> Result<(Iova, Buffer), DmaMapError> {
        if let Err(hole) = pool.fill(self.platform(), &mut buffer, need, data) {
            pool.give_unused(&self.dma.domain, buffer);
            return Err(hole.into());
        }
        Ok((pool.iova(&buffer, need), buffer))
    }

    #[cold]
    fn without_buffer<M: MapsDirect<P, T>>(
        &self,
        pool: &Pool<P>,
        job: &mut Job<'_, M>,
        otherwise: Otherwise,
        none: BounceError,
    ) -> Result<(Iova, Held), DmaMapError> {
        let p = self.platform();
        let mapped = match otherwise {
            Otherwise::Direct => self.map_direct(job).inspect(|_| {
                pool.count(p, Step::DirectAtLast);
            }),
            Otherwise::Split => self.map_split(pool, job),
            Otherwise::Fail => Err(none.into()),
        };
        mapped.map_err(|error| {
            pool.count(p, Step::NoSpace);
            match error.is_reached_still() {
                true => error,
                false => none.into(),
            }
        })
    }

    fn map_split<M>(&self, pool: &Pool<P>, job: &Job<'_, M>) -> Result<(Iova, Held), DmaMapError> {
        self.check_memory(job)?;
        let (domain, len) = (&self.dma.domain, job.shape.len);
        match pool.split(domain, job.list, job.direction, job.attrs) {
            Ok(split) => {
                pool.count(self.platform(), Step::Split);
                Ok((split.mapping.iova(), Held::Split(split)))
            }
            Err(lack) => Err(BounceError {
                len,
                slots: Lack::TooLarge,
                chunks: Lack::TooLarge,
                single_use: lack,
            }
            .into()),
        }
    }

    /// Each segment by itself.
    fn map_each<M>(&self, pool: &Pool<P>, job: &Job<'_, M>) -> Result<(Iova, Held), DmaMapError> {
        self.check_memory(job)?;
        let parts = vec_of(job.list.len());
        let mut parts = parts.map_err(|none| BounceError::once(job.shape.len, none.into()))?;
        for segment in job.list {
            match self.map_part(segment, job) {
                Ok(part) => {
                    pool.count(self.platform(), Step::SingleUse);
                    parts.push(part);
                }
                Err(error) => {
                    // quarantined where that fails
                    let undone = self.unmap_parts(parts, job.list, Direction::ToDevice);
                    return Err(match undone {
                        Err(ReturnError::Unmap(UnmapError::Invalidate { cause, .. })) => {
                            DmaMapError::Direct(MapError::Invalidate(cause))
                        }
                        _ => error,
                    });
                }
            }
        }
        Ok((parts[0].iova(), Held::Each(parts)))
    }

    fn map_part<M>(&self, segment: &PhysRange, job: &Job<'_, M>) -> Result<Part, DmaMapError> {
        let domain = &self.dma.domain;
        let list = core::slice::from_ref(segment);
        let shape = Shape::of(list)?;
        if shape.granules == Granules::Whole {
            let mapped = domain.map_with(Lent::ours(*segment), job.direction, job.attrs);
            return Ok(Part::Direct(mapped.map_err(direct)?));
        }
        let offset = segment.addr.offset();
        let own = map_own(domain, offset, segment.len, job.direction, job.attrs);
        let own = own.map_err(|lack| BounceError::once(segment.len, lack))?;
        if let Err(hole) = own.fill(self.platform(), list, job.direction) {
            // as there is nothing to bring back; what cannot be flushed is quarantined
            let _ = own.end(domain, list, Direction::ToDevice);
            return Err(hole.into());
        }
        Ok(Part::Own(own))
    }

    /// The CPU must be able to copy.
    #[inline]
    fn check_memory<M>(&self, job: &Job<'_, M>) -> Result<(), DmaMapError> {
        let p = self.platform();
        match job.list.iter().find(|buffer| !p.is_memory(**buffer)) {
            Some(hole) => Err(NotMemoryError(*hole).into()),
            None => Ok(()),
        }
    }

    #[inline(always)]
    fn need(&self, first: PhysRange, len: ByteCount, direction: Direction) -> Need {
        let offset = match self.config().low_bits {
            LowBits::Any => 0,
            LowBits::Kept => first.addr.offset(),
        };
        Need {
            offset,
            len,
            direction,
        }
    }
}

fn direct(error: MapError) -> DmaMapError {
    match error {
        MapError::Buffer(error) => error.into(),
        error => DmaMapError::Direct(error),
    }
}
